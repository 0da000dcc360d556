// SPDX-License-Identifier: Apache-2.0

package forward

import (
	"slices"
	"strings"
	"testing"
)

func TestValidate(t *testing.T) {
	validate := func(change func(*Options)) error {
		o := Options{Rounds: 1, Paths: []string{"off", "1"}, Measures: []string{"crr"}, Seconds: 1, Connections: 100, Streams: 1}
		change(&o)
		return o.Validate(t.Context())
	}
	if err := validate(func(*Options) {}); err != nil {
		t.Error(err)
	}
	t.Setenv("PATH", t.TempDir())
	for _, test := range []struct {
		want string
		err  error
	}{
		{"--rounds: must be 1 to", validate(func(o *Options) { o.Rounds = 0 })},
		{"--seconds: must be", validate(func(o *Options) { o.Seconds = 601 })},
		{"--connections: must be", validate(func(o *Options) { o.Connections = 50_001 })},
		{"--measure: none of aggregated, udp, crr, packets is given", validate(func(o *Options) { o.Measures = nil })},
		{"--measure: \"tcp\" is none of", validate(func(o *Options) { o.Measures = []string{"tcp"} })},
		{"--measure: udp needs the command nft", validate(func(o *Options) { o.Measures = []string{"udp"} })},
		{"--measure: packets needs the command iperf3", validate(func(o *Options) { o.Measures = []string{"packets"} })},
		{"--paths: none of", validate(func(o *Options) { o.Paths = nil })},
		{"--paths: \"fast\" is none of", validate(func(o *Options) { o.Paths = []string{"fast"} })},
		{"--paths: off is given twice", validate(func(o *Options) { o.Paths = []string{"off", "off"} })},
		{"--paths: a threshold: must be 1 to 29", validate(func(o *Options) { o.Paths, o.Measures = []string{"off", "30"}, []string{"udp"} })},
		{"--paths: a threshold: must be 1 to 100000", validate(func(o *Options) { o.Paths = []string{"0"} })},
	} {
		if test.err == nil || !strings.Contains(test.err.Error(), test.want) {
			t.Errorf("error %v, want %q in it", test.err, test.want)
		}
	}
}

func TestSettings(t *testing.T) {
	o := Options{Paths: []string{"off", "1", "5", "1000", "direct"}}
	want := []Setting{{Name: "off"}, {Name: "no threshold", Threshold: 1}, {Name: "threshold 5", Threshold: 5}, {Name: "threshold 1000", Threshold: 1000}, {Name: "no Service", direct: true}}
	if got := o.settings(); !slices.Equal(got, want) {
		t.Errorf("%+v, want %+v", got, want)
	}
}
