// SPDX-License-Identifier: Apache-2.0

// Package forward measures the gain of the fast path for long connections to a Service, and
// its cost for short ones.
//
// The topology is KEP-4963's: a Service with one backend, a client pod, and a node that forwards
// between them, all of them network namespaces (package lab). Package
// internal/dataplane/nftables programs the Service, and package internal/fastpath offloads
// connections. Each round has a turn of each path, and values are compared with
// those of the first one in the same round.
//
// # Cost of a packet
//
// A process on one processor sends small datagrams as fast as it can. All work for a packet is
// done on the sender's processor, so the time for a packet is its processor time. Batches of
// datagrams that cross the node and are dropped as they arrive in the server's pod alternate
// with batches that are dropped as they arrive on the node: the difference is the cost of
// forwarding a packet, the second link included. Over one link without a node there is no such difference.
package forward

import (
	"context"
	"errors"
	"fmt"
	"maps"
	"os/exec"
	"slices"
	"strconv"
	"strings"

	"github.com/prometheus/procfs"
	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/internal/fastpath"
	"github.com/slipstream-proxy/slipstream/internal/feature"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/spf13/pflag"
	"golang.org/x/sys/unix"
)

type measurement struct {
	*network
	*bench.Result
	options  *Options
	settings []Setting // that this kernel can have
}

// Measure measures connections by all paths in turns.
func (o *Options) Measure(ctx context.Context, r *bench.Result) (err error) {
	r.Title = fmt.Sprintf("forward: pod to pod by a ClusterIP over one node; %d rounds of turns of %d s and of %s connections",
		o.Rounds, o.Seconds, bench.Thousands(o.Connections))
	if o.Services > 0 {
		r.Title += fmt.Sprintf("; %s Services", bench.Thousands(o.Services))
	}
	m := &measurement{options: o, Result: r}
	if m.network, err = newNetwork(ctx, o); err != nil {
		return err
	}
	defer func() {
		if m.sockets {
			err = errors.Join(err, m.useSockets(ctx, false))
		}
		err = errors.Join(err, m.network.close())
	}()
	if err := m.supported(); err != nil {
		return err
	}
	if o.Firewall {
		if err := m.firewall(ctx); err != nil {
			return err
		}
	}
	bench.Quiet(ctx)
	for _, one := range measures {
		if slices.Contains(o.Measures, one.name) {
			if err := one.measure(m, ctx); err != nil {
				return err
			}
		}
	}
	return nil
}

// measures are the values of [Options.Measures], in the order of measuring.
var measures = []struct {
	name    string
	needs   string // a command, or none
	measure func(*measurement, context.Context) error
}{
	{"aggregated", "iperf3", func(m *measurement, ctx context.Context) error {
		return m.streams(ctx, streamAggregated, cpuAggregated)
	}},
	{"udp", "nft", (*measurement).floods},
	{"crr", "", (*measurement).shortConnections},
	{"packets", "iperf3", func(m *measurement, ctx context.Context) error { // at last, as aggregation stays off
		if err := m.disableAggregation(); err != nil {
			return err
		}
		return m.streams(ctx, streamPackets, cpuPackets)
	}},
}

func measureNames() (all []string) {
	for _, m := range measures {
		all = append(all, m.name)
	}
	return all
}

// supported finds the settings that this kernel can have, and notes the others.
func (m *measurement) supported() error {
	for _, s := range m.options.settings() {
		engine, err := m.probe(s)
		switch {
		case feature.Lacks(err):
			m.note(fmt.Sprintf("%q is not measured: %v", s.Name, err))
			continue
		case err != nil:
			return err
		case engine == fastpath.EBPF && s.Engine == "":
			m.note(noteEBPF)
		}
		if s.linked {
			if err := m.addLink(); err != nil {
				return err
			}
		}
		m.settings = append(m.settings, s)
		m.AddSubjects(s.Name)
	}
	if len(m.settings) == 0 {
		return errors.New("--paths: this kernel has none of them")
	}
	return nil
}

func (m *measurement) note(text string) {
	if !slices.Contains(m.Notes, text) {
		m.Notes = append(m.Notes, text)
	}
}

const noteEBPF = "this kernel has no flowtables: the engine of the fast path is ebpf"

// slowPath is the series beside another one with the share of the packets that the
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
	one := func(_, i int, into bench.Samples) error {
		s := m.settings[i]
		v, share, err := m.turn(ctx, s, turn)
		if err != nil {
			return err
		}
		for name, value := range v {
			into.Add(name, value)
		}
		into.Add(slow.Name, 100*share)
		return nil
	}
	if err := one(0, 0, bench.Samples{}); err != nil {
		return fmt.Errorf("%s: %w", m.settings[0].Name, err)
	}
	if err := m.InTurns(ctx, m.options.Rounds, one, append(series, slow)...); err != nil {
		return err
	}
	for i, s := range m.settings {
		if err := s.offloaded(m.Find(slow.Name).Outcomes[i].Values); err != nil && offloads {
			return err
		}
	}
	return nil
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
	before, err := countPackets(m.node.Node, false)
	if err != nil {
		return nil, 0, err
	}
	if v, err = turn(ctx); err != nil {
		return nil, 0, err
	}
	after, err := countPackets(m.node.Node, true)
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
	counts, err := thread.Snmp()
	if err == nil && counts.ForwDatagrams == nil {
		err = errors.New("/proc/net/snmp has no Ip ForwDatagrams")
	}
	if err != nil {
		return 0, err
	}
	return uint64(*counts.ForwDatagrams), nil
}

