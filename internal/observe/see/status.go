// SPDX-License-Identifier: Apache-2.0

package see

import (
	"context"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"sync"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/collect"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/internal/firewall"
	"github.com/slipstream-proxy/slipstream/internal/observe/events"
	"github.com/slipstream-proxy/slipstream/internal/plain"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/internal/socket"
	"github.com/slipstream-proxy/slipstream/internal/source"
	"golang.org/x/sys/unix"
)

// Status is the state of a proxy at one time.
type Status struct {
	At      time.Time       `json:"at"`
	Version string          `json:"version"`
	Mode    string          `json:"mode"`
	Node    string          `json:"node"`
	Kernel  string          `json:"kernel"`            // its release
	Missing []string        `json:"missing,omitempty"` // features that the mode needs and the kernel lacks
	Source  string          `json:"source"`
	Started time.Time       `json:"started"`
	API     *source.Contact `json:"api,omitempty"` // nil without an API server

	Synced  bool       `json:"synced"`            // the source has delivered its initial content
	Updated *time.Time `json:"updated,omitempty"` // when the kernel last had all changes
	Waiting *time.Time `json:"waiting,omitempty"` // since when a change waits

	desired.Counts
	Last    *proxy.Programming  `json:"last,omitempty"`
	Changes Changes             `json:"changes"`
	Verify  *proxy.Verification `json:"verify,omitempty"`
	// VerifyPeriod is 0 if the content is not verified.
	VerifyPeriod time.Duration `json:"verifyPeriodNanoseconds,omitempty"`

	FastPath   *fastpath.Stats `json:"fastPath,omitempty"`
	NoFastPath string          `json:"noFastPath,omitempty"` // why there is none
	Skips      []firewall.Skip `json:"fastPathSkips,omitempty"`
	Sockets    *socket.Stats   `json:"sockets,omitempty"`
	Tables     []TableUsage    `json:"tables"`

	Problems []Problem `json:"problems"` // that exist now; none if all is well
	Warnings []Warning `json:"warnings"` // of the past, the newest first
}

// Problem is something that is wrong now.
type Problem struct {
	Reason string `json:"reason"` // one of Reasons
	What   string `json:"what"`
	Remedy string `json:"remedy"`
}

// Changes summarizes the changes of the last minutes.
type Changes struct {
	Minutes float64       `json:"minutes"`
	Number  int           `json:"number"`
	P50     time.Duration `json:"p50Nanoseconds"`
	P99     time.Duration `json:"p99Nanoseconds"`
	// Lag is proxy.Programming's, of those changes of which it is known.
	LagKnown int           `json:"lagKnown"`
	LagP50   time.Duration `json:"lagP50Nanoseconds,omitempty"`
	LagP99   time.Duration `json:"lagP99Nanoseconds,omitempty"`
}

const (
	recent = 5 * time.Minute
	// late is how long a change may wait before that is a problem.
	late = 10 * time.Second
	// loopPatience is how long the proxy's loop may take to answer: it programs one change.
	loopPatience = 10 * time.Second
)

// Reasons are those of problems, for the metric slipstream_problem.
var Reasons = []string{
	"APIServer", "FeatureMissing", "Hangs", "NotSynced", "Refused", "Waiting", "Late", "CannotVerify", "TableFull", "Sockets", "FastPath",
}

// Health is what the operator of many nodes wants to know of each.
type Health struct {
	Node      string     `json:"node"`
	Problems  []string   `json:"problems"` // those of Reasons that apply
	Unserved  int        `json:"servicesWithoutEndpoints"`
	Conntrack TableUsage `json:"-"`
}

// Health waits less than a scrape does.
func (v *View) Health(ctx context.Context) (h Health, err error) {
	s, err := v.status(ctx, loopPatience/4)
	if err != nil {
		return h, err
	}
	h = Health{Node: v.Node, Problems: []string{}, Unserved: s.Unserved}
	h.Problems = append(h.Problems, collect.From(s.Problems, func(p Problem) string { return p.Reason })...)
	for _, t := range s.Tables {
		if t.Name == conntrackTable {
			h.Conntrack = t
		}
	}
	return h, nil
}

