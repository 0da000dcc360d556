// SPDX-License-Identifier: Apache-2.0

package programming

import (
	"strings"
	"testing"
)

func someOptions() Options {
	return Options{Services: 10, Endpoints: 10, Mode: "nftables", Repetitions: 1, Runs: 1}
}

func TestValidate(t *testing.T) {
	tests := []struct {
		name string
		set  func(*Options)
		want string // in the error; "" for none
	}{
		{"good", func(*Options) {}, ""},
		{"no Services", func(o *Options) { o.Services = 0 }, "--services: must be 1 to"},
		{"too many Services", func(o *Options) { o.Services = 1e6 }, "--services: must be 1 to"},
		{"no endpoints", func(o *Options) { o.Endpoints = -1 }, "--endpoints: must be 1 to 65536"},
		{"too many in all", func(o *Options) { o.Services, o.Endpoints = 1000, 60000 }, "--endpoints: 1000 Services of 60000"},
		{"no repetitions", func(o *Options) { o.Repetitions = 0 }, "--repetitions: must"},
		{"no runs", func(o *Options) { o.Runs = 0 }, "--runs: must"},
		{"mode", func(o *Options) { o.Mode = "ebpf" }, `--mode: "ebpf" is none of iptables, iptables-legacy, iptables-nft, ipvs, nftables`},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			o := someOptions()
			test.set(&o)
			err := o.Validate(t.Context())
			if test.want == "" != (err == nil) || err != nil && !strings.Contains(err.Error(), test.want) {
				t.Errorf("error %v, want %q", err, test.want)
			}
		})
	}
}
