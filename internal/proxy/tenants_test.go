// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/http"
	"net/http/httptest"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/go-logr/logr"
	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// picky is a dataplane that refuses whatever has a frontend of Service s2, until it is not picky any more.
type picky struct {
	*recorder
	ended   *atomic.Bool
	unnamed bool // it does not say what it refuses
}

func (p picky) refuse(c *desired.Change) error {
	for _, f := range c.Frontends {
		if f.New != nil && f.New.Service.Name == "s2" && !p.ended.Load() {
			refusal := &dataplane.Refusal{Service: f.New.Service, Err: errors.New("no such thing")}
			if p.unnamed {
				refusal.Service = desired.ServicePort{}
			}
			return refusal
		}
	}
	return nil
}

func (p picky) Reconcile(ctx context.Context, c *desired.Change) (s dataplane.Stats, err error) {
	if err := p.refuse(c); err != nil {
		return s, err
	}
	return p.recorder.Reconcile(ctx, c)
}

func (p picky) Apply(ctx context.Context, c *desired.Change) (s dataplane.Stats, err error) {
	if err := p.refuse(c); err != nil {
		return s, err
	}
	return p.recorder.Apply(ctx, c)
}

// TestRefusedService has the kernel refuse one Service for ever. The others are programmed.
func TestRefusedService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		var ended atomic.Bool
		events := make(script)
		p := New(events, desired.New(desired.Config{}), picky{r, &ended, false}, metrics.New(), Options{CheckPeriod: time.Second})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		for _, e := range []source.Event{service(1), synced, service(2), service(3)} {
			events <- []source.Event{e}
			time.Sleep(time.Minute)
		}
		has := func(call string) (has bool) {
			r.set(func() { has = slices.Contains(r.calls, call) })
			return has
		}
		if !has("change +s3") {
			t.Errorf("s3 is not programmed: %q", r.calls)
		}
		if ended.Store(true); has("change +s2") {
			t.Error("s2 is programmed")
		}
		time.Sleep(2 * leaveOutFor)
		if !has("change +s2") {
			t.Errorf("s2 is not tried again: %q", r.calls)
		}
		stop()
		<-done
	})
}

// TestRefusalForNoService has the dataplane refuse everything for a while, without a Service. It programs all of them
// soon after that.
func TestRefusalForNoService(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := start(t, Options{CheckPeriod: time.Second})
		l.events <- []source.Event{service(1), synced}
		l.wait("full +s1")
		l.set(func() {
			l.calls = nil
			l.fail = slices.Repeat([]error{&dataplane.Refusal{Err: errors.New("no")}}, 4) // the change and all halves of it
			l.fail = append(l.fail, errors.New("no"))
		})
		l.events <- []source.Event{service(2), service(3), service(4)}
		time.Sleep(time.Minute)
		l.set(func() {
			if last := l.calls[len(l.calls)-1]; last != "full +s1 +s2 +s3 +s4" {
				t.Errorf("%q", l.calls)
			}
		})
	})
}

// TestUnnamedRefusal has the kernel refuse one Service of a change without its name. Half of the change is programmed
// at once, and the others of it step by step.
func TestUnnamedRefusal(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		r := &recorder{}
		var ended atomic.Bool
		events := make(script)
		p := New(events, desired.New(desired.Config{}), picky{r, &ended, true}, metrics.New(), Options{CheckPeriod: time.Second})
		ctx, stop := context.WithCancel(t.Context())
		done := make(chan error, 1)
		go func() { done <- p.Run(ctx) }()
		want := func(when string, programmed ...string) {
			t.Helper()
			time.Sleep(time.Minute)
			var last string
			r.set(func() { last = strings.Join(r.calls, ", ") })
			for _, s := range []string{"s1", "s2", "s3", "s4", "s5"} {
				if strings.Contains(last, s) != slices.Contains(programmed, s) {
					t.Errorf("%s: %s; %q", when, s, last)
				}
			}
		}
		events <- []source.Event{service(1)}
		events <- []source.Event{synced}
		want("the start", "s1")
		events <- []source.Event{service(2), service(3), service(4)}
		want("at first", "s1", "s4")
		events <- []source.Event{service(5)}
		want("another change", "s1", "s4", "s5")
		time.Sleep(leaveOutFor)
		want("the innocent one is back", "s1", "s3", "s4", "s5")
		ended.Store(true)
		time.Sleep(leaveOutFor)
		want("all are", "s1", "s2", "s3", "s4", "s5")
		stop()
		<-done
	})
}

