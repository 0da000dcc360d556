// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"testing"
)

// An unknown command, or argument, is an error. All commands have their flags.
func TestCommands(t *testing.T) {
	all := []string{"sync", "forward", "balance", "observe", "scale", "rules", "latency", "fleet", "report"}
	for _, args := range [][]string{{"throughput"}, {"forward", "now"}, {"sync", "--no-such-flag"}, {"report", "now"}} {
		c := newCommand()
		c.SetArgs(args)
		c.SetOut(io.Discard)
		if err := c.ExecuteContext(t.Context()); err == nil {
			t.Errorf("%q: no error", args)
		}
	}
	for _, name := range all {
		c := newCommand()
		c.SetArgs([]string{name, "--help"})
		c.SetOut(io.Discard)
		if err := c.ExecuteContext(t.Context()); err != nil {
			t.Errorf("%s --help: %v", name, err)
		}
	}
}
