// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"encoding/binary"
	"time"

	"golang.org/x/sys/unix"
)

// AddElementFor adds an element that the kernel deletes after a time of at least a
// millisecond, to a set with the flag NFT_SET_TIMEOUT. An existing element keeps its
// timeout.
func (b *Batch) AddElementFor(t Table, s *Set, key []byte, d time.Duration) {
	at := b.element(unix.NFT_MSG_NEWSETELEM, t, s, key)
	ms := uint64(max(d.Milliseconds(), 1))
	b.buf.bytes(unix.NFTA_SET_ELEM_TIMEOUT, binary.BigEndian.AppendUint64(nil, ms))
	b.buf.close(at)
}
