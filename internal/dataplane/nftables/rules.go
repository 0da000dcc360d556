// SPDX-License-Identifier: Apache-2.0

package nftables

import (
	"encoding/binary"
	"net"
	"net/netip"
	"slices"

	"github.com/google/nftables/expr"
	"github.com/slipstream-proxy/slipstream/internal/dataplane"
	"github.com/slipstream-proxy/slipstream/internal/desired"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// Names of chains.
const (
	chainPrerouting    = "prerouting"
	chainPrerouting2   = "prerouting-unserved"
	chainOutput        = "output"
	chainOutput2       = "output-unserved"
	chainInput         = "input"
	chainPostrouting   = "postrouting"
	chainServices      = "services"
	chainClusterIP     = "cluster-ip"
	chainExternal      = "external"
	chainExternalLocal = "external-local"
	chainNodePort      = "node-port"
	chainNodePortLocal = "node-port-local"
	chainNodeDispatch  = "node-dispatch"
	chainSources       = "check-source"
	chainDispatch      = "dispatch"
	chainMissed        = "missed" // of a scope, see ranges.go
	chainUnserved      = "unserved"
	chainUnknownPort   = "unknown-port"
	chainLoopback      = "loopback"
	chainReject        = "refuse" // not a keyword of nft, like the other names
	chainDrop          = "discard"
	chainIPVS          = "virtual-server"
	chainAfterDNAT     = "after-dnat"
	chainRemember      = "record-client"
	chainMasquerade    = "masq"
	chainAffinity      = "affinity" // of a scope
)

// chains lists all chains except those of scopes and of ranges. The base chains have the priorities dstnat and srcnat -
// 1. kube-proxy uses dstnat and srcnat. After one chain has masqueraded a packet, the kernel skips the following ones,
// so a chain of another process could prevent that a client's backend is recorded.
//
// Two more base chains refuse and drop what no proxy serves. Their priority is behind all others, because an address of
// a ServiceCIDR can be another proxy's Service. In a hook of the type nat, the kernel runs the chains in order until
// one has translated the packet, and only for the first packet of a connection. So these chains see what no chain has
// translated, and cost established connections nothing, unlike chains of the type filter.
var chains = []nfnl.Chain{
	{Name: chainPrerouting, Hook: &nfnl.Hook{Type: "nat", Num: unix.NF_INET_PRE_ROUTING, Priority: -100}},
	{Name: chainPrerouting2, Hook: &nfnl.Hook{Type: "nat", Num: unix.NF_INET_PRE_ROUTING, Priority: lastPriority}},
	{Name: chainOutput, Hook: &nfnl.Hook{Type: "nat", Num: unix.NF_INET_LOCAL_OUT, Priority: -100}},
	{Name: chainOutput2, Hook: &nfnl.Hook{Type: "nat", Num: unix.NF_INET_LOCAL_OUT, Priority: lastPriority}},
	{Name: chainInput, Hook: &nfnl.Hook{Type: "nat", Num: unix.NF_INET_LOCAL_IN, Priority: 99}},
	{Name: chainPostrouting, Hook: &nfnl.Hook{Type: "nat", Num: unix.NF_INET_POST_ROUTING, Priority: 99}},
	{Name: chainServices},
	{Name: chainClusterIP},
	{Name: chainExternal},
	{Name: chainExternalLocal},
	{Name: chainNodePort},
	{Name: chainNodePortLocal},
	{Name: chainNodeDispatch},
	{Name: chainSources},
	{Name: chainDispatch},
	{Name: chainMissed},
	{Name: "local-" + chainMissed},
	{Name: chainExternalMissed},
	{Name: chainUnserved},
	{Name: chainUnknownPort},
	{Name: chainLoopback},
	{Name: chainReject},
	{Name: chainDrop},
	{Name: chainIPVS},
	{Name: chainAfterDNAT},
	{Name: chainRemember},
	{Name: chainMasquerade},
}

// lastPriority is behind all priorities that other proxies use for DNAT.
const lastPriority = 1000

// entry is a base chain through which packets enter the table, and where it leads.
type entry struct{ base, to string }

var entries = []entry{
	{chainPrerouting, chainServices}, {chainPrerouting2, chainUnserved},
	{chainOutput, chainServices}, {chainOutput2, chainUnserved},
}

// Registers, 4 bytes each (NFT_REG32_00 is 8). The value of a look-up takes two or, in the map
// pools, three, and the first of them is unused.
const (
	regKey       = 8  // address, protocol and port: up to 6 registers
	regValue     = 16 // unused word
	regValueWord = 17 // pool, then its key in picks
	regSelector  = 18 // of the map pools: how the slot is drawn, the key in sticky-picks
	regSlot      = 18 // next to the pool: both form a key of endpoints
	regSpare     = 23 // the last
)

const (
	icmpPort          = 3      // ICMP_PORT_UNREACH
	icmp6Port         = 4      // ICMPV6_PORT_UNREACH
	conntrackDNATFlag = 1 << 5 // IPS_DST_NAT
)

// ruleWriter adds rules to a batch.
type ruleWriter struct {
	*schema
	batch *nfnl.Batch
}

func (w *ruleWriter) rule(chain, comment string, parts ...[]expr.Any) {
	w.batch.AddRule(w.table, chain, comment, parts...)
}

// static writes the rules that depend only on the configuration, except for those of writeEntry.
func (w *ruleWriter) static(c dataplane.Config, full *desired.Change) {
	cluster, node := &w.addressSets[desired.Cluster], &w.nodePortSets[desired.Cluster]
	mark := uint32(1) << c.MasqueradeBit
	for try := range 2 { // see dispatch
		w.rule(chainServices, "", w.frontend(cluster), in(w.external), goTo(chainExternal))
		if try > 0 {
			w.rule(chainServices, "", jump(chainExternalMissed))
		}
		w.rule(chainServices, "", w.load(w.daddr), in(w.clusterIPs), goTo(chainClusterIP))
		w.rule(chainServices, "if in @node-ports", w.load(w.daddr), in(w.nodeAddresses), w.frontend(node), inMap(node.frontends), goTo(chainNodePort))
	}
	var localToo []expr.Any
	lost := drop()
	if c.IPVS {
		lost = accept()
		// The reset that refuses a connection of this node is sent to one of these
		// addresses too, and conntrack takes it for a first packet.
		w.rule(chainUnserved, "", protocol(unix.IPPROTO_TCP), reset(), ret())
	} else {
		localToo = notLocalAddress()
	}
	w.rule(chainUnserved, "", w.load(w.daddr), in(w.clusterIPs), localToo, goTo(chainUnknownPort))
	w.rule(chainUnserved, "no Service has this address", w.load(w.daddr), in(w.serviceCIDRs), notLocalAddress(), nfnl.CountIn(dataplane.UnallocatedAddress), drop())
	w.rule(chainUnknownPort, "if in @frontends: the Service is new", w.frontend(cluster), inMap(cluster.frontends), lost)
	w.rule(chainUnknownPort, "if in @local-frontends: the Service is new", w.frontend(cluster), inMap(w.addressSets[desired.Local].frontends), lost)
	w.rule(chainUnknownPort, "", nfnl.CountIn(dataplane.UnknownPort))
	w.refuse(chainUnknownPort)
	w.loopbackPorts()

	if c.IPVS {
		w.rule(chainIPVS, "", accept())
	}
	w.addresses(c, &w.addressSets, full, mark)

	for range 2 { // see dispatch
		w.toLocal(chainNodePort, &w.nodePortSets[desired.Local], chainNodePortLocal)
	}
	w.masquerade(chainNodePort, full.Masquerade.External, full.Local, mark)
	w.rule(chainNodePort, "", goTo(chainNodeDispatch))
	w.externalLocal(chainNodePortLocal, &w.nodePortSets[desired.Local], chainNodeDispatch, full, mark)
	w.dispatch(chainNodeDispatch, node)
	w.undispatched(chainNodeDispatch, node, mark)

	w.rule(chainReject, "", nfnl.CountIn(dataplane.NoEndpoints), w.countRejected())
	w.refuse(chainReject)
	w.rule(chainDrop, "", w.countRejected())
	w.rule(chainDrop, "no endpoint that traffic policy allows", nfnl.CountIn(dataplane.NoLocalEndpoints), drop())

	translated := dnatted()
	if c.IPVS {
		translated = notLocalAddress() // IPVS does not set the flag; the node itself may be an endpoint too
	}
	w.enter(chainInput, chainRemember)
	w.enter(chainPostrouting, chainAfterDNAT)
	w.rule(chainAfterDNAT, "", jump(chainRemember))
	w.remembered(w.originalSticky())
	w.rule(chainAfterDNAT, "", marked(mark), goTo(chainMasquerade))
	w.rule(chainAfterDNAT, "from a pod to itself", translated, w.load(w.saddr), w.loadTo(w.daddr, regKey+w.addrLen/4), in(w.hairpin), goTo(chainMasquerade))
	w.rule(chainMasquerade, "", clearMark(mark))
	w.rule(chainMasquerade, "", []expr.Any{&expr.Masq{FullyRandom: true}})
}

// addresses writes the chains for traffic to addresses of Services, other than NodePorts.
func (w *ruleWriter) addresses(c dataplane.Config, sets *[scopes]scopeSets, full *desired.Change, mark uint32) {
	cluster, local := &sets[desired.Cluster], &sets[desired.Local]
	prefix := cluster.prefix
	clusterIP, external, externalLocal, dispatch := prefix+chainClusterIP, prefix+chainExternal, prefix+chainExternalLocal, prefix+chainDispatch
	if c.IPVS {
		w.rule(clusterIP, "from this node: the source can be a Service's address", fromNode(expr.CmpOpEq), setMark(mark))
	}
	w.masquerade(clusterIP, full.Masquerade.ClusterIPs, full.Local, mark)
	w.rule(clusterIP, "", goTo(dispatch))

	for range 2 { // see dispatch
		w.rule(external, "", w.frontend(cluster), in(w.restricted), jump(prefix+chainSources))
		w.toLocal(external, local, externalLocal)
	}
	w.masquerade(external, full.Masquerade.External, full.Local, mark)
	w.rule(external, "", goTo(dispatch))
	w.source(cluster)
	if !cluster.inRange {
		w.rule(chainSources, "", w.countRejected())
	}
	w.rule(prefix+chainSources, "source address not allowed", nfnl.CountIn(dataplane.SourceNotAllowed), drop())
	w.externalLocal(externalLocal, local, dispatch, full, mark)

	w.dispatch(dispatch, cluster)
	w.dispatch(dispatch, local) // internal traffic that may go to local backends only
	w.undispatched(dispatch, cluster, mark)
}

// countRejected counts a packet by its destination.
func (s *schema) countRejected() []expr.Any {
	return slices.Concat([]expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: regKey}, dport(regKey + 1),
	}, s.loadTo(s.daddr, regKey+2), []expr.Any{
		&expr.Dynset{SetName: s.rejected.Name, Operation: dynsetUpdate, SrcRegKey: regKey, Exprs: []expr.Any{&expr.Counter{}}},
	})
}

