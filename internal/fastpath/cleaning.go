// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
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

// Cleaning returns a function that does what clean does, and also deletes the entries of
// offloaded connections where the kernel refuses that. Kernels from before Linux 6.4
// without its fix refuse it (EBUSY) for as long as a connection is offloaded. There the
// connections are brought back to the slow path first.
func (c *Controller) Cleaning(clean conntrack.CleanFunc) conntrack.CleanFunc {
	return func(ctx context.Context, stale []desired.StaleFlows) (conntrack.Stats, error) {
		stats, err := clean(ctx, stale)
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
		// Connections count as offloaded until the kernel has removed the old flowtable.
		ctx, cancel := context.WithTimeout(ctx, cleanHold)
		defer cancel()
		again := time.NewTicker(cleanEvery)
		defer again.Stop()
		for errors.Is(err, unix.EBUSY) {
			select {
			case <-ctx.Done():
				return stats, err
			case <-again.C:
			}
			var more conntrack.Stats
			more, err = clean(ctx, stale)
			stats.Dumps += more.Dumps
			stats.Entries += more.Entries
			stats.Deleted += more.Deleted
		}
		return stats, err
	}
}
