// SPDX-License-Identifier: Apache-2.0

// Package forward measures the gain of the fast path for long connections to a Service, and
// its cost for short ones.
//
// The topology is KEP-4963's: a Service with one backend, a client pod, and one or two
// nodes that forward between them, all of them network namespaces (package lab). Package
// internal/dataplane/nftables programs the Service, and package internal/fastpath offloads
// connections. Each round has a turn of each of the [Settings], and values are compared with
// those of "off" in the same round.
//
// # Cost of a packet
//
// A process on one processor sends small datagrams as fast as it can. All work for a packet is
// done on the sender's processor, so the time for a packet is its processor time. Batches of
// datagrams that cross the node and are dropped as they arrive in the server's pod alternate
// with batches that are dropped as they arrive on the node: the difference is the cost of
// forwarding a packet, the second link included. The difference to batches that are redirected
// to the second link as they arrive on the node is the cost of the path alone.
package forward

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"

	"github.com/prometheus/procfs"
	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/test/lab"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

type measurement struct {
	*network
	*bench.Result
	options  *Options
	settings []Setting // that this kernel can have
}

func run(ctx context.Context, benchmark, turn string, o *Options, measure func(*measurement) error) (_ *bench.Result, err error) {
	over := map[int]string{1: "one node", 2: "two nodes"}[o.Nodes]
	m := &measurement{options: o, settings: o.settings(), Result: &bench.Result{
		Benchmark: benchmark, Options: o, Machine: bench.ThisMachine(),
		Title: fmt.Sprintf("%s: pod to pod by a ClusterIP over %s, %s; %d rounds of turns of %s", benchmark, over, o.Family, o.Rounds, turn),
	}}
	if m.network, err = newNetwork(ctx, o); err != nil {
		return nil, err
	}
	defer func() { err = errors.Join(err, m.network.close()) }()
	if err := m.supported(); err != nil {
		return nil, err
	}
	for _, s := range m.settings {
		m.Subjects = append(m.Subjects, bench.Subject{Name: s.Name})
	}
	bench.Quiet(ctx)
	if err := measure(m); err != nil {
		return nil, bench.Interrupted(ctx, err)
	}
	m.LoadAfter = bench.LoadAverage()
	return m.Result, nil
}

// supported removes settings that this kernel cannot have, with a note.
func (m *measurement) supported() error {
	var settings []Setting
	for _, s := range m.settings {
		engine, err := m.probe(s)
		switch {
		case errors.Is(err, fastpath.ErrUnsupported):
			m.note(fmt.Sprintf("%q is not measured: %v", s.Name, err))
			continue
		case err != nil:
			return err
		case engine == fastpath.EBPF && s.Engine == "":
			m.note(noteEBPF)
		}
		settings = append(settings, s)
	}
	m.settings = settings
	return nil
}

func (m *measurement) note(text string) {
	if !slices.Contains(m.Notes, text) {
		m.Notes = append(m.Notes, text)
	}
}

const noteEBPF = "this kernel has no flowtables: the engine of the fast path is ebpf"

// slowPath is the series beside another one with the share of the packets that the first
// node's stack has forwarded, in the same turns.
func slowPath(name string) bench.Series {
	return bench.Series{Name: name + "_slow_path", Text: "  packets on the slow path", Unit: bench.Percent, Better: bench.Less}
}

// values are the results of one turn, by the name of the series.
type values map[string]float64

// diverted is the value of a turn for how many of its packets took neither path.
const diverted = "diverted"

// turns measures series in rounds of turns. One turn of the first setting goes before,
// with cold caches, and is not counted.
func (m *measurement) turns(ctx context.Context, offloads bool, turn func(context.Context) (values, error), series ...bench.Series) error {
	slow := slowPath(series[0].Name)
	one := func(s Setting, into bench.Samples) error {
		v, share, err := m.turn(ctx, s, turn)
		if err != nil {
			return fmt.Errorf("%s: %w", s.Name, err)
		}
		for name, value := range v {
			into.Add(name, value)
		}
		into.Add(slow.Name, 100*share)
		return nil
	}
	if err := one(m.settings[0], bench.Samples{}); err != nil {
		return err
	}
	samples, err := bench.Turns(ctx, m.options.Rounds, len(m.settings), func(_, i int, into bench.Samples) error {
		return one(m.settings[i], into)
	})
	if err != nil {
		return err
	}
	for i, s := range m.settings {
		if err := s.offloaded(samples[i][slow.Name]); err != nil && offloads {
			return err
		}
	}
	return m.Fill(append(series, slow), samples)
}

