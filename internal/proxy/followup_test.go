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
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// follower records the work that follows changes among the recorder's calls.
type follower struct{ *recorder }

func (f follower) Set(checks []desired.HealthCheck) {
	words := []string{"health"}
	for _, c := range checks {
		words = append(words, fmt.Sprintf("%s:%d=%d", c.Service.Name, c.Port, c.LocalEndpoints[desired.IPv4]))
	}
	slices.Sort(words[1:])
	f.note(strings.Join(words, " "))
}

func (f follower) SetAddresses(addrs []netip.Addr) { f.note(fmt.Sprint("addresses ", addrs)) }

func (f follower) Enqueue(flows []desired.StaleFlows) {
	words := []string{"stale"}
	for _, s := range flows {
		if s.Protocol == desired.TCP { // in each full content; see cmd/slipstream's TestSYNWithoutRules
			continue
		}
		only := ""
		if s.Only {
			only = " only"
		}
		words = append(words, fmt.Sprintf("%v%s %v", s.Frontends, only, s.Backends))
	}
	if len(words) > 1 {
		f.note(strings.Join(words, " "))
	}
}

func (r *recorder) note(call string) { r.set(func() { r.calls = append(r.calls, call) }) }

// balanced is a load-balanced Service with health checks.
func balanced(i int) source.Event {
	e := service(i)
	s := e.Object.(*corev1.Service)
	s.Spec.Type = corev1.ServiceTypeLoadBalancer
	s.Spec.ExternalTrafficPolicy = corev1.ServiceExternalTrafficPolicyLocal
	s.Spec.HealthCheckNodePort = int32(32000 + i)
	return e
}

// udp is a UDP Service.
func udp(i int) source.Event {
	e := service(i)
	e.Object.(*corev1.Service).Spec.Ports[0].Protocol = corev1.ProtocolUDP
	return e
}

// endpoints of service i, by the last byte of their addresses, on node "here".
func endpoints(i int, p corev1.Protocol, last ...int) source.Event {
	sl := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("s", i), Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("s", i)}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Name: ptr.To(""), Port: ptr.To(int32(80)), Protocol: &p}},
	}
	for _, n := range last {
		sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.1.%d.%d", i, n)}, NodeName: ptr.To("here")})
	}
	return source.Event{Type: source.Set, Object: sl}
}

// startFollowing starts a loop on node "here" that has followers.
func startFollowing(t *testing.T, c desired.Config, o Options) *loop {
	c.NodeName = "here"
	r := &recorder{}
	o.HealthChecks, o.StaleFlows = follower{r}, follower{r}
	l := startWith(t, r, desired.New(c), o)
	return l
}

func gone(e source.Event) source.Event { return source.Event{Type: source.Delete, Object: e.Object} }

const everywhere = "addresses [0.0.0.0 ::]"

func TestHealthChecksFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startFollowing(t, desired.Config{}, Options{})
		l.events <- []source.Event{balanced(1), endpoints(1, corev1.ProtocolTCP, 1, 2), synced}
		want := []string{"full +s1", everywhere, "health s1:32001=2"}
		l.wait(want...)

		// The same for changes that do not affect the kernel.
		l.events <- []source.Event{service(2)}
		l.events <- []source.Event{balanced(2)}
		l.waitFor("health s2:32002=0")

		// No work is lost if the kernel refuses changes, even if more changes follow.
		no := errors.New("no")
		l.set(func() { l.calls, l.fail = nil, []error{no, no} })
		l.events <- []source.Event{gone(balanced(1)), balanced(3), endpoints(3, corev1.ProtocolTCP, 1)}
		l.wait("change +s3 -s1", "full +s2 +s3")
		l.events <- []source.Event{endpoints(3, corev1.ProtocolTCP, 1, 2)}
		l.wait("change +s3 -s1", "full +s2 +s3", "full +s2 +s3", "health s1:0=0 s2:32002=0 s3:32003=2")
	})
}

