// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"slices"
	"testing"
	"time"

	"k8s.io/apimachinery/pkg/util/wait"
)

// TestRetryUntilSuccess fails in two ways before it succeeds. Each error is reported once.
func TestRetryUntilSuccess(t *testing.T) {
	results := []error{errors.New("locked"), errors.New("locked"), errors.New("busy"), nil}
	var reported []string
	calls := 0
	retryUntilSuccess(t.Context(), wait.Backoff{Duration: time.Millisecond}, func() error {
		calls++
		return results[calls-1]
	}, func(err error) { reported = append(reported, err.Error()) })
	if calls != 4 || !slices.Equal(reported, []string{"locked", "busy"}) {
		t.Errorf("%d calls, reported %q", calls, reported)
	}
	ctx, cancel := context.WithCancel(t.Context())
	retryUntilSuccess(ctx, wait.Backoff{Duration: time.Hour}, func() error { cancel(); return errors.New("never") }, func(err error) { t.Errorf("reported at the end: %v", err) })
}
