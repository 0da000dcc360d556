// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/netip"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/spf13/cobra"
)

type flowsOptions struct {
	seeOptions
	byService bool
}

func newFlows() *cobra.Command {
	var o flowsOptions
	cmd := &cobra.Command{
		Use:   "flows",
		Short: "Show connections on the fast path",
		Long: `Flows lists the connections that are offloaded to the kernel's flowtable, or by eBPF, at this
moment, with their Service, backend, traffic and, if net.netfilter.nf_conntrack_timestamp
is set, age.`,
		Example: `  slipstream flows
  slipstream flows --by-service --watch
  slipstream flows -o json`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return showFlows(cmd.Context(), cmd.OutOrStdout(), &o) },
	}
	cmd.Flags().BoolVar(&o.byService, "by-service", false, "one line per frontend of a Service instead of per connection")
	addOutput(cmd, &o.output)
	o.addWatch(cmd)
	cmd.AddCommand(newFlowsFlush())
	return cmd
}

func showFlows(ctx context.Context, out io.Writer, o *flowsOptions) (err error) {
	conn, err := flows.New(0)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, conn.Close()) }()
	return o.run(ctx, out, func(out io.Writer) error {
		all, err := conn.List(ctx)
		if err != nil {
			return fmt.Errorf("reading conntrack: %w", err)
		}
		services, err := fastpath.ReadServices(0)
		if err != nil {
			return err
		}
		l := flows.Listing{At: time.Now(), Flows: all, Services: services}
		switch {
		case o.output == "json":
			return l.WriteJSON(out, o.byService)
		case len(all) == 0 && len(services) == 0:
			_, err = fmt.Fprintln(out, "There is no fast path here, or it has no Services ('slipstream status' says why).")
			return err
		}
		return l.WriteTable(out, o.byService)
	})
}

type flushOptions struct {
	all     bool
	service string
	pod     string
	hold    time.Duration
}

func newFlowsFlush() *cobra.Command {
	var o flushOptions
	cmd := &cobra.Command{
		Use:   "flush --all | --service NAMESPACE/NAME | --pod ADDRESS",
		Short: "Return connections to the slow path",
		Long: `Flush returns connections to the slow path, where their packets pass all rules again,
for example those of network policies. No connection is interrupted or gets another
backend. The kernel can only flush all connections of a flowtable at once, so all return for a
moment; the selected ones stay on the slow path for --hold.`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return flushFlows(cmd.Context(), o) },
	}
	f := cmd.Flags()
	f.BoolVar(&o.all, "all", false, "all connections")
	f.StringVar(&o.service, "service", "", "connections to a Service, as NAMESPACE/NAME or NAMESPACE/NAME:PORT")
	f.StringVar(&o.pod, "pod", "", "connections from or to a pod, by its address")
	f.DurationVar(&o.hold, "hold", 10*time.Second, "minimum time that they stay on the slow path")
	cmd.MarkFlagsOneRequired("all", "service", "pod")
	cmd.MarkFlagsMutuallyExclusive("all", "service", "pod")
	return cmd
}

func flushFlows(ctx context.Context, o flushOptions) error {
	flush := fastpath.Flush{All: o.all, Hold: o.hold}
	if o.pod != "" {
		ip, err := netip.ParseAddr(o.pod)
		if err != nil {
			return fmt.Errorf("--pod: %q is not an IP address", o.pod)
		}
		flush.Addresses = []netip.Addr{ip.Unmap()}
	}
	if o.service != "" {
		services, err := fastpath.ReadServices(0)
		if err != nil {
			return err
		}
		for key, service := range services {
			if service == o.service || strings.HasPrefix(service, o.service+":") {
				flush.Frontends = append(flush.Frontends, key)
			}
		}
		if len(flush.Frontends) == 0 {
			return fmt.Errorf("--service: the fast path knows no Service %s", o.service)
		}
	}
	return fastpath.FlushTable(ctx, 0, flush)
}
