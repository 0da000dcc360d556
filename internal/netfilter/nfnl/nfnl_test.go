// SPDX-License-Identifier: Apache-2.0

package nfnl

import (
	"bytes"
	"encoding/binary"
	"errors"
	"maps"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/sock"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
)

var (
	table = Table{IPv4, "test"}

	numbers = &Set{Name: "numbers", KeyType: TypeMark, KeyLen: 4, DataType: TypeMark, DataLen: 4, HostOrder: true}
	ports   = &Set{
		Name:    "ports",
		KeyType: Concat(TypeIPAddr, TypeInetProto, TypeInetService), KeyLen: 12,
		DataType: Concat(TypeIPAddr, TypeInetService), DataLen: 8,
	}
	chains  = &Set{Name: "chains", KeyType: TypeMark, KeyLen: 4, DataType: TypeVerdict, HostOrder: true}
	members = &Set{Name: "members", KeyType: TypeIP6Addr, KeyLen: 16}
)

// dial opens a connection to an empty network namespace.
func dial(t testing.TB) (*Conn, *lab.Namespace) {
	t.Helper()
	kerneltest.Require(t, kerneltest.NFTables)
	ns, err := lab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	c, err := Dial(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := errors.Join(c.Close(), ns.Close()); err != nil {
			t.Error(err)
		}
	})
	return c, ns
}

func commit(t testing.TB, c *Conn, fill func(*Batch)) {
	t.Helper()
	var b Batch
	fill(&b)
	if err := c.Commit(0, &b); err != nil {
		t.Fatal(err)
	}
}

