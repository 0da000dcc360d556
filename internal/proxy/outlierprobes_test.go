// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"syscall"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// clinic is a proxy whose handshakes and probes a test makes up.
type clinic struct {
	*Proxy
	handshakes []desired.Handshake
	probes     atomic.Int32
	answer     error // of probes
	hang       bool  // probes take their whole time
}

func (c *clinic) Update(context.Context, bool, func(desired.FrontendKey, desired.Backend) string) error {
	return nil
}
func (c *clinic) Handshakes() []desired.Handshake { return c.handshakes }
func (c *clinic) Stop() error                     { return nil }

func newClinic(namespaces, endpoints int) *clinic {
	c := &clinic{}
	c.Proxy = New(script(nil), desired.New(desired.Config{}), &free{}, metrics.New(), Options{Loads: c, Probe: func(ctx context.Context, _ desired.Target, _ bool) error {
		c.probes.Add(1)
		if c.hang {
			<-ctx.Done()
			return ctx.Err()
		}
		return c.answer
	}})
	for n := range namespaces {
		c.state.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: fmt.Sprint("n", n), Name: "web", Annotations: map[string]string{desired.AnnotationOutliers: "on"}},
			Spec:       corev1.ServiceSpec{ClusterIP: fmt.Sprint("10.96.0.", n+1), Ports: []corev1.ServicePort{{Port: 80}}},
		})
		c.endpoints(n, endpoints, true)
	}
	c.state.Full()
	return c
}

func (c *clinic) endpoints(namespace, n int, ready bool) {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: fmt.Sprint("n", namespace), Name: "web", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
	}
	for i := range n {
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.0.%d.%d", namespace, i+1)}, Conditions: discoveryv1.EndpointConditions{Ready: &ready}})
	}
	c.state.SetEndpointSlice(s)
}

// clients has connections to an endpoint of a namespace answered or not.
func (c *clinic) clients(namespace, i int, failing bool) desired.Handshake {
	return desired.Handshake{
		Namespace: fmt.Sprint("n", namespace), Failing: failing,
		Frontend: desired.FrontendKey{AddrPort: netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 96, 0, byte(namespace + 1)}), 80), Protocol: desired.TCP},
		Backend:  desired.NewBackend(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 0, byte(namespace), byte(i + 1)}), 8080)),
	}
}

// pass lets time pass as the loop does.
func (c *clinic) pass(t *testing.T, d time.Duration) {
	for end := time.Now().Add(d); time.Now().Before(end); time.Sleep(250 * time.Millisecond) {
		for synctest.Wait(); len(c.outliers.done) > 0; {
			(<-c.outliers.done)()
		}
		c.watchHandshakes(t.Context())
	}
}

func (c *clinic) outlier(h desired.Handshake) *outlier {
	return c.outliers.tenants[h.Namespace].known[desired.Target{Protocol: h.Frontend.Protocol, Backend: h.Backend}]
}

// ill returns a clinic whose first endpoint has answered and answers clients no more.
func ill(t *testing.T, answer error) *clinic {
	c := newClinic(1, 3)
	c.handshakes = []desired.Handshake{c.clients(0, 0, false)}
	c.pass(t, time.Second)
	c.handshakes, c.answer = []desired.Handshake{c.clients(0, 0, true)}, answer
	c.pass(t, time.Minute)
	return c
}

// TestOutlierErrors: only errors that tell of the endpoint eject it.
func TestOutlierErrors(t *testing.T) {
	for err, out := range map[error]bool{
		syscall.ECONNREFUSED: true, syscall.EHOSTUNREACH: true, context.DeadlineExceeded: true, os.ErrDeadlineExceeded: true,
		syscall.EADDRNOTAVAIL: false, syscall.EMFILE: false, syscall.EPERM: false, syscall.ENETUNREACH: false, syscall.ENOBUFS: false, context.Canceled: false,
	} {
		synctest.Test(t, func(t *testing.T) {
			c := ill(t, &os.SyscallError{Syscall: "connect", Err: err})
			if got := !c.outlier(c.handshakes[0]).out.IsZero(); got != out {
				t.Errorf("%v: ejected %v", err, got)
			}
			if n := c.probes.Load(); n > 70 {
				t.Errorf("%v: %d probes in a minute", err, n)
			}
		})
	}
}

// TestOutlierTriedAgain: an endpoint that is dead for an hour is out but for seconds, when clients try it again.
func TestOutlierTriedAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := ill(t, syscall.ECONNREFUSED)
		x := c.outlier(c.handshakes[0])
		in, tries, back := 0, 0, x.back
		for range 3600 {
			if c.pass(t, time.Second); x.out.IsZero() {
				in++
			}
			if x.back != back {
				tries++
			}
			back = x.back
		}
		if tries < 5 || in > 12 {
			t.Errorf("in an hour, it is tried %d times and gets connections for %d s", tries, in)
		}
	})
}