// TestFormerFlows ends flows to Services that the kernel still has from an earlier run, and to those that another program
// has restored after they were deleted (test/model has both).
func TestFormerFlows(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		former := desired.New(desired.Config{})
		ApplyEvent(former, udp(1))
		kernel := dataplane.ContentOf(&former.Full().Change)
		e := &eyes{see: func(int) (*dataplane.Content, error) { return kernel, nil }}
		to := frontend(1)
		to.Protocol = desired.UDP
		l := startFollowing(t, desired.Config{}, Options{
			OpenReader: e.open, CheckPeriod: time.Second,
			FlowDestinations: func(context.Context) ([]desired.FrontendKey, error) { return []desired.FrontendKey{to}, nil },
		})
		const ended = "stale [10.96.0.1:80/UDP] only [10.96.0.1:80]"
		l.events <- []source.Event{synced}
		l.wait("full", everywhere, ended)
		l.set(func() { l.calls, l.check = nil, dataplane.ErrDamaged })
		l.wait("full", ended)
		l.set(func() { l.check = dataplane.ErrDamaged }) // also soon after the last repair
		l.wait("full", ended, "full", ended)
	})
}

func TestStaleFlowsFollow(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startFollowing(t, desired.Config{}, Options{})
		l.events <- []source.Event{udp(1), endpoints(1, corev1.ProtocolUDP, 1, 2), synced}
		l.wait("full +s1", everywhere, "stale [10.96.0.1:80/UDP] only [10.1.1.1:80 10.1.1.2:80]")
		l.set(func() { l.calls = nil })
		l.events <- []source.Event{endpoints(1, corev1.ProtocolUDP, 2)}
		l.wait("change", "stale [10.96.0.1:80/UDP] [10.1.1.1:80]")

		// None is lost when the kernel refuses.
		no := errors.New("no")
		l.set(func() { l.calls, l.fail = nil, []error{no, no} })
		l.events <- []source.Event{endpoints(1, corev1.ProtocolUDP, 3)}
		l.wait("change", "full +s1")
		l.events <- []source.Event{endpoints(1, corev1.ProtocolUDP, 4)}
		l.wait("change", "full +s1", "full +s1", "stale [10.96.0.1:80/UDP] [10.1.1.2:80] [10.96.0.1:80/UDP] only [10.1.1.4:80]")

		// Work that was done is not repeated.
		l.set(func() { l.calls = nil })
		l.events <- []source.Event{endpoints(1, corev1.ProtocolUDP, 5)}
		l.wait("change", "stale [10.96.0.1:80/UDP] [10.1.1.4:80]")

		// The same for flows of Services that were deleted, before and after a refused full content.
		l.events <- []source.Event{udp(2)}
		l.waitFor("stale [10.96.0.2:80/UDP] only []")
		l.set(func() { l.calls, l.fail = nil, []error{no, no} })
		l.events <- []source.Event{gone(udp(1))}
		l.wait("change -s1", "full +s2")
		l.events <- []source.Event{gone(udp(2))}
		l.wait("change -s1", "full +s2", "full", "stale [10.96.0.1:80/UDP] only [10.96.0.1:80] [10.96.0.2:80/UDP] only [10.96.0.2:80]")
	})
}

// Something changes that everything depends on.
func TestRebuild(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startFollowing(t, desired.Config{DetectLocal: desired.DetectLocal{Mode: desired.ByNodeCIDR}}, Options{})
		l.events <- []source.Event{service(1), synced}
		l.wait("full +s1", everywhere)
		node := &corev1.Node{ObjectMeta: metav1.ObjectMeta{Name: "here"}, Spec: corev1.NodeSpec{PodCIDRs: []string{"10.1.0.0/24"}}}
		l.events <- []source.Event{{Type: source.Set, Object: node}, service(2)}
		l.wait("full +s1", everywhere, "full +s1 +s2")
		l.events <- []source.Event{service(3)}
		l.wait("full +s1", everywhere, "full +s1 +s2", "change +s3")
		// One that is refused is tried again, and not at once.
		l.set(func() { l.calls, l.fail = nil, []error{errors.New("no")} })
		node = node.DeepCopy()
		node.Spec.PodCIDRs = []string{"10.1.1.0/24"}
		begin := time.Now()
		l.events <- []source.Event{{Type: source.Set, Object: node}}
		l.wait("full +s1 +s2 +s3", "full +s1 +s2 +s3")
		if took := time.Since(begin); took < 100*time.Millisecond {
			t.Errorf("tried again within %v", took)
		}
		if n := failures(l, "change"); n != 0 {
			t.Errorf("%v changes were refused", n)
		}
	})
}

