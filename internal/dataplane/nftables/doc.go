// SPDX-License-Identifier: Apache-2.0

// Package nftables is the dataplane that programs the kernel's nf_tables.
//
// Everything that depends on Services and endpoints is an element of a map or set. Chains and rules are constant. There
// is one table for each address family. In nft's notation, for IPv4, with two Services, the second one of type
// LoadBalancer, with externalTrafficPolicy Local, session affinity and source ranges:
//
//	table ip slipstream {
//	  # frontend -> pool
//	  map frontends { 10.96.0.10 . udp . 53 : 1,  10.96.0.20 . tcp . 80 : 2,  203.0.113.2 . tcp . 80 : 2 }
//	  # pool -> upper bound of the random slot: the number of backends, or the next power of two
//	  map pools     { 1 : 2 . 2,  2 : sticky . (1 | sticky),  3 : sticky . (1 | sticky) }
//	  # upper bound -> chain that draws the slot
//	  map picks     { 0 : goto refuse,  1 : goto pick-1,  sticky : goto affinity, ...  -1 : goto discard }
//	  map sticky-picks { 1 | sticky : goto pick-1, ... }               # if the client has no backend yet
//	  # pool . slot -> backend
//	  map endpoints { 1 . 0 : 10.0.1.2 . 53,  1 . 1 : 10.0.2.2 . 53,  2 . 0 : 10.0.2.7 . 8080 }
//	  # the same for pools of local backends
//	  map local-frontends { 203.0.113.2 . tcp . 80 : 3 }
//	  map local-picks     { ... }
//	  map local-endpoints { 3 . 0 : 10.0.1.7 . 8080 }
//
//	  # NodePorts, at all of these addresses
//	  set node-addresses   { 192.168.0.1 }
//	  map node-ports       { tcp . 30080 : 2 }
//	  map local-node-ports { tcp . 30080 : 3 }
//	  map node-picks, local-node-picks                              # to chains such as node-pick-1
//
//	  set external      { 203.0.113.2 . tcp . 80 }
//	  set cluster-ips   { 10.96.0.10, 10.96.0.20 }
//	  set service-cidrs { 10.96.0.0/16 }
//	  set hairpin       { 10.0.1.2 . 10.0.1.2,  10.0.1.7 . 10.0.1.7 }
//	  set loopback-ports { sctp . 30080 }                                # see desired.RefusedNodePorts
//	  set restricted    { 203.0.113.2 . tcp . 80 }
//	  set sources       { 203.0.113.2 . tcp . 80 . 192.168.0.0/16 }
//	  set rejected { tcp . 80 . 10.96.0.20 counter packets 3 bytes 180 }   # refused and dropped packets
//	  map sticky, sticky-node-ports, affinity, remember; set members, new-clients      # see affinity.go
//
//	  chain prerouting { type nat hook prerouting priority dstnat;  jump services }
//	  chain output     { type nat hook output priority dstnat;      jump services }
//	  chain services {
//	    ip daddr . meta l4proto . th dport @external goto external
//	    ip daddr @cluster-ips goto cluster-ip
//	    ip daddr @node-addresses meta l4proto . th dport @node-ports goto node-port
//	    # all again, with "jump external-missed", empty without ranges, after the first
//	  }
//	  chain cluster-ip {
//	    ip saddr != 10.0.0.0/16 meta mark set meta mark | 0x4000     # as --detect-local-mode says
//	    goto dispatch
//	  }
//	  chain external {
//	    ip daddr . meta l4proto . th dport @restricted jump check-source
//	    ip daddr . meta l4proto . th dport @local-frontends goto external-local
//	    meta mark set meta mark | 0x4000
//	    goto dispatch
//	  }
//	  chain external-local {
//	    ip saddr 10.0.0.0/16 goto dispatch
//	    fib saddr type local meta mark set meta mark | 0x4000
//	    fib saddr type local goto dispatch
//	    local-frontends[ip daddr . meta l4proto . th dport] -> pools -> local-picks
//	    drop
//	  }
//	  chain dispatch {
//	    frontends[ip daddr . meta l4proto . th dport] -> pools -> picks
//	    jump missed                                                  # empty without ranges, as local-missed
//	    local-frontends[ip daddr . meta l4proto . th dport] -> pools -> local-picks
//	    meta mark set meta mark & 0xffffbfff
//	  }
//	  chain node-port, node-port-local, node-dispatch { as for external frontends, with the maps of NodePorts }
//	  chain pick-2 {
//	    dnat to endpoints[ frontends[ip daddr . meta l4proto . th dport] . numgen random mod 2 ]
//	  }
//	  # what neither Slipstream nor another proxy has translated
//	  chain prerouting-unserved { type nat hook prerouting priority 1000;  jump unserved }
//	  chain output-unserved { type nat hook output priority 1000;          jump unserved }
//	  chain unserved {                                                   # IPVS serves local addresses
//	    ip daddr @cluster-ips fib daddr type != local goto unknown-port  # refuses
//	    ip daddr @service-cidrs fib daddr type != local drop
//	    ip daddr 127.0.0.0/8 meta l4proto . th dport @loopback-ports goto loopback  # counts and refuses
//	  }
//	  chain postrouting { type nat hook postrouting priority srcnat - 1;  jump after-dnat }
//	  chain input { type nat hook input priority srcnat - 1;              jump record-client }
//	  chain after-dnat {
//	    jump record-client          # records the client's backend for session affinity
//	    meta mark & 0x4000 != 0 goto masq
//	    ct status dnat ip saddr . ip daddr @hairpin goto masq
//	  }
//	}
//
// # Why it has this shape
//
// All base chains have the type nat, so only the first packet of a connection traverses
// them. Packets of established connections are not looked up in any map.
//
// Changing chains, rules and verdict maps is expensive. When an element with a goto is added, the kernel validates the
// whole table and follows every element of every verdict map (nft_table_validate). When a rule that uses a map is
// added, the kernel walks that map (nf_tables_bind_set). BenchmarkVerdictMap and BenchmarkNewRule in package nfnl
// measure this. So chains and verdict maps are created at the start and stay the same, except that a new timeout of
// session affinity adds a chain, and so does an algorithm with a number of slots that no Service had before, and the
// first pool of a size above startSize (balance.go), whose chain uses no large map. With every transaction, the kernel
// visits all chains (nf_tables_commit_chain), so few are created at the start. Between a frontend and its chain there
// are maps of plain values. Within a rule, the value of one look-up is the key of the next, in the kernel's registers.
// A change of Services consists of elements of such maps, at a few microseconds each, and does not replace a frontend's
// element when its backends change.
//
// The kernel checks every added element against every rule that uses its map (nft_setelem_validate_data). So few rules
// use the large maps, frontends and endpoints, and features that few Services need have their own maps. NodePorts have
// their own maps and chains too, as the key of their packets is another; only the endpoints are shared.
//
// Named counters count refused and dropped packets by reason, and the rules add elements with
// counters to the set rejected, by frontend. Only such packets pass these rules.
//
// # Output of the nft command
//
// "nft list ruleset" prints text that nft can load again, so that a saved ruleset of the node does not fail as a whole
// because of Slipstream's tables. But nft has no notation for a look-up of the result of a look-up, and up to at least
// version 1.0.6 it aborts on such rules. So rules contain expressions that only nft sees. It records for each register
// the expression that was last written to it, by the number of the first register, and does not print what no later
// expression reads:
//
//   - Every value has an unused first word. Its second word is written to a register into
//     which the rule has just loaded the mark. nft then prints "meta mark vmap @picks" for
//     the sequence of look-ups above. The rule's comment describes the actual look-ups. Where
//     a look-up is only a condition, nft prints nothing, and the comment says so.
//   - nfnl.AsTCP and nfnl.UnlessLoaded compare a constant with itself, and nft prints a
//     comparison with a field of the packet.
//
// A copy that nft has loaded from such text is another ruleset, which must do nothing. So
// nft prints the rules of base chains as "meta length 0 jump ...", which no packet matches.
// The next start recognizes the copy by its seal and writes the rules again.
//
// TestSavedRulesetLoads and TestSavedRulesetIsHarmless try this with the nft command of the
// machine, and with others that SLIPSTREAM_TEST_NFT names. Names of chains must not be
// keywords of nft. Version 1.0.6 aborts on concatenations in a statement such as "update",
// unless each field starts within the first four words; so ports come before addresses.
package nftables
