// SPDX-License-Identifier: Apache-2.0

package nfnl_test

import (
	"fmt"
	"net/netip"
	"os/exec"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

// TestReaders sees another program that listens and one that dumps, and no socket of this process.
func TestReaders(t *testing.T) {
	kerneltest.Require(t, kerneltest.IPTablesNFT)
	node, err := kerneltest.NewLab(t).Node("n1", lab.NodeOptions{Addresses: []netip.Prefix{netip.MustParsePrefix("192.168.100.11/24")}})
	if err != nil {
		t.Fatal(err)
	}
	var readers *nfnl.Readers
	if err := node.Do(func() error { readers = nfnl.OpenReaders(); return nil }); err != nil {
		t.Fatal(err)
	}
	defer func() { _ = readers.Close() }()
	own, err := nfnl.Dial(node.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = own.Close() }()
	look := func() (sockets, dumping int) {
		all, err := readers.Look()
		if err != nil {
			t.Fatal(err)
		}
		for _, r := range all {
			if sockets++; r.Dumping {
				dumping++
			}
		}
		return sockets, dumping
	}
	if n, _ := look(); n != 0 {
		t.Errorf("%d sockets are there without another program, want 0", n)
	}
	start := func(input string, command ...string) *lab.Process {
		cmd := exec.CommandContext(t.Context(), command[0], command[1:]...)
		cmd.Stdin = strings.NewReader(input)
		p, err := node.Namespace.Start(cmd)
		if err != nil {
			t.Fatal(err)
		}
		return p
	}
	start("", "nft", "monitor")
	until := func(what string, seen func() bool) {
		for end := time.Now().Add(2 * time.Minute); !seen(); time.Sleep(time.Millisecond / 4) {
			if time.Now().After(end) {
				t.Fatalf("%s was not seen", what)
			}
		}
	}
	until("nft monitor", func() bool { n, dumping := look(); return n == 1 && dumping == 0 })
	for range 400 { // the list takes several reads
		own, err := nfnl.Dial(node.FD())
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = own.Close() }()
	}
	if n, dumping := look(); n != 1 || dumping != 0 {
		t.Errorf("%d sockets are there among many, %d dump, want 1 and 0", n, dumping)
	}

	var rules strings.Builder
	rules.WriteString("table ip many { chain c {\n")
	for i := range 20000 {
		fmt.Fprintf(&rules, "ip daddr 10.0.%d.%d accept\n", i>>8, i&255)
	}
	if err := start(rules.String()+"}\n}\n", "nft", "-f", "-").Wait(); err != nil {
		t.Fatal(err)
	}
	list := start("", "nft", "list", "ruleset")
	until("the dump", func() bool { n, dumping := look(); return n == 2 && dumping == 1 })
	if err := list.Wait(); err != nil {
		t.Fatal(err)
	}
	if n, dumping := look(); n != 1 || dumping != 0 {
		t.Errorf("%d sockets are there after the dump, %d dump, want 1 and 0", n, dumping)
	}
}
