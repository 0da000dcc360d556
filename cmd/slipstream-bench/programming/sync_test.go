// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"bytes"
	"context"
	"encoding/json"
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

	"github.com/slipstream-proxy/slipstream/test/kerneltest"
)

// small is a cluster that is measured within a second.
func small(family string) SyncOptions {
	return SyncOptions{
		Services: 50, Endpoints: 5, Family: family, Mode: "nftables", Repetitions: 5, Runs: 1, Seed: 1,
		Baseline: BaselineOn, BaselineTimeout: time.Minute, Verify: true,
	}
}

// bounded is a context that ends long after a small measurement should have.
func bounded(t *testing.T) context.Context {
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	t.Cleanup(cancel)
	return ctx
}

// measure measures; fields are the result's JSON.
func measure(t *testing.T, o SyncOptions) (r *SyncResult, fields map[string]any) {
	t.Helper()
	r, err := Sync(bounded(t), child, o)
	if err != nil {
		t.Fatal(err)
	}
	var b bytes.Buffer
	if err := r.WriteJSON(&b); err != nil {
		t.Fatal(err)
	}
	if err := json.Unmarshal(b.Bytes(), &fields); err != nil {
		t.Fatal(err)
	}
	return r, fields
}

// A whole measurement on the real kernel: the kernel has what was meant, by its
// own account, and the result has every field.
func TestSyncMeasures(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	for _, family := range Families {
		t.Run(family, func(t *testing.T) {
			o := small(family)
			r, fields := measure(t, o)
			checkFields(t, fields, slipstreamFields)
			if _, err := exec.LookPath("nft"); err != nil {
				if !strings.Contains(r.Chains.Skipped, "not installed") {
					t.Errorf("without the nft command the baseline was skipped because %q", r.Chains.Skipped)
				}
			} else {
				checkFields(t, fields, chainsFields)
				if r.Chains.Skipped != "" {
					t.Errorf("part of the baseline was skipped: %s", r.Chains.Skipped)
				}
			}
			// A frontend, a pool, its endpoints and an address of each
			// Service, in each family; and what the node itself takes.
			if got, least := r.Slipstream.Cold.Elements, o.Services*(3+o.Endpoints)*len(o.families()); got < least {
				t.Errorf("%d elements written, want %d at least", got, least)
			}
			if got, want := r.Slipstream.Changes[endpointReplaced].Elements, 2*len(o.families()); got != want {
				t.Errorf("%d elements written for a replaced endpoint, want %d", got, want)
			}
		})
	}
}

// In the modes of iptables too, beside a list loaded by iptables-restore.
func TestSyncMeasuresIPTables(t *testing.T) {
	for mode, variant := range map[string]kerneltest.Feature{"iptables-legacy": kerneltest.IPTablesLegacy, "iptables-nft": kerneltest.IPTablesNFT} {
		t.Run(mode, func(t *testing.T) {
			kerneltest.Require(t, variant, kerneltest.IPSet)
			o := small(FamilyDual)
			o.Mode = mode
			r, fields := measure(t, o)
			checkFields(t, fields, slipstreamFields)
			checkFields(t, fields, chainsFields)
			if r.Chains.Skipped != "" {
				t.Errorf("part of the baseline was skipped: %s", r.Chains.Skipped)
			}
			// A chain of a rule for each endpoint, in each family.
			if got, want := r.Slipstream.Changes[endpointReplaced].Elements, (1+o.Endpoints)*2; got < want {
				t.Errorf("%d lines written for a replaced endpoint, want %d at least", got, want)
			}
			var b bytes.Buffer
			if err := r.WriteTable(&b); err != nil || !strings.Contains(b.String(), "list via "+mode+"-restore") {
				t.Errorf("%v in\n%s", err, &b)
			}
		})
	}
}

// A mode that leaves the variant open is the one that the machine uses.
func TestResolve(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesNFT)
	onOwnNetNS(t, func() {
		o := small(FamilyIPv4)
		o.Mode = modeIPTables
		if err := o.Validate(); err != nil {
			t.Error(err)
		}
		if err := o.resolve(); err != nil || o.Mode != "iptables-nft" {
			t.Errorf("where nothing is, it is %s, %v", o.Mode, err)
		}
	})
}

