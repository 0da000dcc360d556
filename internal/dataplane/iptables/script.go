// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"slices"
	"strings"
)

// script is input for iptables-restore --noflush, for one table: chains, each of which is
// written as a whole, and chains to delete. Packets see its effect in one step.
type script struct {
	known registry // chains that the kernel has; nil if that is unknown
	now   registry // the chains that the script is about, as they are after it

	chains []chainText
	others bytes.Buffer // rules in others' chains
	dead   []string

	lines, ruleLines int
	commits          int // transactions
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

// transactionLines is how many lines a transaction of iptables-nft should have at most.
// For each line, iptables-nft-restore (1.8.9) looks for the line's chains from the front of
// a sorted list of all chains that the transaction has named so far: the time to read one
// follows the square of its size.
const transactionLines = 3000

// finish returns the script's text. Where one transaction would have more lines than most,
// chains that the kernel does not have are created in transactions before it. Packets reach
// them after the last transaction, which writes all chains that exist.
//
// Each transaction writes chains from the last name to the first: both variants keep sorted
// lists, and find the place of each new chain at the front in this order. Names are chosen
// (branchPrefix) so that a chain is mostly written after those that it leads to. Others are
// created first.
func (s *script) finish(table string, most int) []byte {
	var tail strings.Builder
	deleted := map[string]bool{}
	for _, name := range s.dead {
		if _, written := s.now[name]; written || deleted[name] {
			continue
		}
		deleted[name] = true
		s.chains = append(s.chains, chainText{name: name}) // only an empty chain can be deleted
		tail.WriteString("-X " + name + "\n")
		s.lines += 2
	}
	last, created := s.chains, []chainText(nil)
	if s.known != nil && s.lines > most {
		last = nil
		for _, c := range s.chains {
			if _, exists := s.known[c.name]; exists {
				last = append(last, c)
			} else {
				created = append(created, c)
			}
		}
	}
	w := scriptWriter{waiting: map[string]bool{}}
	w.await(created)
	for len(created) > 0 {
		n, lines := 0, 0
		for ; n < len(created) && lines < most; n++ {
			lines += 1 + int(s.now[created[n].name].rules)
		}
		w.chains(table, created[:n])
		w.out = append(w.out, "COMMIT\n"...)
		s.commits++
		created = created[n:]
	}
	w.await(last)
	w.chains(table, last)
	w.out = append(append(w.out, s.others.Bytes()...), tail.String()...)
	s.commits++
	return append(w.out, "COMMIT\n"...)
}

// scriptWriter writes chains.
type scriptWriter struct {
	out     []byte
	waiting map[string]bool // chains to create or to empty before a rule leads there
}

func (w *scriptWriter) await(chains []chainText) {
	size := 64
	for _, c := range chains {
		w.waiting[c.name] = true
		size += len(c.text) + (bytes.Count(c.text, []byte{'\n'})+1)*(len(c.name)+len(": - [0:0]\n"))
	}
	w.out = slices.Grow(w.out, size)
}

// chains begins a transaction that writes some chains.
func (w *scriptWriter) chains(table string, chains []chainText) {
	w.out = append(w.out, "*"+table+"\n"...)
	slices.SortFunc(chains, func(a, b chainText) int { return strings.Compare(b.name, a.name) })
	for _, c := range chains {
		w.chain(c)
	}
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
