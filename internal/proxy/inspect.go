// SPDX-License-Identifier: Apache-2.0

package proxy

import (
	"context"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Inspection is what a running proxy shows of itself.
type Inspection struct {
	State *desired.State // must not be modified, nor used later

	Synced     bool      // the source has delivered its initial content, and the addresses are known
	Waiting    time.Time // since when a change waits; zero if none does
	Updated    time.Time // when the kernel last had all changes; zero before the first sync
	Failed     string    // why the last attempt to program the kernel failed; "" if it did not
	Programmed []Programming
	Shrunk     map[desired.PoolID]time.Time // when pools last lost a backend, those that got none later
	Verified   *Verification                // nil before the first one

	VerifyPeriod time.Duration // 0 if the content is not verified
}

// Programming is one successful call of the dataplane.
type Programming struct {
	At        time.Time     `json:"at"`
	Kind      string        `json:"kind"` // metrics.Change or metrics.Full
	Took      time.Duration `json:"tookNanoseconds"`
	Frontends int           `json:"frontends"` // that it added, changed or deleted
	Pools     int           `json:"pools"`
	Elements  int           `json:"elements"` // of the kernel's sets and maps, or rules
	// Lag is the time from a change of endpoints in the cluster until the kernel had it, the longest
	// one of the call; 0 if it is unknown. It is wrong if the clocks of the nodes differ.
	Lag time.Duration `json:"lagNanoseconds,omitempty"`
}

// Verification is the result of a comparison with the kernel's content.
type Verification struct {
	At          time.Time `json:"at"`
	Differences int       `json:"differences"` // that were found, and repaired
	Failed      string    `json:"failed,omitempty"`
}

// remembered is the number of Programmings that Inspect shows at least, if there were so many.
const remembered = 1000

// Inspect calls look in the loop, between two events: it delays changes for as long as look runs.
// It is safe for concurrent use. It returns ctx's error if the loop does not get to it in time.
func (p *Proxy) Inspect(ctx context.Context, look func(*Inspection)) error {
	done := make(chan struct{})
	inspect := func() {
		defer close(done)
		i := &Inspection{
			State: p.state, Synced: p.synced && p.addressed, Updated: p.Updated(), Failed: p.failed,
			Programmed: p.programmed, Shrunk: p.shrunk, Verified: p.verification, VerifyPeriod: p.options.VerifyPeriod,
		}
		if since := p.lateness.since.Load(); since != nil {
			i.Waiting = *since
		}
		look(i)
	}
	select {
	case p.inspections <- inspect:
		<-done
		return nil
	case <-ctx.Done():
		return ctx.Err()
	}
}

// shrink notes which pools have lost backends, or are new and have none.
func (p *Proxy) shrink(c *desired.Change, now time.Time) {
	for i := range c.Pools {
		switch pool := &c.Pools[i]; {
		case pool.Gone, len(pool.Added) > 0:
			delete(p.shrunk, pool.ID)
		case len(pool.Removed) > 0, pool.New && !p.full:
			p.shrunk[pool.ID] = now
		}
	}
}
