// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

//go:build ignore

// Learns established connections at the egress of interfaces, and forwards their packets from the
// ingress of one interface to another interface or into a pod. See doc.go.

#include "kernel.h"

#define ETH_HEADER 14
#define ETH_IPV4 BE16(0x0800)
#define ETH_IPV6 BE16(0x86dd)
#define FAMILY_IPV4 2
#define FAMILY_IPV6 10
#define TCP 6
#define UDP 17
#define TCP_FIN 0x01
#define TCP_SYN 0x02
#define TCP_RST 0x04
#define TCP_ACK 0x10
#define DSCP 0xfc
#define THIS_HOST 0 // PACKET_HOST

// The upper half of a packet's priority if the rules ask to offload its connection.
#define ASKED 4963

// How long the route, the next hop and the conntrack entry of a flow are taken for granted.
#define CHECK_INTERVAL 100000000 // ns

// How far numbers may be out of the window: that of a probe or a repeated segment, most likely.
#define NEAR (1 << 16) // bytes

// After how long without a believable acknowledgement the next one is believed.
#define RESYNC 1000 // of ms()

#define MAX_CONNECTIONS 65536
#define LAYOUT 3 // of struct flow: a map of another size is not adopted. Each change of a meaning needs another number
#define SECOND 1000000000ULL // ns

// A connection whose route the program does not find is refused for a while, and longer each time. It is on trial for
// some time after it was learned.
#define TRIAL 10000 // of ms()
#define FIRST_WAIT (8 * SECOND)
#define MOST_WAIT (600 * SECOND)

// Addresses and ports as in the packet; an IPv4 address is in the first 4 bytes.
struct tuple {
	__u8 src[16], dst[16];
	__u8 ports[4]; // source, destination
	__u8 protocol, ipv6, zero[2];
} __attribute__((aligned(8)));

struct flow {
	// What is sealed. Until the next check it stays the same.
	struct tuple from; // the key
	struct tuple to;   // of packets after translation
	__u32 in, out;     // interfaces

	// The result of the last check.
	__u32 nexthop_family; // with nexthop, a struct bpf_redir_neigh
	__u8 nexthop[16];
	__u8 macs[12]; // destination and source, if peer
	__u16 mtu; // 0 before the first check

	__u8 peer;  // the other end of the interface out is a pod's
	__u8 reply; // direction
	__u8 scale; // of the windows that the direction announces (RFC 7323)
	__u8 waits; // for user space, which has conntrack accept any sequence number; packets take the slow path
	__u8 dscp;  // that was looked up with the route, in the bits of the header
	__u8 zero;
	__u64 seal;

	__u64 checked; // CLOCK_MONOTONIC_COARSE
	__u64 packets, bytes;

	// TCP: the highest acknowledgement of the direction, the end of its window, and when it was last heard. The
	// other direction sends nothing beyond, so a FIN or RST there is a forgery.
	__u32 ack, limit, heard; // heard in ms()
	__u32 added;             // in ms()
	__u8 seen;               // they are known
	__u8 zero2[7];
};

// An interface that takes part.
struct interface {
	__u32 connections; // from it, at least: user space counts them from time to time
	__u8 peer;         // packets to it go directly to its other end, a pod's
	__u8 zero[3];
};

struct refusal {
	__u64 until, wait;
};

#define SEALED (__builtin_offsetof(struct flow, seal) / 8)
#define SEAL 0x9e3779b97f4a7c15 // any odd number whose powers look random

struct {
	NUMBER(type, BPF_MAP_TYPE_HASH);
	NUMBER(map_flags, BPF_F_NO_PREALLOC);
	NUMBER(max_entries, 2 * MAX_CONNECTIONS + LAYOUT);
	TYPE(key, struct tuple);
	TYPE(value, struct flow);
} flows SEC(".maps");

struct {
	NUMBER(type, BPF_MAP_TYPE_HASH);
	NUMBER(map_flags, BPF_F_NO_PREALLOC);
	NUMBER(max_entries, 65536);
	TYPE(key, __u32);
	TYPE(value, struct interface);
} interfaces SEC(".maps");

// Connections that could not be kept, by the keys of their flows.
struct {
	NUMBER(type, BPF_MAP_TYPE_LRU_HASH);
	NUMBER(max_entries, 16384);
	TYPE(key, struct tuple);
	TYPE(value, struct refusal);
} refusals SEC(".maps");

