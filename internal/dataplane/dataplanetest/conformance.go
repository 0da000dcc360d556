// SPDX-License-Identifier: Apache-2.0

package dataplanetest

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"reflect"
	"slices"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/desired/desiredtest"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Namespace creates an empty network namespace. Each call of open opens another dataplane
// in it, like another run of the proxy. All are closed at the end of the test.
type Namespace func(t *testing.T) (open func() Backend)

// Conformance runs the tests that every dataplane has to pass. sequences is the number of
// random sequences, and size the length of each, in bytes of random input.
// The desired state has the given configuration, beside the name of the node.
func Conformance(t *testing.T, config desired.Config, sequences, size int, namespace Namespace) {
	config.NodeName = desiredtest.ThisNode
	someState := func(seed uint64) *desired.State { return someState(config, seed) }
	for i := range sequences {
		seed := uint64(time.Now().UnixNano()) + uint64(i)
		t.Run(fmt.Sprint("random sequence ", seed), func(t *testing.T) {
			RandomSequence(t, config, seed, size, namespace(t)(), namespace(t)())
		})
	}
	t.Run("next run", func(t *testing.T) {
		open := namespace(t)
		Reconcile(t, open(), someState(1))
		next, s := open(), someState(2)
		Reconcile(t, next, s)
		Has(t, next, s)
		isIntact(t, next)
	})
	t.Run("interface of a pod", func(t *testing.T) {
		d, s := namespace(t)(), someState(6)
		s.SetService(&corev1.Service{
			ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: "node-port"},
			Spec:       corev1.ServiceSpec{ClusterIPs: []string{"10.96.7.1", "fd00:96::7:1"}, Ports: []corev1.ServicePort{{Port: 80, NodePort: 30777}}},
		})
		own := []netip.Addr{netip.MustParseAddr("192.168.0.1"), netip.MustParseAddr("fd00::1")}
		s.SetNodeAddresses(own)
		Reconcile(t, d, s)
		for _, addrs := range [][]netip.Addr{append(slices.Clone(own), netip.MustParseAddr("fe80::7")), own} {
			s.SetNodeAddresses(addrs)
			if stats, err := d.Apply(t.Context(), &s.Change().Change); err != nil || !reflect.DeepEqual(stats, dataplane.Stats{}) {
				t.Errorf("addresses %v: wrote %+v, error %v", addrs, stats, err)
			}
		}
	})
	if !config.IPVS {
		t.Run("addresses of NodePorts", func(t *testing.T) { addressesOfNodePorts(t, config, namespace) })
	}
	t.Run("order of calls", func(t *testing.T) {
		d, s := namespace(t)(), someState(3)
		refuses := func(what string, change *desired.Change) {
			t.Helper()
			if _, err := d.Apply(t.Context(), change); err == nil {
				t.Errorf("Apply accepts a change %s", what)
			}
			isDamaged(t, d)
		}
		refuses("before the first Reconcile", &s.Change().Change)
		Reconcile(t, d, s)
		isIntact(t, d)
		refuses("that only Reconcile can make", &desired.Change{Rebuild: true})
		refuses("after an error", &desired.Change{})
		Reconcile(t, d, s)
		Has(t, d, s)
		isIntact(t, d)
	})
	t.Run("context ends", func(t *testing.T) {
		d, s := namespace(t)(), someState(4)
		ctx, cancel := context.WithCancel(t.Context())
		cancel()
		if _, err := d.Reconcile(ctx, &s.Full().Change); !errors.Is(err, context.Canceled) {
			t.Errorf("Reconcile: %v", err)
		}
		isDamaged(t, d)
		Reconcile(t, d, s)
		if _, err := d.Apply(ctx, &s.Change().Change); !errors.Is(err, context.Canceled) {
			t.Errorf("Apply: %v", err)
		}
		isDamaged(t, d)
		Reconcile(t, d, s)
		Has(t, d, s)
	})
	t.Run("cleanup", func(t *testing.T) {
		d, s := namespace(t)(), someState(5)
		Reconcile(t, d, s)
		for range 2 { // the second time without objects
			if err := d.Cleanup(t.Context()); err != nil {
				t.Fatal(err)
			}
			got, err := d.Read(t.Context())
			if err != nil || len(got.Lines()) > 0 {
				t.Errorf("after Cleanup: %v, error %v", got, err)
			}
			isDamaged(t, d)
		}
		Reconcile(t, d, s)
		Has(t, d, s)
	})
	t.Run("cleanup by another", func(t *testing.T) {
		open, s := namespace(t), someState(7)
		d := open()
		Reconcile(t, d, s)
		if err := open().Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
		isDamaged(t, d)
		Reconcile(t, d, s)
		Has(t, d, s)
	})
}

