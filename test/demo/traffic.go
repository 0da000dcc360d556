// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"maps"
	"slices"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// traffic is all connections of the demo, to be counted.
type traffic struct {
	flows   []*flow       // that must not fail
	refused []*flow       // that are refused for a while, as they should
	talks   []*lab.Stream // established connections
	loads   []lab.LoadStats
}

// end ends all connections.
func (t *traffic) end() {
	for _, f := range t.flows {
		f.close()
	}
	for _, f := range t.refused {
		f.close()
	}
	for _, s := range t.talks {
		_ = s.Close()
	}
}

// totals are what came of the traffic.
type totals struct {
	made, answered, refused, failed int64
	why                             map[string]int64 // of those that failed
	open, cut                       int
	echoed, lost                    int64
}

func (t *traffic) totals() (n totals) {
	n.why = map[string]int64{}
	fail := func(why string, times int64) {
		n.failed += times
		n.why[why] += times
	}
	for _, l := range t.loads {
		n.made += l.OK + l.Failed
		for why, times := range l.Failures {
			fail(why, times)
		}
	}
	for _, f := range t.flows {
		all, failures := f.total()
		n.made += int64(all)
		for _, v := range failures {
			fail(lab.Outcome(v.err), 1)
		}
	}
	for _, f := range t.refused {
		all, failures := f.total()
		n.made += int64(all)
		for _, v := range failures {
			if errors.Is(v.err, lab.ErrRefused) {
				n.refused++
			} else {
				fail(lab.Outcome(v.err), 1)
			}
		}
	}
	n.answered = n.made - n.refused - n.failed
	for _, s := range t.talks {
		stats := s.Stats()
		n.echoed += stats.Received
		n.lost += stats.Failed
		if stats.Ended {
			n.cut++
		} else {
			n.open++
		}
	}
	return n
}

// String sums up in a short line.
func (t *traffic) String() string {
	n := t.totals()
	return fmt.Sprintf("%s connections, %d failed; %d established, %d cut", count(n.made), n.failed, n.open, n.cut)
}

// reasons says why connections failed: " (3 timeout)".
func (n totals) reasons() (text string) {
	for _, why := range slices.Sorted(maps.Keys(n.why)) {
		text += fmt.Sprintf(" (%d %s)", n.why[why], why)
	}
	return text
}
