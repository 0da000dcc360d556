// SPDX-License-Identifier: Apache-2.0

package dataplane

import (
	"context"
	"errors"
	"fmt"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// Sequence keeps the order of a dataplane's calls: Apply may follow only a Reconcile or an
// Apply that succeeded. The zero value is that of one that has programmed nothing.
type Sequence struct{ valid bool }

// Begin is the start of a Reconcile or a Cleanup, after which the kernel may have anything.
func (s *Sequence) Begin() { s.valid = false }

// BeginApply is the start of an Apply. On an error the change is not to be programmed.
func (s *Sequence) BeginApply(ctx context.Context, change *desired.Change) error {
	valid := s.valid
	s.valid = false // until the kernel has the change too
	switch {
	case !valid:
		return errors.New("no successful Reconcile before this Apply")
	case change.Rebuild:
		return errors.New("a change with Rebuild needs a Reconcile")
	}
	return ctx.Err()
}

// Done is the end of a Reconcile or an Apply that succeeded.
func (s *Sequence) Done() { s.valid = true }

// Check returns an error that wraps ErrDamaged unless the last call succeeded.
func (s *Sequence) Check() error {
	if !s.valid {
		return fmt.Errorf("%w: the last change failed", ErrDamaged)
	}
	return nil
}
