// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// TestVerifyWhileChanging checks that no difference is found in the real kernel while Services
// and endpoints are added and removed during all looks.
func TestVerifyWhileChanging(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	node, err := kerneltest.NewLab(t).Node("n1", lab.NodeOptions{Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")}})
	check(t, err)
	c := dataplane.Config{NetNS: node.FD(), MasqueradeBit: dataplane.DefaultMasqueradeBit}
	kernel, err := nftables.New(c)
	check(t, err)
	defer kernel.Close()
	reported := make(notes, 100)
	l := &loop{t: t, events: make(script), metrics: metrics.New(), done: make(chan error, 1)}
	l.metrics.OnVerify()
	l.proxy = New(l.events, desired.New(desired.Config{}), kernel, l.metrics, Options{
		MinSyncPeriod: time.Nanosecond, CheckPeriod: 10 * time.Millisecond, Events: reported,
		VerifyPeriod: time.Millisecond, OpenReader: func(context.Context) (Reader, error) { return nftables.New(c) },
	})
	ctx, cancel := context.WithCancel(t.Context())
	defer cancel()
	go func() { l.done <- l.proxy.Run(ctx) }()
	var all []source.Event
	for i := range 300 {
		all = append(all, many(i, 3)...)
	}
	l.events <- append(all, synced)
	for i, begin := 0, time.Now(); time.Since(begin) < 2*time.Second || l.verified("same") < 20; i++ {
		// Service 0 flaps, Service 1 has other endpoints, others go and come.
		l.events <- many(0, 3+i%2)
		gone := many(2+i/2%298, 3)[:1]
		if i%2 == 0 {
			gone[0].Type = source.Delete
		}
		l.events <- append(gone, many(1, 2+i%3)...)
		if time.Since(begin) > 5*time.Minute {
			t.Fatal("there are no runs")
		}
	}
	cancel()
	if err := <-l.done; err != nil {
		t.Error(err)
	}
	for len(reported) > 0 {
		t.Errorf("reported %q", <-reported)
	}
	if n := l.verified("different") + l.verified("failed"); n != 0 {
		t.Errorf("%d runs found a difference or failed", n)
	}
	t.Logf("%d runs found none", l.verified("same"))
}
