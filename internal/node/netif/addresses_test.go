// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
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

// here is a network namespace and a way to change it.
type here struct {
	ns *lab.Namespace
	nl *netlink.Handle
}

// addressWatch is a network namespace whose addresses are watched.
type addressWatch struct {
	here      // the namespace that is watched
	other     here
	t         *testing.T
	delivered chan []netip.Addr
	last      string
	stop      func() // ends Run, and fails the test unless it returned nil
}

func newAddressWatch(t *testing.T) *addressWatch {
	kerneltest.Require(t, kerneltest.Root)
	w := &addressWatch{t: t, delivered: make(chan []netip.Addr, 10000)}
	w.here, w.other = w.namespace(), w.namespace()
	return w
}

func (w *addressWatch) namespace() (h here) {
	w.t.Helper()
	var err error
	h.ns, err = lab.NewNamespace()
	w.check(err)
	w.t.Cleanup(func() { h.ns.Close() })
	h.nl, err = netlink.NewHandleAt(netns.NsHandle(h.ns.FD()), unix.NETLINK_ROUTE)
	w.check(err)
	w.t.Cleanup(h.nl.Close)
	return h
}

func (w *addressWatch) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

// run starts WatchAddresses.
func (w *addressWatch) run() {
	ctx, cancel := context.WithCancel(context.Background())
	done := make(chan error, 1)
	go func() {
		done <- Namespace(w.ns.FD()).WatchAddresses(ctx, func(all []netip.Addr) { w.delivered <- all })
	}()
	stopped := false
	w.stop = func() {
		w.t.Helper()
		if stopped {
			return
		}
		stopped = true
		cancel()
		select {
		case err := <-done:
			if err != nil {
				w.t.Errorf("WatchAddresses: %v", err)
			}
		case <-time.After(patience):
			w.t.Error("WatchAddresses goes on after its context has ended")
		}
	}
	w.t.Cleanup(w.stop)
}

// wait waits until the last delivery is these addresses, and says how many it
// took.
func (w *addressWatch) wait(addrs ...string) (deliveries int) {
	w.t.Helper()
	want := strings.Join(addrs, " ")
	timeout := time.After(patience)
	for {
		select {
		case all := <-w.delivered:
			got := text(all)
			if deliveries++; got == w.last {
				w.t.Fatalf("the same was delivered twice: %s", got)
			}
			if w.last = got; got == want {
				return deliveries
			}
		case <-timeout:
			w.t.Fatalf("last delivered %q, want %q", w.last, want)
		}
	}
}

// quiet fails the test if something is delivered.
func (w *addressWatch) quiet() {
	w.t.Helper()
	select {
	case all := <-w.delivered:
		w.t.Fatalf("delivered: %s", text(all))
	case <-time.After(20 * settle):
	}
}

func text(all []netip.Addr) string {
	var words []string
	for _, a := range all {
		words = append(words, a.String())
	}
	return strings.Join(words, " ")
}

// link makes an interface that is down and has no addresses. The other end of its
// cable is elsewhere.
func (w *addressWatch) link(name string) netlink.Link {
	w.t.Helper()
	attrs := netlink.NewLinkAttrs()
	attrs.Name = name
	veth := netlink.NewVeth(attrs)
	veth.PeerName, veth.PeerNamespace = name, netlink.NsFd(w.other.ns.FD())
	w.check(w.nl.LinkAdd(veth))
	peer, err := w.other.nl.LinkByName(name)
	w.check(err)
	w.check(w.other.nl.LinkSetUp(peer))
	return veth
}

func (w *addressWatch) addr(cidr string) *netlink.Addr {
	w.t.Helper()
	ip, n, err := net.ParseCIDR(cidr)
	w.check(err)
	return &netlink.Addr{IPNet: &net.IPNet{IP: ip, Mask: n.Mask}, Flags: unix.IFA_F_NODAD}
}

func (w *addressWatch) add(l netlink.Link, cidr string) {
	w.t.Helper()
	w.check(w.nl.AddrAdd(l, w.addr(cidr)))
}

func (w *addressWatch) del(l netlink.Link, cidr string) {
	w.t.Helper()
	w.check(w.nl.AddrDel(l, w.addr(cidr)))
}

