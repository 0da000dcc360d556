// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"math/rand/v2"
	"net/netip"
	"slices"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// choice chooses the backends of new connections: a random one, or with session affinity the
// one that the client had last.
type choice struct {
	mu       sync.Mutex
	backends []desired.Backend
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
	if c.affinity == 0 {
		c.clients = nil
	}
}

// choose returns the backend for a client's new connection.
func (c *choice) choose(from netip.Addr, now time.Time) (b desired.Backend, ok bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if len(c.backends) == 0 {
		return b, false
	}
	b = c.backends[rand.IntN(len(c.backends))]
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
