// SPDX-License-Identifier: Apache-2.0

package scenario

import (
	"context"
	"fmt"
	"io"
	"maps"
	"net/netip"
	"regexp"
	"slices"
	"strings"
	"sync"
	"text/tabwriter"
	"time"

	"github.com/fatih/color"
	"github.com/google/nftables"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// width is the number of columns that the output takes at most.
const width = 80

// The colours. Package color leaves them out where NO_COLOR is set and where
// standard output is not a terminal.
var (
	bold  = color.New(color.Bold)
	faint = color.New(color.Faint)
	title = color.New(color.FgCyan, color.Bold)
	good  = color.New(color.FgGreen, color.Bold)
	bad   = color.New(color.FgRed, color.Bold)
)

// report prints the demo's output and keeps the results for the summary.
type report struct {
	ctx    context.Context // once it is done, nothing is printed or claimed any more
	out    io.Writer
	steps  []*step
	held   int
	broken []string // claims that did not hold

	current *step // nil in the summary
}

// step is the result of one part of the demo.
type step struct {
	name       string
	failed     bool
	programmed []time.Duration // to program each node's kernel, as slipstream logs it
	seen       []time.Duration // from the change of a file until a client saw the effect
}

// step begins a part of the demo.
func (r *report) step(name string) *step {
	r.current = &step{name: name}
	r.steps = append(r.steps, r.current)
	r.heading(fmt.Sprintf("%d  %s", len(r.steps), name))
	return r.current
}

func (r *report) heading(text string) {
	r.line("")
	text = "── " + text + " "
	r.line(title.Sprint(text + strings.Repeat("─", max(0, width-len([]rune(text))))))
}

// line prints one line.
func (r *report) line(text string) {
	if r.ctx.Err() == nil {
		fmt.Fprintln(r.out, strings.TrimRight(text, " "))
	}
}

// say prints text, indented.
func (r *report) say(format string, args ...any) {
	for l := range strings.Lines(fmt.Sprintf(format, args...)) {
		r.line("  " + strings.TrimSuffix(l, "\n"))
	}
}

// command prints a command with the same effect as the demo's next step.
func (r *report) command(format string, args ...any) {
	r.line("  " + faint.Sprint("$ ") + bold.Sprintf(format, args...))
}

// claim prints a claim that the demo has checked, and whether it holds.
func (r *report) claim(holds bool, format string, args ...any) {
	if r.ctx.Err() != nil {
		return // an interrupted step proves nothing
	}
	text := fmt.Sprintf(format, args...)
	if holds {
		r.held++
		r.line("  " + good.Sprint("✓ ") + text)
		return
	}
	if r.current != nil {
		r.current.failed = true
	}
	r.broken = append(r.broken, text)
	r.line("  " + bad.Sprint("✗ DOES NOT HOLD: ") + text)
}

// table prints rows of cells in columns, the first row as a heading.
func (r *report) table(rows [][]string) {
	var b strings.Builder
	w := tabwriter.NewWriter(&b, 0, 0, 3, ' ', 0)
	for _, row := range rows {
		fmt.Fprintln(w, strings.Join(row, "\t"))
	}
	_ = w.Flush() // a strings.Builder does not fail
	// Colours are added last: a tabwriter counts escape sequences.
	colours := strings.NewReplacer("✓", good.Sprint("✓"), "✗", bad.Sprint("✗"))
	heading, rest, _ := strings.Cut(b.String(), "\n")
	r.line("  " + faint.Sprint(strings.TrimRight(heading, " ")))
	r.say("%s", colours.Replace(rest))
}

// summary adds up.
func (d *demo) summary() error {
	var made, refused, failed, echoed, lost int64
	why := map[string]int64{}
	for _, f := range slices.Concat(d.kinds, d.web, d.orders) {
		s := f.load.Stats()
		made += s.OK + s.Failed
		for kind, n := range s.Failures {
			if kind == lab.Outcome(lab.ErrRefused) && slices.Contains(d.orders, f) {
				refused += n // the step noEndpoints checks when
				continue
			}
			failed += n
			why[kind] += n
		}
	}
	kinds := ""
	for _, kind := range slices.Sorted(maps.Keys(why)) {
		kinds += fmt.Sprintf(" (%d %s)", why[kind], kind)
	}
	ended := 0
	for _, s := range d.streams {
		stats := s.Stats()
		echoed += stats.Received
		lost += stats.Failed
		if stats.Ended {
			ended++
		}
	}
	warnings := 0
	for _, p := range d.proxies {
		warnings += len(warningsIn(p.Log()))
	}
	d.current = nil
	d.heading("summary")
	d.claim(failed == 0 && refused > 0, "%d connections, TCP and UDP, IPv4 and IPv6: %d failed%s", made, failed, kinds)
	d.say("  (%d were refused, as they should be, while orders had no endpoints)", refused)
	d.claim(ended == 0 && lost == 0 && echoed > 0, "%d long-lived connections: %d broken; %d messages, %d lost",
		len(d.streams), ended, echoed, lost)
	d.claim(warnings == 0, "%d warnings and errors in slipstream's log", warnings)
	d.line("")
	rows := [][]string{{"", "kernel programmed in", "clients saw it after"}}
	for _, s := range d.steps {
		mark := "✓ "
		if s.failed {
			mark = "✗ "
		}
		rows = append(rows, []string{mark + s.name, span(s.programmed), span(s.seen)})
	}
	d.table(rows)
	d.say("\nSlipstream reads a directory once nothing in it has changed for 100 ms.\n\n")
	all := d.held + len(d.broken)
	if len(d.broken) == 0 {
		d.line("  " + good.Sprintf("All %d claims hold.", all))
		return nil
	}
	d.line("  " + bad.Sprintf("%d of %d claims do not hold:", len(d.broken), all))
	for _, text := range d.broken {
		d.line("  " + bad.Sprint("✗ ") + text)
	}
	return nil
}

// span writes the shortest and the longest of some times.
func span(all []time.Duration) string {
	if len(all) == 0 {
		return "-"
	}
	low, high := short(slices.Min(all)), short(slices.Max(all))
	if low == high {
		return low
	}
	return low + " to " + high
}

// short writes a duration with three digits.
func short(d time.Duration) string {
	unit := time.Duration(1)
	for d/unit >= 1000 {
		unit *= 10
	}
	return d.Round(unit).String()
}

// because appends an error to a text, if there is one.
func because(err error) string {
	if err == nil {
		return ""
	}
	return fmt.Sprintf(" (%v)", err)
}

// demoProxy is slipstream on one node. It may be started again after its end.
type demoProxy struct {
	*lab.Program
	node *lab.Node
}

// updated waits for the first update of a node's kernel since a time.
func (d *demo) updated(p *demoProxy, t time.Time) (u update, err error) {
	if !d.await(func() bool {
		all := updatesIn(p.Log())
		i := slices.IndexFunc(all, func(u update) bool { return !u.done.Before(t) })
		if i >= 0 {
			u = all[i]
		}
		return i >= 0
	}) {
		return u, fmt.Errorf("slipstream on %s has not programmed the kernel within %v", p.node.Name(), demoPatience)
	}
	return u, nil
}

// updates is how often slipstream has programmed the kernels of all nodes.
func (d *demo) updates() (n int) {
	for _, p := range d.proxies {
		n += len(updatesIn(p.Log()))
	}
	return n
}

// update is one update of the kernel, as slipstream logged it.
type update struct {
	took time.Duration
	done time.Time
}

var programmedLine = regexp.MustCompile(`(?m)^I(\S+ \S+) .*"Programmed the kernel" .*took="([^"]+)"`)

// updatesIn returns all updates in a log.
func updatesIn(log string) (all []update) {
	year := time.Now().Format("2006") // klog leaves it out
	for _, m := range programmedLine.FindAllStringSubmatch(log, -1) {
		done, err1 := time.ParseInLocation("20060102 15:04:05", year+m[1], time.Local)
		took, err2 := time.ParseDuration(m[2])
		if err1 == nil && err2 == nil {
			all = append(all, update{took, done})
		}
	}
	return all
}

// warningsIn returns the lines of a log that are more than information: klog's lines begin with
// their severity, and a line without klog's header is a process's last one.
func warningsIn(log string) []string {
	return slices.DeleteFunc(strings.Split(log, "\n"), func(line string) bool { return line == "" || line[0] == 'I' })
}

// tables returns the nftables tables of a node, as "ip slipstream". It lists them with
// a library that slipstream does not use, as an independent check.
func tables(n *lab.Node) (names []string, err error) {
	families := map[nftables.TableFamily]string{nftables.TableFamilyIPv4: "ip", nftables.TableFamilyIPv6: "ip6", nftables.TableFamilyINet: "inet"}
	err = n.Do(func() error {
		c, err := nftables.New()
		if err != nil {
			return err
		}
		all, err := c.ListTables()
		for _, t := range all {
			names = append(names, families[t.Family]+" "+t.Name)
		}
		return err
	})
	return names, err
}

// Timeouts of connections and of messages on them. TCP repeats lost packets within
// these times: a slow machine is not taken for a failure.
const (
	connectTimeout = 5 * time.Second
	echoTimeout    = 10 * time.Second
)

// flow makes one short connection after the other from one client to one Service, and
// remembers each.
type flow struct {
	load *lab.Load

	mu          sync.Mutex
	connections []connection // by their end
}

// connection is one connection.
type connection struct {
	begin, end time.Time
	server     string // that answered; "" if none did
	err        error
}

// flow starts a flow that makes a connection every pace, count in all if that is not 0.
func (d *demo) flow(from *lab.Machine, p lab.Protocol, to string, pace time.Duration, count int64) (f *flow, err error) {
	f = &flow{}
	f.load, err = from.StartLoad(d.ctx, p, netip.MustParseAddrPort(to), lab.LoadOptions{
		Pace: pace, Count: count, Connect: []lab.ConnectOption{lab.Timeout(connectTimeout)},
		Result: func(begin time.Time, r lab.Reply, err error) {
			f.mu.Lock()
			defer f.mu.Unlock()
			f.connections = append(f.connections, connection{begin, time.Now(), r.Server, err})
		},
	})
	return f, err
}

// since returns the connections that began at t or later.
func (f *flow) since(t time.Time) []connection {
	f.mu.Lock()
	defer f.mu.Unlock()
	i, _ := slices.BinarySearchFunc(f.connections, t, func(c connection, t time.Time) int { return c.begin.Compare(t) })
	return slices.Clone(f.connections[i:])
}

// answers returns those of the connections since t that the server answered.
func (f *flow) answers(t time.Time, server string) []connection {
	return slices.DeleteFunc(f.since(t), func(c connection) bool { return c.err != nil || c.server != server })
}

// flowed waits until each flow has made 5 connections that began after t, so that all
// that began before are over.
func (d *demo) flowed(flows []*flow, t time.Time) {
	d.await(func() bool {
		return !slices.ContainsFunc(flows, func(f *flow) bool { return len(f.since(t)) < 5 })
	})
}

// streamTo opens connections on which messages go back and forth, until each of the
// servers has n. It gives up after many tries.
func (d *demo) streamTo(from *lab.Machine, to netip.AddrPort, servers []string, n int) error {
	has, opened := map[string]int{}, 0
	for range 200 {
		if opened == n*len(servers) {
			return nil
		}
		s, err := from.Stream(lab.TCP, to, 20*time.Millisecond, lab.Timeout(echoTimeout))
		if err != nil {
			return err
		}
		server := s.Stats().Server
		if has[server] == n || !slices.Contains(servers, server) {
			_ = s.Close()
			continue
		}
		has[server]++
		opened++
		d.streams = append(d.streams, s)
	}
	return fmt.Errorf("connections to %v go to %v, want %d to each of %v", to, has, n, servers)
}

// alive waits until each of the streams has echoed three more messages.
func (d *demo) alive(streams []*lab.Stream) bool {
	before := map[*lab.Stream]int64{}
	for _, s := range streams {
		before[s] = s.Stats().Received
	}
	return len(streams) > 0 && d.await(func() bool {
		return !slices.ContainsFunc(streams, func(s *lab.Stream) bool { return s.Stats().Received < before[s]+3 })
	})
}

// webSince counts the connections to web since t that a pod answered that is to answer,
// and all others.
func (d *demo) webSince(t time.Time) (ok, failed int) {
	for _, f := range d.web {
		for _, a := range f.since(t) {
			if a.err != nil || slices.Contains(webLeaving, a.server) {
				failed++
			} else {
				ok++
			}
		}
	}
	return ok, failed
}
