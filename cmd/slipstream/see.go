// SPDX-License-Identifier: Apache-2.0

package main

import (
	"bytes"
	"cmp"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"maps"
	"net/url"
	"os"
	"slices"
	"strings"
	"text/tabwriter"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/config"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath/flows"
	"github.com/slipstream-proxy/slipstream/internal/observe/metrics"
	"github.com/slipstream-proxy/slipstream/internal/observe/see"
	"github.com/slipstream-proxy/slipstream/internal/plain"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/source/api"
	"github.com/spf13/cobra"
	"golang.org/x/sys/unix"
	"k8s.io/apimachinery/pkg/types"
	"k8s.io/apimachinery/pkg/util/wait"
	"k8s.io/utils/ptr"
)

// serveView serves the status socket until the returned function is called.
func (s *app) serveView(ctx context.Context, p *proxy.Proxy) (stop func()) {
	v := &s.view
	v.Proxy, v.Version, v.Mode, v.Node, v.Started = p, versionText(), s.config.Mode(), s.node, time.Now()
	v.IPVS = s.config.Traits().VirtualServers
	if v.Source = "the Kubernetes API"; s.client == nil {
		v.Source = "manifests in " + s.config.Slipstream.Manifests
	}
	if a, ok := s.objects.(*api.Source); ok {
		v.Contact = a.Contact
		s.metrics.OnAPI(func() time.Time { return a.Contact().Heard })
	}
	v.Describe = s.dataplane.Describe
	v.OpenReader = func(ctx context.Context) (proxy.Reader, error) { return s.dataplane.openReader(ctx, s.config) }
	switch {
	case s.fast != nil && s.fast.Off():
		v.NoFastPath = "offloadPacketThreshold is 0"
	case s.fast != nil:
		v.FastPath = s.fast.Stats
	}
	v.Sockets = s.sockets
	v.ClientsBackend = s.dataplane.clientsBackend
	if b := s.dataplane.table; b != nil {
		v.Rejected = b.RejectedAt
		v.Affinity = func() (all []see.TableUsage) {
			for f, c := range b.Clients().Count() {
				if c.Recorded > 0 {
					all = append(all, see.TableUsage{Name: fmt.Sprintf("%s clients with session affinity", desired.Family(f)), Entries: c.Recorded, Limit: c.Most})
				}
			}
			return all
		}
	}
	s.metrics.OnHealth(see.Reasons, func() ([]string, int, int, error) {
		h, err := v.Health(ctx)
		return h.Problems, h.Conntrack.Entries, h.Conntrack.Limit, err
	})
	if s.config.Slipstream.ServiceMetrics {
		s.metrics.OnTraffic(func() (map[types.NamespacedName]metrics.Traffic, error) { return trafficOf(ctx, v) })
	}
	return inBackground(ctx, func(ctx context.Context) { v.Serve(ctx, s.config.Slipstream.StatusSocket) })
}

// trafficOf returns what each Service carries.
func trafficOf(ctx context.Context, v *see.View) (map[types.NamespacedName]metrics.Traffic, error) {
	services, err := v.Traffic(ctx, see.Recent)
	all := make(map[types.NamespacedName]metrics.Traffic, len(services))
	for name, s := range services {
		all[name] = metrics.Traffic{
			Open: float64(s.Open), Connections: float64(s.Connections), Packets: float64(s.Packets), Bytes: float64(s.Bytes),
			Rejected: float64(s.Rejected),
		}
	}
	return all, err
}

// exitStatus is an error with an exit status other than 1.
type exitStatus int

const (
	exitProblems exitStatus = 2
	exitNoProxy  exitStatus = 3
)

func (e exitStatus) Error() string {
	return map[exitStatus]string{exitProblems: "there are problems", exitNoProxy: "no proxy answers"}[e]
}

// seeOptions are the flags of the commands that ask a running proxy.
type seeOptions struct {
	socket string
	output string
	watch  bool
	period time.Duration
	stderr func() io.Writer
}

func (o *seeOptions) add(cmd *cobra.Command, outputs ...string) {
	o.stderr = cmd.ErrOrStderr
	cmd.Flags().StringVar(&o.socket, "socket", config.DefaultStatusSocket, "Unix socket of the running proxy (its --status-socket)")
	addOutput(cmd, &o.output, outputs...)
}

