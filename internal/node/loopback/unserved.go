// SPDX-License-Identifier: Apache-2.0

package loopback

import (
	"encoding/binary"
	"fmt"
	"os"
	"slices"
	"strings"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Unserved returns the relays with backends on whose address no program listens, in the calling
// thread's network namespace. It reads /proc/thread-self/net/tcp and the like
// (Documentation/networking/proc_net_tcp.rst).
func Unserved(relays []desired.Relay) (unserved []desired.Relay, err error) {
	served := map[string]map[string]bool{} // addresses by file
	for _, r := range relays {
		if len(r.Backends) == 0 {
			continue
		}
		file, state := "tcp", "0A" // TCP_LISTEN
		if r.Protocol == desired.UDP {
			file, state = "udp", "07" // not connected
		}
		if r.Addr().Is6() {
			file += "6"
		}
		if served[file] == nil {
			text, err := os.ReadFile("/proc/thread-self/net/" + file)
			if err != nil {
				return nil, err
			}
			served[file] = map[string]bool{}
			for line := range strings.Lines(string(text)) {
				if f := strings.Fields(line); len(f) > 3 && f[3] == state {
					served[file][f[1]] = true
				}
			}
		}
		if !served[file][inProc(r.FrontendKey)] {
			unserved = append(unserved, r)
		}
	}
	return unserved, nil
}

// inProc writes an address as these files do: in hexadecimal words in the machine's byte order.
func inProc(k desired.FrontendKey) string {
	var s strings.Builder
	for word := range slices.Chunk(k.Addr().AsSlice(), 4) {
		fmt.Fprintf(&s, "%08X", binary.NativeEndian.Uint32(word))
	}
	return fmt.Sprintf("%s:%04X", s.String(), k.Port())
}
