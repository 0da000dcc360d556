// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// free is a kernel that costs nothing.
type free struct{ recorder }

func (*free) Apply(context.Context, *desired.Change) (dataplane.Stats, error) {
	return dataplane.Stats{}, nil
}
func (*free) Reconcile(context.Context, *desired.Change) (dataplane.Stats, error) {
	return dataplane.Stats{}, nil
}

// BenchmarkChange measures the loop's cost of one changed endpoint, with metrics and
// Events, without the kernel.
func BenchmarkChange(b *testing.B) {
	for _, endpoints := range []int{10, 100} {
		b.Run(fmt.Sprintf("endpoints=%d", endpoints), func(b *testing.B) {
			p := New(script(nil), desired.New(desired.Config{}), &free{}, metrics.New(), Options{})
			version := func(last int) []source.Event {
				sl := &discoveryv1.EndpointSlice{
					ObjectMeta: metav1.ObjectMeta{
						Namespace: "default", Name: "s1-abcde",
						Labels:      map[string]string{discoveryv1.LabelServiceName: "s1"},
						Annotations: map[string]string{corev1.EndpointsLastChangeTriggerTime: time.Now().UTC().Format(time.RFC3339Nano)},
					},
					AddressType: discoveryv1.AddressTypeIPv4,
					Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
				}
				for i := range endpoints - 1 {
					sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.0.%d", i+1)}})
				}
				sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.244.1.%d", last)}})
				return []source.Event{{Type: source.Set, Object: sl}}
			}
			versions := [][]source.Event{version(1), version(2)}
			p.applyBatch([]source.Event{service(1), synced})
			p.lateness.waiting() // as the loop has it before
			p.sync(b.Context())
			b.ReportAllocs()
			for i := 0; b.Loop(); i++ {
				p.applyBatch(versions[i%2])
				p.lateness.waiting() // as the loop has it before
				p.sync(b.Context())
			}
		})
	}
}
