// SPDX-License-Identifier: Apache-2.0

//go:debug randseednop=0

// Package sim runs the proxy in nftables mode between a virtual kernel and a virtual API server, in virtual time. A seed
// determines a run: which objects change, and which messages are lost, refused, repeated or late.
package sim

import (
	"bytes"
	"cmp"
	"flag"
	"fmt"
	mathrand "math/rand"
	"math/rand/v2"
	"os"
	"os/exec"
	"runtime"
	"runtime/debug"
	"strings"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"golang.org/x/sync/errgroup"
	"pgregory.net/rapid"
)

var (
	seed    = flag.Uint64("sim-seed", 0, "the first seed; 0 for a random one")
	runs    = flag.Int("sim-runs", 1000, "how many runs TestSimulation makes at most; what happens in one alone is printed")
	long    = flag.Duration("sim-for", 2*time.Minute, "for how long TestSimulation begins new runs")
	repeats = flag.Int("sim-repeats", 3, "how many plans TestRepeats runs twice")
	part    = flag.Int("sim-part", -1, "which part of the seeds this process runs, of -sim-parts; TestSimulation starts such processes")
	parts   = flag.Int("sim-parts", 1, "how many processes run seeds; other tests run beside those of CI")
)

// plan is what happens in a run. It determines everything except the order of goroutines.
type plan struct {
	Generation uint32 // of the kernel at the start
	Flags      uint16 // configuration
	Blocks     [][]step
}

// step is a step of a plan.
type step struct {
	Kind uint8
	Arg  uint64
}

type stepKind uint8

const (
	changeObjects stepKind = iota
	arm
	tamper
	commitElsewhere
	disturbWatches
	restart
	refuse
	readers
	silence
	wait
	settle
)

// kinds are the kinds of steps, as often as they are chosen. Shrinking prefers earlier ones.
var kinds = []stepKind{
	changeObjects, changeObjects, changeObjects, changeObjects, changeObjects, changeObjects, changeObjects, changeObjects,
	wait, settle, settle, silence, commitElsewhere, arm, arm, arm, tamper, disturbWatches, disturbWatches, readers, refuse, restart,
}

var kindNames = [...]string{"objects change", "arm a failure", "another program changes the tables", "another program commits", "the watches are disturbed", "restart", "refuse an endpoint", "other programs read", "endpoints fall silent", "wait", "settle"}

func (s step) kind() stepKind { return kinds[int(s.Kind)%len(kinds)] }

func (s step) String() string { return fmt.Sprintf("%s (%d)", kindNames[s.kind()], s.Arg) }

func (p plan) steps() (all []step) {
	for _, b := range p.Blocks {
		all = append(all, b...)
	}
	return all
}

func (p plan) String() string {
	lines := []string{fmt.Sprintf("generation %d, flags %#x", p.Generation, p.Flags)}
	for _, s := range p.steps() {
		lines = append(lines, s.String())
	}
	return strings.Join(lines, "\n")
}

// plans generates plans. They consist of blocks, so that they are long and can still become short.
var plans = rapid.Custom(func(t *rapid.T) plan {
	steps := rapid.Custom(func(t *rapid.T) step {
		return step{rapid.Uint8Range(0, uint8(len(kinds)-1)).Draw(t, "kind"), rapid.Uint64().Draw(t, "arg")}
	})
	p := plan{Generation: rapid.Uint32().Draw(t, "generation"), Flags: rapid.Uint16().Draw(t, "flags")}
	for range 12 {
		p.Blocks = append(p.Blocks, rapid.SliceOfN(steps, 0, 10).Draw(t, "steps"))
	}
	return p
})

// simulate runs a plan in a bubble. A goroutine that stays is a failure of the bubble.
func simulate(t *testing.T, p plan) (w *world) {
	//lint:ignore SA1019 client-go has no other source of randomness
	mathrand.Seed(int64(p.Generation)) // for the jitter of client-go's delays
	synctest.Test(t, func(*testing.T) { w = run(p) })
	return w
}

// onHost skips a test on User Mode Linux: it uses no kernel.
func onHost(t *testing.T) {
	if kerneltest.UML() {
		t.Skip("the same on each kernel")
	}
}

// counted is what a process has done.
type counted struct{ Runs, Source, Kernel int }

const countedFormat = "counted %d runs, %d source events, %d kernel events\n"

