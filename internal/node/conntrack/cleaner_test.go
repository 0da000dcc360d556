// SPDX-License-Identifier: Apache-2.0

package conntrack

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// numbered are StaleFlows that differ by a port.
func numbered(numbers ...int) (flows []desired.StaleFlows) {
	for _, n := range numbers {
		flows = append(flows, stale(fmt.Sprintf("10.96.0.10:%d", n), ""))
	}
	return flows
}

func numbers(flows []desired.StaleFlows) (all []int) {
	for _, f := range flows {
		all = append(all, int(f.Frontends[0].Port()))
	}
	return all
}

// TestCleanerMerges adds stale flows while a clean-up runs: one more clean-up takes all of
// them.
func TestCleanerMerges(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cleaned [][]int
		var done []int
		gate := make(chan struct{})
		c := NewCleaner(t.Context(), func(_ context.Context, flows []desired.StaleFlows) (Stats, error) {
			cleaned = append(cleaned, numbers(flows))
			<-gate
			return Stats{Deleted: len(flows)}, nil
		}, func(s Stats, err error) {
			if err != nil {
				t.Error(err)
			}
			done = append(done, s.Deleted)
		})
		c.Enqueue(nil)
		synctest.Wait()
		if cleaned != nil {
			t.Error("nothing was cleaned")
		}
		c.Enqueue(numbered(1))
		synctest.Wait()
		for i := 2; i < 10; i += 2 {
			c.Enqueue(numbered(i, i+1))
		}
		gate <- struct{}{}
		synctest.Wait()
		gate <- struct{}{}
		synctest.Wait()
		if want := "[[1] [2 3 4 5 6 7 8 9]]"; fmt.Sprint(cleaned) != want || !slices.Equal(done, []int{1, 8}) {
			t.Errorf("cleaned %v, done %v", cleaned, done)
		}
		// Queued flows are cleaned before Close returns, and none later.
		c.Enqueue(numbered(10))
		synctest.Wait()
		c.Enqueue(numbered(11))
		go close(gate)
		c.Close()
		if want := "[[1] [2 3 4 5 6 7 8 9] [10] [11]]"; fmt.Sprint(cleaned) != want || len(done) != 4 {
			t.Errorf("cleaned %v, done %v", cleaned, done)
		}
		c.Enqueue(numbered(12))
		c.Close()
		if len(cleaned) != 4 {
			t.Errorf("cleaned %v after Close", cleaned)
		}
	})
}

// TestCleanerErrors checks that every error is reported once, and that cleaning continues.
func TestCleanerErrors(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		broken := errors.New("broken")
		var reported []error
		c := NewCleaner(
			t.Context(),
			func(_ context.Context, flows []desired.StaleFlows) (Stats, error) {
				if numbers(flows)[0] == 1 && len(reported) == 1 {
					return Stats{}, broken
				}
				return Stats{}, nil
			},
			func(_ Stats, err error) { reported = append(reported, err) },
		)
		defer c.Close()
		for i := range 3 {
			c.Enqueue(numbered(i))
			synctest.Wait()
		}
		if !slices.Equal(reported, []error{nil, broken, nil}) {
			t.Errorf("reported %v", reported)
		}
	})
}

// TestCleanerKernel cleans the kernel's table from several goroutines.
func TestCleanerKernel(t *testing.T) {
	tab := crowd(t, 20)
	deleted := 0
	c := NewCleaner(t.Context(), tab.Clean, func(s Stats, err error) {
		if err != nil {
			t.Error(err)
		}
		deleted += s.Deleted
	})
	ready := make(chan struct{})
	for i := range 20 {
		go func() {
			c.Enqueue([]desired.StaleFlows{stale("10.96.0.10:53", crowdBackend(i).String())})
			ready <- struct{}{}
		}()
	}
	for range 20 {
		<-ready
	}
	c.Close()
	if left := len(tab.flows()); deleted != 2000 || left != 2000 {
		t.Errorf("%d deleted, %d left, want 2000 each", deleted, left)
	}
}

// TestCleanerRepeats lets clean-ups fail: their flows are cleaned again a few times within seconds, in
// the order in which they were found. Flows that came later must not be judged by what was known long before.
func TestCleanerRepeats(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		var cleaned [][]int
		failures := 3
		c := NewCleaner(t.Context(), func(_ context.Context, flows []desired.StaleFlows) (Stats, error) {
			cleaned = append(cleaned, numbers(flows))
			if failures--; failures >= 0 {
				return Stats{}, errors.New("no memory")
			}
			return Stats{}, nil
		}, func(Stats, error) {})
		c.Enqueue(numbered(1))
		synctest.Wait()
		c.Enqueue(numbered(2))
		time.Sleep(time.Minute)
		c.Close()
		if want := "[[1] [1 2] [1 2] [2]]"; fmt.Sprint(cleaned) != want {
			t.Errorf("cleaned %v, want %v", cleaned, want)
		}
	})
}
