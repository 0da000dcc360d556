// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

//go:build ignore

// Forwards packets of established connections from the ingress of one interface to another
// interface or into a pod. See doc.go.

#include "kernel.h"

#define ETH_HEADER 14
#define ETH_IPV4 BE16(0x0800)
#define ETH_IPV6 BE16(0x86dd)
#define FAMILY_IPV4 2
#define FAMILY_IPV6 10
#define TCP 6
#define UDP 17
#define TCP_FIN_SYN_RST 0x07
#define THIS_HOST 0 // PACKET_HOST

// How long the route, the next hop and the conntrack entry of a flow are taken for granted.
#define CHECK_INTERVAL 100000000 // ns

#define MAX_FLOWS (2 * 65536) // two for each connection

// Addresses and ports as in the packet; an IPv4 address is in the first 4 bytes.
struct tuple {
	__u8 src[16], dst[16];
	__u8 ports[4]; // source, destination
	__u8 protocol, ipv6, zero[2];
} __attribute__((aligned(8)));

struct flow {
	struct tuple to; // of packets after translation
	__u64 checked;   // CLOCK_MONOTONIC_COARSE
	__u64 packets, bytes;
	__u32 in, out; // interfaces

	// The result of the last check.
	__u32 nexthop_family; // with nexthop, a struct bpf_redir_neigh
	__u8 nexthop[16];
	__u8 macs[12]; // destination and source, if peer
	__u16 mtu; // 0 before the first check

	__u8 peer;  // the other end of the interface out is a pod's
	__u8 reply; // direction
	__u32 zero;
};

struct {
	NUMBER(type, BPF_MAP_TYPE_HASH);
	NUMBER(map_flags, BPF_F_NO_PREALLOC);
	NUMBER(max_entries, MAX_FLOWS);
	TYPE(key, struct tuple);
	TYPE(value, struct flow);
} flows SEC(".maps");

// Timeouts of conntrack entries, set before the program is loaded.
volatile const __u32 tcp_timeout = 86400000, udp_timeout = 120000; // ms

// What a packet's headers say.
struct packet {
	struct tuple key;
	__u32 headers; // length of those of IP and TCP or UDP
	__u8 ttl;
	__u8 ends; // FIN, SYN or RST
	__u16 ip_checksum;
};

#define WORD(bytes) (*(__u32 *)(bytes))

INLINE void copy_address(__u8 *to, const __u8 *from)
{
	WORD(to) = WORD(from);
	WORD(to + 4) = WORD(from + 4);
	WORD(to + 8) = WORD(from + 8);
	WORD(to + 12) = WORD(from + 12);
}

struct ipv4 {
	__u8 version_length, tos;
	__u16 length, id, fragment;
	__u8 ttl, protocol;
	__u16 checksum;
	__u8 src[4], dst[4];
};

struct ipv6 {
	__u32 version_class_label;
	__u16 length;
	__u8 next, hops;
	__u8 src[16], dst[16];
};

// parse returns 0 for packets that take the slow path in any case.
INLINE int parse(struct __sk_buff *skb, struct packet *p)
{
	// Pulling more than the headers into a segment's linear part would copy it: it is a clone, and
	// its payload is in pages.
	const __u32 most = ETH_HEADER + (skb->protocol == ETH_IPV6 ? sizeof(struct ipv6) : sizeof(struct ipv4)) + 20;
	__u32 want = skb->len < most ? skb->len : most;
	if ((void *)(long)skb->data + want > (void *)(long)skb->data_end && pull_data(skb, want))
		return 0;
	void *end = (void *)(long)skb->data_end, *l3 = (void *)(long)skb->data + ETH_HEADER, *l4;
	if (skb->protocol == ETH_IPV4) {
		struct ipv4 *ip = l3;
		l4 = ip + 1;
		if (l4 > end || ip->version_length != 0x45 || ip->fragment & BE16(0x3fff))
			return 0;
		p->ttl = ip->ttl;
		p->ip_checksum = ip->checksum;
		p->key.protocol = ip->protocol;
		WORD(p->key.src) = WORD(ip->src);
		WORD(p->key.dst) = WORD(ip->dst);
		p->headers = sizeof(struct ipv4);
	} else if (skb->protocol == ETH_IPV6) {
		struct ipv6 *ip = l3;
		l4 = ip + 1;
		if (l4 > end)
			return 0;
		p->ttl = ip->hops;
		p->key.protocol = ip->next;
		copy_address(p->key.src, ip->src);
		copy_address(p->key.dst, ip->dst);
		p->key.ipv6 = 1;
		p->headers = sizeof(struct ipv6);
	} else {
		return 0;
	}
	__u8 *b = l4;
	if (p->key.protocol == TCP) {
		if (b + 20 > (__u8 *)end)
			return 0;
		p->ends = b[13] & TCP_FIN_SYN_RST;
		p->headers += (b[12] >> 4) * 4;
	} else if (p->key.protocol == UDP) {
		if (b + 8 > (__u8 *)end)
			return 0;
		p->headers += 8;
	} else {
		return 0;
	}
	WORD(p->key.ports) = WORD(b);
	return p->ttl > 1;
}

