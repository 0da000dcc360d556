// SPDX-License-Identifier: Apache-2.0

package server

import (
	"context"
	"encoding/json"
	"io"
	"net"
	"net/http"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/observe/events"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/component-base/logs"
	"k8s.io/klog/v2"
)

// state is a Proxy that is as the test says.
type state struct {
	sick, leaving atomic.Bool
	updated       atomic.Pointer[time.Time]
}

func (s *state) Healthy() bool      { return !s.sick.Load() }
func (s *state) NodeEligible() bool { return !s.leaving.Load() }
func (s *state) Updated() (t time.Time) {
	if at := s.updated.Load(); at != nil {
		t = *at
	}
	return t
}

// running is a Server that listens on loopback.
type running struct {
	t        *testing.T
	state    state
	recorded recorded
	ended    chan error
	stop     context.CancelFunc

	mu        sync.Mutex
	addresses map[string]string // by what was asked for
}

// recorded are the Events of a server.
type recorded struct {
	mu      sync.Mutex
	reasons []string
}

func (e *recorded) Normal(string, string)                          {}
func (e *recorded) OnService(types.NamespacedName, string, string) {}
func (e *recorded) Warning(reason, _ string) {
	e.mu.Lock()
	defer e.mu.Unlock()
	e.reasons = append(e.reasons, reason)
}

func (e *recorded) all() string {
	e.mu.Lock()
	defer e.mu.Unlock()
	return strings.Join(e.reasons, " ")
}

// start starts a Server, and returns once it listens wherever it can.
func start(t *testing.T, o Options) *running {
	t.Helper()
	r := &running{t: t, ended: make(chan error, 1), addresses: map[string]string{}}
	o.Listen = func(network, address string) (net.Listener, error) {
		l, err := net.Listen(network, address)
		r.mu.Lock()
		defer r.mu.Unlock()
		r.addresses[address] = ""
		if err == nil {
			r.addresses[address] = l.Addr().String()
		}
		return l, err
	}
	if o.Metrics == nil {
		o.Metrics = metrics.New()
		o.Metrics.OnMode(config.TraitsOf(config.NFTables).Metrics)
	}
	o.Proxy, o.Events = &r.state, &r.recorded
	ctx, cancel := context.WithCancel(t.Context())
	r.stop = cancel
	s := New(o)
	s.retry = 10 * time.Millisecond
	go func() { r.ended <- s.Run(ctx) }()
	want := 0
	for _, a := range []string{o.MetricsAddress, o.HealthzAddress} {
		if a != "" {
			want++
		}
	}
	r.until("it has tried to listen", func() bool {
		r.mu.Lock()
		defer r.mu.Unlock()
		return len(r.addresses) == want
	})
	return r
}

func (r *running) until(what string, ok func() bool) {
	r.t.Helper()
	for begin := time.Now(); time.Since(begin) < time.Minute; time.Sleep(5 * time.Millisecond) {
		if ok() {
			return
		}
	}
	r.t.Fatalf("waited in vain: %s", what)
}

// address is where it listens that was to listen there.
func (r *running) address(asked string) string {
	r.mu.Lock()
	defer r.mu.Unlock()
	return r.addresses[asked]
}

// end is what Run returns.
func (r *running) end() error {
	r.t.Helper()
	select {
	case err := <-r.ended:
		return err
	case <-time.After(time.Minute):
		r.t.Fatal("Run does not return")
		return nil
	}
}

// Two addresses on loopback, of ports that the kernel chooses. Other programs use 127.0.0.1, and
// could get a port that a test has released.
const (
	anyMetrics = "127.0.0.3:0"
	anyHealthz = "127.0.0.2:0"
)

// get sends a request and returns the answer.
func (r *running) get(asked, path string) (status int, body string, header http.Header) {
	r.t.Helper()
	return r.do("GET", asked, path, "")
}

func (r *running) do(method, asked, path, send string) (status int, body string, header http.Header) {
	r.t.Helper()
	q, err := http.NewRequestWithContext(r.t.Context(), method, "http://"+r.address(asked)+path, strings.NewReader(send))
	if err != nil {
		r.t.Fatal(err)
	}
	a, err := http.DefaultTransport.RoundTrip(q) // follows no redirections
	if err != nil {
		r.t.Fatal(err)
	}
	defer a.Body.Close()
	b, err := io.ReadAll(a.Body)
	if err != nil {
		r.t.Fatal(err)
	}
	return a.StatusCode, string(b), a.Header
}

