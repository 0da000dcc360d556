// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"errors"
	"fmt"
	"os/exec"
	"slices"
	"strings"
)

// Options are what all measurements have in common. Their JSON is part of the
// result.
type Options struct {
	Rounds int    `json:"rounds"` // a turn of each setting in each
	Nodes  int    `json:"nodes"`  // that forward: 1, or 2 with a pod on each
	Family string `json:"family"` // one of Families
}

// The values of Options.Family.
const (
	FamilyIPv4 = "ipv4"
	FamilyIPv6 = "ipv6"
)

// Families lists the values of Options.Family.
var Families = []string{FamilyIPv4, FamilyIPv6}

const (
	maxRounds  = 1000
	maxSeconds = 600
	// maxConnections is how many a client can make to one address before its
	// ports come again.
	maxConnections = 50_000
)

func (o Options) validate() error {
	return errors.Join(
		within("rounds", o.Rounds, 1, maxRounds),
		within("nodes", o.Nodes, 1, 2),
		oneOf("family", o.Family, Families),
	)
}

func within(flag string, n, least, most int) error {
	if n < least || n > most {
		return fmt.Errorf("--%s: must be %d to %d", flag, least, most)
	}
	return nil
}

func oneOf(flag, value string, all []string) error {
	if !slices.Contains(all, value) {
		return fmt.Errorf("--%s: %q is none of %s", flag, value, strings.Join(all, ", "))
	}
	return nil
}

// ThroughputOptions say what [Throughput] measures.
type ThroughputOptions struct {
	Options
	Seconds  int      `json:"seconds_per_turn"`
	Measures []string `json:"measures"` // of Measures
}

// The values of ThroughputOptions.Measures.
const (
	MeasureAggregated = "aggregated" // a TCP stream of full-size segments, aggregated
	MeasurePackets    = "packets"    // a TCP stream of which each packet pays
	MeasureUDP        = "udp"        // small datagrams, and the cost of a packet
)

// Measures lists the values of ThroughputOptions.Measures, in the order in which
// they are made.
var Measures = []string{MeasureAggregated, MeasurePackets, MeasureUDP}

// Validate finds values that cannot be measured, and commands that are missing.
func (o *ThroughputOptions) Validate() error {
	if err := errors.Join(o.validate(), within("seconds", o.Seconds, 1, maxSeconds)); err != nil {
		return err
	}
	if len(o.Measures) == 0 {
		return fmt.Errorf("--measure: none of %s is given", strings.Join(Measures, ", "))
	}
	for _, m := range o.Measures {
		if err := oneOf("measure", m, Measures); err != nil {
			return err
		}
		command := "iperf3"
		if m == MeasureUDP {
			command = "nft"
		}
		if _, err := exec.LookPath(command); err != nil {
			return fmt.Errorf("--measure: %s takes the command %s, which is not installed (test/deps.sh)", m, command)
		}
	}
	return nil
}

// CRROptions say what [CRR] measures.
type CRROptions struct {
	Options
	Connections int `json:"connections_per_turn"`
}

// Validate finds values that cannot be measured.
func (o *CRROptions) Validate() error {
	return errors.Join(o.validate(), within("connections", o.Connections, 100, maxConnections))
}
