// SPDX-License-Identifier: Apache-2.0

package desired

// counted is a reference-counted set that remembers which members were last reported.
type counted[T comparable] struct {
	all   map[T]*uses
	dirty []T
}

type uses struct {
	users    int
	reported bool
	dirty    bool
}

// use adds n users of a member. A negative n removes users.
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
	if !u.dirty && (u.users > 0) != u.reported {
		u.dirty = true
		a.dirty = append(a.dirty, member)
	}
}

// change returns the difference from the last report and marks it as reported.
func (a *counted[T]) change() (c SetChange[T]) {
	for _, member := range a.dirty {
		u := a.all[member]
		u.dirty = false
		wanted := u.users > 0
		switch {
		case wanted && !u.reported:
			c.Added = append(c.Added, member)
		case !wanted && u.reported:
			c.Removed = append(c.Removed, member)
		}
		u.reported = wanted
		if !wanted {
			delete(a.all, member)
		}
	}
	a.dirty = nil
	return c
}

// full lists all reported members.
func (a *counted[T]) full() (c SetChange[T]) {
	for member, u := range a.all {
		if u.reported {
			c.Added = append(c.Added, member)
		}
	}
	return c
}
