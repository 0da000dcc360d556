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
HELPER(long, read_kernel, BPF_FUNC_probe_read_kernel, void *to, __u32 size, const void *from);
HELPER(long, output, BPF_FUNC_ringbuf_output, void *map, const void *data, __u64 size, __u64 flags);
HELPER(__u64, coarse_time, BPF_FUNC_ktime_get_coarse_ns, void);

// A conntrack entry. The loader adapts the offsets of fields, and the numbers of extensions, to the kernel.
#define KERNEL __attribute__((preserve_access_index))
#define EXISTS(field) __builtin_preserve_field_info(field, 2 /* BPF_FIELD_EXISTS */)
#define NUMBER_OF(value) __builtin_preserve_enum_value(*(enum nf_ct_ext_id *)value, 1 /* BPF_ENUMVAL_VALUE */)
#define ENUM_EXISTS(value) __builtin_preserve_enum_value(*(enum nf_ct_ext_id *)value, 0 /* BPF_ENUMVAL_EXISTS */)
enum nf_ct_ext_id { NF_CT_EXT_HELPER, NF_CT_EXT_NAT, NF_CT_EXT_SEQADJ, NF_CT_EXT_ACCT, NF_CT_EXT_SYNPROXY };
struct nf_ct_ext {
	__u8 offset[8];
} KERNEL;
struct nf_conn_acct { // since Linux 5.8
	struct {
		__u64 packets, bytes;
	} counter[2];
};
struct conntrack_tuple { // struct nf_conntrack_tuple, since Linux 2.6.20
	__u8 src[16];
	__u16 src_port, family;
	__u8 dst[16];
	__u16 dst_port;
	__u8 protocol, direction;
};
struct nf_conntrack_tuple {
	struct conntrack_tuple all;
};
struct nf_conntrack_tuple_hash {
	struct nf_conntrack_tuple tuple;
} KERNEL;
struct nf_conntrack_zone {
	__u16 id;
} KERNEL;
struct ip_ct_tcp_state {
	__u8 td_scale, flags;
} KERNEL;
struct ip_ct_tcp {
	struct ip_ct_tcp_state seen[2];
	__u8 state;
} KERNEL;
union nf_conntrack_proto {
	struct ip_ct_tcp tcp;
} KERNEL;
struct nf_conn {
	struct nf_conntrack_zone zone;
	struct nf_conntrack_tuple_hash tuplehash[2];
	unsigned long status;
	struct nf_ct_ext *ext;
	union nf_conntrack_proto proto;
} KERNEL;
#define TCP_CONNTRACK_ESTABLISHED 3
#define IP_CT_TCP_FLAG_WINDOW_SCALE 0x01
#define IP_CT_TCP_FLAG_BE_LIBERAL 0x08
#define IPS_SEEN_REPLY (1 << 1)
#define IPS_ASSURED (1 << 2)
#define IPS_SRC_NAT (1 << 4)
#define IPS_DST_NAT (1 << 5)
#define IPS_DYING (1 << 9)
#define IPS_OFFLOAD (1 << 14)

struct bpf_ct_opts___first { // the fields of Linux 5.18
	__s32 netns_id;
	__s32 error;
	__u8 l4proto;
	__u8 dir;
	__u8 reserved[2];
};

KFUNC struct nf_conn *bpf_skb_ct_lookup(struct __sk_buff *, struct bpf_sock_tuple *, __u32 size, struct bpf_ct_opts___first *, __u32 opts_size);
KFUNC int bpf_ct_change_timeout(struct nf_conn *, __u32 milliseconds);
KFUNC int bpf_ct_change_status(struct nf_conn *, __u32 status);
KFUNC void bpf_ct_release(struct nf_conn *);
