// SPDX-License-Identifier: Apache-2.0

// Command build builds the programs that tests run beside Slipstream, those of the releases
// named as arguments, unless that has been done before. It takes minutes.
//
//	go run ./build tools previous oldest
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/slipstream-proxy/slipstream/test/cluster/oracle/upstream"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	for _, folder := range os.Args[1:] {
		release := upstream.Release(folder)
		names, ok := upstream.Programs[release]
		if !ok {
			fmt.Fprintf(os.Stderr, "oracle: no release %q\n", folder)
			os.Exit(2)
		}
		for _, name := range names {
			_, err := release.Binary(ctx, name, func(format string, args ...any) {
				fmt.Fprintf(os.Stderr, "oracle: "+format+"\n", args...)
			})
			if err != nil {
				fmt.Fprintln(os.Stderr, "oracle:", err)
				os.Exit(1)
			}
		}
	}
}
