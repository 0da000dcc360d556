// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"encoding/binary"
	"encoding/hex"
	"errors"
	"net/netip"
	"os"
	"strconv"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Unserved returns the relays with backends on whose address no program listens, in the calling
// thread's network namespace.
func Unserved(relays []desired.Relay) (unserved []desired.Relay, err error) {
	served := map[desired.Protocol]map[netip.AddrPort]bool{}
	for _, r := range relays {
		if len(r.Backends) == 0 {
			continue
		}
		if served[r.Protocol] == nil {
			if served[r.Protocol], err = Listening(r.Protocol); err != nil {
				return nil, err
			}
		}
		if !served[r.Protocol][r.AddrPort] {
			unserved = append(unserved, r)
		}
	}
	return unserved, nil
}

// Listening returns the addresses to which programs have bound sockets that listen on TCP, or receive datagrams of anyone, in the
// calling thread's network namespace. It reads /proc/thread-self/net/tcp and the like (Documentation/networking/proc_net_tcp.rst).
func Listening(p desired.Protocol) (map[netip.AddrPort]bool, error) {
	file, state := "tcp", "0A" // TCP_LISTEN
	if p == desired.UDP {
		file, state = "udp", "07" // TCP_CLOSE: not connected
	}
	all := map[netip.AddrPort]bool{}
	for _, family := range []string{"", "6"} {
		text, err := os.ReadFile("/proc/thread-self/net/" + file + family)
		if errors.Is(err, os.ErrNotExist) { // no IPv6
			continue
		}
		if err != nil {
			return nil, err
		}
		for line := range strings.Lines(string(text)) {
			if f := strings.Fields(line); len(f) > 3 && f[3] == state {
				if at, ok := parseSocket(f[1]); ok {
					all[at] = true
				}
			}
		}
	}
	return all, nil
}

// parseSocket parses an address of /proc/net/tcp: words in the machine's byte order, and a port.
func parseSocket(text string) (netip.AddrPort, bool) {
	words, port, _ := strings.Cut(text, ":")
	raw, err := hex.DecodeString(words)
	number, invalid := strconv.ParseUint(port, 16, 16)
	if err != nil || invalid != nil || len(raw)%4 != 0 {
		return netip.AddrPort{}, false
	}
	for i := 0; i < len(raw); i += 4 {
		binary.NativeEndian.PutUint32(raw[i:], binary.BigEndian.Uint32(raw[i:]))
	}
	ip, ok := netip.AddrFromSlice(raw)
	return netip.AddrPortFrom(ip.Unmap(), uint16(number)), ok
}
