// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"context"
	"math/rand/v2"

	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
)

// feed is a source that delivers a cluster's objects, in random order and in several batches.
// Some are delivered in another version before, so that most of the final content results from
// changes.
type feed struct {
	*rand.Rand
	before, after []source.Event // Synced comes between
}

func newFeed(c *Cluster) *feed {
	f := &feed{Rand: rand.New(rand.NewPCG(c.Seed, 1))}
	for _, o := range c.Objects() {
		if earlier := f.earlier(o); earlier != nil {
			f.before = append(f.before, set(earlier))
			f.after = append(f.after, set(o))
		} else if f.IntN(2) == 0 {
			f.before = append(f.before, set(o))
		} else {
			f.after = append(f.after, set(o))
		}
	}
	for _, events := range [][]source.Event{f.before, f.after} {
		f.Shuffle(len(events), func(i, j int) { events[i], events[j] = events[j], events[i] })
	}
	return f
}

func set(o source.Object) source.Event { return source.Event{Type: source.Set, Object: o} }

// earlier makes up another version of an object, or none.
func (f *feed) earlier(o source.Object) source.Object {
	if f.IntN(2) == 0 {
		return nil
	}
	switch o := o.(type) {
	case *discoveryv1.EndpointSlice:
		o = o.DeepCopy()
		f.Shuffle(len(o.Endpoints), func(i, j int) { o.Endpoints[i], o.Endpoints[j] = o.Endpoints[j], o.Endpoints[i] })
		o.Endpoints = o.Endpoints[:f.IntN(len(o.Endpoints)+1)]
		for i := range o.Endpoints {
			if f.IntN(3) == 0 {
				o.Endpoints[i].Conditions = discoveryv1.EndpointConditions{}
			}
			if f.IntN(3) == 0 {
				o.Endpoints[i].Hints, o.Endpoints[i].NodeName = nil, nil
			}
		}
		return o
	case *corev1.Service:
		o = o.DeepCopy()
		switch f.IntN(5) {
		case 0:
			o.Spec.ExternalTrafficPolicy = ""
			o.Spec.HealthCheckNodePort = 0
		case 1:
			o.Spec.InternalTrafficPolicy = nil
		case 2:
			o.Spec.SessionAffinity = corev1.ServiceAffinityNone
		case 3:
			o.Spec.ExternalIPs, o.Spec.LoadBalancerSourceRanges = nil, nil
			o.Status = corev1.ServiceStatus{}
		default:
			o.Spec.Ports = o.Spec.Ports[:f.IntN(len(o.Spec.Ports)+1)]
		}
		return o
	}
	return nil
}

// Run implements source.Source.
func (f *feed) Run(ctx context.Context, sink func([]source.Event)) error {
	for i, events := range [][]source.Event{f.before, f.after} {
		if i == 1 {
			sink([]source.Event{{Type: source.Synced}})
		}
		for len(events) > 0 && ctx.Err() == nil {
			n := min(len(events), 1+f.IntN(4))
			sink(events[:n])
			events = events[n:]
		}
	}
	<-ctx.Done()
	return nil
}
