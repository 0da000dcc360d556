// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// slowFastPath is a fast path that returns from a call when the test says so.
type slowFastPath struct {
	t       *testing.T
	calls   chan string
	answers chan error
}

func newSlowFastPath(t *testing.T) slowFastPath {
	return slowFastPath{t, make(chan string, 100), make(chan error)}
}

func (f slowFastPath) call(ctx context.Context, kind string, c *desired.Change) error {
	words := []string{kind}
	for _, fc := range c.Frontends {
		if fc.Old != nil {
			words = append(words, "-"+fc.Old.Service.Name)
		}
		if fc.New != nil {
			words = append(words, "+"+fc.New.Service.Name)
		}
	}
	for m, added := range c.Sets[desired.SlowPathIPs].All() {
		words = append(words, map[bool]string{true: "+", false: "-"}[added]+m.String())
	}
	words = append(words, addressesOf(c)...)
	slices.Sort(words[1:])
	f.calls <- strings.Join(words, " ")
	select {
	case err := <-f.answers:
		return err
	case <-ctx.Done():
		return ctx.Err()
	}
}

func (f slowFastPath) Reconcile(ctx context.Context, c *desired.Change) (dataplane.Stats, error) {
	return dataplane.Stats{}, f.call(ctx, "full", c)
}

func (f slowFastPath) Apply(ctx context.Context, c *desired.Change) (dataplane.Stats, error) {
	return dataplane.Stats{}, f.call(ctx, "change", c)
}

func (f slowFastPath) Check(ctx context.Context) error {
	return f.call(ctx, "check", &desired.Change{})
}

// wants fails the test unless the next call is this one.
func (f slowFastPath) wants(call string) {
	f.t.Helper()
	select {
	case got := <-f.calls:
		if got != call {
			f.t.Fatalf("the fast path was called with %q, want %q", got, call)
		}
	case <-time.After(time.Minute): // of the test's clock
		f.t.Fatalf("the fast path was not called with %q", call)
	}
}

// wantsNone fails the test if the fast path is called.
func (f slowFastPath) wantsNone() {
	f.t.Helper()
	synctest.Wait()
	select {
	case got := <-f.calls:
		f.t.Fatalf("the fast path was called with %q", got)
	default:
	}
}

// TestFastPathDelaysNothing changes Services while the fast path is busy. Programming, health
// checks and the deletion of stale flows continue, and the fast path then receives all changes
// in one call.
func TestFastPathDelaysNothing(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlowFastPath(t)
		l := startFollowing(t, desired.Config{}, Options{FastPath: f})
		l.events <- []source.Event{udp(1), endpoints(1, corev1.ProtocolUDP, 1), balanced(2), synced}
		calls := []string{"full +s1 +s2", everywhere, "health s2:32002=0", "stale [10.96.0.1:80/UDP] only [10.1.1.1:80]"}
		l.wait(calls...)
		f.wants("full +s1 +s2")

		for _, batch := range [][]source.Event{{service(3)}, {service(4)}, {gone(service(3)), gone(balanced(2))}, {endpoints(1, corev1.ProtocolUDP, 2)}} {
			l.events <- batch
			synctest.Wait()
		}
		l.wait(append(calls, "change +s3", "change +s4", "change -s2 -s3", "health s2:0=0", "change", "stale [10.96.0.1:80/UDP] [10.1.1.1:80]")...)
		f.wantsNone()
		f.answers <- nil
		f.wants("change +s4 -s2")

		// After a refusal it receives the full content, with all changes since.
		l.events <- []source.Event{service(5)}
		l.waitFor("change +s5")
		f.answers <- errors.New("no")
		f.wants("full +s1 +s4 +s5")
		l.events <- []source.Event{service(6)}
		l.waitFor("change +s6")
		f.answers <- errors.New("no")
		f.wantsNone()
		l.events <- []source.Event{service(7)}
		l.waitFor("change +s7")
		f.wantsNone() // not at once
	})
}

// TestPodsOptOut annotates pods while the fast path is busy. It then receives what differs.
func TestPodsOptOut(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlowFastPath(t)
		l := startFollowing(t, desired.Config{}, Options{FastPath: f})
		pod := func(n int, fastPath string) source.Event {
			return source.Event{Type: source.Set, Object: &corev1.Pod{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("p", n), Annotations: map[string]string{desired.AnnotationFastPath: fastPath}},
				Status:     corev1.PodStatus{PodIPs: []corev1.PodIP{{IP: fmt.Sprint("10.0.0.", n)}}},
			}}
		}
		namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "default", Annotations: map[string]string{desired.AnnotationFastPath: "off"}}}
		l.events <- []source.Event{pod(1, "off"), service(1), synced}
		f.wants("full +10.0.0.1 +s1")
		for _, e := range []source.Event{pod(2, "off"), pod(3, "off"), pod(1, "on"), pod(2, "on"), pod(1, "off")} {
			l.events <- []source.Event{e}
			synctest.Wait()
		}
		f.wantsNone()
		f.answers <- nil
		f.wants("change +10.0.0.3")
		f.answers <- nil
		l.events <- []source.Event{gone(pod(3, ""))}
		f.wants("change -10.0.0.3")
		f.answers <- nil
		l.events <- []source.Event{{Type: source.Set, Object: namespace}}
		f.wants("change +10.0.0.2 +s1 -s1")
		f.answers <- errors.New("no")
		f.wants("full +10.0.0.1 +10.0.0.2 +s1")
		f.answers <- nil
		l.events <- []source.Event{{Type: source.Delete, Object: namespace}}
		f.wants("change +s1 -10.0.0.2 -s1")
		f.answers <- nil
	})
}

// TestFastPathAddresses changes the addresses that serve NodePorts while the fast path is busy. It
// then receives the difference.
func TestFastPathAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f, s := newSlowFastPath(t), make(addressScript)
		l := startFollowing(t, desired.Config{}, Options{FastPath: f, NodeAddresses: s.run})
		addrs := []netip.Addr{netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2"), netip.MustParseAddr("192.0.2.3")}
		l.events <- []source.Event{service(1), synced}
		s <- addrs[:2]
		f.wants("full +192.0.2.1 +192.0.2.2 +s1")
		for _, now := range [][]netip.Addr{addrs, addrs[1:], addrs[1:2]} {
			s <- now
			time.Sleep(time.Second) // of the test's clock
			synctest.Wait()
		}
		f.answers <- nil
		f.wants("change -192.0.2.1")
		f.answers <- nil
		s <- addrs[1:]
		f.wants("change +192.0.2.3")
	})
}

// TestFastPathIsProgrammedAgain makes the fast path refuse its content, and damages it.
func TestFastPathIsProgrammedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		f := newSlowFastPath(t)
		l := startFollowing(t, desired.Config{}, Options{FastPath: f, CheckPeriod: time.Second})
		l.events <- []source.Event{service(1), synced}
		for range 3 {
			f.wants("full +s1")
			f.answers <- errors.New("no")
		}
		f.wants("full +s1")
		f.answers <- nil
		f.wants("check")
		f.answers <- errors.New("cannot say")
		f.wants("check")
		f.answers <- fmt.Errorf("%w: gone", dataplane.ErrDamaged)
		f.wants("full +s1")

		// Everything is programmed again during a call, which is then outdated.
		l.set(func() { l.fail = []error{errors.New("no")} })
		l.events <- []source.Event{service(2)}
		l.waitFor("full +s1 +s2")
		f.answers <- nil
		f.wants("full +s1 +s2")
		f.answers <- nil
		f.wants("check")
		l.stop()
		if err := <-l.done; err != nil {
			t.Error(err)
		}
	})
}
