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

// FuzzListing: no text of /proc/net/ip_vs ends the process, and what is read has addresses.
func FuzzListing(f *testing.F) {
	f.Add("TCP  0A600001:0050 rr\n  -> 0AF40103:1F90      Masq    1      0          0\n")
	f.Add("UDP  [fd00:0000:0000:0000:0000:0000:0000:0001]:0035 rr ops persistent 10 FFFFFFFF\n  -> x:y Tunnel 1 0 0\n")
	f.Add("-> : -> : : :\nTCP : rr\nFWM 7 rr\n -> 0:0 Masq 1 0 0\n")
	f.Fuzz(func(t *testing.T, text string) {
		all, err := parseListing(text)
		for key, destinations := range all {
			for _, d := range destinations {
				if err == nil && !(key.Addr.IsValid() && d.IsValid()) {
					t.Errorf("%v: %+v", key, d)
				}
			}
		}
	})
}
