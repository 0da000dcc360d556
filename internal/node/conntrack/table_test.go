// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"fmt"
	"net/netip"
	"os/exec"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// table is the conntrack table of a network namespace. Entries are made and
// listed by other code: a library, and the command conntrack.
type table struct {
	*Conn
	ns     *lab.Namespace
	t      testing.TB
	handle *netlink.Handle
}

func newTable(t testing.TB) *table {
	kerneltest.Require(t, kerneltest.NFTables)
	ns, err := lab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	tab := &table{ns: ns, t: t, Conn: dial(t, ns)}
	err = ns.Do(func() (err error) {
		tab.handle, err = netlink.NewHandle(unix.NETLINK_NETFILTER)
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(tab.handle.Close)
	return tab
}

func dial(t testing.TB, ns *lab.Namespace) *Conn {
	c, err := New(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := c.Close(); err != nil {
			t.Error(err)
		}
	})
	return c
}

// flow describes an entry to make: the addresses of the client, the frontend and the backend.
type flow struct {
	protocol             desired.Protocol
	from, to, answeredBy netip.AddrPort
	state                uint8 // of TCP (enum tcp_conntrack)
}

// flowOf is a flow by its text, "udp 10.0.0.1:1000 10.96.0.10:53 10.244.1.5:53".
func flowOf(s string) flow {
	words := strings.Fields(s)
	if len(words) != 4 {
		panic("flow " + s)
	}
	p := map[string]desired.Protocol{"udp": desired.UDP, "tcp": desired.TCP, "sctp": desired.SCTP}[words[0]]
	return flow{
		protocol: p,
		from:     netip.MustParseAddrPort(words[1]), to: netip.MustParseAddrPort(words[2]),
		answeredBy: netip.MustParseAddrPort(words[3]),
	}
}

func (f flow) String() string {
	return fmt.Sprintf("%s %v %v %v", strings.ToLower(f.protocol.String()), f.from, f.to, f.answeredBy)
}

// add makes an entry.
func (tab *table) add(f flow) {
	tab.t.Helper()
	tuple := func(src, dst netip.AddrPort) netlink.IPTuple {
		return netlink.IPTuple{
			Protocol: uint8(f.protocol),
			SrcIP:    src.Addr().AsSlice(), SrcPort: src.Port(), DstIP: dst.Addr().AsSlice(), DstPort: dst.Port(),
		}
	}
	var family netlink.InetFamily = unix.AF_INET
	if f.to.Addr().Is6() {
		family = unix.AF_INET6
	}
	entry := netlink.ConntrackFlow{
		FamilyType: uint8(family),
		Forward:    tuple(f.from, f.to), Reverse: tuple(f.answeredBy, f.from),
		TimeOut: 3600,
	}
	if f.state != 0 {
		entry.ProtoInfo = &netlink.ProtoInfoTCP{State: f.state}
	}
	err := tab.handle.ConntrackCreate(netlink.ConntrackTable, family, &entry)
	if err != nil {
		tab.t.Fatalf("making entry %v: %v", f, err)
	}
}

// conntrack runs the command conntrack in the namespace.
func (tab *table) conntrack(args ...string) string {
	tab.t.Helper()
	if _, err := exec.LookPath("conntrack"); err != nil {
		tab.t.Fatal("command conntrack is not installed (see test/deps.sh)")
	}
	out, err := tab.ns.Run(context.Background(), "conntrack", args...)
	if err != nil {
		tab.t.Fatal(err)
	}
	return string(out)
}

// flows lists the entries in order, as the command conntrack sees them.
func (tab *table) flows() (all []string) {
	tab.t.Helper()
	for _, family := range []string{"ipv4", "ipv6"} {
		for line := range strings.Lines(tab.conntrack("-L", "-f", family)) {
			words := strings.Fields(line)
			var ends []string // src= dst= sport= dport= of both directions
			for _, w := range words {
				if key, value, ok := strings.Cut(w, "="); ok && slices.Contains([]string{"src", "dst", "sport", "dport"}, key) {
					ends = append(ends, value)
				}
			}
			if len(ends) != 8 {
				tab.t.Fatalf("entry %q", line)
			}
			end := func(ip, port int) netip.AddrPort {
				return netip.MustParseAddrPort("[" + ends[ip] + "]:" + ends[port])
			}
			if family == "ipv4" {
				end = func(ip, port int) netip.AddrPort { return netip.MustParseAddrPort(ends[ip] + ":" + ends[port]) }
			}
			all = append(all, fmt.Sprintf("%s %v %v %v", words[0], end(0, 2), end(1, 3), end(4, 6)))
		}
	}
	slices.Sort(all)
	return all
}

// clean cleans and fails the test on an error.
func (tab *table) clean(flows ...desired.StaleFlows) Stats {
	tab.t.Helper()
	stats, err := tab.Clean(tab.t.Context(), flows)
	if err != nil {
		tab.t.Fatal(err)
	}
	return stats
}

// stale makes StaleFlows of UDP, of frontends and backends separated by spaces.
func stale(frontends, backends string) (f desired.StaleFlows) {
	f.Protocol = desired.UDP
	for _, s := range strings.Fields(frontends) {
		f.Frontends = append(f.Frontends, desired.FrontendKey{AddrPort: netip.MustParseAddrPort(s), Protocol: desired.UDP})
	}
	for _, s := range strings.Fields(backends) {
		f.Backends = append(f.Backends, desired.NewBackend(netip.MustParseAddrPort(s)))
	}
	return f
}

// untranslated adds the flows to the frontends that were sent to no backend: the frontend
// itself answers them.
func untranslated(f desired.StaleFlows) desired.StaleFlows {
	for _, k := range f.Frontends {
		f.Backends = append(f.Backends, desired.NewBackend(k.AddrPort))
	}
	return f
}

func only(f desired.StaleFlows) desired.StaleFlows {
	f.Only = true
	return f
}

func in(p desired.Protocol, f desired.StaleFlows) desired.StaleFlows {
	f.Protocol = p
	for i := range f.Frontends {
		f.Frontends[i].Protocol = p
	}
	return f
}
