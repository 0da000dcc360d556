// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"maps"
	"net/netip"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// town is the table that TestClean begins with: two Services of which one has
// two frontends, in both families and all protocols.
const town = `
udp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53
udp 10.0.0.1:1002 10.96.0.10:53 10.244.1.6:53
udp 10.0.0.1:1003 10.96.0.10:53 10.96.0.10:53
udp 10.0.0.1:1004 10.96.0.10:54 10.244.1.5:53
udp 10.0.0.1:1005 192.0.2.1:53 10.244.1.5:53
udp 10.0.0.1:1006 10.96.0.20:53 10.244.1.5:53
udp 10.0.0.1:1007 10.96.0.20:53 10.96.0.20:53
udp 10.0.0.1:1008 10.244.1.5:53 10.244.1.5:53
udp 10.244.1.5:53 10.96.0.10:53 10.244.1.6:54
udp [fd00::1]:1001 [fd00:96::10]:53 [fd00:244::5]:53
udp [fd00::1]:1002 [fd00:96::10]:53 [fd00:244::6]:53
udp [fd00::1]:1003 [fd00:96::10]:53 [fd00:96::10]:53
udp [fd00::1]:1004 [fd00:96::20]:53 [fd00:244::5]:53
tcp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53
tcp 10.0.0.1:1003 10.96.0.10:53 10.96.0.10:53
tcp [fd00::1]:1001 [fd00:96::10]:53 [fd00:244::5]:53
sctp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53
sctp 10.0.0.1:1002 10.96.0.10:53 10.244.1.6:53
sctp 10.0.0.1:1003 10.96.0.10:53 10.96.0.10:53
sctp 10.0.0.1:1004 10.96.0.10:54 10.244.1.5:53
sctp [fd00::1]:1001 [fd00:96::10]:53 [fd00:244::5]:53
`

// bothInBoth is a case with flows that share no address in one of the families.
const bothInBoth = "UDP and SCTP of both families"

func lines(s string) (all []string) {
	for l := range strings.Lines(strings.TrimSpace(s)) {
		all = append(all, strings.TrimSpace(l))
	}
	slices.Sort(all)
	return all
}

