/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_CONSTS_H
#define MUSTANG_CONSTS_H

#include <linux/bpf.h>
#include <linux/if_ether.h>
#include <linux/if_packet.h>
#include <linux/in.h>
#include <linux/in6.h>
#include <linux/pkt_cls.h>
#include <linux/types.h>
#include <stdbool.h>

#include <bpf/bpf_endian.h>
#include <bpf/bpf_helpers.h>

/* Hints to the compiler, which moves unlikely code behind the rest: the code for most packets fits into fewer cache lines. */
#define likely(x) __builtin_expect(!!(x), 1)
#define unlikely(x) __builtin_expect(!!(x), 0)

/*
 * Return values of the tc programs. After ACTION_NEXT the next program on the hook runs, then the kernel; TC_ACT_OK would
 * skip the programs of others.
 */
#define ACTION_NEXT TC_ACT_UNSPEC
#define ACTION_DROP TC_ACT_SHOT

/*
 * Source ports tried for a connection whose own port is taken. If 95 of 100 are taken, one search of 700 fails. After a search
 * has failed, later ones for this client and backend try few ports for a while: ns.
 */
#define PORT_TRIES 128
#define PORT_TRIES_AGAIN 4
/* So many first tries avoid ports that a backend still keeps: all clients outside share the ports of this node. */
#define PORT_TRIES_PATIENT 4
#define PORT_TRIES_PATIENT_SNAT 32
#define SNAT_FAILED_FOR 100000000ULL

/* The range of source ports. */
#define PORT_FIRST 1024
#define PORT_LAST 65535

/* Extension headers of an IPv6 packet. RFC 8200 allows seven, one of them twice. */
#define EXTENSIONS_MAX 8

/* Bound for header offsets: eight extension headers of 2 KiB, and the headers around them. */
#define OFFSET_MASK 0x7fff

/* Bytes to make linear when a header is not. */
#define LINEAR_BYTES 512

#endif
