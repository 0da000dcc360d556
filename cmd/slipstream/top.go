// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"text/tabwriter"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"github.com/slipstream-proxy/slipstream/internal/plain"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
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
	o.once = o.once || o.output == "json"
	if err := errors.Join(o.validOutput(), o.validOrder()); err != nil {
		return err
	}
	if o.period < time.Second {
		return errors.New("--period: must be at least a second, over which rates are measured")
	}
	all, err := o.busiest(ctx)
	if err != nil {
		return err
	}
	if !o.once {
		o.draw(out, all)
		return repeatUntil(ctx, o.period, func() {
			if all, err := o.busiest(ctx); err != nil {
				fmt.Fprintln(out, err)
			} else {
				o.draw(out, all)
			}
		})
	}
	select {
	case <-ctx.Done():
		return ctx.Err()
	case <-time.After(o.period):
	}
	if all, err = o.busiest(ctx); err != nil {
		return err
	}
	if o.output == "json" {
		return writeJSON(out, all)
	}
	return printTop(out, all, len(all))
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

// draw replaces the content of the terminal, or adds a list to a file or a pipe.
func (o *topOptions) draw(out io.Writer, all []busy) {
	rows, clear := 20, ""
	screen, size := terminal(out)
	if size != nil {
		if clear = "\x1b[H\x1b[J"; size.Row > 0 {
			rows = max(int(size.Row)-4, 1)
		}
	}
	var b bytes.Buffer // written at once, so that it does not flicker
	b.WriteString(clear)
	if err := printTop(&plain.Writer{To: &b}, all, rows); err == nil {
		_, _ = screen.Write(b.Bytes()) // an error ends nothing: the terminal may come back
	}
}

// terminal returns what is below the output of a command, which takes escape sequences if it is a terminal, and the
// terminal's size, of which both numbers may be 0; nil if it is none.
func terminal(out io.Writer) (io.Writer, *unix.Winsize) {
	if w, ok := out.(*plain.Writer); ok {
		out = w.To
	}
	if f, ok := out.(*os.File); ok {
		if size, err := unix.IoctlGetWinsize(int(f.Fd()), unix.TIOCGWINSZ); err == nil {
			return out, size
		}
	}
	return out, nil
}

// printTop prints the sum of all Services and a number of them.
func printTop(out io.Writer, all []busy, rows int) error {
	sum, rate, byteRate, rejected, bytes := 0, 0.0, 0.0, 0.0, "unknown bytes"
	for _, b := range all {
		sum += b.Connections
		rejected += ptr.Deref(b.RejectedRate, 0)
		if b.Total.ConnectionRate != nil {
			rate += *b.Total.ConnectionRate
			byteRate += ptr.Deref(b.Total.ByteRate, 0)
		}
		if b.Total.Accounting {
			bytes = flows.BinarySize(uint64(byteRate))
		}
	}
	fmt.Fprintf(out, "%s  %d Services with traffic, %d connections, %.1f new ones a second, %s a second, %.1f packets rejected a second\n",
		time.Now().Format(time.TimeOnly), len(all), sum, rate, bytes, rejected)
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "SERVICE\t"+trafficColumns)
	for _, b := range all[:min(rows, len(all))] {
		fmt.Fprintf(t, "%s\t%s\n", b.Service, cells(b.Traffic))
	}
	return t.Flush()
}
