// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"errors"
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/slipstream-proxy/slipstream/test/cluster/site"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// TestProber uses a rule that first sends connections nowhere, then to one pod, then to another
// one.
func TestProber(t *testing.T) {
	kerneltest.Require(t, kerneltest.Root, kerneltest.NFTables, kerneltest.NFTBinary)
	l, err := lab.New()
	if err != nil {
		t.Fatal(err)
	}
	defer l.Close()
	_, stop, err := newPods(l)
	if err != nil {
		t.Fatal(err)
	}
	defer stop()
	n, err := (&site.Site{Lab: l}).Machine(1)
	if err != nil {
		t.Fatal(err)
	}
	if err := n.AddRoute(cluster.Pods, podsAddress.Addr()); err != nil {
		t.Fatal(err)
	}
	client, err := n.Idle("client")
	if err != nil {
		t.Fatal(err)
	}
	one, other := cluster.PodIP(0), cluster.PodIP(5_000_000)
	send := func(to netip.Addr) {
		_, err := n.Run(context.Background(), "nft", `add table ip test; add chain ip test c { type nat hook prerouting priority -100; };
			flush chain ip test c; add rule ip test c ip daddr `+frontend(0).Addr().String()+" tcp dport 80 dnat to "+netip.AddrPortFrom(to, cluster.TargetPort).String())
		if err != nil {
			t.Error(err)
		}
	}
	pr := &prober{client: client, timeout: 20 * time.Second}
	await := func(pod netip.Addr) {
		t.Helper()
		const later = 400 * time.Millisecond
		begin := time.Now()
		timer := time.AfterFunc(later, func() { send(pod) })
		defer timer.Stop()
		err := pr.client.Do(func() error {
			at, err := pr.until(t.Context(), frontend(0), begin, func(a netip.Addr) bool { return a == pod })
			if took := at.Sub(begin); err == nil && took < later {
				t.Errorf("a connection to %v after %v, before it could be", pod, took)
			}
			return err
		})
		if err != nil {
			t.Fatal(err)
		}
	}
	await(one)
	await(other)

	// Connections no longer reach the first pod.
	pr.timeout = 200 * time.Millisecond
	if err := pr.client.Do(func() error {
		_, err := pr.until(t.Context(), frontend(0), time.Now(), func(a netip.Addr) bool { return a == one })
		return err
	}); !errors.Is(err, errTooLong) {
		t.Errorf("error %v, want %v", err, errTooLong)
	}
	ended := make(chan struct{})
	close(ended)
	pr.timeout, pr.ended = time.Minute, ended
	if err := pr.client.Do(func() error {
		_, err := pr.until(t.Context(), frontend(0), time.Now(), func(netip.Addr) bool { return false })
		return err
	}); err == nil || errors.Is(err, errTooLong) {
		t.Errorf("error %v, want that it ended", err)
	}
}
