// SPDX-License-Identifier: Apache-2.0

package desired

// counted is a set whose members have users, and a memory of what was last told.
type counted[T comparable] struct {
	all   map[T]*uses
	dirty []T
}

// addresses are a counted set; made from 16 bytes, they hold no pointers.
type addresses struct{ counted[ipBytes] }

type uses struct {
	users int
	told  bool
	dirty bool
}

// use adds n users of a member (n may be negative).
func (a *counted[T]) use(member T, n int) {
	u := a.all[member]
	if u == nil {
		if a.all == nil {
			a.all = map[T]*uses{}
		}
		u = &uses{}
		a.all[member] = u
	}
	u.users += n
	if !u.dirty && (u.users > 0) != u.told {
		u.dirty = true
		a.dirty = append(a.dirty, member)
	}
}

// change is what differs from what was told, which counts as told from here.
func (a *counted[T]) change() (c SetChange[T]) {
	for _, member := range a.dirty {
		u := a.all[member]
		u.dirty = false
		wanted := u.users > 0
		switch {
		case wanted && !u.told:
			c.Added = append(c.Added, member)
		case !wanted && u.told:
			c.Removed = append(c.Removed, member)
		}
		u.told = wanted
		if !wanted {
			delete(a.all, member)
		}
	}
	a.dirty = nil
	return c
}

// full lists all that was told.
func (a *counted[T]) full() (c SetChange[T]) {
	for member, u := range a.all {
		if u.told {
			c.Added = append(c.Added, member)
		}
	}
	return c
}

func (a *addresses) change() AddressChange { return addressChange(a.counted.change()) }

func (a *addresses) full() AddressChange { return addressChange(a.counted.full()) }

func addressChange(c SetChange[ipBytes]) (out AddressChange) {
	for _, ip := range c.Added {
		out.Added = append(out.Added, ip.addr())
	}
	for _, ip := range c.Removed {
		out.Removed = append(out.Removed, ip.addr())
	}
	return out
}
