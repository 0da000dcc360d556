// SPDX-License-Identifier: Apache-2.0

package ctnetlink

import (
	"encoding/binary"
	"testing"

	"golang.org/x/sys/unix"
)

// FuzzMessages: no datagram, however odd, ends the process, and data is inside of it.
func FuzzMessages(f *testing.F) {
	message := func(typ uint16, data []byte) []byte {
		b := binary.NativeEndian.AppendUint32(nil, uint32(unix.NLMSG_HDRLEN+len(data)))
		b = binary.NativeEndian.AppendUint16(b, typ)
		b = append(b, 0, 0, 7, 0, 0, 0, 0, 0, 0, 0)
		return append(b, data...)
	}
	f.Add(append(message(256, []byte{8, 0, 1, 0, 10, 0, 0, 1}), message(unix.NLMSG_DONE, make([]byte, 4))...))
	f.Add(message(unix.NLMSG_ERROR, []byte{1}))
	f.Fuzz(func(t *testing.T, datagram []byte) {
		sum := 0
		_, _ = messages(datagram, 7, func(data []byte) {
			sum += unix.NLMSG_HDRLEN + len(data)
			if tuple, ok := ParseTuple(data); ok && (!tuple.Src.IsValid() || !tuple.Dst.IsValid()) {
				t.Errorf("tuple %v", tuple)
			}
		})
		if sum > len(datagram) {
			t.Errorf("%d bytes of messages in %d", sum, len(datagram))
		}
	})
}
