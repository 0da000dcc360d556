// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"hash/maphash"
	"slices"
	"strings"
)

// script is input for iptables-restore --noflush: chains, each of which is written
// as a whole, and chains that are to go. What it writes takes effect at once, table by
// table.
type script struct {
	known registry // what the kernel has; nil: nothing can be taken for granted
	now   registry // what of that the script is about, and what is new, after it

	chains []string
	rules  bytes.Buffer
	dead   []string

	lines, ruleLines int
}

// registry is what the kernel has of our chains in one table, by name.
type registry map[string]chainRecord

// chainRecord is what is known of a chain.
type chainRecord struct {
	text  uint64 // a hash of its rules
	rules int32
}

var textSeed = maphash.MakeSeed()

// chain writes a chain, unless the kernel has it. Text is its rules, each a line
// without "-A" and the name.
func (s *script) chain(name string, text []byte) {
	record := chainRecord{text: maphash.Bytes(textSeed, text), rules: int32(bytes.Count(text, []byte{'\n'}))}
	s.now[name] = record
	if s.known[name] == record {
		return
	}
	s.declare(name)
	for len(text) > 0 {
		end := bytes.IndexByte(text, '\n') + 1
		s.rules.WriteString("-A ")
		s.rules.WriteString(name)
		s.rules.WriteByte(' ')
		s.rules.Write(text[:end])
		text = text[end:]
		s.lines++
		s.ruleLines++
	}
}

// declare makes a chain and empties it.
func (s *script) declare(name string) {
	s.chains = append(s.chains, name)
	s.lines++
}

// rule writes one rule as it stands.
func (s *script) rule(line string) {
	s.rules.WriteString(line)
	s.rules.WriteByte('\n')
	s.lines++
}

// drop has a chain deleted, unless the script writes it.
func (s *script) drop(name string) { s.dead = append(s.dead, name) }

// empty says that there is nothing to do.
func (s *script) empty() bool { return s.lines == 0 && len(s.dead) == 0 }

// finish is the script's text for a table. Chains are in the order of their names, as
// iptables keeps them: it looks through all of them for the place of one that comes out
// of order.
func (s *script) finish(table string) []byte {
	var tail strings.Builder
	gone := map[string]bool{}
	for _, name := range s.dead {
		if _, written := s.now[name]; written || gone[name] {
			continue
		}
		gone[name] = true
		s.declare(name) // a chain has to be empty to go
		tail.WriteString("-X " + name + "\n")
		s.lines++
	}
	slices.Sort(s.chains)
	out := append(make([]byte, 0, len(s.chains)*32+s.rules.Len()+tail.Len()+64), "*"+table+"\n"...)
	for _, name := range s.chains {
		out = append(append(append(out, ':'), name...), " - [0:0]\n"...)
	}
	out = append(append(out, s.rules.Bytes()...), tail.String()...)
	return append(out, "COMMIT\n"...)
}

// done takes the script into what is known, once the kernel has it.
func (s *script) done(known registry) {
	for _, name := range s.dead {
		delete(known, name)
	}
	for name, record := range s.now {
		known[name] = record
	}
}
