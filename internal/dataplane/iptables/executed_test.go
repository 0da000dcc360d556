// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"flag"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/rulewalk"
	"golang.org/x/sys/unix"
)

var large = flag.Bool("large", false, "count rules with 10,000 Services too")

// TestRulesExecuted counts the rules that the first packet of a connection meets, with
// 10 endpoints for each Service: at most 40, however many Services there are.
func TestRulesExecuted(t *testing.T) {
	sizes := []int{10, 100, 1000}
	if *large {
		sizes = append(sizes, 10_000)
	}
	eachVariant(t, func(t *testing.T, v Variant) {
		for _, n := range sizes {
			k := newKernel(t, v)
			k.routeAway()
			s := desired.New(inCluster("10.0.0.0/8"))
			for i := range n {
				web(s, i, consecutive(i*10, 10)...)
			}
			dataplanetest.Reconcile(t, k.Dataplane, s)
			most, sum, tries := 0, 0, 10
			for range tries {
				i := rand.IntN(n)
				rules, to := k.executed(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80))
				if !strings.Contains(to, ":8080") {
					t.Fatalf("Service %d of %d: the packet came to %q", i, n, to)
				}
				most, sum = max(most, rules), sum+rules
			}
			t.Logf("%6d Services: %.1f rules for a new connection, at most %d", n, float64(sum)/float64(tries), most)
			if v == Legacy || n <= 1000 { // iptables-nft 1.8.9 takes minutes to read a longer one
				t.Logf("%d in a list with a chain for each endpoint", executedInList(t, v, n))
			}
			if most > 40 {
				t.Errorf("with %d Services, %d rules for a new connection", n, most)
			}
		}
	})
}

// executedInList is how many rules the first packet of a connection to the Service in
// the middle meets in the shape of kube-proxy's iptables mode: one list of Services, a chain for
// each of them and one for each endpoint.
func executedInList(t *testing.T, v Variant, n int) (rules int) {
	k := newKernel(t, v)
	k.routeAway()
	var chains, list, text strings.Builder
	list.WriteString(":LIST - [0:0]\n:MARK-MASQ - [0:0]\n")
	text.WriteString("-A OUTPUT -j LIST\n-A MARK-MASQ -j MARK --or-mark 0x4000\n")
	for i := range n {
		ip := fmt.Sprintf("10.96.%d.%d", i>>8, i&255)
		fmt.Fprintf(&list, ":SVC-%06d - [0:0]\n", i)
		fmt.Fprintf(&text, "-A LIST -d %s -p tcp --dport 80 -j SVC-%06d\n", ip, i)
		fmt.Fprintf(&text, "-A SVC-%06d -d %s -p tcp --dport 80 ! -s 10.0.0.0/8 -j MARK-MASQ\n", i, ip)
		for e := range 10 {
			match := ""
			if e < 9 {
				match = fmt.Sprintf("-m statistic --mode random --probability %f ", 1/float64(10-e))
			}
			b := backendNumber(i*10 + e)
			fmt.Fprintf(&chains, ":SEP-%07d - [0:0]\n", i*10+e)
			fmt.Fprintf(&text, "-A SVC-%06d %s-j SEP-%07d\n", i, match, i*10+e)
			fmt.Fprintf(&text, "-A SEP-%07d -s %s -j MARK-MASQ\n", i*10+e, b.Addr())
			fmt.Fprintf(&text, "-A SEP-%07d -p tcp -j DNAT --to-destination %s\n", i*10+e, b)
		}
	}
	input := "*nat\n" + list.String() + chains.String() + text.String() + "COMMIT\n"
	if err := v.restore(t.Context(), k.ns.FD(), desired.IPv4, []byte(input)); err != nil {
		t.Fatal(err)
	}
	i := n / 2
	rules, to := k.executed(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}), 80))
	if !strings.Contains(to, ":8080") {
		t.Fatalf("the packet came to %q", to)
	}
	return rules
}

func inCluster(cidr string) (c desired.Config) {
	c.DetectLocal.CIDRs = append(c.DetectLocal.CIDRs, netip.MustParsePrefix(cidr))
	return c
}

func consecutive(first, n int) (all []int) {
	for i := range n {
		all = append(all, first+i+1)
	}
	return all
}

// routeAway routes packets to an interface where they are lost. (On lo they would arrive
// again.)
func (k *kernel) routeAway() {
	k.t.Helper()
	k.run("ip link add away0 type veth peer name away1 && ip link set away0 up && ip link set away1 up && " +
		"ip addr add 192.0.2.1/24 dev away0 && ip neigh add 192.0.2.2 lladdr 02:00:00:00:00:02 dev away0 && ip route add default via 192.0.2.2")
}

// executed opens a connection from the node, and returns how many rules it was sent
// through, and where it went.
func (k *kernel) executed(to netip.AddrPort) (rules int, destination string) {
	k.t.Helper()
	before := k.counters()
	err := k.ns.Do(func() error {
		// The handshake consists of its first packet only, as there is no answer.
		fd, err := unix.Socket(unix.AF_INET, unix.SOCK_STREAM|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		err = unix.Connect(fd, &unix.SockaddrInet4{Addr: to.Addr().As4(), Port: int(to.Port())})
		if errors.Is(err, unix.EINPROGRESS) {
			return nil
		}
		return err
	})
	if err != nil {
		k.t.Fatal(err)
	}
	w, err := rulewalk.Follow(before, k.counters(), "OUTPUT", "POSTROUTING")
	if err != nil {
		k.t.Fatal(err)
	}
	return w.Rules, w.Destination
}

// counters are the rules of IPv4, in all tables.
func (k *kernel) counters() rulewalk.Dump {
	k.t.Helper()
	text, err := run(k.t.Context(), k.ns.FD(), nil, k.variant.command(desired.IPv4, "-save"), "-c")
	if err != nil {
		k.t.Fatal(err)
	}
	d, err := rulewalk.Parse(string(text))
	if err != nil {
		k.t.Fatal(err)
	}
	return d
}