// loopbackPorts writes the rules that count and refuse NodePorts at loopback addresses.
func (w *ruleWriter) loopbackPorts() {
	w.rule(chainUnserved, "", w.addrIn(w.daddr, loopbackRanges[w.family], expr.CmpOpEq), []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: regKey}, dport(regKey + 1),
	}, in(w.loopback), goTo(chainLoopback))
	for _, p := range desired.Protocols {
		w.batch.AddCounter(w.table, refusedCounter(p))
		w.rule(chainLoopback, "", protocol(byte(p)), nfnl.CountIn(refusedCounter(p)))
	}
	w.refuse(chainLoopback)
}

// refuse writes the rules that refuse all packets of a chain.
func (w *ruleWriter) refuse(chain string) {
	w.rule(chain, "", protocol(unix.IPPROTO_TCP), []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_TCP_RST}})
	code := uint8(icmpPort)
	if w.table.Family == nfnl.IPv6 {
		code = icmp6Port
	}
	w.rule(chain, "", []expr.Any{&expr.Reject{Type: unix.NFT_REJECT_ICMP_UNREACH, Code: code}})
}

// masquerade writes the rule that marks the traffic to masquerade.
func (w *ruleWriter) masquerade(chain string, m desired.Masquerade, local desired.LocalTraffic, mark uint32) {
	switch from := w.podMatch(local, expr.CmpOpNeq); {
	case m == desired.MasqueradeAlways:
		w.rule(chain, "", setMark(mark))
	case m == desired.MasqueradeNode:
		w.rule(chain, "from this node", fromNode(expr.CmpOpEq), setMark(mark))
	case from != nil:
		w.rule(chain, "not from a pod", from, setMark(mark))
	}
}

