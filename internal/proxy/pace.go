// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"time"

	"k8s.io/klog/v2"
)

// Programs that read nf_tables, such as "iptables-nft-save" and "nft list ruleset", start again
// if the ruleset changes while they read it. So commits must leave gaps that are long enough
// for them.

const (
	// readFactor is the length of a gap in multiples of the time in which the kernel
	// dumps the ruleset. Programs take two to three times as long as the kernel, as they
	// parse it. A gap is longer, so that most of them start in it early enough.
	readFactor = 5

	// maxGap bounds how long a change waits. It is kube-proxy's default minSyncPeriod.
	maxGap = time.Second

	// burst is the time for which changes may continue before gaps get longer, so that a burst
	// of changes, such as a Deployment's rollout, is programmed without delay.
	burst = 2 * time.Second

	// firstGap is the first gap that is longer than Options.MinSyncPeriod.
	firstGap = 10 * time.Millisecond

	// measurePeriod and measureRest are the least time between two measurements: the
	// latter in multiples of the time that one takes, so that it costs at most 1 % of a
	// CPU.
	measurePeriod = 30 * time.Second
	measureRest   = 100

	// forgetAfter is the age of a measurement that does not count any more. If it was so short
	// that gaps do not grow, no other would be made.
	forgetAfter = 10 * time.Minute
)

// pace determines the gaps between commits. A change that arrives when a reader has had enough
// time is programmed at once. After a burst without such a time, the gap doubles with each
// commit, up to that time. So changes that continue leave gaps.
type pace struct {
	min      time.Duration                 // the least gap
	readTime func() (time.Duration, error) // see Options.ReadTime; nil for gaps of min

	commit time.Time     // the last one
	gap    time.Duration // after it
	began  time.Time     // the first of the commits that left a reader no time

	took     time.Duration // result of readTime; 0 if not known
	forget   time.Time     // when took is too old, as other programs may have added rules
	measured chan time.Duration
	nextTime time.Time // of a measurement
}

// enough returns the gap that a reader needs.
func (p *pace) enough() time.Duration {
	switch {
	case p.readTime == nil:
		return p.min
	case p.took == 0 || time.Now().After(p.forget):
		return max(p.min, maxGap)
	}
	return max(p.min, min(readFactor*p.took, maxGap))
}

// committed records a commit of changes, the first of which arrived at the given time.
func (p *pace) committed(arrived, now time.Time) {
	switch enough := p.enough(); {
	case arrived.Sub(p.commit) >= enough:
		p.began, p.gap = now, p.min
	case now.Sub(p.began) >= burst:
		p.gap = min(max(2*p.gap, firstGap), enough)
	}
	p.commit = now
}

// next returns the earliest time of the next sync.
func (p *pace) next() time.Time { return p.commit.Add(p.gap) }

// measure measures in the background how long a reader takes, if that affects gaps or updates of
// loads, and was not done lately.
func (p *Proxy) measure() {
	c := &p.pace
	if now := time.Now(); c.readTime == nil || c.gap <= c.min && p.loads.ticker == nil || now.Before(c.nextTime) {
		return
	}
	c.nextTime = time.Now().Add(time.Hour) // until it has ended
	p.background.Go(func() {
		took, err := c.readTime()
		if err != nil {
			p.log.V(2).Info("Could not measure how long reading the ruleset takes", "err", err)
			took = 0
		}
		c.measured <- took
	})
}

// setTook records the result of a measurement; 0 if it failed.
func (p *pace) setTook(took time.Duration, log klog.Logger) {
	p.took = took
	p.forget = time.Now().Add(forgetAfter)
	p.nextTime = time.Now().Add(max(measurePeriod, measureRest*took))
	log.V(2).Info("Reading the ruleset takes", "kernel", took, "gap", p.enough())
}
