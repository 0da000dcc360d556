// SPDX-License-Identifier: Apache-2.0

// Package cluster makes up clusters for benchmarks: Services and EndpointSlices as an API
// server would have them, and changes to random ones.
// The choices follow from a seed.
package cluster

import (
	"iter"
	"math/rand/v2"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
)

// Limits that follow from the ranges of addresses, with room for what changes add.
const (
	MaxServices  = 1_000_000
	MaxEndpoints = 12_000_000 // of all Services
	MaxExternal  = 30_000     // Services with a NodePort
)

// Config is the size and kind of a cluster.
type Config struct {
	Services  int
	Endpoints int    // of each Service
	Singles   int    // Services that have one endpoint instead, chosen at random
	Rolled    int    // endpoints of RolledService instead, if there are some Singles; 0 for none
	External  int    // percentage of Services that are external, see objects.go
	Namespace string // of all Services; spread over 100 namespaces if empty
	Seed      uint64
}

// Cluster is a made-up cluster that changes. Services and pods are numbers, from which their
// objects follow.
type Cluster struct {
	Config
	Rand   *rand.Rand
	Single []int // Services of one endpoint
	Others []int // where some have a single endpoint: the other ones, in random order

	single  map[int]bool
	nodes   int
	changed map[int]pods // by Service, where not as at the start
	removed map[int]bool
	next    int // number of the next new Service
	nextPod int
}

// RolledService is neither one of Single nor of Others.
const RolledService = 0

// pods are the pods of a Service by EndpointSlice.
type pods [][]int

// New makes up a cluster.
func New(c Config) *Cluster {
	n := c.Services * c.Endpoints
	const podsPerNode = 30 // the usual mean in Kubernetes' scalability tests
	out := &Cluster{
		Config:  c,
		Rand:    rand.New(rand.NewPCG(c.Seed, 0)),
		single:  map[int]bool{},
		nodes:   max(3, n/podsPerNode),
		changed: map[int]pods{},
		removed: map[int]bool{},
		next:    c.Services,
		nextPod: n,
	}
	if c.Singles > 0 {
		all := out.Rand.Perm(c.Services)
		if c.Rolled > 0 {
			all = slices.DeleteFunc(all, func(i int) bool { return i == RolledService })
			out.changed[RolledService] = consecutive(n, c.Rolled)
			out.nextPod += c.Rolled
		}
		out.Single, out.Others = all[:c.Singles], all[c.Singles:]
		for _, i := range out.Single {
			out.single[i] = true
		}
	}
	return out
}

// Live is how many Services there are.
func (c *Cluster) Live() int { return c.next - len(c.removed) }

// Each gives the numbers of all Services.
func (c *Cluster) Each() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range c.next {
			if !c.removed[i] && !yield(i) {
				return
			}
		}
	}
}

// Pods are the numbers of a Service's pods.
func (c *Cluster) Pods(service int) []int { return slices.Concat(c.pods(service)...) }

func (c *Cluster) pods(service int) pods {
	if p, ok := c.changed[service]; ok {
		return p
	}
	n := c.Endpoints
	if c.single[service] {
		n = 1
	}
	return consecutive(service*c.Endpoints, n)
}

// consecutive are n pods from a first one on, distributed to slices.
func consecutive(first, n int) pods {
	numbers := make([]int, n)
	for i := range numbers {
		numbers[i] = first + i
	}
	return slices.Collect(slices.Chunk(numbers, SliceSize))
}

// own are the pods of a Service, to be changed.
func (c *Cluster) own(service int) pods {
	p := c.pods(service)
	c.changed[service] = p
	return p
}

// Events describes the whole cluster. To take little memory beside the measured process, the
// object of an event is only valid until the next event.
func (c *Cluster) Events() iter.Seq[source.Event] {
	return func(yield func(source.Event) bool) {
		var svc corev1.Service
		var slice discoveryv1.EndpointSlice
		for i := range c.Each() {
			c.fillService(&svc, i)
			if !yield(source.Event{Type: source.Set, Object: &svc}) {
				return
			}
			for n, pods := range c.pods(i) {
				c.fillSlice(&slice, i, n, pods)
				if !yield(source.Event{Type: source.Set, Object: &slice}) {
					return
				}
			}
		}
	}
}