// TestClean says for each kind of StaleFlows what it deletes from the town, and how
// many entries the kernel may report for it: more than these where the filter
// cannot be as narrow.
func TestClean(t *testing.T) {
	for _, test := range []struct {
		name    string
		flows   []desired.StaleFlows
		dumps   int
		entries int // at the most
		ipv6    int // of these, those of IPv6, where the kernel compares addresses
		deleted string
	}{{
		name:  "a removed backend of one frontend",
		flows: []desired.StaleFlows{stale("10.96.0.10:53", "10.244.1.5:53")},
		dumps: 1, entries: 1,
		deleted: "udp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53",
	}, {
		name:  "a removed backend of two frontends",
		flows: []desired.StaleFlows{stale("10.96.0.10:53 192.0.2.1:53", "10.244.1.5:53")},
		dumps: 1, entries: 4,
		deleted: `
			udp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53
			udp 10.0.0.1:1005 192.0.2.1:53 10.244.1.5:53`,
	}, {
		name:  "two removed backends, which differ in their address and port",
		flows: []desired.StaleFlows{stale("10.96.0.10:53", "10.244.1.5:53 10.244.1.6:54")},
		dumps: 1, entries: 4,
		deleted: `
			udp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53
			udp 10.244.1.5:53 10.96.0.10:53 10.244.1.6:54`,
	}, {
		name: "removed backends of two Services",
		flows: []desired.StaleFlows{
			stale("10.96.0.10:53", "10.244.1.6:53"),
			stale("10.96.0.20:53", "10.244.1.5:53"),
		},
		dumps: 1, entries: 7,
		deleted: `
			udp 10.0.0.1:1002 10.96.0.10:53 10.244.1.6:53
			udp 10.0.0.1:1006 10.96.0.20:53 10.244.1.5:53`,
	}, {
		name:  "a removed backend with addresses of both families",
		flows: []desired.StaleFlows{stale("10.96.0.10:53 [fd00:96::10]:53", "10.244.1.5:53 [fd00:244::5]:53")},
		dumps: 2, entries: 2, ipv6: 1,
		deleted: `
			udp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53
			udp [fd00::1]:1001 [fd00:96::10]:53 [fd00:244::5]:53`,
	}, {
		name:  "a removed backend of one family, of a Service with both",
		flows: []desired.StaleFlows{stale("10.96.0.10:53 [fd00:96::10]:53", "[fd00:244::5]:53")},
		dumps: 1, entries: 1, ipv6: 1,
		deleted: "udp [fd00::1]:1001 [fd00:96::10]:53 [fd00:244::5]:53",
	}, {
		name:  "a frontend's first endpoint",
		flows: []desired.StaleFlows{untranslated(stale("10.96.0.10:53", ""))},
		dumps: 1, entries: 1,
		deleted: "udp 10.0.0.1:1003 10.96.0.10:53 10.96.0.10:53",
	}, {
		name:  "the first endpoint of two frontends of both families",
		flows: []desired.StaleFlows{untranslated(stale("10.96.0.10:53 10.96.0.20:53 [fd00:96::10]:53", ""))},
		dumps: 2, entries: 7 + 1, ipv6: 1,
		deleted: `
			udp 10.0.0.1:1003 10.96.0.10:53 10.96.0.10:53
			udp 10.0.0.1:1007 10.96.0.20:53 10.96.0.20:53
			udp [fd00::1]:1003 [fd00:96::10]:53 [fd00:96::10]:53`,
	}, {
		name:  "a removed backend and flows to nowhere",
		flows: []desired.StaleFlows{untranslated(stale("10.96.0.10:53", "10.244.1.6:54"))},
		dumps: 1, entries: 4,
		deleted: `
			udp 10.0.0.1:1003 10.96.0.10:53 10.96.0.10:53
			udp 10.244.1.5:53 10.96.0.10:53 10.244.1.6:54`,
	}, {
		name:  "only one backend serves",
		flows: []desired.StaleFlows{only(stale("10.96.0.10:53", "10.244.1.6:53"))},
		dumps: 1, entries: 4,
		deleted: `
			udp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53
			udp 10.0.0.1:1003 10.96.0.10:53 10.96.0.10:53
			udp 10.244.1.5:53 10.96.0.10:53 10.244.1.6:54`,
	}, {
		name:  "no backend serves",
		flows: []desired.StaleFlows{only(stale("10.96.0.20:53 [fd00:96::20]:53", ""))},
		dumps: 2, entries: 3, ipv6: 1,
		deleted: `
			udp 10.0.0.1:1006 10.96.0.20:53 10.244.1.5:53
			udp 10.0.0.1:1007 10.96.0.20:53 10.96.0.20:53
			udp [fd00::1]:1004 [fd00:96::20]:53 [fd00:244::5]:53`,
	}, {
		name:  "frontends that no Service has any more",
		flows: []desired.StaleFlows{only(stale("10.96.0.10:53 [fd00:96::10]:53", "10.96.0.10:53 [fd00:96::10]:53"))},
		dumps: 2, entries: 4 + 3, ipv6: 3,
		deleted: `
			udp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53
			udp 10.0.0.1:1002 10.96.0.10:53 10.244.1.6:53
			udp 10.244.1.5:53 10.96.0.10:53 10.244.1.6:54
			udp [fd00::1]:1001 [fd00:96::10]:53 [fd00:244::5]:53
			udp [fd00::1]:1002 [fd00:96::10]:53 [fd00:244::6]:53`,
	}, {
		name: "Only replaces what came before",
		flows: []desired.StaleFlows{
			untranslated(stale("10.96.0.10:53 10.96.0.20:53", "10.244.1.5:53 10.244.1.6:53")),
			only(stale("10.96.0.10:53", "10.244.1.5:53 10.244.1.6:53 10.244.1.6:54")),
			stale("10.96.0.10:53", "10.244.1.6:54"),
		},
		dumps: 1, entries: 8,
		deleted: `
			udp 10.0.0.1:1003 10.96.0.10:53 10.96.0.10:53
			udp 10.0.0.1:1006 10.96.0.20:53 10.244.1.5:53
			udp 10.0.0.1:1007 10.96.0.20:53 10.96.0.20:53
			udp 10.244.1.5:53 10.96.0.10:53 10.244.1.6:54`,
	}, {
		name:  "SCTP, of which the kernel compares no ports",
		flows: []desired.StaleFlows{in(desired.SCTP, stale("10.96.0.10:53 [fd00:96::10]:53", "10.244.1.5:53 [fd00:244::5]:53"))},
		dumps: 2, entries: 3, ipv6: 1,
		deleted: `
			sctp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53
			sctp [fd00::1]:1001 [fd00:96::10]:53 [fd00:244::5]:53`,
	}, {
		name: "UDP and SCTP",
		flows: []desired.StaleFlows{
			in(desired.SCTP, untranslated(stale("10.96.0.10:53", ""))),
			stale("10.96.0.10:54", "10.244.1.5:53"),
		},
		dumps: 1, entries: 11, // TCP too: the address is all that they have in common
		deleted: `
			sctp 10.0.0.1:1003 10.96.0.10:53 10.96.0.10:53
			udp 10.0.0.1:1004 10.96.0.10:54 10.244.1.5:53`,
	}, {
		name: bothInBoth,
		flows: []desired.StaleFlows{
			in(desired.SCTP, stale("10.96.0.10:53 [fd00:96::10]:53", "10.244.1.5:53 [fd00:244::5]:53")),
			untranslated(stale("10.96.0.20:53 [fd00:96::10]:53", "10.244.1.5:53")),
		},
		dumps: 3, entries: 9 + 4 + 5, ipv6: 1,
		deleted: `
			sctp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53
			sctp [fd00::1]:1001 [fd00:96::10]:53 [fd00:244::5]:53
			udp 10.0.0.1:1006 10.96.0.20:53 10.244.1.5:53
			udp 10.0.0.1:1007 10.96.0.20:53 10.96.0.20:53
			udp [fd00::1]:1003 [fd00:96::10]:53 [fd00:96::10]:53`,
	}, {
		name:  "TCP, of which no connection waits for an answer to its SYN",
		flows: []desired.StaleFlows{in(desired.TCP, stale("10.96.0.10:53 [fd00:96::10]:53", ""))},
		dumps: 2, entries: 2 + 1, ipv6: 1,
	}, {
		name: "TCP to endpoints of deleted Nodes",
		flows: []desired.StaleFlows{
			in(desired.TCP, stale("", "10.244.1.5:53 [fd00:244::5]:53")), // and one that was not translated
			in(desired.TCP, stale("", "10.96.0.10:53")),
		},
		dumps: 2, entries: 2 + 1, ipv6: 1,
		deleted: `
			tcp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53
			tcp [fd00::1]:1001 [fd00:96::10]:53 [fd00:244::5]:53`,
	}, {
		name: "nothing can be stale",
		flows: []desired.StaleFlows{
			{}, stale("10.96.0.10:53", ""), stale("", "10.244.1.5:53"), stale("10.96.0.10:53", "[fd00:244::5]:53"),
			untranslated(stale("", "")), only(stale("", "")),
		},
	}, {
		name:  "another port, another address",
		flows: []desired.StaleFlows{stale("10.96.0.10:53", "10.244.1.5:54"), stale("10.96.0.11:53", "10.244.1.5:53")},
		dumps: 1, entries: 4,
	}} {
		t.Run(test.name, func(t *testing.T) {
			before := lines(town)
			after := slices.DeleteFunc(slices.Clone(before), func(f string) bool {
				return slices.Contains(lines(test.deleted), f)
			})
			for _, unfiltered := range []bool{false, true} {
				tab := newTable(t)
				for _, f := range before {
					tab.add(flowOf(f))
				}
				if got := tab.flows(); !slices.Equal(got, before) {
					t.Fatalf("the table begins with\n%s", strings.Join(got, "\n"))
				}
				tab.unfiltered = unfiltered
				stats := tab.clean(test.flows...)
				if got := tab.flows(); !slices.Equal(got, after) {
					t.Errorf("unfiltered %v, left are\n%s\nwant\n%s", unfiltered,
						strings.Join(got, "\n"), strings.Join(after, "\n"))
				}
				most, dumps := test.entries, test.dumps
				if test.ipv6 > 0 && !tab.able[ipv6] {
					most += 4 // all that there are in the town, of a protocol
					if test.name == bothInBoth && !unfiltered {
						dumps++ // without addresses, they have nothing in common there either
					}
				}
				if unfiltered {
					dumps = min(dumps, 2) // families
				}
				if stats.Dumps != dumps || stats.Deleted != len(before)-len(after) ||
					stats.Entries > most && !unfiltered {
					t.Errorf("unfiltered %v: %+v, want %d dumps, at most %d entries and %d deleted",
						unfiltered, stats, dumps, most, len(before)-len(after))
				}
			}
		})
	}
}