// offloaded fails when connections that should be offloaded stayed on the slow path, by
// the shares of its packets in percent. The other values mean nothing then.
func (s Setting) offloaded(slow []float64) error {
	for _, share := range slow {
		if s.Threshold > 0 && share > 50 {
			return fmt.Errorf("%s: %.0f %% of the packets took the slow path: the connection was not offloaded", s.Name, share)
		}
	}
	return nil
}

func (m *measurement) turn(ctx context.Context, s Setting, turn func(context.Context) (values, error)) (v values, slow float64, err error) {
	if err = m.set(ctx, s); err != nil {
		return nil, 0, err
	}
	before, err := countPackets(m.nodes[0].Node, false)
	if err != nil {
		return nil, 0, err
	}
	if v, err = turn(ctx); err != nil {
		return nil, 0, err
	}
	after, err := countPackets(m.nodes[0].Node, true)
	after.arrived -= uint64(v[diverted])
	return v, before.share(after), err
}

// packets counts packets that have arrived on a node, and those of them that its stack
// has forwarded. The kernel does not count as forwarded what the flowtable handles.
type packets struct {
	arrived, slow uint64
}

// countPackets counts now. Packets arrive between the two counts, so those of the slow
// path are counted last at the start and first at the end: they are never more than all.
func countPackets(n *lab.Node, atEnd bool) (p packets, err error) {
	if !atEnd {
		if p.arrived, err = arrived(&n.Machine); err != nil {
			return p, err
		}
	}
	err = n.Do(func() (err error) { p.slow, err = forwarded(); return err })
	if err == nil && atEnd {
		p.arrived, err = arrived(&n.Machine)
	}
	return p, err
}

// share is the part of the packets between two counts that took the slow path, 0 to 1.
func (p packets) share(later packets) float64 {
	if later.arrived <= p.arrived {
		return 0
	}
	return float64(later.slow-p.slow) / float64(later.arrived-p.arrived)
}

// forwarded is how many packets the stack of the calling thread's namespace has forwarded.
func forwarded() (uint64, error) {
	fs, err := procfs.NewFS("/proc/self/task")
	if err != nil {
		return 0, err
	}
	thread, err := fs.Proc(unix.Gettid())
	if err != nil {
		return 0, err
	}
	v4, err4 := thread.Snmp()
	v6, err6 := thread.Snmp6()
	if err := errors.Join(err4, err6); err != nil {
		return 0, err
	}
	if v4.ForwDatagrams == nil {
		return 0, errors.New("/proc/net/snmp has no Ip ForwDatagrams")
	}
	n := *v4.ForwDatagrams
	if v6.OutForwDatagrams != nil { // it is without IPv6
		n += *v6.OutForwDatagrams
	}
	return uint64(n), nil
}

// Options select the measurements. Their JSON is part of the result.
type Options struct {
	Rounds int    `json:"rounds"` // each has a turn of each setting
	Nodes  int    `json:"nodes"`  // that forward: 1, or 2 with a pod on each
	Family string `json:"family"` // one of Families

	// Thresholds are compared with "off", if there are any, instead of [Settings].
	Thresholds []int `json:"thresholds,omitempty"`

	// Of [Throughput] and [Relay].
	Seconds  int      `json:"seconds_per_turn,omitempty"`
	Measures []string `json:"measures,omitempty"` // of Measures

	// Of [CRR], [Relay], [Compare] and [Sockets].
	Connections int `json:"connections_per_turn,omitempty"`

	// Of [Sockets].
	Services int `json:"services,omitempty"` // beside the one that is measured

	// Of [Compare].
	Streams int `json:"streams,omitempty"` // at once; 0 is one
}

