// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"errors"
	"fmt"
	"sync"
	"testing"
)

// performance is a proxy on its stage.
type performance struct {
	subject  subject
	stage    *Stage
	observer *Observer
}

// perform sets up a stage and starts the proxy on it, for the time of the test.
func perform(t *testing.T, p subject, c *Cluster) (*performance, error) {
	s, err := NewStage(t.Context())
	if err != nil {
		return nil, err
	}
	t.Cleanup(func() { s.Close() })
	if c.Settings.Firewall {
		if err := s.Firewall(t.Context(), c.Settings.Variant); err != nil {
			return nil, err
		}
	}
	stop, err := p.start(t.Context(), s, c)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", p.name(), err)
	}
	t.Cleanup(func() {
		if err := stop(); err != nil {
			t.Errorf("%s: %v", p.name(), err)
		}
	})
	return &performance{p, s, newObserver(s)}, nil
}

// performBoth has two proxies perform side by side.
func performBoth(t *testing.T, subjects [2]subject, c *Cluster) (both [2]*performance) {
	t.Helper()
	parallel(t, func(i int) (err error) {
		both[i], err = perform(t, subjects[i], c)
		return err
	})
	return both
}

// parallel does two things side by side, and ends the test when one fails.
func parallel(t *testing.T, do func(i int) error) {
	t.Helper()
	var wg sync.WaitGroup
	var errs [2]error
	for i := range errs {
		wg.Go(func() { errs[i] = do(i) })
	}
	wg.Wait()
	if err := errors.Join(errs[:]...); err != nil {
		t.Fatal(err)
	}
}