// writeEntry writes the rules through which packets enter the table.
func (s *schema) writeEntry(batch *nfnl.Batch) {
	w := ruleWriter{s, batch}
	for _, e := range entries {
		w.enter(e.base, e.to)
	}
}

// source writes the rule that matches a source address that may connect to the frontend. The set's key is the frontend
// and the address. For nft, it is the beginning of the network header (see the package's documentation): source and
// destination are loaded together, in front of the register that nft knows.
func (w *ruleWriter) source(d *scopeSets) {
	w.rule(d.prefix+chainSources, "frontend . source address @sources", w.inSources(d, 0), ret())
}

// inSources does so, for all or with a turn (see copyRange).
func (w *ruleWriter) inSources(d *scopeSets, turn uint32) []expr.Any {
	words := w.addrLen / 4
	key := regKey + words
	frontend := []expr.Any{&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: key + words}, dport(key + words + 1)}
	if d.inRange {
		frontend = w.copyRange(d, key+words, turn)
	}
	return slices.Concat([]expr.Any{
		&expr.Payload{DestRegister: key, Base: expr.PayloadBaseNetworkHeader, Len: w.sources.KeyLen},
		&expr.Payload{DestRegister: regKey, Base: expr.PayloadBaseNetworkHeader, Offset: w.saddr, Len: 2 * w.addrLen},
	}, frontend, w.loadTo(w.saddr, key+words+2), []expr.Any{&expr.Lookup{SetName: w.sources.Name, SourceRegister: key}})
}

