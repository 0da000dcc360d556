// SPDX-License-Identifier: Apache-2.0

package ctnetlink

import (
	"context"
	"encoding/binary"
	"errors"
	"net/netip"
	"testing"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

// table opens the conntrack table of a new node, with n entries of connections to a Service.
func table(t testing.TB, n int) *Conn {
	t.Helper()
	node, err := kerneltest.NewLab(t).Node("n1", lab.NodeOptions{Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")}})
	must(t, err)
	c, err := Dial(node.FD())
	must(t, err)
	t.Cleanup(func() { must(t, c.Close()) })
	client, server := netip.MustParseAddr("10.244.1.2"), netip.MustParseAddr("10.244.1.3")
	for i := range n {
		port := uint16(1024 + i)
		there := Tuple{unix.IPPROTO_UDP, netip.AddrPortFrom(client, port), netip.MustParseAddrPort("10.96.0.1:53")}
		back := Tuple{unix.IPPROTO_UDP, netip.AddrPortFrom(server, 53), netip.AddrPortFrom(client, port)}
		a := netlink.NewAttributeEncoder()
		there.Encode(a, nl.CTA_TUPLE_ORIG)
		back.Encode(a, nl.CTA_TUPLE_REPLY)
		a.Bytes(nl.CTA_TIMEOUT, binary.BigEndian.AppendUint32(nil, 600))
		m, err := Request(MsgNew, netlink.Acknowledge|netlink.Create|netlink.Excl, there.family(), a)
		must(t, err)
		must(t, c.exchange(context.Background(), func() error { _, err := c.sock.Execute(m); return err }))
	}
	return c
}

func must(t testing.TB, err error) {
	t.Helper()
	if err != nil {
		t.Fatal(err)
	}
}

// A dump has each entry once, over many datagrams.
func TestDump(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	const entries = 1000
	c := table(t, entries)
	for range 2 {
		ports := map[uint16]bool{}
		must(t, c.Dump(t.Context(), unix.AF_UNSPEC, nil, func(data []byte) {
			for typ, b := range nfnl.Attributes(data[4:]) {
				if tuple, ok := ParseTuple(b); ok && typ == nl.CTA_TUPLE_ORIG {
					ports[tuple.Src.Port()] = true
				}
			}
		}))
		if len(ports) != entries {
			t.Errorf("%d entries, want %d", len(ports), entries)
		}
	}
	if n := testing.AllocsPerRun(5, func() {
		must(t, c.Dump(context.Background(), unix.AF_UNSPEC, nil, func([]byte) {}))
	}); n > 50 {
		t.Errorf("a dump of %d entries allocates %v times", entries, n)
	}
	a := netlink.NewAttributeEncoder()
	a.Bytes(nl.CTA_STATUS, []byte{1}) // too short
	b, err := a.Encode()
	must(t, err)
	if err := c.Dump(t.Context(), unix.AF_UNSPEC, b, func([]byte) {}); !errors.Is(err, unix.ERANGE) && !errors.Is(err, unix.EINVAL) {
		t.Errorf("a wrong request: error %v", err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	if err := c.Dump(ctx, unix.AF_UNSPEC, nil, func([]byte) { cancel() }); err != nil && !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	must(t, c.Dump(t.Context(), unix.AF_UNSPEC, nil, func([]byte) {})) // what the last one left is discarded
}

// Messages that the kernel does not send are errors.
func TestMessages(t *testing.T) {
	const sequence = 7
	message := func(typ uint16, sequence uint32, data ...byte) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(data)))
		b = binary.NativeEndian.AppendUint16(b, typ)
		b = binary.NativeEndian.AppendUint16(b, 0)
		b = binary.NativeEndian.AppendUint32(b, sequence)
		return append(append(b, 0, 0, 0, 0), data...)
	}
	entry, code := message(MsgNew, sequence, 1, 2, 3, 4), binary.NativeEndian.AppendUint32(nil, uint32(0xffffffff&-int64(unix.EPERM)))
	for _, test := range []struct {
		name    string
		b       []byte
		entries int
		done    bool
		err     error
	}{
		{"two entries", append(entry, entry...), 2, false, nil},
		{"the end", append(entry, message(unix.NLMSG_DONE, sequence, 0, 0, 0, 0)...), 1, true, nil},
		{"a refusal", message(unix.NLMSG_ERROR, sequence, code...), 0, false, unix.EPERM},
		{"an end with an error", message(unix.NLMSG_DONE, sequence, code...), 0, false, unix.EPERM},
		{"a truncated header", entry[:8], 0, false, unix.EBADMSG},
		{"truncated data", entry[:18], 0, false, unix.EBADMSG},
		{"an end without a code", message(unix.NLMSG_DONE, sequence), 0, false, unix.EBADMSG},
		{"another dump's", message(MsgNew, sequence+1, 0, 0, 0, 0), 0, false, unix.EBADMSG},
	} {
		n := 0
		done, err := messages(test.b, sequence, func(data []byte) {
			if len(data) != 4 {
				t.Errorf("%s: data %v", test.name, data)
			}
			n++
		})
		if n != test.entries || done != test.done || !errors.Is(err, test.err) {
			t.Errorf("%s: %d entries, done %t, error %v", test.name, n, done, err)
		}
	}
}

// BenchmarkDump measures the kernel's part of a walk, with 19,000 entries: of which all are reported, or none.
func BenchmarkDump(b *testing.B) {
	const entries = 19_000
	c := table(b, entries)
	a := netlink.NewAttributeEncoder()
	a.Bytes(nl.CTA_STATUS, binary.BigEndian.AppendUint32(nil, StatusOffload))
	a.Bytes(StatusMask, binary.BigEndian.AppendUint32(nil, StatusOffload))
	none, err := a.Encode()
	must(b, err)
	for name, attributes := range map[string][]byte{"all": nil, "none": none} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				must(b, c.Dump(context.Background(), unix.AF_UNSPEC, attributes, func([]byte) {}))
			}
			b.ReportMetric(float64(b.Elapsed().Nanoseconds())/float64(b.N)/entries, "ns/entry")
		})
	}
}