// Keys of flows that wait for user space.
struct {
	NUMBER(type, BPF_MAP_TYPE_RINGBUF);
	NUMBER(max_entries, 1 << 19);
} waiting SEC(".maps");

// Timeouts of conntrack entries, and the time (CLOCK_MONOTONIC_COARSE) until which the program acts. User space sets
// them while it runs. Without it policies may change that nobody applies to flows.
volatile __u32 tcp_timeout = 86400000, udp_timeout = 120000; // ms
volatile __u64 lease = 0;

volatile __u64 added = 0, refused = 0; // connections; refused for want of space

// What a packet's headers say.
struct packet {
	struct tuple key;
	__u32 headers; // length of those of IP and TCP or UDP
	__u8 ttl, dscp;
	__u8 tcp_flags;
	__u16 ip_checksum;
	__u16 window;
	__u32 seq, end, ack; // TCP
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

// parse returns 0 for packets that take the slow path in any case, if judge lets them.
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
		p->dscp = ip->tos & DSCP;
		p->ip_checksum = ip->checksum;
		p->key.protocol = ip->protocol;
		WORD(p->key.src) = WORD(ip->src);
		WORD(p->key.dst) = WORD(ip->dst);
		p->headers = sizeof(struct ipv4);
		p->end = ip->length ? BE16(ip->length) : skb->len - ETH_HEADER; // BIG TCP has 0
	} else if (skb->protocol == ETH_IPV6) {
		struct ipv6 *ip = l3;
		l4 = ip + 1;
		if (l4 > end)
			return 0;
		p->ttl = ip->hops;
		p->dscp = BE32(ip->version_class_label) >> 20 & DSCP;
		p->key.protocol = ip->next;
		copy_address(p->key.src, ip->src);
		copy_address(p->key.dst, ip->dst);
		p->key.ipv6 = 1;
		p->headers = sizeof(struct ipv6);
		p->end = BE16(ip->length) + sizeof(struct ipv6);
	} else {
		return 0;
	}
	__u8 *b = l4;
	if (p->key.protocol == TCP) {
		if (b + 20 > (__u8 *)end)
			return 0;
		p->tcp_flags = b[13];
		p->headers += (b[12] >> 4) * 4;
		p->seq = BE32(WORD(b + 4));
		p->ack = BE32(WORD(b + 8));
		p->window = BE16(*(__u16 *)(b + 14));
		p->end += p->seq - p->headers;
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

// reverse is the tuple of answers.
INLINE void reverse(struct tuple *to, const struct tuple *t)
{
	copy_address(to->src, t->dst);
	copy_address(to->dst, t->src);
	to->ports[0] = t->ports[2];
	to->ports[1] = t->ports[3];
	to->ports[2] = t->ports[0];
	to->ports[3] = t->ports[1];
	to->protocol = t->protocol;
	to->ipv6 = t->ipv6;
}

// opposite is the key of the flow in the other direction.
INLINE void opposite(struct tuple *to, const struct flow *f) { reverse(to, &f->to); }

// entry looks up the conntrack entry by the packets of one direction, and says which it is.
INLINE struct nf_conn *entry(struct __sk_buff *skb, const struct tuple *other, __u8 *direction)
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
	*direction = opts.dir;
	return ct;
}

// tracked reports whether the connection has its conntrack entry and is not about to end, and renews
// the timeout. It looks for the packets of the other direction: with these the entry of another
// connection that has replaced it would differ.
INLINE int tracked(struct __sk_buff *skb, const struct tuple *other, __u8 direction)
{
	__u8 found;
	struct nf_conn *ct = entry(skb, other, &found);
	if (!ct)
		return 0;
	// A FIN can take the slow path while the flow is added. Its entry keeps the short timeout.
	int ok = found == direction && (other->protocol != TCP || ct->proto.tcp.state == TCP_CONNTRACK_ESTABLISHED);
	if (ok)
		bpf_ct_change_timeout(ct, other->protocol == TCP ? tcp_timeout : udp_timeout);
	bpf_ct_release(ct);
	return ok;
}

#define UNRESOLVED 2

