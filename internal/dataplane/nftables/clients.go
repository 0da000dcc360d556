// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"context"
	"encoding/binary"
	"errors"
	"maps"
	"net/netip"
	"strings"
	"sync"
	"time"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/logonce"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/klog/v2"
)

// All Services of a family share the map affinity. A Service gets new clients while it has at most a quarter as many as
// there are free places, 52,428 if it is alone, 43,690 each of two, and so on; and while all Services of its namespace
// have at most as many as there are. So neither a Service nor a tenant with many takes the places of others.
//
// The kernel cannot count the elements of a Service, but it can limit new ones, which the set new-clients does for each
// Service and each namespace by token buckets. What a Service may have at once is at most a sixteenth of the map, and a
// namespace a quarter, so that new clients are limited before they are counted, however fast they arrive. The proxy
// counts the clients now and then, and then gives every Service new tokens: those that the rules give, or as many as it
// may have new clients. If the proxy does not run, a Service gets new clients more slowly, or none.

// share and atOnce are the divisors of the free places and of all places, respectively, that
// limit the clients of a Service, and the others those of a namespace.
const (
	share           = 4
	atOnce          = 16
	namespaceShare  = 1
	namespaceAtOnce = 4
)

// namespaceBits has the number of the namespace in that of a Service, where the others are not 0.
const namespaceBits = 0xffff0000

// newAtOnce is the number of new clients of a Service before the proxy counts them. While it
// does not, there may be as many each hour.
func (s *schema) newAtOnce() uint32 { return s.affinity.Size / atOnce }

// limitNewClients matches new clients within the limits of their Service and its namespace.
func (s *schema) limitNewClients() []expr.Any {
	limit := func(key, n uint32) expr.Any {
		return &expr.Dynset{
			SetName: s.newClients.Name, Operation: dynsetUpdate, SrcRegKey: key,
			Exprs: []expr.Any{newClientsLimit(n, expr.LimitTimeHour, n)},
		}
	}
	namespace := &expr.Bitwise{SourceRegister: regID, DestRegister: regKey, Len: 4, Mask: word(namespaceBits), Xor: word(0)}
	return []expr.Any{limit(regID, s.newAtOnce()), namespace, limit(regKey, s.affinity.Size/namespaceAtOnce)}
}

func newClientsLimit(rate uint32, unit expr.LimitTime, atOnce uint32) expr.Any {
	return &expr.Limit{Type: expr.LimitTypePkts, Rate: uint64(rate), Unit: unit, Burst: atOnce}
}

// Clients counts and limits the clients with session affinity. It is made by [Dataplane.Clients].
type Clients struct {
	netns    int
	commits  *nfnl.Commits
	period   time.Duration // readPeriod, except in tests
	conn     *nfnl.Conn    // of Run
	families [len(schemas)]familyClients

	mu     sync.Mutex
	counts [len(schemas)]ClientCount
}

// ClientCount is the number of clients with session affinity of a family.
type ClientCount struct {
	Recorded int // clients, when they were last counted
	Most     int // clients of all Services together
	Full     int // Services that had nine tenths of the clients that they may have then
}

// familyClients is the state of Clients for a family.
type familyClients struct {
	counted         time.Time       // when clients were last counted
	notUntil        time.Time       // when they may be counted again
	added, rejected uint64          // the counters when new-clients was last written
	elements        bool            // some were written
	full            map[uint32]bool // the full Services, by number
}

func (c *Clients) init(b *Dataplane) {
	c.netns, c.commits, c.period = b.config.NetNS, b.conn.Commits(), readPeriod
	for f := range schemas {
		c.counts[f].Most = int(schemas[f].affinity.Size)
	}
}

// dial opens the connection.
func (c *Clients) dial() (err error) {
	if c.conn, err = nfnl.Dial(c.netns); err == nil {
		c.conn.Share(c.commits)
	}
	return err
}

// Count returns the last numbers, at most some minutes old, by desired.Family. It may be called by any goroutine.
func (c *Clients) Count() [len(schemas)]ClientCount {
	c.mu.Lock()
	defer c.mu.Unlock()
	return c.counts
}

const (
	// readPeriod is the time between two looks at the rules' counters.
	readPeriod = 10 * time.Second

	// countPeriod is the time after which clients are counted again. They are counted
	// earlier if there are many new ones.
	countPeriod = time.Minute

	// countRest is the least time between two counts, in multiples of a count's duration:
	// for each message of a dump, the kernel walks the map from its beginning.
	countRest = 100
)

// Run counts and limits clients until ctx ends. It calls full when a Service becomes full (see [ClientCount]).
func (c *Clients) Run(ctx context.Context, full func(types.NamespacedName, desired.Family)) {
	const notCounted = "Could not count and limit clients with session affinity"
	log := klog.FromContext(ctx)
	if err := c.dial(); err != nil {
		log.Error(err, notCounted)
		return
	}
	context.AfterFunc(ctx, func() { c.conn.Close() }) // also ends a long dump
	var errs [len(schemas)]logonce.Errors
	t := time.NewTicker(c.period)
	defer t.Stop()
	for {
		select {
		case <-ctx.Done():
			return
		case <-t.C:
		}
		for f := range schemas {
			services, err := c.update(f, time.Now())
			for _, name := range services {
				full(name, desired.Family(f))
			}
			if ctx.Err() == nil {
				errs[f].Log(log, err, notCounted, "family", desired.Family(f))
			}
		}
	}
}

