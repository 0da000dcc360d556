// SPDX-License-Identifier: Apache-2.0

package desired

// counted is a reference-counted set that remembers which members were last reported.
type counted struct {
	all   map[Member]uses
	dirty []Member
}

type uses struct {
	users    int32
	reported bool
	dirty    bool
}

// use adds n users of a member. A negative n removes users.
func (a *counted) use(member Member, n int) {
	if a.all == nil {
		a.all = map[Member]uses{}
	}
	u := a.all[member]
	u.users += int32(n)
	if !u.dirty && (u.users > 0) != u.reported {
		u.dirty = true
		a.dirty = append(a.dirty, member)
	}
	a.all[member] = u
}

// has reports whether a member has users.
func (a *counted) has(member Member) bool { return a.all[member].users > 0 }

// change returns the difference from the last report and marks it as reported.
func (a *counted) change() (c SetChange) {
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

func (a *counted) full() (c SetChange) {
	for member, u := range a.all {
		if u.reported {
			c.Added = append(c.Added, member)
		}
	}
	return c
}
