// SPDX-License-Identifier: Apache-2.0

package socket

import (
	"encoding/binary"
	"errors"
	"math/rand/v2"
	"net/netip"
	"slices"
	"time"

	"github.com/cilium/ebpf"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"golang.org/x/sys/unix"
)

// content is a record of what the maps have.
type content struct {
	pools      dataplane.Pools[pool]
	numbered   uint32 // the last number of a pool
	frontends  int
	slots      int
	nodeIPs    map[netip.Addr]bool // that serve NodePorts
	ownIPs     map[netip.Addr]bool // of interfaces
	clusterIPs map[netip.Addr]bool
	addresses  map[netip.Addr]uint32 // the map node_addresses
}

// Values of the map of the node's addresses.
const (
	servesNodePorts uint32 = 1
	servedByNode    uint32 = 2 // a ClusterIP that an interface has
)

// pool is a pool and its number in the maps, which no other pool gets later: the program may have
// read it just before the pool was deleted. Slots are as for Random if the algorithm is one that
// the program does not have.
type pool struct {
	dataplane.Pool
	number uint32
	left   bool // to the dataplane, because of the algorithm
}

func newContent() *content {
	return &content{
		nodeIPs: map[netip.Addr]bool{}, ownIPs: map[netip.Addr]bool{}, clusterIPs: map[netip.Addr]bool{}, addresses: map[netip.Addr]uint32{},
	}
}

// update is one element of a map, written or deleted.
type update[K comparable, V any] struct {
	key   K
	value V
	gone  bool
}

// updates are elements in the order in which they have to be written: a pool's number of slots is
// never larger than the slots that exist.
type updates struct {
	slots     []update[programSlot, programAddress]
	pools     []update[uint32, programPool]
	addresses []update[programAddress, uint32]
	frontends []update[programAddress, uint32]
	emptied   []update[programSlot, programAddress]
	deleted   []update[uint32, programPool]
}

// apply updates the record, and returns how the maps differ.
func (c *content) apply(change *desired.Change) (u updates) {
	for i := range change.Pools {
		c.applyPool(&u, change.Pools[i])
	}
	var touched []netip.Addr
	for set, record := range map[desired.Set]map[netip.Addr]bool{
		desired.NodeAddresses: c.nodeIPs, desired.OwnIPs: c.ownIPs, desired.ClusterIPs: c.clusterIPs,
	} {
		for m := range change.Sets[set].All() {
			touched = append(touched, m.Addr)
		}
		change.Sets[set].Note(record)
	}
	for _, ip := range touched {
		value := uint32(0)
		switch {
		case c.clusterIPs[ip] && c.ownIPs[ip]:
			value = servedByNode
		case c.nodeIPs[ip] && !c.clusterIPs[ip] && !ip.IsLoopback() && !ip.IsLinkLocalUnicast(): // those are others in a pod
			value = servesNodePorts
		}
		if value != c.addresses[ip] {
			c.addresses[ip] = value
			u.addresses = append(u.addresses, update[programAddress, uint32]{addressOf(netip.AddrPortFrom(ip, 0)), value, value == 0})
		}
		if value == 0 {
			delete(c.addresses, ip)
		}
	}
	for _, f := range change.Frontends {
		if key := f.Key(); key.Protocol == desired.TCP && !key.IsRange() {
			u.frontends = append(u.frontends, update[programAddress, uint32]{addressOf(key.AddrPort), c.poolOf(f.New), f.New == nil})
			c.frontends += count(f.New != nil) - count(f.Old != nil)
		}
	}
	return u
}

func count(b bool) int {
	if b {
		return 1
	}
	return 0
}

// poolOf returns the number of the pool for a frontend, or 0 if the dataplane decides.
func (c *content) poolOf(f *desired.Frontend) uint32 {
	if f == nil || f.Affinity != 0 || f.Sources != nil || f.Limits != (desired.Limits{}) {
		return 0
	}
	if p := c.pools.Get(f.Pool); p != nil {
		return p.number
	}
	return 0
}

