// SPDX-License-Identifier: Apache-2.0

// Command slipstream-bench benchmarks Slipstream on this machine.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"strings"
	"syscall"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/balance"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/forward"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/observe"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/programming"
	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	root := &cobra.Command{
		Use:           "slipstream-bench",
		Short:         "Benchmark Slipstream on this machine",
		Args:          cobra.NoArgs,
		SilenceUsage:  true,
		SilenceErrors: true,
	}
	child := &cobra.Command{
		Use: "child", Hidden: true, Args: cobra.ExactArgs(1),
		Short: "Measure Slipstream as a parent process asks",
		RunE:  func(_ *cobra.Command, args []string) error { return programming.RunChild(args[0], os.Stdout) },
	}
	relay := &cobra.Command{
		Use: "relay-child FROM TO", Hidden: true, Args: cobra.ExactArgs(2),
		Short: "Relay connections as a parent process asks",
		RunE: func(cmd *cobra.Command, args []string) error {
			return forward.RunRelay(cmd.Context(), args[0], args[1], os.Stdout)
		},
	}
	root.AddCommand(newSync(), newThroughput(), newCRR(), newCompare(), newSockets(), newRelay(), newBalance(), newObserve(), child, relay)
	if err := root.ExecuteContext(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "slipstream-bench:", err)
		os.Exit(1)
	}
}

func measuring(cmd *cobra.Command, measure func(context.Context) (*bench.Result, error)) *cobra.Command {
	var format, save string
	cmd.Flags().SortFlags = false
	cmd.Flags().StringVarP(&format, "output", "o", "table", "table or json")
	cmd.Flags().StringVar(&save, "save", "", "file to write the result to, too, as JSON")
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		if err := bench.OneOf("--output", format, "table", "json"); err != nil {
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

func newSync() *cobra.Command {
	var o programming.Options
	cmd := &cobra.Command{
		Use:   "sync --services N --endpoints M",
		Short: "Measure programming the kernel: cold start, single changes, memory",
		Long: `Sync makes up a cluster of N Services with M endpoints each and measures the cost
of programming this machine's kernel with it: a cold start, a restart, single
changes to random Services, a burst of changes, and memory.

It needs root. It measures in a network namespace of its own, which is deleted afterwards;
the machine's own rules are not touched. The time of a change is from handing the changed
objects over until the kernel uses them. Measure on a quiet machine: the load average is
in the header. 'make bench-scale' compares with kube-proxy.`,
		Example: `  slipstream-bench sync --services 1000 --endpoints 10
  slipstream-bench sync --services 10000 --endpoints 10 --runs 5 -o json
  slipstream-bench sync --services 10000 --mode iptables --repetitions 10`,
	}
	o.AddFlags(cmd.Flags())
	return measuring(cmd, func(ctx context.Context) (*bench.Result, error) {
		return programming.Sync(ctx, []string{"/proc/self/exe", "child"}, o)
	})
}

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
		Short: "Measure the gain of the fast path for long connections",
		Long: `Throughput measures connections to a Service with the fast path and without: a TCP
stream by iperf3, once with segments aggregated on the pods' interfaces, as usual, and
once with GSO, TSO and GRO off, where every packet is forwarded by itself; small UDP
datagrams a second; and the cost of forwarding one packet.
` + forwardLong,
		Example: `  slipstream-bench throughput
  slipstream-bench throughput --rounds 20 --measure packets,udp --save result.json`,
	}
	o.AddFlags(cmd.Flags(), 10)
	o.AddThresholds(cmd.Flags())
	cmd.Flags().IntVar(&o.Seconds, "seconds", 1, "length of a turn")
	cmd.Flags().StringSliceVar(&o.Measures, "measure", forward.Measures, "what to measure: "+strings.Join(forward.Measures, ", "))
	return measuring(cmd, func(ctx context.Context) (*bench.Result, error) { return forward.Throughput(ctx, o) })
}

func newCRR() *cobra.Command {
	var o forward.Options
	cmd := &cobra.Command{
		Use:   "crr",
		Short: "Measure the cost of the fast path for short connections",
		Long: `Crr measures connections to a Service that carry one request and one response (connect,
request, response), one after the other, with the fast path and without: how many a
second, and the time of each, from the call of connect to the server's end of it.
` + forwardLong,
		Example: `  slipstream-bench crr
  slipstream-bench crr --rounds 50 --connections 5000 --save result.json`,
	}
	o.AddFlags(cmd.Flags(), 20)
	o.AddThresholds(cmd.Flags())
	cmd.Flags().IntVar(&o.Connections, "connections", 2000, "connections in a turn")
	return measuring(cmd, func(ctx context.Context) (*bench.Result, error) { return forward.CRR(ctx, o) })
}