// Fields that are there and not zero, by path.
var (
	slipstreamFields = []string{
		"machine.kernel", "machine.cpu", "machine.cpus", "machine.go", "machine.load_average",
		"options.services", "options.endpoints_per_service", "options.family", "options.mode",
		"options.repetitions", "options.runs", "options.seed", "options.baseline",
		"slipstream.cold.total_ms", "slipstream.cold.state_ms", "slipstream.cold.full_ms",
		"slipstream.cold.kernel_ms", "slipstream.cold.elements", "slipstream.cold.bytes",
		"slipstream.restart.total_ms", "slipstream.restart.state_ms", "slipstream.restart.full_ms",
		"slipstream.restart.kernel_ms", "slipstream.restart.elements", "slipstream.restart.bytes",
		"slipstream.changes.endpoint_replaced.*", "slipstream.changes.endpoint_added.*",
		"slipstream.changes.endpoint_removed.*", "slipstream.changes.service_added.*",
		"slipstream.changes.service_removed.*",
		"slipstream.burst.changes", "slipstream.burst.count", "slipstream.burst.total_ms",
		"slipstream.burst.per_change_us", "slipstream.burst.elements", "slipstream.burst.bytes",
		"slipstream.memory.peak_cold_bytes", "slipstream.memory.peak_bytes",
		"slipstream.memory.rest_cold.rss_bytes", "slipstream.memory.rest_cold.heap_bytes",
		"slipstream.memory.rest.rss_bytes", "slipstream.memory.rest.heap_bytes",
		"slipstream.cold_totals_ms", "slipstream.verified",
	}
	latencyFields = []string{"count", "median_us", "p99_us", "max_us", "cpu_us", "elements", "bytes"}
	chainsFields  = []string{
		"chains.cold.total_ms", "chains.cold.cpu_ms", "chains.cold.bytes",
		"chains.endpoint_replaced.count", "chains.endpoint_replaced.median_us",
		"chains.endpoint_replaced.max_us", "chains.endpoint_replaced.cpu_us", "chains.endpoint_replaced.bytes",
		"chains.peak_bytes", "chains.verified",
	}
)

func checkFields(t *testing.T, all map[string]any, paths []string) {
	t.Helper()
	for _, path := range paths {
		if prefix, ok := strings.CutSuffix(path, "*"); ok {
			for _, f := range latencyFields {
				checkFields(t, all, []string{prefix + f})
			}
			continue
		}
		var at any = all
		for name := range strings.SplitSeq(path, ".") {
			m, _ := at.(map[string]any)
			at = m[name]
		}
		// Some kernels count processor time in ticks, and not enough pass here.
		ticks := strings.Contains(path, ".cpu_")
		if at == nil || at == 0.0 && !ticks || at == "" || at == false {
			t.Errorf("JSON field %s is %v", path, at)
		}
	}
}

// Where the kernel has something else than was meant, verifying says so.
func TestVerifyFindsDifferences(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	systems := map[string]string{"slipstream": "nftables", "slipstream, iptables": "iptables-nft"}
	if _, err := exec.LookPath("nft"); err == nil {
		systems["chains"] = "nftables"
	}
	systems["chains, iptables"] = "iptables-nft"
	for name, mode := range systems {
		t.Run(name, func(t *testing.T) {
			if mode != "nftables" {
				kerneltest.Require(t, kerneltest.IPTablesNFT, kerneltest.IPSet)
			}
			o := small(FamilyIPv4)
			o.Mode = mode
			name, _, _ := strings.Cut(name, ",")
			onOwnNetNS(t, func() {
				s, r, err := open(request{Step: stepOpen, System: name, Options: &o})
				if err != nil || r.Unavailable != "" {
					t.Error(err, r.Unavailable)
					return
				}
				defer s.close()
				for _, step := range []string{stepCold, stepReplace, stepVerify} {
					if _, err := s.do(request{Step: step, Repetitions: 3, Limit: time.Minute}); err != nil {
						t.Errorf("step %s: %v", step, err)
						return
					}
				}
				switch s := s.(type) { // a change that the kernel is not told of
				case *slipstream:
					s.cluster.replaceEndpoint()
				case *chains:
					s.cluster.replaceEndpoint()
				}
				if _, err := s.do(request{Step: stepVerify}); err == nil {
					t.Error("no difference was found")
				}
			})
		})
	}
}

// In parts, the baseline is the same as in one piece.
func TestSplitLoadsTheSame(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	o := small(FamilyIPv4)
	o.Services, o.Endpoints = splitServices+100, 1
	onOwnNetNS(t, func() {
		c, err := newChains(&o)
		if err != nil {
			t.Error(err)
			return
		}
		bytes := map[string]int{}
		for _, step := range []string{stepCold, stepVerify, stepSplit, stepVerify} {
			r, err := c.do(request{Step: step})
			if err != nil {
				t.Errorf("step %s: %v", step, err)
			}
			if r.Load != nil {
				bytes[step] = r.Load.Bytes
			}
		}
		if bytes[stepCold] == 0 || bytes[stepSplit] != bytes[stepCold] {
			t.Errorf("bytes loaded: %v", bytes)
		}
	})
}

