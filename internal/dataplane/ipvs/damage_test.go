// SPDX-License-Identifier: Apache-2.0

package ipvs

import (
	"errors"
	"strings"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
)

// TestOthersTables has another program change the ruleset, which makes Check look at the table
// of IPVS mode. It is complete, though its pools have no endpoints.
func TestOthersTables(t *testing.T) {
	s := newStreet(t, 3, Options{})
	if out, err := s.Node.Run(t.Context(), "nft", "add", "table", "ip", "other"); err != nil {
		t.Fatalf("%v: %s", err, out)
	}
	if err := s.backend.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// verifiedOnly is damage that Check does not look for.
const verifiedOnly = "by verification only"

// TestDamage has another process change what IPVS mode has programmed. Check and verification find
// it, and Reconcile repairs it. Another program's table is no damage.
func TestDamage(t *testing.T) {
	s := newStreet(t, 3, Options{})
	for _, c := range []struct{ command, reason string }{
		{"ipvsadm -D -t 10.96.0.1:80", "virtual server 10.96.0.1:80/TCP"},
		{"ipvsadm -d -t 10.96.0.1:80 -r 10.244.1.3:8001", "lacks 1 of 3 destinations"},
		{"ipvsadm -e -t 10.96.0.1:80 -r 10.244.1.3:8001 -m -w 0", "1 with another weight"},
		{"ipvsadm -a -t 10.96.0.1:80 -r 10.244.1.3:9000 -m", "has 1 others"},
		{"ipvsadm -e -t 10.96.0.1:80 -r 10.244.1.3:8001 -m -w 5", "1 with another weight"},
		{"ip addr del 10.96.0.1/32 dev kube-ipvs0", "interface kube-ipvs0 does not have address 10.96.0.1"},
		{"ip link del kube-ipvs0", "interface kube-ipvs0 does not have address 10.96.0.1"},
		{"ipvsadm -E -t 10.96.0.1:80 -s wrr", "virtual server 10.96.0.1:80/TCP was modified"},
		{"ipvsadm -E -t 10.96.0.1:80 -s rr -p 300", "virtual server 10.96.0.1:80/TCP was modified"},
		{"ipvsadm -E -t 10.96.0.1:80 -s rr -b flag-2", "virtual server 10.96.0.1:80/TCP was modified"},
		{"ipvsadm -e -t 10.96.0.1:80 -r 10.244.1.3:8001 -m -x 1", verifiedOnly},
		{"nft delete table ip slipstream", ""},
		{"nft insert rule ip slipstream services drop", "rules were modified"},
	} {
		if out, err := s.Node.Run(t.Context(), "nft", "add table inet another; delete table inet another"); err != nil {
			t.Fatalf("%v: %s", err, out)
		}
		if err := s.backend.Check(t.Context()); err != nil {
			t.Fatalf("before %s: %v", c.command, err)
		}
		if out, err := s.Node.Run(t.Context(), "sh", "-c", c.command); err != nil {
			t.Fatalf("%s: %v: %s", c.command, err, out)
		}
		if v, err := dataplane.Look(t.Context(), s.backend, s.state.Reported()); err != nil || len(v.Differences) == 0 {
			t.Errorf("%s: verification finds nothing (%v)", c.command, err)
		}
		var err error
		for c.reason != verifiedOnly && t.Context().Err() == nil && err == nil { // not each Check lists all virtual servers
			err = s.backend.Check(t.Context())
		}
		if c.reason != verifiedOnly && (!errors.Is(err, dataplane.ErrDamaged) || !strings.Contains(err.Error(), c.reason)) {
			t.Errorf("%s: Check: %v", c.command, err)
		}
		dataplanetest.Reconcile(t, s.backend, s.state)
		dataplanetest.Has(t, s.backend, s.state)
		if hits := s.hits(9); len(hits) != 3 {
			t.Errorf("after the repair of %s: %v", c.command, hits)
		}
	}
}
