// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"slices"
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
		{"--thresholds: must be 1 to 29", throughput(func(o *Options) { o.Thresholds = []int{1, 30} })},
		{"--thresholds: must be 1 to 100000", crr(func(o *Options) { o.Thresholds = []int{0} })},
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

func TestSettings(t *testing.T) {
	o := Options{Thresholds: []int{1, 5, 1000}}
	want := []Setting{{Name: "off"}, {Name: "no threshold", Threshold: 1}, {Name: "threshold 5", Threshold: 5}, {Name: "threshold 1000", Threshold: 1000}}
	if got := o.settings(); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
	if o.Thresholds = nil; !slices.Equal(o.settings(), Settings) {
		t.Errorf("%+v", o.settings())
	}
}
