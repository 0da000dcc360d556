// SPDX-License-Identifier: Apache-2.0

package main

import (
	"io"
	"os"
	"slices"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/test/kernel/uml"
)

func TestMain(m *testing.M) {
	uml.Init() // the whole-run test boots machines, whose process 1 is this binary
	os.Exit(m.Run())
}

func TestParseFlags(t *testing.T) {
	tests := []struct {
		args  string
		ci    bool
		check func(options) bool
	}{
		{"", false, func(o options) bool {
			return o.strict && o.kernel == "all" && o.count == 1
		}},
		{"", false, func(o options) bool { return strings.Join(o.patterns, " ") == "./..." }},
		{"./a ./b", false, func(o options) bool { return strings.Join(o.patterns, " ") == "./a ./b" }},
		{"-kernel 6.1", false, func(o options) bool { return o.kernel == "6.1" }},
		{"-strict=false", false, func(o options) bool { return !o.strict }},
		{"-strict=false", true, func(o options) bool { return !o.strict && o.ci }},
		{"-race ./a,./b/... ./a -- -seed 5", false, func(o options) bool {
			return slices.Equal(o.race, []string{"./a", "./b/..."}) && strings.Join(o.patterns, " ") == "./a" && strings.Join(o.args, " ") == "-seed 5"
		}},
	}
	for _, test := range tests {
		opts, err := parseFlags(strings.Fields(test.args), test.ci, io.Discard)
		if err != nil {
			t.Errorf("%q: %v", test.args, err)
			continue
		}
		if !test.check(opts) {
			t.Errorf("%q, CI %v: got %+v", test.args, test.ci, opts)
		}
	}
	for _, args := range []string{"-kernel windows", "-timeout 0s", "-count 0", "-nonsense", "-timeout x", "-race"} {
		var said strings.Builder
		if _, err := parseFlags(strings.Fields(args), false, &said); err == nil || said.Len() == 0 {
			t.Errorf("%q: error %v, message %q", args, err, said.String())
		}
	}
}
