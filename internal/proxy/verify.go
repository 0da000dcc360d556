// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"fmt"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"k8s.io/klog/v2"
)

// This file is the loop's part of verifying: comparing, from time to time and in the
// background, all that the kernel has with what was programmed. Check, which comes much
// more often, looks at a part only. Nothing waits for it.

const (
	// nextLook is how long after a difference was seen the next look follows. A
	// difference counts when both see it: a hash table that the kernel resizes lets a
	// dump leave elements out, for some milliseconds.
	nextLook = time.Second

	// busyLooks is how many looks in a row have to see a difference as long as something
	// is programmed during each but the first. An element that goes lets a dump leave
	// another out, which now and then is the same one in the next dump.
	busyLooks = 5

	// logDifferences is how many differences are logged one by one.
	logDifferences = 20
)

// verifying knows where verifying is. It is the loop's alone.
type verifying struct {
	timer   *time.Timer   // of the next look; nil when none is to be
	due     bool          // it is to be as soon as it can
	look    chan sighting // delivers what is seen; nil while nobody looks
	touched *touched      // since the look was begun; nil while nobody looks

	doubts map[dataplane.Differing]bool // what all looks have seen since one saw no difference
	looks  int                          // how many those are
}

// startVerifying has the first look be due after a period, if there is one.
func (p *Proxy) startVerifying() {
	if p.options.VerifyPeriod > 0 && p.options.OpenReader != nil {
		p.verifying.timer = time.NewTimer(p.options.VerifyPeriod)
	}
}

// overdue delivers when the next look is due.
func (v *verifying) overdue() <-chan time.Time {
	if v.timer == nil {
		return nil
	}
	return v.timer.C
}

// begin makes a look in the background if one is due and the kernel has taken what it
// was told. Changes that wait do not matter: they have not been told.
func (p *Proxy) begin(ctx context.Context) {
	v := &p.verifying
	if !v.due || p.full {
		return
	}
	v.due, v.look, v.touched = false, make(chan sighting, 1), newTouched()
	go lookAround(ctx, p.options.OpenReader, p.state.Told(), v.look)
}

// seen takes what a look has seen. A difference in what was programmed meanwhile is none;
// when that was everything, there is no telling, and it begins anew.
func (p *Proxy) seen(s sighting) {
	v := &p.verifying
	doubts, looks, touched := v.doubts, v.looks+1, v.touched
	v.doubts, v.looks, v.touched, v.look = nil, 0, nil, nil
	if s.err != nil {
		klog.ErrorS(s.err, "Could not verify what is programmed")
		p.metrics.VerifyFailed()
		v.timer.Reset(p.options.VerifyPeriod)
		return
	}
	if len(s.differences) > 0 && (touched.everything || p.full) {
		v.again(p.options.VerifyPeriod)
		return
	}
	differences := touched.others(s.differences)
	if looks > 1 {
		differences = slices.DeleteFunc(differences, func(d dataplane.Differing) bool { return !doubts[d] })
	}
	sure := looks >= busyLooks || looks > 1 && touched.nothing()
	if len(differences) > 0 && !sure {
		v.doubts, v.looks = map[dataplane.Differing]bool{}, looks
		for _, d := range differences {
			v.doubts[d] = true
		}
		v.again(p.options.VerifyPeriod)
		return
	}
	p.metrics.Verified(len(differences), time.Now())
	klog.V(2).InfoS("Verified what is programmed", "differences", len(differences), "took", s.took.Round(time.Millisecond))
	if len(differences) > 0 {
		p.tellDifferences(differences)
		p.damaged(fmt.Errorf("%w: %d differences, such as %s", dataplane.ErrDamaged, len(differences), differences[0]))
	}
	v.timer.Reset(p.options.VerifyPeriod)
}

// tellDifferences logs differences in the way that "slipstream verify" prints them.
func (p *Proxy) tellDifferences(all []dataplane.Differing) {
	for _, d := range all[:min(len(all), logDifferences)] {
		klog.ErrorS(nil, "The kernel differs from what was programmed", "difference", d.String())
	}
	if more := len(all) - logDifferences; more > 0 {
		klog.ErrorS(nil, "There are more differences, which are not logged", "number", more)
	}
}

// again has the next look be soon.
func (v *verifying) again(period time.Duration) { v.timer.Reset(min(nextLook, period)) }
