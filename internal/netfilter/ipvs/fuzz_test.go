// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"net/netip"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzAnswers: no answer of IPVS, however odd, ends the process, and what is read has an address.
func FuzzAnswers(f *testing.F) {
	key := Key{Protocol: unix.IPPROTO_TCP, Addr: netip.MustParseAddr("10.96.0.1"), Port: 80}
	f.Add(AddService(Service{Key: key, Scheduler: "rr"}).data, uint16(unix.AF_INET))
	f.Add(AddDestination(key, Destination{AddrPort: netip.MustParseAddrPort("10.244.0.1:80")}).data, uint16(unix.AF_INET6))
	f.Add([]byte{0, 0, 0, 0, 8, 0, 1, 0x80, 4, 0, 1, 0}, uint16(0))
	f.Fuzz(func(t *testing.T, data []byte, family uint16) {
		if s, err := decodeService(data); err == nil && s.Mark == 0 && !s.Addr.IsValid() {
			t.Errorf("virtual server %+v", s)
		}
		if d, err := decodeDestination(data, family); err == nil && !d.Addr().IsValid() {
			t.Errorf("destination %+v", d)
		}
	})
}
