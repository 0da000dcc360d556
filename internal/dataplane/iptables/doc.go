// SPDX-License-Identifier: Apache-2.0

// Package iptables is the backend that programs the kernel by way of iptables, for
// nodes whose owners want it so. It works with iptables-legacy (x_tables) and with
// iptables-nft (nf_tables), and uses the one that the node uses (variant.go). All names
// of chains and sets begin with SLIP-; nothing of kube-proxy's does.
//
// In the notation of iptables-save, for IPv4, with a ClusterIP of three endpoints and a
// NodePort with externalTrafficPolicy Local:
//
//	*nat
//	-A PREROUTING -j SLIP-SERVICES
//	-A OUTPUT -j SLIP-SERVICES
//	-A POSTROUTING -m mark --mark 0x4000/0x4000 -j SLIP-MASQUERADE
//	-A POSTROUTING -m set --match-set SLIP-4-HAIRPIN src -m set --match-set SLIP-4-HAIRPIN dst -m conntrack --ctstate DNAT -j SLIP-TREE-HAIRPIN
//
//	-A SLIP-SERVICES -m set --match-set SLIP-4-EXTERNAL dst,dst -g SLIP-EXTERNAL
//	-A SLIP-SERVICES ! -s 10.0.0.0/16 -m set --match-set SLIP-4-CLUSTER-IPS dst -j MARK --set-xmark 0x4000/0x4000
//	# which frontend is it? a tree of chains over address, protocol and port (tree.go)
//	-A SLIP-SERVICES -d 10.96.128.0/17 -g SLIP-BR-4JZ3QBWY7TOZA
//	-A SLIP-SERVICES -d 10.96.64.0/18 -g SLIP-BR-JYC2ZC3NI3NUA
//	-A SLIP-SERVICES -d 10.96.0.10/32 -p tcp -m tcp --dport 80 -m comment --comment "default/web" -g SLIP-SVC-5HZ2S6GQNJTTU
//
//	-A SLIP-EXTERNAL -m set --match-set SLIP-4-RESTRICTED dst,dst -m set ! --match-set SLIP-4-SOURCES dst,dst,src -j RETURN
//	-A SLIP-EXTERNAL -m set --match-set SLIP-4-LOCAL dst,dst -g SLIP-OUTSIDE
//	-A SLIP-EXTERNAL -j MARK --set-xmark 0x4000/0x4000
//	-A SLIP-EXTERNAL -g SLIP-TREE-EXTERNAL
//	-A SLIP-OUTSIDE -s 10.0.0.0/16 -g SLIP-TREE-EXTERNAL
//	-A SLIP-OUTSIDE -m addrtype --src-type LOCAL -j MARK --set-xmark 0x4000/0x4000
//	-A SLIP-OUTSIDE -m addrtype --src-type LOCAL -g SLIP-TREE-EXTERNAL
//	-A SLIP-OUTSIDE -g SLIP-TREE-LOCAL
//
//	# which endpoint? one rule for each (pool.go)
//	-A SLIP-SVC-5HZ2S6GQNJTTU -p tcp -m statistic --mode random --probability 0.33333333333 -j DNAT --to-destination 10.0.1.2:8080
//	-A SLIP-SVC-5HZ2S6GQNJTTU -p tcp -m statistic --mode random --probability 0.50000000000 -j DNAT --to-destination 10.0.1.3:8080
//	-A SLIP-SVC-5HZ2S6GQNJTTU -p tcp -j DNAT --to-destination 10.0.2.7:8080
//
//	*filter
//	-A OUTPUT -m conntrack --ctstate NEW -m conntrack ! --ctstate DNAT -j SLIP-FIREWALL
//	-A INPUT -j SLIP-INPUT
//	-A FORWARD -j SLIP-FORWARD
//	-A SLIP-INPUT -d 127.0.0.0/8 ! -i lo -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
//	-A SLIP-INPUT -m conntrack --ctstate NEW -m conntrack ! --ctstate DNAT -j SLIP-FIREWALL
//	-A SLIP-INPUT -p tcp -m set --match-set SLIP-4-HEALTH-CHECKS dst -j ACCEPT
//	-A SLIP-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
//	-A SLIP-FORWARD -m conntrack --ctstate DNAT -g SLIP-TRANSLATED
//	-A SLIP-FORWARD -m conntrack --ctstate NEW -j SLIP-FIREWALL
//	-A SLIP-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
//	-A SLIP-FORWARD -m conntrack --ctstate INVALID -j DROP
//	-A SLIP-TRANSLATED -m mark --mark 0x4000/0x4000 -j ACCEPT
//	-A SLIP-TRANSLATED -m set --match-set SLIP-4-HAIRPIN src -m set --match-set SLIP-4-HAIRPIN dst -g SLIP-TREE-FORWARD
//
//	# what Services have not translated
//	-A SLIP-FIREWALL -m set --match-set SLIP-4-REJECT dst,dst -j REJECT
//	-A SLIP-FIREWALL -m set --match-set SLIP-4-DROP dst,dst -j DROP
//	-A SLIP-FIREWALL -m set --match-set SLIP-4-CLUSTER-IPS dst -m addrtype ! --dst-type LOCAL -j REJECT
//	...
//
// # Why it has this shape
//
// Upstream's iptables mode has one list with a rule for each Service, through half of
// which a new connection goes on average, a chain for each Service and one for each
// endpoint.
//
// A tree instead of the list makes it some fourteen rules with 10,000 Services
// (TestTreeOfMany), as twice as many are one bit more, and lets a change of a frontend
// write one chain of some twenty lines, where upstream writes the list. The tree tests
// bits that are in the packet. The kernel could map a frontend to a packet mark in one step
// (ipset's skbinfo), but that takes bits of the mark which network plugins and policy
// routing use; and to save them elsewhere until the packet is translated there is no place
// that is not somebody's.
//
// iptables-legacy gives the kernel the whole table with every restore: what a change
// costs follows the number of rules, and their size. So there are as few as can be: one
// for each endpoint, since nothing else can say where to send a packet; chains of
// their own only for endpoints with session affinity, which have to remember clients;
// a comment only where a frontend's rule is. What is a question of membership is asked
// of IP sets (sets.go), whose elements cost microseconds and do not touch the rules:
// what is external, restricted to some sources, refused, dropped, or may be sent to
// itself. They are written over netlink, with the library that the rest uses.
//
// iptables-nft adds what changed to nf_tables, but the kernel then validates all
// chains that can be reached. It allows 16 on the way of a packet; that is why its trees
// are laid out for a number of branches, which costs a rule or two.
//
// # Where the time goes
//
// These figures are hints: they were taken by hand, with perf and with the restore command
// alone, and no command of the project prints them.
//
// One change of 10,000 Services with 10 endpoints each, with iptables-legacy (1.8.9, Linux
// 6.18): 0.45 s of processor time, in one restore that writes one chain. Nine tenths are
// the kernel's, for a table of 34 MB and 138,000 entries: two thirds to take it in (to copy
// it, and to look up and check each rule's match and target), a fifth to hand it out
// before. The rest, which is the command's, is all that writing the table without
// iptables-restore could save. Rules in the shape of upstream's make 105 MB, and the same
// change takes 1.3 s there, besides what kube-proxy itself needs.
//
// Two fifths of ours are for the match statistic, of 90 % of the rules: without it the same
// table takes 0.27 s, and 100,000 rules with nothing but DNAT take 0.16 s, which is the
// least. Comments are a fortieth. To draw first and look for the frontend then, in one
// tree for each number that can be drawn, needs no such match and would take 0.24 s. But how
// many endpoints a frontend has would then have to be known before (a set for each
// number), two restores would have to follow each other for an endpoint that is added, and
// nf_tables would want another shape.
//
// iptables-nft spends a change of 0.14 s on the kernel's validation of all chains. At a
// cold start, which takes 3.0 s, up to 1.8.9 it looks for the chains of each line in a
// sorted list; script.finish has the order of lines with which it finds them early. In
// the order of names, a start took 4.3 s, and one over what is there twice as long.
//
// # Partial restores
//
// Apply writes the chains that differ and nothing else (KEP-3453; here there is no list
// either that is written each time). The kernel's chains are taken to be what was last
// written. Where they are not, such as when somebody has deleted a chain, a restore
// fails, which package metrics counts, and a Reconcile follows. That one finds out which
// chains of ours there are, and writes all.
//
// # No gap
//
// A restore of one table takes effect at once, but the tables nat and filter, the sets
// and the two families follow each other. The order is such that what both the old and the new
// content serve is served all the time (setWrites). Only a frontend that changes between
// ClusterIP and external address, such as when an external IP of one Service becomes the
// ClusterIP of another, is refused until all of that has been written.
//
// # Session affinity
//
// Clients are remembered by the extension recent, in a list for each endpoint, as by
// upstream. The kernel keeps the last 100 clients of each (its parameter ip_list_tot),
// and the list for as long as a rule uses it; so the lists of up to 16 endpoints that have gone
// are kept, should they come back. A connection looks through the lists of all
// endpoints of the pool: here the number of rules does follow that of endpoints.
//
// # What it does not do
//
// NodePorts on loopback addresses work only where route_localnet is set, which is not
// this package's to do (but package sysctl's). What route_localnet would let in from
// elsewhere is dropped in any case: it stays set when a proxy ends, kube-proxy as well.
// There are no nfacct counters.
package iptables
