// SPDX-License-Identifier: Apache-2.0

package desired

// addresses is a set of addresses with a count of who wants each, and a memory
// of what was last told.
type addresses struct {
	all   map[ipBytes]*addressUse
	dirty []ipBytes
}

type addressUse struct {
	users int
	told  bool
	dirty bool
}

// use adds n users of an address (n may be negative).
func (a *addresses) use(ip ipBytes, n int) {
	u := a.all[ip]
	if u == nil {
		if a.all == nil {
			a.all = map[ipBytes]*addressUse{}
		}
		u = &addressUse{}
		a.all[ip] = u
	}
	u.users += n
	if !u.dirty && (u.users > 0) != u.told {
		u.dirty = true
		a.dirty = append(a.dirty, ip)
	}
}

// change is what differs from what was told, which counts as told from here.
func (a *addresses) change() (c AddressChange) {
	for _, ip := range a.dirty {
		u := a.all[ip]
		u.dirty = false
		wanted := u.users > 0
		switch {
		case wanted && !u.told:
			c.Added = append(c.Added, ip.addr())
		case !wanted && u.told:
			c.Removed = append(c.Removed, ip.addr())
		}
		u.told = wanted
		if !wanted {
			delete(a.all, ip)
		}
	}
	a.dirty = nil
	return c
}

// full lists all that was told.
func (a *addresses) full() (c AddressChange) {
	for ip, u := range a.all {
		if u.told {
			c.Added = append(c.Added, ip.addr())
		}
	}
	return c
}
