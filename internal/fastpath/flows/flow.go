// SPDX-License-Identifier: Apache-2.0

// Package flows lists the connections that are offloaded to any flowtable of the kernel, from
// conntrack over netlink, or by the BPF program of package ebpf, from its map.
//
// An entry has the status OFFLOAD while a flowtable has its flow, and HW_OFFLOAD while network
// hardware forwards it (IPS_OFFLOAD, IPS_HW_OFFLOAD). Its counters continue if the flowtable
// has the flag counter. Its start is known if the sysctl
// net.netfilter.nf_conntrack_timestamp was on. The kernel does not say when a connection was
// offloaded, nor the timeout of its entry.
//
// Source: include/uapi/linux/netfilter/nfnetlink_conntrack.h and
// net/netfilter/nf_conntrack_netlink.c of the kernel.
package flows

import (
	"cmp"
	"maps"
	"net/netip"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Flow is a connection, an offloaded one unless stated otherwise.
type Flow struct {
	ID          uint32 // conntrack's
	Protocol    desired.Protocol
	Source      netip.AddrPort // the client
	Destination netip.AddrPort // the address that the client connected to
	Backend     netip.AddrPort // the source of replies: Destination itself without DNAT

	Sent, Received Count // from the client, and to it

	Began     time.Time // zero if the kernel does not know
	Offloaded bool      // always, except from [Conn.Translated]
	Hardware  bool      // network hardware forwards the connection
	Answered  bool      // a packet of a reply was seen
	NAT       bool      // a NAT rule has chosen Backend, not IPVS
}

// Count is the counters of one direction, of conntrack or the BPF program. Those of the latter are
// lost when the connection returns to the slow path.
type Count struct {
	Packets uint64 `json:"packets"`
	Bytes   uint64 `json:"bytes"` // from the IP header on
}

func (c *Count) add(o Count) {
	c.Packets += o.Packets
	c.Bytes += o.Bytes
}

// Frontend returns the destination with its protocol.
func (f *Flow) Frontend() desired.FrontendKey {
	return desired.FrontendKey{AddrPort: f.Destination, Protocol: f.Protocol}
}

// Both returns the sum of both directions.
func (f *Flow) Both() Count {
	c := f.Sent
	c.add(f.Received)
	return c
}

// Bytes returns the bytes of both directions.
func (f *Flow) Bytes() uint64 { return f.Sent.Bytes + f.Received.Bytes }

// Services has the Service of each frontend, such as "default/web:http".
type Services map[desired.FrontendKey]string

// Group is the offloaded connections to one frontend.
type Group struct {
	Frontend desired.FrontendKey
	Service  string // empty if unknown
	Flows    int    // number of connections
	Backends int    // number of their backends
	Hardware int    // number of connections that network hardware forwards
	Sent     Count
	Received Count
}

// Groups groups flows by frontend, in the order of Services and frontends; groups without a
// Service are last.
func Groups(all []Flow, services Services) (groups []Group) {
	byFrontend := map[desired.FrontendKey]*Group{}
	backends := map[desired.FrontendKey]map[netip.AddrPort]bool{}
	for i := range all {
		f := &all[i]
		k := f.Frontend()
		g := byFrontend[k]
		if g == nil {
			g = &Group{Frontend: k, Service: services[k]}
			byFrontend[k], backends[k] = g, map[netip.AddrPort]bool{}
		}
		g.Flows++
		g.Sent.add(f.Sent)
		g.Received.add(f.Received)
		if f.Hardware {
			g.Hardware++
		}
		backends[k][f.Backend] = true
		g.Backends = len(backends[k])
	}
	for g := range maps.Values(byFrontend) {
		groups = append(groups, *g)
	}
	unknown := map[bool]int{true: 1}
	slices.SortFunc(groups, func(a, b Group) int {
		return cmp.Or(
			unknown[a.Service == ""]-unknown[b.Service == ""],
			cmp.Compare(a.Service, b.Service),
			a.Frontend.Compare(b.Frontend.AddrPort),
			cmp.Compare(a.Frontend.Protocol, b.Frontend.Protocol),
		)
	})
	return groups
}
