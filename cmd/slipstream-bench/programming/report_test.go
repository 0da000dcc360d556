// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/machine"
)

func someResult() *SyncResult {
	change := &Latency{Count: 1000, MedianUS: 14, P99US: 60, MaxUS: 800, CPUUS: 20, Elements: 2}
	r := &SyncResult{
		Machine: machine.Machine{Kernel: "6.18.0", CPU: "Some CPU", CPUs: 2, Go: "go1.26", Load: "0.10"},
		Options: SyncOptions{Services: 10_000, Endpoints: 10, Family: FamilyIPv4, Mode: "nftables", Repetitions: 1000, Runs: 3, Seed: 7},
		Slipstream: Costs{
			Cold:     Programming{TotalMS: 300, StateMS: 50, FullMS: 20, KernelMS: 230, Elements: 130_077, Bytes: 4_910_000},
			Restart:  Programming{TotalMS: 250, StateMS: 50, FullMS: 20, KernelMS: 180},
			Changes:  map[string]*Latency{},
			Burst:    Burst{Changes: 1000, Count: 5, TotalMS: 6, PerChangeUS: 6, Elements: 1990},
			Memory:   Memory{PeakColdBytes: 73e6, PeakBytes: 76e6, RestCold: Rest{48e6, 35e6, 13e6, 25e6}, Rest: Rest{Resident: 54e6}},
			Verified: true,
		},
		Chains: Chains{
			Cold:             &Load{TotalMS: 142_000, CPUMS: 141_000, Bytes: 49_800_000},
			ColdSplit:        &Load{TotalMS: 13_000, Bytes: 49_800_000},
			EndpointReplaced: &Latency{Count: 5, MedianUS: 567_000, MaxUS: 585_000, CPUUS: 546_000},
			PeakBytes:        1_220_000_000,
		},
	}
	for _, s := range seriesNames {
		r.Slipstream.Changes[s.name] = change
	}
	return r
}

func TestWriteTable(t *testing.T) {
	tests := []struct {
		name         string
		set          func(*SyncResult)
		with, hasNot []string
	}{
		{
			name: "all",
			set:  func(*SyncResult) {},
			with: []string{
				"10,000 Services x 10 endpoints, ipv4, mode nftables, up to 1,000 repetitions of each change, seed 7, runs: 3\n" +
					"Linux 6.18.0, 2 x Some CPU, go1.26, load average 0.10\n",
				"of the run in the middle of 3\n",
				"verified: what the kernel had",
				"                                                  slipstream  chains via nft -f  nft / slipstream\n" +
					"cold start (nft: one transaction)                     300 ms              142 s               470\n" +
					"  nft: a transaction for every 1,000 Services                            13.0 s                43\n" +
					"  objects into the state                             50.0 ms\n",
				"one endpoint replaced, median of 1,000, nft of 5     14.0 µs             567 ms            41,000\n" +
					"  99th percentile                                    60.0 µs\n" +
					"  longest                                             800 µs             585 ms               730\n",
				"one Service removed, median of 1,000                 14.0 µs\n",
				"burst of 1,000 endpoints replaced, median of 5       6.00 ms\n",
				"peak RSS of the cold start (nft: of the command)     73.0 MB            1.22 GB                17\n",
			},
			hasNot: []string{"not all measured"},
		},
		{
			name:   "no baseline",
			set:    func(r *SyncResult) { r.Chains = Chains{Skipped: "off"} },
			with:   []string{"chains via nft -f: not all measured (off)\n", "cold start (nft: one transaction)                     300 ms\n"},
			hasNot: []string{"a transaction for every", "NaN", "Inf", " 0.00"},
		},
		{
			name:   "one run",
			set:    func(r *SyncResult) { r.Options.Runs, r.Slipstream.Verified = 1, false },
			hasNot: []string{"in the middle", "verified"},
		},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			r := someResult()
			test.set(r)
			var got strings.Builder
			if err := r.WriteTable(&got); err != nil {
				t.Fatal(err)
			}
			for _, want := range test.with {
				if !strings.Contains(got.String(), want) {
					t.Errorf("no\n%sin\n%s", want, &got)
				}
			}
			for _, unwanted := range test.hasNot {
				if strings.Contains(got.String(), unwanted) {
					t.Errorf("%q in\n%s", unwanted, &got)
				}
			}
		})
	}
}
