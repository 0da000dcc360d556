// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"errors"
	"math"
	"testing"
	"time"

	"github.com/aclements/go-moremath/stats"
	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// Times of a turn of a stream that goes on meanwhile.
const (
	settling = 30 * time.Millisecond // until the first packets are past the threshold
	counting = 50 * time.Millisecond // how long what is sent is counted
)

// The acceptance test of KEP-4963: one Service with one backend, iperf3 with the fast
// path and without in turns, until a test of significance says that the throughput with
// it is higher. Only that relation is tested, and no time. GSO, TSO and GRO are off, so
// that each packet has to be forwarded.
//
// The turns are short and share one connection, so that disturbances slow both of a pair
// alike. The data are tested after 50, 100, 200, 400, 800 and 1,600 pairs, each time at a sixth of the
// level, so the test is wrong once in a hundred times at most (Bonferroni).
func TestStreamIsFaster(t *testing.T) {
	const level = 0.01
	looks := []int{50, 100, 200, 400, 800, 1600}
	s := startStream(t, true)
	for _, pairs := range looks {
		s.pairs(pairs)
		if p := s.chance(s.on, s.off); p < level/float64(len(looks)) {
			return
		}
	}
	t.Errorf("with the fast path it is not significantly faster after %d pairs", len(s.on))
}

// The same with segments aggregated: the node forwards one packet instead of forty,
// copying the data takes nearly all of the time, and the gain of the fast path is lost in
// the noise. Here it must only not be slower.
func TestAggregatedStreamIsNotSlower(t *testing.T) {
	const level = 0.001 // by chance it fails once in a thousand times
	s := startStream(t, false)
	s.pairs(50)
	if p := s.chance(s.off, s.on); p < level {
		t.Errorf("with the fast path it is slower, p = %.2g", p)
	}
}

var offAndOn = (&Options{Paths: []string{"off", "20"}}).settings()

// ongoing is a stream of iperf3 that takes the slow path and the fast one in turns.
type ongoing struct {
	*network
	t       *testing.T
	off, on []float64  // bit/s, by pair of turns
	passed  [2]packets // in all turns on the slow path, and on the fast one
	ended   chan error
}

