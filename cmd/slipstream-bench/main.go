// SPDX-License-Identifier: Apache-2.0

// Command slipstream-bench measures what Slipstream costs and gains on this machine.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/forward"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/programming"
	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if err := newRoot().ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "slipstream-bench:", err)
		os.Exit(1)
	}
}

func newRoot() *cobra.Command {
	root := &cobra.Command{
		Use:           "slipstream-bench",
		Short:         "Measure what Slipstream costs and gains on this machine",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	child := &cobra.Command{
		Use: "child", Hidden: true, Args: cobra.NoArgs,
		Short: "Measure Slipstream as a parent process asks",
		RunE:  func(*cobra.Command, []string) error { return programming.RunChild(os.Stdin, os.Stdout) },
	}
	peer := &cobra.Command{
		Use: "peer", Hidden: true, Args: cobra.ArbitraryArgs,
		Short: "Run one side of the connections of crr",
		RunE:  func(_ *cobra.Command, args []string) error { return forward.RunPeer(args, os.Stdout) },
	}
	root.AddCommand(newSync(), newThroughput(), newCRR(), child, peer)
	return root
}

// self starts this program's hidden command name.
func self(name string) []string { return []string{"/proc/self/exe", name} }

// measuring makes cmd a command that measures and writes the result, with the flags for
// that. They come last, so it is called when cmd has all others.
func measuring(cmd *cobra.Command, measure func(context.Context) (*bench.Result, error)) *cobra.Command {
	var format, save string
	cmd.Flags().StringVarP(&format, "output", "o", "table", "table or json")
	cmd.Flags().StringVar(&save, "save", "", "file to write the result to, too, as JSON")
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := bench.CheckFormat("--output", format); err != nil {
			return err
		}
		r, err := measure(cmd.Context())
		if err != nil {
			return fmt.Errorf("%s: %w", cmd.Name(), err)
		}
		return r.Write(cmd.OutOrStdout(), format, save)
	}
	return cmd
}