func TestMetricsAddress(t *testing.T) {
	r := start(t, Options{
		MetricsAddress: anyMetrics, Mode: "nftables", Version: "v1.2.3",
		Configz: map[string]any{"kubeproxy.config.k8s.io": map[string]string{"kind": "KubeProxyConfiguration"}},
		Flags:   map[string]string{"v": "2", "config": "/etc/x"},
	})
	for _, c := range []struct{ path, kind, body string }{
		{"/proxyMode", "text/plain; charset=utf-8", "nftables"},
		{"/configz", "application/json", `{"kubeproxy.config.k8s.io":{"kind":"KubeProxyConfiguration"}}`},
		{"/healthz", "text/plain; charset=utf-8", "ok"},
		{"/healthz/ping", "text/plain; charset=utf-8", "ok"},
		{"/healthz?verbose", "text/plain; charset=utf-8", "[+]ping ok\nhealthz check passed\n"},
	} {
		status, body, header := r.get(anyMetrics, c.path)
		if status != 200 || body != c.body || header.Get("Content-Type") != c.kind || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %q, %v", c.path, status, body, header)
		}
	}
	for path, has := range map[string]string{
		"/metrics":      `kubeproxy_sync_proxy_rules_last_timestamp_seconds{ip_family="IPv4"} 0`,
		"/metrics/slis": `kubernetes_healthcheck{name="ping",type="healthz"} 1`,
		"/flagz":        "config=/etc/x\nv=2\n",
		"/statusz":      "/proxyMode",
	} {
		if status, body, _ := r.get(anyMetrics, path); status != 200 || !strings.Contains(body, has) {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
	for _, path := range []string{"/", "/livez", "/debug/pprof/", "/debug/flags/v"} {
		if status, body, _ := r.get(anyMetrics, path); status != 404 {
			t.Errorf("%s: %d %s", path, status, body)
		}
	}
}

func TestProfiling(t *testing.T) {
	defer func() { _, _ = logs.GlogSetter("0") }()
	r := start(t, Options{MetricsAddress: anyMetrics, Profiling: true})
	if status, body, _ := r.get(anyMetrics, "/debug/pprof/"); status != 200 || !strings.Contains(body, "goroutine") {
		t.Errorf("%d %s", status, body)
	}
	if status, _, header := r.get(anyMetrics, "/debug/pprof"); status != 302 || header.Get("Location") != "/debug/pprof/" {
		t.Errorf("%d, to %q", status, header.Get("Location"))
	}
	if status, _, _ := r.get(anyMetrics, "/debug/pprof/heap"); status != 200 {
		t.Errorf("heap: %d", status)
	}
	if status, body, _ := r.get(anyMetrics, "/debug/flags/v"); status != http.StatusNotAcceptable {
		t.Errorf("%d %s", status, body)
	}
	if status, body, _ := r.do("PUT", anyMetrics, "/debug/flags/v", "much"); status != http.StatusBadRequest {
		t.Errorf("%d %s", status, body)
	}
	if klog.V(5).Enabled() {
		t.Fatal("the log is verbose already")
	}
	if status, body, _ := r.do("PUT", anyMetrics, "/debug/flags/v", "5"); status != 200 || body != "successfully set klog.logging.verbosity to 5" {
		t.Errorf("%d %s", status, body)
	}
	if !klog.V(5).Enabled() {
		t.Error("the log is not more verbose")
	}
}

// answer is the body of kube-proxy's answers.
type answer struct {
	LastUpdated, CurrentTime time.Time
	NodeEligible             *bool
	Healthy                  bool
	Status                   map[string]struct {
		LastUpdated time.Time
		Healthy     bool
	}
}

func TestHealthz(t *testing.T) {
	m := metrics.New()
	m.OnMode(config.TraitsOf(config.NFTables).Metrics)
	r := start(t, Options{HealthzAddress: anyHealthz, MetricsAddress: anyMetrics, Metrics: m})
	ask := func(path string, want int) (a answer, body string) {
		t.Helper()
		status, body, header := r.get(anyHealthz, path)
		if status != want || header.Get("Content-Type") != "application/json" || header.Get("X-Content-Type-Options") != "nosniff" {
			t.Errorf("%s: %d %s, %v; want %d", path, status, body, header, want)
		}
		if err := json.Unmarshal([]byte(body), &a); err != nil {
			t.Fatal(err)
		}
		if a.CurrentTime.Before(time.Now().Add(-time.Minute)) {
			t.Errorf("%s: the time is %v", path, a.CurrentTime)
		}
		if (a.NodeEligible != nil) != (path == "/healthz") {
			t.Errorf("%s: nodeEligible in %s", path, body)
		}
		return a, body
	}
	// Before the kernel has had anything, in kube-proxy's order.
	a, body := ask("/healthz", 503)
	now, _ := json.Marshal(a.CurrentTime)
	if want := `{"lastUpdated":"0001-01-01T00:00:00Z","currentTime":` + string(now) + `,"nodeEligible":true,"healthy":true}`; body != want {
		t.Errorf("%s, want %s", body, want)
	}
	updated := time.Now().Add(-time.Hour).UTC()
	r.state.updated.Store(&updated)
	if a, body := ask("/livez", 200); !a.LastUpdated.Equal(a.CurrentTime) || len(a.Status) != 2 ||
		!a.Status["IPv4"].LastUpdated.Equal(updated) || !a.Status["IPv6"].Healthy {
		t.Errorf("well: %s", body)
	}
	ask("/healthz", 200)
	r.state.leaving.Store(true)
	if a, body := ask("/healthz", 503); *a.NodeEligible || !a.Healthy || !a.LastUpdated.Equal(updated) {
		t.Errorf("leaving: %s", body)
	}
	ask("/livez", 200)
	r.state.leaving.Store(false)
	r.state.sick.Store(true)
	if a, body := ask("/healthz", 503); !*a.NodeEligible || a.Healthy || a.Status["IPv4"].Healthy || !a.LastUpdated.Equal(updated) {
		t.Errorf("sick: %s", body)
	}
	ask("/livez", 503)
	_, text, _ := r.get(anyMetrics, "/metrics")
	for _, line := range []string{
		`kubeproxy_proxy_healthz_total{code="200"} 1`, `kubeproxy_proxy_healthz_total{code="503"} 3`,
		`kubeproxy_proxy_livez_total{code="200"} 2`, `kubeproxy_proxy_livez_total{code="503"} 1`,
	} {
		if !strings.Contains(text, line+"\n") {
			t.Errorf("no %s", line)
		}
	}
	if status, _, _ := r.get(anyHealthz, "/metrics"); status != 404 {
		t.Errorf("/metrics on the healthz address: %d", status)
	}
}

func TestStops(t *testing.T) {
	r := start(t, Options{HealthzAddress: anyHealthz, MetricsAddress: anyMetrics, HardFail: true})
	r.stop()
	if err := r.end(); err != nil {
		t.Error(err)
	}
	for _, a := range []string{anyMetrics, anyHealthz} {
		if c, err := net.Dial("tcp", r.address(a)); err == nil {
			c.Close()
			t.Errorf("something still listens on %s", r.address(a))
		}
	}
}

func TestNothingToServe(t *testing.T) {
	r := start(t, Options{})
	select {
	case err := <-r.ended:
		t.Fatalf("it ended: %v", err)
	case <-time.After(50 * time.Millisecond):
	}
	r.stop()
	if err := r.end(); err != nil {
		t.Error(err)
	}
}

// taken is an address with another listener.
func taken(t *testing.T) (address string, free func()) {
	l, err := net.Listen("tcp", "127.0.0.4:0")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { l.Close() })
	return l.Addr().String(), func() { l.Close() }
}