// TestBegun deletes entries of TCP to frontends that are not translated and in state SYN_SENT.
func TestBegun(t *testing.T) {
	const none, synSent, synRecv, established = 0, 1, 2, 3
	begun := in(desired.TCP, stale("10.96.0.10:80 10.96.0.20:80 [fd00:96::10]:80", ""))
	for _, unfiltered := range []bool{false, true} {
		tab := newTable(t)
		tab.unfiltered = unfiltered
		var left []string
		for _, e := range []struct {
			flow  string
			state uint8
			stale bool
		}{
			{"tcp 10.0.0.1:1001 10.96.0.10:80 10.96.0.10:80", synSent, true},
			{"tcp 10.0.0.1:1002 10.96.0.20:80 10.96.0.20:80", synSent, true},
			{"tcp [fd00::1]:1001 [fd00:96::10]:80 [fd00:96::10]:80", synSent, true},
			{"tcp 10.0.0.1:1003 10.96.0.10:80 10.244.1.5:80", synSent, false},
			{"tcp 10.0.0.1:1004 10.96.0.10:81 10.96.0.10:81", synSent, false},
			{"tcp 10.0.0.1:1005 10.96.0.30:80 10.96.0.30:80", synSent, false},
			{"tcp 10.0.0.1:1006 10.96.0.10:80 10.96.0.10:80", none, false},
			{"tcp 10.0.0.1:1007 10.96.0.10:80 10.96.0.10:80", synRecv, false},
			{"tcp 10.0.0.1:1008 10.96.0.10:80 10.96.0.10:80", established, false},
			{"udp 10.0.0.1:1001 10.96.0.10:80 10.96.0.10:80", none, false},
		} {
			f := flowOf(e.flow)
			f.state = e.state
			if tab.add(f); !e.stale {
				left = append(left, e.flow)
			}
		}
		stats := tab.clean(begun)
		if got := tab.flows(); stats.Deleted != 3 || stats.Dumps != 2 || !slices.Equal(got, left) {
			t.Errorf("unfiltered %v: %+v, left are\n%s", unfiltered, stats, strings.Join(got, "\n"))
		}
	}
}

