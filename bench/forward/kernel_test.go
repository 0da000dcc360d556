// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/cilium/ebpf"
	"github.com/prometheus/procfs"
	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// thresholds are paths of the engine that the kernel has.
var thresholds = []string{"off", "1", "20"}

// skipWithoutTCX skips a test that floods, on a kernel before Linux 6.6.
func skipWithoutTCX(t *testing.T, err error) {
	t.Helper()
	if errors.Is(err, ebpf.ErrNotSupported) {
		t.Skipf("NOT RUN on kernel %s: %v", kerneltest.Kernel(), err)
	}
}

// What has been measured is there, for all settings that this kernel can have; and
// packets took the path that they were to take. How long anything took is not
// looked at.
func TestThroughput(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	// A busy machine carries few packets in one second.
	o := Options{Rounds: 1, Seconds: 3, Measures: []string{"aggregated", "packets", "udp"}, Paths: thresholds, Connections: 100, Streams: 1}
	r, err := bench.Run(bounded(t), "forward", &o)
	skipWithoutTCX(t, err)
	if err != nil {
		t.Fatal(err)
	}
	settings := o.settings()
	aggregated, packets, udp := slowPath(streamAggregated.Name), slowPath(streamPackets.Name), slowPath(datagrams.Name)
	checkResult(t, r, &o, streamAggregated, cpuAggregated, aggregated, datagrams, packetCost, udp,
		streamPackets, cpuPackets, packets)
	for _, slow := range []bench.Series{aggregated, packets, udp} {
		for i, o := range r.Find(slow.Name).Outcomes {
			least, most := 95.0, 100.0
			if settings[i].Threshold > 0 {
				least, most = 0, 10
			}
			if o.Median < least || o.Median > most {
				t.Errorf("%s, %s: %.1f %% of the packets took the slow path, want %v to %v", slow.Name, settings[i].Name, o.Median, least, most)
			}
		}
	}
}

// Short connections take the slow path to their end, unless there is no threshold. Then too the engine
// ebpf offloads few: they are over when it gets to them.
func TestCRR(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	o := Options{Rounds: 2, Seconds: 1, Measures: []string{"crr"}, Paths: thresholds, Connections: 100, Streams: 1}
	r, err := bench.Run(bounded(t), "forward", &o)
	if err != nil {
		t.Fatal(err)
	}
	slow, settings := slowPath(crrRate.Name), o.settings()
	checkResult(t, r, &o, append(slices.Clone(crrSeries), slow)...)
	for i, o := range r.Find(slow.Name).Outcomes {
		if s := settings[i]; s.Threshold == 1 && o.Median > 90 && kerneltest.Flowtable.Probe() == nil || s.Threshold != 1 && o.Median < 95 {
			t.Errorf("%s: %.1f %% of the packets took the slow path", s.Name, o.Median)
		}
	}
}

// Each path is measured, packets take it, and what it needs is named if the kernel lacks it.
func TestCompare(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary, kerneltest.TCX)
	o := Options{
		Rounds: 1, Paths: []string{"off", "flowtable", "ebpf", "sockets", "direct", "link"}, Measures: measureNames(),
		Seconds: 1, Connections: 100, Streams: 2, Firewall: true,
	}
	r, err := bench.Run(bounded(t), "forward", &o)
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []bench.Series{streamAggregated, streamPackets, cpuPackets, datagrams, packetCost, crrRate} {
		s := r.Find(want.Name)
		if s == nil || len(s.Outcomes) != len(r.Subjects) {
			t.Fatalf("%s of %d subjects: %+v", want.Name, len(r.Subjects), s)
		}
	}
	notes := strings.Join(r.Notes, "\n")
	for _, path := range o.settings() {
		i := slices.IndexFunc(r.Subjects, func(s bench.Subject) bool { return s.Name == path.Name })
		if i < 0 {
			if path.Engine == "" || !strings.Contains(notes, path.Name) {
				t.Errorf("%s is not measured; notes %q", path.Name, notes)
			}
			continue
		}
		all := []bench.Series{streamPackets}
		if !path.sockets {
			all = append(all, datagrams)
		}
		for _, s := range all {
			if share := r.Find(slowPath(s.Name).Name).Outcomes[i].Median; (share > 50) != (path.Threshold == 0 && !path.linked) {
				t.Errorf("%s, %s: %.0f %% of the packets took the slow path", path.Name, s.Name, share)
			}
		}
	}
}

