// SPDX-License-Identifier: Apache-2.0

package main

import (
	"fmt"
	"strings"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/forward"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const benchForwardLong = `
Between a client's pod and a Service's only backend is one node that forwards, or
two; all are network namespaces of this machine. Each round has a turn without
the fast path ("off"), one with it for each connection at once ("no threshold")
and one with the default threshold, in an order that changes. The table has
medians, and what they are of off's in the same round.

A kernel without flowtables is measured with the fast path off only. Measure on
a quiet machine: the load average is in the header. go run ./cmd/slipstream-bench/chart draws
what --save has written.`

func newBenchThroughput() *cobra.Command {
	var o forward.ThroughputOptions
	var out benchOutput
	cmd := &cobra.Command{
		Use:   "throughput",
		Short: "Measure what the fast path gains for long connections",
		Long: `Throughput measures connections to a Service with the fast path and without: a TCP
stream by iperf3, once with segments aggregated on the pods' interfaces, as
usual, and once with GSO, TSO and GRO off, where each packet pays its way; small
UDP datagrams a second; and what it costs to forward one packet.
` + benchForwardLong,
		Example: `  slipstream-bench throughput
  slipstream-bench throughput --rounds 20 --measure packets,udp --save result.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			r, err := forward.Throughput(cmd.Context(), o)
			if err != nil {
				return fmt.Errorf("bench throughput: %w", err)
			}
			return out.write(cmd, r)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	forwardFlags(f, &o.Options, 10)
	f.IntVar(&o.Seconds, "seconds", 1, "length of a turn")
	f.StringSliceVar(&o.Measures, "measure", forward.Measures, "what to measure: "+strings.Join(forward.Measures, ", "))
	outputFlags(f, &out)
	return cmd
}

func newBenchCRR() *cobra.Command {
	var o forward.CRROptions
	var out benchOutput
	cmd := &cobra.Command{
		Use:   "crr",
		Short: "Measure what the fast path costs short connections",
		Long: `Crr measures connections to a Service that carry one request and one response
(connect, request, response), one after the other, with the fast path and
without: how many a second, and how long each takes, from the call of connect
to the end that the server sends.
` + benchForwardLong,
		Example: `  slipstream-bench crr
  slipstream-bench crr --rounds 50 --connections 5000 --save result.json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := out.validate(); err != nil {
				return err
			}
			r, err := forward.CRR(cmd.Context(), self("peer"), o)
			if err != nil {
				return fmt.Errorf("bench crr: %w", err)
			}
			return out.write(cmd, r)
		},
	}
	f := cmd.Flags()
	f.SortFlags = false
	forwardFlags(f, &o.Options, 20)
	f.IntVar(&o.Connections, "connections", 2000, "connections in a turn")
	outputFlags(f, &out)
	return cmd
}

func forwardFlags(f *pflag.FlagSet, o *forward.Options, rounds int) {
	f.IntVar(&o.Rounds, "rounds", rounds, "rounds of turns, one for each setting of the fast path")
	f.IntVar(&o.Nodes, "nodes", 1, "nodes between the pods: 1 or 2")
	f.StringVar(&o.Family, "family", forward.FamilyIPv4, "address family: "+strings.Join(forward.Families, ", "))
}

func outputFlags(f *pflag.FlagSet, o *benchOutput) {
	f.StringVarP(&o.format, "output", "o", "table", "table or json")
	f.StringVar(&o.save, "save", "", "file to write the result to, too, as JSON")
}