// startStream starts a stream, without aggregation if packets are to be separate. It
// begins on the fast path: the kernel counts a connection's packets only if it did so
// when the connection began.
func startStream(t *testing.T, separate bool) *ongoing {
	t.Helper()
	if testing.Short() {
		t.Skip("takes a minute or three; not with -short")
	}
	kerneltest.Require(t, kerneltest.Flowtable)
	s := &ongoing{network: testNetwork(t), t: t, ended: make(chan error, 1)}
	server, err := s.streamServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Kill() })
	if separate {
		if err := s.disableAggregation(); err != nil {
			t.Fatal(err)
		}
	}
	if err := s.set(t.Context(), offAndOn[1]); err != nil {
		t.Fatal(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	go func() {
		const seconds = 3600 // longer than all turns
		_, err := s.stream(ctx, seconds, 1)
		s.ended <- err
	}()
	t.Cleanup(func() { cancel(); <-s.ended })
	s.flowing()
	return s
}

// flowing waits until the stream has run for a second.
func (s *ongoing) flowing() {
	s.t.Helper()
	const many = 1000 * 1500
	before, _ := sent(s.t, s.client)
	for deadline := time.Now().Add(patience); ; time.Sleep(10 * time.Millisecond) {
		if now, _ := sent(s.t, s.client); now-before > many {
			break
		}
		if time.Now().After(deadline) {
			s.t.Fatal("iperf3 sends nothing")
		}
	}
	time.Sleep(time.Second)
}

// pairs adds turns until there are n of each setting.
func (s *ongoing) pairs(n int) {
	s.t.Helper()
	all := []*[]float64{&s.off, &s.on}
	for len(s.off) < n {
		for _, i := range bench.Order(len(all), len(s.off)) {
			*all[i] = append(*all[i], s.turn(i))
		}
	}
}

// turn is how much is sent in a turn, in bit/s: on the slow path (0) or the fast one
// (1).
func (s *ongoing) turn(path int) float64 {
	s.t.Helper()
	// Not by network.set, which has conntrack forget the connection.
	if err := s.node.setFastPath(s.t.Context(), offAndOn[path]); err != nil {
		s.t.Fatal(err)
	}
	time.Sleep(settling)
	before, err := countPackets(s.node.Node, false)
	if err != nil {
		s.t.Fatal(err)
	}
	bytes, _ := sent(s.t, s.client)
	start := time.Now()
	time.Sleep(counting)
	bytesAfter, _ := sent(s.t, s.client)
	took := time.Since(start)
	after, err := countPackets(s.node.Node, true)
	if err != nil {
		s.t.Fatal(err)
	}
	s.passed[path].arrived += after.arrived - before.arrived
	s.passed[path].slow += after.slow - before.slow
	select {
	case err := <-s.ended:
		s.ended <- err
		s.t.Fatal("the stream has ended: ", err)
	default:
	}
	return 8 * float64(bytesAfter-bytes) / took.Seconds()
}

// chance is how probable it is that the first values are greater by chance. Packets must
// have taken the path of their setting; some are merged on the way.
func (s *ongoing) chance(first, second []float64) float64 {
	s.t.Helper()
	off, on := packets{}.share(s.passed[0]), packets{}.share(s.passed[1])
	if off < 0.8 || on > 0.1 {
		s.t.Fatalf("of the packets, %.3f took the slow path when they should, and %.3f when they should not", off, on)
	}
	p, err := sign(first, second)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Logf("%d pairs: medians %.2f and %.2f Gbit/s, p = %.2g", len(first), bench.Median(first)/1e9, bench.Median(second)/1e9, p)
	return p
}

// sign is the p-value of the one-sided sign test: how probable it is that the first value
// is greater in at least so many of the pairs by chance. It assumes only that pairs are
// independent, so a disturbance that lasts for both values of a pair does no harm. Pairs
// of equal values do not count; without any other, p is 1.
//
// Seven pairs in which the first value is greater have a p-value of 0.008.
func sign(first, second []float64) (float64, error) {
	if len(first) != len(second) {
		return 1, errors.New("sign test: the values are not in pairs")
	}
	greater, less := 0, 0
	for i := range first {
		switch {
		case first[i] > second[i]:
			greater++
		case first[i] < second[i]:
			less++
		}
	}
	return min(1, stats.BinomialDist{N: greater + less, P: 0.5}.CDF(float64(less))), nil
}

func TestSign(t *testing.T) {
	for _, test := range []struct {
		greater, less, equal int
		want                 float64
	}{
		{7, 0, 0, 1. / 128},
		{0, 7, 0, 1},
		{4, 1, 3, 6. / 32},
		{1, 1, 0, 3. / 4},
		{0, 0, 2, 1},
		{0, 0, 0, 1},
		// 0.5 by the normal approximation, with the half-unit of continuity.
		{1000, 1000, 0, 0.5089},
		{560, 440, 0, 8.2e-5},
	} {
		var first, second []float64
		add := func(n int, a, b float64) {
			for i := range n {
				first, second = append(first, a+float64(i)), append(second, b+float64(i))
			}
		}
		add(test.greater, 2, 1)
		add(test.less, 1, 2)
		add(test.equal, 3, 3)
		got, err := sign(first, second)
		if err != nil || math.Abs(got-test.want) > 0.02*test.want {
			t.Errorf("%d greater, %d less, %d equal: p = %.6f, %v; want %.6f", test.greater, test.less, test.equal, got, err, test.want)
		}
	}
	if _, err := sign([]float64{1}, nil); err == nil {
		t.Error("no error for values that are not pairs")
	}
}
