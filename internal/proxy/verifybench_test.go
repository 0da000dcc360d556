// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"bytes"
	"context"
	"fmt"
	"net/netip"
	"os"
	"runtime/debug"
	"strconv"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/iptables"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/utils/ptr"
)

// BenchmarkVerify measures the cost of one look at the kernel's whole content in each mode: its
// time, CPU and memory, and for how long the loop waits for it.
func BenchmarkVerify(b *testing.B) {
	const services, endpoints = 10_000, 10
	for _, mode := range []struct {
		name  string
		needs []kerneltest.Feature
		new   func(dataplane.Config) (dataplane.Dataplane, error)
	}{
		{"nftables", []kerneltest.Feature{kerneltest.NFTables}, func(c dataplane.Config) (dataplane.Dataplane, error) { return nftables.New(c) }},
		{"iptables-nft", []kerneltest.Feature{kerneltest.IPTablesNFT, kerneltest.IPSet}, func(c dataplane.Config) (dataplane.Dataplane, error) {
			return iptables.New(context.Background(), c, iptables.Options{Variant: iptables.NFT})
		}},
		{"iptables-legacy", []kerneltest.Feature{kerneltest.IPTablesLegacy, kerneltest.IPSet}, func(c dataplane.Config) (dataplane.Dataplane, error) {
			return iptables.New(context.Background(), c, iptables.Options{Variant: iptables.Legacy})
		}},
	} {
		b.Run(fmt.Sprintf("%s/%dx%d", mode.name, services, endpoints), func(b *testing.B) {
			kerneltest.Require(b, mode.needs...)
			node, err := kerneltest.NewLab(b).Node("n1", lab.NodeOptions{Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")}})
			check(b, err)
			c := dataplane.Config{NetNS: node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit}
			kernel, err := mode.new(c)
			check(b, err)
			defer kernel.Close()
			state := desired.New(desired.Config{})
			for i := range services {
				for _, e := range many(i, endpoints) {
					ApplyEvent(state, e)
				}
			}
			_, err = kernel.Reconcile(b.Context(), &state.Full().Change)
			check(b, err)
			open := func(ctx context.Context) (Reader, error) {
				k, err := mode.new(c)
				if err != nil {
					return nil, err
				}
				return k.(Reader), nil
			}
			var reported, took time.Duration
			var memory int64
			cpu := cpuTime(b)
			for b.Loop() {
				before := resident(b, true)
				start := time.Now()
				content := state.Reported()
				reported += time.Since(start)
				to := make(chan lookResult, 1)
				look(b.Context(), open, content, to)
				s := <-to
				if s.err != nil || len(s.differences) > 0 {
					b.Fatal(s.err, len(s.differences))
				}
				took += s.took
				memory = max(memory, resident(b, false)-before)
			}
			b.ReportMetric(0, "ns/op")
			b.ReportMetric(reported.Seconds()*1e3/float64(b.N), "ms-loop/op")
			b.ReportMetric(took.Seconds()/float64(b.N), "s-look/op")
			b.ReportMetric((cpuTime(b)-cpu).Seconds()/float64(b.N), "s-CPU/op")
			b.ReportMetric(float64(memory>>20), "MB-more")
		})
	}
}

func check(tb testing.TB, err error) {
	tb.Helper()
	if err != nil {
		tb.Fatal(err)
	}
}

// many are the objects of a Service of many.
func many(i, endpoints int) []source.Event {
	name := fmt.Sprint("s", i)
	svc := &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Namespace: "default", Name: name},
		Spec:       corev1.ServiceSpec{ClusterIP: netip.AddrFrom4([4]byte{10, 96, byte(i >> 8), byte(i)}).String(), Ports: []corev1.ServicePort{{Port: 80}}},
	}
	sl := &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Namespace: "default", Name: name, Labels: map[string]string{discoveryv1.LabelServiceName: name}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Ports:       []discoveryv1.EndpointPort{{Port: ptr.To[int32](8080)}},
	}
	for n := range endpoints {
		pod := i*endpoints + n
		sl.Endpoints = append(sl.Endpoints, discoveryv1.Endpoint{
			Addresses: []string{netip.AddrFrom4([4]byte{10, byte(128 + pod>>16), byte(pod >> 8), byte(pod)}).String()}, NodeName: ptr.To("n2"),
		})
	}
	return []source.Event{{Type: source.Set, Object: svc}, {Type: source.Set, Object: sl}}
}

// cpuTime is the processor time that this process and its commands have used so far.
func cpuTime(b *testing.B) (sum time.Duration) {
	for _, who := range []int{unix.RUSAGE_SELF, unix.RUSAGE_CHILDREN} {
		var u unix.Rusage
		check(b, unix.Getrusage(who, &u))
		sum += time.Duration(u.Utime.Nano() + u.Stime.Nano())
	}
	return sum
}

// resident returns the peak of this process's memory since the last reset, in bytes. With
// reset, it resets the peak first.
func resident(b *testing.B, reset bool) int64 {
	if reset {
		debug.FreeOSMemory()
		check(b, os.WriteFile("/proc/self/clear_refs", []byte("5"), 0))
	}
	status, err := os.ReadFile("/proc/self/status")
	check(b, err)
	_, line, _ := bytes.Cut(status, []byte("VmHWM:"))
	kB, err := strconv.ParseInt(string(bytes.Fields(line)[0]), 10, 64)
	check(b, err)
	return kB << 10
}
