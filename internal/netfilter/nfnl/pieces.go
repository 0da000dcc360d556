// SPDX-License-Identifier: Apache-2.0

package nfnl

import "context"

// Pieces is the approximate size of each transaction of CommitPieces, in bytes. Such a
// transaction fits into the processor's caches. Larger ones are not faster.
const Pieces = 128 << 10

// CommitPieces commits the messages that write adds to b, in many small transactions. Each is
// committed in the background, while write fills the batch for the next.
//
// This is faster than one large transaction and takes less memory: the kernel processes
// the elements of a transaction several times, and meanwhile resizes their hash tables on
// another processor. It is for content that no packet uses yet.
//
// After an error of [Conn.Commit] or of the context, earlier transactions remain in effect.
// Finally the batch is empty, but still counts its bytes and elements.
func (c *Conn) CommitPieces(ctx context.Context, b *Batch, write func()) error {
	var piece Batch
	last := make(chan error, 1) // the result of the transactions so far
	last <- nil
	b.spill = func() {
		err := <-last
		piece.Reset() // it has been committed
		b.buf, piece.buf = piece.buf, b.buf
		b.messages, piece.messages = piece.messages, b.messages
		b.err, piece.err = nil, b.err
		b.spilled += len(piece.buf)
		go func() {
			if err == nil {
				err = ctx.Err()
			}
			if err == nil {
				err = c.Commit(0, &piece)
			}
			last <- err
		}()
	}
	write()
	b.endRun()
	b.spill()
	b.spill = nil
	return <-last
}
