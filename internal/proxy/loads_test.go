// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/load"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/test/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/lab"
	corev1 "k8s.io/api/core/v1"
)

// TestLeastConnections has one backend with many connections. New ones go to the others. When the
// Service loses its annotation, the busy backend gets its share again.
func TestLeastConnections(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	const ports, busy, tries = 3, 30, 100
	street := dataplanetest.NewStreet(t, ports)
	kernel, err := nftables.New(dataplane.Config{NetNS: street.Node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit})
	check(t, err)
	defer kernel.Close()
	counter := load.New(street.Node.FD())
	events, done := make(script), make(chan error, 1)
	p := New(events, desired.New(desired.Config{Loads: counter}), kernel, metrics.New(), Options{CheckPeriod: time.Hour, Loads: counter})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { done <- p.Run(ctx) }()

	service := dataplanetest.Service(corev1.ServiceSpec{})
	service.Annotations = map[string]string{desired.AnnotationScheduler: "lc"}
	events <- []source.Event{{Type: source.Set, Object: service}, {Type: source.Set, Object: dataplanetest.Slice(0)}, synced}
	web := netip.MustParseAddrPort("10.96.0.1:80")
	connect := func() (port uint16) {
		t.Helper()
		reply, err := street.Client.Connect(lab.TCP, web)
		check(t, err)
		return reply.Local.Port()
	}
	for deadline := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if _, err := street.Client.Connect(lab.TCP, web); err == nil {
			break
		} else if time.Now().After(deadline) {
			t.Fatal(err)
		}
	}
	for range busy {
		s, err := street.Client.Stream(lab.TCP, web, time.Second)
		check(t, err)
		defer s.Close()
	}
	for i := 1; i < ports; i++ {
		events <- []source.Event{{Type: source.Set, Object: dataplanetest.Slice(i)}}
	}
	const first = dataplanetest.FirstPort
	// await connects until the busy backend has so many of some tries.
	await := func(what string, enough func(n int) bool) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); ; {
			n := 0
			for range tries {
				if connect() == first {
					n++
				}
			}
			if enough(n) {
				return
			}
			if time.Now().After(deadline) {
				t.Fatalf("%s: the busy backend got %d of %d connections", what, n, tries)
			}
		}
	}
	// Of evenly spread connections it would get none with a probability of 1e-18.
	await("least connections", func(n int) bool { return n == 0 })
	events <- []source.Event{{Type: source.Set, Object: dataplanetest.Service(corev1.ServiceSpec{})}}
	await("random", func(n int) bool { return n > tries/10 })
	cancel()
	check(t, <-done)
}
