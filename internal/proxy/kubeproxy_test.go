// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"errors"
	"fmt"
	"strconv"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// noted counts Events by their reason.
type noted struct {
	mu      sync.Mutex
	reasons map[string]int
}

func (n *noted) Warning(reason, _ string) {
	n.mu.Lock()
	defer n.mu.Unlock()
	if n.reasons == nil {
		n.reasons = map[string]int{}
	}
	n.reasons[reason]++
}

func (n *noted) OnService(service types.NamespacedName, reason, note string) {
	n.Warning(reason+" on "+service.String()+": "+note, "")
}

func (n *noted) count(reason string) int {
	n.mu.Lock()
	defer n.mu.Unlock()
	return n.reasons[reason]
}

// TestKubeProxyCounts checks kube-proxy's metrics during a start, a change, a refused change
// and a repair.
func TestKubeProxyCounts(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var reported noted
		l := start(t, Options{CheckPeriod: time.Millisecond, Events: &reported})
		l.metrics.OnMode(config.TraitsOf(config.IPTables).Metrics)
		want := func(series, value string) {
			t.Helper()
			l.waitSample("kubeproxy_"+series, value)
		}
		stamp := func(name string) float64 {
			v, err := strconv.ParseFloat(l.sample("kubeproxy_sync_proxy_rules_"+name+`{ip_family="IPv6"}`), 64)
			if err != nil {
				t.Fatal(err)
			}
			return v
		}
		l.events <- []source.Event{service(1), service(2)}
		want("sync_proxy_rules_service_changes_total", "2")
		want("sync_proxy_rules_service_changes_pending", "2")
		if last, queued := stamp("last_timestamp_seconds"), stamp("last_queued_timestamp_seconds"); last != 0 || queued == 0 {
			t.Errorf("queued at %f, programmed at %f", queued, last)
		}
		l.events <- []source.Event{synced}
		want("sync_proxy_rules_service_changes_pending", "0")
		if last, queued := stamp("last_timestamp_seconds"), stamp("last_queued_timestamp_seconds"); last < queued {
			t.Errorf("queued at %f, programmed at %f", queued, last)
		}
		if l.proxy.Updated().IsZero() {
			t.Error("it says that it has never been updated")
		}
		want(`sync_full_proxy_rules_duration_seconds_count{ip_family="IPv6"}`, "1")
		l.events <- []source.Event{service(3)}
		want(`sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv4"}`, "1")
		want(`sync_proxy_rules_duration_seconds_count{ip_family="IPv4"}`, "2")
		want(`sync_partial_proxy_rules_duration_seconds_count{ip_family="IPv6"}`, "0") // it was not about IPv6

		refused := errors.New("refused")
		l.set(func() { l.fail = []error{refused, refused} })
		l.events <- []source.Event{service(4)}
		want(`sync_proxy_rules_iptables_partial_restore_failures_total{ip_family="IPv4"}`, "1")
		want(`sync_proxy_rules_iptables_partial_restore_failures_total{ip_family="IPv6"}`, "0")
		want(`sync_proxy_rules_iptables_restore_failures_total{ip_family="IPv4"}`, "2")
		want(`sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"}`, "3") // one failed
		if n := reported.count("FailedToProgram"); n != 1 {
			t.Errorf("a failure was reported %d times", n)
		}
		l.set(func() { l.check = dataplane.ErrDamaged })
		want(`sync_full_proxy_rules_duration_seconds_count{ip_family="IPv4"}`, "4")
		if n := reported.count("Damaged"); n != 1 {
			t.Errorf("damage was reported %d times", n)
		}
	})
}

// TestProblemsOfServices sets a Service with an invalid address and with an external IP that an
// older Service has.
func TestProblemsOfServices(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events noted
		l := start(t, Options{Events: &events})
		older, younger := service(1), service(2)
		for i, e := range []source.Event{older, younger} {
			svc := e.Object.(*corev1.Service)
			svc.Spec.ExternalIPs = []string{"192.0.2.1", "192.0.2.300"}[:1+i]
			svc.CreationTimestamp = metav1.Unix(int64(1+i), 0)
		}
		l.events <- []source.Event{older, younger, synced}
		const metric = `slipstream_contested_frontends{namespace="default",service="s2"}`
		l.waitSample(metric, "1")
		for _, want := range []string{
			"FrontendContested on default/s2: spec.ports: 192.0.2.1:80/TCP belongs to Service default/s1 as its external IP",
			"InvalidService on default/s2: spec.externalIPs[1]: not an IP address: 192.0.2.300",
		} {
			if events.count(want) != 1 {
				t.Errorf("no Event %q; there are %v", want, events.reasons)
			}
		}
		l.events <- []source.Event{{Type: source.Delete, Object: older.Object}}
		l.waitSample(metric, "none")
	})
}

// TestRefusedByKernel: what a dataplane has left out is an Event on its Service, and the proxy is well.
func TestRefusedByKernel(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var events noted
		l := start(t, Options{Events: &events})
		l.set(func() {
			l.refused = []desired.Problem{{Object: "Service default/s1", Field: "endpoint 192.0.2.255:80", Reason: "refused", Service: types.NamespacedName{Namespace: "default", Name: "s1"}}}
		})
		l.events <- []source.Event{service(1), synced}
		l.waitSample("slipstream_object_problems_total", "1")
		if want := "InvalidService on default/s1: endpoint 192.0.2.255:80: refused"; events.count(want) != 1 || !l.proxy.Healthy() {
			t.Errorf("Events %v, healthy: %t", events.reasons, l.proxy.Healthy())
		}
	})
}

func node(name string, change func(*corev1.Node)) source.Event {
	n := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: name}}
	change(n)
	return source.Event{Type: source.Set, Object: n}
}

func TestNodeEligible(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		whole := func(*corev1.Node) {}
		deleted := func(n *corev1.Node) { n.DeletionTimestamp = &metav1.Time{Time: time.Now()} }
		tainted := func(key string) func(*corev1.Node) {
			return func(n *corev1.Node) { n.Spec.Taints = []corev1.Taint{{Key: "a"}, {Key: key}} }
		}
		l := start(t, Options{NodeName: "here", NodeRequired: true})
		if l.proxy.NodeEligible() {
			t.Error("a node is eligible of which there is no object")
		}
		if other := start(t, Options{}); !other.proxy.NodeEligible() {
			t.Error("a node is not eligible for want of an object that is not needed")
		}
		gone := node("here", whole)
		gone.Type = source.Delete
		l.events <- []source.Event{synced}
		l.wait("full")
		for i, step := range []struct {
			what string
			e    source.Event
			want bool
		}{
			{"there it is", node("here", whole), true},
			{"being deleted", node("here", deleted), false},
			{"not any more", node("here", tainted("b")), true},
			{"another one is being deleted", node("there", deleted), true},
			{"the autoscaler's taint", node("here", tainted("ToBeDeletedByClusterAutoscaler")), false},
			{"gone", gone, false},
			{"there it is again", node("here", whole), true},
			{"gone without a warning", gone, true},
		} {
			l.events <- []source.Event{step.e, service(i + 1)}
			l.waitFor(fmt.Sprintf("change +s%d", i+1)) // it has been taken
			if got := l.proxy.NodeEligible(); got != step.want {
				t.Errorf("%s: eligible is %t", step.what, got)
			}
		}
	})
}