func key(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// elements reads a set as key -> value, chain or comment.
func elements(t testing.TB, c *Conn, set *Set) map[string]string {
	t.Helper()
	all := map[string]string{}
	err := c.Elements(table, set.Name, func(e Element) {
		all[string(e.Key)] = string(e.Value) + e.Chain + string(e.Comment)
	})
	if err != nil {
		t.Fatal(err)
	}
	return all
}

// waitElements reads a set until n elements are found, for a minute at most. The kernel
// makes a large set's hash table larger or smaller after the commit, and a dump
// meanwhile leaves elements out.
func waitElements(t testing.TB, c *Conn, set *Set, n int) map[string]string {
	t.Helper()
	for end := time.Now().Add(time.Minute); ; time.Sleep(10 * time.Millisecond) {
		if all := elements(t, c, set); len(all) == n || time.Now().After(end) {
			return all
		}
	}
}

func TestRoundTrip(t *testing.T) {
	c, ns := dial(t)
	web := []byte{10, 96, 0, 1, 6, 0, 0, 0, 0, 80, 0, 0}
	pod := []byte{10, 244, 1, 5, 0x1f, 0x90, 0, 0}
	member := bytes.Repeat([]byte{0xfd}, 16)
	commit(t, c, func(b *Batch) {
		b.AddTable(table, "a comment")
		for _, s := range []*Set{numbers, ports, chains, members} {
			b.AddSet(table, s)
		}
		b.AddChain(table, Chain{Name: "target"})
		b.AddChain(table, Chain{Name: "base", Hook: &Hook{"nat", unix.NF_INET_PRE_ROUTING, -100}})
		b.AddRule(table, "base", "why", []expr.Any{&expr.Counter{}})
		b.AddElement(table, numbers, key(7), key(8), "")
		b.AddElement(table, ports, web, pod, "default/web")
		b.AddVerdict(table, chains, key(9), Goto, "target")
		b.AddElement(table, members, member, nil, "")
	})
	for _, tc := range []struct {
		set        *Set
		key, value string
	}{
		{numbers, string(key(7)), string(key(8))},
		{ports, string(web), string(pod) + "default/web"},
		{chains, string(key(9)), "target"},
		{members, string(member), ""},
	} {
		if got, want := elements(t, c, tc.set), map[string]string{tc.key: tc.value}; !maps.Equal(got, want) {
			t.Errorf("%s holds %q, want %q", tc.set.Name, got, want)
		}
		for k, want := range map[string]bool{tc.key: true, strings.Repeat("x", int(tc.set.KeyLen)): false} {
			if there, err := c.Has(table, tc.set.Name, []byte(k)); err != nil || there != want {
				t.Errorf("%s has %q: %v %v", tc.set.Name, k, there, err)
			}
		}
	}
	if info, err := c.Table(table); err != nil || info.Comment != "a comment" || info.Handle == 0 {
		t.Errorf("table: %+v %v", info, err)
	}
	if rules, err := c.Rules(table, ""); err != nil || len(rules) != 1 || rules[0].Chain != "base" {
		t.Errorf("rules: %v %v", rules, err)
	}
	all, err := c.Sets(table)
	if err != nil {
		t.Fatal(err)
	}
	sets := map[string]Set{}
	for _, s := range all {
		sets[s.Name] = s
	}
	for _, want := range []*Set{numbers, ports, members} {
		got := sets[want.Name]
		got.HostOrder = want.HostOrder // not read back, like Typeof
		if got != *want {
			t.Errorf("set %+v read as %+v", *want, got)
		}
	}

	kerneltest.Require(t, kerneltest.NFTBinary)
	out, err := ns.Run(t.Context(), "nft", "list", "ruleset")
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		`comment "a comment"`, "elements = { 0x00000007 :", `10.96.0.1 . tcp . 80 comment "default/web" : 10.244.1.5 . 8080`,
		"0x00000009 : goto target", "type nat hook prerouting priority dstnat", `comment "why"`, "fdfd:fdfd:",
	} {
		if !strings.Contains(string(out), want) {
			t.Errorf("nft does not show %q in\n%s", want, out)
		}
	}

	commit(t, c, func(b *Batch) {
		b.DeleteElement(table, numbers, key(7))
		b.AddElement(table, numbers, key(7), key(1), "")
		b.FlushSet(table, ports)
	})
	if got := elements(t, c, numbers); got[string(key(7))] != string(key(1)) {
		t.Errorf("replaced: %q", got)
	}
	if got := elements(t, c, ports); len(got) > 0 {
		t.Errorf("flushed: %q", got)
	}
	commit(t, c, func(b *Batch) { b.DeleteTable(table) })
	if _, err := c.Table(table); !errors.Is(err, unix.ENOENT) {
		t.Errorf("deleted table: %v", err)
	}
}

// TestManyElements crosses the sizes of a message and of a socket buffer.
func TestManyElements(t *testing.T) {
	c, _ := dial(t)
	const n = 20_000
	long := strings.Repeat("c", MaxComment)
	commit(t, c, func(b *Batch) {
		b.AddTable(table, "")
		b.AddSet(table, numbers)
		for i := range uint32(n) {
			b.AddElement(table, numbers, key(i), key(i+1), long+"cut off")
		}
		if b.Elements() != n {
			t.Errorf("%d elements counted", b.Elements())
		}
	})
	there := 0
	for i := range uint32(n) {
		ok, err := c.Has(table, numbers.Name, key(i))
		if err != nil {
			t.Fatal(err)
		}
		if ok {
			there++
		}
	}
	if there != n {
		t.Errorf("%d of %d elements are there", there, n)
	}
	commit(t, c, func(b *Batch) {
		for i := range uint32(n) {
			b.DeleteElement(table, numbers, key(i))
		}
	})
	if got := elements(t, c, numbers); len(got) > 0 {
		t.Errorf("%d elements are left", len(got))
	}
}