// Status returns the current status. If the proxy's loop does not answer, that is a problem in it.
func (v *View) Status(ctx context.Context) (*Status, error) {
	s, err := v.status(ctx, loopPatience)
	if err == nil && s.FastPath != nil {
		s.Skips = v.skips.get(ctx)
	}
	return s, err
}

func (v *View) status(ctx context.Context, patience time.Duration) (*Status, error) {
	var kernel unix.Utsname
	_ = unix.Uname(&kernel) // it fails for a bad pointer only
	s := &Status{
		At: time.Now(), Version: v.Version, Mode: v.Mode, Node: v.Node, Kernel: unix.ByteSliceToString(kernel.Release[:]), Missing: v.Missing, Source: v.Source, Started: v.Started,
		NoFastPath: v.NoFastPath,
		Tables:     v.tableUsage(), Problems: []Problem{}, Warnings: v.Warnings.Last(),
	}
	problem := func(reason, remedy, format string, args ...any) {
		s.Problems = append(s.Problems, Problem{reason, fmt.Sprintf(format, args...), remedy})
	}
	if v.Contact != nil {
		c := v.Contact()
		s.API = &c
		if what := failing(c, s.At); what != "" {
			problem("APIServer", "check the API server, the network to it, and the proxy's credentials; until it answers, the kernel keeps what it has, and changes in the cluster have no effect here", "%s", what)
		}
	}
	for _, m := range v.Missing {
		problem("FeatureMissing", "use a kernel that has it, or another proxy mode", "The kernel lacks what mode %s needs: %s", v.Mode, m)
	}
	failed := ""
	inner, cancel := context.WithTimeout(ctx, patience)
	defer cancel()
	err := v.Proxy.Inspect(inner, func(i *proxy.Inspection) {
		s.Counts, s.Synced, s.Verify, s.VerifyPeriod, failed = i.State.Counts(), i.Synced, i.Verified, i.VerifyPeriod, i.Failed
		if !i.Updated.IsZero() {
			s.Updated = &i.Updated
		}
		if !i.Waiting.IsZero() {
			s.Waiting = &i.Waiting
		}
		if n := len(i.Programmed); n > 0 {
			last := i.Programmed[n-1]
			s.Last = &last
		}
		s.Changes = summarize(i.Programmed, s.At, v.Started)
	})
	switch {
	case ctx.Err() != nil:
		return nil, ctx.Err()
	case err != nil:
		problem("Hangs", "see the log; if it stays so, restart the proxy", "The proxy's loop has not answered for %s: it waits for the kernel or for a command", patience)
	case !s.Synced:
		problem("NotSynced", "check the connection to "+v.Source+", and the log", "The source has not delivered its objects yet, so nothing is programmed by this run")
	case failed != "":
		problem("Refused", "see the log", "The kernel does not take the last change: %s", failed)
	case s.Waiting != nil && s.At.Sub(*s.Waiting) > late:
		problem("Waiting", "see the log", "A change has been waiting for %s", s.At.Sub(*s.Waiting).Round(time.Second))
	}
	if s.Changes.LagP50 > late {
		problem("Late", "if the changes themselves are quick (see Changes), they arrive late: look at kube-controller-manager and the API server; or the clocks of the nodes differ",
			"Half of the changes of endpoints had effect %s or later after they happened in the cluster", s.Changes.LagP50.Round(time.Second))
	}
	if s.Verify != nil && s.Verify.Failed != "" {
		problem("CannotVerify", "see the log", "The kernel's content could not be verified: %s", s.Verify.Failed)
	}
	for _, t := range s.Tables {
		const fullPercent = 90 // the fill of a table from which it is a problem
		if t.Limit > 0 && t.Entries*100 >= t.Limit*fullPercent {
			remedies := map[bool]string{true: "raise net.netfilter.nf_conntrack_max (conntrack.maxPerCore)", false: "lower the timeouts, or find the clients that fill it"}
			problem("TableFull", remedies[t.Name == conntrackTable], "The table of %s is nearly full: %d of %d", t.Name, t.Entries, t.Limit)
		}
	}
	if v.Sockets != nil {
		stats, err := v.Sockets.Stats()
		if err != nil || !stats.Attached {
			problem("Sockets", "see the log", "The programs of sockets are not attached, so connections are translated (%v)", err)
		}
		s.Sockets = &stats
	}
	if v.FastPath != nil {
		stats, err := v.FastPath()
		if err != nil {
			problem("FastPath", "see the log", "The fast path cannot be read: %v", err)
		} else {
			s.FastPath = &stats
		}
	}
	return s, nil
}

