// SPDX-License-Identifier: Apache-2.0

// Package iptables is the dataplane that programs rules of iptables and IP sets. It works
// with iptables-legacy (x_tables) and with iptables-nft (nf_tables), and uses the one that
// the node uses ([Detect]). The names of all chains and sets begin with SLIP-, those of
// kube-proxy and the kubelet with KUBE-.
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
//	-A SLIP-SERVICES -m set --match-set SLIP-4-EXTERNAL-IPS dst,dst -g SLIP-EXTERNAL
//	-A SLIP-SERVICES -m set --match-set SLIP-4-NODE-IPS dst -m set ! --match-set SLIP-4-CLUSTER-IPS dst -g SLIP-NODE-PORTS
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
//	-A SLIP-NODE-PORTS -s 10.0.0.0/16 -g SLIP-NODE-INSIDE
//	-A SLIP-NODE-PORTS -m addrtype --src-type LOCAL -j MARK --set-xmark 0x4000/0x4000
//	-A SLIP-NODE-PORTS -m addrtype --src-type LOCAL -g SLIP-NODE-INSIDE
//	-A SLIP-NODE-PORTS -j SLIP-TREE-NODE-LOCAL
//	-A SLIP-NODE-PORTS -g SLIP-NODE-CLUSTER
//	-A SLIP-NODE-INSIDE -j SLIP-TREE-NODE-INSIDE
//	-A SLIP-NODE-INSIDE -g SLIP-NODE-CLUSTER
//	-A SLIP-NODE-CLUSTER -j MARK --set-xmark 0x4000/0x4000
//	-A SLIP-NODE-CLUSTER -j SLIP-TREE-NODE
//	-A SLIP-NODE-CLUSTER -j MARK --set-xmark 0x0/0x4000
//	-A SLIP-TREE-NODE-LOCAL -p tcp -m tcp --dport 30080 -m comment --comment "default/web" -g SLIP-LOC-5HZ2S6GQNJTTU
//
//	# which endpoint? one rule for each (pool.go)
//	-A SLIP-SVC-5HZ2S6GQNJTTU -p tcp -m statistic --mode random --probability 0.33333333333 -j DNAT --to-destination 10.0.1.2:8080
//	-A SLIP-SVC-5HZ2S6GQNJTTU -p tcp -m statistic --mode random --probability 0.50000000000 -j DNAT --to-destination 10.0.1.3:8080
//	-A SLIP-SVC-5HZ2S6GQNJTTU -p tcp -j DNAT --to-destination 10.0.2.7:8080
//
//	*filter
//	-A OUTPUT -m conntrack --ctstate NEW -m conntrack ! --ctstate DNAT -j SLIP-FIREWALL
//	-A INPUT -d 127.0.0.0/8 ! -i lo -j SLIP-LOCALNET
//	-A INPUT -j SLIP-INPUT
//	-A FORWARD -j SLIP-FORWARD
//	-A SLIP-LOCALNET -m conntrack ! --ctstate RELATED,ESTABLISHED,DNAT -j DROP
//	-A SLIP-INPUT -m conntrack --ctstate NEW -m conntrack ! --ctstate DNAT -j SLIP-FIREWALL
//	-A SLIP-INPUT -p tcp -m set --match-set SLIP-4-HEALTH-CHECKS dst -j ACCEPT
//	-A SLIP-FORWARD -m conntrack --ctstate RELATED,ESTABLISHED -j ACCEPT
//	-A SLIP-FORWARD -m conntrack --ctstate DNAT -g SLIP-TRANSLATED
//	-A SLIP-FORWARD -m conntrack --ctstate NEW -j SLIP-FIREWALL
//	-A SLIP-FORWARD -m mark --mark 0x4000/0x4000 -j ACCEPT
//	-A SLIP-FORWARD -m conntrack --ctstate INVALID -m set ! --match-set SLIP-LOCAL dst,dst -j DROP
//	-A SLIP-TRANSLATED -m mark --mark 0x4000/0x4000 -j ACCEPT
//	-A SLIP-TRANSLATED -m set --match-set SLIP-4-HAIRPIN src -m set --match-set SLIP-4-HAIRPIN dst -g SLIP-TREE-FORWARD
//
//	# packets that Services have not translated
//	-A SLIP-FIREWALL -m set --match-set SLIP-4-REJECT dst,dst -j REJECT --reject-with icmp-port-unreachable
//	-A SLIP-FIREWALL -m set --match-set SLIP-4-DROP dst,dst -j DROP
//	-A SLIP-FIREWALL -m set --match-set SLIP-4-CLUSTER-IPS dst -m addrtype ! --dst-type LOCAL -j REJECT --reject-with icmp-port-unreachable
//	...
//	-A SLIP-FIREWALL -m set --match-set SLIP-4-NODE-IPS dst -m set ! --match-set SLIP-4-CLUSTER-IPS dst -m set ! --match-set SLIP-4-EXTERNAL-IPS dst,dst -j SLIP-TREE-REFUSED
//	-A SLIP-TREE-REFUSED -p tcp -m tcp --dport 30081 -m comment --comment "default/empty" -g SLIP-NODE-REJECT
//
// # Why it has this shape
//
// kube-proxy's iptables mode has one list with a rule for each Service, of which a new
// connection passes half on average, a chain for each Service and one for each endpoint.
//
// A NodePort is a rule in a tree over protocol and port, and another one with
// externalTrafficPolicy Local; the addresses are in an IP set. No type of set has ports of
// protocols without addresses. So all packets to these addresses are marked for masquerading
// before they pass the tree, and the mark is removed from those that are not to a NodePort.
//
// A tree in place of the list takes some fourteen rules with 10,000 Services
// (TestTreeOfMany), and one more for twice as many. A change of a frontend writes one chain
// of some twenty lines, where kube-proxy writes the list. IP sets could map a frontend to a
// packet mark in one step (skbinfo), but that takes bits of the mark that network plugins and
// policy routing use.
//
// iptables-legacy gives the kernel the whole table with every restore: the cost of a change
// follows the number and the size of all rules. With 10,000 Services of 10 endpoints, it is
// 0.45 s of processor time (1.8.9, Linux 6.18), of which the kernel takes nine tenths to copy
// and check 34 MB; rules in kube-proxy's shape make 105 MB and 1.3 s. So there are few rules:
// one for each endpoint, since nothing else can say where to send a packet; chains for
// endpoints only with session affinity, which has to remember clients; comments only on the
// rules of frontends. Questions of membership are left to IP sets (sets.go), where an element
// costs microseconds and no rule changes.
//
// iptables-nft writes only changes to nf_tables, but the kernel then validates all chains that
// packets can reach: 0.07 s with 10,000 Services of 4 endpoints, 0.15 s with 27,381. It allows
// 16 chains on the way of a packet; so the depth of the trees is limited, which costs a rule or
// two.
//
// # Partial restores
//
// Apply writes the chains that differ and nothing else (KEP-3453). It takes the kernel's
// chains to be as they were last written. Where they are not, such as when another program
// has deleted a chain, the restore fails, which package metrics counts, and a Reconcile
// follows. It reads all chains with iptables-save and writes those that differ: rules are
// written as iptables-save prints them, so that a restart writes nothing.
//
// # No gap
//
// A restore of one table takes effect at once, but the tables nat and filter, the sets
// and the two families follow each other. In their order, what both the old and the new
// content serve is served all the time (setWrites). Only a frontend that changes between
// ClusterIP and external address, such as when an external IP of one Service becomes the
// ClusterIP of another, is refused until all of that has been written.
//
// # Session affinity
//
// The extension recent remembers clients, in a list for each endpoint, as with kube-proxy.
// The kernel keeps the last 100 clients of each (its parameter ip_list_tot), and the list
// for as long as a rule uses it; so the lists of up to 16 removed endpoints of a pool are
// kept, in case they return. A connection looks through the lists of all endpoints of
// the pool: here the number of rules does follow that of endpoints.
//
// # Not handled
//
// NodePorts on loopback addresses work only where route_localnet is set ([RouteLocalnet]). What
// that would let in from elsewhere is dropped, also after Cleanup ([Remove]). There are no
// nfacct counters; those of rules take their place ([Dataplane.PacketCounts]).
package iptables
