// SPDX-License-Identifier: Apache-2.0

package uml

import (
	"slices"
	"testing"
)

func TestCheckVisible(t *testing.T) {
	tests := []struct {
		path string
		ok   bool
	}{
		{"/", true},
		{"/bin/sh", true},
		{"/home/x/run/y", true},
		{"/runner", true},
		{"/tmp/x", true},
		{"/run", false},
		{"/run/user/0/x", false},
		{"/home/../run/x", false},
		{"/dev/shm/x", false},
		{"/proc/self/exe/x", false},
		{"/sys", false},
		{"x", false},
		{"", false},
	}
	for _, test := range tests {
		if err := checkVisible("file", test.path); (err == nil) != test.ok {
			t.Errorf("%q: error %v, want ok %v", test.path, err, test.ok)
		}
	}
}

func TestEnvironment(t *testing.T) {
	const path = "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
	tests := []struct {
		name     string
		in, want []string
	}{
		{"empty", nil, []string{path, "HOME=/root", "TMPDIR=/run/tmp"}},
		{"kept", []string{"PATH=/a", "HOME=/b", "C=d=e"}, []string{"PATH=/a", "HOME=/b", "C=d=e", "TMPDIR=/run/tmp"}},
		{"the host's TMPDIR is replaced", []string{"TMPDIR=/x", "HOME=/b", "PATH=/a"}, []string{"HOME=/b", "PATH=/a", "TMPDIR=/run/tmp"}},
	}
	for _, test := range tests {
		t.Run(test.name, func(t *testing.T) {
			if got := environment(test.in); !slices.Equal(got, test.want) {
				t.Errorf("got %q, want %q", got, test.want)
			}
		})
	}
}

func TestTailKeepsTheEnd(t *testing.T) {
	var console tail
	line := make([]byte, 1000)
	for i := range 100 {
		line[0] = byte(i)
		if n, err := console.Write(line); n != len(line) || err != nil {
			t.Fatal(n, err)
		}
	}
	if len(console.kept) != tailSize {
		t.Errorf("kept %d bytes, want %d", len(console.kept), tailSize)
	}
	if last := console.kept[tailSize-len(line)]; last != 99 {
		t.Errorf("the last line kept is %d, want 99", last)
	}
}
