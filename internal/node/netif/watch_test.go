// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// patience bounds what takes milliseconds, except on a very busy machine.
const patience = time.Minute

// interfaceWatch is a network namespace that is watched.
type interfaceWatch struct {
	t  *testing.T
	ns *lab.Namespace
	nl *netlink.Handle

	updates chan []Interface
	known   []Interface
}

func newInterfaceWatch(t *testing.T) *interfaceWatch {
	kerneltest.Require(t, kerneltest.Root)
	w := &interfaceWatch{t: t, updates: make(chan []Interface, 10000)}
	var err error
	w.ns, err = lab.NewNamespace()
	w.check(err)
	t.Cleanup(func() { w.ns.Close() })
	w.nl, err = netlink.NewHandleAt(netns.NsHandle(w.ns.FD()), unix.NETLINK_ROUTE)
	w.check(err)
	t.Cleanup(w.nl.Close)
	return w
}

func (w *interfaceWatch) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// watch starts Watch, and waits for the first update.
func (w *interfaceWatch) watch() {
	w.t.Helper()
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() { done <- Namespace(w.ns.FD()).Watch(ctx, func(all []Interface) { w.updates <- all }) }()
	w.t.Cleanup(func() {
		cancel()
		select {
		case err := <-done:
			if err != nil {
				w.t.Errorf("Watch: %v", err)
			}
		case <-time.After(patience):
			w.t.Error("Watch goes on after its context has ended")
		}
	})
	w.known = <-w.updates
}

// describe is interfaces in order, without IPv6 link-local addresses, which come by
// themselves.
func describe(all []Interface) string {
	var lines []string
	for _, i := range all {
		if i.Type == "sit" {
			continue // there from the start on some kernels
		}
		line := fmt.Sprint(i.Name, " ", i.Type, " ", i.MTU)
		if i.Up {
			line += " up"
		}
		if i.Loopback {
			line += " loopback"
		}
		if i.PortOf != "" {
			line += " port of " + i.PortOf
		}
		for _, a := range i.Addresses {
			if !a.IsLinkLocalUnicast() {
				line += " " + a.String()
			}
		}
		lines = append(lines, line)
	}
	slices.Sort(lines)
	return strings.Join(lines, ", ")
}

const loopback = "lo device 65536 up loopback 127.0.0.1 ::1"

// sees waits until the updates report these interfaces and the loopback interface, and compares
// them with a list.
func (w *interfaceWatch) sees(want string) {
	w.t.Helper()
	all := []string{loopback}
	if want != "" {
		all = append(all, strings.Split(want, ", ")...)
	}
	slices.Sort(all)
	want = strings.Join(all, ", ")
	timeout := time.After(patience)
	for {
		got := describe(w.known)
		if got == want {
			break
		}
		select {
		case w.known = <-w.updates:
		case <-timeout:
			w.t.Fatalf("there is\n%s, want\n%s", got, want)
		}
	}
	list, err := Namespace(w.ns.FD()).List()
	w.check(err)
	if got := describe(list); got != want {
		w.t.Errorf("the list is\n%s, want\n%s", got, want)
	}
}

func (w *interfaceWatch) add(l netlink.Link) netlink.Link {
	w.t.Helper()
	w.check(w.nl.LinkAdd(l))
	return l
}

func (w *interfaceWatch) address(do func(netlink.Link, *netlink.Addr) error, l netlink.Link, a string) {
	w.t.Helper()
	addr, err := netlink.ParseAddr(a)
	w.check(err)
	if addr.IP.To4() == nil {
		addr.Flags = unix.IFA_F_NODAD
	}
	w.check(do(l, addr))
}

