// SPDX-License-Identifier: Apache-2.0

package netif

import (
	"context"
	"net/netip"
	"slices"
)

// WatchAddresses delivers the addresses of all interfaces, up or down, in order and without
// duplicates: first at once, and then whenever they differ. The receiver owns the slice.
// Errors are those of [Namespace.Watch].
func (n Namespace) WatchAddresses(ctx context.Context, deliver func([]netip.Addr)) error {
	byInterface := map[int][]netip.Addr{}
	var last []netip.Addr
	delivered := false
	return n.Watch(ctx, func(u Update) {
		if u.Full {
			clear(byInterface)
		}
		for _, index := range u.Gone {
			delete(byInterface, index)
		}
		for _, i := range u.Changed {
			byInterface[i.Index] = i.Addresses
		}
		var all []netip.Addr
		for _, some := range byInterface {
			all = append(all, some...)
		}
		slices.SortFunc(all, netip.Addr.Compare)
		if all = slices.Compact(all); !delivered || !slices.Equal(all, last) {
			delivered, last = true, all
			deliver(slices.Clone(all))
		}
	})
}