// TestElementsInterrupted deletes elements while a set is read, which makes the kernel leave
// others out.
func TestElementsInterrupted(t *testing.T) {
	c, ns := dial(t)
	other := dialAgain(t, ns)
	const n = 5000 // more than fits one message
	commit(t, c, func(b *Batch) {
		b.AddTable(table, "")
		b.AddSet(table, numbers)
		for i := range uint32(n) {
			b.AddElement(table, numbers, key(i), key(i), "")
		}
	})
	read := func(meanwhile func(Element)) error {
		first := true
		return c.Elements(table, numbers.Name, func(e Element) {
			if first {
				first = false
				meanwhile(e)
			}
		})
	}
	if err := read(func(Element) {}); err != nil {
		t.Errorf("undisturbed: %v", err)
	}
	err := read(func(e Element) {
		gone := bytes.Clone(e.Key)
		commit(t, other, func(b *Batch) { b.DeleteElement(table, numbers, gone) })
	})
	if !errors.Is(err, ErrInterrupted) {
		t.Errorf("error %v, want ErrInterrupted", err)
	}
	if err := read(func(Element) {}); err != nil {
		t.Errorf("undisturbed again: %v", err)
	}
}

// TestRefusal checks that an error names what the kernel has refused.
func TestRefusal(t *testing.T) {
	c, _ := dial(t)
	commit(t, c, func(b *Batch) {
		b.AddTable(table, "")
		b.AddSet(table, numbers)
		b.AddElement(table, numbers, key(1), key(1), "")
	})
	for name, tc := range map[string]struct {
		fill  func(*Batch)
		errno unix.Errno
		op    string
		set   string
		key   []byte
	}{
		"an element that is not there": {
			func(b *Batch) { b.DeleteElement(table, numbers, key(99)) },
			unix.ENOENT, "delete element", "numbers", key(99),
		},
		"one among many": {
			func(b *Batch) {
				for i := range uint32(3000) {
					b.AddElement(table, numbers, key(100+i), key(i), "")
				}
				b.AddElement(table, numbers, key(1), key(2), "")
				for i := range uint32(3000) {
					b.AddElement(table, numbers, key(10_000+i), key(i), "")
				}
			},
			unix.EEXIST, "add element", "numbers", key(1),
		},
		"a set that is not there": {
			func(b *Batch) { b.AddElement(table, ports, make([]byte, 12), make([]byte, 8), "") },
			unix.ENOENT, "add element", "ports", nil,
		},
		"a table that is not there": {
			func(b *Batch) { b.DeleteTable(Table{IPv6, "nowhere"}) },
			unix.ENOENT, "delete table", "", nil,
		},
		"a rule that leads nowhere": {
			func(b *Batch) {
				b.AddChain(table, Chain{Name: "c"})
				b.AddRule(table, "c", "", []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: "nowhere"}})
			},
			unix.ENOENT, "add rule", "c", nil,
		},
	} {
		t.Run(name, func(t *testing.T) {
			before := elements(t, c, numbers)
			var b Batch
			tc.fill(&b)
			err := c.Commit(0, &b)
			var refused *BatchError
			if !errors.As(err, &refused) {
				t.Fatalf("error %v", err)
			}
			if refused.Errno != tc.errno || refused.Op != tc.op || refused.Object != tc.set || tc.key != nil && !bytes.Equal(refused.Key, tc.key) {
				t.Errorf("refused: %v (%+v)", err, *refused)
			}
			if !errors.Is(err, tc.errno) || strings.Contains(err.Error(), "\n") {
				t.Errorf("error text: %v", err)
			}
			if after := elements(t, c, numbers); !maps.Equal(before, after) {
				t.Errorf("a refused batch had an effect: %d elements, had %d", len(after), len(before))
			}
		})
	}
}

