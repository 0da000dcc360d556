// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"golang.org/x/sys/unix"
)

// TestWatch finds that the dataplane watches only when Checks have nothing left to do, and hears of damage and changes.
func TestWatch(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{NodeName: "n1"})
	web(s, 1)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	other := k.dial()
	// watch checks until there is a channel.
	watch := func(most int) <-chan struct{} {
		t.Helper()
		for n := 1; ; n++ {
			if err := k.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			if told := k.Watch(t.Context()); told != nil {
				return told
			} else if n == most {
				t.Fatalf("it does not watch after %d checks", n)
			}
		}
	}
	hears := func(told <-chan struct{}, of string) {
		t.Helper()
		select {
		case <-told:
		case <-time.After(30 * time.Second):
			t.Fatalf("not told of %s", of)
		}
	}
	told := watch(2)
	foreign := func(fill func(*nfnl.Batch)) {
		t.Helper()
		var b nfnl.Batch
		fill(&b)
		if err := other.Commit(0, &b); err != nil {
			t.Fatal(err)
		}
	}
	foreign(func(b *nfnl.Batch) { b.AddTable(nfnl.Table{Family: nfnl.IPv4, Name: "other"}, "") })
	hears(told, "a transaction of another program")

	// What is left to do.
	d := &k.detector
	for what, todo := range map[string]func() (done func()){
		"pools":      func() func() { d.unchecked = 1; return func() { d.unchecked = 0 } },
		"slots":      func() func() { d.unseen = 1; return func() { d.unseen = 0 } },
		"ranges":     func() func() { k.unsealed = &desired.Change{}; return func() { k.unsealed = nil } },
		"limits":     func() func() { k.limits[1].err = errors.New("test"); return func() { k.limits[1].err = nil } },
		"all":        func() func() { g := d.generation; d.generation = 0; return func() { d.generation = g } },
		"no notices": func() func() { d.untold = true; return func() { d.untold = false } },
	} {
		watch(100)
		done := todo()
		if k.Watch(t.Context()) != nil {
			t.Errorf("it watches with %s to look at", what)
		}
		done()
	}

	told = watch(100)
	web(s, 2)
	dataplanetest.Apply(t, k.Dataplane, s)
	hears(told, "its own change")
	told = watch(3)
	foreign(func(b *nfnl.Batch) { b.DeleteTable(schemas[0].table) })
	hears(told, "damage")
	if err := k.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
		t.Errorf("the check found %v", err)
	}
}

// TestWatchRefused has no socket for notifications.
func TestWatchRefused(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{NodeName: "n1"})
	web(s, 1)
	dataplanetest.Reconcile(t, k.Dataplane, s)
	usual, dials := sock.Dial, 0
	defer func() { sock.Dial = usual }()
	sock.Dial = func(int, string, netlink.Config) (*netlink.Conn, error) {
		dials++
		return nil, unix.EPERM
	}
	for range 3 {
		if err := k.Check(t.Context()); err != nil {
			t.Fatal(err)
		}
		if k.Watch(t.Context()) != nil {
			t.Fatal("it watches")
		}
	}
	if dials != 1 {
		t.Errorf("it tries %d times", dials)
	}
}