// routed looks up the next hop. The packet has to leave by the same interface as on the slow path. UNRESOLVED: the kernel
// does not know the pod's link address, as it collects those that only this program uses.
INLINE int routed(struct __sk_buff *skb, const struct packet *p, struct flow *f)
{
	const struct tuple *from = &p->key;
	struct bpf_fib_lookup fib = {
		.family = from->ipv6 ? FAMILY_IPV6 : FAMILY_IPV4, .l4_protocol = from->protocol, .tot_len = 1, .ifindex = f->in,
	};
	if (from->ipv6)
		fib.flowinfo = BE32((__u32)p->dscp << 20);
	else
		fib.tos = p->dscp;
	f->dscp = p->dscp;
	__builtin_memcpy(&fib.sport, from->ports, 2);
	__builtin_memcpy(&fib.dport, f->to.ports + 2, 2);
	copy_address((__u8 *)fib.ipv6_src, from->src);
	copy_address((__u8 *)fib.ipv6_dst, f->to.dst);
	long result = fib_lookup(skb, &fib, sizeof fib, f->peer ? 0 : BPF_FIB_LOOKUP_SKIP_NEIGH);
	if (result == BPF_FIB_LKUP_RET_NO_NEIGH && fib.ifindex == f->out)
		return UNRESOLVED;
	if (result || fib.ifindex != f->out)
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

// difference is how much the sum of two words grows if they become two others, in one's complement.
INLINE __u32 difference(__u32 a, __u32 b, __u32 to_a, __u32 to_b)
{
	__u64 sum = (__u64)~a + (__u64)~b + to_a + to_b;
	sum = (sum & 0xffffffff) + (sum >> 32);
	return sum + (sum >> 32);
}

// translate rewrites the headers. Helpers that write take several times as long as writing to the packet, which is in no
// other's hands: the kernel has made it so before the program, as the program writes.
INLINE int translate(struct __sk_buff *skb, const struct packet *p, const struct flow *f)
{
	const struct tuple *from = &p->key, *to = &f->to;
	__u32 l4 = ETH_HEADER + (from->ipv6 ? sizeof(struct ipv6) : sizeof(struct ipv4));
	__u32 checksum = l4 + (from->protocol == TCP ? 16 : 6);
	__u64 flags = from->protocol == UDP ? BPF_F_MARK_MANGLED_0 : 0;
	__s64 diff;
	__u16 ip_checksum = 0;
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
		__u8 was[2] __attribute__((aligned(2))) = {p->ttl}, is[2] __attribute__((aligned(2))) = {p->ttl - 1};
		diff = difference(WORD(from->src), WORD(from->dst), WORD(to->src), WORD(to->dst));
		ip_checksum = fold((diff & 0xffff) + (diff >> 16) + (__u16)~*(__u16 *)was + *(__u16 *)is + (__u16)~p->ip_checksum);
	}
	if (replace_l4_checksum(skb, checksum, 0, diff, flags | BPF_F_PSEUDO_HDR))
		return 0;
	if (WORD(from->ports) != WORD(to->ports) && replace_l4_checksum(skb, checksum, WORD(from->ports), WORD(to->ports), flags | 4))
		return 0;
	__u8 *frame = (void *)(long)skb->data, *ports;
	if (from->ipv6) {
		ports = frame + ETH_HEADER + sizeof(struct ipv6);
		if (ports + 4 > (__u8 *)(long)skb->data_end)
			return 0;
	} else {
		struct ipv4 *ip = (void *)frame + ETH_HEADER;
		ports = (__u8 *)(ip + 1);
		if (ports + 4 > (__u8 *)(long)skb->data_end)
			return 0;
		ip->ttl = p->ttl - 1;
		ip->checksum = ip_checksum;
		WORD(ip->src) = WORD(to->src);
		WORD(ip->dst) = WORD(to->dst);
	}
	WORD(ports) = WORD(to->ports);
	if (f->peer)
		__builtin_memcpy(frame, f->macs, sizeof f->macs);
	return 1;
}

INLINE int equal(const struct tuple *a, const struct tuple *b)
{
	const __u64 *x = (const __u64 *)a, *y = (const __u64 *)b;
	return x[0] == y[0] && x[1] == y[1] && x[2] == y[2] && x[3] == y[3] && x[4] == y[4];
}