// toLocal writes the rule that goes to a chain if the frontend has a pool of local backends.
func (w *ruleWriter) toLocal(chain string, local *scopeSets, to string) {
	w.rule(chain, "if in @"+local.frontends.Name, w.has(local), goTo(to))
}

// externalLocal writes the chain for external traffic that may go to local backends only. Traffic that starts on this
// node may go to all backends, in another chain, as if it had passed a load balancer and arrived at another node.
func (w *ruleWriter) externalLocal(chain string, local *scopeSets, all string, full *desired.Change, mark uint32) {
	if from := w.podMatch(full.Local, expr.CmpOpEq); from != nil {
		w.rule(chain, "from a pod", from, goTo(all))
	}
	w.masquerade(chain, full.Masquerade.Local, full.Local, mark)
	w.rule(chain, "from this node", fromNode(expr.CmpOpEq), goTo(all))
	w.dispatch(chain, local)
	w.rule(chain, "the pool is being changed", drop())
}

// undispatched writes the rules after those of dispatch.
func (w *ruleWriter) undispatched(chain string, d *scopeSets, mark uint32) {
	w.rule(chain, "if in @"+d.frontends.Name+": the pool is being changed", w.has(d), drop())
	w.rule(chain, "not ours", clearMark(mark))
}

// secondTry is the comment of a rule that repeats the one before it.
const secondTry = "second try: see the documentation"

// dispatch writes the rules that go to the chain that picks a backend for the packet.
// During the commit of a transaction that replaces an element, a look-up can find neither
// the old nor the new element (up to Linux 6.16). The second try finds the new one.
func (w *ruleWriter) dispatch(chain string, d *scopeSets) {
	w.dispatchBy(chain, d, d.picks, regValueWord, nil)
}

// dispatchBy does so by a map and its key's register.
func (w *ruleWriter) dispatchBy(chain string, d *scopeSets, picks *nfnl.Set, reg uint32, load []expr.Any) {
	key := "ip daddr . meta l4proto . th dport"
	if d.onNode {
		key = "meta l4proto . th dport"
	}
	firstTry := "@" + d.frontends.Name + "[" + key + "], its @pools, its @" + picks.Name
	for _, comment := range []string{firstTry, secondTry} {
		if chain == chainDispatch && comment == secondTry {
			w.rule(chain, "", jump(d.prefix+chainMissed))
		}
		w.rule(chain, comment, load, w.pool(d), []expr.Any{
			lookup(d.pools, regValueWord, regValue),
			lookup(picks, reg, unix.NFT_REG_VERDICT),
		})
	}
}

