// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"math/rand/v2"
	"net"
	"net/netip"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// patience bounds what takes milliseconds, except on a very busy machine.
const patience = 2 * time.Minute

// bed is a network namespace with a Server and backends.
type bed struct {
	*testing.T
	ns     *lab.Namespace
	server *Server
	asked  int

	mu        sync.Mutex
	reports   []string
	failed    int
	listening [2]int
}

func newBed(t *testing.T, o Options) *bed {
	t.Helper()
	kerneltest.Require(t, kerneltest.NetNS)
	b := &bed{T: t}
	var err error
	b.ns, err = lab.NewNamespace()
	b.check(err)
	t.Cleanup(func() { b.check(b.ns.Close()) })
	o.In = b.ns.Do
	o.Report = func(service types.NamespacedName, err error) {
		b.mu.Lock()
		defer b.mu.Unlock()
		b.reports = append(b.reports, service.String()+": "+err.Error())
	}
	o.Failed = func(desired.Family) { b.mu.Lock(); defer b.mu.Unlock(); b.failed++ }
	o.Listening = func(n [2]int) { b.mu.Lock(); defer b.mu.Unlock(); b.listening = n }
	b.server = New(context.WithoutCancel(t.Context()), o)
	t.Cleanup(b.server.Close)
	return b
}

func (b *bed) check(err error) {
	b.Helper()
	if err != nil {
		b.Fatal(err)
	}
}

func (b *bed) until(what string, is func() bool) {
	b.Helper()
	for start := time.Now(); !is(); time.Sleep(time.Millisecond) {
		if time.Since(start) > patience {
			b.Fatalf("not in time: %s", what)
		}
	}
}

// tcp starts a TCP server.
func (b *bed) tcp(address string, serve func(*net.TCPConn)) desired.Backend {
	b.Helper()
	l, err := b.ns.Listen("tcp", address)
	b.check(err)
	b.Cleanup(func() { l.Close() })
	go func() {
		for {
			conn, err := l.Accept()
			if err != nil {
				return
			}
			go func() { defer conn.Close(); serve(conn.(*net.TCPConn)) }()
		}
	}()
	return desired.NewBackend(netip.MustParseAddrPort(address))
}

// named serves its name.
func named(name string) func(*net.TCPConn) {
	return func(c *net.TCPConn) {
		_, _ = io.WriteString(c, name)
		_, _ = io.Copy(io.Discard, c) // until the client ends
	}
}

func (b *bed) dial(address string) *net.TCPConn {
	b.Helper()
	conn, err := b.ns.DialContext(b.Context(), "tcp", address)
	b.check(err)
	b.Cleanup(func() { conn.Close() })
	b.check(conn.SetDeadline(time.Now().Add(patience)))
	return conn.(*net.TCPConn)
}

// name connects, and returns the name of the server.
func (b *bed) name(address string) string {
	b.Helper()
	c := b.dial(address)
	b.check(c.CloseWrite())
	name, err := io.ReadAll(c)
	b.check(err)
	return string(name)
}

// refuses reports whether connections to an address are refused.
func (b *bed) refuses(network, address string) bool {
	b.Helper()
	conn, err := b.ns.DialContext(b.Context(), network, address)
	if err == nil {
		defer conn.Close()
		if network == "udp" {
			b.check(conn.SetDeadline(time.Now().Add(patience)))
			if _, err = conn.Write([]byte("?")); err == nil {
				_, err = conn.Read(make([]byte, 1))
			}
		}
	}
	return errors.Is(err, unix.ECONNREFUSED)
}

func relay(address string, p desired.Protocol, backends ...desired.Backend) desired.Relay {
	return desired.Relay{
		FrontendKey: desired.FrontendKey{AddrPort: netip.MustParseAddrPort(address), Protocol: p},
		Service:     desired.ServicePort{Namespace: "default", Name: "web"}, Backends: backends, Serving: backends,
	}
}

func gone(r desired.Relay) desired.Relay { return desired.Relay{FrontendKey: r.FrontendKey} }

const (
	v4 = "127.0.0.1:30080"
	v6 = "[::1]:30080"
)

