// SPDX-License-Identifier: Apache-2.0

package see

import (
	"encoding/binary"
	"net/netip"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// A walk is enough for questions that allow its age.
func TestRecent(t *testing.T) {
	var walk traffic
	if walk.recent(Recent) {
		t.Error("there was no walk")
	}
	walk.walked = time.Now()
	walk.sampled = walk.walked
	if !walk.recent(Recent) {
		t.Error("rates cannot be measured yet")
	}
	walk.sampled = walk.sampled.Add(-rateAfter)
	if walk.recent(Recent) {
		t.Error("another walk measures rates")
	}
	walk.rated = true
	if !walk.recent(Recent) || walk.recent(0) {
		t.Error("a new walk is for questions that allow its age, and only for these")
	}
	walk.walked = walk.walked.Add(-Recent - time.Second)
	if walk.recent(Recent) {
		t.Error("the walk is too old")
	}
}

// BenchmarkWalk measures a question with a walk of 19,000 connections to 50 Services of 10 endpoints, and with
// as many that no rule has translated.
func BenchmarkWalk(b *testing.B) {
	const entries, services, endpoints = 19_000, 50, 10
	must := func(err error) {
		b.Helper()
		if err != nil {
			b.Fatal(err)
		}
	}
	node, err := kerneltest.NewLab(b).Node("n1", lab.NodeOptions{Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")}})
	must(err)
	table, err := ctnetlink.Dial(node.FD())
	must(err)
	defer table.Close()
	for i := range entries {
		client := netip.AddrPortFrom(netip.MustParseAddr("10.244.1.2"), uint16(1024+i))
		service := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(i % services)}), 53)
		backend := netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 128, byte(i % services), byte(i / services % endpoints)}), 53)
		a := netlink.NewAttributeEncoder()
		ctnetlink.Tuple{Protocol: unix.IPPROTO_UDP, Src: client, Dst: service}.Encode(a, nl.CTA_TUPLE_ORIG)
		ctnetlink.Tuple{Protocol: unix.IPPROTO_UDP, Src: backend, Dst: client}.Encode(a, nl.CTA_TUPLE_REPLY)
		a.Bytes(nl.CTA_TIMEOUT, binary.BigEndian.AppendUint32(nil, 600))
		attributes, err := a.Encode()
		must(err)
		m := netlink.Message{Data: append(ctnetlink.Header(unix.AF_INET), attributes...), Header: netlink.Header{
			Type: ctnetlink.MsgNew, Flags: netlink.Request | netlink.Acknowledge | netlink.Create | netlink.Excl,
		}}
		must(table.Execute(b.Context(), []netlink.Message{m}, must))
	}
	var t traffic
	ipvs := true // its entries are like these
	ask := func() error {
		return t.read(b.Context(), ipvs, func() bool { return false }, nil, func(func() *Counted) error { return nil })
	}
	must(node.Do(ask))
	defer func() { t.mu.Lock(); must(t.stop()); t.mu.Unlock() }()
	if len(t.counted) != entries || len(t.existing) != services*endpoints {
		b.Fatalf("%d connections to %d endpoints", len(t.counted), len(t.existing))
	}
	for name, of := range map[string]bool{"counted": true, "others": false} {
		b.Run(name, func(b *testing.B) {
			ipvs = of
			b.ReportAllocs()
			for b.Loop() {
				must(ask())
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/entries, "ns/entry")
		})
	}
}
