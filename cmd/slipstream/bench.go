// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"io"
	"os"

	"github.com/slipstream-proxy/slipstream/bench"
	"github.com/slipstream-proxy/slipstream/bench/forward"
	"github.com/spf13/cobra"
)

func newBench() *cobra.Command {
	cmd := &cobra.Command{
		Use:   "bench",
		Short: "Measure what slipstream costs, and gains, on this machine",
		Args:  cobra.NoArgs,
	}
	child := &cobra.Command{
		Use:    "child",
		Short:  "Measure one system as told by a parent process",
		Hidden: true,
		Args:   cobra.NoArgs,
		RunE:   func(*cobra.Command, []string) error { return bench.RunChild(os.Stdin, os.Stdout) },
	}
	peer := &cobra.Command{
		Use:    "peer",
		Short:  "Be one side of the connections that bench crr makes",
		Hidden: true,
		Args:   cobra.ArbitraryArgs,
		RunE:   func(_ *cobra.Command, args []string) error { return forward.RunPeer(args, os.Stdout) },
	}
	cmd.AddCommand(newBenchSync(), newBenchThroughput(), newBenchCRR(), child, peer)
	return cmd
}

// self starts this program's hidden command name.
func self(name string) []string { return []string{"/proc/self/exe", "bench", name} }

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
