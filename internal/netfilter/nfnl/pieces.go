// SPDX-License-Identifier: Apache-2.0

package nfnl

import "context"

// Pieces is how many bytes, roughly, each transaction of CommitPieces has. Up to
// there a transaction stays in the processor's caches; larger ones gain nothing.
const Pieces = 128 << 10

// CommitPieces commits what write writes to b in many small transactions, the
// first while write is still busy with the others. That is faster than one large
// transaction, and takes less memory: the kernel goes through a transaction's
// elements several times, and enlarges the hash tables that they are in on another
// processor meanwhile. It is for content that nothing uses yet.
//
// After an error, as of [Conn.Commit] or the context's, what was committed before stays. The batch is
// empty afterwards, but still counts its bytes and elements.
func (c *Conn) CommitPieces(ctx context.Context, b *Batch, write func()) (transactions int, err error) {
	full := make(chan *Batch)
	free := make(chan *Batch, 2)
	free <- new(Batch)
	free <- new(Batch)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for piece := range full {
			if err == nil {
				err = ctx.Err()
			}
			if err == nil && !piece.Empty() {
				if err = c.Commit(0, piece); err == nil {
					transactions++
				}
			}
			piece.Reset()
			free <- piece
		}
	}()
	b.spill = func() {
		piece := <-free
		b.buf, piece.buf = piece.buf, b.buf
		b.messages, piece.messages = piece.messages, b.messages
		b.spilled += len(piece.buf)
		full <- piece
	}
	write()
	b.endRun()
	b.spill()
	b.spill = nil
	close(full)
	<-done
	return transactions, err
}