// get asks the running proxy, for at most 10 s, and says after 2 s that it waits.
func (o *seeOptions) get(ctx context.Context, path string, q url.Values, to any) error {
	defer time.AfterFunc(2*time.Second, func() { fmt.Fprintln(o.stderr(), "The proxy has not answered yet; waiting for 8 more seconds.") }).Stop()
	ctx, cancel := context.WithTimeout(ctx, 10*time.Second)
	defer cancel()
	return see.Ask(ctx, o.socket, path, q, to)
}

// choice is a flag that takes some values.
type choice struct {
	to     *string
	values []string
}

func (c *choice) String() string { return ptr.Deref(c.to, "") }
func (c *choice) Type() string   { return "string" }

func (c *choice) Set(value string) error {
	if !slices.Contains(c.values, value) {
		return fmt.Errorf("must be one of %s", strings.Join(c.values, ", "))
	}
	*c.to = value
	return nil
}

// addOutput adds the flag for the format of the output.
func addOutput(cmd *cobra.Command, to *string, more ...string) {
	*to = "text"
	addChoice(cmd, "output", "o", &choice{to, append([]string{"text"}, append(more, "json")...)}, "format")
}

// addChoice adds a flag, and its completion.
func addChoice(cmd *cobra.Command, name, short string, c *choice, usage string) {
	cmd.Flags().VarP(c, name, short, usage+": "+strings.Join(c.values, ", "))
	_ = cmd.RegisterFlagCompletionFunc(name, cobra.FixedCompletions(c.values, cobra.ShellCompDirectiveNoFileComp))
}

func (o *seeOptions) addWatch(cmd *cobra.Command) {
	f := cmd.Flags()
	f.BoolVarP(&o.watch, "watch", "w", false, "repeat until interrupted")
	f.DurationVar(&o.period, "period", 2*time.Second, "interval of --watch")
}

// run calls show, repeatedly with --watch: what it shows replaces the content of a terminal, or is
// added to a file or a pipe. An error of a repetition is shown, and the last one is returned.
func (o *seeOptions) run(ctx context.Context, out io.Writer, show func(out io.Writer) error) (err error) {
	if !o.watch {
		return show(out)
	}
	if o.period <= 0 {
		return errors.New("--period: must be more than 0")
	}
	screen, size := terminal(out)
	wait.NonSlidingUntilWithContext(ctx, func(context.Context) {
		var b bytes.Buffer // written at once, so that it does not flicker
		to := &plain.Writer{To: &b}
		if o.output != "json" {
			fmt.Fprintln(to, time.Now().Format(time.RFC3339))
		}
		if err = show(to); err != nil {
			fmt.Fprintln(to, err)
		}
		text := b.String()
		if size != nil {
			text = "\x1b[H\x1b[J" + fit(text, int(size.Col), int(size.Row))
		} else if o.output != "json" {
			text += "\n"
		}
		_, _ = io.WriteString(screen, text) // an error ends nothing: the terminal may come back
	}, o.period)
	return err
}

