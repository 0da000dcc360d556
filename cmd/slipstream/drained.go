// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"net/netip"
	"net/url"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/logonce"
	"github.com/slipstream-proxy/slipstream/internal/node/drain"
	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/spf13/cobra"
)

func newDrained() *cobra.Command {
	var socket, install, output string
	var minWait, quiet, maxWait time.Duration
	cmd := &cobra.Command{
		Use:   "drained",
		Short: "In a pod that ends, wait until new connections have ceased",
		Long: `Drained is for a preStop hook. A pod that is being deleted gets new connections until all
nodes know, and ends too early without one. Drained asks the proxy of the pod's node, which
sees the connections that come to the pod, and returns when none has come for the time
--quiet, not before --min-wait and not after --max-wait. It says which of them has ended it.

The node needs podSocket in its configuration, and the pod its directory. The proxy knows the
pod by its network namespace, so that it can ask about itself only. Where it cannot see the
pod's connections (hostNetwork, ipvlan, network plugins that pass conntrack by, a pod without
any connection), or does not answer, drained waits for --max-wait, and says so.

Connections from the node's own addresses straight to the pod's do not count, as the kubelet's
probes are such. Silence proves little for a pod that gets few connections, so it waits for 10s
at least unless --min-wait is given. The last ready pod of a Service on a node with
externalTrafficPolicy Local and a load balancer waits for 20s, as that one's health checks need
time to notice.`,
		Example: `  slipstream drained
  slipstream drained --min-wait 5s --max-wait 25s
  slipstream drained --install /shared   # in an init container`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			if install != "" {
				return drain.Install(install)
			}
			switch {
			case minWait < 0 || quiet <= 0 || maxWait <= 0:
				return errors.New("--quiet and --max-wait must be more than 0, and --min-wait not less")
			case max(minWait, quiet) > maxWait:
				return errors.New("--max-wait must not be less than --min-wait and --quiet")
			}
			query := url.Values{"quiet": {quiet.String()}}
			if cmd.Flags().Changed("min-wait") {
				query.Set("minWait", minWait.String())
			}
			result, err := waitUntilDrained(cmd.Context(), socket, query, maxWait)
			if output == "json" {
				return errors.Join(err, writeJSON(cmd.OutOrStdout(), result))
			}
			waited, came := result.Waited.Round(10*time.Millisecond), fmt.Sprintf("%d new connections", result.Connections)
			switch {
			case err != nil:
				fmt.Fprintf(cmd.OutOrStdout(), "max-wait: waited %s, as the proxy did not answer: %v\n", waited, err)
			case result.Blind != "":
				fmt.Fprintf(cmd.OutOrStdout(), "max-wait: waited %s, as the node cannot tell: %s\n", waited, result.Blind)
			case result.Quiet:
				fmt.Fprintf(cmd.OutOrStdout(), "quiet: waited %s; %s came, none in the last %s\n", waited, came, quiet)
			default:
				fmt.Fprintf(cmd.OutOrStdout(), "max-wait: waited %s; %s came, and they have not ceased\n", waited, came)
			}
			return nil
		},
	}
	f := cmd.Flags()
	f.StringVar(&socket, "socket", config.PodSocket, "Unix socket of the node's proxy (its podSocket)")
	f.DurationVar(&minWait, "min-wait", 0, "least time to wait (default: twice the time that most changes of endpoints lately took to have effect on the node, from 2s to 10s; more for pods with few connections, or behind load balancers' health checks)")
	f.DurationVar(&quiet, "quiet", 2*time.Second, "how long no new connection may come")
	f.DurationVar(&maxWait, "max-wait", 20*time.Second, "longest time to wait; less than the pod's terminationGracePeriodSeconds")
	f.StringVar(&install, "install", "", "copy this program to a directory instead, for the pod's other containers")
	addOutput(cmd, &output)
	return cmd
}

// waitUntilDrained returns when the proxy says that new connections have ceased, or after a time. Without an answer it asks
// again, as the proxy may be restarted meanwhile. The error says why there was none; the time has passed then, too.
func waitUntilDrained(ctx context.Context, socket string, query url.Values, most time.Duration) (result drain.Result, err error) {
	begun := time.Now()
	over, cancel := context.WithTimeout(ctx, most)
	defer cancel()
	for over.Err() == nil {
		query.Set("maxWait", (most - time.Since(begun)).String())
		answer, stop := context.WithTimeout(ctx, most-time.Since(begun)+time.Second) // the proxy answers when the time is over
		err = see.Ask(answer, socket, "/drained", query, &result)
		stop()
		pause := 500 * time.Millisecond
		if err == nil && !result.Quiet {
			pause = most // if the node cannot tell, the proxy answers at once
		} else if err == nil {
			break
		}
		select {
		case <-over.Done():
		case <-time.After(pause):
		}
	}
	result.Waited = time.Since(begun)
	return result, err
}

// leastWaits are the bounds of drained's --min-wait where the pod does not give it, and what it is where load balancers check
// this node's health: most of them do so every 5 to 10 seconds, and leave a node out after 2 or 3 failures.
var leastWaits = [3]time.Duration{2 * time.Second, 10 * time.Second, 20 * time.Second}

// serveDrained answers 'slipstream drained' until ctx ends, if podSocket is set.
func (s *app) serveDrained(ctx context.Context, p *proxy.Proxy) (stop func()) {
	path := s.config.Slipstream.PodSocket
	if path == "" {
		return func() {}
	}
	server := &drain.Server{MinWait: func(ctx context.Context, pod []netip.Addr) time.Duration {
		least := leastWaits[1] // a proxy that hangs is slow
		ctx, cancel := context.WithTimeout(ctx, time.Second)
		defer cancel()
		_ = p.Inspect(ctx, func(i *proxy.Inspection) {
			if least = min(max(2*see.Lag(i.Programmed), leastWaits[0]), leastWaits[1]); i.State.HealthNeeds(pod) {
				least = leastWaits[2]
			}
		})
		return least
	}}
	return inBackground(ctx, func(ctx context.Context) {
		var errs logonce.Errors
		see.ServeSocket(ctx, path, 0o666, func(err error) {
			errs.Log(s.log, err, "Could not serve 'slipstream drained', will try again", "socket", path)
		}, server.Serve)
	})
}
