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

// TestRetryUntilSuccess fails in two ways until it works, and wants to be told of each once.
func TestRetryUntilSuccess(t *testing.T) {
	results := []error{errors.New("locked"), errors.New("locked"), errors.New("busy"), nil}
	var told []string
	calls := 0
	retryUntilSuccess(t.Context(), wait.Backoff{Duration: time.Millisecond}, func() error {
		calls++
		return results[calls-1]
	}, func(err error) { told = append(told, err.Error()) })
	if calls != 4 || !slices.Equal(told, []string{"locked", "busy"}) {
		t.Errorf("%d calls, told %q", calls, told)
	}
	ctx, cancel := context.WithCancel(t.Context())
	retryUntilSuccess(ctx, wait.Backoff{Duration: time.Hour}, func() error { cancel(); return errors.New("never") }, func(error) {})
}
