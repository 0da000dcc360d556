// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// counters are the named counters of each table. Unlike the counters of rules, they survive
// when rules are written again, and are not part of what a dump of rules returns.
var counters = []string{
	dataplane.NoEndpoints, dataplane.NoLocalEndpoints, dataplane.SourceNotAllowed, dataplane.UnknownPort, dataplane.UnallocatedAddress,
}

// Counts are numbers that the kernel counts.
type Counts struct {
	Rejected dataplane.Rejected

	// Unrecorded is the number of connections, by desired.Family, whose client got no
	// session affinity, because all Services together had too many clients. It starts
	// from 0 when the rules are written.
	Unrecorded [len(schemas)]uint64
}

// Counts reads the kernel's counters. It can be called at any time, by any goroutine.
func (b *Backend) Counts() (c Counts, err error) {
	conn, err := nfnl.Dial(b.config.NetNS)
	if err != nil {
		return c, err
	}
	defer conn.Close()
	for f := range schemas {
		err = errors.Join(err, c.read(conn, f))
	}
	return c, err
}

// read reads the counters of a family, if its table exists.
func (c *Counts) read(conn *nfnl.Conn, f int) error {
	table, rejected := schemas[f].table, map[string]uint64{}
	for _, reason := range counters {
		packets, _, err := conn.Counter(table, reason)
		if errors.Is(err, unix.ENOENT) {
			return nil
		} else if err != nil {
			return err
		}
		rejected[reason] = packets
	}
	c.Rejected[f] = rejected
	err := nfnl.Undisturbed(func() error {
		c.Unrecorded[f] = 0
		return conn.Rules(table, func(r nfnl.RuleInfo) {
			if isRememberChain(r.Chain) {
				c.Unrecorded[f] += r.Counted()
			}
		})
	})
	if errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}
