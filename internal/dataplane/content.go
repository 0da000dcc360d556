// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Content is the programmed content in terms that all dataplanes share, as seen by
// clients: without the IDs of pools.
type Content struct {
	Frontends map[desired.FrontendKey]Target
	Sets      [desired.Programmed]map[desired.Member]bool

	// Refuses reports whether the kernel refuses a backend, which is left out then. It may be
	// nil. It is not called after the Reader is closed.
	Refuses func(desired.Backend) bool

	// Faults are inconsistencies in the kernel's objects, such as a pool with an
	// unused slot.
	Faults []string
}

// faultPrefix is the prefix of lines for faults.
const faultPrefix = "fault: "

// NewContent returns an empty content.
func NewContent() *Content {
	c := &Content{Frontends: map[desired.FrontendKey]Target{}}
	for set := range c.Sets {
		c.Sets[set] = map[desired.Member]bool{}
	}
	return c
}

// Target says how traffic to a frontend is handled.
type Target struct {
	Choice
	External    bool           // it is not a ClusterIP
	FromOutside *Choice        // for traffic from outside, if it may go to local backends only
	Parts       []desired.Part // of a range
	Affinity    uint32         // seconds; it does not matter without backends
	Sources     []netip.Prefix // client addresses that may connect, in order; nil for all
	Scheduler   string         // in IPVS mode, unless it is the node's
}

// Choice is the backends of a pool.
type Choice struct {
	Backends []desired.Backend // in order
	Spread   string            // weights, or the table; "" if connections are spread evenly
	IfEmpty  desired.Verdict   // Reject unless Backends is empty
	ByIPVS   bool              // in what a table has: IPVS has the backends

	// Varies says that the spread follows the numbers of connections, so that some of the
	// backends may get none. It is set in desired contents only.
	Varies bool
}

// Reader is a dataplane that can read the content back from the kernel. Reading is for
// tests and verification. It takes longer than programming.
type Reader interface {
	Read(ctx context.Context) (*Content, error)

	// Rules compares the chains and rules in the kernel with those that Reconcile would write
	// for a full description, and returns how many rules there are, and faults. It changes
	// neither the kernel nor full. It follows a Read, and may use what that has read. Of a family that the kernel has nothing of, it says
	// nothing, as Read does not find what is desired then.
	Rules(ctx context.Context, full *desired.Change) (n int, faults []string, err error)

	// ReadFrontend reads one frontend, given its desired content ([desired.Decision.Content]). It may
	// leave out what the frontend should not have.
	ReadFrontend(ctx context.Context, want *desired.Change) (*Content, error)
}

// ReadOne is a ReadFrontend of dataplanes that can only read everything. It returns the faults, which
// are of all frontends, only if the frontend is missing.
func ReadOne(ctx context.Context, read func(context.Context) (*Content, error), want *desired.Change) (*Content, error) {
	all, err := read(ctx)
	if err != nil {
		return nil, err
	}
	c, key := NewContent(), want.Frontends[0].Key()
	c.Refuses = all.Refuses
	if target, ok := all.Frontends[key]; ok {
		c.Frontends[key] = target
	} else {
		c.Faults = all.Faults
	}
	return c, nil
}

// ContentOf returns the content that a full description (desired.State.Full) describes.
func ContentOf(full *desired.Change) *Content {
	c := NewContent()
	choices := map[desired.PoolID]*Choice{}
	for _, p := range full.Pools {
		t := Choice{Varies: p.Algorithm == desired.LeastConnections}
		if p.Algorithm.Hashes() || len(p.Weights) > 0 && !t.Varies {
			pool := NewPool(&p)
			pool.Update(&p)
			t = ChoiceOf(p.Balance, pool.Slots)
		}
		// A backend with a small weight can be without a slot. Its clients with affinity stay.
		if t.Backends == nil || p.Sticky && p.Algorithm.Hashes() {
			t.Backends = slices.SortedFunc(slices.Values(p.Added), desired.Backend.Compare)
		}
		if len(p.Added) == 0 {
			t.IfEmpty = p.IfEmpty
		}
		choices[p.ID] = &t
	}
	for _, f := range full.Frontends {
		t := Target{Choice: *choices[f.New.Pool], External: f.New.Kind.External(), FromOutside: choices[f.New.LocalPool], Parts: f.New.PartsOf(), Affinity: f.New.Affinity, Scheduler: f.New.Scheduler}
		if f.New.Sources != nil {
			t.Sources = append([]netip.Prefix{}, f.New.Sources.All()...) // not nil if empty
		}
		c.Frontends[f.New.FrontendKey] = t
	}
	for set := range c.Sets {
		for _, m := range full.Sets[set].Added {
			c.Sets[set][m] = true
		}
	}
	return c
}

// Lines returns the content as sorted lines of text, one for each frontend, address, range
// and fault.
func (c *Content) Lines() []string {
	var all []string
	for k, t := range c.Frontends {
		all = append(all, fmt.Sprintf("%s -> %s", k, t))
	}
	for set, members := range c.Sets {
		for m := range members {
			all = append(all, desired.Set(set).String()+" "+m.String())
		}
	}
	all = append(all, collect.From(c.Faults, func(f string) string { return faultPrefix + f })...)
	slices.Sort(all)
	return all
}

