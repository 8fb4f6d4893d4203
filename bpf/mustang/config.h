/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_CONFIG_H
#define MUSTANG_CONFIG_H

#include "consts.h"

/* Where on a pod's link an instance of the programs sits. */
enum side {
	SIDE_HOST,   /* on the host's device, by tcx */
	SIDE_NETKIT, /* on the host's device, by netkit: it runs where a packet is sent, not where it comes out */
	SIDE_POD,    /* on the pod's own device, by tcx */
	SIDE_UPLINK, /* on a device of the host's own that leads outside, by tcx: what comes in there may be for a service */
};

/* What an instance knows of its place. The instances share all maps. */
struct config {
	__u8 side; /* enum side */
	__u8 l3;   /* packets have no Ethernet header there */
	__u8 pad[6];
};

const volatile struct config config SEC(".rodata");

#endif
