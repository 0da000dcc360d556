// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// Session affinity is implemented by the map "affinity", which all Services share. Rules add its elements: they map a
// Service port (by its affinity ID) and a client address to a backend, with a timeout. The proxy never writes elements
// of the map, so they survive its restart.
//
// For a connection to a frontend with affinity, the rules first look up the client's
// previous backend. It is used if the set "members" still contains it for the frontend's
// pool. Otherwise a backend is picked as for any other connection.
//
// Elements are written after DNAT, where the connection leaves this node or is delivered to it, so that the rules that
// pick a backend do not depend on affinity. Every new connection refreshes the timeout. The timeout is a constant of a
// rule, so each distinct timeout has a chain such as "remember-10800", which is created when a frontend needs it, and
// deleted when none does. They are few (see desired.affinitySteps). This is the only change of Services that makes the
// kernel validate the table (see the package's documentation).
//
// A client that loses its backend keeps its element, with port 0 as a sign, until the connection's new backend is
// recorded. So a client that is already recorded never counts as a new one: those are limited (see clients.go).

// stickySelector is a flag in a pool's value in the map pools: its frontends have affinity.
const stickySelector = 1 << 20

// dynset operations (enum nft_dynset_ops).
const (
	dynsetUpdate = 1 // adds the element, or refreshes its timeout
	dynsetDelete = 2 // Linux 5.4
)

// Registers of affinity. The first word of every value is unused (see the package's documentation).
//
//	9         unused word of affinity's value, then the pool
//	10, 11 ...  backend: port and address. (The other order is one that nft 1.0.6 cannot load.)
//	14        unused word of sticky's value
//	15, 16    affinity ID
//	17 ...    timeout, then the client's address, which completes affinity's key
const (
	regRemember = 9
	regBackend  = regRemember + 1
	regSticky   = 14
	regID       = regSticky + 1
	regTimeout  = regSticky + 3
	regClient   = regTimeout
)

// loadSticky looks up the frontend whose key is in a register in one of the maps of frontends with affinity.
func (d *scopeSets) loadSticky(key uint32) []expr.Any {
	return []expr.Any{
		loadMarkTo(regID), loadMarkTo(regID + 1), loadMarkTo(regTimeout), // only for the nft command
		lookup(d.sticky, key, regSticky),
	}
}

// affinity writes the chain of a scope for pools with affinity. It sends a client to its previous
// backend, in these steps:
//
//	sticky[frontend]               -> affinity ID
//	affinity[affinity ID . client] -> backend
//	frontends[frontend]            -> pool
//	pool . backend in members      -> DNAT to the backend
//
// If a look-up finds nothing, a backend is picked. There are two tries, because a look-up
// during a commit can miss an element that exists before and after it.
//
// The selector can be for pools of Services with ranges: the port of the recorded backend
// can be another one, so it does not count, and the map partners has the backend with the address.
func (w *ruleWriter) affinity(d *scopeSets, selector int) {
	chain, comment := d.chainOf(selector), "@affinity[ID in @sticky . saddr], if that is in @members of the pool"
	var recorded []expr.Any
	member := []expr.Any{&expr.Lookup{SetName: w.members.Name, SourceRegister: regRemember}, w.dnatTo(d, regBackend+1, regBackend)}
	if selector&sharedSelector != 0 {
		comment = "@affinity[ID in @sticky . saddr], by its address in @partners of the pool"
		recorded = []expr.Any{
			&expr.Cmp{Op: expr.CmpOpNeq, Register: regBackend, Data: make([]byte, 2)},
			&expr.Immediate{Register: regRemember, Data: make([]byte, 2*4)}, // no port
		}
		member = []expr.Any{lookup(w.partners, regRemember, regKey), w.dnatTo(d, regKey, regKey+w.addrLen/4)}
	}
	client := slices.Concat(w.frontend(d), d.loadSticky(regKey), w.loadTo(w.saddr, regClient))
	for _, comment := range []string{comment, secondTry} {
		w.rule(chain, comment, nfnl.AsTCP(), client, w.previousBackend(), recorded, w.poolBeforeBackend(d), member)
	}
	w.rule(chain, "forget the backend, if in @affinity", client, w.previousBackend(), w.valueOfAffinity(regRemember), []expr.Any{
		// Port 0. nft does not see it (see nfnl.AsTCP).
		&expr.Immediate{Register: regRemember - 1, Data: make([]byte, 3*4)},
		w.deleteClient(regRemember), w.recordClient(regRemember, backendless),
	})
	w.dispatchBy(chain, d, d.stickyPicks, regSelector, []expr.Any{loadMarkTo(regSelector)}) // the mark is only for the nft command
	w.rule(chain, "the pool was changed meanwhile", goTo(d.pickChain(1)))
}

