// SPDX-License-Identifier: Apache-2.0

package healthcheck

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"net"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"k8s.io/apimachinery/pkg/types"
)

// testServer is a Server in a network namespace with two addresses of each family
// beside loopback's.
type testServer struct {
	t       *testing.T
	ns      *lab.Namespace
	server  *Server
	sick    atomic.Bool
	mu      sync.Mutex
	reports []string
	listens []string // every address that was bound to
}

var (
	all   = []netip.Addr{netip.IPv4Unspecified(), netip.IPv6Unspecified()}
	node4 = netip.MustParseAddr("127.1.0.1")
	node6 = netip.MustParseAddr("2001:db8::1")

	other4 = netip.MustParseAddr("127.1.0.2")
	other6 = netip.MustParseAddr("2001:db8::2")
)

func newTestServer(t *testing.T) *testServer {
	kerneltest.Require(t, kerneltest.Root)
	ns, err := lab.NewNamespace()
	w := &testServer{t: t, ns: ns}
	w.check(err)
	t.Cleanup(func() { ns.Close() })
	for _, ip := range []netip.Addr{node6, other6} {
		_, err = ns.Run(t.Context(), "ip", "address", "add", ip.String()+"/128", "dev", "lo", "nodad")
		w.check(err)
	}
	// The kernel makes an IPv6 address usable in the background.
	w.until(func() bool { return w.ask(node6, 1) == "refused" && w.ask(other6, 1) == "refused" })
	w.server = New(t.Context(), Options{
		Listen:  w.listen,
		Healthy: func() bool { return !w.sick.Load() },
		Report: func(of types.NamespacedName, err error) {
			w.mu.Lock()
			defer w.mu.Unlock()
			w.reports = append(w.reports, err.Error())
			if !strings.Contains(err.Error(), "Service "+of.String()+": ") {
				t.Errorf("of Service %v: %v", of, err)
			}
		},
	})
	t.Cleanup(w.server.Close)
	return w
}

func (w *testServer) check(err error) {
	w.t.Helper()
	if err != nil {
		w.t.Fatal(err)
	}
}

func (w *testServer) listen(network, address string) (net.Listener, error) {
	w.mu.Lock()
	w.listens = append(w.listens, network+" "+address)
	w.mu.Unlock()
	return w.ns.Listen(network, address)
}

// client makes a new connection for each request, in the namespace.
func (w *testServer) client() *http.Client {
	client := w.ns.HTTPClient()
	client.Timeout = time.Minute
	return client
}

// ask returns the answer's status, Service, local endpoints and headers as text,
// or "refused".
func (w *testServer) ask(ip netip.Addr, port uint16) string {
	w.t.Helper()
	r, err := w.client().Get("http://" + netip.AddrPortFrom(ip, port).String() + "/")
	if err != nil {
		if strings.Contains(err.Error(), "connection refused") {
			return "refused"
		}
		return err.Error()
	}
	defer r.Body.Close()
	body, err := io.ReadAll(r.Body)
	w.check(err)
	r.Header.Del("Date")
	var lines []string
	for _, k := range slices.Sorted(maps.Keys(r.Header)) {
		lines = append(lines, k+": "+r.Header.Get(k))
	}
	return fmt.Sprintf("%s\n%s\n\n%s", r.Status, strings.Join(lines, "\n"), body)
}

// expect fails the test unless the answer is this number of endpoints of the
// Service.
func (w *testServer) expect(ip netip.Addr, port uint16, service string, endpoints int) {
	w.t.Helper()
	got := w.ask(ip, port)
	ns, name, _ := strings.Cut(service, "/")
	want := answerText("200 OK", ns, name, endpoints, true)
	if endpoints == 0 {
		want = answerText("503 Service Unavailable", ns, name, 0, true)
	}
	if got != want {
		w.t.Errorf("%v port %d answers\n%s\nwant\n%s", ip, port, got, want)
	}
}

