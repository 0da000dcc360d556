// SPDX-License-Identifier: Apache-2.0

package machine

import "testing"

func TestCPUModel(t *testing.T) {
	tests := []struct{ cpuinfo, want string }{
		{"processor\t: 0\nmodel name\t: Some CPU @ 2 GHz\nmodel name\t: Other\n", "Some CPU @ 2 GHz"},
		{"processor\t: 0\n\nModel\t\t: Raspberry Pi 4\n", "Raspberry Pi 4"},
		{"", "unknown"},
	}
	for _, test := range tests {
		if got := cpuModel(test.cpuinfo); got != test.want {
			t.Errorf("%q, want %q", got, test.want)
		}
	}
}

func TestString(t *testing.T) {
	m := Machine{Kernel: "6.12.1", CPU: "Some CPU", CPUs: 2, Go: "go1.26.8", Load: "0.10"}
	if got, want := m.String(), "Linux 6.12.1, 2 x Some CPU, go1.26.8"; got != want {
		t.Errorf("%q, want %q", got, want)
	}
}
