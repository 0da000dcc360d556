// SPDX-License-Identifier: Apache-2.0

package desired

import (
	"fmt"
	"math/rand/v2"
	"testing"
	"time"

	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// The world of the fuzzer is small, so that its objects meet: few Services that
// share addresses and ports, few slices that share endpoints, on two nodes.
const (
	fuzzServices = 4
	fuzzSlices   = 6
)

// choices turns fuzz input into decisions; after its end all are 0.
type choices struct{ rest []byte }

func (c *choices) below(n int) int {
	if len(c.rest) == 0 {
		return 0
	}
	b := c.rest[0]
	c.rest = c.rest[1:]
	return int(b) % n
}

func (c *choices) yes() bool { return c.below(2) == 1 }

// world is the objects as an API server would have them.
type world struct {
	services [fuzzServices]*corev1.Service
	slices   [fuzzSlices]*discoveryv1.EndpointSlice
}

// once in n times, something unusual is done.
func (c *choices) once(n int) bool { return c.below(n) == n-1 }

// fuzzPorts are names and protocols that Services and slices have in common.
var fuzzPorts = []struct {
	name     string
	protocol corev1.Protocol
}{{"http", ""}, {"http", corev1.ProtocolTCP}, {"dns", corev1.ProtocolUDP}, {"dns", corev1.ProtocolTCP}, {"", corev1.ProtocolTCP}}

// service makes up a Service. Now and then its addresses are another one's.
func (c *choices) service(i int) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("svc", i)}}
	if c.once(4) {
		i = c.below(fuzzServices)
	}
	svc.CreationTimestamp = metav1.NewTime(time.Unix(int64(1+c.below(3)), 0))
	v4, v6 := fmt.Sprintf("10.96.0.%d", 1+i), fmt.Sprintf("fd00:96::%x", 1+i)
	svc.Spec.ClusterIPs = [][]string{{v4, v6}, {v6, v4}, {v4}, {v6}}[c.below(4)]
	switch {
	case c.once(16):
		svc.Spec.ClusterIPs = []string{"None"}
	case c.once(16):
		svc.Spec.Type = corev1.ServiceTypeExternalName
	case c.once(16):
		svc.Labels = map[string]string{labelProxyName: "another"}
	}
	if c.once(3) {
		svc.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	}
	for range 1 + c.below(3) {
		p := fuzzPorts[c.below(len(fuzzPorts))]
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: p.name, Protocol: p.protocol, Port: int32(80 + c.below(2))})
	}
	return svc
}

func (c *choices) slice(i int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprint("slice", i),
			Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("svc", c.below(fuzzServices))},
		},
		AddressType: discoveryv1.AddressTypeIPv4,
	}
	if c.once(3) {
		s.AddressType = discoveryv1.AddressTypeIPv6
	} else if c.once(20) {
		s.AddressType = discoveryv1.AddressTypeFQDN
	}
	for range 1 + c.below(4) {
		p := fuzzPorts[c.below(len(fuzzPorts))]
		port := discoveryv1.EndpointPort{Port: ptr.To(int32(8080 + c.below(2)))}
		if p.name != "" {
			port.Name = &p.name
		}
		if p.protocol != "" {
			port.Protocol = &p.protocol
		}
		s.Ports = append(s.Ports, port)
	}
	n := c.below(6)
	if c.once(4) { // pools cross the size from which they keep an index
		n = 20 + c.below(20)
	}
	for range n {
		s.Endpoints = append(s.Endpoints, c.endpoint(s.AddressType))
	}
	return s
}

// endpoint makes up an endpoint, of few addresses, so that slices share them.
func (c *choices) endpoint(t discoveryv1.AddressType) discoveryv1.Endpoint {
	format := map[discoveryv1.AddressType]string{
		discoveryv1.AddressTypeIPv4: "10.0.0.%d", discoveryv1.AddressTypeIPv6: "fd00::%x", discoveryv1.AddressTypeFQDN: "host%d.example",
	}[t]
	addresses := 8
	if c.once(3) {
		addresses = 60
	}
	e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf(format, 1+c.below(addresses))}}
	conditions := c.below(8)
	if conditions&1 != 0 {
		e.Conditions.Ready = ptr.To(c.yes())
	}
	if conditions&2 != 0 {
		e.Conditions.Serving = ptr.To(c.yes())
	}
	if conditions&4 != 0 {
		e.Conditions.Terminating = ptr.To(c.yes())
	}
	e.NodeName = []*string{nil, ptr.To("here"), ptr.To("there")}[c.below(3)]
	return e
}