// Options say what is measured. Their JSON is part of the result.
type Options struct {
	Rounds      int      `json:"rounds"`   // each has a turn of each path
	Paths       []string `json:"paths"`    // compared with the first one
	Measures    []string `json:"measures"` // by name
	Seconds     int      `json:"seconds_per_turn"`
	Connections int      `json:"connections_per_turn"` // of crr
	Streams     int      `json:"streams"`              // at once
	Services    int      `json:"services,omitempty"`   // beside the one that is measured
	Firewall    bool     `json:"firewall"`
}

// AddFlags adds the flags.
func (o *Options) AddFlags(f *pflag.FlagSet) {
	f.IntVar(&o.Rounds, "rounds", 6, "rounds of turns, one for each path")
	f.StringSliceVar(&o.Paths, "paths", []string{"off", "flowtable", "ebpf", "sockets", "direct", "link"}, "what to compare with the first one: "+strings.Join(slices.Sorted(maps.Keys(paths)), ", ")+", or a number of packets, the threshold after which a connection is offloaded; 1 is no threshold")
	f.StringSliceVar(&o.Measures, "measure", measureNames(), "what to measure")
	f.IntVar(&o.Seconds, "seconds", 1, "length of a turn of a stream and of datagrams")
	f.IntVar(&o.Connections, "connections", 1000, "connections in a turn of short ones (crr)")
	f.IntVar(&o.Streams, "streams", 1, "TCP streams at once")
	f.IntVar(&o.Services, "services", 0, "Services of 10 endpoints beside the one that is measured")
	f.BoolVar(&o.Firewall, "firewall", true, "a firewall's three rules on the node, which packets of the slow path meet")
}

// Setting is how the node treats connections to Services.
type Setting struct {
	Name string
	// Threshold is how many packets a connection must have carried before it is
	// offloaded; 0 for never.
	Threshold uint32
	// Engine offloads them; none is the one that the kernel has.
	Engine fastpath.Engine

	direct  bool // the client connects to the server's pod: the node translates nothing
	linked  bool // by one link that joins the two pods: what no fast path can be faster than
	gro     bool // the fast path switches GRO on at the pods' veths
	sockets bool // the client's sockets connect straight to the endpoint (package socket)
}

// threshold is the default of 'slipstream run', in packets.
const threshold = 20

// paths are the values of [Options.Paths] that are not thresholds.
var paths = map[string]Setting{
	"off":       {Name: "off"}, // the slow path
	"nftables":  {Name: "nftables"},
	"flowtable": {Name: "flowtable", Threshold: threshold, Engine: fastpath.Flowtable},
	"ebpf":      {Name: "eBPF", Threshold: threshold, Engine: fastpath.EBPF},
	"gro":       {Name: "fast path, GRO", Threshold: threshold, gro: true},
	"sockets":   {Name: "sockets", sockets: true},
	"direct":    {Name: "no Service", direct: true},
	"link":      {Name: "one link", direct: true, linked: true},
}

// settings are what is compared. A threshold of one packet means no threshold: the first packet of a
// connection is never offloaded.
func (o *Options) settings() (all []Setting) {
	for _, p := range o.Paths {
		s, named := paths[p]
		switch n, _ := strconv.Atoi(p); {
		case named:
		case n == 1:
			s = Setting{Name: "no threshold", Threshold: 1}
		default:
			s = Setting{Name: "threshold " + p, Threshold: uint32(n)}
		}
		all = append(all, s)
	}
	return all
}

// Validate finds values that cannot be measured.
func (o *Options) Validate(context.Context) error {
	err := errors.Join(
		bench.Within("--rounds", o.Rounds, 1, 1000),
		bench.Within("--seconds", o.Seconds, 1, 600),
		// A client can make about 50,000 connections to one address before a port is reused.
		bench.Within("--connections", o.Connections, 100, 50_000),
		bench.Within("--streams", o.Streams, 1, 128),
		bench.Within("--services", o.Services, 0, 60_000),
		bench.SomeOf("--measure", o.Measures, measureNames()...),
	)
	most := 100_000
	if slices.Contains(o.Measures, "udp") {
		most = warmUp - 1 // a flood measures offloaded packets only
	}
	names := slices.Sorted(maps.Keys(paths))
	for _, p := range o.Paths {
		if n, number := strconv.Atoi(p); number == nil {
			err = errors.Join(err, bench.Within("--paths: a threshold", n, 1, most))
			names = append(names, p)
		}
	}
	err = errors.Join(err, bench.SomeOf("--paths", o.Paths, names...))
	for _, m := range measures {
		if _, missing := exec.LookPath(m.needs); missing != nil && m.needs != "" && slices.Contains(o.Measures, m.name) {
			err = errors.Join(err, fmt.Errorf("--measure: %s needs the command %s, which is not installed (test/deps.sh)", m.name, m.needs))
		}
	}
	return err
}