// TestEventsWaitForALargeChange has the endpoints of 65 ports replaced again before each part of a large change. Of the
// many versions, only the last one at the end of each change is applied, and another namespace's Services never wait.
func TestEventsWaitForALargeChange(t *testing.T) {
	r := &recorder{}
	p := New(make(script), desired.New(desired.Config{}), r, metrics.New(), Options{CheckPeriod: time.Second})
	large := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "x", Name: "large"}, Spec: corev1.ServiceSpec{ClusterIP: "10.96.9.9"}}
	sl := discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "x", Name: "large", Labels: map[string]string{discoveryv1.LabelServiceName: "large"}},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	for i := range int32(65) {
		name := fmt.Sprint("p", i)
		large.Spec.Ports = append(large.Spec.Ports, corev1.ServicePort{Name: name, Port: i + 1})
		sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: &name, Port: ptr.To(i + 1)})
	}
	endpoints := func(net int) source.Event {
		out := sl.DeepCopy()
		for i := range 1000 {
			out.Endpoints = append(out.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", net, i>>8, i&255)}})
		}
		return source.Event{Type: source.Set, Object: out}
	}
	sync := func() {
		t.Helper()
		p.lateness.waiting()
		p.sync(t.Context())
	}
	has := func() (nets []string) {
		for _, pool := range p.state.Reported().Pools {
			for _, b := range pool.Added {
				nets = append(nets, strings.Join(strings.Split(b.String(), ".")[:2], "."))
			}
		}
		slices.Sort(nets)
		return slices.Compact(nets)
	}
	p.metrics.OnMode(config.TraitsOf(config.NFTables).Metrics)
	applied := func() (n int) {
		w := httptest.NewRecorder()
		p.metrics.Handler(logr.Discard()).ServeHTTP(w, httptest.NewRequest(http.MethodGet, "/metrics", nil))
		const name = "\nkubeproxy_sync_proxy_rules_endpoint_changes_total "
		_, after, _ := strings.Cut(w.Body.String(), name)
		if _, err := fmt.Sscan(after, &n); err != nil {
			t.Fatal(err)
		}
		return n
	}
	p.applyBatch([]source.Event{{Type: source.Set, Object: large}, endpoints(1), synced})
	sync()
	version := 1
	for ; version < 250; version++ {
		n := len(r.calls)
		p.applyBatch([]source.Event{endpoints(version + 1), service(version)})
		sync()
		if victim := fmt.Sprint("+s", version); len(r.calls) != n+1 || !slices.Contains(strings.Fields(r.calls[n]), victim) {
			t.Fatalf("%v lacks %s", r.calls[n:], victim)
		}
		if got := has(); len(got) > 2 {
			t.Fatalf("the kernel has endpoints of %v", got)
		}
	}
	for p.pending {
		sync()
	}
	if got := has(); len(p.held) != 0 || !slices.Equal(got, []string{fmt.Sprint("10.", version)}) {
		t.Errorf("%d events wait, the kernel has endpoints of %v", len(p.held), got)
	}
	if n := applied(); n > 1+5+1 { // a change takes 127 syncs or so
		t.Errorf("%d of %d versions are applied", n, version)
	}
}

// TestHeldEventsAreInOrder: after a failure, a later event of an object does not precede an earlier one that was held.
func TestHeldEventsAreInOrder(t *testing.T) {
	r := &recorder{}
	p := New(make(script), desired.New(desired.Config{NamespaceChange: 1}), r, metrics.New(), Options{CheckPeriod: time.Second})
	deleted := func(i int) source.Event { e := service(i); e.Type = source.Delete; return e }
	slice := func(i int, ip string) source.Event {
		return source.Event{Type: source.Set, Object: &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: service(i).Object.GetNamespace(), Name: fmt.Sprint("sl", i), Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("s", i)}},
			AddressType: discoveryv1.AddressTypeIPv4, Ports: []discoveryv1.EndpointPort{{Port: ptr.To[int32](80)}}, Endpoints: []discoveryv1.Endpoint{{Addresses: []string{ip}}},
		}}
	}
	sync := func() {
		p.lateness.waiting()
		p.sync(t.Context())
	}
	p.applyBatch([]source.Event{service(1), service(2), synced})
	sync()
	p.applyBatch([]source.Event{slice(1, "10.1.0.1"), slice(2, "10.1.0.2")})
	sync()
	if !p.pending {
		t.Fatal("the change is not split")
	}
	p.applyBatch([]source.Event{service(3)})
	r.fail = []error{errors.New("no"), errors.New("no")}
	sync()
	p.applyBatch([]source.Event{deleted(3)})
	for range 3 {
		sync()
	}
	if n := p.state.Services(); n != 2 {
		t.Errorf("there are %d Services", n)
	}
}
