// SPDX-License-Identifier: Apache-2.0

package takeover

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"slices"
	"strings"
	"sync"
	"testing"
	"testing/synctest"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
)

// TestNFTables removes kube-proxy's tables and no others.
func TestNFTables(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables)
	n := newNode(t)
	n.run(`table inet kube-proxy {
	chain KUBE-SERVICES { counter; }
}
table ip firewall {
	set allowed { type ipv4_addr; elements = { 192.0.2.1 } }
	chain input { type filter hook input priority 0; ip saddr @allowed counter accept; }
}
`, "nft", "-f", "-")
	before := n.run("", "nft", "list", "ruleset")
	n.run(testdata(t, "nftables.nft"), "nft", "-f", "-")
	if with := n.run("", "nft", "list", "tables"); !strings.Contains(with, "ip6 kube-proxy") {
		t.Fatalf("kube-proxy's tables are not there:\n%s", with)
	}
	n.takeOver()
	compare(t, "nftables", n.run("", "nft", "list", "ruleset"), before)
	if want := []string{"nftables table ip kube-proxy", "nftables table ip6 kube-proxy"}; !slices.Equal(n.removed, want) {
		t.Errorf("reported %v, want %v", n.removed, want)
	}
}

// TestDisturbed commits to nf_tables all the time from another program, which makes the kernel
// interrupt each dump.
func TestDisturbed(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables, kerneltest.NFTBinary)
	n := newNode(t)
	var rules strings.Builder
	rules.WriteString("add table ip nat\nadd chain ip nat OUTPUT { type nat hook output priority -100; }\nadd chain ip nat KUBE-SERVICES\n")
	rules.WriteString("add rule ip nat OUTPUT jump KUBE-SERVICES\n")
	for i := range 1000 {
		chain := fmt.Sprintf("KUBE-SVC-AAAAAAAAAAAAA%c%c%c", 'A'+i/100, 'A'+i/10%10, 'A'+i%10)
		fmt.Fprintf(&rules, "add chain ip nat %[1]s\nadd rule ip nat %[1]s return\n", chain)
	}
	n.run(rules.String(), "nft", "-f", "-")
	other, err := nfnl.Dial(n.ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	defer other.Close()
	// On one processor, the kernel is to say who is next, and not Go, which asks others
	// only when one has to wait.
	defer runtime.GOMAXPROCS(runtime.GOMAXPROCS(2))
	commits := 0
	var others sync.WaitGroup
	others.Go(func() {
		const while = 200 * time.Millisecond // many times what it takes undisturbed
		table := nfnl.Table{Family: nfnl.IPv6, Name: "other"}
		set := &nfnl.Set{Name: "x", KeyType: nfnl.TypeMark, KeyLen: 4}
		for begin := time.Now(); commits < 2 || time.Since(begin) < while; commits++ {
			var batch nfnl.Batch
			batch.AddTable(table, "")
			batch.AddSet(table, set)
			batch.AddElement(table, set, binary.NativeEndian.AppendUint32(nil, uint32(commits)), nil, "")
			if err := other.Commit(0, &batch); err != nil {
				t.Error(err)
			}
		}
	})
	n.takeOver()
	others.Wait()
	if left := n.run("", "nft", "list", "table", "ip", "nat"); strings.Contains(left, "KUBE-") {
		t.Errorf("it has left something: %.300s", left)
	}
}

// TestRunTriesAgain holds a lock for longer than takeover waits for it. Steps that have
// succeeded are not repeated, and the pauses between attempts grow.
func TestRunTriesAgain(t *testing.T) {
	synctest.Test(t, func(t *testing.T) {
		calls, other := 0, 0
		o := Options{Failed: func(error) { calls++ }}
		fine := func(context.Context) (out outcome) { other++; return out }
		var at []time.Duration
		start := time.Now()
		repeat(t.Context(), o, []step{fine, func(context.Context) (out outcome) {
			if at = append(at, time.Since(start)); len(at) < 10 {
				out.failed = errors.New("locked")
			}
			out.stays = []error{errors.New("used by others")}
			out.draining = len(at) < 11
			return out
		}})
		if calls != 2 || other != 1 {
			t.Errorf("reported %d times, and %d attempts of what went well; want 2 and 1", calls, other)
		}
		want := []time.Duration{0, 5, 15, 35, 75, 155, 315, 615, 915, 1215, 1220}
		for i := range want {
			want[i] *= time.Second
		}
		if !slices.Equal(at, want) {
			t.Errorf("attempts after %v, want %v", at, want)
		}
	})
}
