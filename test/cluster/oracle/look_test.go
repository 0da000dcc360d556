// SPDX-License-Identifier: Apache-2.0

package oracle

import (
	"bytes"
	"context"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"math"
	"net/http"
	"net/netip"
	"slices"
	"strings"
	"sync"
	"sync/atomic"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// Observer makes connections on a stage: for each client and each address of a Service it finds the servers that
// answer, the source address that they see, or the error.
type Observer struct {
	stage *Stage
	// fresh counts the source addresses that were used, by vantage.
	fresh map[string]*atomic.Int64
}

// newObserver is an observer of a stage.
func newObserver(s *Stage) *Observer {
	o := &Observer{stage: s, fresh: map[string]*atomic.Int64{}}
	for name := range s.Vantages {
		o.fresh[name] = &atomic.Int64{}
	}
	return o
}

// Pace is how hard to look.
type Pace struct {
	Timeout time.Duration // of a connection
	AtOnce  int           // connections, at most
	Effort  int           // times the usual number of connections

	// OneByOne makes those probes of a Service that look at session affinity one after the
	// other: in iptables mode, the kernel remembers only the last 100 clients of an endpoint.
	OneByOne bool
}

var (
	// Fast is for the first look. A timeout may be due to a slow machine.
	Fast = Pace{Timeout: 500 * time.Millisecond, AtOnce: 128, Effort: 1}
	// Careful is for a second look at a difference.
	Careful = Pace{Timeout: time.Second, AtOnce: 128, Effort: 2, OneByOne: true}
)

// Look makes all probes and returns the result of each.
func (o *Observer) Look(ctx context.Context, probes []Probe, pace Pace) []Outcome {
	l := look{Observer: o, ctx: ctx, pace: pace, slots: make(chan struct{}, pace.AtOnce)}
	return sideBySide(probes, l.probe)
}

func sideBySide[T, R any](all []T, do func(T) R) []R {
	out := make([]R, len(all))
	var wg sync.WaitGroup
	for i, one := range all {
		wg.Go(func() { out[i] = do(one) })
	}
	wg.Wait()
	return out
}

type look struct {
	*Observer
	ctx   context.Context
	pace  Pace
	slots chan struct{}
	turns sync.Map // by Service: a *sync.Mutex
}

func (l *look) probe(p Probe) Outcome {
	if l.pace.OneByOne && (p.Kind == Stick || p.Kind == Share) {
		turn, _ := l.turns.LoadOrStore(p.Namespace+"/"+p.Service, &sync.Mutex{})
		turn.(*sync.Mutex).Lock()
		defer turn.(*sync.Mutex).Unlock()
	}
	switch p.Kind {
	case Stick:
		return l.stick(p)
	case Share:
		return l.share(p)
	case Health:
		return l.health(p)
	}
	t := tally{}
	for _, a := range l.most(p, make([]int, enough(p.Backends)*l.pace.Effort)) {
		t[a] = true
	}
	return t.outcome("")
}

// all makes connections from these source addresses of the vantage side by side.
func (l *look) all(p Probe, sources []int) []attempt {
	v := l.stage.Vantages[p.From]
	return sideBySide(sources, func(source int) attempt {
		l.slots <- struct{}{}
		defer func() { <-l.slots }()
		if err := l.ctx.Err(); err != nil {
			return attempt{failure: err.Error()}
		}
		reply, err := v.Connect(p.Protocol, p.To, source, lab.Timeout(l.pace.Timeout))
		if err != nil {
			return attempt{failure: lab.Outcome(err)}
		}
		return attempt{
			server: fmt.Sprintf("%s:%d", reply.Server, reply.Local.Port()),
			as:     l.stage.Owner(reply.Seen.Addr()),
		}
	})
}

// maxMissed bounds the probability that some backend of a probe is not met.
const maxMissed = 1e-6

// enough returns how many connections reach each of k equally likely backends, except with
// probability maxMissed: each is missed with (1-1/k)^n, and there are k of them.
func enough(k int) int {
	if k < 2 {
		return 2
	}
	return int(math.Ceil(math.Log(maxMissed/float64(k)) / math.Log(1-1/float64(k))))
}

// How many connections are made first: where all of them fail in the same way, the others
// would too. Of a mixed probe it takes more to say so.
const (
	first      = 8
	firstMixed = 24
)

// most makes connections from these sources, but only the first ones if these all fail in the
// same way.
func (l *look) most(p Probe, sources []int) []attempt {
	n := min(first, len(sources))
	if p.Mixed {
		n = min(firstMixed, len(sources))
	}
	got := l.all(p, sources[:n])
	same := !slices.ContainsFunc(got, func(a attempt) bool { return a != got[0] })
	if same && got[0].failure != "" {
		return got
	}
	return append(got, l.all(p, sources[n:])...)
}

// sources returns n source addresses that no probe has used; the same one each time, if there
// is only one.
func (l *look) sources(vantage string, n int) []int {
	out := make([]int, n)
	if l.stage.Vantages[vantage].Many() {
		last := int(l.fresh[vantage].Add(int64(n)))
		for i := range out {
			out[i] = last - i
		}
	}
	return out
}

// Numbers of connections: from one source to see whether it sticks, and from how many
// sources to see whether addresses share.
const (
	sticking = 3
	sharing  = 24
)

// OneOfThem stands for the server that the only source of a vantage got, which says
// nothing where there are several.
const OneOfThem = "one of the servers"

// stick connects from many sources, so that all backends are met, and from each of them
// again.
func (l *look) stick(p Probe) Outcome {
	many, n := l.stage.Vantages[p.From].Many(), 1
	if many {
		n = enough(p.Backends) * l.pace.Effort
	}
	t, note := tally{}, "each source stays with its server"
	sources := l.sources(p.From, n)
	answered := false
	see := func(a attempt) {
		oneOf := !many && p.Backends > 1 && !strings.HasPrefix(a.server, Elsewhere)
		answered = answered || a.failure == "" || oneOf && a.failure == Timeout // that server's answers may go astray
		if oneOf && (a.failure == "" || a.failure == Timeout) {
			a = attempt{failure: OneOfThem}
		}
		t[a] = true
	}
	got := l.most(p, sources)
	for _, a := range got {
		see(a)
	}
	for range sticking {
		for i, a := range l.all(p, sources[:len(got)]) {
			if a != got[i] {
				note = "a source does not stay with its server"
				see(a)
			}
		}
	}
	if !answered {
		note = ""
	}
	return t.outcome(note)
}

const (
	SameServer = "the same server at both addresses"
	NotBoth    = "not both addresses answer"
)

func (l *look) share(p Probe) Outcome {
	sources := l.sources(p.From, sharing*l.pace.Effort)
	then := p
	then.To = p.Then
	before, after := l.all(p, sources), l.all(then, sources)
	for i := range before {
		if before[i].failure != "" || after[i].failure != "" {
			return Outcome{Note: NotBoth}
		}
		if before[i].server != after[i].server {
			return Outcome{Note: "another server at the other address"}
		}
	}
	return Outcome{Note: SameServer}
}

func (l *look) health(p Probe) Outcome {
	l.slots <- struct{}{}
	defer func() { <-l.slots }()
	failed := func(failure string) Outcome { return Outcome{Failures: []string{failure}} }
	// There are few of these, and the proxy itself answers them, which takes longer.
	ctx, cancel := context.WithTimeout(l.ctx, max(l.pace.Timeout, Careful.Timeout))
	defer cancel()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://"+p.To.String()+"/", nil)
	if err != nil {
		return failed(err.Error())
	}
	response, err := l.stage.Vantages[p.From].Machine.HTTPClient().Do(request)
	if ctx.Err() != nil {
		return failed(Timeout)
	} else if err != nil {
		return failed(lab.Outcome(err))
	}
	defer response.Body.Close()
	body, err := io.ReadAll(response.Body)
	if err != nil {
		return failed(lab.Outcome(err))
	}
	var compact bytes.Buffer
	if err := json.Compact(&compact, body); err != nil {
		compact = *bytes.NewBuffer(body)
	}
	h := response.Header
	return Outcome{Note: fmt.Sprintf("%d, %s, weight %q, %s", response.StatusCode, h.Get("Content-Type"), h.Get("X-Load-Balancing-Endpoint-Weight"), compact.String())}
}

// Kind is a way to look.
type Kind int

const (
	// Reach makes enough connections to meet every backend.
	Reach Kind = iota
	// Stick connects repeatedly, to see whether connections stay with one server.
	Stick
	// Share connects to one address of a Service and then to another, to see whether
	// the server stays the same.
	Share
	// Health asks a health check node port over HTTP.
	Health
)

// Probe is one thing to look at.
type Probe struct {
	Kind     Kind
	From     string // vantage
	Protocol lab.Protocol
	To       netip.AddrPort
	Then     netip.AddrPort // for Share: the second address
	What     string         // what To is, for people

	// Service is the Service's namespace and name; empty where To belongs to none.
	Namespace, Service string

	Backends int  // at most
	Mixed    bool // some connections may fail where others do not
}

// String describes the probe in one line.
func (p Probe) String() string {
	s := fmt.Sprintf("%s -> %v %v (%s)", p.From, p.Protocol, p.To, p.What)
	switch p.Kind {
	case Stick:
		s += ", again and again"
	case Share:
		s += fmt.Sprintf(", then %v", p.Then)
	}
	return s
}

// Outcome is the result of a probe.
type Outcome struct {
	// Answers are the servers that answered, as "name:port", by the owner of the source
	// address that they saw.
	Answers map[string][]string
	// Failures are the errors of connections without an answer, such as "refused".
	Failures []string
	// Note is another observation: whether connections stay with one server, or the answer of a
	// health check.
	Note string
}

// Failures by name.
const (
	Timeout = "timeout" // no answer
	Refused = "refused" // a reset or an ICMP error
)

// String is the outcome in one line; equal outcomes have the same.
func (o Outcome) String() string {
	var parts []string
	for _, as := range slices.Sorted(maps.Keys(o.Answers)) {
		parts = append(parts, fmt.Sprintf("%s seen as %s", strings.Join(o.Answers[as], " "), as))
	}
	parts = append(parts, o.Failures...)
	if o.Note != "" {
		parts = append(parts, o.Note)
	}
	if len(parts) == 0 {
		return "nothing"
	}
	return strings.Join(parts, "; ")
}

// Equal says whether both are the same.
func (o Outcome) Equal(p Outcome) bool { return o.String() == p.String() }

// attempt is the result of one connection: the server and the owner of the source address
// that it saw, or the failure.
type attempt struct {
	server, as string
	failure    string
}

type tally map[attempt]bool

func (t tally) outcome(note string) Outcome {
	o := Outcome{Answers: map[string][]string{}, Note: note}
	for a := range t {
		if a.failure != "" {
			o.Failures = append(o.Failures, a.failure)
		} else {
			o.Answers[a.as] = append(o.Answers[a.as], a.server)
		}
	}
	slices.Sort(o.Failures)
	for _, servers := range o.Answers {
		slices.Sort(servers)
	}
	return o
}
