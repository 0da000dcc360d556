// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"errors"
	"fmt"
	"os/exec"
	"strings"

	"github.com/slipstream-proxy/slipstream/cmd/slipstream-bench/bench"
	"github.com/spf13/pflag"
)

// Options say what is measured. Their JSON is part of the result.
type Options struct {
	Rounds int    `json:"rounds"` // each has a turn of each setting
	Nodes  int    `json:"nodes"`  // that forward: 1, or 2 with a pod on each
	Family string `json:"family"` // one of Families

	// Of [Throughput].
	Seconds  int      `json:"seconds_per_turn,omitempty"`
	Measures []string `json:"measures,omitempty"` // of Measures

	// Of [CRR].
	Connections int `json:"connections_per_turn,omitempty"`
}

// AddFlags adds the flags that throughput and crr have in common.
func (o *Options) AddFlags(f *pflag.FlagSet, rounds int) {
	f.IntVar(&o.Rounds, "rounds", rounds, "rounds of turns, one for each setting of the fast path")
	f.IntVar(&o.Nodes, "nodes", 1, "nodes between the pods: 1 or 2")
	f.StringVar(&o.Family, "family", FamilyIPv4, "address family: "+strings.Join(Families, ", "))
}

const (
	FamilyIPv4 = "ipv4"
	FamilyIPv6 = "ipv6"
)

// Families lists the values of Options.Family.
var Families = []string{FamilyIPv4, FamilyIPv6}

const (
	MeasureAggregated = "aggregated" // a TCP stream of aggregated segments
	MeasurePackets    = "packets"    // a TCP stream of single packets
	MeasureUDP        = "udp"        // small datagrams, and the cost of a packet
)

// Measures lists the values of Options.Measures, in the order of measuring.
var Measures = []string{MeasureAggregated, MeasurePackets, MeasureUDP}

// Setting is how a node treats connections to Services.
type Setting struct {
	Name string
	// Threshold is how many packets a connection must have carried before it is
	// offloaded; 0 for never.
	Threshold uint32
}

// Settings are compared with the first one. A threshold of one packet is no threshold:
// the first packet of a connection is never offloaded, and a TCP connection not before it
// is established.
var Settings = []Setting{{"off", 0}, {"no threshold", 1}, {"threshold 20", 20}}

func (o *Options) validate() error {
	return errors.Join(
		bench.Within("--rounds", o.Rounds, 1, 1000),
		bench.Within("--nodes", o.Nodes, 1, 2),
		bench.OneOf("--family", o.Family, Families...),
	)
}

func (o *Options) validateThroughput() error {
	if err := errors.Join(o.validate(), bench.Within("--seconds", o.Seconds, 1, 600)); err != nil {
		return err
	}
	if len(o.Measures) == 0 {
		return fmt.Errorf("--measure: none of %s is given", strings.Join(Measures, ", "))
	}
	for _, m := range o.Measures {
		if err := bench.OneOf("--measure", m, Measures...); err != nil {
			return err
		}
		command := "iperf3"
		if m == MeasureUDP {
			command = "nft"
		}
		if _, err := exec.LookPath(command); err != nil {
			return fmt.Errorf("--measure: %s needs the command %s, which is not installed (test/deps.sh)", m, command)
		}
	}
	return nil
}

func (o *Options) validateCRR() error {
	// A client can make about 50,000 connections to one address before a port is reused.
	return errors.Join(o.validate(), bench.Within("--connections", o.Connections, 100, 50_000))
}
