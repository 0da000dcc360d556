// SPDX-License-Identifier: Apache-2.0 OR GPL-2.0-only

// What the program uses of the kernel, beside linux/bpf.h: helpers by their numbers there, and
// functions by name (kfuncs of nf_conntrack_bpf.c).
#pragma once

#include <linux/bpf.h>

// Verdicts of programs at tcx (Linux 6.6).
#define TCX_NEXT (-1)
#define TCX_DROP 2

#define SEC(name) __attribute__((section(name), used))
#define KFUNC extern __attribute__((section(".ksyms")))
#define INLINE static inline __attribute__((always_inline))

// Definitions of maps, which the loader reads as types.
#define NUMBER(name, n) int(*name)[n]
#define TYPE(name, t) t *name

#if __BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__
#define BE16(n) __builtin_bswap16(n)
#define BE32(n) __builtin_bswap32(n)
#else
#define BE16(n) (n)
#define BE32(n) (n)
#endif

#define HELPER(ret, name, number, ...) static ret (*const name)(__VA_ARGS__) = (void *)number
HELPER(void *, lookup, BPF_FUNC_map_lookup_elem, void *map, const void *key);
HELPER(long, update, BPF_FUNC_map_update_elem, void *map, const void *key, const void *value, __u64 flags);
HELPER(long, delete, BPF_FUNC_map_delete_elem, void *map, const void *key);
HELPER(long, store_bytes, BPF_FUNC_skb_store_bytes, struct __sk_buff *, __u32 offset, const void *from, __u32 len, __u64 flags);
HELPER(long, load_relative, BPF_FUNC_skb_load_bytes_relative, struct __sk_buff *, __u32 offset, void *to, __u32 len, __u32 start);
HELPER(long, pull_data, BPF_FUNC_skb_pull_data, struct __sk_buff *, __u32 len);
HELPER(long, replace_l4_checksum, BPF_FUNC_l4_csum_replace, struct __sk_buff *, __u32 offset, __u64 from, __u64 to, __u64 flags);
HELPER(__s64, checksum_diff, BPF_FUNC_csum_diff, const void *from, __u32 from_size, const void *to, __u32 to_size, __u32 seed);
HELPER(long, fib_lookup, BPF_FUNC_fib_lookup, void *ctx, struct bpf_fib_lookup *, int size, __u32 flags);
HELPER(long, redirect_neigh, BPF_FUNC_redirect_neigh, __u32 ifindex, struct bpf_redir_neigh *, int size, __u64 flags);
HELPER(long, redirect_peer, BPF_FUNC_redirect_peer, __u32 ifindex, __u64 flags);
HELPER(__u64, coarse_time, BPF_FUNC_ktime_get_coarse_ns, void);

// A conntrack entry. The loader adapts the offset of the field to the kernel.
#define KERNEL __attribute__((preserve_access_index))
struct ip_ct_tcp {
	__u8 state;
} KERNEL;
union nf_conntrack_proto {
	struct ip_ct_tcp tcp;
} KERNEL;
struct nf_conn {
	union nf_conntrack_proto proto;
} KERNEL;
#define TCP_CONNTRACK_ESTABLISHED 3

struct bpf_ct_opts___first { // the fields of Linux 5.18
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

KFUNC struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *, struct bpf_sock_tuple *, __u32 size, struct bpf_ct_opts___first *, __u32 opts_size);
KFUNC int bpf_ct_change_timeout(struct nf_conn *, __u32 milliseconds);
KFUNC void bpf_ct_release(struct nf_conn *);