// backendless is how long a client stays recorded without a backend: from the translation of
// a packet to where it leaves this node.
const backendless = time.Minute

// deleteClient deletes a client's element, if there is one. The kernel requires a value beside the key, and ignores it.
func (s *schema) deleteClient(value uint32) expr.Any {
	return &expr.Dynset{SetName: s.affinity.Name, Operation: dynsetDelete, SrcRegKey: regID, SrcRegData: value}
}

// recordClient adds an element for a client, or refreshes its timeout. Existing elements keep their value.
func (s *schema) recordClient(value uint32, timeout time.Duration) expr.Any {
	return &expr.Dynset{SetName: s.affinity.Name, Operation: dynsetUpdate, SrcRegKey: regID, SrcRegData: value, Timeout: timeout}
}

// previousBackend looks up the client's backend in affinity, into regBackend.
func (s *schema) previousBackend() []expr.Any {
	return append(s.loadTo(s.daddr, regBackend+1), dport(regBackend), // only for the nft command
		lookup(s.affinity, regID, regRemember))
}

// poolBeforeBackend looks up the frontend's pool, into the register before regBackend, so
// that both form a key of members.
func (s *schema) poolBeforeBackend(d *scopeSets) []expr.Any {
	load := s.destination(d, regID)
	if d.inRange { // copied from behind the key: there is no room for the other words
		at, from := regID+s.addrLen/4-1, regID+s.addrLen/4-1+rangePools+uint32(d.scope)
		return append(load, loadMarkTo(from), lookup(s.ranges, regID, at), copyWord(from, regRemember))
	}
	return append(load, loadMarkTo(regRemember), lookup(d.frontends, regID, regRemember-1)) // the mark is only for the nft command
}

// valueOfAffinity loads the packet's destination, in the format of affinity's values, with the
// mark as the unused first word.
func (s *schema) valueOfAffinity(reg uint32) []expr.Any {
	return append(s.loadTo(s.daddr, reg+2), loadMarkTo(reg), dport(reg+1))
}

const rememberComment = "@remember[timeout of the original destination]"

// remembered writes the rules that jump to the chain that records the client's backend, if the
// connection is to a frontend with affinity.
func (w *ruleWriter) remembered(originals [][]expr.Any) {
	for _, original := range originals {
		w.rule(chainRemember, rememberComment, original, []expr.Any{lookup(w.remember, regTimeout, unix.NFT_REG_VERDICT)})
	}
}

// originalSticky looks up the connection's original destination among the frontends with
// affinity: first those that are not NodePorts, then NodePorts. A frontend without affinity can
// override a NodePort that has it (see desired.FrontendKey). Then the NodePort's Service may get
// a record with a backend that is not in members, which is ignored. The same goes for ranges, which are last.
func (s *schema) originalSticky() [][]expr.Any {
	load := slices.Concat(dnatted(), nfnl.OriginalDestination(s.table.Family, regKey))
	all := [][]expr.Any{
		slices.Concat(load, s.addressSets[0].loadSticky(regKey)),
		slices.Concat(load, in(s.nodeAddresses), s.nodePortSets[0].loadSticky(regKey+s.addrLen/4)),
	}
	if s.ranged {
		address := nfnl.OriginalDestination(s.table.Family, regKey)[:1]
		all = append(all, slices.Concat(load, s.rangeAt(regKey, address), s.rangeSets[0].loadSticky(regKey)))
	}
	return all
}

