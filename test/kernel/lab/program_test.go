// SPDX-License-Identifier: Apache-2.0

package lab_test

import (
	"context"
	"os"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

func startProgram(t *testing.T, script string) *lab.Program {
	kerneltest.Require(t, kerneltest.Root)
	ns, err := lab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	p, err := ns.StartProgram(t.TempDir(), "program", "/bin/sh", "-c", script)
	if err != nil {
		t.Fatal(err)
	}
	return p
}

// TestProgramEndsEarly expects Await to return when the program ends, with the end of its log.
func TestProgramEndsEarly(t *testing.T) {
	p := startProgram(t, "echo wrong flag >&2; exit 3")
	ctx, cancel := context.WithTimeout(t.Context(), 30*time.Second)
	defer cancel()
	err := p.Await(ctx, func(context.Context) error { return os.ErrNotExist })
	if err == nil || ctx.Err() != nil || !strings.Contains(err.Error(), "wrong flag") || !strings.Contains(err.Error(), "exit status 3") {
		t.Errorf("got %v", err)
	}
}

// TestProgramTerminates checks that a program has time to end by itself, for a limited time.
func TestProgramTerminates(t *testing.T) {
	for _, c := range []struct {
		name, script, want string
		bound              time.Duration
	}{
		{"ends", "trap 'echo bye; exit' TERM; echo up; while :; do sleep 0.01; done", "up\nbye\n", 30 * time.Second},
		{"does not", "trap '' TERM; echo up; while :; do sleep 0.01; done", "up\n", 300 * time.Millisecond},
	} {
		t.Run(c.name, func(t *testing.T) {
			p := startProgram(t, c.script)
			up := func(context.Context) error {
				if p.Log() == "" {
					return os.ErrNotExist
				}
				return nil
			}
			if err := p.Await(t.Context(), up); err != nil {
				t.Fatal(err)
			}
			ctx, cancel := context.WithTimeout(t.Context(), c.bound)
			defer cancel()
			if err := p.Terminate(ctx); (err == nil) != (c.name == "ends") {
				t.Errorf("got %v", err)
			}
			if got := p.Log(); got != c.want {
				t.Errorf("it said %q, want %q", got, c.want)
			}
		})
	}
}
