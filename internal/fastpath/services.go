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

// ReadServices reads the Services of the frontends from the kernel, in a network namespace
// given by file descriptor (0 is the calling thread's), for processes other than the
// Controller's. Names are truncated to 127 bytes. Without a fast path there are none. It is
// for occasional use: the cost of reading a set grows with the square of its size. Under
// constant transactions, some frontends may be missing.
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
			// Each try adds frontends that the one before has missed.
			e = conn.Elements(table, set, func(e nfnl.Element) {
				if k, ok := families[i].parseFrontendKey(e.Key); ok {
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
