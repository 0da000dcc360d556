// SPDX-License-Identifier: Apache-2.0

package fastpath

import (
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
)

// Stats are numbers for metrics.
type Stats struct {
	// Offloaded is how often a connection was offloaded since the table was created.
	// A connection is counted again after a Flush.
	Offloaded uint64

	Interfaces int      // number of interfaces that take part
	LeftOut    []string `json:",omitempty"` // interfaces that the engine EBPF leaves out, and what they have
	Frontends  int      // number of frontends in the sets; with the scope All, those that are excluded
	Engine     Engine   // that is in use
	Bypass     Bypass
	Refused    uint64 // number of connections for which the engine EBPF had no space
	Hardware   bool   // flows are offloaded to network hardware
	Flushes    uint64 // number of flushes of all connections
	Errors     uint64 // number of failed changes
}

// Stats returns the current numbers.
func (c *Controller) Stats() (Stats, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := c.stats
	s.Engine, s.Bypass = c.config.Engine, c.config.Bypass
	if c.Off() || c.sequence.Check() != nil {
		return s, nil
	}
	s.Frontends = len(c.frontends)
	for _, l := range c.links {
		if l.chosen {
			s.Interfaces++
		}
		if l.barred != "" {
			s.LeftOut = append(s.LeftOut, l.name+": "+l.barred)
		}
	}
	slices.Sort(s.LeftOut)
	err := c.engine.stats(&s)
	return s, err
}

// Service returns the Service of a connection's original destination.
func (c *Controller) Service(k desired.FrontendKey) (desired.ServicePort, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	has := func(k desired.FrontendKey) bool { _, ok := c.frontends[k]; return ok }
	k, ok := desired.ServedBy(k, has, func(a netip.Addr) bool { return c.addresses[a] })
	return c.frontends[k], ok
}

// CountFlows returns the number of flows by Service; flows without a Service have the empty
// name. each is the method Each of a flows.Conn.
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

// ReadServices reads the Services of the frontends from the kernel, of NodePorts at each address, in a network namespace
// given by file descriptor (0 is the calling thread's), for processes other than the
// Controller's. Names are truncated to 127 bytes. Without a fast path there are none. It is
// for occasional use: the cost of reading a set grows with the square of its size. Under
// constant transactions, some frontends may be missing.
func ReadServices(netns int) (flows.Services, error) {
	conn, err := nfnl.Dial(netns)
	if err != nil {
		return nil, err
	}
	read := func(set *nfnl.Set, visit func(nfnl.Element)) {
		e := nfnl.ErrInterrupted
		const readTries = 3 // how often a set is read that changes meanwhile
		for try := 0; try < readTries && errors.Is(e, nfnl.ErrInterrupted); try++ {
			// Each try adds elements that the one before has missed.
			e = conn.Elements(table, set.Name, visit)
		}
		if e != nil && !errors.Is(e, nfnl.ErrInterrupted) && !errors.Is(e, unix.ENOENT) {
			err = errors.Join(err, fmt.Errorf("fast path: reading set %s: %w", set.Name, e))
		}
	}
	all, nodePorts := flows.Services{}, flows.Services{}
	for i := range families {
		f := &families[i]
		add := func(to flows.Services) func(nfnl.Element) {
			return func(e nfnl.Element) {
				if k, ok := f.parseFrontendKey(e.Key); ok {
					to[k] = string(e.Comment)
				}
			}
		}
		read(f.frontends, add(all))
		read(f.nodePorts, add(nodePorts))
		read(f.nodeAddresses, func(e nfnl.Element) {
			a, _ := netip.AddrFromSlice(e.Key)
			for k, service := range nodePorts {
				if _, overridden := all[k.At(a)]; !overridden && desired.FamilyOf(a) == desired.FamilyOf(k.Addr()) {
					all[k.At(a)] = service
				}
			}
		})
	}
	return all, errors.Join(err, conn.Close())
}
