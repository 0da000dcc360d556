// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"fmt"
	"os"
	"testing"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
)

// peer is how tests start a peer: the test binary does its work.
var peer = []string{"/proc/self/exe", "bench-peer"}

func TestMain(m *testing.M) {
	if len(os.Args) > 1 && os.Args[1] == peer[1] {
		if err := RunPeer(os.Args[2:], os.Stdout); err != nil {
			fmt.Fprintln(os.Stderr, err)
			os.Exit(1)
		}
		os.Exit(0)
	}
	bench.QuietLimit = 0 // times are not looked at
	os.Exit(m.Run())
}
