// SPDX-License-Identifier: Apache-2.0

// Package cluster makes up clusters: Services, EndpointSlices and Nodes, with the settings of
// a proxy for them. Every address, port and node port is chosen by the seed; the API server
// only adds its defaults.
package oracle

import (
	"fmt"
	"math/rand/v2"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	networkingv1 "k8s.io/api/networking/v1"
	"k8s.io/utils/ptr"
)

// Cluster is the input of a proxy.
type Cluster struct {
	Seed     uint64
	Settings Settings

	Nodes    []*corev1.Node
	Services []*corev1.Service // with their status
	Slices   []*discoveryv1.EndpointSlice

	ServiceCIDRs []*networkingv1.ServiceCIDR // the API server's own
}

// Namespaces are those that objects are in. Services of one name are in both.
var Namespaces = []string{"default", "other"}

const services = 12

// RandomCluster makes up a cluster.
func RandomCluster(seed uint64) *Cluster {
	g := &generator{
		Rand:  rand.New(rand.NewPCG(seed, 0)),
		taken: map[any]bool{},
	}
	c := &Cluster{Seed: seed, Settings: g.settings(), Nodes: g.nodes()}
	for i := range services {
		svc, groups := g.service(i)
		c.Services = append(c.Services, svc)
		c.Slices = append(c.Slices, groups...)
	}
	return c
}

// Named returns the Service of that namespace and name, or nil.
func (c *Cluster) Named(namespace, name string) *corev1.Service {
	i := slices.IndexFunc(c.Services, func(svc *corev1.Service) bool { return svc.Namespace == namespace && svc.Name == name })
	if i < 0 {
		return nil
	}
	return c.Services[i]
}

// Objects returns all objects.
func (c *Cluster) Objects() []source.Object {
	return slices.Concat(objects(c.Nodes), objects(c.Services), objects(c.Slices), objects(c.ServiceCIDRs))
}

func objects[T source.Object](some []T) (all []source.Object) {
	for _, o := range some {
		all = append(all, o)
	}
	return all
}

// DeepCopy returns a cluster that shares only the settings' ranges with this one.
func (c *Cluster) DeepCopy() *Cluster {
	return &Cluster{
		Seed: c.Seed, Settings: c.Settings,
		Nodes: copied(c.Nodes), Services: copied(c.Services), Slices: copied(c.Slices), ServiceCIDRs: copied(c.ServiceCIDRs),
	}
}

func copied[T interface{ DeepCopy() T }](all []T) []T {
	out := make([]T, len(all))
	for i, o := range all {
		out[i] = o.DeepCopy()
	}
	return out
}

// SlicesOf are the EndpointSlices of a Service.
func (c *Cluster) SlicesOf(svc *corev1.Service) []*discoveryv1.EndpointSlice {
	return slices.DeleteFunc(slices.Clone(c.Slices), func(s *discoveryv1.EndpointSlice) bool {
		return s.Namespace != svc.Namespace || s.Labels[discoveryv1.LabelServiceName] != svc.Name
	})
}

// Backends is how many backends a Service's port can have in a family (0 or 1): its
// slices have no more.
func (c *Cluster) Backends(svc *corev1.Service, port corev1.ServicePort, family int) int {
	seen := map[string]bool{}
	for _, s := range c.SlicesOf(svc) {
		if (s.AddressType == discoveryv1.AddressTypeIPv4) != (family == 0) {
			continue
		}
		for _, e := range s.Endpoints {
			for _, p := range s.Ports {
				if p.Port != nil && ptr.Deref(p.Name, "") == port.Name {
					seen[fmt.Sprint(e.Addresses[0], *p.Port)] = true
				}
			}
		}
	}
	return len(seen)
}

// generator is a source of decisions.
type generator struct {
	*rand.Rand
	taken map[any]bool
}

// once in n times.
func (g *generator) once(n int) bool { return g.IntN(n) == 0 }

// pick is one of all, each as likely.
func pick[T any](g *generator, all ...T) T { return all[g.IntN(len(all))] }

// some returns n different ones of all, in random order; all of them if there are fewer.
func some[T any](g *generator, n int, all []T) []T {
	all = slices.Clone(all)
	g.Shuffle(len(all), func(i, j int) { all[i], all[j] = all[j], all[i] })
	return all[:min(n, len(all))]
}

// fresh makes up values until one is new.
func fresh[T comparable](g *generator, next func() T) T {
	for {
		v := next()
		if !g.taken[v] {
			g.taken[v] = true
			return v
		}
	}
}

// address returns an unused address of a range: its last 16 bits are random.
func (g *generator) address(r netip.Prefix) netip.Addr {
	return fresh(g, func() netip.Addr {
		b := r.Masked().Addr().AsSlice()
		n := len(b)
		if r.Bits() <= 8*(n-2) {
			b[n-2] |= byte(g.IntN(256))
		}
		b[n-1] = byte(10 + g.IntN(240)) // clear of the addresses that something else has
		a, _ := netip.AddrFromSlice(b)
		return a
	})
}

// texts are addresses or ranges as objects write them.
func texts[T fmt.Stringer](all ...T) []string {
	var s []string
	for _, a := range all {
		s = append(s, a.String())
	}
	return s
}

// Unallocated is a ClusterIP of a family that no Service has: below those that address makes up.
func (c *Cluster) Unallocated(family int) netip.Addr { return lab.Nth(ServiceCIDRs[family], 5) }
