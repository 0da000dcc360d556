// SPDX-License-Identifier: Apache-2.0

// Command scale measures Service proxies on a real Kubernetes API, from outside: objects
// are written to kube-apiserver, connections are made to Services.
//
//	go run ./scale -services 10000 -endpoints 10
//
// One kube-apiserver with its etcd is filled with Services. Then each subject runs on a
// node of its own, one after the other: Slipstream and upstream kube-proxy, each in its
// nftables and its iptables mode, with the configuration that kubeadm writes. One machine
// has the addresses of all pods and answers every connection with the address that it was
// made to, so any Service can be connected to, and the answer says which endpoint
// it was. The iptables modes use the commands of the legacy variant, unless -iptables says
// otherwise.
//
// The measurements of each subject:
//
//   - a plain client: before the subject starts, how long the API server takes to stream all
//     Services and EndpointSlices to a client that only reads the bytes.
//   - start: from the start of the process on a node without any rules until a new
//     connection to each Service of a random sample is answered.
//   - change: from the API server's reply to a change of an EndpointSlice until a new
//     connection reaches the new endpoint. The pause before the next change is longer than
//     the subject's minimum time between two syncs, so that no change waits for the one
//     before it. The Services that are changed have one endpoint, so that every connection
//     shows it.
//   - processor time for each of these changes, beyond that of the process at rest: user and
//     system, of the process and of commands it runs (nft, iptables-restore). The kernel's
//     later work on its own threads, such as freeing memory, is not included. At rest is ten
//     seconds after the start.
//   - a client with informers only: a process with client-go's informers of Services and
//     EndpointSlices, and nothing else. It shows what delivery and decoding alone cost.
//   - burst: endpoints of many Services are replaced as fast as the API server accepts it;
//     from the last reply until the last change has its effect.
//   - churn, with -churn: endpoints of random Services are replaced all the time, as in a large
//     cluster, and meanwhile single changes are measured, from the change's trigger time.
//   - full and partial syncs: the proxy's metrics in the end.
//   - healing, with -failures: in iptables modes, the chain of one Service is removed and another Service
//     changed, so that a partial restore fails; until both work, and whether other Services do meanwhile.
//   - connections that failed: the share without an answer within a second, of 20 a second to
//     Services of the sample, from the start to the end of the bursts.
//   - peak resident memory (VmHWM) of the process, after the start and in the end; and of
//     the commands it runs, by looking every 50 ms.
//
// Connections are tried all the time, with pauses of 0.1 ms, or of a thousandth of the time
// that has passed so far if that is more (at most 10 ms).
//
// # Rules
//
//	go run ./scale rules -services 10,100,1000,10000
//
// counts the rules that the kernel executes for a new connection, with more and more Services in
// the same API server, for Slipstream's and kube-proxy's iptables modes, or the modes that
// -subjects names (rules.go).
//
// # Latency
//
//	go run ./scale latency -load ../../bin/report-load
//
// measures HTTP requests to one Service of nginx, and the processor time of the node, with more
// and more other Services (latency.go).
//
// # Fleet
//
//	go run ./scale fleet -proxies 100 -services 1000
//
// measures many proxies on one API server, each on a node of its own: when all of them have
// programmed a change, and what they cost the API server (fleet.go).
package main

import (
	"context"
	"errors"
	"flag"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"syscall"
	"time"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/test/cluster/proxies"
	"github.com/slipstream-proxy/slipstream/test/oracle/upstream"
)

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, syscall.SIGTERM)
	defer stop()
	if len(os.Args) == 3 && os.Args[1] == asInformers {
		if err := runInformers(ctx, os.Args[2]); err != nil {
			fmt.Fprintln(os.Stderr, "scale:", err)
			os.Exit(1)
		}
		return
	}
	err := command(ctx, os.Args[1:], os.Stdout, func(format string, args ...any) {
		fmt.Fprintf(os.Stderr, time.Now().Format("15:04:05 ")+format+"\n", args...)
	})
	if err != nil && !errors.Is(err, flag.ErrHelp) {
		fmt.Fprintln(os.Stderr, "scale:", err)
		os.Exit(1)
	}
}

// command runs the command line. If a subject could not be measured completely, the result is
// written, and then that is an error.
func command(ctx context.Context, args []string, out io.Writer, log upstream.Log) error {
	o, err := parse(args)
	if err != nil {
		return err
	}
	r, err := measure(ctx, o, log)
	if err != nil {
		return bench.Interrupted(ctx, err)
	}
	return errors.Join(r.Write(out, o.output, o.save), r.Failures())
}

func measure(ctx context.Context, o *options, log upstream.Log) (_ *bench.Result, err error) {
	bench.QuietLimit = o.quiet
	dir, done, err := o.directory()
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, done()) }()
	slipstream, kubeProxy, err := findPrograms(ctx, o, dir, log)
	if err != nil {
		return nil, err
	}
	var chosen []proxies.Kind
	programs := map[proxies.Kind]string{}
	r := &bench.Result{Benchmark: "scale", Options: o, Machine: bench.ThisMachine()}
	for _, k := range proxies.AllKinds { // ratios are to the first one that is chosen
		if !slices.Contains(o.Subjects, string(k)) {
			continue
		}
		programs[k] = kubeProxy
		if k.IsSlipstream() {
			programs[k] = slipstream
		}
		chosen = append(chosen, k)
		r.Subjects = append(r.Subjects, bench.Subject{Name: string(k), Version: version(ctx, k, programs[k])})
	}
	rounds, series := o.Runs, measuredSeries(o)
	r.Title = fmt.Sprintf("%s Services x %s endpoints on kube-apiserver; runs: %d", bench.Thousands(o.most()), bench.Thousands(o.Endpoints), o.Runs)
	if o.rules {
		rounds, series = len(o.Services), rulesSeries(o)
		r.Benchmark = "rules"
		r.Title = fmt.Sprintf("Rules executed for a new connection, Services of %s endpoints, at most %d of them drawn with seed %d", bench.Thousands(o.Endpoints), o.Sample, o.Seed)
	}
	if o.latency {
		return r, measureLatency(ctx, o, r, chosen, programs, dir, log)
	}
	if o.fleet {
		return r, measureFleet(ctx, o, r, chosen, programs, dir, log)
	}
	e, err := newEnvironment(ctx, o, rounds*len(chosen), dir, log)
	if err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, e.close()) }()
	samples, err := bench.Turns(ctx, rounds, len(chosen), func(round, i int, samples bench.Samples) error {
		if err := e.fill(ctx, o.Services[min(round, len(o.Services)-1)]); err != nil {
			return err
		}
		if r.Subjects[i].Failed != "" {
			return nil
		}
		if err := e.run(ctx, chosen[i], programs[chosen[i]], samples); ctx.Err() == nil && err != nil {
			log("%s: %v", chosen[i], err)
			r.Subjects[i].Failed = err.Error()
		}
		return ctx.Err()
	})
	if err != nil {
		return nil, err
	}
	r.LoadAfter = bench.LoadAverage()
	return r, r.Fill(series, samples)
}
