// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net/netip"
	"slices"

	"github.com/slipstream-proxy/slipstream/backend"
	"github.com/slipstream-proxy/slipstream/backend/nftables/nfnl"
	"github.com/slipstream-proxy/slipstream/desired"
	"golang.org/x/sys/unix"
)

var _ backend.Reader = (*Backend)(nil)

// Read implements backend.Reader, from the kernel alone: nothing that the
// Backend remembers goes into it.
func (b *Backend) Read() (*backend.Content, error) {
	c := &backend.Content{
		Frontends:  map[desired.FrontendKey]backend.Target{},
		ClusterIPs: map[netip.Addr]bool{},
		HairpinIPs: map[netip.Addr]bool{},
	}
	for f := range schemas {
		r := reader{schema: &schemas[f], conn: b.conn, content: c}
		if err := r.read(); err != nil {
			return nil, fmt.Errorf("reading table %s %s: %w", schemas[f].table.Family, tableName, err)
		}
	}
	slices.Sort(c.Faults)
	return c, nil
}

// reader reads one table.
type reader struct {
	*schema
	conn    *nfnl.Conn
	content *backend.Content

	draws     map[uint32]uint32                     // pool -> size to draw below
	endpoints map[uint32]map[uint32]desired.Backend // pool -> slot -> backend
}

func (r *reader) fault(format string, args ...any) {
	r.content.Faults = append(r.content.Faults, fmt.Sprintf("%s: ", r.table.Family)+fmt.Sprintf(format, args...))
}

func (r *reader) read() error {
	if _, err := r.conn.Table(r.table); errors.Is(err, unix.ENOENT) {
		return nil
	}
	r.draws, r.endpoints = map[uint32]uint32{}, map[uint32]map[uint32]desired.Backend{}
	err := errors.Join(
		r.conn.Elements(r.table, r.pools.Name, r.pool),
		r.conn.Elements(r.table, r.schema.endpoints.Name, r.endpoint),
		r.conn.Elements(r.table, r.frontends.Name, r.frontend),
		r.conn.Elements(r.table, r.clusterIPs.Name, func(e nfnl.Element) {
			r.content.ClusterIPs[r.ip(e.Key)] = true
		}),
		r.conn.Elements(r.table, r.hairpin.Name, func(e nfnl.Element) {
			r.content.HairpinIPs[r.ip(e.Key)] = true
			if r.ip(e.Key) != r.ip(e.Key[r.addrLen:]) {
				r.fault("hairpin of two addresses %x", e.Key)
			}
		}),
	)
	for id := range r.endpoints {
		if _, ok := r.draws[id]; !ok {
			r.fault("endpoints of pool %d, which is not there", id)
		}
	}
	for id, slots := range r.endpoints {
		for slot := range slots {
			if int(slot) >= len(slots) {
				r.fault("pool %d has slot %d but only %d backends", id, slot, len(slots))
			}
		}
	}
	return err
}

func (r *reader) ip(key []byte) netip.Addr {
	ip, _ := netip.AddrFromSlice(key[:r.addrLen])
	return ip
}

func (r *reader) pool(e nfnl.Element) {
	id := firstNumber(e.Key)
	draw := firstNumber(e.Value[4:])
	r.draws[id] = draw
}

func (r *reader) endpoint(e nfnl.Element) {
	id := firstNumber(e.Key)
	slot := firstNumber(e.Key[4:])
	if r.endpoints[id] == nil {
		r.endpoints[id] = map[uint32]desired.Backend{}
	}
	port := binary.BigEndian.Uint16(e.Value[r.addrLen:])
	r.endpoints[id][slot] = desired.NewBackend(netip.AddrPortFrom(r.ip(e.Value), port))
}

func (r *reader) frontend(e nfnl.Element) {
	key, ok := r.decodeFrontendKey(e.Key)
	id := firstNumber(e.Value[4:])
	draw, there := r.draws[id]
	if !ok || !there {
		r.fault("frontend %x leads to pool %d, which is not there", e.Key, id)
		return
	}
	var t backend.Target
	for _, b := range r.endpoints[id] {
		t.Backends = append(t.Backends, b)
	}
	slices.SortFunc(t.Backends, desired.Backend.Compare)
	drop := int32(dropDraw)
	switch {
	case draw == uint32(drop):
		t.IfEmpty = desired.Drop
		if len(t.Backends) > 0 {
			r.fault("frontend %s drops but has backends", key)
		}
	case draw != uint32(pickSize(len(t.Backends))):
		r.fault("frontend %s draws below %d for %d backends", key, draw, len(t.Backends))
	}
	r.content.Frontends[key] = t
}
