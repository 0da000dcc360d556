// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"text/tabwriter"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"github.com/slipstream-proxy/slipstream/internal/plain"
	"github.com/spf13/cobra"
	"k8s.io/utils/ptr"
)

type topOptions struct {
	servicesOptions
	once bool
}

func newTop() *cobra.Command {
	var o topOptions
	cmd := &cobra.Command{
		Use:   "top",
		Short: "Show the Services with the most traffic, live",
		Long: `Top lists the Services that have traffic on this node, those with the most new connections
first, and shows the numbers again and again until it is interrupted. They are those of
'slipstream services', for all ports of a Service together.

With --once or -o json it measures for one --period, and prints one list.`,
		Example: `  slipstream top
  slipstream top --sort byte-rate
  slipstream top --sort rejected -n default
  slipstream top -o json | jq '.[0:10]'`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error { return o.top(cmd.Context(), cmd.OutOrStdout()) },
	}
	o.add(cmd)
	o.addSelection(cmd, "rate")
	f := cmd.Flags()
	f.BoolVar(&o.once, "once", false, "print one list")
	f.DurationVar(&o.period, "period", 2*time.Second, "time from one list to the next, at least a second")
	return cmd
}

func (o *topOptions) top(ctx context.Context, out io.Writer) error {
	if o.period < time.Second {
		return errors.New("--period: must be at least a second, over which rates are measured")
	}
	if o.watch = !o.once && o.output != "json"; !o.watch {
		if _, err := o.busiest(ctx); err != nil {
			return err
		}
		select {
		case <-ctx.Done():
			return ctx.Err()
		case <-time.After(o.period):
		}
	}
	return o.run(ctx, out, func(out io.Writer) error {
		all, err := o.busiest(ctx)
		if err != nil {
			return err
		}
		return printAs(out, o.output, all, func(out io.Writer) error { return printTop(out, all) })
	})
}

// busy is a Service with its traffic.
type busy struct {
	Service string `json:"service"`
	see.Traffic
}

// busiest returns the Services that have traffic, in order.
func (o *topOptions) busiest(ctx context.Context) ([]busy, error) {
	services, err := o.ask(ctx, "")
	if err != nil {
		return nil, err
	}
	all := []busy{}
	for i := range services {
		b := busy{services[i].Namespace + "/" + services[i].Name, services[i].Sum()}
		if b.Connections > 0 || b.Total.Connections > 0 || b.Rejected != nil && *b.Rejected > 0 {
			all = append(all, b)
		}
	}
	return all, nil
}

// printTop prints the sum of all Services, and each.
func printTop(out io.Writer, all []busy) error {
	sum, rate, byteRate, rejected, bytes := 0, 0.0, 0.0, 0.0, ""
	for _, b := range all {
		sum += b.Connections
		rejected += ptr.Deref(b.RejectedRate, 0)
		rate += ptr.Deref(b.Total.ConnectionRate, 0)
		byteRate += ptr.Deref(b.Total.ByteRate, 0)
		if b.Total.Accounting {
			bytes = ", " + flows.BinarySize(uint64(byteRate)) + " a second"
		}
	}
	fmt.Fprintf(out, "%s with traffic, %s, %.1f new ones a second%s, %.1f packets rejected a second\n",
		plain.Number(len(all), "Service"), plain.Number(sum, "connection"), rate, bytes, rejected)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SERVICE\t"+trafficColumns)
	for _, b := range all {
		fmt.Fprintf(t, "%s\t%s\n", b.Service, cells(b.Traffic))
	}
	return t.Flush()
}
