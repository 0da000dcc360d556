// SPDX-License-Identifier: Apache-2.0

// Package model checks a model of the order in which Slipstream programs the kernel and cleans conntrack.
package model

import (
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"testing"
)

// TestFlows explores all states of flows.pml with Spin. What the model leaves out or allows beyond the code has to
// lead to a flow that goes on, or the model would show nothing.
func TestFlows(t *testing.T) {
	for _, command := range []string{"spin", "gcc"} {
		if _, err := exec.LookPath(command); err != nil {
			t.Skip(err)
		}
	}
	source, err := filepath.Abs("flows.pml")
	if err != nil {
		t.Fatal(err)
	}
	for _, variant := range []string{"", "NO_CLEANUP", "NO_LOOK_BACK", "NO_FULL_CLEANUP", "KILL_ANYWHERE", "RESTORE_ANYTIME"} {
		t.Run(variant, func(t *testing.T) {
			dir := t.TempDir()
			run := func(name string, args ...string) string {
				t.Helper()
				c := exec.CommandContext(t.Context(), name, args...)
				c.Dir = dir
				out, err := c.CombinedOutput()
				if err != nil {
					t.Fatalf("%s: %v\n%s", name, err, out)
				}
				return string(out)
			}
			args := []string{"-a", source}
			if variant != "" {
				args = append([]string{"-D" + variant}, args...)
			}
			run("spin", args...)
			run("gcc", "-w", "-DSAFETY", "-o", "pan", "pan.c")
			out := run(filepath.Join(dir, "pan"), "-m10000")
			t.Log(out)
			if strings.Contains(out, "search depth too small") {
				t.Error("not all states were explored")
			}
			if passes := strings.Contains(out, "errors: 0"); passes != (variant == "") {
				_, err := os.Stat(filepath.Join(dir, "flows.pml.trail"))
				t.Errorf("the model passes: %v (a trail: %v)", passes, err == nil)
			}
		})
	}
}
