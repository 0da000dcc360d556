// SPDX-License-Identifier: Apache-2.0

// Command bench benchmarks Slipstream on this machine.
package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"syscall"

	"github.com/slipstream-proxy/slipstream/bench/balance"
	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/bench/forward"
	"github.com/slipstream-proxy/slipstream/bench/observe"
	"github.com/slipstream-proxy/slipstream/bench/programming"
	"github.com/slipstream-proxy/slipstream/bench/report"
	"github.com/slipstream-proxy/slipstream/bench/scale"
	"github.com/spf13/cobra"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if newCommand().ExecuteContext(ctx) != nil { // it is printed
		os.Exit(1)
	}
}

func newCommand() *cobra.Command {
	root := &cobra.Command{
		Use:          "bench",
		Short:        "Benchmark Slipstream on this machine",
		RunE:         func(cmd *cobra.Command, _ []string) error { return cmd.Help() },
		SilenceUsage: true,
	}
	root.SetErrPrefix("bench:")
	for _, b := range benchmarks {
		root.AddCommand(measuring(&b.Command, b.new()))
	}
	root.AddCommand(newReport())
	return root
}

// measuring completes the command of a benchmark.
func measuring(cmd *cobra.Command, b bench.Benchmark) *cobra.Command {
	var save string
	cmd.Flags().SortFlags = false
	b.AddFlags(cmd.Flags())
	cmd.Flags().StringVar(&save, "save", "", "`file` to write the result to, too, as JSON")
	cmd.Args = cobra.NoArgs
	cmd.RunE = func(cmd *cobra.Command, _ []string) error {
		r, err := bench.Run(cmd.Context(), cmd.Name(), b)
		if err == nil {
			err = r.Write(cmd.OutOrStdout(), save)
		}
		if err == nil {
			err = r.Failures()
		}
		if err != nil {
			return fmt.Errorf("%s: %w", cmd.Name(), err)
		}
		return nil
	}
	return cmd
}

