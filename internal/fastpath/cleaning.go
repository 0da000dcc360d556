// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"errors"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/conntrack"
	"golang.org/x/sys/unix"
)

// cleanHold is how long connections to frontends that are being cleaned are kept
// on the slow path where the kernel wants that, and cleanEvery how often it is
// tried again meanwhile.
const (
	cleanHold  = 2 * time.Second
	cleanEvery = 20 * time.Millisecond
)

// Cleaning makes of clean ([conntrack.Conn.Clean]) one that does not stumble over
// offloaded connections. Most kernels delete their entries like all others, and the
// flow goes with them. Those from before Linux 6.4 that did not get its fix refuse
// (EBUSY) for as long as the connection is offloaded; there it is brought back to
// the slow path first.
func (c *Controller) Cleaning(clean func([]desired.StaleFlows) (conntrack.Stats, error)) func([]desired.StaleFlows) (conntrack.Stats, error) {
	return func(stale []desired.StaleFlows) (conntrack.Stats, error) {
		stats, err := clean(stale)
		if !errors.Is(err, unix.EBUSY) {
			return stats, err
		}
		f := Flush{Hold: cleanHold}
		for _, s := range stale {
			f.Frontends = append(f.Frontends, s.Frontends...)
		}
		if e := c.Flush(f); e != nil {
			return stats, errors.Join(err, e)
		}
		// What is deleted stays so; the rest is as good as offloaded until the
		// old flowtable is out of use.
		for end := time.Now().Add(cleanHold); errors.Is(err, unix.EBUSY) && time.Now().Before(end); {
			time.Sleep(cleanEvery)
			var more conntrack.Stats
			more, err = clean(stale)
			stats.Dumps += more.Dumps
			stats.Entries += more.Entries
			stats.Deleted += more.Deleted
		}
		return stats, err
	}
}