// TestUnanswered deletes entries of TCP in state SYN_SENT that were translated from frontends to backends.
func TestUnanswered(t *testing.T) {
	const synSent, synRecv, established = 1, 2, 3
	for _, unfiltered := range []bool{false, true} {
		tab := newTable(t)
		tab.unfiltered = unfiltered
		var left []string
		for _, e := range []struct {
			flow  string
			state uint8
			stale bool
		}{
			{"tcp 10.0.0.1:1001 10.96.0.10:80 10.244.1.5:80", synSent, true},
			{"tcp 10.0.0.1:1002 10.96.0.20:80 10.244.1.6:80", synSent, true},
			{"tcp [fd00::1]:1001 [fd00:96::10]:80 [fd00:244::5]:80", synSent, true},
			{"tcp 10.0.0.1:1003 10.96.0.10:80 10.96.0.10:80", synSent, false},
			{"tcp 10.0.0.1:1004 10.96.0.10:80 10.244.1.7:80", synSent, false},
			{"tcp 10.0.0.1:1005 10.96.0.30:80 10.244.1.5:80", synSent, false},
			{"tcp 10.0.0.1:1006 10.96.0.10:80 10.244.1.5:80", synRecv, false},
			{"tcp 10.0.0.1:1007 10.96.0.10:80 10.244.1.5:80", established, false},
			{"udp 10.0.0.1:1001 10.96.0.10:80 10.244.1.5:80", 0, false},
		} {
			f := flowOf(e.flow)
			f.state = e.state
			if tab.add(f); !e.stale {
				left = append(left, e.flow)
			}
		}
		slices.Sort(left)
		stats := tab.clean(in(desired.TCP, stale("10.96.0.10:80 10.96.0.20:80 [fd00:96::10]:80", "10.244.1.5:80 10.244.1.6:80 [fd00:244::5]:80")))
		if got := tab.flows(); stats.Deleted != 3 || stats.Dumps != 2 || !slices.Equal(got, left) {
			t.Errorf("unfiltered %v: %+v, left are\n%s", unfiltered, stats, strings.Join(got, "\n"))
		}
	}
}

