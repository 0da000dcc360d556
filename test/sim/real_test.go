// SPDX-License-Identifier: Apache-2.0

package sim

import (
	"encoding/binary"
	"errors"
	"flag"
	"fmt"
	"math"
	"math/rand/v2"
	"net/netip"
	"slices"
	"strings"
	"testing"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/dataplane/nftables"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/desired/desiredtest"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"github.com/slipstream-proxy/slipstream/test/kernel/kerneltest"
	"github.com/slipstream-proxy/slipstream/test/kernel/lab"
	"golang.org/x/sys/unix"
)

var batches = flag.Int("batches", 400, "how many random transactions TestLikeTheKernel gives to both kernels")

// TestLikeTheKernel gives random transactions, of which many are refused, to the virtual kernel and to the real one.
// Both have to answer the same, and to have the same content.
func TestLikeTheKernel(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables, likeVirtual)
	real, virtual := realConn(t), newKernel(1).newUser("other").dial()
	defer virtual.Close()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	r := rand.New(rand.NewPCG(seed, 0))
	accepted, refused := 0, map[unix.Errno]int{}
	for i := range *batches {
		write, ops := randomBatch(r)
		stale := r.IntN(20) == 0
		var results [2]string
		var generations [2]uint32
		for n, c := range []*nfnl.Conn{real, virtual} {
			var b nfnl.Batch
			write(c, &b)
			before, err := c.Generation()
			if err != nil {
				t.Fatal(err)
			}
			commits := new(nfnl.Commits) // so that Generation counts this one's commits too
			c.Share(commits)
			at := uint32(0)
			if stale {
				at = nfnl.NextGeneration(before)
			}
			err = c.Commit(at, &b)
			var refusal *nfnl.BatchError
			switch {
			case err == nil:
				accepted += n
			case errors.As(err, &refusal):
				if n == 1 {
					refused[refusal.Errno]++
				}
				results[n] = fmt.Sprintf("%d %s %s %x", refusal.Errno, refusal.Op, refusal.Object, refusal.Key)
			default:
				results[n] = err.Error()
			}
			c.Share(new(nfnl.Commits))
			after, err := c.Generation()
			if err != nil {
				t.Fatal(err)
			}
			generations[n] = after - before
		}
		if results[0] != results[1] {
			t.Fatalf("transaction %d, %s: the kernel says %q, the virtual one %q", i, ops, results[0], results[1])
		}
		if generations[0] != generations[1] {
			t.Fatalf("transaction %d, %s: the kernel counts %d transactions, the virtual one %d", i, ops, generations[0], generations[1])
		}
		if diff := compare(t, real, virtual, tables, true); diff != "" {
			t.Fatalf("after transaction %d, %s:\n%s", i, ops, diff)
		}
	}
	if accepted < *batches/8 || len(refused) < 3 {
		t.Errorf("%d transactions were accepted, and refused %v", accepted, refused)
	}
	t.Logf("%d transactions were accepted, refused %v", accepted, refused)
}

// likeVirtual says that the kernel is as new as those that the virtual one is like. Older ones count transactions without
// an effect in another way, and name other attributes in refusals.
var likeVirtual = kerneltest.Define("nf_tables as the virtual kernel", func() error {
	var major, minor int
	if _, err := fmt.Sscanf(kerneltest.Kernel(), "%d.%d", &major, &minor); err != nil {
		return err
	}
	if major < 6 || major == 6 && minor < 12 {
		return fmt.Errorf("it is Linux %d.%d, and the virtual one is like 6.12", major, minor)
	}
	return nil
})

func realConn(t *testing.T) *nfnl.Conn {
	ns, err := lab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { ns.Close() })
	c, err := nfnl.Dial(ns.FD())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { c.Close() })
	return c
}

var tables = []nfnl.Table{{Family: nfnl.IPv4, Name: "a"}, {Family: nfnl.IPv6, Name: "a"}, {Family: nfnl.IPv4, Name: "b"}}

