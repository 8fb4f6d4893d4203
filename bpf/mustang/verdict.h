/* SPDX-License-Identifier: GPL-2.0-only OR BSD-2-Clause */
#ifndef MUSTANG_VERDICT_H
#define MUSTANG_VERDICT_H

#include "metrics.h"

/* What happens to a packet, or to a call of a socket. */
enum verdict {
	VERDICT_PASS,      /* leave it unchanged */
	VERDICT_TRANSLATE, /* rewrite its addresses */
	VERDICT_DROP,      /* drop the packet, refuse the call */
	VERDICT_ANSWER,    /* answer the packet: it is an echo request to a service */
	VERDICT_STORE,     /* store the connection under construction, which decides */
};

/* A verdict, and what to count for it. The verdict alone decides. */
struct outcome {
	enum verdict verdict;
	union {
		enum drop_reason reason; /* of VERDICT_DROP */
		enum metric metric;      /* of the others; METRIC_NONE counts nothing */
	};
};

static __always_inline struct outcome outcome_pass(enum metric metric)
{
	return (struct outcome){ .verdict = VERDICT_PASS, .metric = metric };
}

static __always_inline struct outcome outcome_translate(enum metric metric)
{
	return (struct outcome){ .verdict = VERDICT_TRANSLATE, .metric = metric };
}

static __always_inline struct outcome outcome_drop(enum drop_reason reason)
{
	return (struct outcome){ .verdict = VERDICT_DROP, .reason = reason };
}

static __always_inline struct outcome outcome_store(void)
{
	return (struct outcome){ .verdict = VERDICT_STORE };
}

/* An outcome as an integer: a global function can return no struct. */
static __always_inline int outcome_pack(struct outcome outcome)
{
	return outcome.verdict << 16 | outcome.reason;
}

static __always_inline struct outcome outcome_unpack(int packed)
{
	return (struct outcome){ .verdict = packed >> 16, .reason = packed & 0xffff };
}

#endif
