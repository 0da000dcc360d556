// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

//go:build ignore

// Chooses the endpoint when a process connects to a Service, so that packets need no translation.
// See doc.go.

#include <linux/bpf.h>

#define SEC(name) __attribute__((section(name), used))
#define INLINE static inline __attribute__((always_inline))
#define NUMBER(name, n) int(*name)[n]
#define TYPE(name, t) t *name
#define HELPER(ret, name, number, ...) static ret (*const name)(__VA_ARGS__) = (void *)number

HELPER(void *, lookup, BPF_FUNC_map_lookup_elem, void *map, const void *key);
HELPER(__u32, random, BPF_FUNC_get_prandom_u32, void);
HELPER(__u64, netns_cookie, BPF_FUNC_get_netns_cookie, void *ctx);
HELPER(__u64, coarse_time, BPF_FUNC_ktime_get_coarse_ns, void);
HELPER(void *, storage_get, BPF_FUNC_sk_storage_get, void *map, void *sk, void *value, __u64 flags);
HELPER(long, storage_delete, BPF_FUNC_sk_storage_delete, void *map, void *sk);

#define TCP 6
#define UDP 17
#define ALLOW 1 // the connect() goes on
#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define NETWORK_ORDER(n) __builtin_bswap32(n)
#else
#define NETWORK_ORDER(n) (n)
#endif
#define V4_MAPPED NETWORK_ORDER(0xffff)
#define LOOPBACK NETWORK_ORDER(0x7f000001)
#define QUESTION NETWORK_ORDER(0x00534c50) // 0.83.76.80, which is no host's; as in remove.go

// An address and a port in network byte order; an IPv4 address is IPv4-mapped.
struct address {
	__u32 ip[4];
	__u16 port, zero;
};

struct pool {
	__u32 count; // slots; 0 leaves connections to the dataplane
	__u32 in_turn;
	__u32 next; // slot, if in_turn
};

struct slot {
	__u32 pool, number;
};

#define MAP(map_type, name, map_key, map_value, flags) \
	struct { \
		NUMBER(type, map_type); \
		NUMBER(map_flags, flags); \
		NUMBER(max_entries, 1); /* set by the loader */ \
		TYPE(key, map_key); \
		TYPE(value, map_value); \
	} name SEC(".maps")

MAP(BPF_MAP_TYPE_HASH, frontends, struct address, __u32, BPF_F_NO_PREALLOC); // to pools
MAP(BPF_MAP_TYPE_HASH, pools, __u32, struct pool, BPF_F_NO_PREALLOC);
MAP(BPF_MAP_TYPE_HASH, endpoints, struct slot, struct address, BPF_F_NO_PREALLOC);

// Addresses of the node, with port 0. At those with the value SERVED, NodePorts are served. The others are ClusterIPs
// that a process of the node serves itself, such as NodeLocal DNSCache, or that are on an interface for another reason.
#define SERVED 1
MAP(BPF_MAP_TYPE_HASH, node_addresses, struct address, __u32, BPF_F_NO_PREALLOC);

// Network namespaces of the node, with the value NODE, and its pods, by cookie. Others are left alone.
#define NODE 2
MAP(BPF_MAP_TYPE_HASH, namespaces, __u64, __u32, BPF_F_NO_PREALLOC);
MAP(BPF_MAP_TYPE_PERCPU_ARRAY, connections, __u32, __u64, 0);

// The time by CLOCK_MONOTONIC_COARSE until which the proxy answers for the other maps. After that they may be as old
// as can be, and connections are left to the dataplane.
MAP(BPF_MAP_TYPE_ARRAY, lease, __u32, __u64, 0);

// The frontends that sockets have connected to.
struct {
	NUMBER(type, BPF_MAP_TYPE_SK_STORAGE);
	NUMBER(map_flags, BPF_F_NO_PREALLOC);
	TYPE(key, int);
	TYPE(value, struct address);
} peers SEC(".maps");

// frontend_of returns the pool of an address and port, or null.
INLINE __u32 *frontend_of(const struct address *to)
{
	// The unspecified address means the client itself: the kernel replaces it by loopback afterwards. As a
	// frontend it means NodePorts.
	if (!to->ip[0] && !to->ip[1] && (!to->ip[2] || to->ip[2] == V4_MAPPED) && !to->ip[3])
		return 0;
	struct address a = *to;
	a.port = 0;
	__u32 *node = lookup(&node_addresses, &a);
	if (node && *node != SERVED)
		return 0;
	__u32 *pool = lookup(&frontends, to);
	if (pool || !node)
		return pool;
	// NodePorts at all of the node's addresses have the unspecified address.
	if (a.ip[0] || a.ip[1] || a.ip[2] != V4_MAPPED)
		a.ip[2] = 0;
	a.ip[0] = a.ip[1] = a.ip[3] = 0;
	a.port = to->port;
	return lookup(&frontends, &a);
}

