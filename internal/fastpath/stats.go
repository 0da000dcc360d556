// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"k8s.io/apimachinery/pkg/types"
)

// Stats are for metrics.
type Stats struct {
	// Offloaded is how many times a connection was offloaded, as the kernel
	// has counted since the table was made; again after a Flush counts again.
	Offloaded uint64

	Interfaces int    // that take part
	Frontends  int    // in the sets; 0 for the scope All
	Hardware   bool   // flows are handed to network hardware
	Flushes    uint64 // of all connections, to the slow path
	Errors     uint64 // changes that failed
}

// Stats reads the numbers so far.
func (c *Controller) Stats() (Stats, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	if c.off() || !c.valid {
		return s, nil
	}
	s.Interfaces, s.Frontends, s.Hardware = len(c.chosen), len(c.frontends.keys), c.hardware
	var err error
	s.Offloaded, _, err = c.conn.Counter(table, counterOffloaded)
	return s, err
}

// Service is the Service that a frontend belongs to.
func (c *Controller) Service(k desired.FrontendKey) (desired.ServicePort, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	known, ok := c.frontends.known[k]
	return known.service, ok
}

// CountFlows returns the number of flows by Service, those of no Service under the empty
// name. Each is that of a flows.Conn.
func (c *Controller) CountFlows(each func(visit func(*flows.Flow)) error) (map[types.NamespacedName]int, error) {
	byFrontend := map[desired.FrontendKey]int{}
	err := each(func(f *flows.Flow) { byFrontend[f.Frontend()]++ })
	byService := map[types.NamespacedName]int{}
	for k, n := range byFrontend {
		s, _ := c.Service(k)
		byService[types.NamespacedName{Namespace: s.Namespace, Name: s.Name}] += n
	}
	return byService, err
}
