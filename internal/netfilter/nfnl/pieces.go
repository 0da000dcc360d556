// SPDX-License-Identifier: Apache-2.0

package nfnl

import "context"

// Pieces is the approximate size of each transaction of CommitPieces, in bytes. Such a
// transaction fits into the processor's caches. Larger ones are not faster.
const Pieces = 128 << 10

// CommitPieces commits the messages that write adds to b, in many small transactions. A
// goroutine commits one piece while write fills the next:
//
//	write -> b -> full -> commit
//	         ^            |
//	         +--- free <--+
//
// This is faster than one large transaction and takes less memory: the kernel processes
// the elements of a transaction several times, and meanwhile resizes their hash tables on
// another processor. It is for content that no packet uses yet.
//
// After an error of [Conn.Commit] or of the context, earlier transactions remain in effect.
// Finally the batch is empty, but still counts its bytes and elements.
func (c *Conn) CommitPieces(ctx context.Context, b *Batch, write func()) (transactions int, err error) {
	full, free := make(chan *Batch), make(chan *Batch, 2)
	free <- new(Batch)
	free <- new(Batch)
	done := make(chan struct{})
	go func() {
		defer close(done)
		for piece := range full {
			if err == nil && !piece.Empty() {
				if err = c.commitPiece(ctx, piece); err == nil {
					transactions++
				}
			}
			piece.Reset()
			free <- piece
		}
	}()
	b.spill = func() { full <- b.moveTo(<-free) }
	write()
	b.endRun()
	b.spill()
	b.spill = nil
	close(full)
	<-done
	return transactions, err
}

func (c *Conn) commitPiece(ctx context.Context, piece *Batch) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	return c.Commit(0, piece)
}

// moveTo moves the messages to an empty piece.
func (b *Batch) moveTo(piece *Batch) *Batch {
	b.buf, piece.buf = piece.buf, b.buf
	b.messages, piece.messages = piece.messages, b.messages
	b.spilled += len(piece.buf)
	return piece
}
