// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"context"
	"math"
	"testing"

	"github.com/slipstream-proxy/slipstream/bench/stats"
	"github.com/slipstream-proxy/slipstream/test/kerneltest"
)

// runSeconds is how long a run of iperf3 takes here. A run's value is its best
// tenth of a second: other work on the machine can only slow it down, and in two
// seconds it mostly leaves alone one tenth at least.
const runSeconds = 2

// The acceptance test of KEP-4963: one Service with one backend, iperf3 with the
// fast path and without in turns, until a test of significance says that with it
// more arrives. Only that relation is tested, and no time. GSO, TSO and GRO are
// off, so that each packet has to be forwarded.
//
// It looks at the data after 10, 20, 40 and 80 pairs, each time at a quarter of the
// level, and so is wrong once in a hundred times at most (Bonferroni). On a quiet
// machine the first look is enough; 40 pairs have not been beside ten other processes.
func TestStreamIsFaster(t *testing.T) {
	const level = 0.01
	looks := []int{10, 20, 40, 80}
	w := acceptance(t)
	undo, err := w.separate()
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := undo(); err != nil {
			t.Error(err)
		}
	}()
	var off, on []float64
	for _, pairs := range looks {
		w.pairs(t, pairs, &off, &on)
		if p := chance(t, on, off); p < level/float64(len(looks)) {
			return
		}
	}
	t.Errorf("with the fast path it is not significantly faster after %d pairs", len(on))
}

// The same with full-size segments aggregated: the node forwards one packet where
// there were forty, copying the data takes nearly all of the time, and what the
// fast path saves drowns in the noise. Here it is only not to be slower.
func TestAggregatedStreamIsNotSlower(t *testing.T) {
	const level = 0.001 // by chance it fails once in a thousand times
	w := acceptance(t)
	var off, on []float64
	w.pairs(t, 10, &off, &on)
	if p := chance(t, off, on); p < level {
		t.Errorf("with the fast path it is slower, p = %.2g", p)
	}
}

// chance is how probable it is that the first values are so much greater by chance.
func chance(t *testing.T, first, second []float64) float64 {
	t.Helper()
	p, err := stats.MannWhitney(first, second, stats.Greater)
	if err != nil {
		t.Fatal(err)
	}
	t.Logf("%d pairs: medians %.2f and %.2f Gbit/s, p = %.2g", len(first), stats.Median(first)/1e9, stats.Median(second)/1e9, p)
	return p
}

// acceptance is a world with a server for streams.
func acceptance(t *testing.T) *world {
	t.Helper()
	if testing.Short() {
		t.Skip("takes a minute or three; not with -short")
	}
	kerneltest.Require(t, kerneltest.Flowtable)
	w := testWorld(t, Options{Nodes: 1, Family: FamilyIPv4})
	server, err := w.streamServer(t.Context())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = server.Kill() })
	return w
}

// pairs adds runs of iperf3 until there are n of each setting.
func (w *world) pairs(t *testing.T, n int, off, on *[]float64) {
	t.Helper()
	settings := []Setting{Settings[0], Settings[2]}
	all := []*[]float64{off, on}
	for len(*off) < n {
		for _, i := range order(len(settings), len(*off)) {
			var s streamed
			_, slow, err := w.turn(t.Context(), settings[i], func(ctx context.Context, _ Setting) (_ values, err error) {
				s, err = w.stream(ctx, runSeconds)
				return nil, err
			})
			if err != nil {
				t.Fatal(err)
			}
			if want := 1 - float64(i); math.Abs(slow-want) > 0.1 {
				t.Fatalf("%s: %.3f of the packets took the slow path", settings[i].Name, slow)
			}
			*all[i] = append(*all[i], s.best)
		}
	}
}
