// SPDX-License-Identifier: Apache-2.0

package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"net/url"
	"strings"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"github.com/spf13/cobra"
	corev1 "k8s.io/api/core/v1"
	"k8s.io/client-go/rest"
)

// pods returns a function that asks the API server for pods. It lists them, as the proxy may list pods but not get one.
func pods(client rest.Interface) func(ctx context.Context, namespace, fieldSelector string) ([]corev1.Pod, error) {
	return func(ctx context.Context, namespace, fieldSelector string) ([]corev1.Pod, error) {
		var list corev1.PodList
		err := client.Get().Namespace(namespace).Resource("pods").Param("fieldSelector", fieldSelector).Do(ctx).Into(&list)
		return list.Items, err
	}
}

type explainOptions struct {
	servicesOptions
	from      string
	probe     bool
	probeHere bool // connect to the endpoints on this node
	trace     bool
	timeout   time.Duration
}

func newExplain() *cobra.Command {
	var o explainOptions
	cmd := &cobra.Command{
		Use:   "explain ADDRESS:PORT[/PROTOCOL] | [NAMESPACE/]SERVICE[:PORT][/PROTOCOL] | NAME.NAMESPACE.svc.cluster.local[:PORT] | URL",
		Short: "Explain where a new connection to a Service would go, or what stops it",
		Long: `Explain follows the first packet of a connection to a Service through this node: the
frontend, the kernel's copy of it, source ranges, the pool of endpoints and how one is chosen,
masquerading, routes, neighbors, the base chains on the way, rules of others that drop it, and
the connections that conntrack has now; the same for the reply. The first line says what follows
from it, what to do, and what was not checked. It sends no packet, except with --probe and
--trace; on a terminal, it connects to endpoints on this node, unless --probe=false is given.

With --trace, it also sends one real probe, from this node or from the network namespace of a pod
of this node, and shows what the kernel did with it: each rule of nf_tables that the packet and
its reply met, in all tables, the translation, and the answer. Over TCP, the probe is a
connection that is closed at once, and over UDP an empty datagram. For a client that cannot be
reached from here, it waits for the next packet of such a connection. A packet is traced by a
table of its own, which matches this connection only, and which the kernel deletes when the
command ends, in whichever way. Rules of iptables-legacy cannot be traced.

What stops the connection is marked "STOPS HERE". What stops it only for some endpoints, or
depends on more than addresses, is marked "MAY STOP". Rules of other tables of nf_tables and of
iptables, iptables-legacy included, are evaluated as far as the packet is known.

The running proxy answers, over its Unix socket, which takes root. The exit status is 2 if
something stops the connection for certain.`,
		Example: `  slipstream explain default/web
  slipstream explain http://web.default.svc.cluster.local/
  slipstream explain -n default web:http
  slipstream explain --from default/client 10.96.0.10:53/UDP
  slipstream explain --from outside 192.168.0.11:30080
  slipstream explain --from default/client --trace default/web
  slipstream explain --from outside --trace --timeout 30s 192.168.0.11:30080`,
		Args: func(_ *cobra.Command, args []string) error {
			if len(args) != 1 {
				return errors.New("explain needs one destination, such as default/web")
			}
			return nil
		},
		ValidArgsFunction: o.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, out := cmd.Context(), cmd.OutOrStdout()
			if o.timeout <= 0 {
				return errors.New("--timeout: must be more than 0")
			}
			wait := func(what string) {
				fmt.Fprintf(cmd.ErrOrStderr(), "Waiting up to %s for a packet of a connection over %s\n", o.timeout, what)
			}
			_, size := terminal(out)
			o.probeHere = size != nil && !cmd.Flags().Changed("probe") && !o.trace && o.output == "text"
			return o.run(ctx, out, func(out io.Writer) error { return o.explain(ctx, out, args[0], wait) })
		},
	}
	o.add(cmd)
	f := cmd.Flags()
	f.StringVar(&o.from, "from", "node", "client: node for this node itself, outside, NAMESPACE/POD, or an IP address")
	_ = cmd.RegisterFlagCompletionFunc("from", cobra.FixedCompletions([]string{"node", "outside"}, cobra.ShellCompDirectiveNoFileComp))
	f.StringVarP(&o.namespace, "namespace", "n", "", "namespace of the Service, if its name has none")
	_ = cmd.RegisterFlagCompletionFunc("namespace", o.completeNamespace)
	f.BoolVar(&o.probe, "probe", false, "also connect to the endpoints from this node, over TCP")
	f.BoolVar(&o.trace, "trace", false, "also send one probe, or wait for a packet, and show what the kernel does with it")
	f.DurationVar(&o.timeout, "timeout", 3*time.Second, "limit of --trace")
	return cmd
}

func (o *explainOptions) explain(ctx context.Context, out io.Writer, to string, wait func(what string)) error {
	q := url.Values{"from": {o.from}, "to": {to}, "namespace": {o.namespace}}
	if o.probe {
		q.Set("probe", "")
	} else if o.probeHere {
		q.Set("probe", "here")
	}
	var x see.Explanation
	if err := o.get(ctx, "/explain", q, &x); err != nil {
		return err
	}
	if o.trace {
		see.Trace(ctx, &x, o.timeout, wait)
	}
	if err := printAs(out, o.output, &x, func(out io.Writer) error { return printExplanation(out, &x) }); err != nil || !x.Stops() {
		return err
	}
	return exitProblems
}

func printExplanation(out io.Writer, x *see.Explanation) error {
	if screen, size := terminal(out); size != nil {
		color := 32 // green
		if x.Stops() {
			color = 31 // red
		} else if strings.Contains(x.Verdict, "MAY STOP") {
			color = 33 // yellow
		}
		fmt.Fprintf(screen, "\x1b[1;%dm", color)
		fmt.Fprintln(out, x.Verdict)
		fmt.Fprint(screen, "\x1b[0m")
	} else {
		fmt.Fprintln(out, x.Verdict)
	}
	fmt.Fprintf(out, "From %s to %s\n", x.From, x.To)
	for _, s := range x.Steps {
		fmt.Fprintf(out, "  %-14s %s%s\n", s.Title, s.Mark(), strings.ReplaceAll(s.Text, "\n", "\n                 "))
		if s.Rule != "" {
			fmt.Fprintf(out, "                 [%s]\n", strings.ReplaceAll(s.Rule, "\n", "\n                  "))
		}
	}
	return nil
}