// failing says for how long requests to the API server have been failing, if that is a problem.
func failing(c source.Contact, now time.Time) string {
	if c.Failing.IsZero() || now.Sub(c.Failing) <= late {
		return ""
	}
	return fmt.Sprintf("Requests to the API server have been failing for %s: %s", now.Sub(c.Failing).Round(time.Second), c.Cause)
}

// summarize summarizes the changes since recent, or since the start.
func summarize(all []proxy.Programming, now, started time.Time) Changes {
	since := now.Add(-recent)
	if started.After(since) {
		since = started
	}
	if len(all) > 0 && len(all) >= 1000 && all[0].At.After(since) {
		since = all[0].At // earlier ones are forgotten
	}
	var took, lag []time.Duration
	for _, p := range all {
		if !p.At.Before(since) && p.Kind == "change" {
			took = append(took, p.Took)
			if p.Lag > 0 {
				lag = append(lag, p.Lag)
			}
		}
	}
	c := Changes{Minutes: now.Sub(since).Minutes(), Number: len(took), LagKnown: len(lag)}
	c.P50, c.P99 = percentiles(took)
	c.LagP50, c.LagP99 = percentiles(lag)
	return c
}

// Lag is the time that changes lately took to have effect, the 99th percentile; 0 if it is unknown.
func Lag(all []proxy.Programming) time.Duration {
	return summarize(all, time.Now(), time.Time{}).LagP99
}

func percentiles(all []time.Duration) (p50, p99 time.Duration) {
	slices.Sort(all)
	if n := len(all); n > 0 {
		p50, p99 = all[(n-1)/2], all[(n-1)*99/100]
	}
	return p50, p99
}

const conntrackTable = "conntrack"

func (v *View) tableUsage() []TableUsage {
	var all []TableUsage
	if limit, err := number("net/netfilter/nf_conntrack_max"); err == nil {
		entries, _ := number("net/netfilter/nf_conntrack_count")
		all = append(all, TableUsage{conntrackTable, entries, limit})
	}
	if v.Affinity != nil {
		all = append(all, v.Affinity()...)
	}
	return all
}

// number reads a kernel parameter.
func number(name string) (int, error) {
	text, err := os.ReadFile("/proc/sys/" + name)
	if err != nil {
		return 0, err
	}
	return strconv.Atoi(strings.TrimSpace(string(text)))
}

// Fact is a line of a status for people.
type Fact struct {
	Name string `json:"name"`
	Text string `json:"text"`
}

