// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"bytes"
	"errors"
	"os"
	"strconv"
	"syscall"
	"testing"
	"time"

	"github.com/mdlayher/netlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
)

// listeners is how many sockets of a network namespace the kernel notifies of nf_tables.
func listeners(t *testing.T, ns *lab.Namespace) (n int) {
	t.Helper()
	err := ns.Do(func() error {
		all, err := os.ReadFile(netlinkSockets)
		for line := range bytes.Lines(all) {
			f := bytes.Fields(line) // sk Eth Pid Groups ...
			groups, _ := strconv.ParseUint(string(f[3]), 16, 32)
			if string(f[1]) == strconv.Itoa(unix.NETLINK_NETFILTER) && string(f[2]) != "0" && groups>>(unix.NFNLGRP_NFTABLES-1)&1 != 0 {
				n++
			}
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return n
}

// watches returns the channel of the second Watch: before, there is none.
func watches(t *testing.T, c *Conn) <-chan struct{} {
	t.Helper()
	if told, err := c.Watch(); told != nil || err != nil {
		t.Fatalf("the first Watch returned %v, %v", told, err)
	}
	told, err := c.Watch()
	if told == nil || err != nil {
		t.Fatalf("the second Watch returned %v, %v", told, err)
	}
	return told
}

func isTold(t *testing.T, told <-chan struct{}, by string) {
	t.Helper()
	select {
	case <-told:
	case <-time.After(30 * time.Second):
		t.Fatalf("not told: %s", by)
	}
}

func addAndDelete(b *Batch) {
	b.AddTable(table, "")
	b.DeleteTable(table)
}

func TestWatch(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	c, ns := dial(t)
	shares, err := Dial(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer shares.Close()
	shares.Share(c.Commits())
	closed := dialAgain(t, ns)
	closed.Share(c.Commits())
	_ = closed.Close()
	nft := func(command string) {
		t.Helper()
		if out, err := ns.Run(t.Context(), "nft", command); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	for _, command := range []string{"add table ip other", "delete table ip other"} {
		told := watches(t, c)
		if n := listeners(t, ns); n != 1 {
			t.Fatalf("%d sockets listen", n)
		}
		if again, err := c.Watch(); again != told || err != nil {
			t.Errorf("the third Watch returned %v, %v", again, err)
		}
		select {
		case <-told:
			t.Error("told of nothing")
		default:
		}
		nft(command)
		isTold(t, told, "another program has committed")
		if n := listeners(t, ns); n != 0 {
			t.Errorf("%d sockets listen after a transaction of another program", n)
		}
	}

	// This process does not listen while it commits, and hears that it did.
	usual := sock.Commit
	defer func() { sock.Commit = usual }()
	sock.Commit = func(send func() error) error {
		if n := listeners(t, ns); n != 0 {
			t.Errorf("%d sockets listen while this process commits", n)
		}
		return usual(send)
	}
	for _, by := range []*Conn{c, shares} {
		told := watches(t, c)
		var empty Batch
		if err := errors.Join(by.Commit(0, &empty), by.DryRun(&empty)); err != nil {
			t.Error(err)
		}
		select {
		case <-told:
			t.Error("an empty transaction ended the watch")
		default:
		}
		commit(t, by, addAndDelete)
		isTold(t, told, "this process has committed")
	}

	// A commit between two calls.
	if told, err := c.Watch(); told != nil || err != nil {
		t.Errorf("after a transaction of this process, Watch returned %v, %v", told, err)
	}
	nft("add table ip another")
	watches(t, c)
	want, err := c.Generation()
	if got, failed := closed.Generation(); got != want || err != nil || failed != nil {
		t.Errorf("generation %d (%v), and %d without a request (%v)", want, err, got, failed)
	}
	commit(t, c, addAndDelete)
	if _, err := closed.Generation(); err == nil {
		t.Error("the generation is known without a request, although none is told of")
	}
}

// TestWatchOverflow has other programs commit so often that the kernel drops notifications.
func TestWatchOverflow(t *testing.T) {
	c, ns := dial(t)
	other, err := Dial(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	told := watches(t, c)
	c.commits.mu.Lock() // so that the group is not left
	for range 2000 {
		commit(t, other, addAndDelete)
	}
	c.commits.mu.Unlock()
	isTold(t, told, "notifications were lost")
	for end := time.Now().Add(30 * time.Second); ; time.Sleep(time.Millisecond) { // until all is read
		if told, err = c.Watch(); err != nil || told != nil || time.Now().After(end) {
			break
		}
	}
	if told == nil || err != nil {
		t.Fatalf("Watch returned %v, %v", told, err)
	}
	commit(t, other, addAndDelete)
	isTold(t, told, "another program has committed again")
}

// broken is a socket of which a read fails.
type broken struct {
	*netlink.Conn
	syscall.RawConn
	fail chan error
}

func (broken) Send(netlink.Message) error              { return unix.EOPNOTSUPP }
func (broken) SendMessages([]netlink.Message) error    { return unix.EOPNOTSUPP }
func (b broken) SyscallConn() (syscall.RawConn, error) { return b, nil }
func (b broken) Close() error                          { return b.Conn.Close() }
func (b broken) Read(func(uintptr) bool) error         { return <-b.fail }

// TestWatchFails has reads of the socket fail.
func TestWatchFails(t *testing.T) {
	c, ns := dial(t)
	usual, fail := sock.Dial, make(chan error)
	defer func() { sock.Dial = usual }()
	sock.Dial = func(protocol int, to string, config netlink.Config) (*netlink.Conn, error) {
		s, err := usual(protocol, to, config)
		if err != nil {
			return nil, err
		}
		return netlink.NewConn(broken{Conn: s, fail: fail}, s.PID()), nil
	}
	for _, err := range []error{unix.ENOBUFS, nil, unix.EBADF} {
		told := watches(t, c)
		fail <- err
		isTold(t, told, "a read failed")
	}
	if n := listeners(t, ns); n != 0 {
		t.Errorf("%d sockets listen", n)
	}
	if told, err := c.Watch(); told != nil || err == nil {
		t.Errorf("Watch returned %v, %v", told, err)
	}
	sock.Dial = func(int, string, netlink.Config) (*netlink.Conn, error) { return nil, unix.EPERM }
	var refused Conn
	refused.commits = new(Commits)
	if told, err := refused.Watch(); told != nil || !errors.Is(err, unix.EPERM) {
		t.Errorf("Watch returned %v, %v", told, err)
	}
}