// Sets of random transactions: a set, a map, a map to chains, intervals, a small set, and the same name with another type.
var sets = []*nfnl.Set{
	{Name: "set", KeyType: nfnl.TypeMark, KeyLen: 4},
	{Name: "map", KeyType: nfnl.TypeMark, KeyLen: 4, DataType: nfnl.TypeMark, DataLen: 4},
	{Name: "vmap", KeyType: nfnl.TypeMark, KeyLen: 4, DataType: nfnl.TypeVerdict},
	{Name: "intervals", KeyType: nfnl.TypeIPAddr, KeyLen: 4, Flags: unix.NFT_SET_INTERVAL},
	{Name: "small", KeyType: nfnl.TypeMark, KeyLen: 4, Size: 3},
	{Name: "set", KeyType: nfnl.TypeMark, KeyLen: 4, DataType: nfnl.TypeMark, DataLen: 4},
}

// Only later chains are the targets of jumps, so that there are no loops.
var chains = []nfnl.Chain{
	{Name: "base", Hook: &nfnl.Hook{Type: "filter", Num: unix.NF_INET_LOCAL_IN, Priority: 0}},
	{Name: "first"}, {Name: "second"}, {Name: "last"},
}

// randomBatch returns what writes a random transaction, and its description.
func randomBatch(r *rand.Rand) (write func(*nfnl.Conn, *nfnl.Batch), text string) {
	var ops []func(*nfnl.Conn, *nfnl.Batch)
	var texts []string
	for range 1 + r.IntN(3) {
		table, i, set, key := tables[r.IntN(len(tables))], r.IntN(len(chains)), sets[r.IntN(len(sets))], uint32(r.IntN(6))
		word := binary.BigEndian.AppendUint32(nil, key)
		value := binary.BigEndian.AppendUint32(nil, uint32(r.IntN(2)))
		op := func(text string, do func(*nfnl.Conn, *nfnl.Batch)) {
			ops, texts = append(ops, do), append(texts, fmt.Sprintf("%s in %s %s: chain %s, set %s, key %d", text, table.Family, table.Name, chains[i].Name, set.Name, key))
		}
		switch n := r.IntN(40); {
		case n < 5:
			op("add table", func(_ *nfnl.Conn, b *nfnl.Batch) { b.AddTable(table, "comment") })
		case n == 5:
			op("delete table", func(_ *nfnl.Conn, b *nfnl.Batch) { b.DeleteTable(table) })
		case n < 12:
			op("add chain", func(_ *nfnl.Conn, b *nfnl.Batch) { b.AddChain(table, chains[i]) })
		case n == 12:
			op("delete chain", func(_ *nfnl.Conn, b *nfnl.Batch) { b.DeleteChain(table, chains[i].Name) })
		case n < 18:
			op("add set", func(_ *nfnl.Conn, b *nfnl.Batch) { b.AddSet(table, set) })
		case n == 18:
			op("delete set", func(_ *nfnl.Conn, b *nfnl.Batch) { b.DeleteSet(table, set.Name) })
		case n == 19:
			op("flush set", func(_ *nfnl.Conn, b *nfnl.Batch) { b.FlushSet(table, set) })
		case n < 26:
			op("add element", func(_ *nfnl.Conn, b *nfnl.Batch) { addElement(b, table, set, word, value) })
		case n < 29:
			op("delete element", func(_ *nfnl.Conn, b *nfnl.Batch) {
				if set.Name == "intervals" {
					b.DeleteInterval(table, set, interval(word, 0), interval(word, 3))
				} else {
					b.DeleteElement(table, set, word)
				}
			})
		case n < 34:
			to := i + 1 + r.IntN(2)
			op(fmt.Sprint("add rule to ", to), func(_ *nfnl.Conn, b *nfnl.Batch) { addRule(b, table, i, to, set) })
		case n == 34:
			op("flush chain", func(_ *nfnl.Conn, b *nfnl.Batch) { b.FlushChain(table, chains[i].Name) })
		case n == 35:
			op("flush table", func(_ *nfnl.Conn, b *nfnl.Batch) { b.FlushTable(table) })
		case n == 36:
			op("add counter", func(_ *nfnl.Conn, b *nfnl.Batch) { b.AddCounter(table, fmt.Sprint("counter", key)) })
		case n == 37:
			op("dormant", func(_ *nfnl.Conn, b *nfnl.Batch) { b.AddDormantTable(table) })
		default:
			op("delete a rule", func(c *nfnl.Conn, b *nfnl.Batch) {
				handle := uint64(1 << 40)
				if all, err := c.Rules(table, chains[i].Name); err == nil && len(all) > 0 {
					handle = all[int(key)%len(all)].Handle
				}
				b.DeleteRule(table, chains[i].Name, handle)
			})
		}
	}
	return func(c *nfnl.Conn, b *nfnl.Batch) {
		for _, op := range ops {
			op(c, b)
		}
	}, strings.Join(texts, "; ")
}