// sealed is the seal of a flow: a copy that mixes two flows has another.
INLINE __u64 sealed(const struct flow *f)
{
	const __u64 *word = (const __u64 *)f;
	__u64 sum[4] = {};
	_Static_assert(SEALED % 4 == 0, "the words are taken by four");
#pragma unroll
	for (__u32 i = 0; i < SEALED; i++)
		sum[i % 4] = (sum[i % 4] + word[i]) * SEAL;
	return ((sum[0] * SEAL + sum[1]) * SEAL + sum[2]) * SEAL + sum[3];
}

INLINE __u32 ms(__u64 now) { return now >> 20; } // nearly

// follow keeps the highest acknowledgement and window of a direction. It does not believe one beyond the window before
// it: others can send them with forged addresses. If all that comes for a while is like that, it has missed some.
INLINE void follow(const struct flow *f, struct flow *shared, const struct packet *p, __u32 now)
{
	__u32 limit = p->ack + ((__u32)p->window << (f->scale & 15));
	int first = !f->seen || now - f->heard > RESYNC;
	if (!(p->tcp_flags & TCP_ACK) || (!first && (__s32)(p->ack - f->limit) > NEAR))
		return;
	if (first || (__s32)(p->ack - f->ack) > 0)
		shared->ack = p->ack;
	if (first || (__s32)(limit - f->limit) > 0)
		shared->limit = limit;
	shared->heard = now;
	shared->seen = 1;
}

// ends reports whether a FIN or RST can be the end of the connection: it is in the window of the receiver, whose flow
// is other. It can be if the window is not known.
INLINE int ends(const struct packet *p, const struct flow *other)
{
	return !other || !other->seen || ((__s32)(p->end - other->ack) >= -NEAR && (__s32)(p->seq - other->limit) <= 0);
}

#define IPV6_HOP_BY_HOP 0
#define IPV6_ROUTING 43
#define IPV6_FRAGMENT 44
#define IPV6_AUTHENTICATION 51
#define IPV6_OPTIONS 60
#define MOST_EXTENSIONS 8 // RFC 8200 has 7

INLINE int is_extension(__u8 header)
{
	return header == IPV6_HOP_BY_HOP || header == IPV6_ROUTING || header == IPV6_FRAGMENT || header == IPV6_AUTHENTICATION || header == IPV6_OPTIONS;
}

#define PASS 0
#define JUDGE 1
#define DROP 2

// find_end finds a FIN or RST behind any headers of IP and of the link. Conntrack sees segments without fragments, so the
// first fragment may be one: the flags may come in the second.
INLINE int find_end(struct __sk_buff *skb, struct packet *p)
{
	__u32 at, fragment;
	if (skb->protocol == ETH_IPV4) {
		struct ipv4 ip;
		if (load_relative(skb, 0, &ip, sizeof ip, BPF_HDR_START_NET) || ip.fragment & BE16(0x1fff))
			return PASS;
		fragment = ip.fragment & BE16(0x2000);
		p->key.protocol = ip.protocol;
		WORD(p->key.src) = WORD(ip.src);
		WORD(p->key.dst) = WORD(ip.dst);
		at = (ip.version_length & 15) * 4;
	} else if (skb->protocol == ETH_IPV6) {
		struct ipv6 ip;
		if (load_relative(skb, 0, &ip, sizeof ip, BPF_HDR_START_NET))
			return PASS;
		fragment = 0;
		at = sizeof ip;
		for (int n = 0; n < MOST_EXTENSIONS && is_extension(ip.next); n++) {
			struct {
				__u8 next, length;
				__u16 fragment;
			} h;
			if (load_relative(skb, at, &h, sizeof h, BPF_HDR_START_NET))
				return PASS;
			if (ip.next == IPV6_FRAGMENT) {
				if (h.fragment & BE16(0xfff8))
					return PASS;
				fragment |= h.fragment & BE16(1);
				at += 8;
			} else {
				at += ip.next == IPV6_AUTHENTICATION ? (h.length + 2) * 4 : (h.length + 1) * 8;
			}
			ip.next = h.next;
		}
		if (is_extension(ip.next))
			return DROP;
		p->key.protocol = ip.next;
		p->key.ipv6 = 1;
		copy_address(p->key.src, ip.src);
		copy_address(p->key.dst, ip.dst);
	} else {
		return PASS;
	}
	struct {
		__u8 ports[4];
		__u32 seq;
	} tcp;
	__u8 flags = TCP_FIN;
	if (p->key.protocol != TCP || (!fragment && load_relative(skb, at + 13, &flags, 1, BPF_HDR_START_NET)) || !(flags & (TCP_FIN | TCP_RST)) ||
		load_relative(skb, at, &tcp, sizeof tcp, BPF_HDR_START_NET))
		return PASS;
	WORD(p->key.ports) = WORD(tcp.ports);
	p->seq = p->end = BE32(tcp.seq);
	return JUDGE;
}