// TestObserve checks that each search of a family is observed.
func TestObserve(t *testing.T) {
	tab := newTable(t)
	tab.add(flowOf("udp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53"))
	deleted := map[desired.Family]int{}
	tab.Observe = func(f desired.Family, took time.Duration, n int) {
		if _, twice := deleted[f]; twice || took <= 0 {
			t.Errorf("%v: took %s, after %v", f, took, deleted)
		}
		deleted[f] = n
	}
	tab.clean(stale("10.96.0.10:53 [fd00:96::10]:53", "10.244.1.5:53 [fd00:244::5]:53"))
	if want := map[desired.Family]int{desired.IPv4: 1, desired.IPv6: 0}; !maps.Equal(deleted, want) {
		t.Errorf("deleted %v, want %v", deleted, want)
	}
}

// TestMapped passes IPv4 addresses in their IPv4-mapped form.
func TestMapped(t *testing.T) {
	tab := newTable(t)
	tab.add(flowOf("udp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53"))
	if stats := tab.clean(stale("[::ffff:10.96.0.10]:53", "[::ffff:10.244.1.5]:53")); stats != (Stats{1, 1, 1}) {
		t.Errorf("%+v", stats)
	}
}

// crowd is a table of 20,000 entries: 100 backends of one Service of UDP have 100
// each, and as many are of TCP.
func crowd(t testing.TB, backends int) *table {
	tab := newTable(t)
	for b := range backends {
		for i := range 100 {
			f := flow{
				from:       netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, byte(b >> 8), byte(b), byte(i)}), 1000),
				to:         netip.MustParseAddrPort("10.96.0.10:53"),
				answeredBy: crowdBackend(b),
			}
			for _, f.protocol = range []desired.Protocol{desired.UDP, desired.TCP} {
				tab.add(f)
			}
		}
	}
	return tab
}

func crowdBackend(i int) netip.AddrPort {
	return netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 53)
}