func TestAddresses(t *testing.T) {
	w := newAddressWatch(t)
	w.run()
	w.wait("127.0.0.1", "::1")
	a, b := w.link("a"), w.link("b")
	w.quiet() // interfaces without addresses are not reported
	w.add(a, "192.0.2.7/24")
	w.wait("127.0.0.1", "192.0.2.7", "::1")
	w.add(a, "192.0.2.3/24") // a secondary one
	w.wait("127.0.0.1", "192.0.2.3", "192.0.2.7", "::1")
	w.add(a, "2001:db8::7/64")
	w.wait("127.0.0.1", "192.0.2.3", "192.0.2.7", "::1", "2001:db8::7")
	w.add(b, "192.0.2.7/32") // on both interfaces
	w.quiet()
	w.del(a, "192.0.2.7/24") // and with it the secondary one
	w.wait("127.0.0.1", "192.0.2.7", "::1", "2001:db8::7")
	w.del(b, "192.0.2.7/32")
	w.wait("127.0.0.1", "::1", "2001:db8::7")
}

// TestServiceAddresses: addresses of IPVS mode's interface are not the node's.
func TestServiceAddresses(t *testing.T) {
	w := newAddressWatch(t)
	dummy := w.link(ServiceAddresses)
	w.add(dummy, "10.96.0.1/32")
	w.run()
	w.wait("127.0.0.1", "::1")
	w.add(dummy, "10.96.0.2/32")
	w.add(dummy, "2001:db8:96::1/128")
	w.quiet()
	w.add(w.link("a"), "192.0.2.7/24")
	w.wait("127.0.0.1", "192.0.2.7", "::1")
}

// TestAwaitChangeExcept: a change of addresses of one interface is not a change, and a change
// of the interface is.
func TestAwaitChangeExcept(t *testing.T) {
	w := newAddressWatch(t)
	dummy := w.link(ServiceAddresses)
	news, err := Namespace(w.ns.FD()).subscribe()
	w.check(err)
	defer news.Close()
	await := func(change func()) error {
		ctx, cancel := context.WithTimeout(t.Context(), 20*settle)
		defer cancel()
		defer context.AfterFunc(ctx, func() { _ = news.SetReadDeadline(time.Unix(1, 0)) })()
		change()
		return awaitChange(ctx, news, dummy.Attrs().Index)
	}
	if err := await(func() { w.add(dummy, "10.96.0.1/32"); w.del(dummy, "10.96.0.1/32") }); !errors.Is(err, context.DeadlineExceeded) {
		t.Errorf("an address of %s: %v", ServiceAddresses, err)
	}
	w.check(w.nl.LinkSetUp(dummy))
	w.check(awaitChange(t.Context(), news, dummy.Attrs().Index))
}

func TestInterfaces(t *testing.T) {
	w := newAddressWatch(t)
	a := w.link("a")
	w.add(a, "192.0.2.7/24")
	w.add(a, "2001:db8::7/64")
	w.run()
	w.wait("127.0.0.1", "192.0.2.7", "::1", "2001:db8::7")
	w.check(w.nl.LinkSetUp(a)) // which makes a link-local address
	var local string
	w.until(func() bool {
		all, err := w.nl.AddrList(a, netlink.FAMILY_V6)
		w.check(err)
		for _, x := range all {
			if x.IP.IsLinkLocalUnicast() {
				local = x.IP.String()
			}
		}
		return local != ""
	})
	w.wait("127.0.0.1", "192.0.2.7", "::1", "2001:db8::7", local)
	w.check(w.nl.LinkSetDown(a)) // which takes the IPv6 addresses away
	w.wait("127.0.0.1", "192.0.2.7", "::1")
	w.check(w.nl.LinkDel(a))
	w.wait("127.0.0.1", "::1")

	// An address on each end of a link is on the node; the peer of one is not.
	b := w.link("b")
	peer := w.addr("198.51.100.1/32")
	peer.Peer = w.addr("198.51.100.2/32").IPNet
	w.check(w.nl.AddrAdd(b, peer))
	w.wait("127.0.0.1", "198.51.100.1", "::1")

	// It moves to another namespace.
	elsewhere := w.namespace()
	w.check(w.nl.LinkSetNsFd(b, elsewhere.ns.FD()))
	w.wait("127.0.0.1", "::1")
}

func (w *addressWatch) until(ok func() bool) {
	w.t.Helper()
	for begin := time.Now(); time.Since(begin) < patience; time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	w.t.Fatal("no such delivery in time")
}