func newSockets() *cobra.Command {
	var o forward.Options
	cmd := &cobra.Command{
		Use:   "sockets",
		Short: "Measure short connections by sockets that connect straight to the endpoint",
		Long: `Sockets measures connections that carry one request and one response, as crr does, in turns: from pod
to pod without a Service, to a Service with socketLoadBalancing, to the Service by
translation in nftables mode, and by one rule alone, the least that NAT costs. Many more Services are programmed. The table has medians, and
their ratios to connections without a Service in the same round. It needs cgroup v2.`,
		Example: `  slipstream-bench sockets
  slipstream-bench sockets --rounds 50 --connections 5000 --save result.json`,
	}
	o.AddFlags(cmd.Flags(), 20)
	cmd.Flags().IntVar(&o.Connections, "connections", 2000, "connections in a turn")
	cmd.Flags().IntVar(&o.Services, "services", 10_000, "Services of 10 endpoints beside the one that is measured")
	return measuring(cmd, func(ctx context.Context) (*bench.Result, error) { return forward.Sockets(ctx, o) })
}

func newCompare() *cobra.Command {
	var o forward.Options
	cmd := &cobra.Command{
		Use:   "compare",
		Short: "Compare the engines of the fast path with the slow path, and with no Service",
		Long: `Compare measures connections to a Service by the slow path ("off"), with the fast path's engines
flowtable and eBPF, with sockets that connect straight to the endpoint, from pod to pod
without a Service, and over one link between the pods without a node, which shows how much
there is to gain: TCP streams with segments aggregated and not, and the machine's processor
time for them; UDP datagrams a second; the cost of a packet on the node; requests on one
connection (TCP_RR) and on new ones (TCP_CRR). The node has a firewall's three rules beside
Slipstream's.

One node that forwards, or two, is between the pods; all are network namespaces of this
machine. Each round has a turn of each path, in an order that changes. The table has
medians, and their ratios to "off" in the same round. A path that the kernel cannot have
is named in a note. Measure on a quiet machine.`,
		Example: `  slipstream-bench compare
  slipstream-bench compare --rounds 12 --streams 12 --save result.json`,
	}
	o.AddFlags(cmd.Flags(), 6)
	cmd.Flags().IntVar(&o.Seconds, "seconds", 1, "length of a turn of a stream, of datagrams and of requests")
	cmd.Flags().IntVar(&o.Connections, "connections", 1000, "connections in a turn of TCP_CRR")
	cmd.Flags().IntVar(&o.Streams, "streams", 1, "TCP streams at once")
	return measuring(cmd, func(ctx context.Context) (*bench.Result, error) { return forward.Compare(ctx, o) })
}

func newRelay() *cobra.Command {
	var o forward.Options
	cmd := &cobra.Command{
		Use:   "relay",
		Short: "Measure a relay in user space beside the kernel's paths",
		Long: `Relay measures connections to a Service as crr does, and streams as throughput does, through
the kernel, with the fast path and without, and through the server of NodePorts on loopback
addresses in nftables mode ("relay"): a process on the node accepts the client's
connection and carries it to the server by splice(2). No packet of it is forwarded.
` + forwardLong,
		Example: `  slipstream-bench relay
  slipstream-bench relay --rounds 20 --connections 1000 --save result.json`,
	}
	o.AddFlags(cmd.Flags(), 10)
	cmd.Flags().IntVar(&o.Seconds, "seconds", 1, "length of a turn of a stream")
	cmd.Flags().IntVar(&o.Connections, "connections", 1000, "connections in a turn")
	return measuring(cmd, func(ctx context.Context) (*bench.Result, error) {
		return forward.Relay(ctx, []string{"/proc/self/exe", "relay-child"}, o)
	})
}

func newBalance() *cobra.Command {
	var o balance.Options
	cmd := &cobra.Command{
		Use:   "balance",
		Short: "Measure a Service with a slow endpoint, by scheduler",
		Long: `Balance runs 'slipstream run' on some nodes, all of them network namespaces of this machine.
A client on each makes connections to one Service at random times. Each connection is one
request, each endpoint handles one request at a time, and one endpoint is slower than the
others. The latency of the requests and the share of the slow endpoint are measured for
each scheduler in each round, and the processor time of the proxies. The table has
medians over rounds, and their ratios to the first scheduler in the same round.

ipvs-lc is Slipstream's IPVS mode with the kernel's scheduler lc. On a kernel without IPVS it
is not measured.`,
		Example: `  slipstream-bench balance
  slipstream-bench balance --rounds 10 --save result.json
  slipstream-bench balance --schedulers random,lc --nodes 1 --rate 1000 --service-time 1ms --slow 1`,
	}
	o.AddFlags(cmd.Flags())
	return measuring(cmd, func(ctx context.Context) (*bench.Result, error) { return balance.Measure(ctx, o) })
}

func newObserve() *cobra.Command {
	var o observe.Options
	cmd := &cobra.Command{
		Use:   "observe",
		Short: "Measure what an open page and scraped metrics cost the proxy",
		Long: `Observe runs 'slipstream run' on a node with many Services, a network namespace of this machine. A
client makes connections to some of them at a fixed rate. The processor time and the memory of the
proxy are measured while nobody looks, while the metrics are scraped each 15 s with serviceMetrics,
and while the page is also open with each of its views: its requests are made, without a browser.
The table has medians over rounds, and their ratios to the first observer in the same round.`,
		Example: `  slipstream-bench observe
  slipstream-bench observe --rounds 1 --services 1000 --observers nobody,services --save result.json`,
	}
	o.AddFlags(cmd.Flags())
	return measuring(cmd, func(ctx context.Context) (*bench.Result, error) { return observe.Measure(ctx, o) })
}