// unserved fails the test unless Unserved finds the given ones in addition to the Server's.
func (b *bed) unserved(want ...desired.Relay) {
	b.Helper()
	all := slices.Clone(want)
	for key, p := range b.server.ports {
		all = append(all, desired.Relay{FrontendKey: key, Backends: p.backends})
	}
	b.check(b.ns.Do(func() error {
		got, err := Unserved(all)
		if len(got) != len(want) || len(all) == 0 {
			b.Errorf("unserved are %v; want %v", got, want)
		}
		return err
	}))
}

func TestTCP(t *testing.T) {
	b := newBed(t, Options{})
	one, two, six := b.tcp("127.0.0.1:8001", named("one")), b.tcp("127.0.0.1:8002", named("two")), b.tcp("[::1]:8006", named("six"))
	b.server.Set([]desired.Relay{relay(v4, desired.TCP, one), relay(v6, desired.TCP, six)})
	b.unserved()
	if got := b.name(v4) + b.name(v6); got != "onesix" || b.listening != [2]int{1, 1} {
		t.Errorf("connections reach %s, with %v listeners", got, b.listening)
	}
	b.server.Set([]desired.Relay{relay(v4, desired.UDP, one), relay(v6, desired.UDP, six)})
	b.unserved(relay("127.0.0.1:30081", desired.TCP, one), relay("[::1]:30081", desired.UDP, one))
	b.server.Set([]desired.Relay{gone(relay(v4, desired.UDP)), gone(relay(v6, desired.UDP))})
	long := b.dial(v4)
	var name [3]byte
	_, err := io.ReadFull(long, name[:])
	b.check(err)

	b.server.Set([]desired.Relay{relay(v4, desired.TCP, one, two)})
	seen := map[string]bool{}
	for range 100 { // one of them would be missing once in 2^99 runs
		seen[b.name(v4)] = true
	}
	if !seen["one"] || !seen["two"] {
		t.Errorf("of two endpoints, connections reach %v", seen)
	}
	b.server.Set([]desired.Relay{relay(v4, desired.TCP, two)})
	if got := b.name(v4); got != "two" {
		t.Errorf("after the change connections reach %s", got)
	}
	b.server.Set([]desired.Relay{relay(v4, desired.TCP)})
	if !b.refuses("tcp", v4) || b.listening != [2]int{0, 1} {
		t.Error("connections are not refused without endpoints")
	}
	b.server.Set([]desired.Relay{relay(v4, desired.TCP, two)})
	if got := b.name(v4); got != "two" {
		t.Errorf("with an endpoint again connections reach %s", got)
	}
	b.server.Set([]desired.Relay{gone(relay(v4, desired.TCP)), gone(relay(v6, desired.TCP))})
	if !b.refuses("tcp", v4) || !b.refuses("tcp", v6) || b.listening != [2]int{} {
		t.Error("connections are not refused without a Service")
	}

	// The first connection is still there.
	b.check(long.CloseWrite())
	if rest, err := io.ReadAll(long); err != nil || len(rest) > 0 {
		t.Errorf("at the end of the first connection: %q, %v", rest, err)
	}
}

// TestTransfer carries much data both ways at once, ends the directions one after the other,
// and makes sure that this process has read no more than its own client and server did.
func TestTransfer(t *testing.T) {
	const size = 8 << 20
	data := make([]byte, size)
	_, _ = rand.NewChaCha8([32]byte{1}).Read(data)
	backward := slices.Clone(data)
	slices.Reverse(backward)

	b := newBed(t, Options{})
	received := make(chan []byte, 1)
	server := b.tcp("127.0.0.1:8001", func(c *net.TCPConn) {
		go func() {
			_, _ = c.Write(backward)
			_ = c.CloseWrite()
		}()
		all, _ := io.ReadAll(c) // goes on after the end of the other direction
		received <- all
	})
	b.server.Set([]desired.Relay{relay(v4, desired.TCP, server)})
	before, counted := readBytes(t)
	client := b.dial(v4)
	sent := make(chan error, 1)
	half := len(data) / 2
	goOn := make(chan struct{})
	go func() {
		_, err := client.Write(data[:half])
		<-goOn
		if err == nil {
			_, err = client.Write(data[half:])
		}
		sent <- errors.Join(err, client.CloseWrite())
	}()
	got, err := io.ReadAll(client)
	b.check(err)
	if !bytes.Equal(got, backward) {
		t.Errorf("%d bytes arrived at the client, and not those that were sent", len(got))
	}
	close(goOn) // the server has ended its direction
	b.check(<-sent)
	if got := <-received; !bytes.Equal(got, data) {
		t.Errorf("%d bytes arrived at the server, and not those that were sent", len(got))
	}
	after, _ := readBytes(t)
	if read := after - before; counted && read > 3*size {
		t.Errorf("this process has read %d bytes, although its client and server have read %d", read, 2*size)
	}
}

