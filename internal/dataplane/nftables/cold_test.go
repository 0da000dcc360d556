// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"errors"
	"strings"
	"testing"
	"time"

	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/dataplanetest"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
)

// TestColdStartBrokenOff leaves the kernel as a proxy does that is killed while it
// starts: no packet enters the tables yet, and the next start completes them.
func TestColdStartBrokenOff(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{})
	for i := range 50 {
		web(s, i, dataplanetest.Hosts(3)...)
	}
	fancy(s)
	for f := range schemas {
		skeleton := schemas[f].skeleton(k.config, &s.Full().Change, true)
		if err := k.conn.Commit(0, &skeleton.batch); err != nil {
			t.Fatal(err)
		}
	}
	k.reset(&s.Full().Change)
	if err := k.conn.CommitPieces(t.Context(), &k.batch, func() { k.write(&s.Full().Change) }); err != nil {
		t.Fatal(err)
	}
	const entry = "jump services"
	for _, family := range []string{"ip", "ip6"} {
		if table := k.nft("list", "table", family, tableName); strings.Contains(table, entry) {
			t.Errorf("packets enter table %s %s before its content is complete:\n%s", family, tableName, table)
		}
	}
	second := &kernel{Dataplane: k.open(), ns: k.ns, t: t}
	defer second.Close()
	dataplanetest.Reconcile(t, second.Dataplane, s)
	second.has(s)
	for _, family := range []string{"ip", "ip6"} {
		if n := strings.Count(k.nft("list", "table", family, tableName), entry); n != 2 {
			t.Errorf("table %s %s is entered in %d places, want 2", family, tableName, n)
		}
	}
	if err := second.Check(t.Context()); err != nil {
		t.Error(err)
	}
}

// TestColdStartWhileOthersCommit changes another table from time to time, which is no damage.
// (Check reports damage if that happens between the last commit and reading the resulting
// rules, so the changes are rare.)
func TestColdStartWhileOthersCommit(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{})
	for i := range 3000 {
		web(s, i, dataplanetest.Hosts(3)...)
	}
	begin := time.Now()
	dataplanetest.Reconcile(t, k.Dataplane, s)
	if err := k.Cleanup(t.Context()); err != nil {
		t.Fatal(err)
	}
	stop := k.commitElsewhere(max(30*time.Millisecond, time.Since(begin)/5), 0)
	const atLeast, most = 3, 100 // starts, of which a busy machine needs many
	unharmed, starts := 0, 0
	for ; starts < 10 || unharmed < atLeast && starts < most; starts++ {
		dataplanetest.Reconcile(t, k.Dataplane, s)
		switch err := k.Check(t.Context()); {
		case err == nil:
			unharmed++
			k.has(s)
		case !errors.Is(err, dataplane.ErrDamaged):
			t.Error(err)
		default: // only the seals are missing
			want := dataplane.ContentOf(&s.Full().Change)
			diff, err := dataplane.Lasting(t.Context(), func() (string, error) {
				got, err := k.Read(t.Context())
				if err != nil {
					return "", err
				}
				return dataplane.Difference(want, got), nil
			})
			if err != nil || diff != "" {
				t.Errorf("error %v, difference:\n%s", err, diff)
			}
		}
		if err := k.Cleanup(t.Context()); err != nil {
			t.Fatal(err)
		}
	}
	if n := stop(); n < starts {
		t.Errorf("only %d commits of others during %d starts", n, starts)
	}
	if unharmed < atLeast {
		t.Errorf("%d of %d cold starts were taken for unharmed, want %d at least", unharmed, starts, atLeast)
	}
}

// TestColdStartDisturbed deletes a table while it is being filled: that is an error, and the
// next start succeeds.
func TestColdStartDisturbed(t *testing.T) {
	k := newKernel(t)
	s := desired.New(desired.Config{})
	for i := range 3000 {
		web(s, i, dataplanetest.Hosts(3)...)
	}
	other := k.dial()
	failed := make(chan error)
	go func() {
		_, err := k.Reconcile(t.Context(), &s.Full().Change)
		failed <- err
	}()
	var batch nfnl.Batch
	batch.DeleteTable(schemas[desired.IPv6].table)
	for other.Commit(0, &batch) != nil { // until it is there
		time.Sleep(time.Millisecond)
	}
	if err := <-failed; err == nil {
		if err := k.Check(t.Context()); err == nil {
			k.has(s)
		} else if !errors.Is(err, dataplane.ErrDamaged) {
			t.Error(err)
		}
	}
	dataplanetest.Reconcile(t, k.Dataplane, s)
	k.has(s)
}