// Service is a Service's object.
func (c *Cluster) Service(service int) *corev1.Service {
	svc := new(corev1.Service)
	c.fillService(svc, service)
	return svc
}

// Slices are a Service's EndpointSlices.
func (c *Cluster) Slices(service int) (all []*discoveryv1.EndpointSlice) {
	for n := range c.pods(service) {
		all = append(all, c.Slice(service, n))
	}
	return all
}

// Slice is one of them.
func (c *Cluster) Slice(service, n int) *discoveryv1.EndpointSlice {
	s := new(discoveryv1.EndpointSlice)
	c.fillSlice(s, service, n, c.pods(service)[n])
	return s
}

func (c *Cluster) setSlice(service, slice int) source.Event {
	return source.Event{Type: source.Set, Object: c.Slice(service, slice)}
}

func (c *Cluster) randomService() int {
	for {
		if i := c.Rand.IntN(c.next); !c.removed[i] {
			return i
		}
	}
}

// randomPod is a random pod of a random Service that has any.
func (c *Cluster) randomPod() (service, slice, at int) {
	for {
		service = c.randomService()
		count := len(c.Pods(service))
		if count == 0 {
			continue
		}
		p := c.pods(service)
		at = c.Rand.IntN(count)
		for slice = 0; at >= len(p[slice]); slice++ {
			at -= len(p[slice])
		}
		return service, slice, at
	}
}

func (c *Cluster) newPod() int {
	c.nextPod++
	return c.nextPod - 1
}

// Replace replaces a pod in a slice of a Service, and returns the new one.
func (c *Cluster) Replace(service, slice, at int) (pod int) {
	pod = c.newPod()
	c.own(service)[slice][at] = pod
	return pod
}

// ReplaceEndpoint replaces a random endpoint of a random Service.
func (c *Cluster) ReplaceEndpoint() []source.Event {
	service, slice, at := c.randomPod()
	c.Replace(service, slice, at)
	return []source.Event{c.setSlice(service, slice)}
}

// AddEndpoint adds an endpoint to a random Service: to its first slice with room, or in a
// new one.
func (c *Cluster) AddEndpoint() []source.Event {
	service := c.randomService()
	p := c.own(service)
	slice := slices.IndexFunc(p, func(one []int) bool { return len(one) < SliceSize })
	if slice < 0 {
		slice, p = len(p), append(p, nil)
	}
	p[slice] = append(p[slice], c.newPod())
	c.changed[service] = p
	return []source.Event{c.setSlice(service, slice)}
}

// RemoveEndpoint removes a random endpoint of a random Service.
func (c *Cluster) RemoveEndpoint() []source.Event {
	service, slice, at := c.randomPod()
	p := c.own(service)
	p[slice] = slices.Delete(p[slice], at, at+1)
	return []source.Event{c.setSlice(service, slice)}
}

// AddService adds a Service with its endpoints.
func (c *Cluster) AddService() []source.Event {
	service := c.next
	c.next++
	p := consecutive(c.nextPod, c.Endpoints)
	c.nextPod += c.Endpoints
	c.changed[service] = p
	events := []source.Event{{Type: source.Set, Object: c.Service(service)}}
	for slice := range p {
		events = append(events, c.setSlice(service, slice))
	}
	return events
}

// RemoveService removes a random Service and its slices.
func (c *Cluster) RemoveService() []source.Event {
	service := c.randomService()
	meta := metav1.ObjectMeta{Namespace: c.NamespaceOf(service), Name: Name(service)}
	events := []source.Event{{Type: source.Delete, Object: &corev1.Service{ObjectMeta: meta}}}
	for slice := range c.pods(service) {
		meta.Name = sliceName(service, slice)
		events = append(events, source.Event{Type: source.Delete, Object: &discoveryv1.EndpointSlice{ObjectMeta: meta}})
	}
	c.removed[service] = true
	delete(c.changed, service)
	return events
}
