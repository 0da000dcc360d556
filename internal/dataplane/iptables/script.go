// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"slices"
	"strings"
)

// script is input for iptables-restore --noflush, for one table: chains, each of which is
// written as a whole, and chains to delete. It takes effect in one step.
type script struct {
	known registry // what the kernel has; nil if that is unknown
	now   registry // the chains that the script is about, as they are after it

	chains []chainText
	others bytes.Buffer // rules in others' chains
	dead   []string

	lines, ruleLines int
}

// chainText is a chain and its rules, each a line without "-A" and the name.
type chainText struct {
	name string
	text []byte
}

// chain writes a chain, unless the kernel has it. It keeps text: rules, each a line
// without "-A" and the name.
func (s *script) chain(name string, text []byte) {
	record := recordOf(text)
	s.now[name] = record
	if known, is := s.known[name]; is && known.text == record.text {
		return
	}
	s.chains = append(s.chains, chainText{name, text})
	s.lines += 1 + int(record.rules)
	s.ruleLines += int(record.rules)
}

// rule writes one rule as it stands, after all chains.
func (s *script) rule(line string) {
	s.others.WriteString(line)
	s.others.WriteByte('\n')
	s.lines++
}

// drop deletes a chain, unless the script writes it.
func (s *script) drop(name string) { s.dead = append(s.dead, name) }

// empty says whether the script has nothing to do.
func (s *script) empty() bool { return s.lines == 0 && len(s.dead) == 0 }

// finish returns the script's text.
//
// Chains are written one after the other with their rules, from the last name to the
// first. Both variants of iptables keep sorted lists that they look through from the
// front: the legacy one for the place of each new chain, and that of nf_tables (at least up
// to 1.8.9) for the chains of each single line, which with 10,000 chains ahead takes longer
// than all the rest. In this order they find them at the front. The names of chains are
// chosen (branchPrefix) so that a chain is mostly written after those that it leads to;
// others are created first.
func (s *script) finish(table string) []byte {
	var tail strings.Builder
	gone := map[string]bool{}
	for _, name := range s.dead {
		if _, written := s.now[name]; written || gone[name] {
			continue
		}
		gone[name] = true
		s.chains = append(s.chains, chainText{name: name}) // only an empty chain can be deleted
		tail.WriteString("-X " + name + "\n")
		s.lines += 2
	}
	slices.SortFunc(s.chains, func(a, b chainText) int { return strings.Compare(b.name, a.name) })
	w := scriptWriter{waiting: make(map[string]bool, len(s.chains))}
	size := s.others.Len() + tail.Len() + 64
	for _, c := range s.chains {
		w.waiting[c.name] = true
		size += len(c.text) + (int(s.now[c.name].rules)+1)*(len(c.name)+len(": - [0:0]\n"))
	}
	w.out = append(make([]byte, 0, size), "*"+table+"\n"...)
	for _, c := range s.chains {
		w.chain(c)
	}
	w.out = append(append(w.out, s.others.Bytes()...), tail.String()...)
	return append(w.out, "COMMIT\n"...)
}

// scriptWriter writes chains.
type scriptWriter struct {
	out     []byte
	waiting map[string]bool // chains that are not created yet
}

// declare creates a chain, or empties it.
func (w *scriptWriter) declare(name string) {
	if w.waiting[name] {
		delete(w.waiting, name)
		w.out = append(append(append(w.out, ':'), name...), " - [0:0]\n"...)
	}
}

// chain writes a chain with its rules.
func (w *scriptWriter) chain(c chainText) {
	w.declare(c.name)
	for to := range targets(c.text) {
		w.declare(string(to))
	}
	for line := range bytes.Lines(c.text) {
		w.out = append(append(append(w.out, "-A "...), c.name...), ' ')
		w.out = append(w.out, line...)
	}
}

// done updates what is known, once the kernel has taken the script. It returns how many
// entries the table has more than before in x_tables.
func (s *script) done(known registry) (entries int) {
	for _, name := range s.dead {
		if was, is := known[name]; is {
			entries -= was.entries()
			delete(known, name)
		}
	}
	for name, record := range s.now {
		if was, is := known[name]; is {
			entries -= was.entries()
		}
		entries += record.entries()
		known[name] = record
	}
	return entries
}