// Facts are the status for people, without the problems and the warnings.
func (s *Status) Facts() (all []Fact) {
	row := func(name, format string, args ...any) { all = append(all, Fact{name, fmt.Sprintf(format, args...)}) }
	ago := func(at time.Time) string { return s.At.Sub(at).Round(time.Millisecond).String() + " ago" }
	health := "well"
	if n := len(s.Problems); n > 0 {
		health = plain.Number(n, "problem") + ", see below"
	}
	row("Health", "%s", health)
	row("Version", "%s", s.Version)
	row("Node", "%s", s.Node)
	row("Mode", "%s, running for %s", s.Mode, s.At.Sub(s.Started).Round(time.Second))
	has := "has all that the mode needs"
	if len(s.Missing) > 0 {
		has = "lacks " + strings.Join(s.Missing, "; ")
	}
	row("Kernel", "%s, %s", s.Kernel, has)
	contact := ""
	if c := s.API; c != nil {
		if contact = ", which has not answered yet"; !c.Heard.IsZero() {
			contact = ", last heard " + ago(c.Heard)
		}
		if !c.Failing.IsZero() {
			contact += fmt.Sprintf("; requests have been failing since %s: %s", c.Failing.Format(time.DateTime), c.Cause)
		}
	}
	row("Source", "%s%s", s.Source, contact)
	row("Programmed", "%s, %s, %s, %s", plain.Number(s.Services, "Service"), plain.Number(s.Frontends, "frontend"), plain.Number(s.Pools, "pool"), plain.Number(s.Endpoints, "endpoint"))
	if s.Unserved > 0 {
		row("Unserved", "%s without endpoints to use ('slipstream services --unserved')", plain.Number(s.Unserved, "Service"))
	}
	for _, w := range s.Warnings {
		if w.Reason == events.Damaged {
			row("Repaired", "%s, after a modification by another program", ago(w.At))
			break
		}
	}
	if l := s.Last; l != nil {
		row("Last change", "%s, took %s: %s of %s and %s, %s", ago(l.At), rounded(l.Took), l.Kind, plain.Number(l.Frontends, "frontend"), plain.Number(l.Pools, "pool"), plain.Number(l.Elements, "element"))
	}
	if c := s.Changes; c.Number > 0 {
		row("Changes", "%d in %.1f minutes, p50 %s, p99 %s", c.Number, c.Minutes, rounded(c.P50), rounded(c.P99))
	}
	if c := s.Changes; c.LagKnown > 0 {
		row("Lag", "p50 %s, p99 %s from the cluster to the kernel, of %s of endpoints", rounded(c.LagP50), rounded(c.LagP99), plain.Number(c.LagKnown, "change"))
	}
	if s.Waiting != nil {
		row("Waiting", "a change since %s", ago(*s.Waiting))
	}
	switch v := s.Verify; {
	case v != nil:
		row("Verified", "%s: %s %s", ago(v.At), plain.Number(v.Differences, "difference"), v.Failed)
	case s.VerifyPeriod > 0:
		row("Verified", "not yet; every %s", s.VerifyPeriod)
	default:
		row("Verified", "never, as verifyPeriod is 0; foreign changes are looked for all the time")
	}
	if f := s.FastPath; f != nil {
		row("Fast path", "%s, %s offloaded so far, %s, hardware %t, %s", f.Engine, plain.Number(int(f.Offloaded), "connection"), plain.Number(f.Interfaces, "interface"), f.Hardware, plain.Number(int(f.Errors), "error"))
		if len(f.LeftOut) > 0 {
			row("Not on it", "connections over %s", strings.Join(f.LeftOut, ", "))
		}
		all := f.Bypass == fastpath.BypassAll
		for _, line := range firewall.SkipLines(s.Skips, all) {
			row(map[bool]string{true: "It skips", false: "Kept off it"}[all], "%s", line)
		}
	} else {
		row("Fast path", "none: %s", strings.TrimPrefix(s.NoFastPath, "fast path: "))
	}
	if k := s.Sockets; k != nil {
		row("Sockets", "%s straight to endpoints so far, of %s, at cgroup %s, attached %t", plain.Number(int(k.Connections), "connection"), plain.Number(k.Namespaces, "network namespace"), k.CGroup, k.Attached)
	}
	for _, f := range s.Tables {
		row("Table", "%s: %d of %d", f.Name, f.Entries, f.Limit)
	}
	return all
}

func rounded(d time.Duration) time.Duration { return d.Round(10 * time.Microsecond) }

// skips remembers what it has found for a while, as reading all rules takes longer than all else.
type skips struct {
	mu  sync.Mutex
	at  time.Time
	all []firewall.Skip
}

func (s *skips) get(ctx context.Context) []firewall.Skip {
	s.mu.Lock()
	defer s.mu.Unlock()
	const skipsLast = 30 * time.Second
	if time.Since(s.at) > skipsLast {
		all := firewall.Skips(ctx)
		if ctx.Err() != nil {
			return all // not complete
		}
		s.all, s.at = all, time.Now()
	}
	return s.all
}
