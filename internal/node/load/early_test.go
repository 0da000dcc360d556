// SPDX-License-Identifier: Apache-2.0

package load

import (
	"net/netip"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
)

func unwatched(desired.FrontendKey, desired.Backend) string { return "" }

// Filter is that of Counters.
var Filter = filter

// TestEarly: the table is read again while there are connections from before the first socket for events,
// and no longer.
func TestEarly(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTBinary)
	s := dataplanetest.NewStreet(t, 1)
	must := func(err error) {
		t.Helper()
		if err != nil {
			t.Fatal(err)
		}
	}
	for _, rule := range []string{
		"add table ip translate", "add chain ip translate prerouting { type nat hook prerouting priority -100; }",
		"add rule ip translate prerouting ip daddr 10.96.0.1 tcp dport 80 dnat to 10.244.1.3:8000",
	} {
		out, err := s.Node.Run(t.Context(), "nft", rule)
		if err != nil {
			t.Fatalf("%v: %s", err, out)
		}
	}
	web := netip.MustParseAddrPort("10.96.0.1:80")
	c := New(s.Node.FD(), false)
	defer func() { must(c.Stop()) }()
	await := func(what string, open, early int) {
		t.Helper()
		for deadline := time.Now().Add(time.Minute); len(c.open) != open || c.early != early; time.Sleep(10 * time.Millisecond) {
			if must(c.Update(t.Context(), true, unwatched)); time.Now().After(deadline) {
				t.Fatalf("%s: %d open, %d early, want %d and %d", what, len(c.open), c.early, open, early)
			}
		}
	}
	before, err := s.Client.Stream(lab.TCP, web, 100*time.Millisecond)
	must(err)
	defer before.Close()
	await("before the counter", 1, 1)
	after, err := s.Client.Stream(lab.TCP, web, 100*time.Millisecond)
	must(err)
	defer after.Close()
	await("after it", 2, 1)
	read := func() {
		c.read = time.Time{}
		must(c.Update(t.Context(), true, unwatched))
		if c.read.IsZero() {
			t.Error("the table was not read again")
		}
	}
	read()
	await("after the table was read", 2, 1)
	before.Close()
	read()
	await("after the end of the first", 1, 0)
	c.read = time.Time{}
	must(c.Update(t.Context(), true, unwatched))
	if !c.read.IsZero() {
		t.Error("the table was read again although events tell everything")
	}

	// A table that took long to read is not read again soon, also while events are lost.
	c.missing, c.read, c.took = true, time.Now(), time.Hour
	must(c.Update(t.Context(), true, unwatched))
	if !c.missing {
		t.Error("a table that takes an hour was read again at once")
	}
	c.read = time.Time{}
	must(c.Update(t.Context(), true, unwatched))
	if c.missing {
		t.Error("the table was not read although events were lost")
	}
}
