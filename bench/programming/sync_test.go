// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"slices"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/bench/bench"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/proxy"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// small is a cluster that is measured within a second.
func small() Options {
	return Options{
		Services: 50, Endpoints: 5, Mode: "nftables", Repetitions: 5, Runs: 1,
		Child: childCommand,
	}
}

// bounded is a context that ends long after a small measurement should have.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

func measure(t *testing.T, o Options) *bench.Result {
	t.Helper()
	r, err := bench.Run(bounded(t), "sync", &o)
	if err != nil {
		t.Fatal(err)
	}
	return r
}

// checkSeries checks that all series have values.
func checkSeries(t *testing.T, r *bench.Result) {
	t.Helper()
	if r.Machine.Kernel == "" || r.LoadAfter == "" || len(r.Subjects) != 1 {
		t.Errorf("%+v", r)
	}
	for _, s := range series() {
		got := r.Find(s.Name)
		if got == nil {
			t.Errorf("no %s", s.Name)
			continue
		}
		values := got.Outcomes[0].Values
		// Some kernels count processor time in ticks, and few may pass here.
		ticks := strings.HasSuffix(s.Name, cpuSuffix)
		if len(values) == 0 || !ticks && slices.Min(values) <= 0 {
			t.Errorf("%s: %v", s.Name, values)
		}
	}
}

// A whole measurement on the real kernel: the kernel has the desired content, by its own
// account, and the result has every series.
func TestSyncMeasures(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	o := small()
	r := measure(t, o)
	checkSeries(t, r)
	// A frontend, a pool, its endpoints and an address of each Service; and what the node itself takes.
	if got, least := r.Find("cold_start_elements").Outcomes[0].Median, o.Services*(3+o.Endpoints); got < float64(least) {
		t.Errorf("%v elements written, want %d at least", got, least)
	}
	if got := r.Find("endpoint_replaced_elements").Outcomes[0].Median; got != 2 {
		t.Errorf("%v elements written for a replaced endpoint, want 2", got)
	}
}

func TestSyncMeasuresIPTables(t *testing.T) {
	for mode, variant := range map[string]kerneltest.Feature{"iptables-legacy": kerneltest.IPTablesLegacy, "iptables-nft": kerneltest.IPTablesNFT} {
		t.Run(mode, func(t *testing.T) {
			kerneltest.Require(t, variant, kerneltest.IPSet)
			o := small()
			o.Mode = mode
			r := measure(t, o)
			checkSeries(t, r)
			// A chain of a rule for each endpoint.
			if got, want := r.Find("endpoint_replaced_elements").Outcomes[0].Median, 1+o.Endpoints; got < float64(want) {
				t.Errorf("%v lines written for a replaced endpoint, want %d at least", got, want)
			}
		})
	}
}

func TestSyncMeasuresIPVS(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPVS)
	o := small()
	o.Mode = "ipvs"
	checkSeries(t, measure(t, o))
}

// A mode that leaves the variant open is the one that the machine uses.
func TestResolve(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesNFT)
	inNamespace(t, func() {
		o := small()
		o.Mode = modeIPTables
		if err := o.Validate(t.Context()); err != nil || o.Mode != "iptables-nft" {
			t.Errorf("without any rules, it is %s, %v", o.Mode, err)
		}
	})
}

// inNamespace runs f on a thread in a network namespace of its own.
func inNamespace(t *testing.T, f func()) {
	t.Helper()
	n, err := lab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer n.Close()
	if err := n.Do(func() error { f(); return nil }); err != nil {
		t.Fatal(err)
	}
}

// verify compares the kernel's content with the cluster's.
func (s *slipstream) verify() error {
	v, err := dataplane.Verify(context.Background(), s.backend.(dataplane.Reader), &s.state.Full().Change)
	if err == nil && len(v.Differences) > 0 {
		err = fmt.Errorf("the kernel does not have the desired content: %.300s", v)
	}
	return err
}