// answerText is an answer of kube-proxy v1.37.
func answerText(status, namespace, name string, endpoints int, healthy bool) string {
	body := fmt.Sprintf("{\n\t\"service\": {\n\t\t\"namespace\": %q,\n\t\t\"name\": %q\n\t},\n\t\"localEndpoints\": %d,\n\t\"serviceProxyHealthy\": %t\n}", namespace, name, endpoints, healthy)
	return fmt.Sprintf("%s\nContent-Length: %d\nContent-Type: application/json\nX-Content-Type-Options: nosniff\nX-Load-Balancing-Endpoint-Weight: %d\n\n%s", status, len(body), endpoints, body)
}

func (w *testServer) refused(ip netip.Addr, port uint16) {
	w.t.Helper()
	if got := w.ask(ip, port); got != "refused" {
		w.t.Errorf("%v port %d answers %s", ip, port, got)
	}
}

// reported takes the reports so far and fails the test unless each has the words
// that are wanted.
func (w *testServer) reported(want ...string) {
	w.t.Helper()
	w.mu.Lock()
	defer w.mu.Unlock()
	if len(w.reports) != len(want) {
		w.t.Fatalf("reports: %q, want %q", w.reports, want)
	}
	for i, r := range w.reports {
		if r != want[i] {
			w.t.Errorf("report %d: %q, want %q", i, r, want[i])
		}
	}
	w.reports = nil
}

// check of a Service in both families.
func check(service string, port uint16, v4, v6 int) desired.HealthCheck {
	ns, name, _ := strings.Cut(service, "/")
	return desired.HealthCheck{
		Service: types.NamespacedName{Namespace: ns, Name: name},
		Port:    port,
		Serves:  [2]bool{true, true}, LocalEndpoints: [2]int{v4, v6},
	}
}

func set(w *testServer, checks ...desired.HealthCheck) { w.server.Set(checks) }

func TestAnswers(t *testing.T) {
	w := newTestServer(t)
	w.server.SetAddresses(all)
	set(w, check("default/web", 32000, 2, 0), check("shop/cart", 32001, 0, 1))
	w.expect(node4, 32000, "default/web", 2)
	w.expect(node6, 32000, "default/web", 0)
	w.expect(node4, 32001, "shop/cart", 0)
	w.expect(node6, 32001, "shop/cart", 1)

	// Each request is answered with the latest count and health.
	set(w, check("default/web", 32000, 1, 5))
	w.expect(node4, 32000, "default/web", 1)
	w.expect(node6, 32000, "default/web", 5)
	w.sick.Store(true)
	if got, want := w.ask(node4, 32000), answerText("503 Service Unavailable", "default", "web", 1, false); got != want {
		t.Errorf("an unhealthy proxy answers\n%s\nwant\n%s", got, want)
	}
	w.sick.Store(false)
	w.expect(node4, 32000, "default/web", 1)

	// Another port, and none any more.
	set(w, check("default/web", 32002, 1, 1))
	w.refused(node4, 32000)
	w.refused(node6, 32000)
	w.expect(node4, 32002, "default/web", 1)
	set(w, check("default/web", 0, 0, 0), check("never/there", 0, 0, 0))
	w.refused(node4, 32002)
	w.expect(node6, 32001, "shop/cart", 1)
	w.server.Close()
	w.refused(node6, 32001)
	set(w, check("default/web", 32000, 1, 1))
	w.server.SetAddresses(all[:1])
	w.refused(node4, 32000)
	w.reported()
}

func TestFamilies(t *testing.T) {
	w := newTestServer(t)
	w.server.SetAddresses(all)
	c := check("default/web", 32000, 1, 1)
	c.Serves[desired.IPv6] = false
	set(w, c)
	w.expect(node4, 32000, "default/web", 1)
	w.refused(node6, 32000)
	c.Serves = [2]bool{false, true}
	set(w, c)
	w.refused(node4, 32000)
	w.expect(node6, 32000, "default/web", 1)
	w.reported()
}

