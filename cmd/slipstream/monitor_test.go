// SPDX-License-Identifier: Apache-2.0

package main

import (
	"os"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// TestCalmMonitor checks that the timer slack of the second thread changes, and not that of the main one.
func TestCalmMonitor(t *testing.T) {
	kerneltest.Require(t, kerneltest.Root)
	calmMonitor()
	tasks, err := os.Open("/proc/self/task")
	if err != nil {
		t.Fatal(err)
	}
	defer tasks.Close()
	ids, err := tasks.Readdirnames(2)
	if err != nil || len(ids) != 2 {
		t.Fatal(ids, err)
	}
	for i, want := range []string{"50000", "2000000"} {
		slack, err := os.ReadFile("/proc/" + ids[i] + "/timerslack_ns")
		if got := strings.TrimSpace(string(slack)); err != nil || got != want {
			t.Errorf("thread %d of the process has a timer slack of %s ns, want %s (%v)", i+1, got, want, err)
		}
	}
}