// affinityOf returns the session affinity that the table has to keep. That of a virtual server is IPVS's.
func affinityOf(f *desired.Frontend) uint32 {
	switch {
	case f.VirtualServer() == f.Pool:
		return 0
	case f.IsRange() && f.Affinity > 0:
		return f.Affinity + rangeTimeout
	}
	return f.Affinity
}

// rangeTimeout is added to the timeouts of frontends with ranges, which have chains of their own.
const rememberPrefix, rangeTimeout = "remember-", 1e9

func rememberChain(seconds uint32) string { return fmt.Sprintf("%s%d", rememberPrefix, seconds) }

// timeoutOf returns the timeout of a chain that records backends of clients.
func timeoutOf(chain string) (seconds uint32, is bool) {
	text, is := strings.CutPrefix(chain, rememberPrefix)
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), is && err == nil
}

// writeRemember creates the chain for a timeout.
func (s *schema) writeRemember(batch *nfnl.Batch, seconds uint32) {
	chain := rememberChain(seconds)
	batch.AddChain(s.table, nfnl.Chain{Name: chain})
	batch.FlushChain(s.table, chain)
	timeout, originals := time.Duration(seconds%rangeTimeout)*time.Second, s.originalSticky()
	if originals = originals[:2]; seconds >= rangeTimeout {
		originals = s.originalSticky()[2:]
	}
	value, record := s.valueOfAffinity(regKey), s.recordClient(regKey, timeout)
	rules := ruleWriter{s, batch}
	for _, original := range originals {
		client := slices.Concat(original, s.loadTo(s.saddr, regClient))
		rules.rule(chain, "if in @affinity with a backend", client, s.previousBackend(), []expr.Any{
			&expr.Cmp{Op: expr.CmpOpNeq, Register: regBackend, Data: make([]byte, 2)},
		}, value, []expr.Any{record}, ret())
		rules.rule(chain, "if in @affinity without a backend", client, s.previousBackend(), value, []expr.Any{s.deleteClient(regKey), record}, ret())
		rules.rule(chain, "a new client", client, s.limitNewClients(), value, []expr.Any{record}, nfnl.CountIn(newClients), ret())
	}
	rules.rule(chain, "too many clients", nfnl.CountIn(unrecorded))
	batch.AddVerdict(s.table, s.remember, word(seconds), nfnl.Jump, chain)
}

// emptied, for a number of frontends, says that the chain is empty, and its deletion was refused.
const emptied = -1

// newTimeouts counts the frontends of each timeout, and creates the chains for those that had none.
func (b *Dataplane) newTimeouts(change *desired.Change) {
	count := func(f *desired.Frontend, n int) {
		if f == nil || affinityOf(f) == 0 || b.unsupported[desired.FamilyOf(f.Addr())] {
			return
		}
		family := desired.FamilyOf(f.Addr())
		users, exists := b.timeouts[family][affinityOf(f)]
		if !exists || users == emptied {
			b.schemas[family].writeRemember(&b.chains, affinityOf(f))
			users = 0
		}
		b.timeouts[family][affinityOf(f)] = users + n
	}
	for i := range change.Frontends {
		count(change.Frontends[i].New, 1)
		count(change.Frontends[i].Old, -1)
	}
}

// dropTimeouts deletes chains that no frontend has any more, first their elements. A chain that the kernel does not
// delete is tried again after the next change: before Linux 6.2 it can still refer to the chain for a moment.
func (b *Dataplane) dropTimeouts() {
	for f := range b.served {
		s := &schemas[f]
		for seconds, users := range b.timeouts[f] {
			if users > 0 {
				continue
			}
			var empty, remove nfnl.Batch
			if users == 0 {
				empty.DeleteElement(s.table, s.remember, word(seconds))
				empty.FlushChain(s.table, rememberChain(seconds))
				if b.conn.Commit(0, &empty) == nil {
					users, b.timeouts[f][seconds] = emptied, emptied
				}
			}
			if remove.DeleteChain(s.table, rememberChain(seconds)); users == emptied && b.conn.Commit(0, &remove) == nil {
				delete(b.timeouts[f], seconds)
			}
		}
	}
}
