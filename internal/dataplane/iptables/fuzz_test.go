// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"slices"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
)

// FuzzSave: no output of iptables-save, however odd, ends the process.
func FuzzSave(f *testing.F) {
	f.Add([]byte(":SLIP-SERVICES - [0:0]\n-A SLIP-SERVICES -d 10.96.0.1/32 ! -p tcp -m comment --comment \"a b\" -g SLIP-SVC-X\n-A PREROUTING -j SLIP-SERVICES\n"))
	f.Add([]byte(":SLIP-SERVICES - [0:0]\n-A SLIP-SERVICES -g SLIP-T-1\n:SLIP-T-1 - [0:0]\n-A SLIP-T-1 -g SLIP-T-1\n-A SLIP-T-1 -g SLIP-SERVICES\n"))
	f.Add([]byte("# Table `nat' is incompatible, use 'nft' tool.\n-A SLIP-\n-A  -j SLIP-\n:SLIP-"))
	f.Fuzz(func(t *testing.T, text []byte) {
		s := parseSave(text)
		if s.registry(); len(s.chains) > bytes.Count(text, []byte(":")) {
			t.Errorf("%d chains in %q", len(s.chains), text)
		}
		r := readerOf(s)
		r.breakLoops()
		r.read()
	})
}

func readerOf(s *saved) *reader {
	r := &reader{family: desired.IPv4, content: dataplane.NewContent(), chains: map[string][]rule{}}
	for i := range r.sets {
		r.sets[i] = map[member]bool{}
	}
	r.add(s)
	return r
}

// TestLoopIsReported: rules that no packet reaches may lead back to their chain.
func TestLoopIsReported(t *testing.T) {
	loop := branchPrefix + "1"
	r := readerOf(parseSave([]byte(":" + chainNodeTree + " - [0:0]\n-A " + chainNodeTree + " -g " + loop + "\n:" + loop + " - [0:0]\n-A " + loop + " -g " + loop + "\n")))
	r.breakLoops()
	r.read()
	if want := "IPv4: chain " + loop + " leads back to " + loop; !slices.Contains(r.content.Faults, want) {
		t.Errorf("faults %q", r.content.Faults)
	}
}
