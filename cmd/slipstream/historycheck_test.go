// SPDX-License-Identifier: Apache-2.0

package main

import (
	"errors"
	"fmt"
	"slices"
	"testing"
	"time"
)

// history is what was asked of a proxy, what it has acknowledged, and what clients saw. judge compares them.
type history struct {
	stays     map[string][]*stay // by Service
	gaps      []gap              // while another program has removed the rules
	downs     []gap              // from a kill to the first acknowledgement of the next proxy
	forgotten []gap              // in which clients' endpoints may have been forgotten
	last      map[string]attempt // of each Service with session affinity
}

// stay is the time of an endpoint in a Service.
type stay struct {
	server        string
	asked, served time.Time // when it was written, and acknowledged
	left, gone    time.Time // when its removal was
}

type gap struct{ from, to time.Time }

func overlaps(all []gap, from, to time.Time) bool {
	return slices.ContainsFunc(all, func(g gap) bool { return !to.Before(g.from) && (g.to.IsZero() || !from.After(g.to)) })
}

// attempt is a connection, or a datagram with its answer.
type attempt struct {
	service    string
	server     string
	begin, end time.Time
	err        error
}

// kind is what is promised to a Service's clients.
type kind struct {
	sticky bool
	late   time.Duration // how long after an acknowledged removal datagrams of a flow may reach an endpoint
}

var historyKinds = map[string]kind{"sticky": {sticky: true}, "udp": {late: 2 * time.Second}, "flow": {late: 2 * time.Second}}

// set records that a Service is to have these endpoints from now on.
func (h *history) set(service string, servers []string, now time.Time) {
	wanted := map[string]bool{}
	for _, s := range servers {
		wanted[s] = true
	}
	for _, s := range h.stays[service] {
		switch {
		case !s.left.IsZero():
		case wanted[s.server]:
			delete(wanted, s.server)
		default:
			s.left = now
		}
	}
	for _, server := range servers {
		if wanted[server] {
			h.stays[service] = append(h.stays[service], &stay{server: server, asked: now})
		}
	}
}

// acknowledge records that the kernel has what was set.
func (h *history) acknowledge(now time.Time) {
	for _, all := range h.stays {
		for _, s := range all {
			if s.served.IsZero() {
				s.served = now
			}
			if !s.left.IsZero() && s.gone.IsZero() {
				s.gone = now
			}
		}
	}
}

// judge returns what is wrong with an attempt, or "". Attempts to a Service with session affinity are judged in their order.
func (h *history) judge(a attempt) string {
	k, disturbed := historyKinds[a.service], overlaps(h.gaps, a.begin, a.end)
	if a.err != nil {
		for _, s := range h.stays[a.service] {
			disturbed = disturbed || k.late > 0 && !s.left.IsZero() && !s.left.After(a.end) && s.left.After(a.begin.Add(-k.late)) // IPVS drops one then
		}
		for _, s := range h.stays[a.service] {
			if !disturbed && !s.served.IsZero() && s.served.Before(a.begin) && (s.left.IsZero() || s.left.After(a.end)) {
				return fmt.Sprintf("%s: %v, while %s served", a.service, a.err, s.server)
			}
		}
		return ""
	}
	was, again := h.last[a.service], true
	if k.sticky {
		h.last[a.service] = a
	}
	reached := false
	for _, s := range h.stays[a.service] {
		if s.server == a.server && !s.asked.After(a.end) && (s.gone.IsZero() || !h.late(k, s.gone).Before(a.begin)) {
			reached = true
		}
		if s.server == was.server && s.served.Before(was.end) && (s.left.IsZero() || s.left.After(a.end)) {
			again = false // it served all the time
		}
	}
	if !reached {
		return fmt.Sprintf("%s reached %s, which is not its endpoint", a.service, a.server)
	}
	again = again || overlaps(h.forgotten, was.begin, a.end)
	if k.sticky && was.server != "" && was.server != a.server && !again && !disturbed {
		return fmt.Sprintf("%s reached %s after %s, which still serves", a.service, a.server, was.server)
	}
	return ""
}

// late is when datagrams of a flow have to have left an endpoint, after its removal was acknowledged. A proxy that is killed
// before it has cleaned conntrack leaves that to the next one.
func (h *history) late(k kind, gone time.Time) time.Time {
	end := gone.Add(k.late)
	for _, d := range h.downs {
		if k.late > 0 && !d.from.Before(gone) && !d.from.After(end) {
			if d.to.IsZero() {
				return time.Now()
			}
			end = d.to.Add(k.late)
		}
	}
	return end
}

// forget drops what attempts that begin from now on do not need.
func (h *history) forget(now time.Time) {
	for service, all := range h.stays {
		var kept []*stay
		for _, s := range all {
			if s.gone.IsZero() || now.Sub(s.gone) < time.Minute {
				kept = append(kept, s)
			}
		}
		h.stays[service] = kept
	}
	h.forgotten = h.forgotten[max(0, len(h.forgotten)-10):]
	h.gaps = h.gaps[max(0, len(h.gaps)-10):]
	h.downs = h.downs[max(0, len(h.downs)-10):]
}

