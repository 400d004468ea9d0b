/* SPDX-License-Identifier: Apache-2.0 */
/* serve_lineage.h - differences of servers: the fields they know, their answers, their crashes.
 *
 * Which routes they have stands in the table of serve_routes.c, as sets of lineages. This is the
 * endpoint's own reading of the servers; the client (lineage.c) has another, so that one can be
 * tested against the other. */
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

	WS_IN_XORLS = WS_IN_XORL_LEGACY | WS_IN_XORL,
	WS_IN_FROM_2026 = WS_IN_LENIENT | WS_IN_2026 | WS_IN_XORLS | WS_IN_SESSION | WS_IN_SLIME,
	WS_IN_FROM_0_5 = WS_IN_FROM_2026 | WS_IN_0_5,
	WS_IN_ALL = WS_IN_FROM_0_5 | WS_IN_0_4
};

struct ws_serve_lineage_traits {
	const char *name;
	const char *version;    /* what /server_info says */

	/* Fields, unknown and ignored where false. */
	bool update_version;    /* weight_version, abort_all_requests of an update */
	bool load_format;       /* of an update, and flattened_bucket */
	bool free_kv_cache;     /* free_kv_cache_before_recv */
	bool pause_modes;       /* else a pause reads no body and aborts */
	bool flush_timeout;     /* the query parameter */
	bool checksums; /* weights_checker: else action is required, and is not "checksum" */
	bool x_api_key;         /* beside Authorization: Bearer */
	bool extended_info;     /* /model_info tells the architecture */
	/* by default logprobs of a prompt begin with its last token */
	bool tells_last_token;

	/* Behaviour. */
	bool survives;          /* a missing group and a failed flush are answered, not died of */
	bool health_bypass;     /* health is 200 while weights come, whatever it would generate */
	bool health_generates;  /* /health is /health_generate */
	bool needs_session;     /* updates outside of begin and end are refused */
	bool stuck_prepare;     /* a two-phase update that timed out stays prepared for ever */
};

const struct ws_serve_lineage_traits *ws_serve_lineage_traits(enum ws_serve_lineage lineage);

#endif