// edit makes a small change to a slice.
func (c *choices) edit(s *discoveryv1.EndpointSlice) *discoveryv1.EndpointSlice {
	s = s.DeepCopy()
	n := len(s.Endpoints)
	switch {
	case n == 0 || c.once(3):
		s.Endpoints = append(s.Endpoints, c.endpoint(s.AddressType))
	case c.yes():
		i := c.below(n)
		s.Endpoints = append(s.Endpoints[:i], s.Endpoints[i+1:]...)
	default:
		s.Endpoints[c.below(n)] = c.endpoint(s.AddressType)
	}
	return s
}

// step changes the world and the state in the same way.
func (c *choices) step(w *world, s *State) {
	what, service, slice := c.below(16), c.below(fuzzServices), c.below(fuzzSlices)
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

// fresh is a State that learns of the world all at once, in some order.
func (w *world) fresh(config Config, order *rand.Rand) *State {
	s := New(config)
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
	return s
}

// checkSequence runs a sequence of events and returns an error unless every
// change fits the content before it, and the end is what a fresh computation
// comes to.
func checkSequence(input []byte) error {
	c := &choices{rest: input}
	config := Config{NodeName: "here"}
	var w world
	s := New(config)
	kernel := newModel()
	for len(c.rest) > 0 {
		c.step(&w, s)
		if c.below(3) > 0 {
			continue // let some more events come together
		}
		if c.below(8) == 0 { // as after a failure
			kernel = newModel()
			if err := kernel.apply(s.Full()); err != nil {
				return fmt.Errorf("full: %w", err)
			}
			continue
		}
		if err := kernel.apply(s.Change()); err != nil {
			return fmt.Errorf("change: %w", err)
		}
	}
	if err := kernel.apply(s.Change()); err != nil {
		return fmt.Errorf("last change: %w", err)
	}
	again := s.Change()
	if !again.Empty() {
		return fmt.Errorf("a change without an event: %+v", again)
	}
	var seed [32]byte
	copy(seed[:], input)
	fresh := w.fresh(config, rand.New(rand.NewChaCha8(seed)))
	for what, other := range map[string]*State{"the state's own full content": s, "a fresh computation": fresh} {
		full := newModel()
		if err := full.apply(other.Full()); err != nil {
			return fmt.Errorf("%s: %w", what, err)
		}
		if got, want := kernel.String(), full.String(); got != want {
			return fmt.Errorf("%s differs; by changes:\n%s\n\nfull:\n%s", what, got, want)
		}
	}
	return checkResidue(s)
}

// checkResidue returns an error when a State remembers more than it has to: of
// endpoints that are gone, and of anything once all objects are.
func checkResidue(s *State) error {
	for _, p := range s.pools {
		if p == nil {
			continue
		}
		for _, e := range p.entries {
			if e.slices == 0 {
				return fmt.Errorf("pool %s remembers %s, which is in no slice", p.port.name, e.backend)
			}
		}
	}
	for i := range max(fuzzServices, fuzzSlices) {
		s.DeleteService("ns", fmt.Sprint("svc", i))
		s.DeleteEndpointSlice("ns", fmt.Sprint("slice", i))
	}
	s.Change()
	if n := len(s.services) + len(s.slices) + len(s.frontends) + len(s.clusterIPs.all) + len(s.hairpins.all) + len(s.pools) - len(s.freePools) + s.proxied; n != 0 {
		return fmt.Errorf("%d things are remembered after all objects are gone", n)
	}
	return nil
}

func FuzzEvents(f *testing.F) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 20 {
		input := make([]byte, 1<<r.IntN(12))
		for i := range input {
			input[i] = byte(r.Uint32())
		}
		f.Add(input)
	}
	f.Fuzz(func(t *testing.T, input []byte) {
		if err := checkSequence(input); err != nil {
			t.Fatal(err)
		}
	})
}

// TestRandomSequences is the fuzzer's property on long random inputs, which a
// coverage-guided fuzzer with its short ones seldom comes to.
func TestRandomSequences(t *testing.T) {
	n := 300
	if testing.Short() {
		n = 30
	}
	for i := range n {
		seed := uint64(time.Now().UnixNano()) + uint64(i)
		r := rand.New(rand.NewPCG(seed, 0))
		input := make([]byte, 20_000)
		for i := range input {
			input[i] = byte(r.Uint32())
		}
		if err := checkSequence(input); err != nil {
			t.Fatalf("seed %d: %v", seed, err)
		}
	}
}