// The kernel has what was measured: all of the cluster, and no change that it did not get.
func TestVerifyFindsDifferences(t *testing.T) {
	for _, mode := range []string{"nftables", "iptables-nft"} {
		o := small()
		o.Mode = mode
		require := func(t *testing.T) {
			kerneltest.Require(t, kerneltest.NFTables, kerneltest.NFTBinary)
			if mode != "nftables" {
				kerneltest.Require(t, kerneltest.IPTablesNFT, kerneltest.IPSet)
			}
		}
		t.Run("slipstream, "+mode, func(t *testing.T) {
			require(t)
			inNamespace(t, func() {
				s := newSlipstream(&o)
				defer s.close()
				if err := errors.Join(s.cold(), s.changes(3), s.verify()); err != nil {
					t.Error(err)
				}
				for _, e := range s.cluster.ReplaceEndpoint() { // a change that the kernel does not get
					proxy.ApplyEvent(s.state, e)
				}
				if s.verify() == nil {
					t.Error("no difference was found")
				}
			})
		})
	}
}

// A single Service of a single endpoint is measured like any other.
func TestSmallestCluster(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	o := small()
	o.Services, o.Endpoints, o.Runs = 1, 1, 2
	o.Repetitions = 4 * rounds
	r := measure(t, o)
	checkRepetitions(t, r, o)
	if got := len(r.Find(coldStart).Outcomes[0].Values); got != 2 {
		t.Errorf("%d cold starts, want 2", got)
	}
}

// checkRepetitions checks that all repetitions of all kinds of changes were made.
func checkRepetitions(t *testing.T, r *bench.Result, o Options) {
	t.Helper()
	for _, c := range changes {
		if got, want := len(r.Find(c.name).Outcomes[0].Values), o.Repetitions*o.Runs; got != want {
			t.Errorf("%s: %d repetitions, want %d", c.name, got, want)
		}
	}
}

// Nothing is left in the network namespace of the process that measures. A process in a
// namespace of its own does so here; see TestMain.
func TestSyncLeavesNoTrace(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	cmd := exec.CommandContext(bounded(t), "/proc/self/exe", "bench-trace")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "measured\n" {
		t.Errorf("error %v, found there: %s", err, out)
	}
}

// traceOfSync measures and prints what is in this process's network namespace afterwards
// that was not there before.
func traceOfSync() error {
	before, err := net.Interfaces()
	if err != nil {
		return err
	}
	o := small()
	if _, err := bench.Run(context.Background(), "sync", &o); err != nil {
		return err
	}
	fmt.Println("measured")
	list := exec.Command("nft", "list", "ruleset")
	list.Stdout, list.Stderr = os.Stdout, os.Stderr
	after, err := net.Interfaces()
	if len(after) != len(before) {
		fmt.Println(after)
	}
	return errors.Join(list.Run(), err)
}

// A broken child is an error that says so, and does not hang.
func TestChildProblems(t *testing.T) {
	kerneltest.Require(t, kerneltest.NetNS)
	tests := []struct {
		name    string
		command []string
		want    string
	}{
		{"no such program", []string{"/nonexistent"}, "start /nonexistent"},
		{"ends at once", []string{"/bin/true"}, "slipstream: "},
		{"fails", []string{"/bin/cat", "/nonexistent"}, "No such file"},
		{"prints something else", []string{"/bin/echo", "hello"}, "slipstream: "},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := small()
			o.Child = test.command
			_, err := bench.Run(bounded(t), "sync", &o)
			if err == nil || !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}

func TestInterrupted(t *testing.T) {
	kerneltest.Require(t, kerneltest.NetNS)
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := small()
	if _, err := bench.Run(ctx, "sync", &o); err == nil || err.Error() != "interrupted" {
		t.Errorf("error %v", err)
	}
}

func TestRunChildFails(t *testing.T) {
	for options, want := range map[string]string{"": "options: ", `{"mode":"x"}`: `no mode "x"`} {
		var out strings.Builder
		if err := RunChild(options, &out); err == nil || !strings.Contains(err.Error(), want) || out.Len() > 0 {
			t.Errorf("%s: error %v, want %s; it wrote %q", options, err, want, &out)
		}
	}
}
