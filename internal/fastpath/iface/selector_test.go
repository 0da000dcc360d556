// SPDX-License-Identifier: Apache-2.0

package iface

import (
	"fmt"
	"net/netip"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/node/netif"
)

func TestSelects(t *testing.T) {
	veth := netif.Interface{Index: 3, Name: "veth7", Type: "veth", MTU: 1450, Up: true, Addresses: []netip.Addr{netip.MustParseAddr("169.254.1.1")}}
	lo := netif.Interface{Index: 1, Name: "lo", Type: "device", MTU: 65536, Up: true, Loopback: true}
	port := netif.Interface{Index: 4, Name: "veth8", Type: "veth", MTU: 1500, Up: true, PortOf: "bridge"}
	slave := netif.Interface{Index: 5, Name: "eth1", Type: "device", MTU: 1500, Up: true, PortOf: "bond"}
	vrf := netif.Interface{Index: 6, Name: "eth2", Type: "device", MTU: 1500, Up: true, PortOf: "vrf"}
	down := netif.Interface{Index: 7, Name: "eth3", Type: "device", MTU: 1500}
	wg := netif.Interface{Index: 8, Name: "wg0", Type: "wireguard", MTU: 1420, Up: true}
	for _, c := range []struct{ expression, want string }{
		{"", "veth7 eth2"},
		{" ", "veth7 eth2"},
		{`interface.name.startsWith("veth")`, "veth7 veth8"},
		{`interface.up`, "veth7 lo veth8 eth1 eth2 wg0"},
		{`interface.type == "veth" && interface.portOf == ""`, "veth7"},
		{`interface.mtu < 1500`, "veth7 wg0"},
		{`interface.addresses.exists(a, a.startsWith("169.254."))`, "veth7"},
		{`interface.addresses[0] == "169.254.1.1"`, "veth7"},
		{`true`, "veth7 lo veth8 eth1 eth2 eth3 wg0"},
	} {
		s, err := Compile(c.expression)
		if err != nil {
			t.Errorf("%q: %v", c.expression, err)
			continue
		}
		var got []string
		for _, i := range []netif.Interface{veth, lo, port, slave, vrf, down, wg} {
			is, err := s.Selects(&i)
			if is {
				got = append(got, i.Name)
			}
			if err != nil && !strings.Contains(c.expression, "[0]") {
				t.Errorf("%q of %s: %v", c.expression, i.Name, err)
			}
		}
		if strings.Join(got, " ") != c.want {
			t.Errorf("%q selects %v, want %v", c.expression, got, c.want)
		}
	}
	s, err := Compile(`interface.addresses[0] == "1"`)
	if err != nil {
		t.Fatal(err)
	}
	_, err = s.Selects(&lo)
	if want := `interface expression "interface.addresses[0] == \"1\"": interface lo: index out of bounds: 0`; fmt.Sprint(err) != want {
		t.Errorf("error %v, want %s", err, want)
	}
}

func TestCompileErrors(t *testing.T) {
	for _, c := range []struct{ expression, want string }{
		{`interface.nmae == "eth0"`, `interface expression "interface.nmae == \"eth0\"": column 10: undefined field 'nmae'`},
		{`interface.name`, `interface expression "interface.name": is of type string, not bool`},
		{`interface.name.startsWith("veth"`, `interface expression "interface.name.startsWith(\"veth\"": column 33: Syntax error: missing ')' at '<EOF>'`},
		{`name == "eth0"`, `interface expression "name == \"eth0\"": column 1: undeclared reference to 'name' (in container '')`},
		{`interface.mtu == "1500"`, `interface expression "interface.mtu == \"1500\"": column 15: found no matching overload for '_==_' applied to '(int, string)'`},
	} {
		if _, err := Compile(c.expression); fmt.Sprint(err) != c.want {
			t.Errorf("error\n%v, want\n%s", err, c.want)
		}
	}
}