// opposite is the key of the flow in the other direction.
INLINE void opposite(struct tuple *to, const struct flow *f)
{
	copy_address(to->src, f->to.dst);
	copy_address(to->dst, f->to.src);
	to->ports[0] = f->to.ports[2];
	to->ports[1] = f->to.ports[3];
	to->ports[2] = f->to.ports[0];
	to->ports[3] = f->to.ports[1];
	to->protocol = f->to.protocol;
	to->ipv6 = f->to.ipv6;
}

// tracked reports whether the connection has its conntrack entry and is not about to end, and renews
// the timeout. It looks for the packets of the other direction: with these the entry of another
// connection that has replaced it would differ.
INLINE int tracked(struct __sk_buff *skb, const struct tuple *other, __u8 direction)
{
	struct bpf_ct_opts___first opts = {.netns_id = BPF_F_CURRENT_NETNS, .l4proto = other->protocol};
	struct bpf_sock_tuple t = {};
	__u32 size = sizeof t.ipv4;
	if (other->ipv6) {
		copy_address((__u8 *)t.ipv6.saddr, other->src);
		copy_address((__u8 *)t.ipv6.daddr, other->dst);
		__builtin_memcpy(&t.ipv6.sport, other->ports, 4);
		size = sizeof t.ipv6;
	} else {
		t.ipv4.saddr = WORD(other->src);
		t.ipv4.daddr = WORD(other->dst);
		__builtin_memcpy(&t.ipv4.sport, other->ports, 4);
	}
	struct nf_conn *ct = bpf_skb_ct_lookup(skb, &t, size, &opts, sizeof opts);
	if (!ct)
		return 0;
	// A FIN can take the slow path while the flow is added. Its entry keeps the short timeout.
	int ok = opts.dir == direction && (other->protocol != TCP || ct->proto.tcp.state == TCP_CONNTRACK_ESTABLISHED);
	if (ok)
		bpf_ct_change_timeout(ct, other->protocol == TCP ? tcp_timeout : udp_timeout);
	bpf_ct_release(ct);
	return ok;
}

// routed looks up the next hop. The packet has to leave by the same interface as on the slow path.
INLINE int routed(struct __sk_buff *skb, const struct tuple *from, struct flow *f)
{
	struct bpf_fib_lookup fib = {
		.family = from->ipv6 ? FAMILY_IPV6 : FAMILY_IPV4, .l4_protocol = from->protocol, .tot_len = 1, .ifindex = f->in,
	};
	__builtin_memcpy(&fib.sport, from->ports, 2);
	__builtin_memcpy(&fib.dport, f->to.ports + 2, 2);
	copy_address((__u8 *)fib.ipv6_src, from->src);
	copy_address((__u8 *)fib.ipv6_dst, f->to.dst);
	if (fib_lookup(skb, &fib, sizeof fib, f->peer ? 0 : BPF_FIB_LOOKUP_SKIP_NEIGH) || fib.ifindex != f->out)
		return 0;
	f->mtu = fib.mtu_result;
	f->nexthop_family = fib.family;
	copy_address(f->nexthop, (__u8 *)fib.ipv6_dst);
	__builtin_memcpy(f->macs, fib.dmac, 6);
	__builtin_memcpy(f->macs + 6, fib.smac, 6);
	return 1;
}

