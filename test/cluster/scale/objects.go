// SPDX-License-Identifier: Apache-2.0

package main

import (
	"encoding/binary"
	"fmt"
	"math/rand/v2"
	"net/netip"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/intstr"
	"k8s.io/utils/ptr"
)

const (
	namespace  = "default"
	port       = 80
	targetPort = 8080

	// changing is how many Services have one endpoint where single changes replace it.
	changing = 16

	// sliceSize is kube-controller-manager's default limit of endpoints in a slice.
	sliceSize = 100
)

// Where addresses are from.
var (
	serviceCIDR = netip.MustParsePrefix("10.96.0.0/12")
	podRange    = netip.MustParsePrefix("10.128.0.0/9") // of endpoints
)

// firstService leaves room for addresses that Kubernetes gives itself.
const firstService = 0x100

// content is what the API server is filled with: Services by their numbers from 0.
type content struct {
	services, endpoints int

	single   map[int]bool          // the Services of one endpoint
	changed  []int                 // the same, in a random order
	plain    []int                 // the others, in a random order
	moved    map[[2]int]netip.Addr // endpoints that are not where they were at first, by Service and number
	nextAddr uint32                // of those that nobody has had
	random   *rand.Rand
}

// newContent makes up Services of so many endpoints each, but for some that have a single
// one.
func newContent(services, endpoints, single int, seed uint64) *content {
	c := &content{
		services: services, endpoints: endpoints,
		single: map[int]bool{}, moved: map[[2]int]netip.Addr{},
		nextAddr: uint32(1 + services*endpoints),
		random:   rand.New(rand.NewPCG(seed, 0)),
	}
	all := c.random.Perm(services)
	c.changed, c.plain = all[:single], all[single:]
	for _, i := range c.changed {
		c.single[i] = true
	}
	return c
}

// add returns the address that is n after the first one of a range.
func add(r netip.Prefix, n uint32) netip.Addr {
	base := r.Addr().As4()
	var a [4]byte
	binary.BigEndian.PutUint32(a[:], binary.BigEndian.Uint32(base[:])+n)
	return netip.AddrFrom4(a)
}

func name(i int) string { return fmt.Sprintf("service-%06d", i) }

// frontend is where clients of a Service connect to.
func frontend(i int) netip.AddrPort {
	return netip.AddrPortFrom(add(serviceCIDR, uint32(firstService+i)), port)
}

// size is how many endpoints a Service has.
func (c *content) size(i int) int {
	if c.single[i] {
		return 1
	}
	return c.endpoints
}

// endpoint is where an endpoint is now.
func (c *content) endpoint(i, j int) netip.Addr {
	if a, ok := c.moved[[2]int{i, j}]; ok {
		return a
	}
	return add(podRange, uint32(1+i*c.endpoints+j))
}

// replace gives a Service another endpoint in the place of number j, at an address that
// was never used before.
func (c *content) replace(i, j int) netip.Addr {
	a := add(podRange, c.nextAddr)
	c.nextAddr++
	c.moved[[2]int{i, j}] = a
	return a
}

// service is a Service's object.
func (c *content) service(i int) *corev1.Service {
	return &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: namespace, Name: name(i), Labels: map[string]string{"app": name(i)}},
		Spec: corev1.ServiceSpec{
			// No selector: the slices are written here.
			ClusterIP: frontend(i).Addr().String(),
			Ports: []corev1.ServicePort{{
				Name: "http", Protocol: corev1.ProtocolTCP, Port: port, TargetPort: intstr.FromInt32(targetPort),
			}},
		},
	}
}

// slices are a Service's EndpointSlices, with all that the endpointslice controller would
// write.
func (c *content) slices(i int) (all []*discoveryv1.EndpointSlice) {
	for from := 0; from < c.size(i); from += sliceSize {
		all = append(all, c.slice(i, from))
	}
	return all
}

// slice is the one that begins with endpoint number from.
func (c *content) slice(i, from int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: namespace, Name: fmt.Sprintf("%s-%d", name(i), from/sliceSize),
			Labels: map[string]string{
				discoveryv1.LabelServiceName: name(i),
				discoveryv1.LabelManagedBy:   "endpointslice-controller.k8s.io",
				"app":                        name(i),
			},
			Annotations: map[string]string{
				corev1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339Nano),
			},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports: []discoveryv1.EndpointPort{{
			Name: ptr.To("http"), Protocol: ptr.To(corev1.ProtocolTCP), Port: ptr.To[int32](targetPort),
		}},
	}
	for j := from; j < min(from+sliceSize, c.size(i)); j++ {
		a := c.endpoint(i, j)
		s.Endpoints = append(s.Endpoints, discoveryv1.Endpoint{
			Addresses:  []string{a.String()},
			Conditions: discoveryv1.EndpointConditions{Ready: ptr.To(true), Serving: ptr.To(true), Terminating: ptr.To(false)},
			NodeName:   ptr.To(fmt.Sprintf("node-%d", j)),
			TargetRef: &corev1.ObjectReference{
				Kind: "Pod", Namespace: namespace, Name: fmt.Sprintf("%s-%x", name(i), a.As4()),
				UID: types.UID(fmt.Sprintf("00000000-0000-4000-8000-0000%x", a.As4())),
			},
		})
	}
	return s
}
