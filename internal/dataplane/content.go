// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"fmt"
	"net/netip"
	"slices"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Content is what is programmed, in terms that all backends share and without
// the IDs that pools have: what a client would meet.
type Content struct {
	Frontends  map[desired.FrontendKey]Target
	ClusterIPs map[netip.Addr]bool
	HairpinIPs map[netip.Addr]bool

	ServiceCIDRs map[netip.Prefix]bool

	// Faults are things found in the kernel that no content can have, such
	// as a pool with a hole.
	Faults []string
}

// faultPrefix is what the lines of faults start with.
const faultPrefix = "fault: "

// NewContent is an empty content.
func NewContent() *Content {
	return &Content{
		Frontends:    map[desired.FrontendKey]Target{},
		ClusterIPs:   map[netip.Addr]bool{},
		HairpinIPs:   map[netip.Addr]bool{},
		ServiceCIDRs: map[netip.Prefix]bool{},
	}
}

// Target is where a frontend leads.
type Target struct {
	Choice
	External    bool           // it is no ClusterIP
	FromOutside *Choice        // for external traffic that may go to local backends only
	Affinity    uint32         // seconds
	Sources     []netip.Prefix // who may connect, in order; nil for everybody
}

// Choice is which backends a pool has.
type Choice struct {
	Backends []desired.Backend // in order
	IfEmpty  desired.Verdict   // Reject unless Backends is empty
}

// Reader is a Backend that can read back what the kernel has. Reading is for
// tests and for verifying; it costs more than programming.
type Reader interface {
	Read(ctx context.Context) (*Content, error)
}

// ContentOf is the content that a full description (desired.State.Full) asks
// for.
func ContentOf(full *desired.Change) *Content {
	c := NewContent()
	choices := map[desired.PoolID]*Choice{}
	for _, p := range full.Pools {
		t := Choice{Backends: slices.SortedFunc(slices.Values(p.Added), desired.Backend.Compare)}
		if len(p.Added) == 0 {
			t.IfEmpty = p.IfEmpty
		}
		choices[p.ID] = &t
	}
	for _, f := range full.Frontends {
		t := Target{Choice: *choices[f.New.Pool], External: f.New.Kind.External(), FromOutside: choices[f.New.LocalPool], Affinity: f.New.Affinity}
		if f.New.Sources != nil {
			t.Sources = append([]netip.Prefix{}, f.New.Sources.All()...) // none is not nil
		}
		c.Frontends[f.New.FrontendKey] = t
	}
	for _, p := range full.ServiceCIDRs.Added {
		c.ServiceCIDRs[p] = true
	}
	for _, a := range full.ClusterIPs.Added {
		c.ClusterIPs[a] = true
	}
	for _, a := range full.HairpinIPs.Added {
		c.HairpinIPs[a] = true
	}
	return c
}

// Lines is the content as sorted lines of text, one for each frontend and each
// address.
func (c *Content) Lines() []string {
	var all []string
	for k, t := range c.Frontends {
		all = append(all, fmt.Sprintf("%s -> %s", k, t))
	}
	for a := range c.ClusterIPs {
		all = append(all, fmt.Sprintf("ClusterIP %s", a))
	}
	for a := range c.HairpinIPs {
		all = append(all, fmt.Sprintf("hairpin %s", a))
	}
	for p := range c.ServiceCIDRs {
		all = append(all, fmt.Sprintf("ServiceCIDR %s", p))
	}
	for _, f := range c.Faults {
		all = append(all, faultPrefix+f)
	}
	slices.Sort(all)
	return all
}

// String is where the target leads, in words.
func (t Target) String() string {
	s := t.Choice.String()
	if t.External {
		s += "; external"
	}
	if t.FromOutside != nil {
		s += "; from outside " + t.FromOutside.String()
	}
	if t.Affinity != 0 {
		s += fmt.Sprintf("; affinity %ds", t.Affinity)
	}
	if t.Sources != nil {
		s += fmt.Sprintf("; only for %s", t.Sources)
	}
	return s
}

// String is the backends, or what happens without any.
func (t Choice) String() string {
	if len(t.Backends) == 0 {
		return t.IfEmpty.String()
	}
	var s []string
	for _, b := range t.Backends {
		s = append(s, b.String())
	}
	return strings.Join(s, " ")
}

// Difference is what one content has and the other has not, as lines that start
// with "-" for want and "+" for got; empty when they are the same.
func Difference(want, got *Content) string {
	w, g := want.Lines(), got.Lines()
	var out []string
	for _, line := range w {
		if _, both := slices.BinarySearch(g, line); !both {
			out = append(out, "- "+line)
		}
	}
	for _, line := range g {
		if _, both := slices.BinarySearch(w, line); !both {
			out = append(out, "+ "+line)
		}
	}
	return strings.Join(out, "\n")
}

// Compare reads back what the kernel has and returns how it differs from what is
// wanted, as Difference does. A difference is believed only when it lasts: while
// the kernel resizes a hash table in the background, which it does for some
// milliseconds after many elements were added or deleted, its dump of a set can
// leave elements out (Linux up to at least 6.18).
func Compare(ctx context.Context, r Reader, want *Content) (string, error) {
	return Lasting(ctx, func() (string, error) {
		got, err := r.Read(ctx)
		if err != nil {
			return "", err
		}
		return Difference(want, got), nil
	})
}

// Lasting compares until there is no difference, for about a second at most, and returns
// the last one. An error ends it at once.
func Lasting(ctx context.Context, compare func() (difference string, err error)) (string, error) {
	const tries, pause = 20, 50 * time.Millisecond
	for try := 1; ; try++ {
		diff, err := compare()
		if err != nil || diff == "" || try == tries {
			return diff, err
		}
		select {
		case <-ctx.Done():
			return diff, ctx.Err()
		case <-time.After(pause):
		}
	}
}
