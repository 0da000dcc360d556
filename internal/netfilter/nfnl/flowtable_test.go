// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"bytes"
	"errors"
	"fmt"
	"testing"
	"time"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

var both = Table{INET, "test"}

// dialFlowtables is dial on a kernel with flowtables, with interfaces d0, d1 and so
// on.
func dialFlowtables(t *testing.T, interfaces int) *Conn {
	kerneltest.Require(t, kerneltest.Flowtable)
	ns, err := lab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	h, err := netlink.NewHandleAt(netns.NsHandle(ns.FD()), unix.NETLINK_ROUTE)
	if err != nil {
		t.Fatal(err)
	}
	defer h.Close()
	for i := range interfaces {
		if err := h.LinkAdd(&netlink.Dummy{LinkAttrs: netlink.LinkAttrs{Name: fmt.Sprint("d", i)}}); err != nil {
			t.Fatal(err)
		}
	}
	c, err := Dial(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

func devices(first, end int) (all []Device) {
	for i := first; i < end; i++ {
		all = append(all, Device{Name: fmt.Sprint("d", i)})
	}
	return all
}

// flowtables reads those of the table.
func flowtables(t *testing.T, c *Conn) []Flowtable {
	t.Helper()
	all, err := c.Flowtables(both)
	if err != nil {
		t.Fatal(err)
	}
	return all
}

func TestFlowtable(t *testing.T) {
	const many = 2*MaxFlowtableDevices + 10
	c := dialFlowtables(t, many+1)
	f := &Flowtable{Name: "f", Priority: -5, Flags: FlowtableCounter, Devices: devices(0, many)}
	commit(t, c, func(b *Batch) {
		b.AddTable(both, "")
		b.AddFlowtable(both, f)
	})
	commit(t, c, func(b *Batch) {
		b.AddFlowtable(both, &Flowtable{Name: "f", Priority: -5, Flags: FlowtableCounter, Devices: devices(0, 1)})
	})
	all := flowtables(t, c)
	if len(all) != 1 || all[0].Name != "f" || all[0].Priority != -5 || all[0].Flags != FlowtableCounter || len(all[0].Devices) != many {
		t.Fatalf("%+v", all)
	}
	handle := all[0].Handle
	commit(t, c, func(b *Batch) {
		b.DeleteDevices(both, &Flowtable{Name: "f", Priority: -5, Devices: devices(2, many)})
		b.AddFlowtable(both, &Flowtable{Name: "f", Priority: -5, Flags: FlowtableCounter, Devices: devices(many, many+1)})
	})
	all = flowtables(t, c)
	if got := fmt.Sprint(all[0].Devices); got != "[{d0 false} {d1 false} {d520 false}]" && got != "[{d520 false} {d0 false} {d1 false}]" || all[0].Handle != handle {
		t.Errorf("%+v", all)
	}
	for what, fill := range map[string]func(*Batch){
		"nf_tables refused to add flowtable in table inet test f: no such file or directory": func(b *Batch) {
			b.AddFlowtable(both, &Flowtable{Name: "f", Priority: -5, Devices: []Device{{Name: "none"}}})
		},
		"nf_tables refused to delete flowtable in table inet test f: no such file or directory": func(b *Batch) { b.DeleteDevices(both, &Flowtable{Name: "f", Priority: -5, Devices: devices(7, 8)}) },
		"nf_tables refused to add flowtable in table inet test g: file exists":                  func(b *Batch) { b.AddFlowtable(both, &Flowtable{Name: "g", Devices: devices(0, 1)}) },
		"nf_tables refused to add flowtable in table inet test h: file too large": func(b *Batch) {
			b.begin(msgNewFlowtable, unix.NLM_F_CREATE, both, "h")
			b.flowtableHook(0, devices(3, 3+MaxFlowtableDevices+1))
			b.end()
		},
	} {
		var b Batch
		fill(&b)
		if err := c.Commit(0, &b); fmt.Sprint(err) != what {
			t.Errorf("error %v, want %s", err, what)
		}
	}
	commit(t, c, func(b *Batch) { b.DeleteFlowtable(both, "f") })
	if all := flowtables(t, c); len(all) != 0 {
		t.Errorf("%+v", all)
	}
}

// TestAddRuleInfo replaces rules by themselves.
func TestAddRuleInfo(t *testing.T) {
	c := dialFlowtables(t, 1)
	set := &Set{Name: "s", KeyType: TypeIPAddr, KeyLen: 4}
	commit(t, c, func(b *Batch) {
		b.AddTable(both, "")
		b.AddSet(both, set)
		b.AddCounter(both, "n")
		b.AddFlowtable(both, &Flowtable{Name: "f", Devices: devices(0, 1)})
		b.AddChain(both, Chain{Name: "next"})
		b.AddChain(both, Chain{Name: "forward", Hook: &Hook{"filter", unix.NF_INET_FORWARD, 0}})
		for _, exprs := range [][]expr.Any{
			{CtSource.Load(IPv4, Reply, 8), &expr.Lookup{SourceRegister: 8, SetName: set.Name, Invert: true}, &expr.Verdict{Kind: expr.VerdictReturn}},
			{&expr.Ct{Key: expr.CtKeyPKTS, Register: 8}, &expr.Byteorder{SourceRegister: 8, DestRegister: 8, Op: expr.ByteorderHton, Len: 8, Size: 8}, &expr.Verdict{Kind: expr.VerdictGoto, Chain: "next"}},
			append([]expr.Any{&expr.FlowOffload{Name: "f"}}, CountIn("n")...),
		} {
			b.AddRule(both, "forward", "a comment", exprs)
		}
	})
	read := func() []RuleInfo {
		t.Helper()
		all, err := c.Rules(both, "")
		if err != nil {
			t.Fatal(err)
		}
		for i := range all {
			all[i].Handle = 0 // which differs
		}
		return all
	}
	before := read()
	if len(before) != 3 || before[0].Chain != "forward" || !bytes.Contains(before[2].Comment, []byte("a comment")) {
		t.Fatalf("%+v", before)
	}
	commit(t, c, func(b *Batch) {
		b.FlushTable(both)
		b.DeleteFlowtable(both, "f")
		b.AddFlowtable(both, &Flowtable{Name: "f", Devices: devices(0, 1)})
		for _, r := range before {
			b.AddRuleInfo(both, r)
		}
	})
	if after := read(); fmt.Sprint(after) != fmt.Sprint(before) {
		t.Errorf("%+v\nwere\n%+v", after, before)
	}
	var b Batch
	b.DeleteFlowtable(both, "f")
	if err := c.Commit(0, &b); !errors.Is(err, unix.EBUSY) {
		t.Errorf("a flowtable in use is deleted: %v", err)
	}
	if packets, n, err := c.Counter(both, "n"); err != nil || packets != 0 || n != 0 {
		t.Errorf("counter %d, %d, %v", packets, n, err)
	}
	if _, _, err := c.Counter(both, "m"); !errors.Is(err, unix.ENOENT) {
		t.Errorf("a counter that there is none of: %v", err)
	}
}

func TestElementFor(t *testing.T) {
	c, _ := dial(t)
	set := &Set{Name: "s", KeyType: TypeIPAddr, KeyLen: 4, Flags: unix.NFT_SET_TIMEOUT}
	commit(t, c, func(b *Batch) {
		b.AddTable(both, "")
		b.AddSet(both, set)
		b.AddElementFor(both, set, []byte{10, 0, 0, 1}, 0)
		b.AddElementFor(both, set, []byte{10, 0, 0, 2}, time.Hour)
	})
	for end := time.Now().Add(time.Minute); ; time.Sleep(time.Millisecond) {
		short, err := c.Has(both, set.Name, []byte{10, 0, 0, 1})
		if err != nil {
			t.Fatal(err)
		}
		long, err := c.Has(both, set.Name, []byte{10, 0, 0, 2})
		if err != nil || !long {
			t.Fatalf("an element for an hour is there: %t, %v", long, err)
		}
		if !short {
			break
		}
		if time.Now().After(end) {
			t.Fatal("an element for a millisecond stays")
		}
	}
}

// TestDevicePrefix names devices by their beginning, where the kernel has that: in
// a chain at ingress, which more kernels have than have flowtables, and which takes
// the same list.
func TestDevicePrefix(t *testing.T) {
	c, _ := dial(t)
	netdev := Table{unix.NFPROTO_NETDEV, "test"}
	try := func(devices ...Device) (got string, err error) {
		const devs = 4 // NFTA_HOOK_DEVS
		var b Batch
		b.AddTable(netdev, "")
		b.begin(unix.NFT_MSG_NEWCHAIN, unix.NLM_F_CREATE, netdev, "ingress")
		hook := b.buf.open(unix.NFTA_CHAIN_HOOK)
		b.buf.be32(unix.NFTA_HOOK_HOOKNUM, netdevIngress)
		b.buf.be32(unix.NFTA_HOOK_PRIORITY, 0)
		b.devices(devs, devices)
		b.buf.close(hook)
		b.buf.string(unix.NFTA_CHAIN_TYPE, "filter")
		b.end()
		if err := c.Commit(0, &b); err != nil {
			return "", err
		}
		err = c.request(unix.NFT_MSG_GETCHAIN, unix.NLM_F_DUMP, uint8(netdev.Family), nil, func(body []byte) {
			for typ, name := range Attributes(Attr(Attr(body, unix.NFTA_CHAIN_HOOK), devs)) {
				got += fmt.Sprintf("%d %s;", typ, name)
			}
		})
		return got, err
	}
	got, err := try(Device{Name: "v", Prefix: true}, Device{Name: "lo"})
	switch {
	case errors.Is(err, unix.EINVAL):
		t.Logf("this kernel knows no prefixes: %v", err)
		if got, err = try(Device{Name: "lo"}); err != nil || got != "1 lo\x00;" {
			t.Errorf("devices %q, %v", got, err)
		}
	case err != nil || got != "2 v\x00;1 lo\x00;" && got != "1 lo\x00;2 v\x00;":
		t.Errorf("devices %q, %v", got, err)
	}
}
