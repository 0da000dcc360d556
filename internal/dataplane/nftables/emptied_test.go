// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// TestCheckFindsEmptiedSets empties sets of a Service that has everything.
func TestCheckFindsEmptiedSets(t *testing.T) {
	s4 := &schemas[desired.IPv4]
	for _, set := range []*nfnl.Set{s4.sources, s4.hairpin, s4.serviceCIDRs, s4.addressSets[0].stickyPicks, s4.addressSets[1].stickyPicks} {
		t.Run(set.Name, func(t *testing.T) {
			k := newKernel(t)
			s := desired.New(desired.Config{NodeName: "n1"})
			fancy(s)
			dataplanetest.Reconcile(t, k.Dataplane, s)
			elements := 0
			if err := k.conn.Elements(s4.table, set.Name, func(nfnl.Element) { elements++ }); err != nil || elements == 0 {
				t.Fatalf("%d elements, %v", elements, err)
			}
			var batch nfnl.Batch
			batch.FlushSet(s4.table, set)
			other, err := nfnl.Dial(k.config.NetNS)
			if err != nil {
				t.Fatal(err)
			}
			defer other.Close()
			if err := other.Commit(0, &batch); err != nil {
				t.Fatal(err)
			}
			for range 10 {
				if err = k.Check(t.Context()); err != nil {
					break
				}
			}
			if !errors.Is(err, dataplane.ErrDamaged) {
				t.Errorf("Check: %v", err)
			}
		})
	}
}
