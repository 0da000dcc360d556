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

// service makes up a Service. Its addresses collide with other Services' in one
// case of four.
func (c *choices) service(i int) *corev1.Service {
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "ns", Name: fmt.Sprint("svc", i)}}
	if c.below(4) == 0 {
		i = 0
	}
	svc.CreationTimestamp = metav1.NewTime(time.Unix(int64(1+c.below(2)), 0))
	v4, v6 := fmt.Sprintf("10.96.0.%d", 1+i), fmt.Sprintf("fd00:96::%x", 1+i)
	svc.Spec.ClusterIPs = [][]string{{v4}, {v6}, {v4, v6}, {v6, v4}, {"None"}, {}}[c.below(6)]
	switch c.below(8) {
	case 0:
		svc.Spec.Type = corev1.ServiceTypeExternalName
	case 1:
		svc.Labels = map[string]string{labelProxyName: "another"}
	}
	if c.yes() {
		svc.Spec.InternalTrafficPolicy = ptr.To(corev1.ServiceInternalTrafficPolicyLocal)
	}
	for range c.below(4) {
		svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{
			Name:     []string{"", "http", "dns"}[c.below(3)],
			Protocol: []corev1.Protocol{"", corev1.ProtocolTCP, corev1.ProtocolUDP, corev1.ProtocolSCTP}[c.below(4)],
			Port:     []int32{53, 80, 81}[c.below(3)],
		})
	}
	return svc
}

func (c *choices) slice(i int) *discoveryv1.EndpointSlice {
	s := &discoveryv1.EndpointSlice{
		ObjectMeta: metav1.ObjectMeta{
			Namespace: "ns", Name: fmt.Sprint("slice", i),
			Labels: map[string]string{discoveryv1.LabelServiceName: fmt.Sprint("svc", c.below(fuzzServices))},
		},
		AddressType: []discoveryv1.AddressType{discoveryv1.AddressTypeIPv4, discoveryv1.AddressTypeIPv6, discoveryv1.AddressTypeFQDN}[c.below(3)],
	}
	format := map[discoveryv1.AddressType]string{
		discoveryv1.AddressTypeIPv4: "10.0.0.%d", discoveryv1.AddressTypeIPv6: "fd00::%x", discoveryv1.AddressTypeFQDN: "host%d.example",
	}[s.AddressType]
	for range c.below(4) {
		p := discoveryv1.EndpointPort{Port: ptr.To(int32(8080 + c.below(2)))}
		if c.below(8) != 0 {
			p.Name = ptr.To([]string{"", "http", "dns"}[c.below(3)])
		}
		if c.yes() {
			p.Protocol = ptr.To([]corev1.Protocol{corev1.ProtocolTCP, corev1.ProtocolUDP}[c.below(2)])
		}
		s.Ports = append(s.Ports, p)
	}
	// Up to 45 endpoints, so that pools cross the size from which they keep
	// an index.
	for range c.below(6) * c.below(10) {
		e := discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf(format, 1+c.below(48))}}
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
		s.Endpoints = append(s.Endpoints, e)
	}
	return s
}

// step changes the world and the state in the same way.
func (c *choices) step(w *world, s *State) {
	switch c.below(8) {
	case 0:
		i := c.below(fuzzServices)
		w.services[i] = nil
		s.DeleteService("ns", fmt.Sprint("svc", i))
	case 1:
		i := c.below(fuzzSlices)
		w.slices[i] = nil
		s.DeleteEndpointSlice("ns", fmt.Sprint("slice", i))
	case 2, 3, 4:
		i := c.below(fuzzServices)
		w.services[i] = c.service(i)
		s.SetService(w.services[i])
	default:
		i := c.below(fuzzSlices)
		w.slices[i] = c.slice(i)
		s.SetEndpointSlice(w.slices[i])
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