// Addresses change; the socket of one that stays is kept.
func TestAddresses(t *testing.T) {
	w := newTestServer(t)
	set(w, check("default/web", 32000, 1, 1))
	w.refused(node4, 32000)
	w.server.SetAddresses([]netip.Addr{node4, node6, netip.MustParseAddr("fe80::1"), node4})
	w.expect(node4, 32000, "default/web", 1)
	w.expect(node6, 32000, "default/web", 1)
	w.refused(other4, 32000)
	w.refused(other6, 32000)
	w.server.SetAddresses([]netip.Addr{node4, other6})
	w.expect(node4, 32000, "default/web", 1)
	w.refused(node6, 32000)
	w.expect(other6, 32000, "default/web", 1)
	w.server.SetAddresses([]netip.Addr{other6, node4})
	set(w, check("default/web", 32000, 2, 2))
	if want := []string{"tcp4 127.1.0.1:32000", "tcp6 [2001:db8::1]:32000", "tcp6 [2001:db8::2]:32000"}; !slices.Equal(w.listens, want) {
		t.Errorf("sockets: %q, want %q", w.listens, want)
	}

	// All of a family, and one of them again.
	w.server.SetAddresses([]netip.Addr{node4, netip.IPv4Unspecified(), other6})
	w.expect(other4, 32000, "default/web", 2)
	w.expect(node4, 32000, "default/web", 2)
	w.expect(other6, 32000, "default/web", 2)
	w.refused(node6, 32000)
	w.server.SetAddresses([]netip.Addr{node4})
	w.expect(node4, 32000, "default/web", 2)
	w.refused(other4, 32000)
	w.server.SetAddresses(nil)
	w.refused(node4, 32000)
	w.reported()
}

// A port that another program listens on is reported once and tried again when
// anything changes. All others are served.
func TestPortIsTaken(t *testing.T) {
	w := newTestServer(t)
	w.server.SetAddresses(all)
	squatter, err := w.listen("tcp4", "0.0.0.0:32000")
	w.check(err)
	set(w, check("default/web", 32000, 1, 1), check("shop/cart", 32001, 1, 1))
	const taken = "Service default/web: spec.healthCheckNodePort: cannot answer on port 32000: listen tcp4 0.0.0.0:32000: bind: address already in use"
	w.reported(taken)
	w.expect(node6, 32000, "default/web", 1) // the other addresses are served
	w.expect(node4, 32001, "shop/cart", 1)
	set(w, check("default/web", 32000, 2, 2))
	set(w, check("shop/cart", 32001, 2, 2))
	w.reported()
	w.expect(node6, 32000, "default/web", 2)
	squatter.Close()
	set(w, check("shop/cart", 32001, 3, 3))
	w.expect(node4, 32000, "default/web", 2)
	w.reported()

	// Of two Services with one port, the second gets it when the first is deleted.
	thief := func(port uint16) desired.HealthCheck {
		c := check("a/thief", port, 9, 9)
		c.Created = 1 // younger
		return c
	}
	set(w, thief(32001))
	const both = "Service a/thief: spec.healthCheckNodePort: cannot answer on port 32001: listen tcp4 0.0.0.0:32001: bind: address already in use; listen tcp6 [::]:32001: bind: address already in use, by Service shop/cart"
	w.reported(both)
	w.expect(node4, 32001, "shop/cart", 3)
	set(w, check("shop/cart", 0, 0, 0))
	w.expect(node4, 32001, "a/thief", 9)
	w.expect(node6, 32001, "a/thief", 9)

	// Also within one change, and in any order.
	set(w, check("shop/cart", 32003, 3, 3))
	set(w, check("shop/cart", 32001, 3, 3), thief(32003))
	w.expect(node4, 32001, "shop/cart", 3)
	w.expect(node4, 32003, "a/thief", 9)
	w.reported()

	// The same error after a success is reported again.
	w.server.SetAddresses(nil)
	squatter, err = w.listen("tcp4", "0.0.0.0:32000")
	w.check(err)
	w.server.SetAddresses(all)
	w.reported(taken)
	squatter.Close()
	w.server.SetAddresses(all[:1])
	w.expect(node4, 32000, "default/web", 2)
}

// A port is tried again from time to time.
func TestRetry(t *testing.T) {
	w := newTestServer(t)
	w.server.SetAddresses(all)
	squatter, err := w.listen("tcp6", "[::]:32000")
	w.check(err)
	set(w, check("default/web", 32000, 1, 1))
	w.expect(node4, 32000, "default/web", 1)
	squatter.Close()
	w.until(func() bool { return w.ask(node6, 32000) == answerText("200 OK", "default", "web", 1, true) })
}