func interval(word []byte, more byte) []byte {
	return []byte{10, 0, word[3], more}
}

func addElement(b *nfnl.Batch, table nfnl.Table, set *nfnl.Set, word, value []byte) {
	switch {
	case set.Name == "intervals":
		b.AddInterval(table, set, interval(word, 0), interval(word, 3))
	case set.DataType == nfnl.TypeVerdict:
		b.AddVerdict(table, set, word, nfnl.Goto, "last")
	case set.DataType != 0:
		b.AddElement(table, set, word, value, "comment")
	default:
		b.AddElement(table, set, word, nil, "")
	}
}

// addRule adds a rule that jumps, or looks up a set.
func addRule(b *nfnl.Batch, table nfnl.Table, from, to int, set *nfnl.Set) {
	name := chains[from].Name
	if set.Name == "set" { // whether a map can be looked up as a set depends on the kernel's version
		set = sets[4]
	}
	const noID = 1 << 30 // 0 would select a set of the transaction that exists already
	load := &expr.Meta{Key: expr.MetaKeyMARK, Register: unix.NFT_REG32_00}
	switch {
	case to < len(chains) && from > 0:
		b.AddRule(table, name, "jumps", []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chains[to].Name}})
	case from == len(chains)-1:
		b.AddRule(table, name, "accepts", []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}})
	case set.DataType == nfnl.TypeVerdict:
		b.AddRule(table, name, "", []expr.Any{load, &expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetID: noID, SetName: set.Name, IsDestRegSet: true}})
	case set.DataType != 0:
		b.AddRule(table, name, "", []expr.Any{load, &expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetID: noID, SetName: set.Name, IsDestRegSet: true, DestRegister: unix.NFT_REG32_01}})
	default:
		b.AddRule(table, name, "", []expr.Any{load, &expr.Lookup{SourceRegister: unix.NFT_REG32_00, SetID: noID, SetName: set.Name}})
	}
}

// compare returns how the content of tables differs between the real kernel and the virtual one. Without values, of
// elements only their number is compared.
func compare(t *testing.T, real, virtual *nfnl.Conn, tables []nfnl.Table, values bool) string {
	t.Helper()
	for _, table := range tables {
		var all [2]*nfnl.Contents
		var texts [2][]string
		for n, c := range []*nfnl.Conn{real, virtual} {
			var err error
			if all[n], err = c.Contents(table); err != nil {
				t.Fatal(err)
			}
			if all[n] == nil {
				continue
			}
			texts[n] = append(texts[n], fmt.Sprintf("table with comment %q, dormant %t", all[n].Comment, all[n].Dormant))
			for _, chain := range all[n].Chains {
				uses := chain.Uses
				if !values {
					uses = 0 // by elements that are not compared
				}
				texts[n] = append(texts[n], fmt.Sprintf("chain %s, uses %d, base %t", strings.TrimRight(chain.Name, "0123456789abcdef"), uses, chain.Base != nil))
			}
			for _, set := range all[n].Sets {
				texts[n] = append(texts[n], fmt.Sprintf("set %+v", set))
				count := 0
				if err := c.Elements(table, set.Name, func(e nfnl.Element) {
					if count++; values {
						texts[n] = append(texts[n], fmt.Sprintf("element of %s: %x %x %d %s %s %t", set.Name, e.Key, e.Value, e.Verdict, e.Chain, e.Comment, e.End))
					}
				}); err != nil {
					t.Fatal(err)
				}
				texts[n] = append(texts[n], fmt.Sprintf("%d elements of %s", count, set.Name))
			}
			slices.Sort(texts[n])
		}
		var out []string
		for _, line := range texts[0] {
			if !slices.Contains(texts[1], line) {
				out = append(out, "only the kernel: "+line)
			}
		}
		for _, line := range texts[1] {
			if !slices.Contains(texts[0], line) {
				out = append(out, "only the virtual kernel: "+line)
			}
		}
		if all[0] != nil && all[1] != nil {
			for _, c := range all { // seals differ, as the kernels encode rules in different ways
				c.Chains = slices.DeleteFunc(c.Chains, func(c nfnl.ChainInfo) bool { return strings.HasPrefix(c.Name, "rules-") })
			}
			no := func(string) bool { return false }
			out = append(out, all[0].Differing(all[1], func(string) bool { return true }, no)...)
		}
		if len(out) > 0 {
			return fmt.Sprintf("table %s %s:\n%s", table.Family, table.Name, strings.Join(out, "\n"))
		}
	}
	return ""
}

