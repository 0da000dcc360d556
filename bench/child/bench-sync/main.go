// SPDX-License-Identifier: Apache-2.0

// Command bench-sync is the process that 'bench sync' measures. It is a program of its own, so that the
// other benchmarks' libraries are not in its memory.
package main

import (
	"fmt"
	"os"

	"github.com/slipstream-proxy/slipstream/bench/programming"
)

func main() {
	if err := programming.RunChild(os.Args[1], os.Stdout); err != nil {
		fmt.Fprintln(os.Stderr, err)
		os.Exit(1)
	}
}
