// SPDX-License-Identifier: Apache-2.0

// Command slipstream is a Kubernetes Service proxy for one node.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "slipstream:", err)
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:   "slipstream",
		Short: "A Kubernetes Service proxy whose changes cost what they change",
		Long: `Slipstream makes Kubernetes Services work on a Linux node: connections to a
Service's address are sent to one of its endpoints by the kernel. A change to a
Service reaches the kernel at a cost that depends on the change, not on the size
of the cluster.`,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	root.AddCommand(newRun(), newFastPathAgent(), newFlows(), newCleanup(), newBench(), newVersion())
	return root
}
