// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"fmt"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"
)

// Listing returns the destinations of all virtual servers by address in the calling thread's network namespace, as
// /proc/net/ip_vs lists them. Netlink needs a request for each virtual server.
func Listing() (map[Key][]Destination, error) {
	text, err := os.ReadFile("/proc/thread-self/net/ip_vs")
	if err != nil {
		return nil, err
	}
	return parseListing(string(text))
}

var protocolNames = map[string]uint8{"TCP": unix.IPPROTO_TCP, "UDP": unix.IPPROTO_UDP, "SCTP": unix.IPPROTO_SCTP}

// parseListing parses
//
//	TCP  0A600001:0050 rr persistent 10800 FFFFFFFF
//	  -> 0AF40103:1F90      Masq    1      0          0
//
// Headers and servers by mark are skipped.
func parseListing(text string) (map[Key][]Destination, error) {
	all := map[Key][]Destination{}
	var server Key
	for line := range strings.Lines(text) {
		fields := strings.Fields(line)
		switch {
		case len(fields) == 6 && fields[0] == "->" && server.Protocol != 0:
			to, err := parseAddrPort(fields[1])
			if err != nil {
				return nil, err
			}
			var numbers [3]uint32 // weight, active and inactive connections
			for i := range numbers {
				n, err := strconv.ParseUint(fields[3+i], 10, 32)
				if err != nil {
					return nil, fmt.Errorf("/proc/net/ip_vs: %q: %w", line, err)
				}
				numbers[i] = uint32(n)
			}
			all[server] = append(all[server], Destination{
				AddrPort: to, Weight: numbers[0], Masquerading: fields[2] == "Masq", Active: numbers[1], Inactive: numbers[2],
			})
		case len(fields) >= 3 && fields[0] != "->":
			server = Key{}
			if p := protocolNames[fields[0]]; p != 0 {
				to, err := parseAddrPort(fields[1])
				if err != nil {
					return nil, err
				}
				server = Key{Addr: to.Addr(), Port: to.Port(), Protocol: p}
				all[server] = nil
			}
		}
	}
	return all, nil
}

// parseAddrPort parses "0A600001:0050" or "[fd00:0000:0000:0000:0000:0000:0000:0001]:0050".
func parseAddrPort(s string) (netip.AddrPort, error) {
	colon := max(strings.LastIndexByte(s, ':'), 0)
	port, failed := strconv.ParseUint(s[min(colon+1, len(s)):], 16, 16)
	var addr netip.Addr
	if six, is := strings.CutPrefix(s[:colon], "["); is {
		addr, _ = netip.ParseAddr(strings.TrimSuffix(six, "]"))
	} else if n, err := strconv.ParseUint(s[:colon], 16, 32); err == nil {
		addr = netip.AddrFrom4([4]byte{byte(n >> 24), byte(n >> 16), byte(n >> 8), byte(n)})
	}
	if failed != nil || !addr.IsValid() {
		return netip.AddrPort{}, fmt.Errorf("/proc/net/ip_vs: %q is not an address and port", s)
	}
	return netip.AddrPortFrom(addr, uint16(port)), nil
}
