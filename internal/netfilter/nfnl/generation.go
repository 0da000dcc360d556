// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"sync"

	"golang.org/x/sys/unix"
)

// Commits counts the transactions of connections to one network namespace, so that these can
// be told from the transactions of other programs. It is safe for concurrent use.
type Commits struct {
	mu sync.Mutex // held during commits, and while the generation is read
	n  uint32
}

// Commits returns the count that the connection's transactions are added to.
func (c *Conn) Commits() *Commits { return c.commits }

// Share makes the connection count its transactions with those of other connections to the
// same network namespace. It must be called before the first use.
func (c *Conn) Share(commits *Commits) { c.commits = commits }

// Generation returns the number of transactions of the network namespace's ruleset, without
// those that Commits counts: it changes when another program commits. It wraps and is never
// 0.
func (c *Conn) Generation() (gen uint32, err error) {
	c.commits.mu.Lock()
	defer c.commits.mu.Unlock()
	err = c.request(unix.NFT_MSG_GETGEN, 0, unix.AF_UNSPEC, nil, func(body []byte) {
		gen = be32(findAttr(body, unix.NFTA_GEN_ID))
	})
	return max(gen-c.commits.n, 1), err
}

// NextGeneration returns the generation after one more transaction of another program.
func NextGeneration(generation uint32) uint32 { return max(generation+1, 1) }
