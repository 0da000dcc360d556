// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"
	"io"
	"net/http/httptest"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
	"k8s.io/utils/ptr"
)

// slice is an EndpointSlice of s1 with n endpoints, triggered then.
func slice(name string, n int, trigger string) source.Event {
	sl := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "default", Name: name,
			Labels:      map[string]string{discoveryv1.LabelServiceName: "s1"},
			Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: trigger},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
	}
	for i := range n {
		sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.0.%d", i+1)}})
	}
	return source.Event{Type: source.Set, Object: sl}
}

func ago(d time.Duration) string { return time.Now().Add(-d).Format(time.RFC3339Nano) }

// sample is the line of /metrics that starts like this, without that.
func (l *loop) sample(series string) string {
	l.t.Helper()
	w := httptest.NewRecorder()
	l.metrics.Handler(klog.Background()).ServeHTTP(w, httptest.NewRequest("GET", "/metrics", nil))
	body, err := io.ReadAll(w.Result().Body)
	if err != nil {
		l.t.Fatal(err)
	}
	for line := range strings.Lines(string(body)) {
		if v, ok := strings.CutPrefix(strings.TrimSpace(line), series+" "); ok {
			return v
		}
	}
	return "none"
}

func (l *loop) waitSample(series, want string) {
	l.t.Helper()
	l.until(series+" = "+want, func() bool { return l.sample(series) == want })
}

const latencies = `kubeproxy_network_programming_duration_seconds_count{ip_family="IPv4"}`

func TestNetworkProgrammingLatency(t *testing.T) {
	l := start(t, Options{})
	l.metrics.OnMode(config.TraitsOf(config.NFTables).Metrics)
	l.events <- []source.Event{service(1), slice("before", 1, ago(time.Hour)), synced}
	l.wait("full +s1")
	l.events <- []source.Event{slice("a", 2, ago(0))}
	l.waitSample(latencies, "1")
	for _, e := range []source.Event{
		slice("a", 2, ago(0)),          // nothing has changed but the time
		slice("a", 3, ago(time.Hour)),  // triggered before this proxy started
		slice("a", 4, "yesterday"),     // not a time
		slice("a", 5, ago(-time.Hour)), // of a clock that goes ahead
		slice("a", 6, "0001-01-01T00:00:00Z"),
	} {
		l.events <- []source.Event{e}
	}
	six := slice("six", 1, ago(0))
	six.Object.(*discoveryv1.EndpointSlice).AddressType = discoveryv1.AddressTypeIPv6
	six.Object.(*discoveryv1.EndpointSlice).Endpoints[0].Addresses[0] = "fd00::1"
	l.events <- []source.Event{six}
	l.waitSample(strings.Replace(latencies, "IPv4", "IPv6", 1), "1")
	if got := l.sample(latencies); got != "1" {
		t.Errorf("%s latencies of IPv4, want 1", got)
	}
	var lags []time.Duration
	if err := l.proxy.Inspect(t.Context(), func(i *Inspection) {
		for _, p := range i.Programmed {
			if p.Lag != 0 {
				lags = append(lags, p.Lag)
			}
		}
	}); err != nil || len(lags) == 0 || slices.Max(lags) > time.Minute*30 {
		t.Errorf("lags %v, error %v", lags, err)
	}
}

// TestForgedTriggers has slices whose triggers no controller can have written. Of many changes that wait, one counts.
func TestForgedTriggers(t *testing.T) {
	now := time.Now()
	all := triggers{now.Add(-24 * time.Hour), map[types.NamespacedName]trigger{}}
	for i, d := range []time.Duration{-time.Hour, oldestTrigger + time.Minute, oldestTrigger - time.Minute, time.Hour} {
		for range 100 {
			all.set(slice(fmt.Sprint(i), 1, ago(d)).Object.(*discoveryv1.EndpointSlice))
		}
	}
	if longest, n := all.done(now, metrics.New(), func(string) bool { return false }), len(all.waiting); n != 0 || longest < oldestTrigger-2*time.Minute || longest > oldestTrigger {
		t.Errorf("%v is the longest, %d wait", longest, n)
	}
	for range 100 {
		all.set(slice("x", 1, ago(0)).Object.(*discoveryv1.EndpointSlice))
	}
	if n := len(all.waiting); n != 1 {
		t.Errorf("%d triggers of a slice wait", n)
	}
}

// TestLatencyUntilTheKernelHasIt checks that the latency includes the time in which the kernel
// refuses the change.
func TestLatencyUntilTheKernelHasIt(t *testing.T) {
	l := start(t, Options{})
	l.metrics.OnMode(config.TraitsOf(config.NFTables).Metrics)
	l.events <- []source.Event{service(1), synced}
	l.wait("full +s1")
	l.set(func() { l.fail = slices.Repeat([]error{errors.New("refused")}, 1000) })
	l.events <- []source.Event{slice("a", 1, ago(0)), slice("b", 2, ago(0))}
	l.until("both are refused", func() bool { return failures(l, metrics.Full) > 0 })
	const pending = "kubeproxy_sync_proxy_rules_endpoint_changes_pending"
	if got := l.sample(pending); got != "2" {
		t.Errorf("%s pending, want 2", got)
	}
	if got := l.sample(latencies); got != "0" {
		t.Errorf("%s latencies before the kernel has it", got)
	}
	// The time of a deleted slice is not that of its deletion.
	gone := slice("b", 0, "")
	gone.Type = source.Delete
	l.events <- []source.Event{gone}
	l.waitSample("kubeproxy_sync_proxy_rules_endpoint_changes_total", "3")
	l.set(func() { l.fail = nil })
	l.waitSample(latencies, "1")
	l.waitSample(pending, "0")
	if got := l.sample(`kubeproxy_network_programming_duration_seconds_bucket{ip_family="IPv4",le="60"}`); got != "1" {
		t.Errorf("%s latencies of up to a minute, want 1", got)
	}
}
