/* SPDX-License-Identifier: Apache-2.0 */
/* serve_lineage.h - differences between servers: their fields, their answers, their crashes.
 *
 * The table of serve_route_table.c lists their routes, with sets of lineages. Both were written
 * from the servers' sources, independently of the client (lineage.c), so that one can be tested
 * against the other. */
#ifndef WS_ENDPOINT_SERVE_LINEAGE_H
#define WS_ENDPOINT_SERVE_LINEAGE_H

#include "wsync/tool/serve.h"

#include <stdbool.h>

/* Sets of lineages. */
enum {
	WS_IN_LENIENT = 1u << WS_SERVE_LENIENT,
	WS_IN_0_4 = 1u << WS_SERVE_SGLANG_0_4,
	WS_IN_0_5 = 1u << WS_SERVE_SGLANG_0_5,
	WS_IN_2026 = 1u << WS_SERVE_SGLANG_2026,
	WS_IN_XORL_LEGACY = 1u << WS_SERVE_XORL_LEGACY,
	WS_IN_XORL = 1u << WS_SERVE_XORL,
	WS_IN_SESSION = 1u << WS_SERVE_SESSION,
	WS_IN_SLIME = 1u << WS_SERVE_SLIME,

	WS_IN_VLLM_0_20 = 1u << WS_SERVE_VLLM_0_20,
	WS_IN_VLLM_0_24 = 1u << WS_SERVE_VLLM_0_24,
	WS_IN_VLLM_0_27 = 1u << WS_SERVE_VLLM_0_27,
	WS_IN_VLLM_0_33 = 1u << WS_SERVE_VLLM_0_33,

	WS_IN_VLLM_FROM_0_27 = WS_IN_VLLM_0_27 | WS_IN_VLLM_0_33,
	WS_IN_VLLM_FROM_0_24 = WS_IN_VLLM_FROM_0_27 | WS_IN_VLLM_0_24,
	WS_IN_VLLM = WS_IN_VLLM_FROM_0_24 | WS_IN_VLLM_0_20,

	WS_IN_XORLS = WS_IN_XORL_LEGACY | WS_IN_XORL,
	WS_IN_0_5_15 = WS_IN_LENIENT | WS_IN_2026 | WS_IN_XORL | WS_IN_SESSION | WS_IN_SLIME,
	WS_IN_FROM_2026 = WS_IN_0_5_15 | WS_IN_XORL_LEGACY,
	WS_IN_FROM_0_5 = WS_IN_FROM_2026 | WS_IN_0_5,
	WS_IN_ALL = WS_IN_FROM_0_5 | WS_IN_0_4, /* of SGLang and its relatives */
	WS_IN_EVERY = WS_IN_ALL | WS_IN_VLLM,

	/* Fields; lineages outside the set ignore them. */
	/* weight_version and abort_all_requests of an update */
	WS_HAS_UPDATE_VERSION = WS_IN_FROM_0_5,
	WS_HAS_LOAD_FORMAT = WS_IN_FROM_2026,   /* of an update, with flattened_bucket */
	WS_HAS_FREE_KV_CACHE = WS_IN_XORL_LEGACY, /* free_kv_cache_before_recv */
	WS_HAS_FLUSH_TIMEOUT = WS_IN_0_5_15,    /* the query parameter */
	/* weights_checker has action "checksum", by default; elsewhere action is required */
	WS_HAS_CHECKSUMS = WS_IN_0_5_15,
	WS_HAS_X_API_KEY = WS_IN_FROM_2026,     /* beside Authorization: Bearer */
	WS_HAS_EXTENDED_INFO = WS_IN_FROM_2026, /* /model_info reports the architecture */
	WS_HAS_STARTUP_TIME = WS_IN_LENIENT | WS_IN_2026 | WS_IN_SESSION, /* in /server_info */
	/* by default, logprobs of a prompt begin with its last token */
	WS_HAS_LAST_TOKEN = WS_IN_0_4 | WS_IN_0_5 | WS_IN_XORL_LEGACY,

	/* Behavior. */
	/* answers a missing group and a failed flush, instead of crashing */
	WS_SURVIVES = WS_IN_LENIENT | WS_IN_XORL_LEGACY | WS_IN_SESSION,
	WS_HEALTH_GENERATES = WS_IN_0_4 | WS_IN_0_5 /* /health is /health_generate */
};

static inline bool ws_serve_in(enum ws_serve_lineage lineage, unsigned set)
{
	return set & 1u << lineage;
}

/* version: for /server_info. */
extern const struct ws_serve_lineage_names {
	const char *name, *version;
} ws_serve_lineages[WS_SERVE_N_LINEAGES];

#endif
