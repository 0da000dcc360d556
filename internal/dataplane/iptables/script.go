// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"bytes"
	"hash/maphash"
	"math"
	"slices"
)

// script is input for iptables-restore --noflush, for one table: chains, each of which is
// written as a whole, and chains to delete. Packets see its effect in one step.
type script struct {
	known registry // chains that the kernel has; nil if that is unknown
	now   registry // the chains that the script is about, as they are after it

	// unreached says that no rule leads packets to the known chains, as after a first
	// restore that was interrupted.
	unreached bool

	chains []chainText
	others bytes.Buffer // lines after all chains
	dead   []string

	lines, ruleLines int
	commits          int // transactions
}

// chainText is a chain and its rules, each a line without "-A" and the name.
type chainText struct {
	name string
	text []byte
}

// chain writes a chain, unless the kernel has it. Text is its rules, each a line without "-A"
// and the name.
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

// rule writes one line as it stands, after all chains.
func (s *script) rule(line string) {
	s.others.WriteString(line)
	s.others.WriteByte('\n')
	s.lines++
}

// drop deletes a chain, unless the script writes it.
func (s *script) drop(name string) { s.dead = append(s.dead, name) }

// empty says whether the script has nothing to do.
func (s *script) empty() bool { return s.lines == 0 && len(s.dead) == 0 }

// transactionLines is how many lines a transaction of iptables-nft has at most, where it can
// be divided. For each line, iptables-nft-restore (1.8.9) looks for the line's chains from
// the front of a sorted list of all chains that the transaction has named so far: the time
// to read a transaction follows the square of its size.
const transactionLines = 1500

// finish returns the script's text. If that has more lines than most, chains that no packet
// reaches yet are written in transactions of their own. The last transaction writes the others,
// and the rules that lead packets to our chains.
func (s *script) finish(table string, most int) []byte {
	slices.Sort(s.dead)
	for _, name := range slices.Compact(s.dead) {
		if _, written := s.now[name]; !written {
			s.chains = append(s.chains, chainText{name: name}) // only an empty chain can be deleted
			s.rule("-X " + name)
			s.lines++
		}
	}
	size := s.others.Len() + 64
	for _, c := range s.chains {
		size += len(c.text) + (int(s.now[c.name].rules)+1)*(len(c.name)+len(": - [0:0]\n"))
	}
	out, lines := make([]byte, 0, size), 0
	commit := func() {
		if lines > 0 {
			out = append(out, "COMMIT\n"...)
			lines = 0
			s.commits++
		}
	}
	next := func(most int) { // prepares for the next line
		if lines == most {
			commit()
		}
		if lines++; lines == 1 {
			out = append(out, "*"+table+"\n"...)
		}
	}
	write := func(all []chainText, most int) { // creates or empties all chains, and then writes their rules
		for _, c := range all {
			next(most)
			out = append(append(append(out, ':'), c.name...), " - [0:0]\n"...)
		}
		for _, c := range all {
			for rule := range bytes.Lines(c.text) {
				next(most)
				out = append(append(append(out, "-A "...), c.name...), ' ')
				out = append(out, rule...)
			}
		}
	}
	last := s.chains
	if s.known != nil && s.lines > most {
		isReached := func(c chainText) bool { _, exists := s.known[c.name]; return exists && !s.unreached }
		write(slices.DeleteFunc(slices.Clone(s.chains), isReached), most)
		commit()
		last = slices.DeleteFunc(s.chains, func(c chainText) bool { return !isReached(c) })
	}
	write(last, math.MaxInt)
	if s.others.Len() > 0 {
		next(math.MaxInt)
		out = append(out, s.others.Bytes()...)
	}
	commit()
	return out
}

// done updates the record of the kernel's content, once the kernel has taken the script. It returns how many
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
		if to := bytes.TrimSuffix(line[bytes.LastIndexByte(line, ' ')+1:], []byte("\n")); bytes.HasPrefix(to, []byte(prefix)) {
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
