/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_CONSTS_H
#define MUSTANG_CONSTS_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>
#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/*
 * What a program says of a packet that it has no quarrel with: the next program on the same hook, ours or another's,
 * has its turn, and then the kernel. TC_ACT_OK would cut the others off.
 */
#define VERDICT_NEXT TC_ACT_UNSPEC
#define VERDICT_DROP TC_ACT_SHOT

/* Source ports that are tried for a connection whose own is taken. */
#define PORT_TRIES 16
#define PORT_FIRST 1024

/* Headers between an IPv6 header and its transport. RFC 8200 foresees seven at most, none twice but one. */
#define EXTENSIONS_MAX 8

/* No header that we look at lies further into a packet: eight extension headers of 2 KiB and what is around them. */
#define OFFSET_MASK 0x7fff

/* Bytes that are made linear when a header is not. */
#define LINEAR_BYTES 512

#endif
