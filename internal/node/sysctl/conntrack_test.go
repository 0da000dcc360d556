// SPDX-License-Identifier: Apache-2.0

package sysctl

import (
	"fmt"
	"os"
	"path/filepath"
	"runtime"
	"strings"
	"testing"
	"time"
)

// tree makes the files of parameters in a directory, with their values.
func tree(t *testing.T, values map[string]int) (root string) {
	t.Helper()
	root = t.TempDir()
	for file, value := range values {
		file = filepath.Join(root, file)
		if err := os.MkdirAll(filepath.Dir(file), 0o755); err != nil {
			t.Fatal(err)
		}
		if err := os.WriteFile(file, fmt.Appendln(nil, value), 0o644); err != nil {
			t.Fatal(err)
		}
	}
	return root
}

const (
	netfilter = "proc/sys/net/netfilter/nf_conntrack_"
	hashsize  = "sys/module/nf_conntrack/parameters/hashsize"
)

func parameters() map[string]int {
	return map[string]int{
		netfilter + "max": 1000, hashsize: 400,
		netfilter + "tcp_timeout_established": 5, netfilter + "tcp_timeout_close_wait": 5, netfilter + "tcp_be_liberal": 0,
		netfilter + "udp_timeout": 5, netfilter + "udp_timeout_stream": 5,
	}
}

// TestApply checks that each parameter is set, and no other.
func TestApply(t *testing.T) {
	for _, test := range []struct {
		c    Conntrack
		want map[string]string
	}{
		{Conntrack{}, nil},
		{Conntrack{Max: 1000, TCPEstablishedTimeout: 5 * time.Second}, nil},
		{Conntrack{Max: 1600}, map[string]string{netfilter + "max": "1600"}},
		{Conntrack{Max: 500}, nil},
		{Conntrack{Max: 4000}, map[string]string{netfilter + "max": "4000", hashsize: "1000"}},
		{Conntrack{TCPEstablishedTimeout: time.Minute + time.Millisecond}, map[string]string{netfilter + "tcp_timeout_established": "60"}},
		{Conntrack{TCPCloseWaitTimeout: time.Minute}, map[string]string{netfilter + "tcp_timeout_close_wait": "60"}},
		{Conntrack{TCPBeLiberal: true}, map[string]string{netfilter + "tcp_be_liberal": "1"}},
		{Conntrack{UDPTimeout: time.Minute}, map[string]string{netfilter + "udp_timeout": "60"}},
		{Conntrack{UDPStreamTimeout: time.Minute}, map[string]string{netfilter + "udp_timeout_stream": "60"}},
	} {
		root := tree(t, parameters())
		if err := test.c.apply(t.Context(), root); err != nil {
			t.Errorf("%+v: %v", test.c, err)
		}
		for file, was := range parameters() {
			got, err := os.ReadFile(filepath.Join(root, file))
			want, set := test.want[file]
			if !set {
				want = fmt.Sprintln(was)
			}
			// A parameter's file takes a write for a value; this one keeps
			// what was beyond it.
			if err != nil || !strings.HasPrefix(string(got), want) {
				t.Errorf("%+v: %s is %q, %v; want %q", test.c, file, got, err, want)
			}
		}
	}
}

// TestApplyRest checks that an error of one parameter is reported and the others are set.
func TestApplyRest(t *testing.T) {
	values := parameters()
	delete(values, netfilter+"max")
	delete(values, hashsize)
	root := tree(t, values)
	err := Conntrack{Max: 4000, UDPTimeout: time.Minute}.apply(t.Context(), root)
	if err == nil {
		t.Fatal("no error")
	}
	for _, want := range []string{"nf_conntrack_max: cannot be set to 4000", "hashsize of nf_conntrack: cannot be set to 1000", "no such file"} {
		if !strings.Contains(err.Error(), want) {
			t.Errorf("%v; want %s", err, want)
		}
	}
	if got, err := os.ReadFile(filepath.Join(root, netfilter+"udp_timeout")); err != nil || !strings.HasPrefix(string(got), "60") {
		t.Errorf("udp_timeout is %q, %v", got, err)
	}
}

func TestCPUs(t *testing.T) {
	if n := CPUs(); n < runtime.NumCPU() {
		t.Errorf("%d CPUs, of which this process may use %d", n, runtime.NumCPU())
	}
}
