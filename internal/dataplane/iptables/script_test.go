// SPDX-License-Identifier: Apache-2.0

package iptables

import (
	"fmt"
	"math"
	"strings"
	"testing"
)

// TestScript makes sure that a script makes each chain before any rule that leads to it, as
// iptables demands, and writes nothing that the kernel has.
func TestScript(t *testing.T) {
	known := registry{}
	s := &script{known: known, now: registry{}}
	s.chain("SLIP-BR-A", []byte("-d 10.0.0.1/32 -g SLIP-SVC-B\n-g SLIP-BR-C\n"))
	s.chain("SLIP-SVC-A", nil)
	s.chain("SLIP-BR-C", []byte("-g SLIP-ELSEWHERE\n"))
	s.drop("SLIP-DEAD")
	s.drop("SLIP-BR-C") // and written
	s.drop("SLIP-DEAD")
	s.rule("-I OUTPUT -j SLIP-SERVICES")
	want := `*nat
:SLIP-BR-A - [0:0]
:SLIP-SVC-A - [0:0]
:SLIP-BR-C - [0:0]
:SLIP-DEAD - [0:0]
-A SLIP-BR-A -d 10.0.0.1/32 -g SLIP-SVC-B
-A SLIP-BR-A -g SLIP-BR-C
-A SLIP-BR-C -g SLIP-ELSEWHERE
-I OUTPUT -j SLIP-SERVICES
-X SLIP-DEAD
COMMIT
`
	got := string(s.finish(tableNAT, math.MaxInt))
	if got != want {
		t.Errorf("got\n%swant\n%s", got, want)
	}
	if n := strings.Count(got, "\n") - 2; s.lines != n {
		t.Errorf("%d lines are counted, and %d written", s.lines, n)
	}
	s.done(known)
	again := &script{known: known, now: registry{}}
	again.chain("SLIP-SVC-A", nil)
	again.chain("SLIP-BR-C", []byte("-g SLIP-ELSEWHERE\n"))
	if !again.empty() {
		t.Errorf("what the kernel has is written again:\n%s", again.finish(tableNAT, math.MaxInt))
	}
}

// TestTransactions divides a script. Chains that packets reach are written in the last
// transaction only, and no rule leads to a chain that does not exist yet.
func TestTransactions(t *testing.T) {
	t.Run("changed", func(t *testing.T) {
		testTransactions(t, script{known: registry{"SLIP-SERVICES": {}, "SLIP-BR-5": {}}})
	})
	t.Run("interrupted", func(t *testing.T) {
		all := registry{"SLIP-SERVICES": {}}
		for i := range 9 {
			all[fmt.Sprintf("SLIP-BR-%d", i)], all[fmt.Sprintf("SLIP-SVC-%d", i)] = chainRecord{}, chainRecord{}
		}
		testTransactions(t, script{known: all, unreached: true})
	})
}

func testTransactions(t *testing.T, s script) {
	s.now = registry{}
	for i := range 9 {
		s.chain(fmt.Sprintf("SLIP-BR-%d", i), fmt.Appendf(nil, "-d 10.0.0.1/32 -g SLIP-SVC-%d\n-g SLIP-BR-%d\n", i, (i+4)%9))
		s.chain(fmt.Sprintf("SLIP-SVC-%d", i), []byte("-p tcp -j DNAT --to-destination 10.0.0.2:80\n"))
	}
	s.chain("SLIP-SERVICES", []byte("-g SLIP-BR-1\n"))
	s.rule("-I OUTPUT -j SLIP-SERVICES")
	transactions := strings.SplitAfter(string(s.finish(tableNAT, 10)), "COMMIT\n")
	transactions = transactions[:len(transactions)-1]
	if len(transactions) < 4 || len(transactions) != s.commits {
		t.Errorf("%d transactions, %d counted", len(transactions), s.commits)
	}
	exists, rules := map[string]bool{}, 0
	for name := range s.known {
		exists[name] = true
	}
	for i, text := range transactions {
		if n := strings.Count(text, "\n"); n > 12 && i < len(transactions)-1 || !strings.HasPrefix(text, "*nat\n") {
			t.Errorf("%d lines:\n%s", n, text)
		}
		for line := range strings.Lines(text) {
			words := strings.Fields(line)
			last := words[len(words)-1]
			switch {
			case line[0] == ':':
				name := words[0][1:]
				if exists[name] && i < len(transactions)-1 && !s.unreached {
					t.Errorf("transaction %d empties %s", i, name)
				}
				exists[name] = true
			case strings.HasPrefix(line, "-I "):
				if i < len(transactions)-1 {
					t.Errorf("packets enter after transaction %d of %d", i, len(transactions))
				}
			case line[0] == '-':
				rules++
				if !exists[words[1]] || strings.HasPrefix(last, prefix) && !exists[last] {
					t.Errorf("a chain that does not exist: %s", line)
				}
			}
		}
	}
	if rules != 9*3+1 {
		t.Errorf("%d rules", rules)
	}
}
