// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// readTries is how often [ReadServices] reads a set that changes meanwhile.
const readTries = 3

// ReadServices reads from the kernel which Services the frontends in a network
// namespace, given by file descriptor (0 is the calling thread's), belong to, for
// who is not the Controller. A name of more than 127 bytes is cut off. Where there
// is no fast path, there are none. It is for looking, not for every second: the
// kernel reads a set at a cost that grows with the square of its size. Where transactions
// keep coming, one or the other may be missing.
func ReadServices(netns int) (flows.Services, error) {
	conn, err := nfnl.Dial(netns)
	if err != nil {
		return nil, err
	}
	all := flows.Services{}
	for i := range families {
		set := families[i].frontends.Name
		e := nfnl.ErrInterrupted
		for try := 0; try < readTries && errors.Is(e, nfnl.ErrInterrupted); try++ {
			// What one try leaves out, the next one adds; names of what has gone do no harm.
			e = conn.Elements(table, set, func(e nfnl.Element) {
				if k, ok := parseFrontendKey(e.Key); ok {
					all[k] = string(e.Comment)
				}
			})
		}
		if e != nil && !errors.Is(e, nfnl.ErrInterrupted) && !errors.Is(e, unix.ENOENT) {
			err = errors.Join(err, fmt.Errorf("fast path: reading set %s: %w", set, e))
		}
	}
	return all, errors.Join(err, conn.Close())
}
