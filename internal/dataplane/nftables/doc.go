// SPDX-License-Identifier: Apache-2.0

// Package nftables is the backend that programs the kernel's nf_tables.
//
// Everything that depends on Services and endpoints is an element of a map or
// set; chains and rules are always the same. There is one table for each address
// family, "ip slipstream" and "ip6 slipstream". In nft's notation, for IPv4, with
// two Services, the second one of type LoadBalancer, with externalTrafficPolicy
// Local, session affinity and source ranges:
//
//	table ip slipstream {
//	  # what clients connect to -> pool
//	  map frontends { 10.96.0.10 . udp . 53 : 1,  10.96.0.20 . tcp . 80 : 2,
//	                  192.168.0.1 . tcp . 30080 : 2,  203.0.113.2 . tcp . 80 : 2 }
//	  # pool -> number to draw below: that of its backends, or a power of two above
//	  map pools     { 1 : 2,  2 : 1 | sticky,  3 : 1 | sticky }
//	  # number to draw below -> chain that does it
//	  map picks     { 0 : goto reject,  1 : goto pick-1,  1 | sticky : goto sticky-1, ...  -1 : goto drop }
//	  # pool . slot -> backend
//	  map endpoints { 1 . 0 : 10.0.1.2 . 53,  1 . 1 : 10.0.2.2 . 53,  2 . 0 : 10.0.2.7 . 8080 }
//	  # the same three for pools of local backends
//	  map local-frontends { 192.168.0.1 . tcp . 30080 : 3,  203.0.113.2 . tcp . 80 : 3 }
//	  map local-picks     { ... }
//	  map local-endpoints { 3 . 0 : 10.0.1.7 . 8080 }
//
//	  set external      { 192.168.0.1 . tcp . 30080,  203.0.113.2 . tcp . 80 }
//	  set cluster-ips   { 10.96.0.10, 10.96.0.20 }
//	  set service-cidrs { 10.96.0.0/16 }
//	  set hairpin       { 10.0.1.2 . 10.0.1.2,  10.0.1.7 . 10.0.1.7 }
//	  set restricted    { 203.0.113.2 . tcp . 80 }
//	  set sources       { 203.0.113.2 . tcp . 80 . 192.168.0.0/16 }
//	  map sticky, affinity, remember; set members      # see affinity.go
//
//	  chain prerouting { type nat hook prerouting priority dstnat;  jump services }
//	  chain output     { type nat hook output priority dstnat;      jump services }
//	  chain services {
//	    ip daddr . meta l4proto . th dport @external goto external
//	    ip daddr @cluster-ips goto cluster-ip
//	    ip daddr @service-cidrs drop
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
//	    local-frontends[ip daddr . meta l4proto . th dport] -> pools -> local-picks
//	    goto reject
//	  }
//	  chain pick-2 {
//	    dnat to endpoints[ frontends[ip daddr . meta l4proto . th dport] . numgen random mod 2 ]
//	  }
//	  chain postrouting {
//	    type nat hook postrouting priority srcnat - 1
//	    # which backend the client has, for session affinity; also in a chain input
//	    meta mark & 0x4000 != 0 goto masquerade
//	    ct status dnat ip saddr . ip daddr @hairpin goto masquerade
//	  }
//	}
//
// # Why it has this shape
//
// All base chains are of type nat, which only a connection's first packet
// passes. An established connection pays nothing for Services, not even a
// look-up.
//
// Chains, rules and verdict maps are expensive to change while Services run.
// Whenever an element with a goto is added, the kernel validates the whole table
// again, following every element of every verdict map (nft_table_validate); and
// a new rule that uses a map makes it walk that map (nf_tables_bind_set).
// BenchmarkVerdictMap and BenchmarkNewRule in package nfnl show what that costs.
// So nothing of the kind is changed: verdict maps and chains are made at the
// start (except when a Service comes with a timeout of session affinity that no
// other had), and the way from a frontend to its chain goes through maps of plain
// values. Within a rule one look-up's value is the next one's key,
// in the kernel's registers. A change of Services is elements of such maps and
// nothing else, at some microseconds each.
//
// Frontends are not replaced when their backends change, and seldom otherwise.
//
// Every element that is added to a map is checked against every rule that uses the
// map (nft_setelem_validate_data). So the maps with many elements, frontends and
// endpoints, are used by few rules, and what few Services need has maps of its own.
//
// # What nft shows
//
// The nft command has no notation for a look-up in the result of a look-up, and
// up to at least version 1.0.6 it aborts when it meets one. So values have a
// first word that nothing uses, and the second word arrives in a register of
// which nft believes that it holds "th dport", loaded there just before. nft
// then lists "th dport vmap @picks" where the truth is the chain of maps above;
// the rule's comment says so. A table listed by nft is for reading, not for
// loading again.
package nftables
