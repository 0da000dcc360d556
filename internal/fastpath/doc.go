// SPDX-License-Identifier: Apache-2.0

// Package fastpath offloads established connections to the kernel's flowtable
// (KEP-4963): once a connection has carried more than a number of packets, its
// packets go from the ingress of one interface to the egress of another, with the
// addresses changed as conntrack says, and pass no rules, no routing and no
// conntrack in between.
//
// A [Controller] keeps a table of its own, "inet slipstream-fastpath", and nothing
// else. It needs no Service proxy in particular: whatever has made a connection's
// conntrack entry, the entry says where its packets go. It is a dataplane.Dataplane,
// for what it wants to know of Services is their frontends. In nft's notation:
//
//	table inet slipstream-fastpath {
//	  set frontends-ipv4 { 10.96.0.10 . tcp . 80 comment "default/web:http" }   # and -ipv6
//	  set interfaces     { "eth0", "veth1", "veth2" }
//	  set held-families, held-frontends-ipv4, held-addresses-ipv4 ...           # see Flush
//	  counter offloaded
//	  flowtable flows { hook ingress priority filter; devices = { eth0, veth1, veth2 }; counter; }
//	  chain forward {
//	    type filter hook forward priority 1000; policy accept;
//	    ct packets <= 20 return
//	    ct state invalid,related,untracked return
//	    ct original ip daddr . meta l4proto . ct original proto-dst @frontends-ipv4 goto to-flowtable
//	  }
//	  chain to-flowtable {
//	    iifname != @interfaces return
//	    oifname != @interfaces return
//	    # what is held returns
//	    flow add @flows counter name "offloaded"
//	  }
//	}
//
// The chain forward comes after those of all others, so that what they drop is not
// offloaded. With the scope All it has no frontends and goes on at once.
//
// # What the kernel does
//
// What follows was read in Linux 6.12 and is held to it by tests here (TestFact and
// others); where other versions differ, it says so. The functions are in
// net/netfilter: nft_flow_offload.c, nf_flow_table_core.c, nf_flow_table_ip.c,
// nf_tables_api.c.
//
// Counting. "ct packets" without a direction is the sum of both
// (nft_ct_get_eval_counter), and the packet at hand is counted by then. So of a
// connection with a threshold of N, the packet N+1 is the first that matches; it
// still takes the slow path itself, and the next one, in either direction, the fast
// one. What has been aggregated (GRO) counts as one packet. Only entries that were
// made while the sysctl nf_conntrack_acct was on have counters. The rule turns it on
// (nft_ct_get_init) and nothing turns it off again, nor do we: it may be somebody
// else's too. Connections from before are never offloaded.
//
// Who is offloaded (nft_flow_offload_eval). TCP that is established in conntrack's
// eyes and assured, except for packets with FIN or RST; UDP in any state, also when
// nobody answers; no SCTP; no packet with IP options or IPsec; no connection with a
// conntrack helper. Only forwarded connections come by: neither those that begin or
// end on the node itself, host network included, nor those that a bridge forwards by
// itself.
//
// Interfaces. Which devices the flowtable has is not asked: a flow is made all the
// same (nft_flow_route), and then only packets that come in by one of its devices
// take the fast path. A connection of which this is true in one direction only is
// worse than none: conntrack sees half of it, and may let its entry live for
// minutes instead of days. So the rules ask for both interfaces to take part.
//
// What ends a flow (flow_offload_teardown). A FIN or RST; that packet and all that
// follow take the slow path, where conntrack sees the connection end
// (nf_flow_state_check). No packet for 30 s (sysctls nf_flowtable_tcp_timeout and
// nf_flowtable_udp_timeout). A change of routes, whichever: flows keep the route
// that they were made with, and a packet that finds it outdated takes the slow path
// (nf_flow_dst_check). For IPv4 that is any change of a route or of an interface in
// the namespace (rt_cache_flush), for IPv6 one at the route or above it. One of the
// connection's two interfaces going down (flow_offload_netdev_event). The conntrack
// entry being deleted (flow_offload_lookup). The flowtable being deleted
// (nf_flow_table_free). In all of these cases the connection goes on on the slow
// path, with the same backend, and its next packet offloads it again if the rules
// have it so.
//
// Conntrack entries. Deleting the entry of an offloaded connection works like
// deleting another, and its flow finds no packets any more from that moment on.
// Before Linux 6.4, without a fix that is in later versions of those kernels, it is
// refused with EBUSY (ctnetlink_del_conntrack); see [Controller.Cleaning]. An entry
// has the status OFFLOAD, and HW_OFFLOAD where hardware does it; its timeout is not
// reported then (ctnetlink_dump_info). An entry of UDP that was offloaded within two
// seconds after it began is not assured, and among the first to go when the table is
// full.
//
// Their timeouts. An entry has a day to live from when its flow is made
// (flow_offload_add), and another one when less than five minutes of it are left
// (nf_flow_table_extend_ct_timeout). When the flow ends, what is left of the day
// stays, or what conntrack gives an entry of its kind, if that is less
// (flow_offload_fixup_ct). So a connection that falls silent after 23 hours and 50
// minutes has ten minutes before it is forgotten, and its NAT with it. And kernels
// with a mistake in that function (6.18 has been seen with and without) never extend
// the day: they compare the time that is left with the time at which it is over; so a
// connection that is busy for longer is forgotten while it is. There is no way to
// see that from outside on a connection in use; TestFactEntriesLive says which kind
// of kernel it runs on by having an entry expire. Both is taken care of without
// knowing: every hour all connections pass the slow path once, which begins the day
// anew (Config.Refresh, TestRefresh).
//
// Devices of a flowtable. NEWFLOWTABLE for a flowtable that exists adds those it
// does not have yet, and does nothing to flows. DELFLOWTABLE with devices takes these
// out and does nothing to flows either: those by other devices go on, and so do the
// flows of these devices, of which now only the other direction is fast, until 30 s
// have passed without a packet in it; and no rule makes them anew meanwhile. So
// taking a device out and putting it back ends no flow. When one leaves that is still
// up, we replace the flowtable. One that disappears leaves by itself.
//
// One message names at most 255 devices (NFT_NETDEVICE_MAX; the 256th is refused
// with EFBIG), a transaction may have several messages. A reader is shown a
// flowtable's devices only if they fit into one message: some 1,600 names, a tenth of
// that for who reads little at a time (nf_tables_fill_flowtable_info). A device may
// be in one flowtable of a table only (EEXIST), and in any number of tables.
//
// Up to Linux 6.15 a flowtable has devices: one that does not exist is an error
// (ENOENT), one that is given another name stays. From 6.16 on it has names, which
// need not exist (nft_netdev_hook_alloc), and from 6.17 on beginnings of names
// (NFTA_DEVICE_PREFIX). Both is found out by transactions that end in an error and so
// come to nothing (probe). Where the kernel goes by beginnings of names and the
// expression that chooses interfaces is about nothing else, it is given these.
//
// Hardware. With the flag for hardware offload, the driver of every device must take
// flows (TC_SETUP_FT), or the message is refused with EOPNOTSUPP
// (nf_flow_table_offload_setup): veth, bridges and dummies do not. The flag cannot be
// changed afterwards. So it is used only if all interfaces that take part can, and
// when one comes that cannot, the flowtable is replaced by one without.
//
// Stacked interfaces. A route to a bridge leads to the port, if the port is in the
// flowtable (dev_fill_forward_path), and the flow then has the port and the link
// address of the next hop for good (FLOW_OFFLOAD_XMIT_DIRECT): when either changes,
// the connection is lost (TestBridgePorts). With only the bridge in the flowtable,
// packets are looked up when they come up from the port to the bridge, and leave by
// the neighbour table (TestBridge). So ports do not take part by default. A bond's
// packets are looked up at the bond (TestBond); its ports only cost a look-up more. A
// VLAN's route leads to the interface below it if that is in the flowtable, and packets
// are looked up there with their tag; else at the VLAN's (TestVLAN, TestVLANOnBond).
//
// Tunnels. VXLAN and IPv4 tunnels take part like other interfaces; the packets that
// carry the others are the node's own (TestVXLAN, TestIPIP). A flow keeps its route as
// the packet's destination (skb_dst_set_noref), so a tunnel without a remote address,
// such as Calico's tunl0, finds the remote in the route as on the slow path. From Linux
// 6.19 on the kernel also looks below a tunnel of the driver ipip
// (ipip_fill_forward_path), where it adds and removes the outer header itself. There,
// with a remote address and the interface below in the flowtable, packets are looked up
// at the interface below. Without a remote address the kernel looks below loopback,
// which is not in the flowtable by default, and forwards as before.
//
// Bringing connections back. No message ends a single flow. What ends all, and
// disturbs none more than by one packet on the slow path in each direction, is to
// replace the flowtable within one transaction, rules and all, by one of the same
// name (see [Flush]). Flows are gone when the kernel has cleaned up after the
// transaction (nf_tables_trans_destroy_work), in which time they take the slow path
// already.
//
// Taking a table away costs a grace period of RCU for each interface from Linux 6.11
// on (nf_flowtable_by_dev_remove).
package fastpath
