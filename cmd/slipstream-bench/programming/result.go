// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"encoding/json"
	"io"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/machine"
)

// SyncResult is what [Sync] has measured. Units are in the names of the JSON
// fields.
type SyncResult struct {
	Machine    machine.Machine `json:"machine"`
	Options    SyncOptions     `json:"options"`
	Slipstream Costs           `json:"slipstream"`
	Chains     Chains          `json:"chains"`
}

// Costs are Slipstream's.
type Costs struct {
	Cold    Programming         `json:"cold"`
	Restart Programming         `json:"restart"`
	Changes map[string]*Latency `json:"changes"` // by name of series, e.g. "endpoint_replaced"
	Burst   Burst               `json:"burst"`
	Memory  Memory              `json:"memory"`

	// ColdTotalsMS are the totals of all runs; Cold is the run in the
	// middle.
	ColdTotalsMS []float64 `json:"cold_totals_ms"`

	Verified bool `json:"verified"` // what the kernel has was read back and is right
}

// Programming is what it costs to program everything.
type Programming struct {
	TotalMS  float64 `json:"total_ms"`
	StateMS  float64 `json:"state_ms"`  // from objects to the desired state
	FullMS   float64 `json:"full_ms"`   // to the full description
	KernelMS float64 `json:"kernel_ms"` // encoding it, and the kernel's work
	Elements int     `json:"elements"`
	Bytes    int     `json:"bytes"` // sent to the kernel
}

// Burst is many changes programmed as one.
type Burst struct {
	Changes     int     `json:"changes"`
	Count       int     `json:"count"`    // repetitions
	TotalMS     float64 `json:"total_ms"` // median
	PerChangeUS float64 `json:"per_change_us"`
	Elements    int     `json:"elements"`
	Bytes       int     `json:"bytes"`
}

// Memory is what a process has resident, in bytes.
type Memory struct {
	PeakColdBytes int64 `json:"peak_cold_bytes"`
	PeakBytes     int64 `json:"peak_bytes"` // over everything measured
	RestCold      Rest  `json:"rest_cold"`  // at rest after the cold start
	Rest          Rest  `json:"rest"`       // at rest in the end
}

// Chains are the costs of the baseline. What was not measured is nil.
type Chains struct {
	Skipped          string   `json:"skipped,omitempty"`    // why not all was measured
	Cold             *Load    `json:"cold,omitempty"`       // in one transaction, as kube-proxy does
	ColdSplit        *Load    `json:"cold_split,omitempty"` // in several
	EndpointReplaced *Latency `json:"endpoint_replaced,omitempty"`
	PeakBytes        int64    `json:"peak_bytes,omitempty"` // of the command alone
	Verified         bool     `json:"verified"`
}

// Load is what it costs the command, nft or iptables-restore, to load everything.
type Load struct {
	TotalMS float64 `json:"total_ms"`
	CPUMS   float64 `json:"cpu_ms"` // user and system
	Bytes   int     `json:"bytes"`  // of the script
}

// WriteJSON writes the result as indented JSON.
func (r *SyncResult) WriteJSON(w io.Writer) error {
	e := json.NewEncoder(w)
	e.SetIndent("", "  ")
	return e.Encode(r)
}