// readBytes is how many bytes this process has read by system calls other than splice(2)
// (rchar in Documentation/filesystems/proc.rst), if the kernel counts.
func readBytes(t *testing.T) (n int, counted bool) {
	t.Helper()
	text, err := os.ReadFile("/proc/self/io")
	if errors.Is(err, os.ErrNotExist) {
		return 0, false
	}
	if err == nil {
		_, err = fmt.Sscanf(string(text), "rchar: %d", &n)
	}
	if err != nil {
		t.Fatal(err)
	}
	return n, true
}

// TestReset checks that a failure on one side does not look like the regular end of a stream on
// the other.
func TestReset(t *testing.T) {
	b := newBed(t, Options{})
	failed := make(chan error, 1)
	breaks := b.tcp("127.0.0.1:8001", func(c *net.TCPConn) {
		_, _ = io.WriteString(c, "half an answer")
		_, _ = c.Read(make([]byte, 1))
		_ = c.SetLinger(0)
	})
	arrived := make(chan struct{}, 2)
	waits := b.tcp("127.0.0.1:8002", func(c *net.TCPConn) {
		_, _ = c.Read(make([]byte, 1))
		arrived <- struct{}{}
		_, err := io.ReadAll(c)
		failed <- err
	})
	silent := desired.NewBackend(netip.MustParseAddrPort("127.0.0.1:8003"))

	b.server.Set([]desired.Relay{relay(v4, desired.TCP, breaks)})
	c := b.dial(v4)
	if _, err := io.ReadFull(c, make([]byte, len("half an answer"))); err != nil {
		t.Fatal(err)
	}
	_, _ = c.Write([]byte("!"))
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("when the endpoint resets, the client sees %v", err)
	}
	b.server.Set([]desired.Relay{relay(v4, desired.TCP, waits)})
	c = b.dial(v4)
	_, _ = c.Write([]byte("half a request"))
	<-arrived
	_ = c.SetLinger(0)
	c.Close()
	if err := <-failed; !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("when the client resets, the endpoint sees %v", err)
	}
	b.server.Set([]desired.Relay{relay(v4, desired.TCP, silent)})
	conn, err := b.ns.DialContext(t.Context(), "tcp", v4)
	if err == nil { // the reset may come before dialing has ended
		_, err = conn.Read(make([]byte, 1))
		conn.Close()
	}
	if !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("when the endpoint refuses, the client sees %v", err)
	}

	// The end of the Server ends connections.
	b.server.Set([]desired.Relay{relay(v4, desired.TCP, waits)})
	c = b.dial(v4)
	_, _ = c.Write([]byte("?"))
	<-arrived
	b.server.Close()
	if _, err := c.Read(make([]byte, 1)); !errors.Is(err, unix.ECONNRESET) {
		t.Errorf("when the Server ends, the client sees %v", err)
	}
	if n := len(b.server.connections); n != 0 || b.listening != [2]int{} {
		t.Errorf("after the end there are %d connections and %v listeners", n, b.listening)
	}
}

// udp starts a UDP server that answers with its name and the datagram.
func (b *bed) udp(address, name string) desired.Backend {
	b.Helper()
	conn, err := b.listenUDP(address)
	b.check(err)
	go func() {
		buffer := make([]byte, 1<<16)
		for {
			n, from, err := conn.ReadFromUDPAddrPort(buffer)
			if err != nil {
				return
			}
			_, _ = conn.WriteToUDPAddrPort(append([]byte(name), buffer[:n]...), from)
		}
	}()
	return desired.NewBackend(netip.MustParseAddrPort(address))
}