// judge drops forged ends of offloaded connections. Conntrack would believe them, as it does not look at their numbers
// any more. The others take the slow path; after an end the next check ends the flow.
INLINE int judge(struct __sk_buff *skb)
{
	struct packet p = {};
	if (coarse_time() > lease)
		return TCX_NEXT;
	int found = find_end(skb, &p);
	if (found != JUDGE)
		return found == DROP ? TCX_DROP : TCX_NEXT;
	struct flow *f = lookup(&flows, &p.key);
	if (!f)
		return TCX_NEXT;
	struct tuple other = {};
	opposite(&other, f);
	return ends(&p, lookup(&flows, &other)) ? TCX_NEXT : TCX_DROP;
}

// guard is at interfaces that take no part.
SEC("tcx/ingress")
int guard(struct __sk_buff *skb)
{
	return judge(skb);
}

// takes_part reports whether both interfaces do, as they did when the connection was learned.
INLINE int takes_part(const struct flow *f)
{
	__u32 in = f->in, out = f->out;
	struct interface *to = lookup(&interfaces, &out);
	return to && to->peer == f->peer && lookup(&interfaces, &in);
}

INLINE void refuse(const struct tuple *key, __u64 now)
{
	struct refusal next = {.wait = FIRST_WAIT}, *last = lookup(&refusals, key);
	if (last && now < last->until + last->wait)
		next.wait = last->wait * 8 < MOST_WAIT ? last->wait * 8 : MOST_WAIT;
	next.until = now + next.wait;
	update(&refusals, key, &next, BPF_ANY);
}

SEC("tcx/ingress")
int forward(struct __sk_buff *skb)
{
	struct packet p = {};
	if (skb->pkt_type != THIS_HOST || skb->vlan_present || !parse(skb, &p))
		return judge(skb);
	struct flow *shared = lookup(&flows, &p.key);
	__u64 now = coarse_time();
	if (!shared || now > lease)
		return TCX_NEXT;
	// The kernel reuses elements that are deleted, without a grace period, and no order of reads and writes is the same
	// on all processors. So the program works with a copy, whose seal says that it is of one flow.
	struct flow f = *shared;
	if (f.seal != sealed(&f) || !equal(&f.from, &p.key) || f.waits)
		return TCX_NEXT;
	struct tuple other = {};
	int own = skb->ifindex == f.in, slow = TCX_NEXT;
	if (p.key.protocol == TCP) {
		// A SYN does not end an established connection, nor does what conntrack calls invalid, which rules may drop.
		if (p.tcp_flags & TCP_SYN || !(p.tcp_flags & (TCP_RST | TCP_ACK)) || !(~p.tcp_flags & (TCP_FIN | TCP_RST)))
			return TCX_NEXT;
		if (p.tcp_flags & (TCP_FIN | TCP_RST)) {
			opposite(&other, &f);
			if (ends(&p, lookup(&flows, &other))) {
				delete (&flows, &other);
				delete (&flows, &p.key);
				return TCX_NEXT;
			}
			slow = TCX_DROP; // see judge; the receiver does not believe it either
		} else if (own) {
			follow(&f, shared, &p, ms(now));
		}
	}
	if (!own)
		return slow;
	if (!f.mtu || f.dscp != p.dscp || now - f.checked > CHECK_INTERVAL) {
		opposite(&other, &f);
		int kept = takes_part(&f) && tracked(skb, &other, !f.reply);
		if (kept) {
			kept = routed(skb, &p, &f);
			if (kept == UNRESOLVED)
				return slow; // which has the kernel ask for it
			if (!kept && ms(now) - f.added < TRIAL) {
				refuse(&other, now);
				refuse(&p.key, now);
			}
		}
		if (!kept) {
			delete (&flows, &other);
			delete (&flows, &p.key);
			return slow;
		}
		shared->checked = f.checked = now;
		__u64 seal = sealed(&f);
		// Written as a whole, and only to this key: the element may be another flow's meanwhile.
		if (seal != f.seal) {
			f.seal = seal;
			if (update(&flows, &p.key, &f, BPF_EXIST) || !(shared = lookup(&flows, &p.key)))
				return slow;
		}
	}
	__u32 length = skb->len - ETH_HEADER;
	if ((skb->gso_size ? skb->gso_size + p.headers : length) > f.mtu)
		return slow;
	if (!translate(skb, &p, &f))
		return TCX_DROP;
	__sync_fetch_and_add(&shared->packets, 1);
	__sync_fetch_and_add(&shared->bytes, length);
	if (!f.peer)
		return redirect_neigh(f.out, (struct bpf_redir_neigh *)&f.nexthop_family, sizeof(struct bpf_redir_neigh), 0);
	return redirect_peer(f.out, 0);
}

