// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"errors"
	"fmt"
	"io"
	"runtime"
	"runtime/debug"
	"slices"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"golang.org/x/sys/unix"
	"k8s.io/klog/v2"
)

// Verification compares the kernel's whole content, with chains and rules, with the programmed
// content, every Options.VerifyPeriod, in the background. (Check, which is called much more often, reads
// only a part.) The loop keeps running, so a comparison can see the kernel before or after a
// change. Also, a dump can lack elements that exist. So a difference counts only if several
// comparisons ("looks") agree on it.

const (
	// nextLook is how long after a look that saw a difference the next one follows. A
	// hash table that the kernel resizes lets dumps lack elements for some milliseconds.
	nextLook = time.Second

	// busyLooks is how many looks have to agree if something was programmed during each
	// of them but the first. An element that is deleted during a dump lets the dump
	// lack another one, which now and then is the same in the next dump.
	busyLooks = 5

	// interruptedLooks is how many looks in a row that the kernel's changes interrupted count as a failure.
	interruptedLooks = 10

	// logDifferences is how many differences are logged one by one.
	logDifferences = 20
)

// Reader reads the kernel's content.
type Reader interface {
	dataplane.Reader
	io.Closer
}

// verifying is the state of verification. Only the loop uses it.
type verifying struct {
	next    <-chan time.Time // delivers when the next look is due; nil while one runs, and without verification
	due     bool             // the next look is to begin as soon as possible
	look    chan lookResult  // delivers the result of the running look; nil if none runs
	touched *touched         // programmed during the running look; nil if none runs

	consensus   consensus
	interrupted int // looks since the last one that was not
}

type lookResult struct {
	differences []dataplane.Differing
	took        time.Duration
	err         error
}

// beginLook starts a look in the background if one is due and the kernel has accepted the
// last programming. Changes that are not programmed yet do not matter.
func (p *Proxy) beginLook(ctx context.Context) {
	v := &p.verifying
	if !v.due || p.full {
		return
	}
	v.due, v.look = false, make(chan lookResult, 1)
	v.touched = &touched{what: map[any]bool{}}
	for _, service := range append(p.state.Partial(), p.rest...) {
		v.touched.what[service] = true
	}
	programmed, to := p.state.Reported(), v.look
	p.background.Go(func() { look(ctx, p.options.OpenReader, programmed, to) })
}

func (p *Proxy) endLook(s lookResult) {
	v := &p.verifying
	touched := v.touched
	v.look, v.touched = nil, nil
	next := p.options.VerifyPeriod
	if v.interrupted++; !errors.Is(s.err, dataplane.ErrInterrupted) {
		v.interrupted = 0
	} else if v.interrupted < interruptedLooks { // nothing is known yet
		v.next = time.After(min(nextLook, next))
		return
	}
	p.verifyFailed.Log(p.log, s.err, "Could not verify the programmed content")
	switch {
	case s.err != nil:
		p.metrics.VerifyFailed()
		p.verification = &Verification{At: time.Now(), Failed: s.err.Error()}
		v.consensus, v.interrupted = consensus{}, 0
	case len(s.differences) > 0 && (touched.everything || p.full):
		v.consensus = consensus{} // everything was programmed during the look
		next = min(nextLook, next)
	default:
		if differences, certain := v.consensus.add(s.differences, touched); certain {
			v.consensus = consensus{}
			p.verified(differences, s.took)
		} else {
			next = min(nextLook, next)
		}
	}
	v.next = time.After(next)
}

// verified reports confirmed differences and schedules their repair.
func (p *Proxy) verified(all []dataplane.Differing, took time.Duration) {
	now := time.Now()
	p.metrics.Verified(len(all), now)
	p.verification = &Verification{At: now, Differences: len(all)}
	p.log.V(2).Info("Verified the programmed content", "differences", len(all), "took", took.Round(time.Millisecond))
	if len(all) == 0 {
		return
	}
	for _, d := range all[:min(len(all), logDifferences)] {
		p.log.Error(nil, "The kernel differs from the programmed content", "difference", d.String())
	}
	if more := len(all) - logDifferences; more > 0 {
		p.log.Error(nil, "There are more differences, which are not logged", "number", more)
	}
	p.damaged(fmt.Errorf("%w: %d differences, such as %s", dataplane.ErrDamaged, len(all), all[0]))
}