// frontend loads the packet's key in one of the maps of frontends.
func (s *schema) frontend(d *scopeSets) []expr.Any { return s.frontendTo(d, regKey) }

func (s *schema) frontendTo(d *scopeSets, reg uint32) []expr.Any {
	load := s.destination(d, reg)
	if d.inRange {
		load = append(load, s.rangeAt(reg, s.loadTo(s.daddr, reg))...)
	}
	return load
}

// destination loads the packet's address, but for a NodePort, protocol and port.
func (s *schema) destination(d *scopeSets, reg uint32) (load []expr.Any) {
	if !d.onNode {
		load = s.loadTo(s.daddr, reg)
		reg += s.addrLen / 4
	}
	return append(load, &expr.Meta{Key: expr.MetaKeyL4PROTO, Register: reg}, dport(reg+1))
}

// pool looks up the packet's pool. The mark in the register of the pool is only for the nft
// command (see the package's documentation).
func (s *schema) pool(d *scopeSets) []expr.Any {
	load := append(s.destination(d, regKey), loadMarkTo(regValueWord))
	if d.inRange {
		return append(load, lookup(s.ranges, regKey, regValueWord-rangePools-uint32(d.scope)))
	}
	return append(load, lookup(d.frontends, regKey, regValue))
}

// has matches packets to a frontend that has a pool in a scope.
func (s *schema) has(d *scopeSets) []expr.Any {
	if d.inRange {
		return append(s.pool(d), &expr.Cmp{Op: expr.CmpOpNeq, Register: regValueWord, Data: word(noPool)})
	}
	return append(s.frontend(d), inMap(d.frontends)...)
}

// dport loads the packet's destination port.
func dport(reg uint32) expr.Any {
	return &expr.Payload{DestRegister: reg, Base: expr.PayloadBaseTransportHeader, Offset: 2, Len: 2}
}

// enter writes the rule through which all packets of a base chain leave for another chain.
func (w *ruleWriter) enter(base, to string) {
	w.rule(base, "always; a copy that nft has loaded never matches", nfnl.UnlessLoaded(), jump(to))
}

// dnatTo sends the packet to the backend in registers, or to its address if it is for a range.
func (s *schema) dnatTo(d *scopeSets, addr, port uint32) expr.Any {
	nat := &expr.NAT{Type: expr.NATTypeDestNAT, Family: uint32(s.table.Family), RegAddrMin: addr}
	if !d.inRange {
		nat.Specified, nat.RegProtoMin = true, port
	}
	return nat
}

func lookup(set *nfnl.Set, from, to uint32) expr.Any {
	return &expr.Lookup{SetName: set.Name, SourceRegister: from, DestRegister: to, IsDestRegSet: true}
}

// reset matches TCP segments with the flag RST.
func reset() []expr.Any {
	const flags, rst = 13, 1 << 2
	return []expr.Any{
		&expr.Payload{DestRegister: regKey, Base: expr.PayloadBaseTransportHeader, Offset: flags, Len: 1},
		&expr.Bitwise{SourceRegister: regKey, DestRegister: regKey, Len: 1, Mask: []byte{rst}, Xor: []byte{0}},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regKey, Data: []byte{0}},
	}
}

// in matches the members of a set.
func in(set *nfnl.Set) []expr.Any {
	return []expr.Any{&expr.Lookup{SetName: set.Name, SourceRegister: regKey}}
}

// inMap matches the keys of a map of values. The kernel has no expression for this but to look up the value.
func inMap(set *nfnl.Set) []expr.Any {
	return []expr.Any{lookup(set, regKey, regValue)}
}

func (s *schema) load(offset uint32) []expr.Any { return s.loadTo(offset, regKey) }

func (s *schema) loadTo(offset, reg uint32) []expr.Any {
	return []expr.Any{&expr.Payload{
		DestRegister: reg, Base: expr.PayloadBaseNetworkHeader, Offset: offset, Len: s.addrLen,
	}}
}

func protocol(p byte) []expr.Any {
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyL4PROTO, Register: regKey},
		&expr.Cmp{Op: expr.CmpOpEq, Register: regKey, Data: []byte{p}},
	}
}