func (b *bed) listenUDP(address string) (conn *net.UDPConn, err error) {
	err = b.ns.Do(func() error {
		conn, err = net.ListenUDP("udp", net.UDPAddrFromAddrPort(netip.MustParseAddrPort(address)))
		return err
	})
	b.Cleanup(func() { conn.Close() })
	return conn, err
}

// ask sends a datagram until there is an answer to it, as UDP may lose one, and returns the
// server's name. Late answers to earlier datagrams are ignored.
func (b *bed) ask(conn net.Conn, text string) (name string) {
	b.Helper()
	b.asked++
	question := fmt.Sprintf("#%d %s", b.asked, text)
	answer := make([]byte, 1<<16)
	for start := time.Now(); time.Since(start) < patience; {
		_, _ = conn.Write([]byte(question)) // an error is about an earlier datagram
		b.check(conn.SetReadDeadline(time.Now().Add(time.Second)))
		for {
			n, err := conn.Read(answer)
			if err != nil {
				break
			}
			if name, ok := strings.CutSuffix(string(answer[:n]), question); ok {
				return name
			}
		}
	}
	b.Fatal("no answer")
	return ""
}

func TestUDP(t *testing.T) {
	b := newBed(t, Options{UDPTimeout: time.Hour, UDPStreamTimeout: time.Hour})
	one, two, six := b.udp("127.0.0.1:8001", "one"), b.udp("127.0.0.1:8002", "two"), b.udp("[::1]:8006", "six")
	b.server.Set([]desired.Relay{relay(v4, desired.UDP, one, two), relay(v6, desired.UDP, six)})
	// Connected sockets: answers count only if they are from the address that was asked.
	dial := func(address string) net.Conn {
		conn, err := b.ns.DialContext(t.Context(), "udp", address)
		b.check(err)
		t.Cleanup(func() { conn.Close() })
		return conn
	}
	if got := b.ask(dial(v6), ""); got != "six" {
		t.Errorf("the answer by IPv6 is %q", got)
	}
	seen := map[string]net.Conn{}
	for range 100 {
		c := dial(v4)
		name := b.ask(c, "")
		seen[name] = c
		for range 5 {
			if again := b.ask(c, ""); again != name {
				t.Fatalf("a flow to %s got an answer of %s", name, again)
			}
		}
	}
	if len(seen) != 2 {
		t.Fatalf("of two endpoints, flows reach %v", seen)
	}
	large := strings.Repeat("x", 60_000)
	if got := b.ask(seen["one"], large); got != "one" {
		t.Errorf("the answer to a large datagram is of %s", got)
	}

	// An endpoint that takes no new flows keeps those that it has. The flows to one that
	// no longer serves move.
	change := relay(v4, desired.UDP, two)
	change.Serving = []desired.Backend{one, two}
	b.server.Set([]desired.Relay{change})
	if got := b.ask(seen["one"], "") + b.ask(seen["two"], ""); got != "onetwo" {
		t.Errorf("while both endpoints serve, flows have answers of %s", got)
	}
	for range 20 {
		if got := b.ask(dial(v4), ""); got != "two" {
			t.Fatalf("a new flow reaches %s", got)
		}
	}
	change.Serving = []desired.Backend{two}
	b.server.Set([]desired.Relay{change})
	if got := b.ask(seen["one"], ""); got != "two" {
		t.Errorf("after its endpoint was removed, a flow has answers of %s", got)
	}
	// With weight 0, no endpoint takes new flows.
	change = relay(v4, desired.UDP)
	change.Serving = []desired.Backend{two}
	b.server.Set([]desired.Relay{change})
	if got := b.ask(seen["two"], ""); got != "two" {
		t.Errorf("without endpoints for new flows, a flow has answers of %q", got)
	}
	b.server.Set([]desired.Relay{relay(v4, desired.UDP)})
	if !b.refuses("udp", v4) {
		t.Error("datagrams are not refused without endpoints")
	}
	b.server.Set([]desired.Relay{gone(relay(v6, desired.UDP))})
	b.until("no flow is left", func() bool { return b.server.flows.Load() == 0 })
}

