// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	throughput := func(change func(*Options)) error {
		o := Options{Rounds: 1, Nodes: 1, Family: FamilyIPv4, Seconds: 1, Measures: Measures}
		change(&o)
		return o.validateThroughput()
	}
	crr := func(change func(*Options)) error {
		o := Options{Rounds: 1, Nodes: 2, Family: FamilyIPv6, Connections: 100}
		change(&o)
		return o.validateCRR()
	}
	t.Setenv("PATH", t.TempDir())
	missing := throughput(func(*Options) {})
	if missing == nil || !strings.Contains(missing.Error(), "iperf3") {
		t.Errorf("error %v, want iperf3 in it", missing)
	}
	tests := []struct {
		want string
		err  error
	}{
		{"--rounds: must be 1 to", throughput(func(o *Options) { o.Rounds = 0 })},
		{"--nodes: must be 1 to 2", throughput(func(o *Options) { o.Nodes = 3 })},
		{"--family: \"dual\" is none of ipv4, ipv6", throughput(func(o *Options) { o.Family = "dual" })},
		{"--seconds: must be", throughput(func(o *Options) { o.Seconds = 601 })},
		{"--measure: none of aggregated, packets, udp is given", throughput(func(o *Options) { o.Measures = nil })},
		{"--measure: \"tcp\" is none of", throughput(func(o *Options) { o.Measures = []string{"tcp"} })},
		{"command nft", throughput(func(o *Options) { o.Measures = []string{MeasureUDP} })},
		{"--connections: must be", crr(func(o *Options) { o.Connections = 50_001 })},
		{"--nodes: must be", crr(func(o *Options) { o.Nodes = 0 })},
	}
	for _, test := range tests {
		if test.err == nil || !strings.Contains(test.err.Error(), test.want) {
			t.Errorf("error %v, want %q in it", test.err, test.want)
		}
	}
	if err := crr(func(*Options) {}); err != nil {
		t.Error(err)
	}
}
