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

// Session affinity is one map for all Services, "affinity", that the rules fill
// themselves: from Service port (by its affinity ID) and client address to
// backend, with a timeout. No element of it is ever ours to write, so it stays
// when the proxy starts again.
//
// A connection to a frontend with affinity looks there first. What it finds counts
// only if it is still a backend of the frontend's pool, which the set "members"
// tells; otherwise it is forgotten, and a backend is picked as for any other.
//
// What is remembered is written where the connection leaves this node (or reaches
// it), after DNAT, so that no rule that picks needs to know of it. Every new
// connection refreshes the timeout. A rule has one timeout, so there is a chain for
// each that some Service has, "remember-10800", made when it is first needed; that
// is the one change of Services that makes the kernel validate the table (see the
// package's documentation).

// stickyDraw in a pool's draw says that its frontends have affinity.
const stickyDraw = 1 << 20

// dynset operations (enum nft_dynset_ops).
const (
	dynsetUpdate = 1 // adds the element, or refreshes its timeout
	dynsetDelete = 2 // Linux 5.4
)

// Registers of affinity. All values have a first word that nothing uses (see the
// package's documentation), which is why they do not follow each other.
const (
	regSticky   = 14            // unused word, then what sticky says of the frontend:
	regID       = regSticky + 1 // its affinity ID, in two,
	regTimeout  = regSticky + 3 // and timeout,
	regClient   = regTimeout    // where the client's address then completes affinity's key
	regRemember = 9             // unused word of affinity's value, and later the pool
	regBackend  = regRemember + 1
)

// loadSticky loads what sticky says of the frontend whose key is loaded.
func (s *schema) loadSticky() []expr.Any {
	return []expr.Any{
		dport(regID), dport(regID + 1), dport(regTimeout), // for nft alone
		lookup(s.sticky, regKey, regSticky), matchZeroPrefix(regSticky),
	}
}

// affinity writes the chain of a side that sends a client to the backend it had;
// the chain returns when there is none. A try that straddles a commit can miss,
// and the client would lose its backend; hence the second.
func (w *ruleWriter) affinity(d *side) {
	chain := d.prefix + chainAffinity
	comment := "@affinity[ID in @sticky . saddr], if that is in @members of the pool"
	client := append(w.loadSticky(), w.loadTo(w.saddr, regClient)...)
	for range 2 {
		w.rule(chain, comment, w.frontend(), client,
			w.loadTo(w.daddr, regBackend), []expr.Any{dport(regBackend + w.addrLen/4)}, // for nft alone
			[]expr.Any{lookup(w.schema.affinity, regID, regRemember), matchZeroPrefix(regRemember)},
			w.frontendTo(regID),
			[]expr.Any{
				dport(regRemember), // for nft alone
				lookup(d.frontends, regID, regRemember-1), matchZeroPrefix(regRemember - 1),
				&expr.Lookup{SetName: w.members.Name, SourceRegister: regRemember},
				w.dnatTo(regBackend),
			})
		comment = "the same once more: see the documentation"
	}
	// The kernel wants to be given a value with the key, whatever it is.
	w.rule(chain, "forget what is not", w.frontend(), client, w.valueOfAffinity(), []expr.Any{
		&expr.Dynset{SetName: w.schema.affinity.Name, Operation: dynsetDelete, SrcRegKey: regID, SrcRegData: regKey},
	})
}

// valueOfAffinity loads the packet's destination as a value of affinity.
func (s *schema) valueOfAffinity() []expr.Any {
	all := []expr.Any{&expr.Immediate{Register: regKey, Data: word(0)}}
	all = append(all, s.loadTo(s.daddr, regKey+1)...)
	return append(all, dport(regKey+1+s.addrLen/4))
}

const rememberComment = "@remember[timeout of the original destination in @sticky]"

// remembered goes to the chain that remembers which backend a client has, if the
// connection is to a frontend with affinity.
func (s *schema) remembered() []expr.Any {
	return append(s.originalSticky(), lookup(s.remember, regTimeout, unix.NFT_REG_VERDICT))
}

// originalSticky loads what sticky says of the frontend that the connection was
// made to.
func (s *schema) originalSticky() []expr.Any {
	next := regKey + s.addrLen/4
	all := append(dnatted(),
		nfnl.CtOriginalDaddr(s.table.Family, regKey),
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: next},
		&expr.Ct{Key: expr.CtKeyPROTODST, Register: next + 1},
	)
	return append(all, s.loadSticky()...)
}

const rememberPrefix = "remember-"

func rememberChain(seconds uint32) string { return fmt.Sprintf("%s%d", rememberPrefix, seconds) }

// isRememberChain says whether a chain is one of those that remember.
func isRememberChain(name string) bool {
	_, is := timeoutOf(name)
	return is
}

// timeoutOf is for how many seconds a chain remembers, if it is one that does.
func timeoutOf(chain string) (seconds uint32, is bool) {
	text, is := strings.CutPrefix(chain, rememberPrefix)
	n, err := strconv.ParseUint(text, 10, 32)
	return uint32(n), is && err == nil
}

// writeRemember makes the chain that remembers for a time.
func (s *schema) writeRemember(batch *nfnl.Batch, seconds uint32) error {
	chain := rememberChain(seconds)
	batch.AddChain(s.table, nfnl.Chain{Name: chain})
	batch.FlushChain(s.table, chain)
	rules := ruleWriter{schema: s, batch: batch}
	rules.rule(chain, "", s.originalSticky(), s.loadTo(s.saddr, regClient), s.valueOfAffinity(), []expr.Any{
		&expr.Dynset{
			SetName: s.affinity.Name, Operation: dynsetUpdate, SrcRegKey: regID, SrcRegData: regKey,
			Timeout: time.Duration(seconds) * time.Second,
		},
	})
	batch.AddVerdict(s.table, s.remember, word(seconds), nfnl.Jump, chain)
	return rules.err
}

// newTimeouts makes the chains for timeouts that no frontend had so far.
func (b *Backend) newTimeouts(batch *nfnl.Batch, change *desired.Change) error {
	for i := range change.Frontends {
		f := change.Frontends[i].New
		if f == nil || f.Affinity == 0 || b.without[desired.FamilyOf(f.Addr())] {
			continue
		}
		s := schemaOf(f.Addr())
		known := &b.timeouts[s.family()]
		if slices.Contains(*known, f.Affinity) {
			continue
		}
		*known = append(*known, f.Affinity)
		if err := s.writeRemember(batch, f.Affinity); err != nil {
			return err
		}
	}
	return nil
}