// TestUDPTimeouts makes sure that flows without answers, and with, have a timeout each.
func TestUDPTimeouts(t *testing.T) {
	for _, answers := range []bool{false, true} {
		o := Options{UDPTimeout: time.Hour, UDPStreamTimeout: time.Hour}
		short := &o.UDPTimeout
		if answers {
			short = &o.UDPStreamTimeout
		}
		*short = 50 * time.Millisecond
		b := newBed(t, o)
		silent, err := b.listenUDP("127.0.0.1:8009")
		b.check(err)
		to := desired.NewBackend(netip.MustParseAddrPort("127.0.0.1:8009"))
		if answers {
			to = b.udp("127.0.0.1:8001", "one")
		}
		b.server.Set([]desired.Relay{relay(v4, desired.UDP, to)})
		c, err := b.ns.DialContext(t.Context(), "udp", v4)
		b.check(err)
		t.Cleanup(func() { c.Close() })
		if _, err := c.Write([]byte("?")); err != nil {
			t.Fatal(err)
		}
		if answers {
			b.ask(c, "")
		} else {
			b.check(silent.SetReadDeadline(time.Now().Add(patience)))
			_, err := silent.Read(make([]byte, 1))
			b.check(err)
		}
		b.until("the flow has ended", func() bool { return b.server.flows.Load() == 0 })
	}
}

// TestMonotonicFlows: when a flow is idle does not depend on the time of day, which can be set.
func TestMonotonicFlows(t *testing.T) {
	f := &flow{}
	f.use()
	if idle := f.idle(&Options{UDPTimeout: time.Hour}); !strings.Contains(idle.String(), " m=+") {
		t.Errorf("a flow ends at %s, which is not a time of the monotonic clock", idle)
	}
}

// TestAlgorithms chooses by weights and by each algorithm.
func TestAlgorithms(t *testing.T) {
	heavy, light := desired.NewBackend(netip.MustParseAddrPort("10.0.0.1:80")), desired.NewBackend(netip.MustParseAddrPort("10.0.0.2:80"))
	choose := func(a desired.Algorithm) func(client string) desired.Backend {
		var c choice
		c.set(&desired.Relay{
			Backends: []desired.Backend{heavy, light}, Weights: []desired.Weight{{Backend: light, Weight: desired.DefaultWeight / 4}},
			Balance: desired.Balance{Algorithm: a, TableSize: uint32(desired.TableSizes()[0])},
		})
		return func(client string) desired.Backend {
			b, ok := c.choose(netip.MustParseAddrPort(client), time.Time{})
			if !ok {
				t.Fatal("no backend")
			}
			return b
		}
	}
	const n = 5000
	lights := func(a desired.Algorithm, client string) (found int) {
		of, again := choose(a), choose(a)
		for i := range n {
			at := client
			if strings.Contains(client, "%d") {
				at = fmt.Sprintf(client, 1+i%100, 1+i/100)
			}
			b := of(at)
			if b == light {
				found++
			}
			if a.Hashes() && again(at) != b {
				t.Fatalf("%s: after a restart, %s gets another endpoint", a, at)
			}
		}
		return found
	}
	// At random, the light one has n/5 with a standard deviation of 28. A table of 251 slots has it
	// in 50, and a hash spreads a few thousand clients about as evenly.
	for _, c := range []struct {
		algorithm   desired.Algorithm
		client      string
		least, most int
	}{
		{desired.Random, "127.0.0.1:1", n/5 - 300, n/5 + 300},
		{desired.LeastConnections, "127.0.0.1:1", n/5 - 300, n/5 + 300},
		{desired.RoundRobin, "127.0.0.1:1", n / 5, n / 5},
		{desired.Maglev, "127.0.%d.%d:1", n/5 - 300, n/5 + 300},
		{desired.MaglevPort, "127.0.0.1:%d%02d", n/5 - 300, n/5 + 300},
	} {
		if got := lights(c.algorithm, c.client); got < c.least || got > c.most {
			t.Errorf("%s: %d of %d connections reach the endpoint with a fifth of the weights", c.algorithm, got, n)
		}
	}
	if got := lights(desired.Maglev, "127.0.0.1:%d%02d"); got != 0 && got != n {
		t.Errorf("%d of %d connections of one address reach one endpoint, and the others another", got, n)
	}
}

