/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_CONFIG_H
#define MUSTANG_CONFIG_H

#include "consts.h"

/* Where an instance of the programs is attached. */
enum attach_point {
	ATTACH_HOST,   /* the host's device of a pod, tcx */
	ATTACH_TUN,    /* the same, for a device whose packets lack an Ethernet header */
	ATTACH_NETKIT, /* the host's device of a pod, netkit: runs on transmission, not on reception */
	ATTACH_POD,    /* the pod's own device, tcx */
	ATTACH_UPLINK, /* a device of the host that leads outside, tcx */
	/* Where packets come that a pod can send past the guard on its own device. */
	ATTACH_PARENT,   /* the host's device below pods' own devices: packets that leave by it, tcx */
	ATTACH_ENTRANCE, /* a device by which they reach the host: packets that come in by it, tcx */
	ATTACH_EXIT,     /* the same device: packets from the host to them, tcx */
};

/* Set before the instance is loaded. The instances share all maps. */
struct config {
	__u8 attach_point; /* enum attach_point */
	__u8 reserved[7];
};

_Static_assert(sizeof(struct config) == 8, "hidden padding");

const volatile struct config config SEC(".rodata");

/* Whether packets have an Ethernet header here. */
static __always_inline bool has_ethernet(void)
{
	return config.attach_point != ATTACH_TUN;
}

#endif
