// SPDX-License-Identifier: Apache-2.0

package flows

import (
	"encoding/binary"
	"encoding/json"
	"net/netip"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/vishvananda/netlink/nl"
)

// entry is a message of the kernel's about an entry.
func entry(t *testing.T, status uint32, src, dst, backend, back string, began uint64) []byte {
	t.Helper()
	a := netlink.NewAttributeEncoder()
	a.ByteOrder = binary.BigEndian
	put := func(typ uint16, from, to netip.AddrPort) {
		a.Nested(typ, func(a *netlink.AttributeEncoder) error {
			a.Nested(nl.CTA_TUPLE_IP, func(a *netlink.AttributeEncoder) error {
				s, d := uint16(nl.CTA_IP_V4_SRC), uint16(nl.CTA_IP_V4_DST)
				if from.Addr().Is6() {
					s, d = nl.CTA_IP_V6_SRC, nl.CTA_IP_V6_DST
				}
				a.Bytes(s, from.Addr().AsSlice())
				a.Bytes(d, to.Addr().AsSlice())
				return nil
			})
			a.Nested(nl.CTA_TUPLE_PROTO, func(a *netlink.AttributeEncoder) error {
				a.Uint8(nl.CTA_PROTO_NUM, 6)
				a.Uint16(nl.CTA_PROTO_SRC_PORT, from.Port())
				a.Uint16(nl.CTA_PROTO_DST_PORT, to.Port())
				return nil
			})
			return nil
		})
	}
	put(nl.CTA_TUPLE_ORIG, netip.MustParseAddrPort(src), netip.MustParseAddrPort(dst))
	put(nl.CTA_TUPLE_REPLY, netip.MustParseAddrPort(backend), netip.MustParseAddrPort(back))
	a.Uint32(nl.CTA_STATUS, status)
	for typ, n := range map[uint16]uint64{nl.CTA_COUNTERS_ORIG: 7, nl.CTA_COUNTERS_REPLY: 9} {
		a.Nested(typ, func(a *netlink.AttributeEncoder) error {
			a.Uint64(nl.CTA_COUNTERS_PACKETS, n)
			a.Uint64(nl.CTA_COUNTERS_BYTES, n*1000)
			return nil
		})
	}
	if began != 0 {
		a.Nested(nl.CTA_TIMESTAMP, func(a *netlink.AttributeEncoder) error {
			a.Uint64(nl.CTA_TIMESTAMP_START, began)
			return nil
		})
	}
	b, err := a.Encode()
	if err != nil {
		t.Fatal(err)
	}
	return append([]byte{2, 0, 0, 0}, b...)
}

func TestParse(t *testing.T) {
	var f Flow
	m := entry(t, 0x18e|ctnetlink.StatusDNAT|ctnetlink.StatusOffload|ctnetlink.StatusHWOffload, "[fd00::1]:40000", "[fd00:96::10]:80", "[fd00::2]:8080", "[fd00::9]:1234", 1_700_000_000_000_000_001)
	if !f.Parse(m) {
		t.Fatal("it is not taken for an offloaded connection")
	}
	want := Flow{
		Protocol: desired.TCP, Source: netip.MustParseAddrPort("[fd00::1]:40000"),
		Destination: netip.MustParseAddrPort("[fd00:96::10]:80"), Backend: netip.MustParseAddrPort("[fd00::2]:8080"),
		Sent: Count{7, 7000}, Received: Count{9, 9000}, Began: time.Unix(1_700_000_000, 1), Hardware: true, Offloaded: true, Answered: true, NAT: true,
	}
	if f != want {
		t.Errorf("%+v, want %+v", f, want)
	}
	if !f.Parse(entry(t, 0x18c, "10.0.0.1:1", "10.0.0.2:2", "10.0.0.2:2", "10.0.0.1:1", 0)) || f.Offloaded || f.Answered || f.NAT {
		t.Error("a connection on the slow path is taken for an offloaded one")
	}
	for n := range m {
		f.Parse(m[:n]) // must not panic
	}
}

