// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"errors"
	"fmt"
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ipset"
	"golang.org/x/sys/unix"
)

// setKind is one of the IP sets, which answer questions of membership. Each exists for
// both families. A rule that uses a set never changes, and a member costs microseconds
// where a rule in iptables-legacy costs a copy of the table.
type setKind int

const (
	setExternal   setKind = iota // frontends that are not ClusterIPs
	setLocal                     // those of them with a pool for traffic from outside
	setRestricted                // those that only some sources may use
	setReject                    // frontends without backends that are refused
	setDrop                      // frontends without backends, or without those for traffic from outside, that are dropped
	frontendSets                 // the sets above are of frontends

	setSources setKind = iota - 1 // who may connect to restricted frontends
	setClusterIPs
	setHairpin // addresses of endpoints that may be on this node
	setServiceCIDRs
	setHealthChecks // ports of the node
	setKinds
)

// setTypes are the names of the sets, and the names of their types.
var setTypes = [setKinds]struct{ name, typ string }{
	setExternal:     {"EXTERNAL", "hash:ip,port"},
	setLocal:        {"LOCAL", "hash:ip,port"},
	setRestricted:   {"RESTRICTED", "hash:ip,port"},
	setReject:       {"REJECT", "hash:ip,port"},
	setDrop:         {"DROP", "hash:ip,port"},
	setSources:      {"SOURCES", "hash:ip,port,net"},
	setClusterIPs:   {"CLUSTER-IPS", "hash:ip"},
	setHairpin:      {"HAIRPIN", "hash:ip"},
	setServiceCIDRs: {"SERVICE-CIDRS", "hash:net"},
	setHealthChecks: {"HEALTH-CHECKS", ipset.TypePorts},
}

// setName is a set's name: "SLIP-4-EXTERNAL".
func setName(f desired.Family, k setKind) string {
	if f == desired.IPv4 {
		return prefix + "4-" + setTypes[k].name
	}
	return prefix + "6-" + setTypes[k].name
}

// member is a member of a set.
type member = ipset.Member

func frontendMember(k desired.FrontendKey) member {
	return member{AddrPort: k.AddrPort, Protocol: uint8(k.Protocol)}
}

func addrMember(a netip.Addr) member { return member{Net: netip.PrefixFrom(a, a.BitLen())} }

// keyOf is the frontend of a member of a set of frontends.
func keyOf(m member) desired.FrontendKey {
	return desired.FrontendKey{AddrPort: m.AddrPort, Protocol: desired.Protocol(m.Protocol)}
}

// createSets creates the sets of a family that do not exist.
func createSets(c *ipset.Conn, f desired.Family) error {
	for k := range setKinds {
		if err := c.Create(setName(f, k), setTypes[k].typ, f == desired.IPv6); err != nil {
			return err
		}
	}
	return nil
}

// readSets lists the members of all sets of a family. A set that does not exist has none.
func readSets(c *ipset.Conn, f desired.Family) (all [setKinds]map[member]bool, err error) {
	for k := range setKinds {
		if all[k], err = c.List(setName(f, k)); err != nil && !errors.Is(err, unix.ENOENT) {
			return all, err
		}
	}
	return all, nil
}

// checkSets compares the number of members of all sets with what was written.
func (b *Backend) checkSets() error {
	for _, t := range b.tables {
		for k := range setKinds {
			n, err := b.sets.Count(setName(t.family, k))
			switch {
			case errors.Is(err, unix.ENOENT):
				return fmt.Errorf("%w: IP set %s does not exist", dataplane.ErrDamaged, setName(t.family, k))
			case err != nil:
				return err
			case n != t.members[k]:
				return fmt.Errorf("%w: IP set %s has %d members instead of %d", dataplane.ErrDamaged, setName(t.family, k), n, t.members[k])
			}
		}
	}
	return nil
}
