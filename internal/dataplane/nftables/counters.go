// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"errors"
	"net/netip"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// Counters of connections with session affinity.
const (
	newClients = "new_clients"        // with a new client
	unrecorded = "unrecorded_clients" // with a client that gets no affinity
)

// counters are the named counters of each table. Unlike the counters of rules, they survive
// when rules are written again, and a dump of rules does not return them.
var counters = []string{
	dataplane.NoEndpoints, dataplane.NoLocalEndpoints, dataplane.SourceNotAllowed, dataplane.UnknownPort, dataplane.UnallocatedAddress,
	newClients, unrecorded,
}

// Counts are numbers that the kernel counts.
type Counts struct {
	Rejected dataplane.Rejected

	// Unrecorded is the number of connections, by desired.Family, whose client got no
	// session affinity, because its Service or all together had too many clients.
	Unrecorded [len(schemas)]uint64

	// Unlimited is the number of times, by desired.Family, that a connection met no limit of its client's, because the set of
	// clients was full.
	Unlimited [len(schemas)]uint64
}

// Counts reads the kernel's counters. It can be called at any time, by any goroutine.
func (b *Dataplane) Counts() (c Counts, err error) {
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
	rejected := map[string]uint64{}
	for _, name := range slices.Concat(counters, limitCounters) {
		table := schemas[f].table
		if slices.Contains(limitCounters, name) {
			table = limitSchemas[f].table
		}
		packets, _, err := conn.Counter(table, name)
		switch {
		case errors.Is(err, unix.ENOENT) && table == limitSchemas[f].table:
		case errors.Is(err, unix.ENOENT):
			return nil
		case err != nil:
			return err
		case name == unrecorded:
			c.Unrecorded[f] = packets
		case name == unlimitedClients:
			c.Unlimited[f] = packets
		case name != newClients:
			rejected[name] = packets
		}
	}
	c.Rejected[f] = rejected
	return nil
}

// RejectedAt returns the numbers of packets to frontends that were refused or dropped, by the packets'
// destination, since the tables were created. It can be called at any time, by any goroutine.
func (b *Dataplane) RejectedAt() (map[desired.FrontendKey]uint64, error) {
	conn, err := nfnl.Dial(b.config.NetNS)
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	all := map[desired.FrontendKey]uint64{}
	for f := range schemas {
		s := &schemas[f]
		// Under constant transactions, every dump is interrupted. It may lack elements then.
		for _, table := range []nfnl.Table{s.table, limitSchemas[f].table} {
			failed := conn.Elements(table, s.rejected.Name, func(e nfnl.Element) { all[rejectedKey(e.Key)] += e.Packets })
			if !errors.Is(failed, unix.ENOENT) && !errors.Is(failed, nfnl.ErrInterrupted) {
				err = errors.Join(err, failed)
			}
		}
	}
	return all, err
}

// rejectedKey decodes a key of the set rejected.
func rejectedKey(key []byte) desired.FrontendKey {
	ip, _ := netip.AddrFromSlice(key[8:])
	return desired.FrontendKey{AddrPort: netip.AddrPortFrom(ip, binary.BigEndian.Uint16(key[4:])), Protocol: desired.Protocol(key[0])}
}

// fewDestinations is for how many destinations forgetRejected asks one by one, which takes as long as a dump of a full set.
const fewDestinations = 4096

// forgetRejected deletes the numbers of rejected packets to frontends that a change has deleted, or
// has given to another Service, so that the next Service with the address begins at 0. It asks for
// their destinations, if they are few, as a dump costs as much as others have had packets rejected. The numbers stay
// if that fails: they are not worth an error.
func (b *Dataplane) forgetRejected(change *desired.Change) {
	var gone [len(schemas)]map[string]bool // destinations
	for _, c := range change.Frontends {
		k := c.Key()
		f := desired.FamilyOf(k.Addr())
		if c.Old == nil || c.New != nil && c.New.Service == c.Old.Service || b.unsupported[f] || k.IsRange() {
			continue
		}
		s := &schemas[f]
		addresses := map[string]string{string(s.addr(nil, k.Addr().As16())): ""}
		if k.OnNode() {
			addresses = b.writer.keys[f][s.nodeAddresses]
		}
		if gone[f] == nil {
			gone[f] = map[string]bool{}
		}
		for address := range addresses {
			gone[f][string(nfnl.AppendPort(nil, uint8(k.Protocol), k.Port()))+address] = true
		}
	}
	var batch nfnl.Batch
	for f, gone := range gone {
		set := schemas[f].rejected
		for _, table := range []nfnl.Table{schemas[f].table, limitSchemas[f].table} {
			if len(gone) > fewDestinations {
				_ = b.conn.Elements(table, set.Name, func(e nfnl.Element) {
					if gone[string(e.Key)] {
						batch.DeleteElement(table, set, e.Key)
					}
				})
				continue
			}
			for key := range gone {
				if has, _ := b.conn.Has(table, set.Name, []byte(key)); has {
					batch.DeleteElement(table, set, []byte(key))
				}
			}
		}
	}
	_ = b.conn.Commit(0, &batch)
}

// loopbackRanges are the loopback addresses by family.
var loopbackRanges = [len(schemas)]netip.Prefix{
	desired.IPv4: netip.MustParsePrefix("127.0.0.0/8"),
	desired.IPv6: netip.MustParsePrefix("::1/128"),
}

// refusedCounter is the name of the counter of packets of a protocol to NodePorts that are
// refused at loopback addresses.
func refusedCounter(p desired.Protocol) string {
	return "loopback-refused-" + strings.ToLower(p.String())
}

// RefusedPackets returns the number of packets to NodePorts that were refused at loopback addresses, by family, since
// the family's table was created. It can be called at any time, by any goroutine.
func (b *Dataplane) RefusedPackets() (n [len(schemas)]map[desired.Protocol]uint64, err error) {
	conn, err := nfnl.Dial(b.config.NetNS)
	if err != nil {
		return n, err
	}
	defer conn.Close()
	for f := range schemas {
		n[f] = map[desired.Protocol]uint64{}
		for _, p := range desired.Protocols {
			packets, _, err := conn.Counter(schemas[f].table, refusedCounter(p))
			if err != nil && !errors.Is(err, unix.ENOENT) {
				return n, err
			}
			n[f][p] = packets
		}
	}
	return n, nil
}