// describe completes a flow from the conntrack entry, whose direction has no flows yet. It reports whether the program
// can forward the connection: its translation has to be that of NAT rules, as IPVS translates without conntrack.
INLINE int describe(struct nf_conn *ct, struct flow *f, struct nf_conn_acct *counted)
{
	__u32 status = ct->status;
	struct nf_ct_ext *ext = ct->ext;
	if (status & (IPS_DYING | IPS_OFFLOAD) || (EXISTS(ct->zone) && ct->zone.id))
		return 0;
	if (ext) {
		if (ext->offset[NUMBER_OF(NF_CT_EXT_HELPER)] || ext->offset[NUMBER_OF(NF_CT_EXT_SEQADJ)] ||
			(ENUM_EXISTS(NF_CT_EXT_SYNPROXY) && ext->offset[NUMBER_OF(NF_CT_EXT_SYNPROXY)]))
			return 0;
		__u8 at = ext->offset[NUMBER_OF(NF_CT_EXT_ACCT)];
		if (at && read_kernel(counted, sizeof *counted, (__u8 *)ext + at))
			return 0;
	}
	if (f->to.protocol == TCP) {
		if (ct->proto.tcp.state != TCP_CONNTRACK_ESTABLISHED || !(status & IPS_ASSURED))
			return 0;
	} else if (!(status & IPS_SEEN_REPLY)) {
		return 0;
	}
	struct conntrack_tuple t;
	if (read_kernel(&t, sizeof t, f->reply ? &ct->tuplehash[1].tuple : &ct->tuplehash[0].tuple))
		return 0;
	copy_address(f->from.src, t.src);
	copy_address(f->from.dst, t.dst);
	__builtin_memcpy(f->from.ports, &t.src_port, 2);
	__builtin_memcpy(f->from.ports + 2, &t.dst_port, 2);
	f->from.protocol = f->to.protocol;
	f->from.ipv6 = f->to.ipv6;
	return status & (IPS_SRC_NAT | IPS_DST_NAT) || equal(&f->from, &f->to);
}

// scale_of is the shift of the windows of a direction. Conntrack does not know it if it has not seen the connection begin,
// and is liberal then: it may be the largest one.
INLINE __u8 scale_of(const struct ip_ct_tcp_state *s)
{
	__u8 flags = s->flags;
	return !(flags & IP_CT_TCP_FLAG_WINDOW_SCALE) && flags & IP_CT_TCP_FLAG_BE_LIBERAL ? 14 : s->td_scale;
}

// pick returns the value of a direction. By an index, the kernel would refuse it.
INLINE __u64 pick(__u8 reply, __u64 of_original, __u64 of_reply)
{
	return of_original ^ ((of_original ^ of_reply) & -(__u64)reply);
}

// begin sets what depends on the direction of a new flow, and seals it.
INLINE void begin(struct flow *f, const __u8 *scales, const struct nf_conn_acct *counted)
{
	f->scale = pick(f->reply, scales[0], scales[1]);
	f->packets = pick(f->reply, counted->counter[0].packets, counted->counter[1].packets);
	f->bytes = pick(f->reply, counted->counter[0].bytes, counted->counter[1].bytes);
	f->seal = sealed(f);
}

