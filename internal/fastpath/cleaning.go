// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"context"
	"errors"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/node/conntrack"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/util/wait"
)

// cleanHold is how long connections are kept on the slow path until their entries are
// deleted, and cleanEvery the interval of tries.
const (
	cleanHold  = 2 * time.Second
	cleanEvery = 20 * time.Millisecond
)

// Cleaning returns a function that calls clean, and also deletes the entries of offloaded
// connections if the kernel refuses that with EBUSY (before Linux 6.4 without its fix). It
// returns these connections to the slow path first.
func (c *Controller) Cleaning(clean conntrack.CleanFunc) conntrack.CleanFunc {
	return func(ctx context.Context, stale []desired.StaleFlows) (conntrack.Stats, error) {
		stats, err := clean(ctx, stale)
		if !errors.Is(err, unix.EBUSY) {
			return stats, err
		}
		f := Flush{Hold: cleanHold}
		for _, s := range stale {
			f.Frontends = append(f.Frontends, s.Frontends...)
			if s.Protocol == desired.TCP {
				for _, b := range s.Backends {
					f.Addresses = append(f.Addresses, b.Addr())
				}
			}
		}
		if e := c.Flush(ctx, f); e != nil {
			return stats, errors.Join(err, e)
		}
		// Connections count as offloaded until the kernel has freed the old flowtable.
		_ = wait.PollUntilContextTimeout(ctx, cleanEvery, cleanHold, false, func(ctx context.Context) (bool, error) {
			var more conntrack.Stats
			more, err = clean(ctx, stale)
			stats.Dumps += more.Dumps
			stats.Entries += more.Entries
			stats.Deleted += more.Deleted
			return !errors.Is(err, unix.EBUSY), nil
		}) // its error is about time, while err is clean's last
		return stats, err
	}
}
