// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"hash/maphash"
)

// registry is our chains in one table of the kernel, by name.
type registry map[string]chainRecord

// chainRecord describes a chain: whether it has changed, and how many of its rules lead where.
// The rules themselves would be most of our memory.
type chainRecord struct {
	text  uint64 // a hash of its rules
	rules int32
	to    []chainHash // the chains that its rules lead to
}

// chainHash stands for a chain's name.
type chainHash uint64

var textSeed = maphash.MakeSeed()

func hashChain(name []byte) chainHash { return chainHash(maphash.Bytes(textSeed, name)) }

func recordOf(text []byte) chainRecord {
	r := chainRecord{text: maphash.Bytes(textSeed, text), rules: int32(bytes.Count(text, []byte{'\n'}))}
	for line := range bytes.Lines(text) {
		if to := line[bytes.LastIndexByte(line, ' ')+1 : len(line)-1]; bytes.HasPrefix(to, []byte(prefix)) {
			r.to = append(r.to, hashChain(to))
		}
	}
	return r
}

// rules is how many rules the chains have.
func (r registry) rules() (n int) {
	for _, record := range r {
		n += int(record.rules)
	}
	return n
}

// entries is how many entries the chain has in x_tables: one more at its beginning and one
// at its end.
func (r *chainRecord) entries() int { return int(r.rules) + 2 }

// references is how many of our rules lead to each chain.
func (r registry) references() map[chainHash]int {
	all := make(map[chainHash]int, len(r))
	for _, record := range r {
		for _, to := range record.to {
			all[to]++
		}
	}
	return all
}
