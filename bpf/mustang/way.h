/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_WAY_H
#define MUSTANG_WAY_H

#include "config.h"
#include "maps.h"

/* The ways on from a pod's link. */
enum way {
	WAY_STACK,  /* the kernel's: to another node, to the host, or to a pod that has no other way in */
	WAY_DEVICE, /* through the host's device of the pod that it is for */
	WAY_MAC,    /* on the pods' common segment */
	WAY_SELF,   /* back into the same pod: no switch returns a frame to its sender */
};

/* Pods have a way to each other if both have a host side, or both none and one segment. */
static __always_inline enum way way_of(const struct connection *c, const struct entrance *entrance)
{
	if (config.side == SIDE_UPLINK && !c)
		return WAY_STACK;
	if (config.side == SIDE_UPLINK && c->flags & CONNECTION_SEGMENT)
		return WAY_MAC;
	if (config.side != SIDE_POD)
		return entrance && entrance->flags & ENDPOINT_EGRESS ? WAY_DEVICE : WAY_STACK;
	if (!c)
		return WAY_STACK;
	if (c->flags & CONNECTION_HAIRPIN)
		return WAY_SELF;
	return c->flags & CONNECTION_SEGMENT ? WAY_MAC : WAY_STACK;
}

/*
 * An answer that the stack is to bring to the client goes as it is, and the client's to_pod translates it: the host
 * would take an answer that comes from a service's address for forged, and its connection tracking would not know it.
 */
static __always_inline bool left_to_client(const struct connection *c, enum way way)
{
	return c && !(c->flags & CONNECTION_FORWARD) && way == WAY_STACK;
}

#endif