// TestBadExpression encodes an expression that cannot be encoded, in a rule and in a piece.
func TestBadExpression(t *testing.T) {
	c, _ := dial(t)
	var b Batch
	fill := func() {
		b.AddTable(table, "")
		b.AddChain(table, Chain{Name: "c"})
		b.AddRule(table, "c", "", []expr.Any{&expr.Numgen{Type: 99}})
	}
	for what, commit := range map[string]func() error{
		"Commit": func() error { fill(); return c.Commit(0, &b) },
		"DryRun": func() error { fill(); return c.DryRun(&b) },
		"pieces": func() error { return c.CommitPieces(t.Context(), &b, fill) },
	} {
		b.Reset()
		if err := commit(); err == nil || !strings.Contains(err.Error(), "table ip test: expression *expr.Numgen") {
			t.Errorf("%s: %v", what, err)
		}
	}
	b.Reset()
	if err := c.Commit(0, &b); err != nil {
		t.Errorf("after a Reset: %v", err)
	}
	if _, err := c.Table(table); !errors.Is(err, unix.ENOENT) {
		t.Errorf("the table: %v", err)
	}
}

// TestLacks: a probe must not take a lack of permission or memory for a missing feature.
func TestLacks(t *testing.T) {
	for errno, want := range map[unix.Errno]bool{
		unix.ENOENT: true, unix.EOPNOTSUPP: true, unix.EINVAL: true,
		unix.EPERM: false, unix.ENOMEM: false, unix.ENOBUFS: false, unix.ENFILE: false,
	} {
		if got := (&BatchError{Errno: errno}).Lacks(); got != want {
			t.Errorf("%v: %t, want %t", errno, got, want)
		}
	}
}

// TestGeneration commits for a generation that has passed.
func TestGeneration(t *testing.T) {
	c, ns := dial(t)
	commit(t, c, func(b *Batch) { b.AddTable(table, "") })
	before, err := c.Generation()
	if err != nil {
		t.Fatal(err)
	}
	commit(t, c, func(b *Batch) { b.AddSet(table, numbers) })
	if now, err := c.Generation(); err != nil || now != before {
		t.Fatalf("generation %d after %d: %v", now, before, err)
	}
	commit(t, dialAgain(t, ns), func(b *Batch) { b.AddTable(Table{IPv4, "other"}, "") })
	after, err := c.Generation()
	if err != nil || after != NextGeneration(before) {
		t.Fatalf("generation %d after %d: %v", after, before, err)
	}
	for gen, want := range map[uint32]error{before: ErrGeneration, after: nil} {
		var b Batch
		b.AddElement(table, numbers, key(gen), key(1), "")
		if err := c.Commit(gen, &b); !errors.Is(err, want) {
			t.Errorf("commit for generation %d: %v, want %v", gen, err, want)
		}
	}
	if got := elements(t, c, numbers); len(got) != 1 {
		t.Errorf("%d elements", len(got))
	}
}

