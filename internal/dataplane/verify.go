// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Verified is the result of a comparison of everything that a dataplane has in the kernel with a
// full description (desired.State.Full).
type Verified struct {
	Differences []Differing

	// What was compared.
	Frontends, Endpoints, Rules int
}

// Look reads the kernel once, and compares its content, chains and rules with a full description.
// The kernel may be changing meanwhile (see Lasting).
func Look(ctx context.Context, r Reader, full *desired.Change) (v Verified, err error) {
	got, err := r.Read(ctx)
	if err != nil {
		return v, err
	}
	rules, faults, err := r.Rules(ctx, full)
	if err != nil {
		return v, err
	}
	got.Faults = append(got.Faults, faults...)
	want := ContentOf(full)
	endpoints := map[desired.Backend]bool{}
	for i := range full.Pools {
		for _, b := range full.Pools[i].Added {
			endpoints[b] = true
		}
	}
	return Verified{Differings(Difference(want, got), full), len(want.Frontends), len(endpoints), rules}, nil
}

// Verify is Look without the differences that do not last.
func Verify(ctx context.Context, r Reader, full *desired.Change) (v Verified, err error) {
	_, err = Lasting(ctx, func() (_ string, err error) {
		v, err = Look(ctx, r, full)
		return v.String(), err
	})
	return v, err
}

// String has the differences, one per line.
func (v Verified) String() (lines string) {
	for _, d := range v.Differences {
		lines += d.String() + "\n"
	}
	return lines
}
