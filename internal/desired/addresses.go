// SPDX-License-Identifier: Apache-2.0

package desired

// counted is a reference-counted set that remembers which members were last reported.
type counted[T comparable] struct {
	all   map[T]uses
	dirty []T
}

type uses struct {
	users    int
	reported bool
	dirty    bool
}

// use adds n users of a member. A negative n removes users.
func (a *counted[T]) use(member T, n int) {
	if a.all == nil {
		a.all = map[T]uses{}
	}
	u := a.all[member]
	u.users += n
	if !u.dirty && (u.users > 0) != u.reported {
		u.dirty = true
		a.dirty = append(a.dirty, member)
	}
	a.all[member] = u
}

// has reports whether a member has users.
func (a *counted[T]) has(member T) bool { return a.all[member].users > 0 }

// change returns the difference from the last report and marks it as reported.
func (a *counted[T]) change() (c SetChange[T]) {
	for _, member := range a.dirty {
		u := a.all[member]
		if u.users > 0 {
			if !u.reported {
				c.Added = append(c.Added, member)
			}
			a.all[member] = uses{users: u.users, reported: true}
			continue
		}
		if u.reported {
			c.Removed = append(c.Removed, member)
		}
		delete(a.all, member)
	}
	a.dirty = nil
	return c
}

func (a *counted[T]) full() (c SetChange[T]) {
	for member, u := range a.all {
		if u.reported {
			c.Added = append(c.Added, member)
		}
	}
	return c
}