func (w *testServer) until(ok func() bool) {
	w.t.Helper()
	for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(10 * time.Millisecond) {
		if ok() {
			return
		}
	}
	w.t.Fatal("waited in vain")
}

// breaking is a listener that fails on demand.
type breaking struct {
	net.Listener
	broken chan struct{}
}

func (b breaking) Accept() (net.Conn, error) {
	<-b.broken
	return nil, errors.New("it broke")
}

// A socket that fails is replaced.
func TestSocketFails(t *testing.T) {
	w := newTestServer(t)
	broken := make(chan struct{})
	first := true
	w.server.options.Listen = func(network, address string) (net.Listener, error) {
		l, err := w.listen(network, address)
		if first {
			first = false
			return breaking{l, broken}, err
		}
		return l, err
	}
	w.server.SetAddresses(all[:1])
	set(w, check("default/web", 32000, 1, 1))
	close(broken)
	w.until(func() bool {
		w.mu.Lock()
		defer w.mu.Unlock()
		return len(w.reports) > 0
	})
	w.reported("Service default/web: spec.healthCheckNodePort: cannot answer on port 32000: it broke")
	set(w, check("shop/cart", 32001, 1, 1))
	w.expect(node4, 32000, "default/web", 1)
	w.reported()
}

// A kept connection gets new answers after a change, and ends with the port.
func TestKeptConnection(t *testing.T) {
	w := newTestServer(t)
	w.server.SetAddresses(all)
	set(w, check("default/web", 32000, 1, 1))
	client := w.client()
	client.Transport.(*http.Transport).DisableKeepAlives = false
	get := func() (string, error) {
		r, err := client.Get("http://127.1.0.1:32000/any/path")
		if err != nil {
			return "", err
		}
		defer r.Body.Close()
		_, err = io.Copy(io.Discard, r.Body)
		return r.Header.Get("X-Load-Balancing-Endpoint-Weight"), err
	}
	for _, n := range []int{1, 7} {
		set(w, check("default/web", 32000, n, n))
		if got, err := get(); got != fmt.Sprint(n) || err != nil {
			t.Errorf("%q, %v; want %d", got, err, n)
		}
	}
	set(w, check("default/web", 0, 0, 0))
	if got, err := get(); err == nil {
		t.Errorf("answer %q on a closed port", got)
	}
}

// Everything at once, for the race detector. In the end, each Service has an answer. Meanwhile a port can be taken by a
// listener that was just closed: the kernel lets go of it once no look at its events is under way.
func TestConcurrently(t *testing.T) {
	w := newTestServer(t)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			for n := range 50 {
				set(w, check(fmt.Sprint("default/web-", i), uint16(32000+i), n%3, n%2))
				if n%5 == 0 {
					set(w, check(fmt.Sprint("default/web-", i), 0, 0, 0))
				}
				w.server.SetAddresses([][]netip.Addr{all, {node4, node6}, {node6}}[n%3])
			}
		})
		wg.Go(func() {
			for range 50 {
				w.ask(node6, uint16(32000+i))
			}
		})
	}
	wg.Wait()
	for i := range 4 {
		port := uint16(32000 + i)
		set(w, check(fmt.Sprint("default/web-", i), port, 1, 1))
		w.until(func() bool { return strings.Contains(w.ask(node6, port), fmt.Sprintf("%q", fmt.Sprint("web-", i))) })
	}
}

// TestSamePortInAnyOrder: which of two Services with one port gets it does not depend on which
// came first.
func TestSamePortInAnyOrder(t *testing.T) {
	a := desired.HealthCheck{Service: types.NamespacedName{Namespace: "default", Name: "a"}, Port: 32001, Serves: [2]bool{true, true}}
	b := a
	b.Service.Name = "b"
	var answers []string
	for _, order := range [][]desired.HealthCheck{{a, b}, {b, a}} {
		w := newTestServer(t)
		w.server.SetAddresses(all)
		for _, check := range order {
			w.server.Set([]desired.HealthCheck{check})
		}
		w.until(func() bool { return w.ask(node4, a.Port) != "refused" })
		answers = append(answers, w.ask(node4, a.Port))
	}
	if answers[0] != answers[1] {
		t.Errorf("in one order the answer is\n%s\nin the other\n%s", answers[0], answers[1])
	}
}