func checkResult(t *testing.T, r *bench.Result, o *Options, want ...bench.Series) {
	t.Helper()
	settings, notes := o.settings(), strings.Join(r.Notes, "\n")
	wantNote := ""
	if kerneltest.Flowtable.Probe() != nil {
		wantNote = noteEBPF
		if kerneltest.TCX.Probe() != nil {
			settings, wantNote = settings[:1], `"no threshold" is not measured: `
		}
	}
	if !strings.HasPrefix(notes, wantNote) || wantNote == "" && notes != "" {
		t.Errorf("notes %q, want %q", notes, wantNote)
	}
	if len(r.Series) != len(want) || len(r.Subjects) != len(settings) {
		t.Fatalf("%d series of %d settings, want %d of %d", len(r.Series), len(r.Subjects), len(want), len(settings))
	}
	for i, s := range r.Series {
		if s.Name != want[i].Name || len(s.Outcomes) != len(settings) {
			t.Fatalf("series %d is %s with %d settings, want %s with %d", i, s.Name, len(s.Outcomes), want[i].Name, len(settings))
		}
		for j, outcome := range s.Outcomes {
			if r.Subjects[j].Name != settings[j].Name || len(outcome.Values) != o.Rounds {
				t.Errorf("%s: %+v, want %d rounds of %v", s.Name, outcome, o.Rounds, settings[j])
			}
			if (s.Unit == bench.BitsPerSecond || s.Unit == bench.PerSecond) && outcome.Median <= 0 { // others may be differences
				t.Errorf("%s: %s: median %v", s.Name, settings[j].Name, outcome.Median)
			}
		}
	}
}

// With aggregation off, no packet on the pods' links is larger than a link's MTU.
func TestDisableAggregation(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	n := testNetwork(t)
	server, err := n.streamServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Kill() }()
	meanSize := func() float64 {
		t.Helper()
		bytes, packets := sent(t, n.client)
		if _, err := n.stream(t.Context(), 1, 1); err != nil {
			t.Fatal(err)
		}
		bytesAfter, packetsAfter := sent(t, n.client)
		return float64(bytesAfter-bytes) / float64(packetsAfter-packets)
	}
	const mtu, header = 1500, 14
	if size := meanSize(); size < 2*mtu {
		t.Errorf("aggregated: %.0f bytes in a packet, want many segments", size)
	}
	if err := n.disableAggregation(); err != nil {
		t.Fatal(err)
	}
	if size := meanSize(); size > mtu+header {
		t.Errorf("separate: %.0f bytes in a packet, want at most %d", size, mtu+header)
	}
}

// sent returns the packets that a pod has sent.
func sent(t *testing.T, pod *lab.Pod) (bytes, packets uint64) {
	t.Helper()
	err := eachLink(&pod.Machine, func(a *netlink.LinkAttrs) {
		bytes, packets = bytes+a.Statistics.TxBytes, packets+a.Statistics.TxPackets
	})
	if err != nil {
		t.Fatal(err)
	}
	return bytes, packets
}

// Datagrams to the reference do not reach the node's stack, and those to the Service not the server.
func TestDiverted(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	n := testNetwork(t)
	server, err := n.server.Serve(lab.UDP, n.backend(floodPort))
	if err != nil {
		t.Fatal(err)
	}
	undo, err := n.divert(t.Context(), podLink)
	skipWithoutTCX(t, err)
	if err != nil {
		t.Fatal(err)
	}
	for port, reaches := range map[uint16]bool{reference: false, reference + 1: true} {
		b, err := n.newBatch(port)
		if err != nil {
			t.Fatal(err)
		}
		defer b.conn.Close()
		before := received(t, n.node.Node)
		_, _ = b.send() // the node may refuse them
		if got := received(t, n.node.Node) - before; got > 0 != reaches {
			t.Errorf("port %d: the node's stack has received %d datagrams, want some: %t", port, got, reaches)
		}
	}
	if _, err := n.flood(t.Context(), 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if got := server.Served(); got != warmUp {
		t.Errorf("%d datagrams reached the server, want only the %d before the flood", got, warmUp)
	}
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	if _, err := n.flood(t.Context(), 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); server.Served() <= 2*warmUp; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d datagrams reached the server, want some of the second flood too", server.Served())
		}
	}
}

// received is how many packets the node's stack has received.
func received(t *testing.T, n *lab.Node) (packets int) {
	t.Helper()
	err := n.Do(func() error {
		fs, err := procfs.NewFS("/proc/self/task")
		if err != nil {
			return err
		}
		thread, err := fs.Proc(unix.Gettid())
		if err != nil {
			return err
		}
		counts, err := thread.Snmp()
		if err == nil {
			packets = int(*counts.InReceives)
		}
		return err
	})
	if err != nil {
		t.Fatal(err)
	}
	return packets
}

// An interrupted benchmark returns that as its only error.
func TestInterrupted(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	o := Options{Rounds: 100, Paths: thresholds, Measures: []string{"packets"}, Seconds: 10, Connections: 100, Streams: 1}
	_, err := bench.Run(ctx, "forward", &o)
	if err == nil || err.Error() != "interrupted" {
		t.Errorf("error %v, want only that it was interrupted", err)
	}
}

func testNetwork(t *testing.T) *network {
	t.Helper()
	n, err := newNetwork(t.Context(), &Options{})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := n.close(); err != nil {
			t.Error(err)
		}
	})
	return n
}

// bounded is a context for a bench that takes seconds.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