// TestOutlierLostPacket: one of the two probes of a suspect may be lost.
func TestOutlierLostPacket(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClinic(1, 3)
		c.handshakes = []desired.Handshake{c.clients(0, 0, false)}
		c.pass(t, time.Second)
		probe, lost := c.options.Probe, true
		var mu sync.Mutex
		c.options.Probe = func(ctx context.Context, to desired.Target, dns bool) error {
			mu.Lock()
			lose := lost
			lost = !lost
			mu.Unlock()
			if lose {
				<-ctx.Done()
				return ctx.Err()
			}
			return probe(ctx, to, dns)
		}
		c.handshakes = []desired.Handshake{c.clients(0, 0, true)}
		if c.pass(t, time.Minute); !c.outlier(c.handshakes[0]).out.IsZero() {
			t.Error("it is ejected")
		}
	})
}

// TestOutlierReadyAgain: an ejected endpoint that was not ready gets connections as soon as it is ready again.
func TestOutlierReadyAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := ill(t, syscall.ECONNREFUSED)
		h := c.handshakes[0]
		if c.outlier(h).out.IsZero() {
			t.Fatal("it is not ejected")
		}
		c.handshakes = nil
		c.endpoints(0, 3, false)
		c.pass(t, time.Second)
		if n := len(c.outliers.tenants); n > 0 {
			t.Error("it is still ejected")
		}
	})
}

// TestOutlierMoved: an endpoint's frontend that is now of another namespace says nothing about it.
func TestOutlierMoved(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClinic(1, 1)
		h := c.clients(0, 0, false)
		h.Namespace = "former"
		c.handshakes = []desired.Handshake{h}
		if c.pass(t, time.Second); c.probes.Load() > 0 {
			t.Error("it is watched")
		}
	})
}

// TestOutlierLearning: an endpoint that does not answer the node is tried seldom, and only after it has answered a client.
func TestOutlierLearning(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		c := newClinic(1, 1)
		c.answer = syscall.ECONNREFUSED
		c.handshakes = []desired.Handshake{c.clients(0, 0, false)}
		c.pass(t, time.Second)
		c.handshakes = nil
		if c.pass(t, time.Hour); c.probes.Load() != 1 && c.probes.Load() != 2 {
			t.Errorf("%d probes without clients", c.probes.Load())
		}
		c.handshakes = []desired.Handshake{c.clients(0, 0, false)}
		c.probes.Store(0)
		if c.pass(t, 12*time.Hour); c.probes.Load() < 8 || c.probes.Load() > 12 {
			t.Errorf("%d probes with clients", c.probes.Load())
		}
	})
}

// TestOutlierSlots: endpoints that never answer take no probe from one that is out, in their namespace or in others.
func TestOutlierSlots(t *testing.T) {
	for _, namespaces := range []int{1, 20} {
		synctest.Test(t, func(t *testing.T) {
			c := newClinic(namespaces, 100)
			h := c.clients(0, 0, false)
			c.handshakes = []desired.Handshake{h}
			c.pass(t, time.Second)
			c.handshakes = []desired.Handshake{c.clients(0, 0, true)}
			c.hang = true
			c.pass(t, 5*time.Second)
			if c.outlier(h).out.IsZero() {
				t.Fatal("it is not ejected")
			}
			c.handshakes = nil
			for n := range namespaces {
				for i := 1; i < 100; i++ {
					c.handshakes = append(c.handshakes, c.clients(n, i, false))
				}
			}
			c.pass(t, time.Second)
			for range 20 {
				x := c.outlier(h)
				x.due = time.Time{}
				if c.watchHandshakes(t.Context()); !x.probing {
					t.Fatalf("%d namespaces: it is not probed (%d probes, %d of its namespace)", namespaces, c.outliers.probing, c.outliers.tenants["n0"].probing)
				}
				c.pass(t, time.Second)
			}
		})
	}
}

