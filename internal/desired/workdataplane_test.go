// SPDX-License-Identifier: Apache-2.0

package desired_test

import (
	"net/netip"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

func init() {
	backend := func(i int) desired.Backend {
		return desired.NewBackend(netip.AddrPortFrom(netip.AddrFrom4([4]byte{10, 244, byte(i >> 8), byte(i)}), 80))
	}
	desired.Workloads["weights of a Maglev table"] = func(n int) {
		for _, other := range []uint64{0, 1} {
			c := desired.PoolChange{Balance: desired.Balance{Algorithm: desired.Maglev, TableSize: uint32(4 * n)}}
			for i := range n {
				c.Added = append(c.Added, backend(i))
				c.Weights = append(c.Weights, desired.Weight{Backend: backend(i), Weight: other})
			}
			c.Weights[0].Weight = 1 << 30
			p := dataplane.NewPool(&c)
			p.Update(&c)
		}
	}
	desired.Workloads["frontends of a pool"] = func(n int) {
		p := dataplane.Pool{}
		for range 2 {
			for i := range n {
				p.Refer(&desired.Frontend{FrontendKey: desired.FrontendKey{AddrPort: netip.AddrPortFrom(backend(i).Addr(), 80)}})
			}
			for i := range n {
				p.Unrefer(desired.FrontendKey{AddrPort: netip.AddrPortFrom(backend((i+n/2)%n).Addr(), 80)})
			}
			if len(p.Frontends) > 0 {
				panic("frontends are left")
			}
		}
	}
}
