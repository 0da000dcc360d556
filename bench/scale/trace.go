// SPDX-License-Identifier: Apache-2.0

package scale

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"

	"github.com/slipstream-proxy/slipstream/bench/cluster"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/ctnetlink"
	"github.com/slipstream-proxy/slipstream/internal/netfilter/nfnl"
	"golang.org/x/sys/unix"
)

// tracer finds the nftables rules that a packet comes to, by the kernel's reports.
type tracer struct {
	node   *node
	events *ctnetlink.Events
	rules  map[chain][]uint64 // handles
}

type chain struct {
	table nfnl.Table
	name  string
}

const traceTable = "trace-first-packet"

// startTracer has the kernel trace packets from the node's pods to Services.
func startTracer(ctx context.Context, n *node) (*tracer, error) {
	t := &tracer{node: n, rules: map[chain][]uint64{}}
	conn, err := nfnl.Dial(n.FD())
	if err != nil {
		return nil, err
	}
	defer conn.Close()
	read := map[nfnl.Table]bool{}
	for _, family := range []nfnl.Family{nfnl.IPv4, nfnl.INET} {
		bases, err := conn.BaseChains(family)
		if err != nil {
			return nil, err
		}
		for _, b := range bases {
			if read[b.Table] {
				continue
			}
			read[b.Table] = true
			rules, err := conn.Rules(b.Table, "")
			if err != nil {
				return nil, err
			}
			for _, r := range rules {
				in := chain{b.Table, r.Chain}
				t.rules[in] = append(t.rules[in], r.Handle)
			}
		}
	}
	if _, err := n.Run(ctx, "nft", fmt.Sprintf(`table ip %s {
		chain c { type filter hook prerouting priority -400; ip daddr %v meta nftrace set 1; }
	}`, traceTable, cluster.IPv4.Services)); err != nil {
		return nil, err
	}
	t.events, err = ctnetlink.Listen(n.FD(), nil, unix.NFNLGRP_NFTRACE)
	return t, err
}

// executed is how many of a chain's rules the kernel comes to for a packet that leaves the chain by a rule: up to
// that one, or all if there is none.
func executed(rules []uint64, left uint64) int {
	if i := slices.Index(rules, left); i >= 0 {
		return i + 1
	}
	return len(rules)
}

// connect sends the first packet of a connection from the client to a Service, and returns how many rules the node
// has executed for it. The kernel has reported all of them when connection tracking knows the connection.
func (t *tracer) connect(_ context.Context, service int) (rules int, err error) {
	if _, err := t.events.Read(func([]byte) {}); err != nil {
		return 0, err
	}
	if _, err := t.node.sendFirst(frontend(service)); err != nil {
		return 0, err
	}
	packets := map[uint32]bool{}
	left := map[chain]uint64{} // by chain that it passed, the rule by which it left it
	last := map[chain]uint64{} // the last rule that matched
	var stack []chain          // chains that it is in
	lost, err := t.events.Read(func(raw []byte) {
		const headers = unix.NLMSG_HDRLEN + 4
		if len(raw) < headers || binary.NativeEndian.Uint16(raw[4:]) != unix.NFNL_SUBSYS_NFTABLES<<8|unix.NFT_MSG_TRACE {
			return
		}
		b := raw[headers:]
		table := nfnl.Table{Family: nfnl.Family(raw[unix.NLMSG_HDRLEN]), Name: nfnl.Text(b, unix.NFTA_TRACE_TABLE)}
		if table.Name == traceTable {
			return
		}
		packets[nfnl.Num(b, unix.NFTA_TRACE_ID)] = true
		in := chain{table, nfnl.Text(b, unix.NFTA_TRACE_CHAIN)}
		if nfnl.Attr(b, unix.NFTA_TRACE_NETWORK_HEADER) != nil { // the first report of a hook
			stack, left[in] = []chain{in}, 0
		}
		handle := nfnl.Attr(b, unix.NFTA_TRACE_RULE_HANDLE)
		if nfnl.Num(b, unix.NFTA_TRACE_TYPE) != unix.NFT_TRACETYPE_RULE || len(handle) != 8 || len(stack) == 0 {
			return
		}
		if i := slices.Index(stack, in); i >= 0 {
			stack = stack[:i+1] // those above it came to their ends
		}
		rule := binary.BigEndian.Uint64(handle)
		last[in] = rule
		verdict := nfnl.Attr(b, unix.NFTA_TRACE_VERDICT)
		to := chain{table, nfnl.Text(verdict, unix.NFTA_VERDICT_CHAIN)}
		switch nfnl.Verdict(nfnl.Num(verdict, unix.NFTA_VERDICT_CODE)) {
		case nfnl.Goto:
			left[in], left[to] = rule, 0
			stack[len(stack)-1] = to
		case nfnl.Jump:
			left[to] = 0
			stack = append(stack, to)
		case unix.NFT_RETURN:
			left[in] = rule
		case nfnl.Accept, nfnl.Drop:
			for _, c := range stack {
				left[c] = last[c]
			}
		}
	})
	for c, rule := range left {
		rules += executed(t.rules[c], rule)
	}
	switch {
	case err == nil && lost:
		err = errors.New("the kernel has lost reports")
	case err == nil && len(packets) > 1:
		err = errors.New("more than one packet was traced")
	case err == nil && rules == 0:
		err = errors.New("no chain with rules was passed")
	}
	return rules, err
}
