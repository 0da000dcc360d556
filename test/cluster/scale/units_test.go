// SPDX-License-Identifier: Apache-2.0

package main

import (
	"net/netip"
	"os"
	"os/exec"
	"reflect"
	"strings"
	"testing"
	"time"
)

// TestContent wants addresses of Services and of endpoints that nobody else has.
func TestContent(t *testing.T) {
	c := newContent(300, 250, changing, 7)
	seen := map[netip.Addr]bool{}
	take := func(a netip.Addr, from netip.Prefix) {
		t.Helper()
		if seen[a] || !from.Contains(a) {
			t.Fatalf("%v, of %v, seen before: %v", a, from, seen[a])
		}
		seen[a] = true
	}
	slices, endpoints := 0, 0
	for i := range c.services {
		take(frontend(i).Addr(), serviceCIDR)
		if got := c.service(i).Spec.ClusterIP; got != frontend(i).Addr().String() {
			t.Errorf("Service %d: %s", i, got)
		}
		for _, s := range c.slices(i) {
			slices++
			for _, e := range s.Endpoints {
				endpoints++
				take(netip.MustParseAddr(e.Addresses[0]), podRange)
			}
		}
	}
	if want := (300-changing)*3 + changing; slices != want {
		t.Errorf("%d slices, want %d", slices, want)
	}
	if want := (300-changing)*250 + changing; endpoints != want {
		t.Errorf("%d endpoints, want %d", endpoints, want)
	}
	i := c.plain[0]
	moved := c.replace(i, 120)
	take(moved, podRange)
	if got := c.slice(i, 100).Endpoints[20].Addresses[0]; got != moved.String() {
		t.Errorf("replaced endpoint: %s, want %v", got, moved)
	}
}

// TestLimits wants addresses to be in their ranges in the largest cluster too.
func TestLimits(t *testing.T) {
	if last := frontend(maxServices - 1).Addr(); !serviceCIDR.Contains(last) {
		t.Error(last)
	}
	if last := add(podRange, maxAllEndpoints+3_000_000); !podRange.Contains(last) {
		t.Error(last)
	}
}

func TestParse(t *testing.T) {
	o, err := parse(nil)
	if err != nil || o.Services != 10_000 || o.Endpoints != 10 || o.Runs != 1 {
		t.Errorf("%+v %v", o, err)
	}
	for flags, want := range map[string]string{
		"-services 3":                     "-services: must be 32 to",
		"-endpoints 0":                    "-endpoints",
		"-services 500000 -endpoints 100": "-endpoints: 500000 Services of 100",
		"-runs 0":                         "-runs",
		"-changes 0":                      "-changes",
		"-burst 0":                        "-burst:",
		"-timeout 0s":                     "-timeout",
		"-iptables xtables":               `-iptables: "xtables"`,
		"-output yaml":                    `-output: "yaml"`,
		"-subjects slipstream,calico":     `-subjects: "calico"`,
		"-subjects slipstream,slipstream": "-subjects: slipstream is there twice",
		"fast":                            `"fast"`,
	} {
		if _, err := parse(strings.Fields(flags)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: error %v, want %s", flags, err, want)
		}
	}
}

func TestSumUp(t *testing.T) {
	r := result{Subjects: []*outcome{
		{Runs: []*run{
			{StartMS: 10, ChangesMS: []float64{1, 2}, BurstsMS: []float64{4}, PeakBytes: 100, ChangeUserMS: 1, ChangeSystemMS: 1},
			{StartMS: 30, ChangesMS: []float64{9}, BurstsMS: []float64{6}, PeakBytes: 300, ChangeUserMS: 3, ChangeSystemMS: 1},
			{StartMS: 20},
		}},
		{Runs: []*run{{StartMS: 100, ChangesMS: []float64{50}, BurstsMS: []float64{10}, PeakBytes: 400, ChangeUserMS: 30}}},
		{Failed: "it ended"},
	}}
	r.sumUp()
	c := r.Subjects[0].Costs
	if c.StartMS != 20 || c.Changes != 3 || c.ChangeMedianMS != 2 || c.ChangeMaxMS != 9 || c.BurstMS != 5 || c.PeakBytes != 200 || c.ChangeCPUMS != 3 {
		t.Errorf("%+v", c)
	}
	want := &ratios{Start: 5, ChangeMedian: 25, ChangeP99: 50.0 / 9, ChangeCPU: 10, Burst: 2, Peak: 2}
	if got := r.Subjects[1].Times; !reflect.DeepEqual(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if got := *r.Subjects[2].Times; got != (ratios{}) {
		t.Errorf("of what was not measured: %+v", got)
	}
}

// TestUsed wants the processor time of this process and of the commands that it has run.
func TestUsed(t *testing.T) {
	before, err := used(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	const half = 300 * time.Millisecond
	for now := before; now.minus(before).sum() < half; {
		if now, err = used(os.Getpid()); err != nil {
			t.Fatal(err)
		}
	}
	// A command that works until it has used that much.
	script := `while read -r _ _ _ _ _ _ _ _ _ _ _ _ _ u s _ < /proc/$$/stat; [ $((u + s)) -lt 30 ]; do :; done`
	if out, err := exec.Command("sh", "-c", script).CombinedOutput(); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	after, err := used(os.Getpid())
	if err != nil {
		t.Fatal(err)
	}
	if got := after.minus(before).sum(); got < 2*half || got > 60*half {
		t.Errorf("used %v, want %v and a little", got, 2*half)
	}
	if n, err := peak(os.Getpid()); err != nil || n < 1<<20 {
		t.Errorf("peak: %d, %v", n, err)
	}
}
