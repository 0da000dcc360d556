// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// waitsFor is a dataplane that tells when it has a change of Service s1.
type waitsFor struct {
	*nftables.Dataplane
	has chan bool
}

func (d waitsFor) Apply(ctx context.Context, c *desired.Change) (dataplane.Stats, error) {
	s, err := d.Dataplane.Apply(ctx, c)
	for _, p := range c.Pools {
		if p.Service.Name == "s1" {
			d.has <- true
		}
	}
	return s, err
}

// processorTime is that of this process so far.
func processorTime() time.Duration {
	var u syscall.Rusage
	_ = syscall.Getrusage(syscall.RUSAGE_SELF, &u)
	return time.Duration(u.Utime.Nano() + u.Stime.Nano())
}

// BenchmarkBesideReplaced measures how long a Service's change takes until the kernel has it, while another namespace
// replaces 65,000 endpoints as fast as it can: by the clock, and in processor time of the whole process meanwhile. Where
// the first is much larger, other programs have the processors.
func BenchmarkBesideReplaced(b *testing.B) {
	kerneltest.Require(b, kerneltest.NFTables)
	node, err := kerneltest.NewLab(b).Node("n1", lab.NodeOptions{Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")}})
	check(b, err)
	backend, err := nftables.New(dataplane.Config{NetNS: node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	check(b, err)
	defer func() { check(b, backend.Close()) }()
	kernel := waitsFor{backend, make(chan bool, 10)}
	events, done, ready := make(script), make(chan error, 1), make(chan bool)
	loop := New(events, desired.New(desired.Config{}), kernel, metrics.New(), Options{
		MinSyncPeriod: time.Millisecond, CheckPeriod: time.Second, Ready: func(context.Context) { close(ready) },
	})
	ctx, cancel := context.WithCancel(b.Context())
	go func() { done <- loop.Run(ctx) }()
	defer func() {
		cancel()
		check(b, <-done)
	}()
	events <- append(many(1, 1), service(2), synced)
	<-ready
	const ports, endpoints = 65, 1000
	svc := &corev1.Service{ObjectMeta: metav1.ObjectMeta{Namespace: "tenant", Name: "x"}, Spec: corev1.ServiceSpec{ClusterIP: "10.97.0.1"}}
	var versions [2][]source.Event
	for v := range versions {
		sl := &discoveryv1.EndpointSlice{
			ObjectMeta:  metav1.ObjectMeta{Namespace: "tenant", Name: "x", Labels: map[string]string{discoveryv1.LabelServiceName: "x"}},
			AddressType: discoveryv1.AddressTypeIPv4,
		}
		for i := range ports {
			name := fmt.Sprint("p", i)
			if v == 0 {
				svc.Spec.Ports = append(svc.Spec.Ports, corev1.ServicePort{Name: name, Port: int32(i + 1)})
			}
			sl.Ports = append(sl.Ports, discoveryv1.EndpointPort{Name: ptr.To(name), Port: ptr.To(int32(i + 1))})
		}
		for i := range endpoints {
			sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{Addresses: []string{fmt.Sprintf("10.%d.%d.%d", 128+v, i>>8, i&255)}})
		}
		versions[v] = []source.Event{{Type: source.Set, Object: sl}}
	}
	events <- append([]source.Event{{Type: source.Set, Object: svc}}, versions[1]...) // the creation is not measured
	for _, attacked := range []bool{false, true} {
		b.Run(fmt.Sprintf("attacked=%t", attacked), func(b *testing.B) {
			stop := make(chan bool)
			var attack sync.WaitGroup
			if attacked {
				attack.Go(func() {
					for i := 0; ; i++ {
						select {
						case <-stop:
							return
						case events <- versions[i%2]:
							time.Sleep(50 * time.Millisecond)
						}
					}
				})
			}
			var clock, cpu []time.Duration
			for n := 0; b.Loop(); n++ {
				e := many(1, 1)[1:]
				e[0].Object.(*discoveryv1.EndpointSlice).Endpoints[0].Addresses[0] = fmt.Sprintf("10.120.%d.%d", n>>8&255, n&255)
				time.Sleep(30 * time.Millisecond)
				begin, used := time.Now(), processorTime()
				events <- e
				<-kernel.has
				clock, cpu = append(clock, time.Since(begin)), append(cpu, processorTime()-used)
			}
			close(stop)
			attack.Wait()
			for name, all := range map[string][]time.Duration{"clock": clock, "cpu": cpu} {
				slices.Sort(all)
				b.ReportMetric(all[len(all)/2].Seconds()*1000, name+"-p50-ms")
				b.ReportMetric(all[len(all)*99/100].Seconds()*1000, name+"-p99-ms")
			}
		})
	}
}