// A burst is few deliveries, and none of its changes are lost, whether the
// kernel can tell each of them or not.
func TestBurst(t *testing.T) {
	w := newAddressWatch(t)
	a := w.link("a")
	w.run()
	w.wait("127.0.0.1", "::1")
	want := []netip.Addr{netip.MustParseAddr("127.0.0.1"), netip.IPv6Loopback()}
	begin := time.Now()
	const n = 2000
	for i := range n {
		ip := fmt.Sprintf("10.1.%d.%d", i>>8, i&255)
		w.add(a, ip+"/32")
		want = append(want, netip.MustParseAddr(ip))
	}
	took := time.Since(begin)
	slices.SortFunc(want, netip.Addr.Compare)
	words := strings.Fields(text(want))
	// One for each time that it waited, one at the start and one at the end.
	if got, most := w.wait(words...), int(took/settle)+2; got > most {
		t.Errorf("%d changes within %v were %d deliveries, more than %d", n, took, got, most)
	}
	w.check(w.nl.LinkDel(a))
	w.wait("127.0.0.1", "::1")
}

func TestComplete(t *testing.T) {
	tries := 0
	list := func() ([]int, error) {
		if tries++; tries < 4 {
			return []int{1}, fmt.Errorf("a change: %w", netlink.ErrDumpInterrupted)
		}
		return []int{1, 2}, nil
	}
	if all, err := Complete(list); err != nil || len(all) != 2 {
		t.Errorf("%v, error %v", all, err)
	}
	tries = -1000
	if _, err := Complete(list); !errors.Is(err, netlink.ErrDumpInterrupted) {
		t.Error(err)
	}
}

// The watch breaks, and is begun again.
func TestBrokenWatch(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	tries, deliveries := 0, 0
	err := keepWatching(ctx, func(_ context.Context, deliver func([]Interface)) error {
		switch tries++; tries {
		case 1, 4:
			deliver(nil)
		case 2: // not even a list
		case 3:
			return unix.ENOBUFS
		case 5:
			cancel()
		}
		return errors.New("it broke")
	}, func([]Interface) { deliveries++ })
	if err != nil || tries != 5 || deliveries != 2 {
		t.Errorf("%d deliveries in %d tries, ended with %v", deliveries, tries, err)
	}
	broken := errors.New("it broke")
	if err := keepWatching(t.Context(), func(context.Context, func([]Interface)) error { return broken }, nil); err != broken {
		t.Errorf("a watch that never began ended with %v", err)
	}
}

// An address whose uniqueness is being checked is left out until it is known to
// be unique, and one that another machine has for good.
func TestDuplicateAddressDetection(t *testing.T) {
	w := newAddressWatch(t)
	b := w.link("b")
	w.check(w.ns.SetSysctl("ipv6/conf/b/accept_dad", "1"))
	w.check(w.ns.SetSysctl("ipv6/conf/b/dad_transmits", "3")) // seconds that the other one has to answer
	w.check(w.ns.SetSysctl("ipv6/conf/b/addr_gen_mode", "1")) // no link-local address
	w.check(w.nl.LinkSetUp(b))
	c, err := w.other.nl.LinkByName("b")
	w.check(err)
	w.check(w.other.nl.AddrAdd(c, w.addr("2001:db8::7/64")))
	w.until(func() bool {
		l, err := w.nl.LinkByName("b")
		w.check(err)
		return l.Attrs().OperState == netlink.OperUp
	})
	w.run()
	w.wait("127.0.0.1", "::1")

	taken := w.addr("2001:db8::7/64")
	taken.Flags = 0
	w.check(w.nl.AddrAdd(b, taken))
	free := w.addr("2001:db8::8/64")
	free.Flags = 0
	w.check(w.nl.AddrAdd(b, free))
	if n := w.wait("127.0.0.1", "::1", "2001:db8::8"); n != 1 {
		t.Errorf("%d deliveries", n)
	}
	w.until(func() bool {
		all, err := w.nl.AddrList(b, netlink.FAMILY_V6)
		w.check(err)
		return slices.ContainsFunc(all, func(x netlink.Addr) bool { return x.Flags&unix.IFA_F_DADFAILED != 0 })
	})
	w.quiet()

	// One that should no longer be used for new connections still answers.
	deprecated := w.addr("2001:db8::8/64")
	deprecated.PreferedLft, deprecated.ValidLft = 0, 3600
	w.check(w.nl.AddrReplace(b, deprecated))
	w.quiet()
}

func TestEnds(t *testing.T) {
	w := newAddressWatch(t)
	w.run()
	w.wait("127.0.0.1", "::1")
	w.stop()
	if err := Namespace(1<<20).WatchAddresses(t.Context(), func([]netip.Addr) {}); err == nil {
		t.Error("it ran in a namespace that does not exist")
	}
}
