// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"errors"
	"fmt"
	"net"
	"net/netip"
	"sync"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// What must come is waited for with patience, what must not for as long as silence. A
// refusal has to come before a SYN is repeated, after a second; a datagram is not repeated.
const (
	patience = time.Minute
	silence  = 300 * time.Millisecond
	refusal  = 900 * time.Millisecond
)

// refused is how long a refusal may take.
func refused(p lab.Protocol) time.Duration {
	if p == lab.UDP {
		return patience
	}
	return refusal
}

// eventually waits for a condition, bounded.
func eventually(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for end := time.Now().Add(patience); !cond(); time.Sleep(2 * time.Millisecond) {
		if time.Now().After(end) {
			t.Fatalf("in vain: %s", what)
		}
	}
}

func stream(t *testing.T, m *lab.Machine, p lab.Protocol, dest netip.AddrPort, opts ...lab.ConnectOption) *lab.Stream {
	t.Helper()
	s, err := m.Stream(p, dest, 5*time.Millisecond, opts...)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { s.Close() })
	return s
}

func load(t *testing.T, from *lab.Pod, p lab.Protocol, dest netip.AddrPort, o lab.LoadOptions) *lab.Load {
	t.Helper()
	l, err := from.StartLoad(context.Background(), p, dest, o)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func TestStreamOutlivesDrain(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	// A UDP server has no connections to drain.
	eachWayOf(t, []lab.Protocol{lab.TCP, lab.SCTP}, func(t *testing.T, p lab.Protocol, ipv6 bool) {
		srv := serve(t, &b.web3.Machine, p, netip.AddrPortFrom(b.web3.Addr(ipv6), 80))
		defer srv.Close()
		st := stream(t, &b.web1.Machine, p, srv.Addr())
		if st.Stats().Server != "web-3" || st.Stats().Seen.Addr() != b.web1.Addr(ipv6) {
			t.Errorf("at the begin: %+v", st.Stats())
		}
		srv.Drain()
		if _, err := b.web1.Connect(p, srv.Addr()); !errors.Is(err, lab.ErrRefused) {
			t.Errorf("new connection to a drained server: %v, want %v", err, lab.ErrRefused)
		}
		before := st.Stats().Received
		eventually(t, "twenty more echoes", func() bool { return st.Stats().Received >= before+20 })
		if err := st.Close(); err != nil {
			t.Error(err)
		}
		if s := st.Stats(); s.Failed != 0 || s.Ended || s.Sent != s.Received || s.Server != "web-3" {
			t.Errorf("after close: %+v", s)
		}
	})
}

func TestStreamReportsServersDeath(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	eachWay(t, func(t *testing.T, p lab.Protocol, ipv6 bool) {
		srv := serve(t, &b.web3.Machine, p, netip.AddrPortFrom(b.web3.Addr(ipv6), 80))
		st := stream(t, &b.web1.Machine, p, srv.Addr())
		eventually(t, "five echoes", func() bool { return st.Stats().Received >= 5 })
		if err := srv.Close(); err != nil {
			t.Fatal(err)
		}
		eventually(t, "a failure", func() bool { return st.Stats().Failed > 0 })
		if p == lab.UDP {
			// A datagram that was in the server's queue times out first.
			eventually(t, "a refusal", func() bool { return errors.Is(st.Stats().Last, lab.ErrRefused) })
			if s := st.Stats(); s.Ended {
				t.Errorf("%+v, want it to go on", s)
			}
			// A pod with the same address takes over.
			if err := b.web3.Delete(); err != nil {
				t.Fatal(err)
			}
			heir := fmt.Sprintf("heir IPv6 %v", ipv6)
			b.web3 = pod(t, b.n2, heir, "10.244.2.7", "fd00:244:2::7")
			serve(t, &b.web3.Machine, p, srv.Addr())
			eventually(t, "an echo of the heir", func() bool { return st.Stats().Server == heir })
			if s := st.Stats(); s.Moved != 1 {
				t.Errorf("moved %d times, want 1", s.Moved)
			}
			return
		}
		<-st.Done()
		if s := st.Stats(); !s.Ended || s.Failed != 1 || s.Last == nil {
			t.Errorf("%+v, want ended after one failure", s)
		}
	})
}

func TestStreamLateEcho(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	srv := serve(t, &b.web3.Machine, lab.TCP, netip.AddrPortFrom(b.web3.Addr(false), 80))
	st := stream(t, &b.web1.Machine, lab.TCP, srv.Addr(), lab.Timeout(time.Second))
	nft(t, &b.n1.Machine, "add table ip t; add chain ip t f { type filter hook forward priority 0; }; add rule ip t f tcp sport 80 drop")
	eventually(t, "a timeout", func() bool { return errors.Is(st.Stats().Last, lab.ErrTimeout) })
	nft(t, &b.n1.Machine, "delete table ip t")
	before := st.Stats().Received
	eventually(t, "echoes again", func() bool { return st.Stats().Received >= before+5 })
	if s := st.Stats(); s.Ended {
		t.Errorf("%+v, want it not ended", s)
	}
}

func TestLoad(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	// With connection tracking on the way, as beside a proxy.
	for _, n := range []*lab.Node{b.n1, b.n2} {
		nft(t, &n.Machine, "add table inet t; add chain inet t f { type filter hook forward priority 0; }; add rule inet t f ct state invalid counter drop")
	}
	eachWay(t, func(t *testing.T, p lab.Protocol, ipv6 bool) {
		srv := serve(t, &b.web3.Machine, p, netip.AddrPortFrom(b.web3.Addr(ipv6), 80))
		defer srv.Close()
		got := load(t, b.web1, p, srv.Addr(), lab.LoadOptions{Workers: 3, Count: 600}).Wait()
		if got.OK != 600 || got.Failed != 0 || got.Servers["web-3"] != 600 {
			t.Errorf("%v, want 600 ok", got)
		}
		if srv.Served() != 600 {
			t.Errorf("served %d, want 600", srv.Served())
		}
		if p == lab.TCP { // the same five-tuple again and again, while children start
			stop := make(chan struct{})
			var forks sync.WaitGroup
			forks.Go(func() {
				for {
					select {
					case <-stop:
						return
					default:
						_, _ = b.web2.Run(context.Background(), "true")
					}
				}
			})
			// A SYN may overtake the reset of the connection before, on another CPU,
			// and is then repeated.
			from := []lab.ConnectOption{lab.Source(netip.AddrPortFrom(netip.Addr{}, 3000)), lab.Timeout(patience)}
			got := load(t, b.web1, p, srv.Addr(), lab.LoadOptions{Count: 300, Connect: from}).Wait()
			close(stop)
			forks.Wait()
			if got.OK != 300 {
				t.Errorf("from one port: %v, want 300 ok", got)
			}
		}
	})
}

func TestLoadCountsFailures(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	eachWay(t, func(t *testing.T, p lab.Protocol, ipv6 bool) {
		addr := netip.AddrPortFrom(b.web3.Addr(ipv6), 80)
		first := serve(t, &b.web3.Machine, p, addr)
		l := load(t, b.web1, p, addr, lab.LoadOptions{Workers: 2, Pace: time.Millisecond})
		eventually(t, "answers", func() bool { return l.Stats().Servers["web-3"] >= 10 })
		first.Close()
		eventually(t, "refusals", func() bool { return l.Stats().Failures["refused"] >= 10 })
		before := l.Stats().Servers["web-3"]
		second := serve(t, &b.web3.Machine, p, addr)
		defer second.Close()
		eventually(t, "answers again", func() bool { return l.Stats().Servers["web-3"] >= before+10 })
		got := l.Stop()
		var servers, failures int64
		for _, n := range got.Servers {
			servers += n
		}
		for _, n := range got.Failures {
			failures += n
		}
		if servers != got.OK || failures != got.Failed || got.First == nil {
			t.Errorf("numbers do not add up: %v", got)
		}
		if again := l.Stop(); again.OK != got.OK {
			t.Errorf("went on after Stop: %v, then %v", got, again)
		}
	})
}

func TestLoadEnds(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	srv := serve(t, &b.web3.Machine, lab.TCP, netip.AddrPortFrom(b.web3.Addr(false), 80))
	ctx, cancel := context.WithCancel(t.Context())
	l, err := b.web1.StartLoad(ctx, lab.TCP, srv.Addr(), lab.LoadOptions{Workers: 2, Pace: time.Millisecond})
	if err != nil {
		t.Fatal(err)
	}
	eventually(t, "an answer", func() bool { return l.Stats().OK > 0 })
	cancel()
	if got := l.Wait(); got.OK == 0 || got.Failed != 0 {
		t.Errorf("by context: %v", got)
	}
	l = load(t, b.web1, lab.TCP, srv.Addr(), lab.LoadOptions{Workers: 8})
	st := stream(t, &b.web1.Machine, lab.TCP, srv.Addr())
	eventually(t, "an answer", func() bool { return l.Stats().OK > 0 })
	if err := b.lab.Close(); err != nil {
		t.Fatal(err)
	}
	if got := l.Wait(); got.Failed != 0 {
		t.Errorf("by the lab's end: %v, want no failure", got)
	}
	if s := st.Stats(); s.Failed != 0 || s.Ended {
		t.Errorf("stream at the lab's end: %+v, want no failure", s)
	}
}

func TestServerEchoes(t *testing.T) {
	t.Parallel()
	b := newTestbed(t)
	srv := serve(t, &b.web3.Machine, lab.TCP, netip.AddrPortFrom(b.web3.Addr(false), 80))
	var c net.Conn
	err := b.web1.Do(func() (err error) { c, err = net.DialTimeout("tcp4", srv.Addr().String(), 5*time.Second); return err })
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	_ = c.SetDeadline(time.Now().Add(10 * time.Second))
	if _, err := c.Write([]byte("one\ntwo")); err != nil {
		t.Fatal(err)
	}
	want := `{"server":"web-3","client":"` + c.LocalAddr().String() + `","local":"10.244.2.7:80"}` + "\none\ntwo"
	var got []byte
	buf := make([]byte, 512)
	for len(got) < len(want) {
		n, err := c.Read(buf)
		if err != nil {
			t.Fatalf("%v after %q", err, got)
		}
		got = append(got, buf[:n]...)
	}
	if string(got) != want {
		t.Errorf("got %q, want %q", got, want)
	}
}
