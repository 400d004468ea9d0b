/* SPDX-License-Identifier: Apache-2.0 */
/* lineage.h - which family of servers an endpoint belongs to, and what it can and cannot survive.
 *
 * Servers of one name differ by year and by fork in routes, in the fields of one route, and in what
 * kills them. A lineage is a starting point: what such servers were seen to have. What an
 * endpoint's own list of routes shows (GET /openapi.json, else OPTIONS, which every server
 * answers without doing anything) is put over it and decides, so a server that nobody has
 * heard of gets what it shows.
 *
 * Whoever wants to know whether something can be asked of an endpoint looks at a field of struct
 * ws_capabilities. Only lib/client looks at the lineage, and nothing at a version. */
#ifndef WSYNC_LINEAGE_H
#define WSYNC_LINEAGE_H

#include <stdbool.h>
#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ws_lineage {
	WS_LINEAGE_UNKNOWN,
	WS_LINEAGE_SGLANG_04,   /* upstream v0.4 */
	WS_LINEAGE_SGLANG_05,   /* upstream v0.5 of 2025 */
	WS_LINEAGE_SGLANG_2026, /* upstream main of 2026 */
	WS_LINEAGE_XORL_LEGACY, /* xorl's first fork: receive_weights, list_weights, ep_scatter */
	WS_LINEAGE_XORL,        /* xorl's fork rebased on a 2026 upstream */
	WS_LINEAGE_SESSION,     /* upstream from 0.5.21 on: updates stand between begin and end */
	WS_LINEAGE_SLIME,       /* an upstream release with slime's patch */
	WS_N_LINEAGES
};

/* "unknown", "sglang-0.4", "sglang-0.5", "sglang-2026", "xorl-legacy", "xorl", "session",
 * "slime" */
const char *ws_lineage_name(enum ws_lineage lineage);
/* -1: no such name. *out is written on success only. */
int ws_lineage_parse(const char *name, enum ws_lineage *out);

/* One bool per thing. In brackets where the knowledge comes from: (route) the list of routes or a
 * harmless request, (field) the schema of a request's body in /openapi.json, (lineage) the table
 * only, because no question that does no harm would tell. */
struct ws_capabilities {
	/* -- ways to bring weights -- */
	/* /init_weights_update_group, /update_weights_from_distributed (route) */
	bool update;
	bool destroy;         /* /destroy_weights_update_group; without it a group stays (route) */
	bool two_phase;       /* /prepare_weights_update, /complete_weights_update (route) */
	bool two_phase_whole; /* prepare's "buckets": all buckets between one pair (field) */
	bool receive;         /* /receive_weights (route) */
	bool ep_scatter;      /* /receive_weights_ep_scatter (route) */
	bool session;         /* every update but from disk stands between /begin_weight_update
	                       * and /end_weight_update, and is refused elsewhere (route) */
	bool post_process;    /* /post_process_weights around an update (route) */
	bool from_disk;       /* /update_weights_from_disk (route) */
	bool from_tensor;     /* /update_weights_from_tensor (route) */
	bool from_ipc;        /* /update_weights_from_ipc (route) */
	bool sparse_delta;    /* /update_weights_from_sparse_delta (route) */

	/* -- fields of /update_weights_from_distributed (field); unknown ones
	 * are ignored in silence -- */
	bool load_format;     /* "flattened_bucket" is understood; elsewhere it is a hang */
	bool mixed_bucket;    /* and its tensors may differ in dtype (lineage) */
	bool weight_version;  /* else the version is set by /update_weight_version, or not at all */
	bool abort_requests;  /* "abort_all_requests" */
	bool free_kv;         /* "free_kv_cache_before_recv"; the scheduler must be idle */
	bool empty_cache;     /* "torch_empty_cache" */
	bool selector;        /* "selector": target, draft or all */

	/* -- life of a server -- */
	bool pause;           /* /pause_generation, /continue_generation (route) */
	bool pause_modes;     /* and pause has a body with "mode"; else it aborts, always (field) */
	bool flush;           /* /flush_cache (route) */
	bool flush_waits; /* its query parameter "timeout": the server waits to be idle (field) */
	bool set_version;     /* /update_weight_version (route) */
	bool memory;          /* /release_memory_occupation, /resume_memory_occupation (route) */
	bool sleep;           /* /sleep, /wake_up (route) */
	bool health_open;     /* /health says yes also while weights arrive (lineage) */

	/* -- what can be asked -- */
	bool list_weights;    /* GET /list_weights (route) */
	bool checker;         /* /weights_checker: snapshot, reset_tensors, compare (route) */
	bool checksums;       /* its action "checksum" reports digests (lineage) */
	bool skip_tensors;    /* its "skip_tensor_list" (field) */
	bool get_weights;     /* /get_weights_by_name; depends on the model too (route) */
	bool generate;        /* /generate (route) */
	bool routed_experts;  /* its "return_routed_experts" (field) */

	/* -- what happens underneath, and ways to die; all (lineage) -- */
	/* NCCL's communicator is made within init, else by the first broadcast */
	bool eager_comm;
	bool late_refusal;    /* a flush that finds requests is refused when the weights are live */
	bool dies_of_flush;   /* such a flush ends the server instead */
	bool dies_of_group;   /* an update that names no known group ends the server */
	bool dies_of_format;  /* so does a load format it does not know */
	bool dies_of_release; /* so does a release of memory while requests run */
	bool forces_flush;    /* every update flushes, whatever it says (/server_info) */
	/* a completion that times out leaves prepare refused until a restart */
	bool stuck_prepare;
};

#ifdef __cplusplus
}
#endif
#endif
