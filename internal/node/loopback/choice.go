// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"encoding/binary"
	"hash/fnv"
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// choice chooses the backends of new connections, by the Service's algorithm and weights, or with
// session affinity the one that the client had last.
type choice struct {
	mu       sync.Mutex
	backends []desired.Backend
	pool     dataplane.Pool // with the same slots as in the kernel
	turn     int            // slot that round robin has chosen last
	affinity time.Duration
	clients  map[netip.Addr]client
}

// client is a client with session affinity.
type client struct {
	backend desired.Backend
	last    time.Time // of its last new connection
}

// maxClients is how many clients of one NodePort have session affinity. Most programs
// connect from one address, but 127.0.0.0/8 has many.
const maxClients = 1024

func (c *choice) set(r *desired.Relay) {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.backends, c.affinity = r.Backends, time.Duration(r.Affinity)*time.Second
	c.pool = dataplane.Pool{}
	c.pool.Update(&desired.PoolChange{Added: r.Backends, Weights: r.Weights, Balance: r.Balance})
	if c.affinity == 0 {
		c.clients = nil
	}
}

// slot returns the slot for a client's new connection. The hash is not the kernel's, which is one
// of the addresses of other clients.
func (c *choice) slot(client netip.AddrPort) int {
	n := len(c.pool.Slots)
	switch a := c.pool.Algorithm; {
	case a == desired.RoundRobin:
		c.turn = (c.turn + 1) % n
		return c.turn
	case a.Hashes():
		hash, ip := fnv.New64a(), client.Addr().As16()
		hash.Write(ip[:])
		if a == desired.MaglevPort {
			hash.Write(binary.BigEndian.AppendUint16(nil, client.Port()))
		}
		return int(hash.Sum64() % uint64(n))
	}
	return rand.IntN(n)
}

// choose returns the backend for a client's new connection.
func (c *choice) choose(address netip.AddrPort, now time.Time) (b desired.Backend, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.pool.Slots) == 0 {
		return b, false
	}
	b = c.pool.Slots[c.slot(address)]
	from := address.Addr()
	if c.affinity == 0 {
		return b, true
	}
	last, known := c.clients[from]
	if known && now.Sub(last.last) < c.affinity && slices.Contains(c.backends, last.backend) {
		b = last.backend
	}
	if len(c.clients) >= maxClients {
		for addr, old := range c.clients {
			if now.Sub(old.last) >= c.affinity {
				delete(c.clients, addr)
			}
		}
	}
	if c.clients == nil {
		c.clients = map[netip.Addr]client{}
	}
	if known || len(c.clients) < maxClients {
		c.clients[from] = client{b, now}
	}
	return b, true
}
