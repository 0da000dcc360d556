// SPDX-License-Identifier: Apache-2.0

package dataplanetest

import (
	"context"
	"fmt"
	"net/netip"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/lab"
)

// another is the ruleset of another proxy, such as kube-proxy, that serves the same Service.
// It translates the ClusterIP and masquerades marked packets.
const another = `
add table ip another
add chain ip another prerouting { type nat hook prerouting priority -100; }
add chain ip another postrouting { type nat hook postrouting priority 100; }
add rule ip another prerouting ip daddr 10.96.0.1 tcp dport 80 dnat to 10.244.1.3:%d
add rule ip another postrouting meta mark and %#x != 0 masquerade`

// HandOver adds another proxy's rules for the street's Service. Then, for a number of
// rounds, the dataplane runs Cleanup and Reconcile under constant new connections. No
// connection may fail.
func HandOver(t *testing.T, s *Street, b dataplane.Dataplane, state *desired.State, rounds int) {
	t.Helper()
	ctx := context.WithoutCancel(t.Context())
	script := fmt.Sprintf(another, FirstPort, 1<<dataplane.DefaultMasqueradeBit)
	if out, err := s.Node.Run(ctx, "nft", script); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	web := netip.MustParseAddrPort("10.96.0.1:80")
	load, err := s.Client.StartLoad(ctx, lab.TCP, web, lab.LoadOptions{Workers: 4})
	if err != nil {
		t.Fatal(err)
	}
	for round := range rounds {
		if err := b.Cleanup(ctx); err != nil {
			t.Fatal(err)
		}
		Reconcile(t, b, state)
		if stats := load.Stats(); stats.Failed > 0 {
			t.Fatalf("round %d: %v", round, stats)
		}
	}
	if stats := load.Stop(); stats.Failed > 0 || stats.OK < int64(rounds) {
		t.Errorf("connections meanwhile: %v", stats)
	}
}