// benchmarks are the commands that measure.
var benchmarks = []struct {
	cobra.Command
	new func() bench.Benchmark
}{{
	cobra.Command{
		Use:   "sync",
		Short: "Measure programming the kernel: cold start, single changes, memory",
		Long: `Sync makes up a cluster of Services and measures the cost of programming this machine's
kernel with it: a cold start, a restart, single changes to random Services, a burst of
changes, and memory.

It needs root. It measures in a network namespace of its own, which is deleted afterwards;
the machine's own rules are not touched. The time of a change is from handing the changed
objects over until the kernel uses them. Measure on a quiet machine: the load average is
in the header. 'bench scale' compares with kube-proxy.`,
		Example: `  bench sync --services 1000 --endpoints 10
  bench sync --services 10000 --endpoints 10 --runs 5 --save result.json
  bench sync --services 10000 --mode iptables --repetitions 10`,
	},
	func() bench.Benchmark { return new(programming.Options) },
}, {
	cobra.Command{
		Use:   "forward",
		Short: "Measure connections by the slow path, the fast path, sockets, and without a Service",
		Long: `Forward measures connections to a Service by several paths: the slow path ("off", also called
nftables), the engines of the fast path (flowtable, ebpf) or a threshold of packets, the fast path
with GRO at the node's ends of the pods' veths (gro), sockets that connect straight to the endpoint,
from pod to pod without a Service (direct), and over one link between the pods without a node.
Measured are TCP streams by iperf3 with segments aggregated on the pods' interfaces, as usual, and
with GSO, TSO and GRO off there (packets), and the machine's processor time for them; UDP datagrams
a second, and the cost of forwarding one packet (udp); and connections of one request and one
response (crr).

One node that forwards is between the client's pod and the only backend; all are
network namespaces of this machine. Each round has a turn of each path, in an order that
changes. The table has medians, and their ratios to the first path in the same round. A path
that the kernel cannot have is named in a note. Measure on a quiet machine.`,
		Example: `  bench forward --rounds 12 --streams 12 --save result.json
  bench forward --paths off,1,20 --measure aggregated,packets,udp --firewall=false
  bench forward --paths direct,sockets,nftables --measure crr --services 10000 --firewall=false`,
	},
	func() bench.Benchmark { return new(forward.Options) },
}, {
	cobra.Command{
		Use:   "balance",
		Short: "Measure Services with a slow or failing endpoint, by scheduler",
		Long: `Balance runs 'slipstream run' on some nodes, all of them network namespaces of this machine.
A client on each makes connections to one Service at random times. Each connection is one
request, each endpoint handles one request at a time, and one endpoint is slower than the
others. The latency of the requests and the share of the slow endpoint are measured for
each scheduler in each round, and the processor time of the proxies. Then three more Services of
the same endpoints get as many connections each: of one, an endpoint has its port closed, of the
others it answers an error at once, or accepts and resets. The share of failed requests is
measured. Each part of a turn is preceded by as long a time, at most 10 seconds, that is not
measured. The table has medians over rounds, and their ratios to the first scheduler in the same
round.

ipvs-lc is Slipstream's IPVS mode with the kernel's scheduler lc. On a kernel without IPVS it
is not measured.`,
		Example: `  bench balance
  bench balance --rounds 10 --save result.json
  bench balance --schedulers random,lc --nodes 1 --rate 1000 --service-time 1ms --slow 1`,
	},
	func() bench.Benchmark { return new(balance.Options) },
}, {
	cobra.Command{
		Use:   "observe",
		Short: "Measure what an open page and scraped metrics cost the proxy",
		Long: `Observe runs 'slipstream run' on a node with many Services, a network namespace of this machine. A
client makes connections to some of them at a fixed rate. The processor time and the memory of the
proxy are measured while nobody looks, while the metrics are scraped each 15 s with serviceMetrics,
and while the page is also open with each of its views: its requests are made, without a browser.
The table has medians over rounds, and their ratios to the first observer in the same round.`,
		Example: `  bench observe
  bench observe --rounds 1 --services 1000 --observers nobody,services --save result.json`,
	},
	func() bench.Benchmark { return new(observe.Options) },
}, {
	cobra.Command{
		Use:   scale.Scale,
		Short: "Measure proxies on a real API server, beside kube-proxy",
		Long: `Scale fills a real kube-apiserver with Services, and runs Slipstream and kube-proxy in their
modes, each on a node of its own, a network namespace of this machine. All is measured from
outside: objects are written to the API server, and connections are made to Services.
'cd bench && go doc ./scale' describes what is measured.`,
		Example: `  bench scale --services 1000 --subjects slipstream,kube-proxy-nftables`,
	},
	func() bench.Benchmark { return scale.New(scale.Scale) },
}, {
	cobra.Command{
		Use:   scale.Rules,
		Short: "Count the iptables rules that a new connection meets, beside kube-proxy",
		Long: `Rules counts the rules that the kernel executes for a new connection, with more and more
Services in a real API server, for the iptables modes of both.`,
		Example: `  bench rules --services 10,100,1000 --save result.json`,
	},
	func() bench.Benchmark { return scale.New(scale.Rules) },
}, {
	cobra.Command{
		Use:   scale.Latency,
		Short: "Measure HTTP requests to a Service, beside kube-proxy",
		Long: `Latency measures HTTP requests to one Service of nginx, and the processor time of the node, with
more and more other Services in a real API server.`,
		Example: `  bench latency --services 1,1000 --rounds 2`,
	},
	func() bench.Benchmark { return scale.New(scale.Latency) },
}, {
	cobra.Command{
		Use:   scale.Fleet,
		Short: "Measure many proxies on one API server, beside kube-proxy",
		Long: `Fleet runs many proxies on one real API server, each on a node of its own: it measures when all
of them have programmed a change, and what they cost the API server.`,
		Example: `  bench fleet --proxies 20 --services 200
  bench fleet --changes 0 --rollout 20000 --rate 100 --churn 25`,
	},
	func() bench.Benchmark { return scale.New(scale.Fleet) },
}}

func newReport() *cobra.Command {
	var o report.Options
	cmd := &cobra.Command{
		Use:   "report",
		Short: "Measure everything beside kube-proxy, and write one page",
		Long: `Report runs the benchmarks, each as a command of its own, in the repository's root, and writes one
page with the results. 'make report' builds what it needs. It keeps what a command has measured
in OUT/data/PART.json as soon as it ends. A second run measures only what is missing or has
failed; --part measures the named parts again.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return report.Run(cmd.Context(), o) },
	}
	o.AddFlags(cmd.Flags())
	return cmd
}
