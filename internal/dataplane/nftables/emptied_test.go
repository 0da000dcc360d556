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

// TestCheckFindsEmptiedSets empties each set, while only one of many Services has elements in most. One Check
// finds it.
func TestCheckFindsEmptiedSets(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{NodeName: "n1"})
	fancy(s)
	for i := range 3 * sampleSize {
		web(s, 100+i, 1)
	}
	other, err := nfnl.Dial(k.config.NetNS)
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	emptied := map[string]bool{}
	for f := range schemas {
		for _, set := range schemas[f].sets() {
			dataplanetest.Reconcile(t, k.Dataplane, s)
			if err := k.Check(t.Context()); err != nil {
				t.Fatal(err)
			}
			// As if Check had come by the Service that has everything just now.
			k.detector.nextSample = len(k.pools) / 2
			elements := 0
			if err := other.Elements(schemas[f].table, set.Name, func(nfnl.Element) { elements++ }); err != nil {
				t.Fatal(err)
			}
			if elements == 0 {
				continue
			}
			emptied[set.Name] = true
			var batch nfnl.Batch
			batch.FlushSet(schemas[f].table, set)
			if err := other.Commit(0, &batch); err != nil {
				t.Fatal(err)
			}
			if err := k.Check(t.Context()); !errors.Is(err, dataplane.ErrDamaged) {
				t.Errorf("%s %s had %d elements; Check: %v", schemas[f].table.Family, set.Name, elements, err)
			}
		}
	}
	for _, set := range schemas[0].sets() {
		if !emptied[set.Name] {
			t.Logf("without elements: %s", set.Name)
		}
	}
	if len(emptied) < 20 {
		t.Errorf("only %d sets have had elements", len(emptied))
	}
}