// TestCrowd finds few entries among many by having the kernel report few, and
// deletes many in several messages.
func TestCrowd(t *testing.T) {
	tab := crowd(t, 100)
	for _, step := range []struct {
		flows desired.StaleFlows
		want  Stats
	}{
		{stale("10.96.0.10:53", crowdBackend(7).String()), Stats{1, 100, 100}},
		{stale("10.96.0.10:53", crowdBackend(7).String()), Stats{1, 0, 0}},
		{stale("10.96.0.11:53", crowdBackend(8).String()), Stats{1, 0, 0}},
		{untranslated(stale("10.96.0.10:53", "")), Stats{1, 0, 0}},
		{stale("10.96.0.10:53 10.96.0.11:53", crowdBackend(8).String()), Stats{1, 100, 100}},
		{stale("10.96.0.10:53", crowdBackend(1).String()+" "+crowdBackend(2).String()), Stats{1, 9800, 200}},
		{only(stale("10.96.0.10:53", crowdBackend(50).String())), Stats{1, 9600, 9500}},
		{only(stale("10.96.0.10:53 10.96.0.11:54", "")), Stats{1, 100, 100}},
	} {
		if got := tab.clean(step.flows); got != step.want {
			t.Errorf("%+v:\n%+v, want %+v", step.flows, got, step.want)
		}
	}
	left := tab.flows()
	if n := len(left); n != 10_000 || !strings.HasPrefix(left[0], "tcp") || !strings.HasPrefix(left[n-1], "tcp") {
		t.Errorf("%d entries are left, want the 10000 of TCP", n)
	}
}

// TestManyItems removes a backend from each of ten thousand frontends.
func TestManyItems(t *testing.T) {
	tab := crowd(t, 20)
	flows := make([]desired.StaleFlows, 10_000)
	for i := range flows {
		flows[i] = stale("10.96.0.10:53", crowdBackend(i).String())
		if i%2 == 1 {
			flows[i].Frontends[0].AddrPort = netip.AddrPortFrom(crowdBackend(i).Addr(), 80)
		}
	}
	if stats := tab.clean(flows...); stats != (Stats{1, 2000, 1000}) {
		t.Errorf("%+v", stats)
	}
}

// TestZone deletes entries of other conntrack zones too.
func TestZone(t *testing.T) {
	tab := newTable(t)
	for i, zone := range []string{"--zone", "--orig-zone", "--reply-zone"} {
		tab.conntrack("-I", zone, strconv.Itoa(5+i), "-p", "udp", "-t", "100", "-s", "10.0.0.1", "-d", "10.96.0.10", "--sport", "1001", "--dport", "53")
	}
	if stats := tab.clean(untranslated(stale("10.96.0.10:53", ""))); stats != (Stats{1, 3, 3}) {
		t.Errorf("%+v, left are %v", stats, tab.flows())
	}
}

// found is the deletions that there are for one flow.
func found(t *testing.T) (*table, []netlink.Message) {
	tab := newTable(t)
	tab.add(flowOf("udp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53"))
	var stats Stats
	deletions, err := tab.find(t.Context(), plan([]desired.StaleFlows{stale("10.96.0.10:53", "10.244.1.5:53")})[0], &stats)
	if err != nil || len(deletions) != 1 {
		t.Fatalf("%d deletions, %v", len(deletions), err)
	}
	return tab, deletions
}

// TestAnotherID leaves alone an entry of the same flow that is another one than
// was found.
func TestAnotherID(t *testing.T) {
	tab, deletions := found(t)
	id := []byte{0}
	for typ, payload := range nfnl.Attributes(deletions[0].Data[4:]) {
		if typ == nl.CTA_ID {
			id = payload
		}
	}
	id[0] ^= 1
	var stats Stats
	if err := tab.delete(t.Context(), deletions, &stats); err != nil || stats.Deleted != 0 || len(tab.flows()) != 1 {
		t.Fatalf("%+v, %v, left are %v", stats, err, tab.flows())
	}
	id[0] ^= 1
	if err := tab.delete(t.Context(), deletions, &stats); err != nil || stats.Deleted != 1 || len(tab.flows()) != 0 {
		t.Fatalf("%+v, %v, left are %v", stats, err, tab.flows())
	}
}

