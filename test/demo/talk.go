// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"time"

	"github.com/slipstream-proxy/slipstream/test/lab"
)

// family names the family of an address.
func family(a netip.Addr) string {
	if a.Is4() {
		return "IPv4"
	}
	return "IPv6"
}

// How often a message goes out on an established connection, and how long its
// echo may take before it counts as lost. TCP repeats what is lost.
const (
	talkPace    = 20 * time.Millisecond
	talkTimeout = 10 * time.Second
)

// talks opens established connections until each of the servers has at least n.
// It gives up after many, which by chance alone does not happen.
func talks(from *lab.Pod, to frontend, servers []string, n int) (all []*lab.Stream, err error) {
	has := map[string]int{}
	for tries := 0; tries < 100; tries++ {
		short := false
		for _, s := range servers {
			short = short || has[s] < n
		}
		if !short {
			break
		}
		s, err := from.Stream(to.proto, to.addr, talkPace, lab.Timeout(talkTimeout))
		if err != nil {
			return all, err
		}
		server := s.Stats().Server
		if has[server] >= n {
			_ = s.Close() // enough of those
			continue
		}
		has[server]++
		all = append(all, s)
	}
	return all, nil
}