// TestDataplaneLikeTheKernel programs the same random changes with the dataplane into both kernels.
func TestDataplaneLikeTheKernel(t *testing.T) {
	kerneltest.Require(t, kerneltest.NFTables, likeVirtual)
	ns, err := lab.NewNamespace()
	if err != nil {
		t.Fatal(err)
	}
	defer ns.Close()
	seed := rand.Uint64()
	t.Logf("seed %d", seed)
	virtual := newKernel(1).newUser("slipstream")
	own := []nfnl.Table{}
	for _, f := range []nfnl.Family{nfnl.IPv4, nfnl.IPv6} {
		own = append(own, nfnl.Table{Family: f, Name: "slipstream"}, nfnl.Table{Family: f, Name: "slipstream-limits"})
	}
	var planes [2]*nftables.Dataplane
	var states [2]*desired.State
	var objects [2]desiredtest.Objects
	var choices [2]*desiredtest.Choices
	var conns [2]*nfnl.Conn
	for n, netns := range []int{ns.FD(), virtual.netns} {
		// Whole tables at once, as the order of slots is random, and with it what a part has.
		if planes[n], err = nftables.New(dataplane.Config{NetNS: netns, MasqueradeBit: dataplane.DefaultMasqueradeBit, Step: math.MaxInt32}); err != nil {
			t.Fatal(err)
		}
		defer planes[n].Close()
		if conns[n], err = nfnl.Dial(netns); err != nil {
			t.Fatal(err)
		}
		defer conns[n].Close()
		states[n] = desired.New(desired.Config{NodeName: desiredtest.ThisNode, NodePorts: desired.NodePortAddresses{CIDRs: []netip.Prefix{netip.MustParsePrefix("192.168.0.0/24")}}})
		choices[n] = desiredtest.NewChoices(desiredtest.RandomInput(seed, 4000))
	}
	frontends := 0
	for step := 0; choices[0].More() && !t.Failed(); step++ {
		for n := range planes {
			objects[n].Step(choices[n], states[n])
			change := states[n].Change()
			frontends += len(change.Frontends)
			if step == 0 || step%20 == 19 || change.Rebuild {
				_, err = planes[n].Reconcile(t.Context(), &states[n].Full().Change)
			} else {
				_, err = planes[n].Apply(t.Context(), &change.Change)
			}
			if err != nil {
				t.Fatalf("step %d, kernel %d: %v", step, n, err)
			}
		}
		if step%5 == 0 {
			if diff := compare(t, conns[0], conns[1], own, false); diff != "" {
				t.Fatalf("step %d: %s", step, diff)
			}
		}
	}
	for n := range planes {
		for states[n].Pending() {
			if _, err := planes[n].Apply(t.Context(), &states[n].Change().Change); err != nil {
				t.Fatal(err)
			}
		}
		v, err := dataplane.Verify(t.Context(), planes[n], &states[n].Full().Change)
		if err != nil || len(v.Differences) > 0 || frontends == 0 {
			t.Errorf("kernel %d, after %d changes of frontends: %v\n%s", n, frontends, err, v)
		}
	}
}
