// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/lab"
	"github.com/vishvananda/netlink"
)

// What has been measured is there, for all settings that this kernel can have; and
// packets took the path that they were to take. How long anything took is not
// looked at.
func TestThroughput(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	for _, o := range []Options{{Rounds: 1, Nodes: 1, Family: FamilyIPv6}, {Rounds: 1, Nodes: 2, Family: FamilyIPv4}} {
		t.Run(o.Family, func(t *testing.T) {
			r, err := Throughput(bounded(t), ThroughputOptions{Options: o, Seconds: 1, Measures: Measures})
			if err != nil {
				t.Fatal(err)
			}
			want := []quantity{streamAggregated, streamAggregatedBest, streamPackets, streamPacketsBest, datagrams, packetCost}
			if len(r.Series) > len(want) && o.Nodes == 1 { // where the kernel has what it takes
				want = append(want, pathCost)
			}
			checkResult(t, r, want...)
			for _, s := range r.Series {
				for _, o := range s.Outcomes {
					least, most := 0.95, 1.0
					if o.Threshold > 0 {
						least, most = 0, 0.1
					}
					if o.SlowPath < least || o.SlowPath > most {
						t.Errorf("%s, %s: %.3f of the packets took the slow path, want %v to %v", s.Name, o.Name, o.SlowPath, least, most)
					}
				}
			}
		})
	}
}

// Short connections take the slow path to their end, unless there is no threshold.
func TestCRR(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	for _, o := range []Options{{Rounds: 2, Nodes: 1, Family: FamilyIPv4}, {Rounds: 1, Nodes: 2, Family: FamilyIPv6}} {
		t.Run(o.Family, func(t *testing.T) {
			r, err := CRR(bounded(t), peer, CRROptions{Options: o, Connections: 100})
			if err != nil {
				t.Fatal(err)
			}
			checkResult(t, r, crrRate, crrMin, crrMedian, crrMean, crrP99, crrStdDev)
			for _, o := range r.Series[0].Outcomes {
				if o.Threshold == 1 && o.SlowPath > 0.9 || o.Threshold != 1 && o.SlowPath < 0.95 {
					t.Errorf("%s: %.3f of the packets took the slow path", o.Name, o.SlowPath)
				}
			}
		})
	}
}

func checkResult(t *testing.T, r *Result, want ...quantity) {
	t.Helper()
	settings := Settings
	if err := kerneltest.Flowtable.Probe(); err != nil {
		settings = Settings[:1]
		if !strings.Contains(r.NoFastPath, "the kernel has no flowtables") {
			t.Errorf("without flowtables it says %q", r.NoFastPath)
		}
	} else if r.NoFastPath != "" {
		t.Errorf("there are flowtables, but %q", r.NoFastPath)
	}
	if len(r.Series) != len(want) {
		t.Fatalf("%d series, want %d", len(r.Series), len(want))
	}
	rounds := r.Options().Rounds
	for i, s := range r.Series {
		if s.Name != want[i].name || len(s.Outcomes) != len(settings) {
			t.Fatalf("series %d is %s with %d settings, want %s with %d", i, s.Name, len(s.Outcomes), want[i].name, len(settings))
		}
		for j, o := range s.Outcomes {
			if o.Setting != settings[j] || len(o.Values) != rounds || len(o.Ratios) > rounds {
				t.Errorf("%s: %+v, want %d rounds of %v", s.Name, o, rounds, settings[j])
			}
			if s.Unit != Nanoseconds && o.Median <= 0 { // those may be differences
				t.Errorf("%s: %s: median %v", s.Name, o.Name, o.Median)
			}
		}
	}
}

// With aggregation off, no packet on the pods' links is larger than a link's MTU.
// Afterwards it is as before.
func TestSeparate(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	w := testWorld(t, Options{Nodes: 1, Family: FamilyIPv4})
	server, err := w.streamServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = server.Kill() }()
	meanSize := func() float64 {
		t.Helper()
		bytes, packets := sent(t, w.client)
		if _, err := w.stream(t.Context(), 1); err != nil {
			t.Fatal(err)
		}
		bytesAfter, packetsAfter := sent(t, w.client)
		return float64(bytesAfter-bytes) / float64(packetsAfter-packets)
	}
	const mtu, header = 1500, 14
	if size := meanSize(); size < 2*mtu {
		t.Errorf("aggregated: %.0f bytes in a packet, want many segments", size)
	}
	undo, err := w.separate()
	if err != nil {
		t.Fatal(err)
	}
	if size := meanSize(); size > mtu+header {
		t.Errorf("separate: %.0f bytes in a packet, want at most %d", size, mtu+header)
	}
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	if size := meanSize(); size < 2*mtu {
		t.Errorf("aggregated again: %.0f bytes in a packet, want many segments", size)
	}
}

// sent is what a pod has sent.
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

// What is diverted meets its fate: it does not reach the server's pod, or it does
// without the server seeing it.
func TestDiverted(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	w := testWorld(t, Options{Nodes: 1, Family: FamilyIPv4})
	server, err := w.server.Serve(lab.UDP, w.backend(floodPort))
	if err != nil {
		t.Fatal(err)
	}
	all, undo, err := w.divertAll(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	for _, r := range all {
		c, err := w.floodSocket(r.port)
		if err != nil {
			t.Fatal(err)
		}
		defer c.Close()
		before, err := arrived(&w.server.Machine)
		if err != nil {
			t.Fatal(err)
		}
		b := newBatch(c)
		if n, _, err := b.send(); err != nil || n != batchSize {
			t.Fatalf("%d sent, %v", n, err)
		}
		want := uint64(0)
		if r.name == pathCost.name {
			want = batchSize
		}
		var got uint64
		for deadline := time.Now().Add(patience); time.Now().Before(deadline); time.Sleep(time.Millisecond) {
			after, err := arrived(&w.server.Machine)
			if err != nil {
				t.Fatal(err)
			}
			if got = after - before; got >= want {
				break
			}
		}
		if got < want || got >= want+batchSize {
			t.Errorf("%s: %d datagrams arrived in the server's pod, want %d", r.name, got, want)
		}
	}
	if _, err := w.flood(t.Context(), 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	if got := server.Served(); got != warmUp {
		t.Errorf("%d datagrams reached the server, want only the %d before the flood", got, warmUp)
	}
	if err := undo(); err != nil {
		t.Fatal(err)
	}
	if _, err := w.flood(t.Context(), 10*time.Millisecond); err != nil {
		t.Fatal(err)
	}
	for deadline := time.Now().Add(patience); server.Served() <= 2*warmUp; time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatalf("%d datagrams reached the server, want some of the second flood too", server.Served())
		}
	}
}

// A bench that is interrupted says so and nothing else.
func TestInterrupted(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	ctx, cancel := context.WithTimeout(t.Context(), 1500*time.Millisecond)
	defer cancel()
	_, err := Throughput(ctx, ThroughputOptions{Options: Options{Rounds: 100, Nodes: 1, Family: FamilyIPv4}, Seconds: 10, Measures: Measures})
	if err == nil || err.Error() != "interrupted" {
		t.Errorf("error %v, want only that it was interrupted", err)
	}
}

func testWorld(t *testing.T, o Options) *world {
	t.Helper()
	w, err := newWorld(o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := w.close(); err != nil {
			t.Error(err)
		}
	})
	return w
}

// bounded is a context for a bench that takes seconds.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 3*time.Minute)
	t.Cleanup(cancel)
	return ctx
}