// What nft cannot do in time is left out, and said.
func TestBaselineTimeout(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	o := small(FamilyIPv4)
	o.BaselineTimeout = time.Microsecond
	r, err := Sync(bounded(t), child, o)
	if err != nil {
		t.Fatal(err)
	}
	if !strings.Contains(r.Chains.Skipped, "more than 1µs") || r.Chains.Cold != nil || r.Chains.EndpointReplaced != nil {
		t.Errorf("%+v", r.Chains)
	}
	checkLatencies(t, r)
}

// A single Service of a single endpoint is measured like any other.
func TestSmallestCluster(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	o := small(FamilyIPv4)
	o.Services, o.Endpoints, o.Baseline, o.Runs = 1, 1, BaselineOff, 2
	o.Repetitions = 4 * rounds
	r, err := Sync(bounded(t), child, o)
	if err != nil {
		t.Fatal(err)
	}
	checkLatencies(t, r)
	if got := len(r.Slipstream.ColdTotalsMS); got != 2 {
		t.Errorf("%d cold starts, want 2", got)
	}
}

// checkLatencies wants all repetitions of all kinds of changes.
func checkLatencies(t *testing.T, r *SyncResult) {
	t.Helper()
	for _, s := range seriesNames {
		want := r.Options.Repetitions * r.Options.Runs
		if l := r.Slipstream.Changes[s.name]; l == nil || l.Count != want {
			t.Errorf("%s: %+v, want %d repetitions", s.name, l, want)
		}
	}
}

// Nothing is left in the network namespace of whoever measures. That is done by
// a process in a namespace of its own; see TestMain.
func TestSyncLeavesNoTrace(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	cmd := exec.CommandContext(bounded(t), "/proc/self/exe", "bench-trace")
	cmd.SysProcAttr = &syscall.SysProcAttr{Cloneflags: syscall.CLONE_NEWNET, Pdeathsig: syscall.SIGKILL}
	out, err := cmd.CombinedOutput()
	if err != nil || string(out) != "measured\n" {
		t.Errorf("error %v, found there: %s", err, out)
	}
}

// traceOfSync measures and prints what there is in this process's network
// namespace afterwards that was not there before.
func traceOfSync() error {
	before, err := net.Interfaces()
	if err != nil {
		return err
	}
	if _, err := Sync(context.Background(), child, small(FamilyDual)); err != nil {
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

// A broken child is an error that says which, and does not hang.
func TestChildProblems(t *testing.T) {
	kerneltest.Require(t, kerneltest.NetNS)
	tests := []struct {
		name    string
		command Command
		want    string
	}{
		{"no such program", Command{"/nonexistent"}, "starting a process"},
		{"ends at once", Command{"/bin/true"}, "slipstream: step open: the process has ended"},
		{"says something else", Command{"/bin/cat", "/proc/version"}, "slipstream: step open"},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			_, err := Sync(bounded(t), test.command, small(FamilyIPv4))
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
	if _, err := Sync(ctx, child, small(FamilyIPv4)); err == nil || err.Error() != "interrupted" {
		t.Errorf("error %v", err)
	}
}

func TestRunChildAnswers(t *testing.T) {
	tests := []struct{ in, want string }{
		{"", ""},
		{`{"Step":"cold"}`, `{"Error":"no system is open"}`},
		{`{"Step":"open","System":"slipstream"}`, `{"Error":"no options"}`},
		{`{"Step":"open","System":"x","Options":{}}`, `{"Error":"no system \"x\""}`},
		{`{"Step":"open","System":"slipstream","Options":{"mode":"x"}}`, `{"Error":"no mode \"x\""}`},
	}
	for _, test := range tests {
		var out strings.Builder
		if err := RunChild(strings.NewReader(test.in), &out); err != nil {
			t.Errorf("%s: %v", test.in, err)
		}
		if got := strings.TrimSpace(out.String()); got != test.want {
			t.Errorf("%s: %s, want %s", test.in, got, test.want)
		}
	}
	if err := RunChild(strings.NewReader("x"), os.Stderr); err == nil {
		t.Error("no error for a request that is none")
	}
}

// With --profile there is a profile of every step.
func TestProfiles(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	o := small(FamilyIPv4)
	o.Baseline, o.ProfileDir = BaselineOff, t.TempDir()
	if _, err := Sync(bounded(t), child, o); err != nil {
		t.Fatal(err)
	}
	files, err := os.ReadDir(o.ProfileDir)
	if err != nil {
		t.Fatal(err)
	}
	var names []string
	for _, f := range files {
		names = append(names, f.Name())
	}
	for _, want := range []string{"cold-1.cpu.pprof", "restart-1.cpu.pprof", "replace-1.cpu.pprof", "replace-5.cpu.pprof", "heap.pprof"} {
		if !slices.Contains(names, want) {
			t.Errorf("no %s in %v", want, names)
		}
	}
}