func (c *content) applyPool(u *updates, change desired.PoolChange) {
	if change.Sticky { // its frontends are left to the dataplane
		return
	}
	// The program does not have these algorithms: Maglev hashes the address of the client, which has none yet, and
	// LeastConnections counts connections in conntrack, which has none to Services then.
	left := change.Algorithm.Hashes() || change.Algorithm == desired.LeastConnections
	if left {
		change.Balance = desired.Balance{}
	}
	p := c.pools.Get(change.ID)
	if change.New || p == nil {
		c.numbered++
		p = &pool{dataplane.NewPool(&change), c.numbered, left}
		c.pools.Set(change.ID, p)
	}
	p.left = left
	before := len(p.Slots)
	for _, s := range p.Update(&change) {
		e := update[programSlot, programAddress]{programSlot{Pool: p.number, Number: uint32(s.Slot)}, programAddress{}, !s.Has}
		if s.Has {
			e.value = addressOf(netip.AddrPortFrom(s.New.Addr(), s.New.Port()))
			u.slots = append(u.slots, e)
		} else {
			u.emptied = append(u.emptied, e)
		}
	}
	c.slots += len(p.Slots) - before
	if change.Gone {
		c.pools.Set(change.ID, nil)
		u.deleted = append(u.deleted, update[uint32, programPool]{key: p.number, gone: true})
		return
	}
	value := programPool{Count: uint32(len(p.Slots)), Next: rand.Uint32()}
	if p.left {
		value.Count = 0
	}
	if p.Algorithm == desired.RoundRobin {
		value.InTurn = 1
	}
	u.pools = append(u.pools, update[uint32, programPool]{key: p.number, value: value})
}

// addressOf returns an address as in the maps.
func addressOf(a netip.AddrPort) (b programAddress) {
	ip := a.Addr().As16()
	for i := range b.Ip {
		b.Ip[i] = binary.NativeEndian.Uint32(ip[4*i:])
	}
	b.Port = binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, a.Port()))
	return b
}

// write writes updates.
func (u *updates) write(to *programObjects) error {
	return errors.Join(
		write(to.Endpoints, u.slots), write(to.Pools, u.pools), write(to.NodeAddresses, u.addresses),
		write(to.Frontends, u.frontends), write(to.Endpoints, u.emptied), write(to.Pools, u.deleted),
	)
}

func write[K comparable, V any](to *ebpf.Map, all []update[K, V]) error {
	const batch = 4096
	for some := range slices.Chunk(all, batch) {
		keys, values := make([]K, 0, len(some)), make([]V, 0, len(some))
		for _, e := range some {
			if !e.gone {
				keys, values = append(keys, e.key), append(values, e.value)
			} else if err := to.Delete(&e.key); err != nil && !errors.Is(err, ebpf.ErrKeyNotExist) {
				return err
			}
		}
		if len(keys) == 0 {
			continue
		}
		if _, err := patiently(len(keys), func(done int) (int, error) { return to.BatchUpdate(keys[done:], values[done:], nil) }); err != nil {
			return err
		}
	}
	return nil
}

// patiently writes n elements, by calls that are given how many are done. The kernel keeps few free elements,
// and gets more in an interrupt: there may be none for a moment.
func patiently(n int, put func(done int) (int, error)) (done int, err error) {
	const most, pause = 200, time.Millisecond
	for failed := 0; done < n; {
		some, err := put(done)
		switch {
		case err == nil:
			return n, nil
		case !errors.Is(err, unix.ENOMEM) || failed == most:
			return done, err
		case some > 0:
			failed = 0
		default:
			failed++
		}
		done += some
		time.Sleep(pause)
	}
	return done, nil
}

// size is the number of updates.
func (u *updates) size() int {
	return len(u.slots) + len(u.pools) + len(u.addresses) + len(u.frontends) + len(u.emptied) + len(u.deleted)
}
