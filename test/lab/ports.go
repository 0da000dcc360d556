// SPDX-License-Identifier: Apache-2.0

package lab

import (
	"math/rand/v2"
	"sync/atomic"
)

// portCounter hands out a machine's local ports for UDP and SCTP one after the
// other. The kernel would choose at random, and soon reuse a port with a
// conntrack entry of an earlier backend (30 s for UDP, 10 s for SCTP), which looks
// like traffic to a removed endpoint. TCP
// has no need: conntrack lets a SYN replace the entry of a closed connection.
type portCounter struct {
	first, count uint32
	next         atomic.Uint32
}

func (c *portCounter) init(p profile) {
	c.first = uint32(p.firstPort)
	c.count = uint32(p.lastPort) - c.first + 1
	// Not the same start for each machine, as a pod may get the address of one
	// deleted just before.
	c.next.Store(rand.Uint32N(c.count))
}

func (c *portCounter) take() uint16 {
	return uint16(c.first + (c.next.Add(1)-1)%c.count)
}
