// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"net/netip"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

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
