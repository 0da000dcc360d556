// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"iter"
	"math/rand/v2"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/util/intstr"
)

// cluster is a generated cluster that changes. Services and pods are numbers,
// from which everything about them follows. Only what has changed takes memory.
type cluster struct {
	families  []family
	services  int // at the start
	endpoints int // of each Service at the start
	percent   int // of Services that are external
	nodes     int
	rand      *rand.Rand

	changed map[int]pods // by Service, where not those of the start
	gone    map[int]bool
	next    int // number of the next new Service
	nextPod int
}

// pods are the pods of a Service by EndpointSlice.
type pods [][]int

func newCluster(o *SyncOptions) *cluster {
	n := o.Services * o.Endpoints
	return &cluster{
		families:  o.families(),
		services:  o.Services,
		endpoints: o.Endpoints,
		percent:   o.External,
		nodes:     max(3, n/podsPerNode),
		rand:      rand.New(rand.NewPCG(o.Seed, 0)),
		changed:   map[int]pods{},
		gone:      map[int]bool{},
		next:      o.Services,
		nextPod:   n,
	}
}

// live is how many Services there are.
func (c *cluster) live() int { return c.next - len(c.gone) }

// pods are those of a Service. What is returned is not to be changed.
func (c *cluster) pods(service int) pods {
	if p, ok := c.changed[service]; ok {
		return p
	}
	return consecutive(service*c.endpoints, c.endpoints)
}

// consecutive are n pods from a first one on, distributed to slices.
func consecutive(first, n int) (all pods) {
	for n > 0 {
		one := make([]int, min(n, sliceSize))
		for i := range one {
			one[i] = first + i
		}
		all = append(all, one)
		first, n = first+len(one), n-len(one)
	}
	return all
}

// own are the pods of a Service, to be changed.
func (c *cluster) own(service int) pods {
	p, ok := c.changed[service]
	if !ok {
		p = c.pods(service)
		c.changed[service] = p
	}
	return p
}

// each gives the numbers of all Services there are.
func (c *cluster) each() iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := range c.next {
			if !c.gone[i] && !yield(i) {
				return
			}
		}
	}
}

// fill makes svc the Service of a number.
func (c *cluster) fill(svc *corev1.Service, service int) {
	fillService(svc, service, c.families)
	if before, is := c.external(service); is {
		fillExternal(svc, before, c.families)
	}
}

// events describes the whole cluster. An event's object is only valid until the
// next one.
func (c *cluster) events() iter.Seq[source.Event] {
	return func(yield func(source.Event) bool) {
		var svc corev1.Service
		var slice discoveryv1.EndpointSlice
		for i := range c.each() {
			c.fill(&svc, i)
			if !yield(source.Event{Type: source.Set, Object: &svc}) {
				return
			}
			for _, f := range c.families {
				for n, pods := range c.pods(i) {
					fillSlice(&slice, f, i, n, c.nodes, pods)
					if !yield(source.Event{Type: source.Set, Object: &slice}) {
						return
					}
				}
			}
		}
	}
}

// setSlice are the events for a slice in all families.
func (c *cluster) setSlice(service, slice int, pods []int) (events []source.Event) {
	for _, f := range c.families {
		s := new(discoveryv1.EndpointSlice)
		fillSlice(s, f, service, slice, c.nodes, pods)
		events = append(events, source.Event{Type: source.Set, Object: s})
	}
	return events
}

// random is a random Service that there is.
func (c *cluster) random() int {
	for {
		if i := c.rand.IntN(c.next); !c.gone[i] {
			return i
		}
	}
}

// randomPod is a random pod of a random Service that has any.
func (c *cluster) randomPod() (service, slice, at int) {
	for {
		service = c.random()
		p := c.pods(service)
		count := 0
		for _, one := range p {
			count += len(one)
		}
		if count == 0 {
			continue
		}
		at = c.rand.IntN(count)
		for slice = 0; at >= len(p[slice]); slice++ {
			at -= len(p[slice])
		}
		return service, slice, at
	}
}

// newPod is a pod that was not there before.
func (c *cluster) newPod() int {
	c.nextPod++
	return c.nextPod - 1
}

// replaceEndpoint replaces a random endpoint of a random Service.
func (c *cluster) replaceEndpoint() []source.Event {
	_, events := c.replacePod()
	return events
}

// replacement is what replaceEndpoint did.
type replacement struct {
	service, old, new int
}

func (c *cluster) replacePod() (replacement, []source.Event) {
	service, slice, at := c.randomPod()
	p := c.own(service)
	r := replacement{service, p[slice][at], c.newPod()}
	p[slice][at] = r.new
	return r, c.setSlice(service, slice, p[slice])
}

// addEndpoint adds an endpoint to a random Service: to its first slice with
// room, or in a new one.
func (c *cluster) addEndpoint() []source.Event {
	service := c.random()
	p := c.own(service)
	slice := slices.IndexFunc(p, func(one []int) bool { return len(one) < sliceSize })
	if slice < 0 {
		slice, p = len(p), append(p, nil)
	}
	p[slice] = append(p[slice], c.newPod())
	c.changed[service] = p
	return c.setSlice(service, slice, p[slice])
}

// removeEndpoint removes a random endpoint of a random Service.
func (c *cluster) removeEndpoint() []source.Event {
	service, slice, at := c.randomPod()
	p := c.own(service)
	p[slice] = slices.Delete(p[slice], at, at+1)
	return c.setSlice(service, slice, p[slice])
}

// addService adds a Service with its endpoints.
func (c *cluster) addService() []source.Event {
	service := c.next
	c.next++
	p := consecutive(c.nextPod, c.endpoints)
	c.nextPod += c.endpoints
	c.changed[service] = p
	svc := new(corev1.Service)
	c.fill(svc, service)
	events := []source.Event{{Type: source.Set, Object: svc}}
	for slice := range p {
		events = append(events, c.setSlice(service, slice, p[slice])...)
	}
	return events
}

// removeService removes a random Service and its slices.
func (c *cluster) removeService() []source.Event {
	service := c.random()
	meta := metav1.ObjectMeta{Namespace: namespaceOf(service), Name: nameOf(service)}
	events := []source.Event{{Type: source.Delete, Object: &corev1.Service{ObjectMeta: meta}}}
	for slice := range c.pods(service) {
		for _, f := range c.families {
			meta.Name = sliceNameOf(service, slice, f)
			events = append(events, source.Event{Type: source.Delete, Object: &discoveryv1.EndpointSlice{ObjectMeta: meta}})
		}
	}
	c.gone[service] = true
	delete(c.changed, service)
	return events
}

func intOrString(n int) intstr.IntOrString { return intstr.FromInt32(int32(n)) }
