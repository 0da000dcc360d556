// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"strings"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/forward"
	"github.com/spf13/cobra"
	"github.com/spf13/pflag"
)

const forwardLong = `
One node that forwards, or two, is between the client's pod and the only backend of a
Service; all are network namespaces of this machine. Each round has a turn without the
fast path ("off"), one that offloads each connection at once ("no threshold") and one
with the default threshold, in an order that changes. The table has medians, and their
ratios to "off" in the same round.

On a kernel without flowtables only "off" is measured. Measure on a quiet machine: the
load average is in the header. go run ./cmd/slipstream-bench/chart draws what --save
has written.`

func newThroughput() *cobra.Command {
	var o forward.Options
	cmd := &cobra.Command{
		Use:   "throughput",
		Short: "Measure what the fast path gains for long connections",
		Long: `Throughput measures connections to a Service with the fast path and without: a TCP
stream by iperf3, once with segments aggregated on the pods' interfaces, as usual, and
once with GSO, TSO and GRO off, where every packet is forwarded by itself; small UDP
datagrams a second; and the cost of forwarding one packet.
` + forwardLong,
		Example: `  slipstream-bench throughput
  slipstream-bench throughput --rounds 20 --measure packets,udp --save result.json`,
	}
	f := cmd.Flags()
	forwardFlags(f, &o, 10)
	f.IntVar(&o.Seconds, "seconds", 1, "length of a turn")
	f.StringSliceVar(&o.Measures, "measure", forward.Measures, "what to measure: "+strings.Join(forward.Measures, ", "))
	return measuring(cmd, func(ctx context.Context) (*bench.Result, error) { return forward.Throughput(ctx, o) })
}

func newCRR() *cobra.Command {
	var o forward.Options
	cmd := &cobra.Command{
		Use:   "crr",
		Short: "Measure what the fast path costs short connections",
		Long: `Crr measures connections to a Service that carry one request and one response (connect,
request, response), one after the other, with the fast path and without: how many a
second, and the time of each, from the call of connect to the server's end of it.
` + forwardLong,
		Example: `  slipstream-bench crr
  slipstream-bench crr --rounds 50 --connections 5000 --save result.json`,
	}
	forwardFlags(cmd.Flags(), &o, 20)
	cmd.Flags().IntVar(&o.Connections, "connections", 2000, "connections in a turn")
	return measuring(cmd, func(ctx context.Context) (*bench.Result, error) { return forward.CRR(ctx, self("peer"), o) })
}

func forwardFlags(f *pflag.FlagSet, o *forward.Options, rounds int) {
	f.SortFlags = false
	f.IntVar(&o.Rounds, "rounds", rounds, "rounds of turns, one for each setting of the fast path")
	f.IntVar(&o.Nodes, "nodes", 1, "nodes between the pods: 1 or 2")
	f.StringVar(&o.Family, "family", forward.FamilyIPv4, "address family: "+strings.Join(forward.Families, ", "))
}