// TestGone ends an entry between finding and deleting it.
func TestGone(t *testing.T) {
	tab, deletions := found(t)
	tab.conntrack("-D", "-p", "udp")
	var stats Stats
	if err := tab.delete(t.Context(), deletions, &stats); err != nil || stats.Deleted != 0 {
		t.Errorf("%+v, %v", stats, err)
	}
}

// TestDeleteFails makes the kernel refuse two of three deletions.
func TestDeleteFails(t *testing.T) {
	tab, deletions := found(t)
	bad := deletions[0]
	bad.Data = slices.Clone(bad.Data)
	bad.Data[0] = 255 // no family has this number
	var stats Stats
	err := tab.delete(t.Context(), []netlink.Message{bad, deletions[0], bad}, &stats)
	if err == nil || !strings.HasPrefix(err.Error(), "2 of 3 were not deleted") || stats.Deleted != 1 {
		t.Errorf("%+v, %v", stats, err)
	}
}

// TestRefusedFilter makes the kernel refuse a filter, by one for both families, and finds the
// entries without it.
func TestRefusedFilter(t *testing.T) {
	tab := newTable(t)
	tab.add(flowOf("udp 10.0.0.1:1001 10.96.0.10:53 10.244.1.5:53"))
	s := plan([]desired.StaleFlows{stale("10.96.0.10:53", "10.244.1.5:53")})[0]
	attributes, err := s.filter.attributes(s.family, true)
	if err != nil {
		t.Fatal(err)
	}
	seen := 0
	if err := tab.conn.Dump(t.Context(), unix.AF_UNSPEC, attributes, func([]byte) { seen++ }); !refused(err) || seen != 0 {
		t.Fatalf("a filter for no family: %v, %d entries", err, seen)
	}
	s.family = unix.AF_UNSPEC
	var stats Stats
	if _, err := tab.find(t.Context(), s, &stats); err != nil || stats != (Stats{Dumps: 2, Entries: 1}) {
		t.Errorf("%+v, %v", stats, err)
	}
}

// TestCanceled interrupts a dump, the rest of which must not be taken for a later answer.
func TestCanceled(t *testing.T) {
	tab := crowd(t, 10)
	tab.clean(stale("10.96.0.10:53", crowdBackend(2).String()))
	for canceled := false; !canceled; {
		ctx, cancel := context.WithCancel(t.Context())
		err := tab.conn.Dump(ctx, uint8(ipv4), nil, func([]byte) {
			cancel()
			time.Sleep(time.Millisecond) // so that the rest comes later, mostly
		})
		if canceled = errors.Is(err, context.Canceled); !canceled && err != nil {
			t.Fatal(err)
		}
	}
	if stats := tab.clean(stale("10.96.0.10:53", crowdBackend(3).String())); stats != (Stats{1, 100, 100}) {
		t.Errorf("%+v", stats)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if stats, err := tab.Clean(ctx, []desired.StaleFlows{stale("10.96.0.10:53", crowdBackend(4).String())}); !errors.Is(err, context.Canceled) || stats.Deleted != 0 {
		t.Errorf("%+v, %v", stats, err)
	}
}

// TestClosed fails, and does not hang, on a closed socket.
func TestClosed(t *testing.T) {
	tab := newTable(t)
	c, err := New(tab.ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	if err := c.Close(); err != nil {
		t.Fatal(err)
	}
	stats, err := c.Clean(t.Context(), []desired.StaleFlows{stale("10.96.0.10:53", "10.244.1.5:53")})
	if err == nil || !strings.Contains(err.Error(), "conntrack entries of IPv4") {
		t.Errorf("%+v, %v", stats, err)
	}
}

// TestNewFails checks the error of a namespace that cannot be opened.
func TestNewFails(t *testing.T) {
	if c, err := New(1 << 20); err == nil {
		t.Error("a file descriptor that is not there was taken", c.Close())
	} else if !strings.Contains(err.Error(), "netlink socket to conntrack") {
		t.Error(err)
	}
}
