// SPDX-License-Identifier: Apache-2.0

// Package fastpath offloads established connections to the kernel's flowtable (KEP-4963).
// After a number of packets, a connection's packets go from the ingress of one interface to
// the egress of another, translated as conntrack says, without rules, routing and conntrack.
//
// A [Controller] programs the table "inet slipstream-fastpath" and nothing else. It works
// with any Service proxy, because the conntrack entry says where a connection's packets go.
// It is a dataplane.Dataplane for the frontends of Services. In nft's notation:
//
//	table inet slipstream-fastpath {
//	  set frontends-ipv4 { 10.96.0.10 . tcp . 80 comment "default/web:http" }   # and -ipv6
//	  set interfaces     { "eth0", "veth1", "veth2" }
//	  set held-families, held-frontends-ipv4, held-addresses-ipv4 ...           # see Flush
//	  set pods-ipv4, pods-ipv6                                                  # that opt out
//	  set excluded, excluded-ipv4, excluded-ipv6                                # see Exclude
//	  counter offloaded
//	  flowtable flows { hook ingress priority filter; devices = { eth0, veth1, veth2 }; counter; }
//	  chain forward {
//	    type filter hook forward priority 1000; policy accept;
//	    ct packets <= 20 return
//	    ct state invalid,related,untracked return
//	    ct original ip daddr . meta l4proto . ct original proto-dst @frontends-ipv4 goto to-flowtable
//	  }
//	  chain to-flowtable {
//	    ct direction reply ct status ! dnat return   # IPVS, see below
//	    iifname != @interfaces return
//	    oifname != @interfaces return
//	    # connections in the sets pods-..., excluded-... and held-... return
//	    flow add @flows counter name "offloaded"
//	  }
//	}
//
// While rules of other programs require it (see foreign), a base chain judge in the hook postrouting, after all others, notes in the
// sets passed-original and passed-reply which connections have passed all rules, and the chain unjudged, to which to-flowtable
// jumps, ends for those that have not.
//
// The chain forward comes after all chains of other programs, so packets that they drop are
// not offloaded. Connections from and to the addresses in the sets pods-... and excluded-... are
// not either. Frontends of Services that opt out (desired.AnnotationFastPath) are not in the sets. With
// the scope All, the sets list what is not offloaded: only frontends that opt out.
//
// # Kernel behaviour
//
// This was read in Linux 6.12 and is tested (TestFact and others); differences of other
// versions are stated. The functions are in net/netfilter: nft_flow_offload.c,
// nf_flow_table_core.c, nf_flow_table_ip.c, nf_tables_api.c.
//
// Counting. "ct packets" without a direction is the sum of both (nft_ct_get_eval_counter),
// including the current packet. With a threshold of N, packet N+1 is the first that matches;
// the packets after it take the fast path. An aggregated packet (GRO) counts once. Entries
// have counters only if they were created while the sysctl nf_conntrack_acct was on. The rule
// turns it on (nft_ct_get_init), and nothing turns it off, as another program may need it.
// Older connections are never offloaded.
//
// Offloaded connections (nft_flow_offload_eval). TCP that is established and assured in
// conntrack, except for packets with FIN or RST; UDP in any state, also without replies. Not
// SCTP, packets with IP options or IPsec, and connections with a conntrack helper. Only
// forwarded connections pass the hook: neither those of the node itself, host network
// included, nor those within a bridge.
//
// Interfaces. The kernel creates a flow whichever devices the flowtable has (nft_flow_route),
// but only packets that arrive on one of its devices take the fast path. If that is true in
// only one direction, conntrack sees half of the connection, and may use a timeout of minutes
// instead of days. So the rules require both interfaces.
//
// IPVS. A flow translates as the conntrack entry's status says (flow_offload_alloc: IPS_SRC_NAT,
// IPS_DST_NAT). IPVS translates itself and sets neither, also with net.ipv4.vs.conntrack=1, which
// only makes the entry's reply tuple right. So an offloaded connection would leave both ways
// untranslated, and end (TestIPVS without the rule for it). The client's packets go from the hook
// input to the hook output (ip_vs_nat_xmit), so only replies pass the hook forward. The rule
// passes over replies of connections without DNAT, in both scopes. Others without DNAT, which only
// the scope All has, are offloaded by a packet of the original direction.
//
// End of a flow (flow_offload_teardown). A FIN or RST; this packet and all later ones take
// the slow path, where conntrack sees the connection end (nf_flow_state_check). No packet for
// 30 s (sysctls nf_flowtable_tcp_timeout and nf_flowtable_udp_timeout). A change of routes: a
// packet that finds its flow's route outdated takes the slow path (nf_flow_dst_check). For
// IPv4 that is any change of a route or an interface in the namespace (rt_cache_flush), for
// IPv6 one at the route or above it. An interface of the connection that goes down
// (flow_offload_netdev_event). Deletion of the conntrack entry (flow_offload_lookup) or of
// the flowtable (nf_flow_table_free). In all cases the connection continues on the slow path
// with the same backend, and is offloaded again if the rules match.
//
// Conntrack entries. The entry of an offloaded connection can be deleted like any other, and
// its flow then finds no packets any more. Before Linux 6.4 without its fix, the kernel
// refuses that with EBUSY (ctnetlink_del_conntrack); see [Controller.Cleaning]. An entry has
// the status OFFLOAD, and HW_OFFLOAD for hardware; its timeout is not reported then
// (ctnetlink_dump_info). An entry of UDP that was offloaded within two seconds of its
// creation is not assured, and among the first to be evicted from a full table.
//
// Timeouts of entries. An entry gets a timeout of a day when its flow is created (flow_offload_add), and
// again when less than five minutes are left (nf_flow_table_extend_ct_timeout; Linux 6.1: half a day,
// gc_worker). When the flow ends, the entry keeps the rest of the day, or gets conntrack's timeout for
// its state if that is shorter (flow_offload_fixup_ct). So a connection that becomes idle after 23 hours
// and 50 minutes loses its entry and its NAT ten minutes later. Kernels with a bug in that function (6.18
// with and without it exist) never extend the day, because they compare the remaining time with a point
// in time; a longer connection then loses its entry while it is busy. That cannot be detected on a
// connection in use; TestFactEntriesLive reports it by letting an entry expire. For both, all connections
// take the slow path once an hour, which starts another day (Config.Refresh, TestRefresh).
//
// Devices. NEWFLOWTABLE adds devices to an existing flowtable, and DELFLOWTABLE with devices
// removes them. Neither affects flows. So the flows of a removed device keep one fast
// direction until that has no packet for 30 s, and no rule creates them again meanwhile. If a
// device is removed that is up, the Controller replaces the flowtable. A device that
// disappears is removed by the kernel.
//
// One message has at most 255 devices (NFT_NETDEVICE_MAX, else EFBIG), a transaction any
// number of messages. A dump contains a flowtable's devices only if they fit into one
// message: some 1,600 names, a tenth of that for small reads (nf_tables_fill_flowtable_info).
// A device can be in one flowtable of a table (else EEXIST), and in any number of tables.
//
// Up to Linux 6.15 a flowtable contains devices: a missing one is an error (ENOENT), a renamed
// one remains. From 6.16 on it contains names, which need not exist (nft_netdev_hook_alloc),
// and from 6.17 on also prefixes of names (NFTA_DEVICE_PREFIX). The Controller probes the first, and uses no prefixes.
//
// Hardware. With the flag for hardware offload, the drivers of all devices must support it
// (TC_SETUP_FT), else EOPNOTSUPP (nf_flow_table_offload_setup): veth, bridges and dummies do
// not. The flag cannot be changed. So it is set only if all interfaces support it, and the
// flowtable is replaced when one is added that does not.
//
// Stacked interfaces. A route to a bridge leads to the port, if the port is in the flowtable
// (dev_fill_forward_path). The flow then keeps that port and the next hop's link address
// (FLOW_OFFLOAD_XMIT_DIRECT), and the connection is lost when either changes
// (TestBridgePorts). If only the bridge is in the flowtable, packets are looked up when they
// pass from the port to the bridge, and leave by the neighbour table (TestBridge). So ports
// do not take part by default. Packets of a bond are looked up at the bond (TestBond); its
// ports would only cost another lookup. Packets of a VLAN are looked up with their tag at the
// interface below it if that is in the flowtable, else at the VLAN's (TestVLAN,
// TestVLANOnBond).
//
// Tunnels. VXLAN and IPv4 tunnels take part like other interfaces; the outer packets are the
// node's own (TestVXLAN, TestIPIP). A flow keeps its route as the packet's destination
// (skb_dst_set_noref), so a tunnel without a remote address, such as Calico's tunl0, finds
// the remote in the route as on the slow path. From Linux 6.19 on the kernel also looks below
// a tunnel of the driver ipip (ipip_fill_forward_path) and handles the outer header itself.
// With a remote address and the interface below in the flowtable, packets are looked up
// there. Without a remote address the kernel looks below loopback, which is not in the
// flowtable by default, and forwards as before.
//
// Flushing. No message ends a single flow. To end all of them, one transaction replaces the
// flowtable, with all rules, by one of the same name (see [Flush]). Each connection then
// takes the slow path for a packet in each direction. The kernel frees the old flows after
// the transaction (nf_tables_trans_destroy_work); from Linux 6.11 on that takes an RCU grace
// period for each interface (nf_flowtable_by_dev_remove).
package fastpath