// endpoint_of copies the endpoint for a connection, at once, as the kernel may reuse elements that are
// deleted. It returns 0 to leave the connection to the dataplane.
INLINE int endpoint_of(struct bpf_sock_addr *ctx, const struct address *to, struct address *endpoint)
{
	__u32 zero = 0;
	__u64 cookie = netns_cookie(ctx), *until = lookup(&lease, &zero);
	if (!until || *until < coarse_time() || !lookup(&namespaces, &cookie))
		return 0;
	__u32 *id = frontend_of(to);
	if (!id)
		return 0;
	struct slot s = {.pool = *id};
	struct pool *p = lookup(&pools, &s.pool);
	__u32 count = p ? p->count : 0;
	if (!count)
		return 0;
	s.number = (p->in_turn ? __sync_fetch_and_add(&p->next, 1) : random()) % count;
	struct address *e = lookup(&endpoints, &s);
	if (!e)
		return 0;
	*endpoint = *e;
	return 1;
}

// choose replaces the destination. The socket remembers it for getpeername().
INLINE int choose(struct bpf_sock_addr *ctx, struct address *to)
{
	if (ctx->protocol != TCP || !ctx->sk)
		return 0;
	struct address endpoint;
	// Translation gives a socket that is bound another port if one is connected from its port to the endpoint.
	if (ctx->sk->src_port || !endpoint_of(ctx, to, &endpoint)) {
		storage_delete(&peers, ctx->sk);
		return 0;
	}
	struct address *peer = storage_get(&peers, ctx->sk, 0, BPF_SK_STORAGE_GET_F_CREATE);
	if (!peer)
		return 0; // no memory
	*peer = *to;
	*to = endpoint;
	__u32 zero = 0;
	__u64 *n = lookup(&connections, &zero);
	if (n)
		++*n;
	return 1;
}

// answer tells a process in the node's network namespace that the programs are attached: the process connects a
// UDP socket, which sends no packet, to QUESTION, and is connected to loopback.
INLINE void answer(struct bpf_sock_addr *ctx)
{
	__u64 cookie = netns_cookie(ctx);
	__u32 *whose = lookup(&namespaces, &cookie);
	if (whose && *whose == NODE)
		ctx->user_ip4 = LOOPBACK;
}

SEC("cgroup/connect4")
int connect4(struct bpf_sock_addr *ctx)
{
	if (ctx->protocol == UDP && ctx->user_ip4 == QUESTION)
		answer(ctx);
	struct address a = {.ip = {0, 0, V4_MAPPED, ctx->user_ip4}, .port = ctx->user_port};
	if (choose(ctx, &a)) {
		ctx->user_ip4 = a.ip[3];
		ctx->user_port = a.port;
	}
	return ALLOW;
}

#define LOAD_IP6(ctx) {(ctx)->user_ip6[0], (ctx)->user_ip6[1], (ctx)->user_ip6[2], (ctx)->user_ip6[3]}
#define STORE_IP6(ctx, from) \
	((ctx)->user_ip6[0] = (from)[0], (ctx)->user_ip6[1] = (from)[1], (ctx)->user_ip6[2] = (from)[2], (ctx)->user_ip6[3] = (from)[3])

SEC("cgroup/connect6")
int connect6(struct bpf_sock_addr *ctx)
{
	struct address a = {.ip = LOAD_IP6(ctx), .port = ctx->user_port};
	if (choose(ctx, &a)) {
		STORE_IP6(ctx, a.ip);
		ctx->user_port = a.port;
	}
	return ALLOW;
}

SEC("cgroup/getpeername4")
int getpeername4(struct bpf_sock_addr *ctx)
{
	struct address *peer = ctx->sk ? storage_get(&peers, ctx->sk, 0, 0) : 0;
	if (peer) {
		ctx->user_ip4 = peer->ip[3];
		ctx->user_port = peer->port;
	}
	return ALLOW;
}

SEC("cgroup/getpeername6")
int getpeername6(struct bpf_sock_addr *ctx)
{
	struct address *peer = ctx->sk ? storage_get(&peers, ctx->sk, 0, 0) : 0;
	if (peer) {
		STORE_IP6(ctx, peer->ip);
		ctx->user_port = peer->port;
	}
	return ALLOW;
}

// The functions of sockets' storage are for programs with a license like this.
char license_of_program[] SEC("license") = "GPL";
