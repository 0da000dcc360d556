// SPDX-License-Identifier: Apache-2.0

// Command slipstream-bench measures what Slipstream costs and gains on this machine.
package main

import (
	"context"
	"fmt"
	"io"
	"os"
	"os/signal"
	"syscall"

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
	cmd := &cobra.Command{
		Use:           "slipstream-bench",
		Short:         "Measure what Slipstream costs and gains on this machine",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	child := &cobra.Command{
		Use:    "child",
		Short:  "Measure one system as told by a parent process",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return programming.RunChild(os.Stdin, os.Stdout) },
	}
	peer := &cobra.Command{
		Use:    "peer",
		Short:  "Be one side of the connections that crr makes",
		Hidden: true,
		Args:   cobra.ArbitraryArgs,
		RunE:   func(_ *cobra.Command, args []string) error { return forward.RunPeer(args, os.Stdout) },
	}
	cmd.AddCommand(newBenchSync(), newBenchThroughput(), newBenchCRR(), child, peer)
	return cmd
}

// self starts this program's hidden command name.
func self(name string) []string { return []string{"/proc/self/exe", name} }

// benchResult is what a benchmark has measured.
type benchResult interface {
	WriteTable(io.Writer) error
	WriteJSON(io.Writer) error
}

// benchOutput are the flags that say where a result goes.
type benchOutput struct {
	format, save string
}

func (o *benchOutput) validate() error {
	if o.format != "table" && o.format != "json" {
		return fmt.Errorf("--output: %q is none of table, json", o.format)
	}
	return nil
}

func (o *benchOutput) write(cmd *cobra.Command, r benchResult) error {
	write := r.WriteTable
	if o.format == "json" {
		write = r.WriteJSON
	}
	if err := write(cmd.OutOrStdout()); err != nil || o.save == "" {
		return err
	}
	if err := saveJSON(o.save, r); err != nil {
		return fmt.Errorf("--save: %w", err)
	}
	return nil
}

func saveJSON(path string, r benchResult) error {
	f, err := os.Create(path)
	if err != nil {
		return err
	}
	if err := r.WriteJSON(f); err != nil {
		f.Close()
		return err
	}
	return f.Close()
}
