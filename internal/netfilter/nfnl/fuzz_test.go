// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"encoding/binary"
	"testing"

	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
)

// FuzzAnswers: no answer of the kernel, however odd, ends the process.
func FuzzAnswers(f *testing.F) {
	var b Batch
	set := &Set{Name: "s", KeyType: TypeMark, KeyLen: 4}
	b.AddElement(Table{Family: INET, Name: "t"}, set, []byte{1, 2, 3, 4}, nil, "comment")
	b.AddVerdict(Table{Family: INET, Name: "t"}, set, []byte{1, 2, 3, 4}, Goto, "chain")
	f.Add(b.Wire())
	f.Add(binary.NativeEndian.AppendUint32(nil, 1<<31))
	f.Add([]byte{3, 0, 1, 0})
	f.Fuzz(func(t *testing.T, answer []byte) {
		for h, payload := range sock.Messages(answer) {
			parseError(h, payload)
			for _, body := range Attributes(payload) {
				for _, element := range Attributes(body) {
					if e := parseElement(element); len(e.Key)+len(e.Value) > len(answer) {
						t.Errorf("an element of %d bytes of %d", len(e.Key)+len(e.Value), len(answer))
					}
				}
				parseComment(body)
				parseDevices(body)
			}
		}
	})
}