// dialAgain opens another connection to a namespace.
func dialAgain(t testing.TB, ns *lab.Namespace) *Conn {
	t.Helper()
	c, err := Dial(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

// TestCommitReadMissing commits a batch that names something which does not exist: a few times,
// as it may have been deleted since prepare has read it.
func TestCommitReadMissing(t *testing.T) {
	c, _ := dial(t)
	prepared := 0
	_, err := c.CommitRead(t.Context(), func() ([]*Batch, error) {
		prepared++
		b := new(Batch)
		b.DeleteTable(table)
		return []*Batch{b}, nil
	})
	if !errors.Is(err, unix.ENOENT) || prepared != missingTries {
		t.Errorf("%v after %d tries", err, prepared)
	}
}

// TestShare commits on two connections at the same time. The generation must be right at any
// moment, and commits for it must succeed.
func TestShare(t *testing.T) {
	c, ns := dial(t)
	commit(t, c, func(b *Batch) { b.AddTable(table, ""); b.AddSet(table, numbers) })
	want, err := c.Generation()
	if err != nil {
		t.Fatal(err)
	}
	const commits = 300
	var both sync.WaitGroup
	for i := range uint32(2) {
		conn := dialAgain(t, ns)
		conn.Share(c.Commits())
		both.Go(func() {
			for n := range uint32(commits) {
				var b Batch
				b.AddElement(table, numbers, key(2*n+i), key(n), "")
				if err := conn.Commit(want, &b); err != nil {
					t.Error(err)
				}
			}
		})
	}
	for range commits {
		if got, err := c.Generation(); err != nil || got != want {
			t.Errorf("generation %d, want %d: %v", got, want, err)
		}
	}
	both.Wait()
	commit(t, dialAgain(t, ns), func(b *Batch) { b.AddTable(Table{IPv4, "other"}, "") })
	if got, err := c.Generation(); err != nil || got != NextGeneration(want) {
		t.Errorf("generation %d after a commit of another program, was %d: %v", got, want, err)
	}
}

func TestEmptyBatch(t *testing.T) {
	c, _ := dial(t)
	var b Batch
	if err := c.Commit(0, &b); err != nil || !b.Empty() {
		t.Errorf("empty batch: %v", err)
	}
}

// TestNamespaces opens two connections in two namespaces.
func TestNamespaces(t *testing.T) {
	a, _ := dial(t)
	b, _ := dial(t)
	commit(t, a, func(b *Batch) { b.AddTable(table, "") })
	if _, err := b.Table(table); !errors.Is(err, unix.ENOENT) {
		t.Errorf("the other namespace's table: %v", err)
	}
}

// TestGivenUp leaves an answer in the queue, like an exchange that was aborted. Later exchanges
// must ignore it.
func TestGivenUp(t *testing.T) {
	c, _ := dial(t)
	var b Batch
	b.DeleteTable(table) // refused, with an answer that is not read
	wire, _, _ := c.transaction(0, []*Batch{&b})
	if err := sock.Send(c.raw, wire...); err != nil {
		t.Fatal(err)
	}
	c.unread = true
	commit(t, c, func(b *Batch) { b.AddTable(table, "") })
	b.Reset()
	b.DeleteTable(Table{IPv6, "nowhere"})
	wire, _, _ = c.transaction(0, []*Batch{&b})
	if err := sock.Send(c.raw, wire...); err != nil {
		t.Fatal(err)
	}
	c.unread = true
	if _, err := c.Table(table); err != nil {
		t.Error(err)
	}
}

// TestMoreRefusalsThanFit makes the kernel send more errors than the socket's queue holds.
func TestMoreRefusalsThanFit(t *testing.T) {
	c, _ := dial(t)
	commit(t, c, func(b *Batch) { b.AddTable(table, "") })
	var big Batch
	for i := range uint32(60_000) { // in two families by turns, so that each is a message
		big.DeleteElement(Table{[]Family{IPv4, IPv6}[i%2], "gone"}, numbers, key(i))
	}
	var refused *BatchError
	if err := c.Commit(0, &big); !errors.As(err, &refused) || refused.Errno != unix.ENOENT {
		t.Errorf("the refusal: %v", err)
	}
	for range 5 {
		if _, err := c.Table(table); err != nil {
			t.Errorf("a table that is there: %v", err)
		}
	}
	commit(t, c, func(b *Batch) { b.AddSet(table, numbers) })
}

// TestSeveralBatches commits two as one.
func TestSeveralBatches(t *testing.T) {
	c, _ := dial(t)
	var a, b Batch
	a.AddTable(table, "")
	a.AddSet(table, numbers)
	b.AddElement(table, numbers, key(1), key(2), "")
	if err := c.Commit(0, &a, &b); err != nil {
		t.Fatal(err)
	}
	if got := elements(t, c, numbers); len(got) != 1 {
		t.Errorf("elements: %q", got)
	}
	a.Reset()
	a.AddElement(table, numbers, key(3), key(4), "")
	b.Reset()
	b.DeleteElement(table, numbers, key(5))
	var refused *BatchError
	if err := c.Commit(0, &a, &b); !errors.As(err, &refused) || !bytes.Equal(refused.Key, key(5)) {
		t.Errorf("refusal: %v", err)
	}
	if got := elements(t, c, numbers); len(got) != 1 {
		t.Errorf("elements after a refusal: %q", got)
	}
}