// TestHistoryChecker plants one violation in each of some histories.
func TestHistoryChecker(t *testing.T) {
	begin := time.Unix(1_000_000, 0)
	at := func(s int) time.Time { return begin.Add(time.Duration(s) * time.Second) }
	refused := errors.New("refused")
	for _, test := range []struct {
		name string
		attempt
		before attempt
		down   gap
		want   string
	}{
		{name: "an endpoint", attempt: attempt{service: "web", server: "a", begin: at(20), end: at(21)}},
		{name: "while it leaves", attempt: attempt{service: "web", server: "b", begin: at(109), end: at(111)}},
		{name: "when it has left", attempt: attempt{service: "web", server: "b", begin: at(111), end: at(112)}, want: "web reached b, which is not its endpoint"},
		{name: "before it was asked for", attempt: attempt{service: "web", server: "c", begin: at(98), end: at(99)}, want: "web reached c, which is not its endpoint"},
		{name: "before it is acknowledged", attempt: attempt{service: "web", server: "c", begin: at(101), end: at(102)}},
		{name: "of another Service", attempt: attempt{service: "web", server: "u", begin: at(20), end: at(21)}, want: "web reached u, which is not its endpoint"},
		{name: "refused", attempt: attempt{service: "web", err: refused, begin: at(20), end: at(21)}, want: "web: refused, while a served"},
		{name: "refused in a gap", attempt: attempt{service: "web", err: refused, begin: at(199), end: at(201)}},
		{name: "refused after it", attempt: attempt{service: "web", err: refused, begin: at(211), end: at(212)}, want: "web: refused, while a served"},
		{name: "refused without an endpoint throughout", attempt: attempt{service: "udp", err: refused, begin: at(95), end: at(105)}},
		{name: "a datagram that is lost when its endpoint leaves", attempt: attempt{service: "flow", err: refused, begin: at(101), end: at(102)}},
		{name: "a datagram that is lost later", attempt: attempt{service: "flow", err: refused, begin: at(103), end: at(104)}, want: "flow: refused, while a served"},
		{name: "a late datagram", attempt: attempt{service: "udp", server: "u", begin: at(111), end: at(111)}},
		{name: "too late", attempt: attempt{service: "udp", server: "u", begin: at(113), end: at(113)}, want: "udp reached u, which is not its endpoint"},
		{name: "a late datagram, after a kill", down: gap{at(111), at(130)}, attempt: attempt{service: "udp", server: "u", begin: at(131), end: at(131)}},
		{name: "too late after a kill", down: gap{at(111), at(130)}, attempt: attempt{service: "udp", server: "u", begin: at(133), end: at(133)}, want: "udp reached u, which is not its endpoint"},
		{name: "too late before a kill", down: gap{at(114), at(130)}, attempt: attempt{service: "udp", server: "u", begin: at(113), end: at(113)}, want: "udp reached u, which is not its endpoint"},
		{name: "a connection after a kill", down: gap{at(111), at(130)}, attempt: attempt{service: "web", server: "b", begin: at(112), end: at(112)}, want: "web reached b, which is not its endpoint"},
		{name: "the same again", before: attempt{service: "sticky", server: "a", begin: at(20), end: at(21)}, attempt: attempt{service: "sticky", server: "a", begin: at(22), end: at(23)}},
		{name: "another one", before: attempt{service: "sticky", server: "a", begin: at(20), end: at(21)}, attempt: attempt{service: "sticky", server: "b", begin: at(22), end: at(23)}, want: "sticky reached b after a, which still serves"},
		{name: "another one after its removal", before: attempt{service: "sticky", server: "a", begin: at(20), end: at(21)}, attempt: attempt{service: "sticky", server: "b", begin: at(101), end: at(102)}},
		{name: "another one in another mode", before: attempt{service: "sticky", server: "b", begin: at(20), end: at(21)}, attempt: attempt{service: "sticky", server: "c", begin: at(301), end: at(302)}},
	} {
		h := &history{stays: map[string][]*stay{}, last: map[string]attempt{}}
		h.set("web", []string{"a", "b"}, at(0))
		h.set("sticky", []string{"a", "b"}, at(0))
		h.set("udp", []string{"u"}, at(0))
		h.set("flow", []string{"a", "u"}, at(0))
		h.acknowledge(at(10))
		h.set("web", []string{"a", "c"}, at(100))
		h.set("sticky", []string{"b", "c"}, at(100))
		h.set("udp", nil, at(100))
		h.set("flow", []string{"a"}, at(100))
		h.acknowledge(at(110))
		h.downs = []gap{test.down}
		h.gaps, h.forgotten = []gap{{at(200), at(210)}}, []gap{{at(300), at(300)}}
		if got := h.judge(test.before); test.before.service != "" && got != "" {
			t.Errorf("%s: before: %s", test.name, got)
		}
		if got := h.judge(test.attempt); got != test.want {
			t.Errorf("%s: %q, want %q", test.name, got, test.want)
		}
	}
}
