// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Sequence enforces the order of a dataplane's calls: Apply may follow only a successful
// Reconcile or Apply. The zero value is the state before the first call.
type Sequence struct{ valid bool }

// Begin starts a Reconcile or a Cleanup.
func (s *Sequence) Begin() { s.valid = false }

// BeginApply starts an Apply. If it returns an error, the change must not be programmed.
func (s *Sequence) BeginApply(ctx context.Context, change *desired.Change) error {
	valid := s.valid
	s.valid = false // until Done
	switch {
	case !valid:
		return errors.New("no successful Reconcile before this Apply")
	case change.Rebuild:
		return errors.New("a change with Rebuild needs a Reconcile")
	}
	return ctx.Err()
}

// Done ends a successful Reconcile or Apply.
func (s *Sequence) Done() { s.valid = true }

// Check returns an error that wraps ErrDamaged unless the last call succeeded.
func (s *Sequence) Check() error {
	if !s.valid {
		return fmt.Errorf("%w: the last change failed", ErrDamaged)
	}
	return nil
}