// script of lists of addresses.
type addressScript chan []netip.Addr

func (s addressScript) run(ctx context.Context, deliver func([]netip.Addr)) error {
	for {
		select {
		case addrs, open := <-s:
			if !open {
				return errors.New("no more")
			}
			deliver(addrs)
		case <-ctx.Done():
			return nil
		}
	}
}

func TestNodeAddresses(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		s := make(addressScript)
		all := desired.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("192.0.2.0/24"), netip.MustParsePrefix("2001:db8::/64")}}
		l := startFollowing(t, desired.Config{NodePorts: all}, Options{NodeAddresses: s.run})
		e := service(1)
		spec := &e.Object.(*corev1.Service).Spec
		spec.Type, spec.Ports[0].NodePort = corev1.ServiceTypeNodePort, 30001
		l.events <- []source.Event{e, synced}
		time.Sleep(100 * time.Millisecond) // enough for a sync that must not be
		l.wait()
		a, b := netip.MustParseAddr("192.0.2.1"), netip.MustParseAddr("192.0.2.2")
		s <- []netip.Addr{a}
		l.wait("full +192.0.2.1 +s1 +s1", "addresses [192.0.2.1]")
		s <- []netip.Addr{a, netip.MustParseAddr("198.51.100.1")} // not selected; only IPVS mode needs it
		s <- []netip.Addr{a, b}
		l.wait("full +192.0.2.1 +s1 +s1", "addresses [192.0.2.1]", "change", "change +192.0.2.2", "addresses [192.0.2.1 192.0.2.2]")

		// Health checks follow only when the kernel has the addresses too.
		l.set(func() { l.calls, l.fail = nil, []error{errors.New("no"), errors.New("no")} })
		s <- []netip.Addr{b}
		l.wait("change -192.0.2.1", "full +192.0.2.2 +s1 +s1", "full +192.0.2.2 +s1 +s1", "addresses [192.0.2.2]")

		close(s)
		if err := <-l.done; err == nil || !strings.Contains(err.Error(), "no more") {
			t.Errorf("the addresses ended, Run returned %v", err)
		}
	})
}

func TestHealthy(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		l := startFollowing(t, desired.Config{}, Options{})
		l.events <- []source.Event{synced}
		l.wait("full", everywhere)
		healthy := func(want bool) {
			t.Helper()
			l.until(fmt.Sprint("Healthy is ", want), func() bool { return l.proxy.Healthy() == want })
		}
		ago := func(d time.Duration) {
			t.Helper()
			l.until("a change waits", func() bool { return l.proxy.lateness.since.Load() != nil })
			l.proxy.lateness.since.Store(ptr.To(time.Now().Add(-d)))
		}
		healthy(true)
		busy := make(chan struct{})
		l.set(func() { l.busy, l.fail = busy, slices.Repeat([]error{errors.New("no")}, 100) })
		l.events <- []source.Event{service(1)}
		healthy(true)
		ago(lateAfter - 30*time.Second)
		healthy(true)
		ago(lateAfter)
		healthy(false)

		// It fails and is tried again: late is counted from the first time.
		l.set(func() { l.busy = nil })
		close(busy)
		l.wait("full", everywhere, "change +s1", "full +s1", "full +s1")
		if l.proxy.Healthy() {
			t.Error("healthy after failures")
		}
		l.set(func() { l.fail = nil })
		healthy(true)
	})
}
