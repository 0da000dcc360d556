// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/vishvananda/netlink/nl"
	"golang.org/x/sys/unix"
)

const (
	flagListHeader = 1 << 2 // IPSET_FLAG_LIST_HEADER: without elements
	attrElements   = nl.IPSET_ATTR_ELEMENTS | nl.NLA_F_NET_BYTEORDER
)

// count is how many members a set has, which the kernel knows without looking. A set
// that is not there is an error that wraps ENOENT.
func (s *sets) count(f desired.Family, k setKind) (n int, err error) {
	request := s.request(nl.IPSET_CMD_LIST, setName(f, k))
	request.AddData(&nl.Uint32Attribute{Type: nl.IPSET_ATTR_FLAGS | nl.NLA_F_NET_BYTEORDER, Value: flagListHeader})
	answers, err := request.Execute(unix.NETLINK_NETFILTER, 0)
	if err != nil {
		return 0, fmt.Errorf("IP set %s: %w", setName(f, k), err)
	}
	for _, a := range answers {
		for attr := range nl.ParseAttributes(a[4:]) {
			if attr.Type != nl.IPSET_ATTR_DATA|nl.NLA_F_NESTED {
				continue
			}
			for in := range nl.ParseAttributes(attr.Value) {
				if in.Type == attrElements {
					n = int(in.Uint32())
				}
			}
		}
	}
	return n, nil
}

// request is a message about a set.
func (s *sets) request(command int, name string) *nl.NetlinkRequest {
	r := nl.NewNetlinkRequest(command|unix.NFNL_SUBSYS_IPSET<<8, nl.GetIpsetFlags(command))
	r.Sockets = map[int]*nl.SocketHandle{unix.NETLINK_NETFILTER: {Socket: s.socket}}
	r.AddData(&nl.Nfgenmsg{NfgenFamily: unix.AF_NETLINK, Version: nl.NFNETLINK_V0})
	r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_PROTOCOL, nl.Uint8Attr(nl.IPSET_PROTOCOL)))
	r.AddData(nl.NewRtAttr(nl.IPSET_ATTR_SETNAME, nl.ZeroTerminated(name)))
	return r
}

// writePort adds a port to a set of ports or deletes it. The library would name a
// protocol too, which the kernel refuses.
func (s *sets) writePort(name string, port uint16, add bool) error {
	command := nl.IPSET_CMD_DEL
	if add {
		command = nl.IPSET_CMD_ADD
	}
	r := s.request(command, name)
	data := nl.NewRtAttr(nl.IPSET_ATTR_DATA|int(nl.NLA_F_NESTED), nil)
	data.AddRtAttr(nl.IPSET_ATTR_PORT|int(nl.NLA_F_NET_BYTEORDER), binary.BigEndian.AppendUint16(nil, port))
	r.AddData(data)
	_, err := r.Execute(unix.NETLINK_NETFILTER, 0)
	return err
}

// checkSets finds sets that somebody else has emptied, filled or destroyed.
func (b *Backend) checkSets() error {
	for _, t := range b.tables {
		for k := range setKinds {
			n, err := b.sets.count(t.family, k)
			switch {
			case errors.Is(err, unix.ENOENT):
				return fmt.Errorf("%w: IP set %s is gone", dataplane.ErrDamaged, setName(t.family, k))
			case err != nil:
				return err
			case n != t.members[k]:
				return fmt.Errorf("%w: IP set %s has %d members instead of %d", dataplane.ErrDamaged, setName(t.family, k), n, t.members[k])
			}
		}
	}
	return nil
}