func word(n uint32) []byte { return binary.NativeEndian.AppendUint32(nil, n) }

// masked computes register & mask ^ xor.
func masked(mask, xor uint32) expr.Any {
	return &expr.Bitwise{SourceRegister: regKey, DestRegister: regKey, Len: 4, Mask: word(mask), Xor: word(xor)}
}

func loadMark() expr.Any { return loadMarkTo(regKey) }

func loadMarkTo(reg uint32) expr.Any { return &expr.Meta{Key: expr.MetaKeyMARK, Register: reg} }

func storeMark() expr.Any {
	return &expr.Meta{Key: expr.MetaKeyMARK, Register: regKey, SourceRegister: true}
}

func setMark(bit uint32) []expr.Any {
	return []expr.Any{loadMark(), masked(^bit, bit), storeMark()}
}

func clearMark(bit uint32) []expr.Any {
	return []expr.Any{loadMark(), masked(^bit, 0), storeMark()}
}

func marked(bit uint32) []expr.Any {
	return []expr.Any{loadMark(), masked(bit, 0), notZero()}
}

func dnatted() []expr.Any {
	return []expr.Any{&expr.Ct{Key: expr.CtKeySTATUS, Register: regKey}, masked(conntrackDNATFlag, 0), notZero()}
}

func notZero() expr.Any { return &expr.Cmp{Op: expr.CmpOpNeq, Register: regKey, Data: word(0)} }

func jump(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictJump, Chain: chain}}
}

func goTo(chain string) []expr.Any {
	return []expr.Any{&expr.Verdict{Kind: expr.VerdictGoto, Chain: chain}}
}

func ret() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictReturn}} }

func accept() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictAccept}} }

func drop() []expr.Any { return []expr.Any{&expr.Verdict{Kind: expr.VerdictDrop}} }

// This file has the expressions that match a packet's origin.

// podMatch matches traffic from this node's pods or, with CmpOpNeq, all other traffic. It is nil without a criterion.
func (s *schema) podMatch(l desired.LocalTraffic, op expr.CmpOp) []expr.Any {
	switch {
	case l.Iface != "":
		return iifname(l.Iface, l.IsPrefix, op)
	case l.CIDRs[s.family].IsValid():
		return s.addrIn(s.saddr, l.CIDRs[s.family], op)
	}
	return nil
}

// iifname compares the name of the interface on which the packet arrived. It is empty for packets that this node sends.
func iifname(name string, isPrefix bool, op expr.CmpOp) []expr.Any {
	data := []byte(name)
	if !isPrefix {
		data = make([]byte, unix.IFNAMSIZ)
		copy(data, name)
	}
	return []expr.Any{
		&expr.Meta{Key: expr.MetaKeyIIFNAME, Register: regKey},
		&expr.Cmp{Op: op, Register: regKey, Data: data},
	}
}

// addrIn compares the address at an offset in the network header with a range.
func (s *schema) addrIn(offset uint32, cidr netip.Prefix, op expr.CmpOp) []expr.Any {
	mask := net.CIDRMask(cidr.Bits(), cidr.Addr().BitLen())
	return append(s.load(offset),
		&expr.Bitwise{SourceRegister: regKey, DestRegister: regKey, Len: s.addrLen, Mask: mask, Xor: make([]byte, s.addrLen)},
		&expr.Cmp{Op: op, Register: regKey, Data: cidr.Addr().AsSlice()},
	)
}

// notLocalAddress matches packets that are not for an address of this node. A ClusterIP may be
// assigned to an interface, and serve a port that no Service has.
func notLocalAddress() []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: regKey, ResultADDRTYPE: true, FlagDADDR: true},
		&expr.Cmp{Op: expr.CmpOpNeq, Register: regKey, Data: word(unix.RTN_LOCAL)},
	}
}

// fromNode matches packets with a source address of this node or, with CmpOpNeq, all others.
func fromNode(op expr.CmpOp) []expr.Any {
	return []expr.Any{
		&expr.Fib{Register: regKey, ResultADDRTYPE: true, FlagSADDR: true},
		&expr.Cmp{Op: op, Register: regKey, Data: word(unix.RTN_LOCAL)},
	}
}