// addressesOfNodePorts makes sure that a NodePort costs the same with many addresses as with few, and
// that an address costs one element.
func addressesOfNodePorts(t *testing.T, config desired.Config, namespace Namespace) {
	const services, few, many = 20, 3, 30
	addrs := func(n int) (all []netip.Addr) {
		for i := range n {
			all = append(all, netip.AddrFrom4([4]byte{192, 168, 7, byte(1 + i)}))
		}
		return all
	}
	var elements [2]int
	for i, n := range []int{few, many} {
		d, s := namespace(t)(), desired.New(config)
		for port := range services {
			s.SetService(&corev1.Service{
				ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: fmt.Sprint("web-", port)},
				Spec: corev1.ServiceSpec{
					ClusterIP: fmt.Sprint("10.96.7.", 1+port), Ports: []corev1.ServicePort{{Port: 80, NodePort: int32(30000 + port)}},
				},
			})
		}
		s.SetNodeAddresses(addrs(n))
		stats, err := d.Reconcile(t.Context(), &s.Full().Change)
		if err != nil {
			t.Fatal(err)
		}
		elements[i] = stats.Elements
		for _, n := range []int{n + 1, n} {
			s.SetNodeAddresses(addrs(n))
			if stats, err := d.Apply(t.Context(), &s.Change().Change); err != nil || stats.Elements != 1 {
				t.Errorf("%d addresses: wrote %+v, error %v", n, stats, err)
			}
			Has(t, d, s)
		}
	}
	if got, want := elements[1]-elements[0], many-few; got != want {
		t.Errorf("%d addresses cost %d elements more than %d, not %d", many, got, few, want)
	}
}

func isIntact(t *testing.T, d dataplane.Dataplane) {
	t.Helper()
	if err := d.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

func isDamaged(t *testing.T, d dataplane.Dataplane) {
	t.Helper()
	if err := d.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
		t.Errorf("Check: %v", err)
	}
}

// someState returns a state after random events.
func someState(config desired.Config, seed uint64) *desired.State {
	c := desiredtest.NewChoices(desiredtest.RandomInput(seed, 2_000))
	config.Supports = dataplane.OnlyRandom
	s := desired.New(config)
	var objects desiredtest.Objects
	for c.More() {
		objects.Step(c, s)
	}
	return s
}

// RandomSequence applies a random sequence of changes to a dataplane. It compares the
// kernel's content with the desired content, and with that of another dataplane that is
// programmed from nothing. The seed determines the sequence. size is its length in bytes of
// random input.
func RandomSequence(t *testing.T, config desired.Config, seed uint64, size int, k, other Backend) {
	t.Helper()
	c := desiredtest.NewChoices(desiredtest.RandomInput(seed, size))
	var objects desiredtest.Objects
	config.Supports, config.MaxTable = k.Supports, desired.TableSizes()[0]
	byNode := config
	byNode.DetectLocal = desired.DetectLocal{Mode: desired.ByNodeCIDR}
	s := desired.New(byNode)
	Reconcile(t, k, s)
	for n := 0; c.More(); n++ {
		objects.Step(c, s)
		if c.Below(3) > 0 {
			continue
		}
		if c.Below(16) == 0 {
			Reconcile(t, k, s)
		} else {
			Apply(t, k, s)
		}
		if n%8 == 0 {
			Has(t, k, s)
			isIntact(t, k)
		}
	}
	Apply(t, k, s)
	Has(t, k, s)
	isIntact(t, k)

	fresh := desired.New(byNode)
	if s.Reported().Ranges { // there are some, or have been: their rules stay
		fresh.SetService(&corev1.Service{ObjectMeta: metav1.ObjectMeta{Name: "x", Annotations: map[string]string{desired.AnnotationPortRanges: "all"}}, Spec: corev1.ServiceSpec{ClusterIP: "::1"}})
		fresh.DeleteService("", "x")
	}
	objects.SetAll(fresh, rand.New(rand.NewPCG(seed, 1)))
	Reconcile(t, other, fresh)
	Has(t, other, fresh)
	Has(t, k, fresh) // so the results of changes and of fresh programming are equal
}