func TestWatch(t *testing.T) {
	w := newInterfaceWatch(t)
	w.add(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"})
	w.watch()
	w.sees("a veth 1500, b veth 1500")
	a, err := w.nl.LinkByName("a")
	w.check(err)
	w.check(w.nl.LinkSetUp(a))
	w.sees("a veth 1500 up, b veth 1500")
	w.address(w.nl.AddrAdd, a, "192.0.2.2/24")
	w.address(w.nl.AddrAdd, a, "192.0.2.1/24")
	w.address(w.nl.AddrAdd, a, "2001:db8::1/64")
	w.sees("a veth 1500 up 192.0.2.1 192.0.2.2 2001:db8::1, b veth 1500")
	w.check(w.nl.LinkSetMTU(a, 1400))
	w.address(w.nl.AddrDel, a, "192.0.2.2/24")
	w.sees("a veth 1400 up 2001:db8::1, b veth 1500") // with the first address of a subnet, the others go
	// Before Linux 6.2 it has to be down for that, which takes its IPv6 addresses away.
	if err := w.nl.LinkSetName(a, "c"); errors.Is(err, unix.EBUSY) {
		w.check(w.nl.LinkSetDown(a))
		w.check(w.nl.LinkSetName(a, "c"))
		w.check(w.nl.LinkSetUp(a))
		w.address(w.nl.AddrAdd, a, "2001:db8::1/64")
	} else {
		w.check(err)
	}
	w.sees("b veth 1500, c veth 1400 up 2001:db8::1")

	// Entering or leaving a bridge does not end an interface.
	bridge := w.add(&netlink.Bridge{LinkAttrs: netlink.LinkAttrs{Name: "br"}})
	w.check(w.nl.LinkSetMaster(a, bridge))
	w.sees("b veth 1500, br bridge 1400, c veth 1400 up port of bridge 2001:db8::1")
	w.check(w.nl.LinkSetNoMaster(a))
	w.sees("b veth 1500, br bridge 1500, c veth 1400 up 2001:db8::1")
	w.check(w.nl.LinkSetDown(a))
	w.sees("b veth 1500, br bridge 1500, c veth 1400")

	// Into another namespace, and back.
	other, err := lab.NewNamespace()
	w.check(err)
	defer other.Close()
	w.check(w.nl.LinkSetNsFd(a, other.FD()))
	w.sees("b veth 1500, br bridge 1500")
	h, err := netlink.NewHandleAt(netns.NsHandle(other.FD()), unix.NETLINK_ROUTE)
	w.check(err)
	defer h.Close()
	a, err = h.LinkByName("c")
	w.check(err)
	w.check(h.LinkSetNsFd(a, w.ns.FD()))
	w.sees("b veth 1500, br bridge 1500, c veth 1400")
	w.check(w.nl.LinkDel(bridge))
	w.check(w.nl.LinkDel(a))
	w.sees("")
}

// TestManyChanges makes more changes at once than the socket's queue holds, so that
// notifications are lost.
func TestManyChanges(t *testing.T) {
	w := newInterfaceWatch(t)
	witness, err := Namespace(w.ns.FD()).subscribe() // and does not read
	w.check(err)
	defer witness.Close()
	release := make(chan struct{})
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	first := make(chan struct{})
	go func() {
		n := 0
		done <- Namespace(w.ns.FD()).Watch(ctx, func(all []Interface) {
			if n++; n == 1 {
				close(first)
				<-release
			}
			select {
			case w.updates <- all:
			case <-ctx.Done():
			}
		})
	}()
	<-first
	a := w.add(&netlink.Veth{LinkAttrs: netlink.LinkAttrs{Name: "a"}, PeerName: "b"})
	for n := range 6000 {
		w.check(w.nl.LinkSetMTU(a, 1000+n%2))
	}
	w.check(w.nl.LinkSetMTU(a, 1234))
	close(release)
	w.sees("a veth 1234, b veth 1500")
	w.check(witness.SetReadDeadline(time.Now().Add(patience)))
	for lost := false; !lost; {
		_, err := witness.Receive()
		if lost = errors.Is(err, unix.ENOBUFS); !lost && err != nil {
			t.Fatalf("all changes fit into the queue, so this test shows nothing: %v", err)
		}
	}
	cancel()
	if err := <-done; err != nil {
		t.Error(err)
	}
}

func TestWatchFails(t *testing.T) {
	if err := Namespace(1<<20).Watch(t.Context(), func([]Interface) { t.Error("it delivers") }); err == nil {
		t.Error("no error for a namespace that there is none of")
	}
	if _, err := Namespace(1 << 20).List(); err == nil {
		t.Error("no error for a namespace that there is none of")
	}
}
