// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
)

// relayCommand is how TestRelay starts the relay: the test binary does its work.
var relayCommand = []string{"/proc/self/exe", "bench-relay"}

func TestMain(m *testing.M) {
	bench.QuietLimit = 0 // times are not looked at
	if len(os.Args) == 4 && os.Args[1] == relayCommand[1] {
		if err := RunRelay(context.Background(), os.Args[2], os.Args[3], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
	}
	os.Exit(m.Run())
}
