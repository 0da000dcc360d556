// SPDX-License-Identifier: Apache-2.0

// Command build builds kube-apiserver and kube-proxy, which the tests compare with, and the
// kube-proxy of the previous release, unless that has been done before. It takes minutes.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"

	"github.com/slipstream-proxy/slipstream/test/oracle/upstream"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	defer stop()
	for release, names := range upstream.Programs {
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