// again has packets that come by another interface now expected there, if there was none for a while at the former one, or
// if answers leave by it: others can send with forged addresses. Else the packet is one for the slow path, or its
// connection waits.
INLINE void again(const struct packet *p, const struct tuple *back, struct flow *known, __u32 in, __u64 now)
{
	if (known->waits) {
		if (now - known->checked > SECOND) {
			known->checked = now;
			output(&waiting, back, sizeof *back, 0);
		}
		return;
	}
	struct tuple key = {};
	opposite(&key, known);
	struct flow *shared = lookup(&flows, &key);
	if (!shared)
		return;
	struct flow f = *shared;
	if (f.in == in || (in != known->out && now - f.checked < SECOND) || f.seal != sealed(&f) || !equal(&f.from, &key) || !equal(&f.to, &p->key))
		return;
	f.in = in;
	f.seal = sealed(&f);
	update(&flows, &key, &f, BPF_EXIST);
}

// consider learns the connection of a packet. The program is at an interface that takes part.
INLINE void consider(struct __sk_buff *skb)
{
	struct packet p = {};
	__u64 now = coarse_time();
	__u32 in = skb->ingress_ifindex, out = skb->ifindex;
	if (now > lease || skb->vlan_present || !parse(skb, &p))
		return;
	struct interface *from = lookup(&interfaces, &in), *to = lookup(&interfaces, &out);
	if (!from || !to)
		return;
	struct tuple back = {};
	reverse(&back, &p.key);
	struct flow *known = lookup(&flows, &back);
	if (known) {
		again(&p, &back, known, in, now);
		return;
	}
	struct refusal *r = lookup(&refusals, &back);
	if (r && now < r->until)
		return;
	__u8 direction;
	struct nf_conn *ct = entry(skb, &back, &direction);
	if (!ct)
		return;
	struct flow f = {.to = p.key, .in = in, .out = out, .peer = to->peer, .reply = !direction, .waits = p.key.protocol == TCP, .checked = now, .added = ms(now)};
	struct nf_conn_acct counted = {};
	__u8 scales[2] = {};
	int ok = describe(ct, &f, &counted);
	if (p.key.protocol == TCP) {
		scales[0] = scale_of(&ct->proto.tcp.seen[0]);
		scales[1] = scale_of(&ct->proto.tcp.seen[1]);
	} else if (ok && !(ct->status & IPS_ASSURED)) {
		// On the slow path conntrack would do that, after two seconds, so as not to evict it from a full table.
		bpf_ct_change_status(ct, ct->status | IPS_ASSURED);
	}
	bpf_ct_release(ct);
	if (!ok)
		return;
	struct interface *client = f.reply ? to : from;
	// No pod can fill the map.
	if (client->connections >= (client->peer ? MAX_CONNECTIONS / 16 : MAX_CONNECTIONS / 2)) {
		__sync_fetch_and_add(&refused, 1);
		return;
	}
	// An element that is replaced would be reused while packets have it.
	begin(&f, scales, &counted);
	struct tuple key = f.from;
	if (update(&flows, &key, &f, BPF_NOEXIST)) {
		__sync_fetch_and_add(&refused, 1);
		return;
	}
	reverse(&f.to, &key);
	f.from = back;
	f.in = out;
	f.out = in;
	f.peer = from->peer;
	f.reply = !f.reply;
	begin(&f, scales, &counted);
	if (update(&flows, &back, &f, BPF_NOEXIST) || (f.waits && output(&waiting, &back, sizeof back, 0))) {
		delete (&flows, &back);
		delete (&flows, &key);
		__sync_fetch_and_add(&refused, 1);
		return;
	}
	__sync_fetch_and_add(&client->connections, 1);
	__sync_fetch_and_add(&added, 1);
}

SEC("tcx/egress")
int learn(struct __sk_buff *skb)
{
	if (skb->priority >> 16 != ASKED)
		return TCX_NEXT;
	skb->priority &= 0xffff;
	consider(skb);
	return TCX_NEXT;
}

// The functions of conntrack are for programs with a license like this.
char license_of_program[] SEC("license") = "GPL";
