// SPDX-License-Identifier: Apache-2.0

// Package desiredtest makes up sequences of events for tests of the desired
// state and of backends: Services and EndpointSlices that come, change a little
// or a lot, and go.
package desiredtest

import (
	"fmt"
	"math/rand/v2"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// The world is small, so that its objects meet: few Services that
// share addresses and ports, few slices that share endpoints, on two nodes.
const (
	services = 4
	slices   = 6
)

// ThisNode is the name of the node that events are made up for.
const ThisNode = "here"

// State is what learns of events: a desired.State.
type State interface {
	SetService(*corev1.Service)
	DeleteService(namespace, name string)
	SetEndpointSlice(*discoveryv1.EndpointSlice)
	DeleteEndpointSlice(namespace, name string)
}

// Choices turns bytes, random or a fuzzer's, into decisions. After their end
// all are 0.
type Choices struct{ rest []byte }

// NewChoices takes decisions from input.
func NewChoices(input []byte) *Choices { return &Choices{input} }

// RandomInput is n random bytes, the same ones for the same seed.
func RandomInput(seed uint64, n int) []byte {
	r := rand.New(rand.NewPCG(seed, 0))
	input := make([]byte, n)
	for i := range input {
		input[i] = byte(r.Uint32())
	}
	return input
}

// More says whether there are decisions left.
func (c *Choices) More() bool { return len(c.rest) > 0 }

// Below decides for a number from 0 to n-1; n is at most 256.
func (c *Choices) Below(n int) int {
	if len(c.rest) == 0 {
		return 0
	}
	b := c.rest[0]
	c.rest = c.rest[1:]
	return int(b) % n
}

func (c *Choices) yes() bool { return c.Below(2) == 1 }

// World is the objects as an API server would have them.
type World struct {
	services [services]*corev1.Service
	slices   [slices]*discoveryv1.EndpointSlice
}

// once in n times, something unusual is done.
func (c *Choices) once(n int) bool { return c.Below(n) == n-1 }

// portNames are names and protocols that Services and slices have in common.
var portNames = []struct {
	name     string
	protocol corev1.Protocol
}{{"http", ""}, {"http", corev1.ProtocolTCP}, {"dns", corev1.ProtocolUDP}, {"dns", corev1.ProtocolTCP}, {"", corev1.ProtocolTCP}}

// service makes up a Service. Now and then its addresses are another one's.
func (c *Choices) service(i int) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("svc", i)}}
	if c.once(4) {
		i = c.Below(services)
	}
	svc.CreationTimestamp = metav1.NewTime(time.Unix(int64(1+c.Below(3)), 0))
	v4, v6 := fmt.Sprintf("10.96.0.%d", 1+i), fmt.Sprintf("fd00:96::%x", 1+i)
	svc.Spec.ClusterIPs = [][]string{{v4, v6}, {v6, v4}, {v4}, {v6}}[c.Below(4)]
	switch {
	case c.once(16):
		svc.Spec.ClusterIPs = []string{"None"}
	case c.once(16):
		svc.Spec.Type = corev1.ServiceTypeExternalName
	case c.once(16):
		svc.Labels = map[string]string{"service.kubernetes.io/service-proxy-name": "another"}
	}
	if c.once(3) {
		svc.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	}
	for range 1 + c.Below(3) {
		p := portNames[c.Below(len(portNames))]
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: p.name, Protocol: p.protocol, Port: int32(80 + c.Below(2))})
	}
	return svc
}

func (c *Choices) slice(i int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprint("slice", i),
			Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("svc", c.Below(services))},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if c.once(3) {
		s.AddressType = discoveryv1.AddressTypeIPv6
	} else if c.once(20) {
		s.AddressType = discoveryv1.AddressTypeFQDN
	}
	for range 1 + c.Below(4) {
		p := portNames[c.Below(len(portNames))]
		port := discoveryv1.EndpointPort{Port: ptr.To(int32(8080 + c.Below(2)))}
		if p.name != "" {
			port.Name = &p.name
		}
		if p.protocol != "" {
			port.Protocol = &p.protocol
		}
		s.Ports = append(s.Ports, port)
	}
	n := c.Below(6)
	if c.once(4) { // pools cross the size from which they keep an index
		n = 20 + c.Below(20)
	}
	for range n {
		s.Endpoints = append(s.Endpoints, c.endpoint(s.AddressType))
	}
	return s
}

// endpoint makes up an endpoint, of few addresses, so that slices share them.
func (c *Choices) endpoint(t discoveryv1.AddressType) discoveryv1.Endpoint {
	format := map[discoveryv1.AddressType]string{
		discoveryv1.AddressTypeIPv4: "10.0.0.%d", discoveryv1.AddressTypeIPv6: "fd00::%x", discoveryv1.AddressTypeFQDN: "host%d.example",
	}[t]
	addresses := 8
	if c.once(3) {
		addresses = 60
	}
	e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf(format, 1+c.Below(addresses))}}
	conditions := c.Below(8)
	if conditions&1 != 0 {
		e.Conditions.Ready = ptr.To(c.yes())
	}
	if conditions&2 != 0 {
		e.Conditions.Serving = ptr.To(c.yes())
	}
	if conditions&4 != 0 {
		e.Conditions.Terminating = ptr.To(c.yes())
	}
	e.NodeName = []*string{nil, ptr.To(ThisNode), ptr.To("there")}[c.Below(3)]
	return e
}

// edit makes a small change to a slice.
func (c *Choices) edit(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s = s.DeepCopy()
	n := len(s.Endpoints)
	switch {
	case n == 0 || c.once(3):
		s.Endpoints = append(s.Endpoints, c.endpoint(s.AddressType))
	case c.yes():
		i := c.Below(n)
		s.Endpoints = append(s.Endpoints[:i], s.Endpoints[i+1:]...)
	default:
		s.Endpoints[c.Below(n)] = c.endpoint(s.AddressType)
	}
	return s
}

// Step changes the world and the state in the same way.
func (w *World) Step(c *Choices, s State) {
	what, service, slice := c.Below(16), c.Below(services), c.Below(slices)
	switch {
	case what == 0:
		w.services[service] = nil
		s.DeleteService("ns", fmt.Sprint("svc", service))
	case what == 1:
		w.slices[slice] = nil
		s.DeleteEndpointSlice("ns", fmt.Sprint("slice", slice))
	case what < 5:
		w.services[service] = c.service(service)
		s.SetService(w.services[service])
	case what < 10 && w.slices[slice] != nil:
		w.slices[slice] = c.edit(w.slices[slice])
		s.SetEndpointSlice(w.slices[slice])
	default:
		w.slices[slice] = c.slice(slice)
		s.SetEndpointSlice(w.slices[slice])
	}
}

// Tell tells a state of all objects, in random order.
func (w *World) Tell(s State, order *rand.Rand) {
	var sets []func()
	for _, svc := range w.services {
		if svc != nil {
			sets = append(sets, func() { s.SetService(svc) })
		}
	}
	for _, sl := range w.slices {
		if sl != nil {
			sets = append(sets, func() { s.SetEndpointSlice(sl) })
		}
	}
	order.Shuffle(len(sets), func(i, j int) { sets[i], sets[j] = sets[j], sets[i] })
	for _, set := range sets {
		set()
	}
}

// Clear deletes all objects.
func (w *World) Clear(s State) {
	for i := range services {
		s.DeleteService("ns", fmt.Sprint("svc", i))
	}
	for i := range slices {
		s.DeleteEndpointSlice("ns", fmt.Sprint("slice", i))
	}
	*w = World{}
}