// TestSimulation runs plans of many seeds, in processes: delays have random parts, of which a process
// has one sequence.
func TestSimulation(t *testing.T) {
	onHost(t)
	first := cmp.Or(*seed, 1+rand.Uint64N(1<<40))
	if *part >= 0 || *runs == 1 {
		c := simulateSeeds(t, first)
		fmt.Printf(countedFormat, c.Runs, c.Source, c.Kernel)
		return
	}
	fmt.Printf("first seed %d; make sim SEED=N repeats that of a seed\n", first)
	began := time.Now()
	parts := *parts
	outputs := make([][]byte, parts)
	var running errgroup.Group
	for i := range parts {
		cmd := exec.Command(os.Args[0], "-test.run=^TestSimulation$", "-test.v", fmt.Sprint("-sim-seed=", first), fmt.Sprint("-sim-part=", i),
			fmt.Sprint("-sim-parts=", parts), fmt.Sprint("-sim-runs=", *runs), fmt.Sprint("-sim-for=", *long))
		running.Go(func() (err error) {
			outputs[i], err = cmd.CombinedOutput()
			return err
		})
	}
	err := running.Wait()
	took := time.Since(began)
	var all counted
	for _, output := range outputs {
		if err != nil {
			t.Logf("%s", output)
		}
		var c counted
		if at := bytes.Index(output, []byte("counted ")); at >= 0 {
			if _, err := fmt.Sscanf(string(output[at:]), countedFormat, &c.Runs, &c.Source, &c.Kernel); err != nil {
				t.Error(err)
			}
		}
		all.Runs, all.Source, all.Kernel = all.Runs+c.Runs, all.Source+c.Source, all.Kernel+c.Kernel
	}
	if err != nil || all.Runs == 0 {
		t.Errorf("%d runs: %v", all.Runs, err)
	}
	fmt.Printf("%d runs, %d events of the source and %d of the kernel in %v, %.0f a minute\n",
		all.Runs, all.Source, all.Kernel, took.Round(time.Millisecond), float64(all.Source+all.Kernel)/took.Minutes())
}

// simulateSeeds runs the plans of this process's seeds until one fails.
func simulateSeeds(t *testing.T, first uint64) (c counted) {
	runtime.GOMAXPROCS(1)
	debug.SetGCPercent(400)
	began := time.Now()
	for i := max(*part, 0); i < *runs && time.Since(began) < *long; i += *parts {
		s := first + uint64(i)
		w := simulate(t, plans.Example(int(s)))
		c = counted{c.Runs + 1, c.Source + w.sources + w.server.events, c.Kernel + w.kernel.events}
		if *runs == 1 {
			fmt.Printf("%s\ntrace hash %x\n", strings.Join(w.traced, "\n"), w.trace.Sum(nil))
		}
		if w.violation != nil {
			t.Logf("seed %d: %v", s, w.violation)
			shrink(t, s)
			t.Errorf("seed %d fails once, and not again", s)
			break
		}
	}
	return c
}

// TestRepeats runs some plans twice: the same happens.
func TestRepeats(t *testing.T) {
	onHost(t)
	runtime.GOMAXPROCS(1)
	first := cmp.Or(*seed, 1+rand.Uint64N(1<<40))
	var differ []string
	for i := range uint64(*repeats) {
		p := plans.Example(int(first + i))
		a, b := simulate(t, p), simulate(t, p)
		if !bytes.Equal(a.trace.Sum(nil), b.trace.Sum(nil)) {
			differ = append(differ, fmt.Sprintf("seed %d:\n%s", first+i, difference(a.traced, b.traced)))
		}
	}
	t.Logf("%d plans from seed %d", *repeats, first)
	if len(differ) > 0 {
		t.Errorf("%d of %d plans do not repeat:\n%s", len(differ), *repeats, strings.Join(differ, "\n"))
	}
}

// difference returns the first line that differs, with those before.
func difference(a, b []string) string {
	n := 0
	for n < min(len(a), len(b)) && a[n] == b[n] {
		n++
	}
	return fmt.Sprintf("%s\n- %s\n+ %s", strings.Join(a[max(0, n-8):n], "\n"), strings.Join(a[n:min(n+3, len(a))], "\n- "), strings.Join(b[n:min(n+3, len(b))], "\n+ "))
}

// shrink looks for a short plan that fails as that of a seed.
func shrink(t *testing.T, seed uint64) {
	for name, value := range map[string]string{"rapid.seed": fmt.Sprint(seed), "rapid.checks": "1", "rapid.nofailfile": "true"} {
		if err := flag.Set(name, value); err != nil {
			t.Fatal(err)
		}
	}
	rapid.Check(t, func(r *rapid.T) {
		p := plans.Draw(r, "plan")
		if w := simulate(t, p); w.violation != nil {
			r.Fatalf("%v\n%s", w.violation, p)
		}
	})
}