// String describes the target in one line.
func (t Target) String() string {
	s := t.Choice.String()
	if t.External {
		s += "; external"
	}
	for _, p := range t.Parts {
		if usual := map[bool]desired.Turn{false: desired.FirstTurn, true: desired.ExternalTurn}; p.Turn != usual[t.External] {
			s += fmt.Sprintf("; %d-%d in turn %d", p.First, p.Last, p.Turn)
		}
	}
	if t.FromOutside != nil {
		s += "; from outside " + t.FromOutside.String()
	}
	if t.Affinity != 0 && len(t.Backends) > 0 {
		s += fmt.Sprintf("; affinity %ds", t.Affinity)
	}
	if t.Sources != nil {
		s += fmt.Sprintf("; only for %s", t.Sources)
	}
	if t.Scheduler != "" {
		s += "; scheduler " + t.Scheduler
	}
	return s
}

// String lists the backends, or the verdict without any.
func (c Choice) String() string {
	if len(c.Backends) == 0 {
		return c.IfEmpty.String()
	}
	s := collect.From(c.Backends, desired.Backend.String)
	if c.Spread != "" {
		s = append(s, "("+c.Spread+")")
	}
	return strings.Join(s, " ")
}

// Difference returns the lines that only one of two contents has, with the prefix "-" for
// want and "+" for got. It is empty if they are equal.
func Difference(want, got *Content) string {
	w, g := want.Lines(), got.excusing(want).Lines()
	only := func(prefix string, of, other []string) (out []string) {
		for _, line := range of {
			if _, both := slices.BinarySearch(other, line); !both {
				out = append(out, prefix+line)
			}
		}
		return out
	}
	return strings.Join(append(only("- ", w, g), only("+ ", g, w)...), "\n")
}

// excusing takes what is desired where weights follow load, and for backends that the kernel refuses,
// so that they are no differences.
func (c *Content) excusing(want *Content) *Content {
	out := *c
	out.Frontends = make(map[desired.FrontendKey]Target, len(c.Frontends))
	for k, t := range c.Frontends {
		t.Choice = t.settle(want.Frontends[k].Choice, c.Refuses)
		if from, wanted := t.FromOutside, want.Frontends[k].FromOutside; from != nil && wanted != nil {
			settled := from.settle(*wanted, c.Refuses)
			t.FromOutside = &settled
		}
		out.Frontends[k] = t
	}
	return &out
}

func (c Choice) settle(want Choice, refuses func(desired.Backend) bool) Choice {
	possible := slices.DeleteFunc(slices.Clone(want.Backends), func(b desired.Backend) bool {
		return refuses != nil && !slices.Contains(c.Backends, b) && refuses(b)
	})
	if len(possible) < len(want.Backends) && slices.Equal(possible, c.Backends) {
		return want
	}
	another := func(b desired.Backend) bool { return !slices.Contains(want.Backends, b) }
	if !want.Varies || len(c.Backends) == 0 || slices.ContainsFunc(c.Backends, another) {
		return c
	}
	return want
}

// Lasting compares until there is no difference, three times at least and for about a second, and
// returns the last difference. It stops at the first error, unless it is ErrInterrupted. Some differences do
// not last: for some milliseconds after many elements were added or deleted, while the kernel resizes a hash
// table in the background, its dump of a set can lack elements (Linux up to at least 6.18).
func Lasting(ctx context.Context, compare func() (difference string, err error)) (string, error) {
	const tries, pause = 3, 50 * time.Millisecond
	end := time.Now().Add(time.Second)
	for try := 1; ; try++ {
		diff, err := compare()
		again := errors.Is(err, ErrInterrupted) || err == nil && diff != ""
		if !again || try >= tries && time.Now().After(end) {
			return diff, err
		}
		select {
		case <-ctx.Done():
			return diff, ctx.Err()
		case <-time.After(pause):
		}
	}
}

// Differing is one line of a difference between the desired content and the kernel's, and
// the object that it is about.
type Differing struct {
	// Surplus says that the kernel has this line and should not. Otherwise the
	// kernel lacks the line.
	Surplus bool

	// Subject is the frontend, or the address with its role: "10.96.0.10:80/TCP",
	// "ClusterIP 10.96.0.10". It is empty for faults.
	Subject string

	// Service is the Service of a desired frontend; zero for everything else.
	Service desired.ServicePort

	Text string // the line without its prefix
}

// Differings parses the result of Difference. full describes the desired
// content.
func Differings(difference string, full *desired.Change) (all []Differing) {
	if difference == "" {
		return nil
	}
	services := make(map[string]desired.ServicePort, len(full.Frontends))
	for _, f := range full.Frontends {
		services[f.Key().String()] = f.New.Service
	}
	for line := range strings.Lines(difference) {
		sign, text, _ := strings.Cut(strings.TrimSpace(line), " ")
		d := Differing{Surplus: sign == "+", Text: text}
		if !strings.HasPrefix(text, faultPrefix) {
			d.Subject, _, _ = strings.Cut(text, " -> ")
			d.Service = services[d.Subject]
		}
		all = append(all, d)
	}
	return all
}

// String is the line, with the Service in front of its frontend.
func (d Differing) String() string {
	sign := map[bool]string{true: "+ ", false: "- "}[d.Surplus]
	if d.Service != (desired.ServicePort{}) {
		sign += "Service " + d.Service.String() + ": "
	}
	return sign + d.Text
}
