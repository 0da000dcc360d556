// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"bytes"
	"context"
	"errors"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
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

// TestCheckFindsReplacedElements gives elements of each map, one at a time, another value. Check finds it once it has
// looked up all.
func TestCheckFindsReplacedElements(t *testing.T) {
	slow(t)
	k := newKernel(t)
	other := k.dial()
	s := desired.New(smallTables(inCluster("10.244.0.0/16", "fd00:244::/32")))
	fancy(s)
	scheduled(s, 3, "rr")
	scheduled(s, 4, "maglev")
	ranged(s, 1)
	const most = 2 // of a map
	replaced := map[string]int{}
	for f := range rangedSchemas {
		table := rangedSchemas[f].table
		for _, set := range rangedSchemas[f].sets() {
			if set.DataType == 0 || set.Flags&unix.NFT_SET_EVAL != 0 {
				continue
			}
			for n := 0; n < most; n++ {
				dataplanetest.Reconcile(t, k.Dataplane, s)
				if err := k.checkAll(t); err != nil {
					t.Fatal(err)
				}
				var all, ends []nfnl.Element
				if err := other.Elements(table, set.Name, func(e nfnl.Element) {
					e.Key, e.Value = slices.Clone(e.Key), slices.Clone(e.Value)
					if e.End {
						ends = append(ends, e)
					} else {
						all = append(all, e)
					}
				}); err != nil {
					t.Fatal(err)
				}
				if n >= len(all) {
					break
				}
				var batch nfnl.Batch
				switch e := all[n]; {
				case set.Flags&unix.NFT_SET_INTERVAL != 0:
					slices.SortFunc(ends, func(a, b nfnl.Element) int { return bytes.Compare(a.Key, b.Key) })
					end := slices.IndexFunc(ends, func(end nfnl.Element) bool { return bytes.Compare(end.Key, e.Key) > 0 })
					last := nfnl.Before(ends[end].Key)
					e.Value[4] ^= 1
					batch.DeleteInterval(table, set, e.Key, last)
					batch.AddInterval(table, set, e.Key, last, e.Value...)
				case set == rangedSchemas[f].remember:
					batch.DeleteElement(table, set, e.Key)
					batch.AddVerdict(table, set, e.Key, nfnl.Goto, e.Chain)
				case set.DataType == nfnl.TypeVerdict:
					batch.DeleteElement(table, set, e.Key)
					batch.AddVerdict(table, set, e.Key, e.Verdict, map[bool]string{true: chainDrop, false: chainReject}[e.Chain == chainReject])
				default:
					e.Value[4] ^= 1
					batch.DeleteElement(table, set, e.Key)
					batch.AddElement(table, set, e.Key, e.Value, string(e.Comment))
				}
				if err := other.Commit(0, &batch); err != nil {
					t.Fatalf("%s: %v", set.Name, err)
				}
				replaced[set.Name]++
				if err := k.checkAll(t); !errors.Is(err, dataplane.ErrDamaged) {
					t.Errorf("%s %s, element %x: Check: %v", table.Family, set.Name, all[n].Key, err)
				}
			}
		}
	}
	t.Logf("replaced: %v", replaced)
	if len(replaced) < 23 {
		t.Error("too few maps have had elements")
	}
}

// thorough is a dataplane whose Check looks up what it otherwise does in many.
type thorough struct{ *Dataplane }

func (d thorough) Check(ctx context.Context) error {
	if err := d.sequence.Check(); err != nil {
		return err
	}
	if d.unsealed != nil { // with the generation of its change
		if err := d.Dataplane.Check(ctx); err != nil {
			return err
		}
	}
	d.detector.generation = 0
	for {
		if err := d.Dataplane.Check(ctx); err != nil || d.detector.unchecked+d.detector.unseen == 0 {
			return err
		}
	}
}

func (k *kernel) checkAll(t *testing.T) error { return thorough{k.Dataplane}.Check(t.Context()) }