// AddFlags adds the flags that all measurements have in common.
func (o *Options) AddFlags(f *pflag.FlagSet, rounds int) {
	f.IntVar(&o.Rounds, "rounds", rounds, "rounds of turns, one for each setting of the fast path")
	f.IntVar(&o.Nodes, "nodes", 1, "nodes between the pods: 1 or 2")
	f.StringVar(&o.Family, "family", FamilyIPv4, "address family: "+strings.Join(Families, ", "))
}

// AddThresholds adds the flag of the thresholds.
func (o *Options) AddThresholds(f *pflag.FlagSet) {
	f.IntSliceVar(&o.Thresholds, "thresholds", nil, "packets after which a connection is offloaded, 1 for no threshold (default 1,20)")
}

const (
	FamilyIPv4 = "ipv4"
	FamilyIPv6 = "ipv6"
)

// Families lists the values of Options.Family.
var Families = []string{FamilyIPv4, FamilyIPv6}

const (
	MeasureAggregated = "aggregated" // a TCP stream of aggregated segments
	MeasurePackets    = "packets"    // a TCP stream of single packets
	MeasureUDP        = "udp"        // small datagrams, and the cost of a packet
)

// Measures lists the values of Options.Measures, in the order of measuring.
var Measures = []string{MeasureAggregated, MeasurePackets, MeasureUDP}

// Setting is how a node treats connections to Services.
type Setting struct {
	Name string
	// Threshold is how many packets a connection must have carried before it is
	// offloaded; 0 for never.
	Threshold uint32
	// Engine offloads them; none is the one that the kernel has.
	Engine fastpath.Engine

	relayed bool // see Relayed
	direct  bool // see Direct
	linked  bool // see Linked
	sockets bool // see Sockets
	rule    bool // see OneRule
}

// Settings are compared with the first one. A threshold of one packet means no threshold: the
// first packet of a connection is never offloaded.
var Settings = []Setting{{Name: "off"}, {Name: "no threshold", Threshold: 1}, {Name: "threshold 20", Threshold: 20}}

// settings are what is compared.
func (o *Options) settings() []Setting {
	if o.Services > 0 {
		return SocketSettings
	}
	if o.Streams > 0 {
		return Paths
	}
	if len(o.Thresholds) == 0 {
		return Settings
	}
	all := Settings[:1:1]
	for _, n := range o.Thresholds {
		s := Setting{Name: fmt.Sprintf("threshold %d", n), Threshold: uint32(n)}
		if n == 1 {
			s = Settings[1]
		}
		all = append(all, s)
	}
	return all
}

func (o *Options) validate() error {
	most := 100_000
	if slices.Contains(o.Measures, MeasureUDP) {
		most = warmUp - 1 // a flood measures offloaded packets only
	}
	var errs []error
	for _, n := range o.Thresholds {
		errs = append(errs, bench.Within("--thresholds", n, 1, most))
	}
	return errors.Join(errors.Join(errs...),
		bench.Within("--rounds", o.Rounds, 1, 1000),
		bench.Within("--nodes", o.Nodes, 1, 2),
		bench.OneOf("--family", o.Family, Families...),
	)
}

func (o *Options) validateThroughput() error {
	if err := errors.Join(o.validate(), bench.Within("--seconds", o.Seconds, 1, 600)); err != nil {
		return err
	}
	if len(o.Measures) == 0 {
		return fmt.Errorf("--measure: none of %s is given", strings.Join(Measures, ", "))
	}
	for _, m := range o.Measures {
		if err := bench.OneOf("--measure", m, Measures...); err != nil {
			return err
		}
		command := "iperf3"
		if m == MeasureUDP {
			command = "nft"
		}
		if _, err := exec.LookPath(command); err != nil {
			return fmt.Errorf("--measure: %s needs the command %s, which is not installed (test/deps.sh)", m, command)
		}
	}
	return nil
}

func (o *Options) validateCRR() error {
	// A client can make about 50,000 connections to one address before a port is reused.
	return errors.Join(o.validate(), bench.Within("--connections", o.Connections, 100, 50_000))
}
