// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"fmt"
	"os"
	"testing"

	"github.com/slipstream-proxy/slipstream/bench/bench"
)

// childCommand is how tests start the child process: the test binary does its work.
var childCommand = []string{"/proc/self/exe", "bench-child"}

func TestMain(m *testing.M) {
	bench.QuietLimit = 0 // times are not looked at
	var work func() error
	switch {
	case len(os.Args) > 1 && os.Args[1] == childCommand[1]:
		work = func() error { return RunChild(os.Args[2], os.Stdout) }
	case len(os.Args) > 1 && os.Args[1] == "bench-trace":
		work = traceOfSync
	default:
		os.Exit(m.Run())
	}
	if err := work(); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