// consensus is the differences that consecutive looks agree on. The zero value has no look.
type consensus struct {
	looks    int
	suspects map[dataplane.Differing]bool // seen by all looks
}

// add adds a look, during which something may have been programmed. It returns the
// differences that all looks have seen, and whether they are certain.
func (c *consensus) add(seen []dataplane.Differing, touched *touched) (agreed []dataplane.Differing, certain bool) {
	agreed = touched.others(seen)
	if c.looks > 0 {
		agreed = slices.DeleteFunc(agreed, func(d dataplane.Differing) bool { return !c.suspects[d] })
	}
	c.looks++
	c.suspects = map[dataplane.Differing]bool{}
	for _, d := range agreed {
		c.suspects[d] = true
	}
	return agreed, len(agreed) == 0 || c.looks >= busyLooks || c.looks > 1 && touched.nothing()
}

// look delivers the differences between the kernel's content and the programmed content. For
// 10,000 Services it takes some tens of megabytes, which it frees.
func look(ctx context.Context, open func(context.Context) (Reader, error), programmed *desired.Change, to chan<- lookResult) {
	var s lookResult
	runAtLowPriority(klog.FromContext(ctx), func() {
		start := time.Now()
		s.differences, s.err = compare(ctx, open, programmed)
		s.took = time.Since(start)
	})
	debug.FreeOSMemory()
	to <- s
}

// lowPriority is added to the nice value: others come first, and the thread still runs every few
// milliseconds on a busy processor. The garbage collector stops the world only when it has run:
// with two busy processes on two processors, that took 240 ms with the lowest priority, 19, and
// 5 ms with this one.
const lowPriority = 5

// runAtLowPriority runs do on a thread with low priority. Commands that do starts inherit it.
func runAtLowPriority(log klog.Logger, do func()) {
	done := make(chan struct{})
	go func() {
		defer close(done)
		runtime.LockOSThread()
		if unix.Gettid() == unix.Getpid() { // the main thread, whose priority tools show as the process's
			defer runtime.UnlockOSThread()
			runAtLowPriority(log, do)
			return
		}
		// Not unlocked, so that the thread ends with the goroutine: to raise its
		// priority again would take CAP_SYS_NICE.
		usual, err := unix.Getpriority(unix.PRIO_PROCESS, 0) // 20 minus the nice value
		if err == nil {
			err = unix.Setpriority(unix.PRIO_PROCESS, 0, 20-usual+lowPriority) // of this thread; at most 19
		}
		if err != nil {
			log.V(2).Info("Verifying at the usual priority", "reason", err.Error())
		}
		do()
	}()
	<-done
}

func compare(ctx context.Context, open func(context.Context) (Reader, error), programmed *desired.Change) (all []dataplane.Differing, err error) {
	r, err := open(ctx)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, r.Close()) }()
	v, err := dataplane.Look(ctx, r, programmed)
	return v.Differences, err
}

// touched has the objects that were programmed during a look.
type touched struct {
	everything bool
	what       map[any]bool // the Services with other endpoints, and subjects as in dataplane.Differing
}

// note adds a change. t is nil if no look runs.
func (t *touched) note(c *desired.Change, full bool) {
	if t == nil {
		return
	}
	if full {
		t.everything = true
		return
	}
	for _, f := range c.Frontends {
		t.what[f.Key().String()] = true
	}
	for _, p := range c.Pools {
		t.what[p.Service] = true
	}
	for set := range c.Sets {
		for m := range c.Sets[set].All() {
			t.what[desired.Set(set).String()+" "+m.String()] = true
		}
	}
}

func (t *touched) nothing() bool { return !t.everything && len(t.what) == 0 }

// others returns the differences that programming during the look cannot explain. A
// difference without a subject may come from any change.
func (t *touched) others(all []dataplane.Differing) (others []dataplane.Differing) {
	quiet := t.nothing()
	for _, d := range all {
		if quiet || d.Subject != "" && !t.what[d.Subject] && !t.what[d.Service] {
			others = append(others, d)
		}
	}
	return others
}