// update reads the counters of a family, and counts and limits its clients if that is due. It
// returns the Services that have become full.
func (c *Clients) update(f int, now time.Time) (full []types.NamespacedName, err error) {
	s, k := &schemas[f], &c.families[f]
	var rejected uint64
	added, _, err := c.conn.Counter(s.table, newClients)
	if err == nil {
		rejected, _, err = c.conn.Counter(s.table, unrecorded)
	}
	if err != nil {
		return nil, tolerate(err)
	}
	if added < k.added || rejected < k.rejected { // the table was created again
		k.added, k.rejected = 0, 0
	}
	many := added-k.added >= uint64(s.newAtOnce()/2) || rejected > k.rejected
	due := many || k.counted.IsZero() || now.Sub(k.counted) >= countPeriod && (c.Count()[f].Recorded > 0 || added > k.added)
	if !due || now.Before(k.notUntil) {
		return nil, nil
	}
	start := time.Now()
	byService, total, err := c.count(s)
	took := time.Since(start)
	k.counted, k.notUntil = now, now.Add(took+countRest*took)
	if err != nil {
		return nil, err
	}
	limits, over := s.limits(byService, total)
	c.mu.Lock()
	c.counts[f].Recorded, c.counts[f].Full = total, len(over)
	c.mu.Unlock()
	if many || k.elements || len(limits) > 0 {
		if err := c.limit(s, limits); err != nil {
			return nil, err
		}
		k.added, k.rejected, k.elements = added, rejected, len(limits) > 0
	}
	before := k.full
	k.full = over
	for id := range over {
		if !before[id] {
			name, err := c.service(s, id)
			if err != nil || name.Name == "" {
				delete(k.full, id) // to be reported when its name is found
			}
			if err != nil {
				return full, err
			}
			if name.Name != "" {
				full = append(full, name)
			}
		}
	}
	return full, nil
}

// tolerate returns nil for errors of reading that the next reading makes up for: the ruleset
// is being changed, or there is no table yet.
func tolerate(err error) error {
	if errors.Is(err, nfnl.ErrInterrupted) || errors.Is(err, unix.ENOENT) {
		return nil
	}
	return err
}

// count counts the clients by the number of their Service. The number is approximate, as the clients change meanwhile.
func (c *Clients) count(s *schema) (byService map[uint32]int, total int, err error) {
	byService = map[uint32]int{}
	err = c.conn.Elements(s.table, s.affinity.Name, func(e nfnl.Element) {
		byService[firstNumber(e.Key)]++
		total++
	})
	return byService, total, tolerate(err)
}

// limits returns how many new clients the Services and namespaces may have for which the rule's limit is not
// the right one, and the full Services. Of a full namespace, these are all that have many clients.
func (s *schema) limits(byService map[uint32]int, total int) (limits map[uint32]uint32, full map[uint32]bool) {
	limits, full = map[uint32]uint32{}, map[uint32]bool{}
	free := int(s.affinity.Size) - total
	limit := func(id uint32, n, share, atOnce int) (isFull bool) {
		if n <= min(int(s.affinity.Size)/atOnce, free/share)/4 {
			return false
		}
		// With so many more clients, it has the share of what is free then.
		more := (free - share*n) / (share + 1)
		limits[id] = uint32(max(more, 1)) // the kernel takes 0 for 5
		return 10*share*n >= 9*free       // not all, so that it does not begin again when some leave
	}
	byNamespace := map[uint32]int{}
	for id, n := range byService {
		byNamespace[id&namespaceBits] += n
	}
	for id, n := range byNamespace {
		full[id] = limit(id, n, namespaceShare, namespaceAtOnce)
	}
	for id, n := range byService {
		if limit(id, n, share, atOnce) || full[id&namespaceBits] && n > free/atOnce {
			full[id] = true
		}
	}
	maps.DeleteFunc(full, func(id uint32, is bool) bool { return !is || id&^namespaceBits == 0 })
	return limits, full
}

// limit gives all Services new tokens.
func (c *Clients) limit(s *schema, limits map[uint32]uint32) error {
	var batch nfnl.Batch
	batch.FlushSet(s.table, s.newClients)
	for id, n := range limits {
		batch.AddElementWith(s.table, s.newClients, word(id), newClientsLimit(1, expr.LimitTimeDay, n))
	}
	return tolerate(c.conn.Commit(0, &batch))
}

// service returns the Service with a number in its affinity IDs, without a name if there is none.
func (c *Clients) service(s *schema, id uint32) (name types.NamespacedName, err error) {
	err = c.conn.Elements(s.table, s.addressSets[0].sticky.Name, func(e nfnl.Element) {
		if firstNumber(e.Value[4:]) == id {
			service, _, _ := strings.Cut(string(e.Comment), ":")
			name.Namespace, name.Name, _ = strings.Cut(service, "/")
		}
	})
	return name, tolerate(err)
}

// ClientsBackend returns the backend that a client of a frontend with session affinity had last, and for how long it is
// remembered. The backend is zero if there is none. ClientsBackend can be called at any time, by any goroutine.
func (b *Dataplane) ClientsBackend(f *desired.Frontend, client netip.Addr) (backend desired.Backend, left time.Duration, err error) {
	conn, err := nfnl.Dial(b.config.NetNS)
	if err != nil {
		return backend, 0, err
	}
	defer conn.Close()
	s := &schemas[desired.FamilyOf(client)]
	service, port := affinityID(f.Service, f.Protocol, f.Shared)
	e, has, err := conn.Element(s.table, s.affinity.Name, s.addr(number(number(nil, service), port), client.As16()))
	if err != nil || !has {
		return backend, 0, tolerate(err)
	}
	const portAt, addrAt = 4, 8
	if n := binary.BigEndian.Uint16(e.Value[portAt:]); n != 0 { // see recordClient
		ip, _ := netip.AddrFromSlice(e.Value[addrAt:])
		backend = desired.NewBackend(netip.AddrPortFrom(ip, n))
	}
	return backend, e.Expires, nil
}