func TestAddressInUse(t *testing.T) {
	address, free := taken(t)
	r := start(t, Options{HealthzAddress: address, MetricsAddress: anyMetrics})
	r.until("an Event", func() bool { return r.recorded.all() != "" })
	time.Sleep(50 * time.Millisecond) // for more tries
	if got := r.recorded.all(); got != events.FailedToStartProxierHealthcheck {
		t.Errorf("Event %q", got)
	}
	if status, _, _ := r.get(anyMetrics, "/proxyMode"); status != 200 {
		t.Errorf("metrics without healthz: %d", status)
	}
	free()
	r.until("it listens after all", func() bool { return r.address(address) != "" })
	if status, body, _ := r.get(address, "/livez"); status != 200 {
		t.Errorf("%d %s", status, body)
	}
}

func TestHardFail(t *testing.T) {
	address, _ := taken(t)
	r := start(t, Options{HealthzAddress: anyHealthz, MetricsAddress: address, HardFail: true})
	err := r.end()
	if err == nil || !strings.HasPrefix(err.Error(), "metrics address "+address+": ") {
		t.Errorf("%v", err)
	}
	if got := r.recorded.all(); got != events.FailedToStartMetricServer {
		t.Errorf("Event %q", got)
	}
	if c, err := net.Dial("tcp", r.address(anyHealthz)); err == nil {
		c.Close()
		t.Error("healthz is still served")
	}
}

// TestBothFamilies checks that 0.0.0.0, kube-proxy's default, listens on all addresses of both
// families, and that an IPv6 address listens on IPv6 only.
func TestBothFamilies(t *testing.T) {
	if l, err := net.Listen("tcp6", "[::1]:0"); err != nil {
		t.Skip("no IPv6 here")
	} else {
		l.Close()
	}
	for _, all := range []string{"0.0.0.0:0", "[::]:0"} {
		r := start(t, Options{HealthzAddress: all})
		_, port, err := net.SplitHostPort(r.address(all))
		if err != nil {
			t.Fatal(err)
		}
		for _, ip := range []string{"127.0.0.1", "::1"} {
			a, err := http.Get("http://" + net.JoinHostPort(ip, port) + "/livez")
			if err != nil {
				t.Errorf("%s: %v", all, err)
				continue
			}
			a.Body.Close()
		}
		r.stop()
		if err := r.end(); err != nil {
			t.Error(err)
		}
	}
	r := start(t, Options{HealthzAddress: "[::1]:0"})
	if status, _, _ := r.get("[::1]:0", "/livez"); status != 200 {
		t.Error(status)
	}
}