func listing() *Listing {
	at := time.Date(2026, 1, 2, 3, 4, 5, 0, time.UTC)
	flow := func(p desired.Protocol, src, dst, backend string, packets, bytes uint64) Flow {
		return Flow{
			Protocol: p, Source: netip.MustParseAddrPort(src), Destination: netip.MustParseAddrPort(dst), Backend: netip.MustParseAddrPort(backend),
			Sent: Count{packets, bytes}, Received: Count{packets, bytes / 2},
		}
	}
	l := &Listing{At: at, Flows: []Flow{
		flow(desired.TCP, "10.244.1.2:40000", "10.96.0.10:80", "10.244.1.11:8080", 100, 2<<20),
		flow(desired.TCP, "10.244.1.3:40000", "10.96.0.10:80", "10.244.1.12:8080", 30, 3000),
		flow(desired.UDP, "10.244.1.3:40000", "10.96.0.10:80", "10.244.1.12:8080", 30, 3000),
		flow(desired.TCP, "10.244.1.2:40001", "10.244.1.9:80", "10.244.1.9:80", 50, 600),
	}}
	l.Flows[0].Began = at.Add(-90*time.Second - 300*time.Millisecond)
	l.Flows[1].Hardware = true
	l.Services = Services{l.Flows[0].Frontend(): "default/web:http"}
	return l
}

func TestTable(t *testing.T) {
	for grouped, want := range map[bool]string{
		false: `
SERVICE           FRONTEND           CLIENT            BACKEND           PACKETS  BYTES     AGE    HARDWARE
default/web:http  10.96.0.10:80/TCP  10.244.1.2:40000  10.244.1.11:8080  200      3.00 MiB  1m30s  no
default/web:http  10.96.0.10:80/TCP  10.244.1.3:40000  10.244.1.12:8080  60       4.39 KiB  -      yes
-                 10.96.0.10:80/UDP  10.244.1.3:40000  10.244.1.12:8080  60       4.39 KiB  -      no
-                 10.244.1.9:80/TCP  10.244.1.2:40001  10.244.1.9:80     100      900 B     -      no
`,
		true: `
SERVICE           FRONTEND           FLOWS  BACKENDS  PACKETS  BYTES     HARDWARE
default/web:http  10.96.0.10:80/TCP  2      2         260      3.00 MiB  1
-                 10.96.0.10:80/UDP  1      1         60       4.39 KiB  0
-                 10.244.1.9:80/TCP  1      1         100      900 B     0
`,
	} {
		var b strings.Builder
		if err := listing().WriteTable(&b, grouped); err != nil {
			t.Fatal(err)
		}
		if got := "\n" + b.String(); got != want {
			t.Errorf("grouped %t:%swant%s", grouped, got, want)
		}
	}
}

func TestJSON(t *testing.T) {
	for grouped, want := range map[bool]string{
		false: `{"flows":[{"ageSeconds":90.3,"backend":"10.244.1.11:8080","client":"10.244.1.2:40000","frontend":"10.96.0.10:80","hardware":false,` +
			`"protocol":"TCP","received":{"bytes":1048576,"packets":100},"sent":{"bytes":2097152,"packets":100},"service":"default/web:http"}],"time":"2026-01-02T03:04:05Z"}`,
		true: `{"services":[{"backends":1,"flows":1,"frontend":"10.96.0.10:80","hardware":0,"protocol":"TCP",` +
			`"received":{"bytes":1048576,"packets":100},"sent":{"bytes":2097152,"packets":100},"service":"default/web:http"}],"time":"2026-01-02T03:04:05Z"}`,
	} {
		l := listing()
		l.Flows = l.Flows[:1]
		var b strings.Builder
		if err := l.WriteJSON(&b, grouped); err != nil {
			t.Fatal(err)
		}
		var any any
		if err := json.Unmarshal([]byte(b.String()), &any); err != nil {
			t.Fatal(err)
		}
		got, _ := json.Marshal(any) // keys in order
		if string(got) != want {
			t.Errorf("grouped %t:\n%s\nwant\n%s", grouped, got, want)
		}
	}
	var b strings.Builder
	if err := (&Listing{}).WriteJSON(&b, false); err != nil || !strings.Contains(b.String(), `"flows": []`) {
		t.Errorf("no flows at all: %s, %v", b.String(), err)
	}
}

func TestBinarySize(t *testing.T) {
	for n, want := range map[uint64]string{
		0: "0 B", 1023: "1023 B", 1024: "1.00 KiB", 10_230: "9.99 KiB", 10_240: "10.0 KiB", 102_350: "100 KiB",
		1 << 20: "1.00 MiB", 1023 << 10: "1.00 MiB", 1<<64 - 1: "16.0 EiB",
	} {
		if got := BinarySize(n); got != want {
			t.Errorf("%d is %s, want %s", n, got, want)
		}
	}
}
