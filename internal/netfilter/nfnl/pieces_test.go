// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"bytes"
	"errors"
	"testing"

	"golang.org/x/sys/unix"
)

// TestCommitPieces commits more than fits one piece, in the order in which it was
// written.
func TestCommitPieces(t *testing.T) {
	c, ns := dial(t)
	generation := func() uint32 {
		t.Helper()
		g, err := dialAgain(t, ns).Generation()
		if err != nil {
			t.Fatal(err)
		}
		return g
	}
	before := generation()
	const n = 20_000
	var b Batch
	err := c.CommitPieces(t.Context(), &b, func() {
		b.AddTable(table, "")
		b.AddSet(table, numbers)
		for i := range uint32(n) {
			b.AddElement(table, numbers, key(i), key(i+1), "")
		}
		for i := range uint32(n / 2) {
			b.DeleteElement(table, numbers, key(i))
		}
	})
	if err != nil {
		t.Fatal(err)
	}
	if most, transactions := b.Len()/Pieces+1, int(generation()-before); transactions < 2 || transactions > most {
		t.Errorf("%d transactions for %d bytes", transactions, b.Len())
	}
	if want := n + n/2; b.Elements() != want {
		t.Errorf("%d elements counted, want %d", b.Elements(), want)
	}
	all := waitElements(t, c, numbers, n/2)
	if len(all) != n/2 {
		t.Errorf("%d elements, want %d", len(all), n/2)
	}
	for i := range uint32(n / 2) {
		if _, left := all[string(key(i))]; left {
			t.Fatalf("element %d, deleted after it was added, is there", i)
		}
	}
	commit(t, c, func(again *Batch) { *again = b; again.AddElement(table, numbers, key(1), key(1), "") })
}

// TestCommitPiecesRefused commits one element that the kernel refuses: the pieces after it are
// not committed, and the error names it.
func TestCommitPiecesRefused(t *testing.T) {
	c, _ := dial(t)
	commit(t, c, func(b *Batch) {
		b.AddTable(table, "")
		b.AddSet(table, numbers)
	})
	const n, bad = 20_000, 15_000
	var b Batch
	err := c.CommitPieces(t.Context(), &b, func() {
		for i := range uint32(n) {
			b.AddElement(table, numbers, key(i), key(i), "")
			if i == bad {
				b.AddElement(table, numbers, key(0), key(1), "")
			}
		}
	})
	var refused *BatchError
	if !errors.As(err, &refused) || refused.Errno != unix.EEXIST || !bytes.Equal(refused.Key, key(0)) {
		t.Errorf("%v, want EEXIST for the key 0", err)
	}
	if got := len(elements(t, c, numbers)); got == 0 || got >= bad {
		t.Errorf("%d elements, want those of the pieces before the one that was refused", got)
	}
}