// TestOutlierLoss: for an hour, 1 % of all packets to and from 1,000 healthy endpoints are lost, those of handshakes and of
// probes. A policy drops the only client of some others, and one drops this node's probes of further ones, which at times
// answer no client either. None is ejected.
func TestOutlierLoss(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		const namespaces, endpoints = 5, 220
		type endpoint struct {
			desired.Handshake
			i, unanswered int
			random        *rand.Rand // each has its own, so that a run is like the next one
		}
		c, byAddress := newClinic(namespaces, endpoints), map[netip.Addr]*endpoint{}
		var all []*endpoint
		for n := range namespaces {
			for i := range endpoints {
				x := &endpoint{c.clients(n, i, false), i, 0, rand.New(rand.NewPCG(uint64(n), uint64(i)))}
				all, byAddress[x.Backend.Addr()] = append(all, x), x
			}
		}
		lost := func(x *endpoint) bool { return x.i >= 20 && min(x.random.IntN(100), x.random.IntN(100)) == 0 } // there or back
		var mu sync.Mutex
		c.options.Probe = func(ctx context.Context, to desired.Target, dns bool) error {
			mu.Lock()
			x := byAddress[to.Addr()]
			late := lost(x) || x.i >= 10 && x.i < 20
			mu.Unlock()
			if c.probes.Add(1); late {
				<-ctx.Done()
				return ctx.Err()
			}
			return nil
		}
		suspects, out := 0, 0
		for second := range 3600 {
			c.handshakes = nil
			mu.Lock()
			for _, x := range all {
				answered := !lost(x)
				switch {
				case x.i < 10:
					answered = second < 300 // until this node knows that it answers
				case x.i < 20:
					answered = second%60 < 50
				}
				if x.unanswered++; answered {
					x.unanswered = 0
				}
				if x.Failing = x.unanswered >= 3; x.Failing || x.unanswered == 0 {
					c.handshakes = append(c.handshakes, x.Handshake)
				}
				if x.unanswered == 3 && x.i >= 20 {
					suspects++
				}
			}
			mu.Unlock()
			c.watchHandshakes(t.Context())
			time.Sleep(time.Second)
			for synctest.Wait(); len(c.outliers.done) > 0; {
				(<-c.outliers.done)()
			}
			for _, tenant := range c.outliers.tenants {
				for _, x := range tenant.known {
					if !x.out.IsZero() {
						out++
					}
				}
			}
		}
		if t.Logf("%d suspicions, %d probes", suspects, c.probes.Load()); out > 0 || suspects < 10 {
			t.Errorf("%d suspicions, endpoints were out for %d s", suspects, out)
		}
	})
}

// TestOutlierAdversary has endpoints die, flap and refuse, and hostile clients whose connections to healthy endpoints fail, at
// random. Only endpoints that the last probe has not reached are ejected, and of each Service half at most.
func TestOutlierAdversary(t *testing.T) {
	for seed := range uint64(20) {
		synctest.Test(t, func(t *testing.T) {
			const endpoints = 5
			random, c := rand.New(rand.NewPCG(seed, 0)), newClinic(2, endpoints)
			var mu sync.Mutex
			dead, unreached := map[netip.Addr]bool{}, map[netip.Addr]bool{}
			c.options.Probe = func(ctx context.Context, to desired.Target, dns bool) error {
				mu.Lock()
				is := dead[to.Addr()]
				unreached[to.Addr()] = is
				mu.Unlock()
				switch {
				case !is:
					return nil
				case to.Addr().As4()[3]%2 == 0:
					return syscall.ECONNREFUSED
				}
				<-ctx.Done()
				return ctx.Err()
			}
			kinds := map[netip.Addr]int{} // how an endpoint behaves
			for second := range 300 {
				c.handshakes = nil
				mu.Lock()
				for namespace := range 2 {
					for i := range endpoints {
						h := c.clients(namespace, i, false)
						a := h.Backend.Addr()
						if second%30 == 0 {
							kinds[a] = random.IntN(4)
						}
						dead[a] = kinds[a] == 1 && second > 5 || kinds[a] == 2 && second%2 == 1
						h.Failing = dead[a] || kinds[a] == 3 && random.IntN(3) > 0 // a policy drops some of the clients
						c.handshakes = append(c.handshakes, h)
					}
				}
				mu.Unlock()
				c.pass(t, time.Second)
				for synctest.Wait(); len(c.outliers.done) > 0; {
					(<-c.outliers.done)()
				}
				c.state.Change()
				c.state.ViewServices(nil, true, func(v *desired.ServiceView) {
					n := 0
					for _, e := range v.Ports[0].Endpoints {
						if !strings.HasPrefix(e.Uses(), "ejected") {
							continue
						}
						n++
						if a := netip.MustParseAddrPort(e.Address).Addr(); !unreached[a] {
							t.Errorf("seed %d, second %d: %s is ejected, which has answered its last probe", seed, second, a)
						}
					}
					if n > endpoints/2 {
						t.Errorf("seed %d, second %d: %d endpoints are ejected", seed, second, n)
					}
				})
			}
			// All are well, and come back.
			mu.Lock()
			clear(dead)
			mu.Unlock()
			c.handshakes = nil
			c.pass(t, 2*time.Minute)
			for _, x := range c.outliers.tenants {
				for b, x := range x.known {
					if !x.out.IsZero() {
						t.Errorf("seed %d: %s is not back", seed, b)
					}
				}
			}
		})
	}
}
