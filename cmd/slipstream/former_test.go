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

// TestPersist fails in two ways until it works, and wants to be told of each once.
func TestPersist(t *testing.T) {
	results := []error{errors.New("locked"), errors.New("locked"), errors.New("busy"), nil}
	var told []string
	calls := 0
	persist(t.Context(), wait.Backoff{Duration: time.Millisecond}, func() error {
		calls++
		return results[calls-1]
	}, func(err error) { told = append(told, err.Error()) })
	if calls != 4 || !slices.Equal(told, []string{"locked", "busy"}) {
		t.Errorf("%d calls, told %q", calls, told)
	}
	ctx, cancel := context.WithCancel(t.Context())
	persist(ctx, wait.Backoff{Duration: time.Hour}, func() error { cancel(); return errors.New("never") }, func(error) {})
}