func TestAffinity(t *testing.T) {
	var c choice
	var all []desired.Backend
	for i := range 8 {
		all = append(all, desired.NewBackend(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, 0, 1}), uint16(i))))
	}
	from, other := netip.MustParseAddr("127.0.0.1"), netip.MustParseAddr("127.0.0.2")
	r := desired.Relay{Backends: all, Affinity: 10}
	c.set(&r)
	now := time.Unix(0, 0)
	choose := func(from netip.Addr) desired.Backend {
		t.Helper()
		b, ok := c.choose(netip.AddrPortFrom(from, 40000), now)
		if !ok {
			t.Fatal("no backend")
		}
		return b
	}
	differs := func(from netip.Addr, b desired.Backend, step time.Duration) bool {
		for range 200 { // at random, all would be the same once in 8^200 runs
			if now = now.Add(step); choose(from) != b {
				return true
			}
		}
		return false
	}
	first := choose(from)
	if differs(from, first, 9*time.Second) {
		t.Error("a client changes its backend, although each connection renews the affinity")
	}
	if !differs(other, first, 11*time.Second) {
		t.Error("another client always gets the same backend after its affinity has ended")
	}
	first = choose(from)
	r.Backends = slices.DeleteFunc(slices.Clone(all), func(b desired.Backend) bool { return b == first })
	c.set(&r)
	second := choose(from)
	if second == first || differs(from, second, 0) {
		t.Error("a client does not keep the backend that replaced its removed one")
	}
	for i := range 2 * maxClients { // more than are kept: the others are served
		choose(netip.AddrFrom4([4]byte{127, 1, byte(i >> 8), byte(i)}))
	}
	if n := len(c.clients); n != maxClients || differs(from, second, 0) {
		t.Errorf("%d clients are kept", n)
	}
	now = now.Add(11 * time.Second)
	if choose(from); len(c.clients) != 1 {
		t.Errorf("%d clients are kept after their timeout", len(c.clients))
	}
	r.Affinity = 0
	c.set(&r)
	if !differs(from, choose(from), 0) || len(c.clients) != 0 {
		t.Error("a client keeps its backend without affinity")
	}
}

// TestConflict sets a relay while another program listens on the NodePort, and then ends that
// program.
func TestConflict(t *testing.T) {
	b := newBed(t, Options{})
	server := b.tcp("127.0.0.1:8001", named("one"))
	other, err := b.ns.Listen("tcp", "0.0.0.0:30080")
	b.check(err)
	defer other.Close()
	b.server.Set([]desired.Relay{relay(v4, desired.TCP, server), relay("127.0.0.1:30081", desired.TCP, server)})
	if got := b.name("127.0.0.1:30081"); got != "one" {
		t.Errorf("beside a conflict connections reach %s", got)
	}
	b.server.Set([]desired.Relay{relay(v4, desired.TCP, server)})
	state := func() (reports []string, failed int, listening [2]int) {
		b.mu.Lock()
		defer b.mu.Unlock()
		return slices.Clone(b.reports), b.failed, b.listening
	}
	want := []string{"default/web: Service default/web: NodePort 30080 cannot be served on 127.0.0.1:30080/TCP: listen tcp4 127.0.0.1:30080: bind: address already in use"}
	if reports, failed, listening := state(); !slices.Equal(reports, want) || failed != 2 || listening != [2]int{1, 0} {
		t.Errorf("%d failures, %v listeners, reports %q; want %q", failed, listening, reports, want)
	}
	other.Close()
	b.until("the NodePort is served", func() bool { _, _, listening := state(); return listening == [2]int{2, 0} })
	if got := b.name(v4); got != "one" {
		t.Errorf("after a conflict connections reach %s", got)
	}
	if reports, _, _ := state(); len(reports) != 1 {
		t.Errorf("reports %q", reports)
	}
}
