// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"context"
	"strings"
	"sync"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// TestSurveyWhileRulesChange counts the rules of iptables-nft while another program
// commits all the time. The kernel takes longer to list them than passes between two
// commits.
func TestSurveyWhileRulesChange(t *testing.T) {
	requireVariant(t, NFT)
	k := newKernel(t, NFT)
	const many = 50_000
	script := "*nat\n:OTHERS - [0:0]\n" + strings.Repeat("-A OTHERS -p tcp -j RETURN\n", many) + "COMMIT\n"
	if err := NFT.restore(t.Context(), k.config.NetNS, desired.IPv4, []byte(script)); err != nil {
		t.Fatal(err)
	}
	conn, err := nfnl.Dial(k.config.NetNS)
	if err != nil {
		t.Fatal(err)
	}
	defer conn.Close()
	ctx, cancel := context.WithCancel(t.Context())
	var others sync.WaitGroup
	defer others.Wait()
	defer cancel()
	committed := make(chan struct{})
	others.Go(func() {
		table := nfnl.Table{Family: nfnl.IPv4, Name: "others"}
		for n := 0; ctx.Err() == nil; n++ {
			var b nfnl.Batch
			b.AddTable(table, "")
			b.DeleteTable(table)
			if err := conn.Commit(0, &b); err != nil {
				t.Error(err)
				return
			}
			if n == 0 {
				close(committed)
			}
		}
	})
	<-committed
	s, err := NFT.survey(k.config.NetNS)
	if err != nil || s.rules < many {
		t.Errorf("%d rules, error %v", s.rules, err)
	}
}