// fit cuts text to a terminal's size, of which both numbers may be 0 for unknown.
func fit(text string, columns, rows int) string {
	lines := strings.Split(strings.TrimSuffix(text, "\n"), "\n")
	if rows > 1 {
		lines = lines[:min(len(lines), rows-1)] // below is the cursor
	}
	for i, line := range lines {
		if all := []rune(line); columns > 0 && len(all) > columns {
			lines[i] = string(all[:columns-1]) + ">"
		}
	}
	return strings.Join(lines, "\n") + "\n"
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

func writeJSON(out io.Writer, v any) error {
	e := json.NewEncoder(out)
	e.SetIndent("", "  ")
	return e.Encode(v)
}

// printAs writes v as JSON, or as text prints it.
func printAs(out io.Writer, output string, v any, text func(io.Writer) error) error {
	if output == "json" {
		return writeJSON(out, v)
	}
	return text(out)
}

func newStatus() *cobra.Command {
	var o seeOptions
	cmd := &cobra.Command{
		Use:   "status",
		Short: "Show whether the running proxy is well",
		Long: `Status shows on one screen what the proxy on this node does and whether it is well:
what is programmed, how long changes take, how full the kernel's tables are, problems with
their remedies, and the last warnings. It asks the running proxy over its Unix socket, which
takes root. If no proxy answers, it lists what the kernel has of Slipstream.

The exit status is
  0  the proxy is well
  1  an error, such as a wrong flag
  2  the proxy has problems, which are listed
  3  no proxy answers`,
		Example: `  slipstream status
  slipstream status --watch
  slipstream status -o json | jq .problems`,
		Args: cobra.NoArgs,
		RunE: func(cmd *cobra.Command, _ []string) error {
			ctx, out := cmd.Context(), cmd.OutOrStdout()
			return o.run(ctx, out, func(out io.Writer) error { return showStatus(ctx, out, &o) })
		},
	}
	o.add(cmd)
	o.addWatch(cmd)
	return cmd
}

func showStatus(ctx context.Context, out io.Writer, o *seeOptions) error {
	var s see.Status
	err := o.get(ctx, "/status", nil, &s)
	if errors.Is(err, see.ErrNoProxy) {
		left, failed := see.Kernel()
		if o.output == "json" {
			return errors.Join(failed, writeJSON(out, map[string]any{"error": err.Error(), "kernel": left}), exitNoProxy)
		}
		fmt.Fprintf(out, "%v\n", err)
		if failed != nil {
			return errors.Join(failed, exitNoProxy)
		}
		fmt.Fprintln(out, "The kernel has:")
		for _, line := range left {
			fmt.Fprintln(out, "  "+line)
		}
		if len(left) == 0 {
			fmt.Fprintln(out, "  nothing of Slipstream")
		}
		return exitNoProxy
	}
	if err != nil {
		return err
	}
	err = printAs(out, o.output, &s, func(out io.Writer) error { return printStatus(out, &s) })
	if err == nil && len(s.Problems) > 0 {
		err = exitProblems
	}
	return err
}

func printStatus(out io.Writer, s *see.Status) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	for _, f := range s.Facts() {
		fmt.Fprintf(t, "%s\t%s\n", f.Name, f.Text)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	for _, p := range s.Problems {
		fmt.Fprintf(out, "\nPROBLEM  %s\n         To do: %s.\n", p.What, p.Remedy)
	}
	if len(s.Warnings) > 0 {
		fmt.Fprintln(out, "\nLast warnings:")
	}
	for _, w := range s.Warnings[:min(len(s.Warnings), 5)] {
		fmt.Fprintf(out, "  %s  %d x %s: %s\n", w.At.Format(time.DateTime), w.Count, w.Reason, w.Note)
		if w.Remedy != "" {
			fmt.Fprintf(out, "    To do: %s.\n", w.Remedy)
		}
	}
	return nil
}

type servicesOptions struct {
	seeOptions
	namespace string
	sort      string
	unserved  bool
}

// wide says whether the columns of traffic are asked for.
func (o *servicesOptions) wide() bool {
	return o.output == "wide" || o.sort != "name" && o.sort != "endpoints"
}

func newServices() *cobra.Command {
	var o servicesOptions
	cmd := &cobra.Command{
		Use:   "services [NAME | NAMESPACE/NAME]",
		Short: "Show the programmed Services and their endpoints",
		Long: `Services lists the Services that the running proxy serves on this node, one line for each
port and address family, with the number of endpoints that are used, and why there are none.
With a name, it shows the frontends of the Service, the policies that apply, and each endpoint:
whether it is used, or why not. With -o wide, or an order by traffic, the list shows traffic, too.

Connections and bytes are those that the kernel's conntrack has at this moment, and that
this node has translated. The totals and rates are of connections that began or went on since
the first question; counting ends five minutes after the last one. Rates are those since the
question before. REJECTED counts packets that were refused or dropped, for a lack of endpoints or
because of the client's address; iptables mode does not know them by Service. Bytes are counted
if net.netfilter.nf_conntrack_acct is set.`,
		Example: `  slipstream services
  slipstream services -n default --sort connections
  slipstream services --unserved
  slipstream services default/web`,
		Args:              cobra.MaximumNArgs(1),
		ValidArgsFunction: o.complete,
		RunE: func(cmd *cobra.Command, args []string) error {
			ctx, out := cmd.Context(), cmd.OutOrStdout()
			name := strings.Join(args, "") // of one argument or none
			return o.run(ctx, out, func(out io.Writer) error { return o.show(ctx, out, name) })
		},
	}
	o.add(cmd, "wide")
	o.addWatch(cmd)
	o.addSelection(cmd, "name")
	cmd.Flags().BoolVar(&o.unserved, "unserved", false, "only Services with a port that has no endpoint to use")
	return cmd
}

// addSelection adds the flags that select and order Services.
func (o *servicesOptions) addSelection(cmd *cobra.Command, sort string) {
	cmd.Flags().StringVarP(&o.namespace, "namespace", "n", "", "only Services of this namespace")
	_ = cmd.RegisterFlagCompletionFunc("namespace", o.completeNamespace)
	o.sort = sort
	addChoice(cmd, "sort", "", &choice{&o.sort, slices.Sorted(maps.Keys(orders))}, "order, the most first, of endpoints the fewest")
}

// completeNamespace offers the namespaces that have Services.
func (o *servicesOptions) completeNamespace(cmd *cobra.Command, _ []string, _ string) ([]string, cobra.ShellCompDirective) {
	var services []see.Service
	_ = o.get(cmd.Context(), "/services", nil, &services)
	all := collect.From(services, func(s see.Service) string { return s.Namespace })
	slices.Sort(all)
	return slices.Compact(all), cobra.ShellCompDirectiveNoFileComp
}

// complete offers names of Services.
func (o *servicesOptions) complete(cmd *cobra.Command, args []string, begin string) ([]string, cobra.ShellCompDirective) {
	var all []see.Service
	if len(args) > 0 || o.get(cmd.Context(), "/services", url.Values{"namespace": {o.namespace}}, &all) != nil {
		return nil, cobra.ShellCompDirectiveNoFileComp
	}
	var names []string
	for _, s := range all {
		for _, name := range []string{s.Namespace + "/" + s.Name, s.Name} {
			if strings.HasPrefix(name, begin) {
				names = append(names, name)
				break
			}
		}
	}
	return names, cobra.ShellCompDirectiveNoFileComp
}

// ask asks for the Services that the flags, and a name if it is not empty, select, in order.
func (o *servicesOptions) ask(ctx context.Context, name string) ([]see.Service, error) {
	q := url.Values{"namespace": {o.namespace}, "name": {name}, "traffic": {""}}
	if namespace, short, ok := strings.Cut(name, "/"); ok {
		q.Set("namespace", namespace)
		q.Set("name", short)
	}
	if name != "" {
		q.Set("endpoints", "")
	}
	var all []see.Service
	if err := o.get(ctx, "/services", q, &all); err != nil {
		return nil, err
	}
	if o.unserved {
		all = slices.DeleteFunc(all, func(s see.Service) bool { return s.Fewest() > 0 })
	}
	slices.SortStableFunc(all, func(a, b see.Service) int {
		return cmp.Compare(orders[o.sort](&b, b.Sum()), orders[o.sort](&a, a.Sum()))
	})
	return all, nil
}

func (o *servicesOptions) show(ctx context.Context, out io.Writer, name string) error {
	all, err := o.ask(ctx, name)
	switch {
	case err != nil:
		return err
	case len(all) == 0 && name != "":
		return fmt.Errorf("this proxy serves no Service %s (see 'slipstream services'; a headless Service, and one of type ExternalName, has no frontends)", name)
	case o.output == "json":
		return writeJSON(out, all)
	case name != "":
		for i := range all {
			if err := printService(out, &all[i]); err != nil {
				return err
			}
		}
	case len(all) == 0:
		what := "There is no Service"
		if o.unserved {
			what += " without endpoints"
		}
		if o.namespace != "" {
			what += " in namespace " + o.namespace
		}
		fmt.Fprintln(out, what+".")
	default:
		if err := printServices(out, all, o.wide()); err != nil || !o.wide() {
			return err
		}
	}
	_, err = io.WriteString(out, counting(all))
	return err
}

// orders are the values of --sort, and what they sort by, the largest first.
var orders = map[string]func(*see.Service, see.Traffic) float64{
	"name":          func(*see.Service, see.Traffic) float64 { return 0 },
	"endpoints":     func(s *see.Service, _ see.Traffic) float64 { return -float64(s.Fewest()) },
	"connections":   func(_ *see.Service, t see.Traffic) float64 { return float64(t.Connections) },
	"bytes":         func(_ *see.Service, t see.Traffic) float64 { return float64(ptr.Deref(t.Bytes, 0)) },
	"rate":          func(_ *see.Service, t see.Traffic) float64 { return ptr.Deref(t.Total.ConnectionRate, 0) },
	"byte-rate":     func(_ *see.Service, t see.Traffic) float64 { return ptr.Deref(t.Total.ByteRate, 0) },
	"total":         func(_ *see.Service, t see.Traffic) float64 { return float64(t.Total.Connections) },
	"rejected":      func(_ *see.Service, t see.Traffic) float64 { return float64(ptr.Deref(t.Rejected, 0)) },
	"rejected-rate": func(_ *see.Service, t see.Traffic) float64 { return ptr.Deref(t.RejectedRate, 0) },
	"total-bytes":   func(_ *see.Service, t see.Traffic) float64 { return float64(t.Total.Bytes) },
}

func printServices(out io.Writer, all []see.Service, wide bool) error {
	t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
	columns := ""
	if wide {
		columns = trafficColumns + "\t"
	}
	fmt.Fprintln(t, "SERVICE\tFRONTENDS\tUSED\tREADY\t"+columns+"REMARK")
	for i := range all {
		s := &all[i]
		for j := range s.Ports {
			p := &s.Ports[j]
			used := make([]string, len(p.Pools))
			for k, pool := range p.Pools {
				used[k] = fmt.Sprint(pool.Backends)
				if len(p.Pools) > 1 {
					used[k] += " " + strings.ToLower(pool.Scope)
				}
			}
			if wide {
				columns = cells(s.Traffic[j]) + "\t"
			}
			fmt.Fprintf(t, "%s\t%s\t%s\t%d/%d\t%s%s\n", p.Name, frontends(p), strings.Join(used, ", "), p.Ready, p.Total, columns, remark(p))
		}
	}
	return t.Flush()
}

// frontends are the first address of a port, the first one of its NodePort, and the number of others.
func frontends(p *desired.PortView) string {
	var shown, all []string
	for i := range p.Frontends {
		f := &p.Frontends[i]
		if all = append(all, f.Addresses()...); i == 0 || len(f.Served) > 0 && len(shown) == 1 {
			shown = append(shown, f.Addresses()[0])
		}
	}
	if more := len(all) - len(shown); more > 0 {
		shown = append(shown, fmt.Sprintf("+%d", more))
	}
	return cmp.Or(strings.Join(shown, " "), "-")
}

const trafficColumns = "CONNECTIONS\tBYTES\tTOTAL\tTOTAL BYTES\tCONN/S\tBYTES/S\tREJECTED\tREJECTED/S"

// cells are the columns of traffic.
func cells(t see.Traffic) string {
	bytes := &t.Total.Bytes
	if !t.Total.Accounting {
		bytes = nil
	}
	perSecond := func(n float64) string { return fmt.Sprintf("%.1f", n) }
	return strings.Join([]string{
		fmt.Sprint(t.Connections), known(t.Bytes, flows.BinarySize), fmt.Sprint(t.Total.Connections), known(bytes, flows.BinarySize),
		known(t.Total.ConnectionRate, perSecond), known(t.Total.ByteRate, func(n float64) string { return flows.BinarySize(uint64(n)) }),
		known(t.Rejected, func(n uint64) string { return fmt.Sprint(n) }), known(t.RejectedRate, perSecond),
	}, "\t")
}

// known is a number as text, "-" if it is not known.
func known[T any](n *T, text func(T) string) string {
	if n == nil {
		return "-"
	}
	return text(*n)
}

// counting says since when the totals are counted, and what they lack.
func counting(all []see.Service) string {
	if len(all) == 0 {
		return ""
	}
	c := all[0].Sum().Total
	text := "Totals are counted since " + c.Since.Format(time.DateTime) + "."
	if !c.Accounting {
		text += " Bytes are unknown, as net.netfilter.nf_conntrack_acct is 0."
	}
	if c.Lost {
		text += " The totals are too low, as the kernel discarded events."
	}
	return text + "\n"
}

// remark says why a port does not serve, if it does not.
func remark(p *desired.PortView) string {
	var all []string
	if why := whyEmpty(p); why != "" {
		first, _, _ := strings.Cut(why, ". ")
		all = append(all, first)
	}
	for _, f := range p.Frontends {
		if f.Owner != "" {
			all = append(all, f.Address+" belongs to Service "+f.Owner)
		}
	}
	return strings.Join(all, "; ")
}

// whyEmpty says why the first pool of a port that has no endpoint has none; "" if all have some.
func whyEmpty(p *desired.PortView) string {
	i := slices.IndexFunc(p.Pools, func(p desired.PoolView) bool { return p.Empty != "" })
	if i < 0 {
		return ""
	}
	return see.WhyEmpty(p, p.Pools[i].Empty)
}

func printService(out io.Writer, s *see.Service) error {
	for i := range s.Ports {
		p := &s.Ports[i]
		fmt.Fprintf(out, "Service %s, %s, %s\n", p.Name, p.Family, p.Protocol)
		fmt.Fprintf(out, "  internalTrafficPolicy %s, externalTrafficPolicy %s", s.InternalPolicy, s.ExternalPolicy)
		if s.Affinity > 0 {
			fmt.Fprintf(out, ", a client keeps its endpoint for %d s", s.Affinity)
		}
		fmt.Fprintln(out)
		// Ports of ranges have none.
		if s.Limits != "" && !slices.ContainsFunc(p.Frontends, func(f desired.FrontendView) bool { return strings.Contains(f.Address, "-") }) {
			fmt.Fprintf(out, "  Limits: %s\n", s.Limits)
		}
		for _, f := range p.Frontends {
			owner := ""
			if f.Owner != "" {
				owner = ", but it belongs to Service " + f.Owner
			}
			if f.Sources != "" {
				owner += ", for clients in " + f.Sources + " only"
			}
			if f.Passes {
				owner += ", passed on by the node's routes for clients from outside"
			}
			fmt.Fprintf(out, "  Frontend %s (%s)%s\n", strings.Join(f.Addresses(), ", "), f.Kind, owner)
		}
		for _, pool := range p.Pools {
			fmt.Fprintf(out, "  Pool %s: uses %d of %s, the %s; chosen by %s\n", pool.Scope, pool.Backends, plain.Number(p.Total, "endpoint"), strings.TrimSuffix(pool.Takes, ","), pool.Algorithm)
			if pool.Backends == 0 {
				fmt.Fprintf(out, "    New connections: %s\n", pool.IfEmpty)
			}
		}
		fmt.Fprintf(out, "  Traffic: %s now, %d in total", plain.Number(s.Traffic[i].Connections, "connection"), s.Traffic[i].Total.Connections)
		if s.Traffic[i].Total.Accounting {
			fmt.Fprintf(out, " with %s and %s", plain.Number(int(s.Traffic[i].Total.Packets), "packet"), flows.BinarySize(s.Traffic[i].Total.Bytes))
		}
		if n := s.Traffic[i].Rejected; n != nil {
			fmt.Fprintf(out, "; %s refused or dropped", plain.Number(int(*n), "packet"))
		}
		if r := s.Traffic[i].RejectedRate; r != nil {
			fmt.Fprintf(out, ", %.1f a second", *r)
		}
		fmt.Fprintln(out)
		if why := whyEmpty(p); why != "" {
			fmt.Fprintf(out, "  %s.\n", why)
		}
		if len(p.Endpoints) == 0 {
			continue
		}
		t := tabwriter.NewWriter(out, 0, 0, 2, ' ', 0)
		fmt.Fprintln(t, "  ENDPOINT\tNODE\tZONE\tREADY\tWEIGHT\tCONNECTIONS\tBYTES\tUSE")
		for _, e := range p.Endpoints {
			count := s.Traffic[i].Endpoints[e.Address]
			fmt.Fprintf(t, "  %s\t%s\t%s\t%t\t%d\t%d\t%s\t%s\n", e.Address, e.Node, cmp.Or(e.Zone, "-"), e.Ready, e.Weight, count.Connections, known(count.Bytes, flows.BinarySize), e.Uses())
		}
		if err := t.Flush(); err != nil {
			return err
		}
	}
	return nil
}