INLINE __u16 fold(__u64 sum)
{
	sum = (sum & 0xffff) + ((sum >> 16) & 0xffff);
	sum = (sum & 0xffff) + (sum >> 16);
	return ~sum;
}

// translate rewrites the headers.
INLINE int translate(struct __sk_buff *skb, const struct packet *p, const struct flow *f)
{
	const struct tuple *from = &p->key, *to = &f->to;
	__u32 l4 = ETH_HEADER + (from->ipv6 ? sizeof(struct ipv6) : sizeof(struct ipv4));
	__u32 checksum = l4 + (from->protocol == TCP ? 16 : 6);
	__u64 flags = from->protocol == UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__s64 diff;
	if (from->ipv6) {
		struct {
			__u8 zero[3], hops, src[16], dst[16]; // aligned like in the packet
		} head __attribute__((aligned(8))) = {.hops = p->ttl - 1};
		copy_address(head.src, to->src);
		copy_address(head.dst, to->dst);
		diff = checksum_diff(from->src, 32, to->src, 32, 0);
		if (store_bytes(skb, ETH_HEADER + 7, &head.hops, 33, BPF_F_RECOMPUTE_CSUM))
			return 0;
	} else {
		struct {
			__u8 ttl, protocol;
			__u16 checksum;
			__u32 src, dst;
		} old = {p->ttl, from->protocol, 0, WORD(from->src), WORD(from->dst)},
		  head = {p->ttl - 1, from->protocol, 0, WORD(to->src), WORD(to->dst)};
		diff = checksum_diff(&old.src, 8, &head.src, 8, 0);
		head.checksum = fold(checksum_diff(&old, 12, &head, 12, (__u16)~p->ip_checksum));
		if (store_bytes(skb, ETH_HEADER + 8, &head, 12, 0))
			return 0;
	}
	if (replace_l4_checksum(skb, checksum, 0, diff, flags | BPF_F_PSEUDO_HDR))
		return 0;
	if (WORD(from->ports) == WORD(to->ports))
		return 1;
	return !replace_l4_checksum(skb, checksum, WORD(from->ports), WORD(to->ports), flags | 4) && !store_bytes(skb, l4, to->ports, 4, 0);
}

SEC("tcx/ingress")
int forward(struct __sk_buff *skb)
{
	struct packet p = {};
	if (skb->pkt_type != THIS_HOST || skb->vlan_present || !parse(skb, &p))
		return TCX_NEXT;
	struct flow *f = lookup(&flows, &p.key);
	if (!f)
		return TCX_NEXT;
	__u64 now = coarse_time();
	if (p.ends || !f->mtu || now - f->checked > CHECK_INTERVAL) {
		struct tuple other = {};
		opposite(&other, f);
		if (p.ends || !tracked(skb, &other, !f->reply) || !routed(skb, &p.key, f)) {
			delete (&flows, &other);
			delete (&flows, &p.key);
			return TCX_NEXT;
		}
		f->checked = now;
	}
	__u32 length = skb->len - ETH_HEADER;
	if (skb->ifindex != f->in || (skb->gso_size ? skb->gso_size + p.headers : length) > f->mtu)
		return TCX_NEXT;
	if (!translate(skb, &p, f))
		return TCX_DROP;
	__sync_fetch_and_add(&f->packets, 1);
	__sync_fetch_and_add(&f->bytes, length);
	if (!f->peer)
		return redirect_neigh(f->out, (struct bpf_redir_neigh *)&f->nexthop_family, sizeof(struct bpf_redir_neigh), 0);
	if (store_bytes(skb, 0, f->macs, 12, 0))
		return TCX_DROP;
	return redirect_peer(f->out, 0);
}

// The functions of conntrack are for programs with a license like this.
char license_of_program[] SEC("license") = "GPL";
