// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"time"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// Programs that read nf_tables, such as "iptables-nft-save" and "nft list ruleset", start again
// if the ruleset changes while they read it. So while changes continue, commits wait for them.

const (
	// maxGap bounds how long commits leave a reader undisturbed, and so how long a change
	// waits. A change that arrives so long after a commit does not wait. It is kube-proxy's
	// default minSyncPeriod.
	maxGap = time.Second

	// burst is the time for which changes may continue before they wait for readers, so that
	// a burst of changes, such as a Deployment's rollout, is programmed without delay.
	burst = 2 * time.Second

	// lookPeriod is the least time between two looks for readers. A look takes at most a
	// twentieth of the time from one to the next, but that time is at most maxLookPeriod.
	lookPeriod    = time.Millisecond
	maxLookPeriod = 20 * time.Millisecond

	// idlePeriod is the least time between two looks if no dump was seen in the last giveUp. So long
	// commits disturb the first reader.
	idlePeriod = 50 * time.Millisecond

	// pause is how long a reader may take from opening its socket to a dump, and from one
	// dump to the next.
	pause = 5 * time.Millisecond

	// giveUp is how long commits wait for one socket. One that still reads then has
	// stopped, is too slow, or reads something else again and again. A dump that it begins so
	// long afterwards counts again.
	giveUp = 2 * time.Second
)

// pace decides when commits wait for readers.
type pace struct {
	look func() ([]nfnl.Reader, error) // see Options.Readers

	commit time.Time // the last one
	began  time.Time // the first commit of the changes that continue
	held   time.Time // since when the next commit waits; zero if it does not

	looked, nextLook time.Time
	dumped           time.Time // when a look saw a dump last
	reading          bool      // what the last look found
	readers          map[uint64]*reader
}

// reader is what is known of another program's socket.
type reader struct {
	seen    time.Time // when it was opened or a dump ended, whichever is later; now during a dump
	dumping time.Time // since when a dump runs; zero if none does
	longest time.Duration
	waited  bool          // a commit waits for it
	spent   time.Duration // by commits that waited for it
	gaveUp  time.Time     // when that reached the limit; zero before

	// disturbed says that it dumped before the last commit. If it dumps again, it has restarted:
	// some programs read on after a dump, for as long as they parse it.
	disturbed, restarted bool
}

// committed records a commit of changes, the first of which arrived at the given time. It returns
// how long the commit waited for readers.
func (p *pace) committed(arrived, now time.Time) (waited time.Duration) {
	if !p.held.IsZero() {
		waited, p.held = now.Sub(p.held), time.Time{}
	}
	if arrived.Sub(p.commit) >= maxGap {
		p.began = now
	}
	p.commit = now
	for _, r := range p.readers {
		r.disturbed, r.waited = r.longest > 0, false
	}
	return waited
}

// wait returns after which time to ask again whether the next commit disturbs a reader; 0 if it does
// not, or not for the first time in maxGap.
func (p *pace) wait(now time.Time) (time.Duration, error) {
	if p.look == nil || now.Sub(p.began) < burst || now.Sub(p.commit) >= maxGap {
		return 0, nil
	}
	wait := p.commit.Add(maxGap).Sub(now)
	if !now.Before(p.nextLook) {
		all, err := p.look()
		if err != nil {
			return wait, err
		}
		p.nextLook = now.Add(min(max(lookPeriod, 20*time.Since(now)), maxLookPeriod))
		p.note(all, now)
		if !p.reading && now.Sub(p.dumped) >= giveUp {
			p.nextLook = now.Add(idlePeriod)
		}
	}
	if !p.reading {
		return 0, nil
	}
	if p.held.IsZero() {
		p.held = now
	}
	return min(wait, p.nextLook.Sub(now)), nil
}

// note records the sockets that a look found.
func (p *pace) note(all []nfnl.Reader, now time.Time) {
	before := p.readers
	p.readers, p.reading = map[uint64]*reader{}, false
	for _, s := range all {
		r := before[s.Socket]
		if r == nil {
			r = &reader{seen: now}
		}
		p.readers[s.Socket] = r
		if s.Dumping {
			p.dumped = now
		}
		p.reading = r.note(s.Dumping, now, now.Sub(p.looked)) || p.reading
	}
	p.looked = now
}

// note records what a look found, some time after the one before. It reports whether a commit has to
// wait.
func (r *reader) note(dumping bool, now time.Time, after time.Duration) bool {
	if r.waited {
		r.spent += after
	}
	if r.spent >= giveUp && r.gaveUp.IsZero() {
		r.gaveUp = now
	}
	switch {
	case !dumping && !r.dumping.IsZero():
		r.seen, r.dumping = now, time.Time{}
	case !dumping:
		if now.Sub(r.seen) >= giveUp {
			*r = reader{seen: r.seen}
		}
	case r.dumping.IsZero():
		r.dumping, r.restarted, r.disturbed = now, r.restarted || r.disturbed, false
		if !r.gaveUp.IsZero() && now.Sub(r.gaveUp) >= giveUp {
			r.spent, r.gaveUp = 0, time.Time{} // it may have been too slow because of other load
		}
		fallthrough
	default:
		r.seen, r.longest = now, max(r.longest, now.Sub(r.dumping), 1)
	}
	rest := pause
	if r.restarted {
		rest = max(pause, 2*r.longest) // programs parse for longer than the kernel dumps
	}
	r.waited = now.Sub(r.seen) < rest && r.spent < giveUp
	return r.waited
}
