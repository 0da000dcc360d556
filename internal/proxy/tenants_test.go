// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

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

// TestEventsWaitForALargeChange has the endpoints of 65 ports replaced three times while the first replacement is only in
// part in the kernel. The second is never programmed, the third is, and another namespace's Service does not wait.
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
	p.applyBatch([]source.Event{{Type: source.Set, Object: large}, endpoints(1), synced})
	sync()
	p.applyBatch([]source.Event{endpoints(2)})
	sync()
	if got := has(); !p.pending || !slices.Equal(got, []string{"10.1", "10.2"}) {
		t.Fatalf("pending %t, the kernel has endpoints of %v", p.pending, got)
	}
	p.applyBatch([]source.Event{endpoints(3), service(1)})
	p.applyBatch([]source.Event{endpoints(4)})
	n := len(r.calls)
	for i := 0; p.pending && i < 100; i++ {
		sync()
		if got := has(); slices.Contains(got, "10.3") {
			t.Fatalf("an endpoint of a former version is programmed: %v", got)
		}
	}
	if got := has(); p.pending || len(p.aside) != 0 || !slices.Equal(got, []string{"10.4"}) || !strings.Contains(r.calls[n], "+s1") {
		t.Errorf("pending %t, %d events wait, the kernel has endpoints of %v; the next change is %s", p.pending, len(p.aside), got, r.calls[n])
	}
}
