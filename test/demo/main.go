// SPDX-License-Identifier: Apache-2.0

// Command demo shows slipstream at work on this machine's kernel: two nodes made
// of network namespaces, a slipstream process on each, real Services and real
// connections. It checks everything that it claims, and its exit status is 1 if
// anything did not hold.
//
//	go build -o bin/slipstream ./cmd/slipstream
//	go run ./demo -slipstream bin/slipstream
package main

import (
	"context"
	"flag"
	"fmt"
	"os"
	"os/signal"
	"syscall"
)

func main() {
	var o options
	flag.StringVar(&o.slipstream, "slipstream", "bin/slipstream", "the slipstream `binary`")
	flag.BoolVar(&o.fast, "fast", false, "spend less time in each part")
	flag.Parse()
	if flag.NArg() > 0 {
		fmt.Fprintf(os.Stderr, "demo: unexpected argument %q\n", flag.Arg(0))
		os.Exit(2)
	}
	// Until the end: a second Ctrl-C must not leave a half-finished clean-up, nor a
	// reader of a pipe that has seen enough.
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM, syscall.SIGHUP, syscall.SIGPIPE)
	defer stop()
	if err := run(ctx, o, newScreen(os.Stdout, isTerminal(os.Stdout))); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
}
