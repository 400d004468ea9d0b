/* SPDX-License-Identifier: Apache-2.0 */
/* lineage.h - the lineage of a server, its capabilities, and the requests that kill it.
 *
 * Servers of one name differ by year and by fork: in routes, in the fields of a route, and in the
 * requests that kill them. A lineage is a starting point: the capabilities observed at such
 * servers. An endpoint's own list of routes (GET /openapi.json, else OPTIONS, which every server
 * answers without side effects) overrides it. So an unknown server gets the capabilities that its
 * routes show.
 *
 * To find out whether an endpoint supports a request, check a field of struct ws_capabilities.
 * Only lib/client checks the lineage, and no code checks a version. */
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
	WS_LINEAGE_VLLM_20,     /* 0.16 to 0.20: an update is one request */
	WS_LINEAGE_VLLM_24,     /* 0.21 to 0.24: updates stand between start and finish */
	WS_LINEAGE_VLLM_27,     /* 0.25 to 0.27: start takes no body */
	WS_LINEAGE_VLLM_33,     /* 0.28 on: the join request says how tensors are packed */
	WS_N_LINEAGES
};

/* "unknown", "sglang-0.4", "sglang-0.5", "sglang-2026", "xorl-legacy", "xorl", "session",
 * "slime", "vllm-0.20", "vllm-0.24", "vllm-0.27", "vllm-0.33" */
const char *ws_lineage_name(enum ws_lineage lineage);
/* -1: no such name. *out is written on success only. */
int ws_lineage_parse(const char *name, enum ws_lineage *out);

/* Servers of one family have the same routes for the same purpose. */
enum ws_server_family { WS_FAMILY_SGLANG, WS_FAMILY_VLLM };
enum ws_server_family ws_lineage_family(enum ws_lineage lineage);

/* One bool per capability. In parentheses its origin: (route) the list of routes or a harmless
 * request, (field) the schema of a request's body in /openapi.json, (lineage) only the table,
 * because no harmless request reveals it. */
struct ws_capabilities {
	/* -- ways to update weights -- */
	/* /init_weights_update_group, /update_weights_from_distributed (route) */
	bool update;
	bool destroy;         /* /destroy_weights_update_group; without it a group stays (route) */
	bool two_phase;       /* /prepare_weights_update, /complete_weights_update (route) */
	bool two_phase_whole; /* prepare's "buckets": all buckets between one pair (field) */
	bool receive;         /* /receive_weights (route) */
	bool ep_scatter;      /* /receive_weights_ep_scatter (route) */
	bool session;         /* every update but from disk must lie between /begin_weight_update
	                       * and /end_weight_update, else it is refused (route) */
	bool post_process;    /* /post_process_weights around an update (route) */
	bool from_disk;       /* /update_weights_from_disk (route) */
	bool from_tensor;     /* /update_weights_from_tensor (route) */
	bool from_ipc;        /* /update_weights_from_ipc (route) */
	bool sparse_delta;    /* /update_weights_from_sparse_delta (route) */
	/* vLLM's: /init_weight_transfer_engine, /update_weights (route) */
	bool transfer;
	/* its updates stand between /start_weight_update and /finish_weight_update (route) */
	bool transfer_session;
	/* /init_weight_transfer_engine, not /update_weights, has "packed" (lineage) */
	bool packed_at_init;
	/* its engine "ipc" gets a handle of each tensor, or one of a bucket; the init, not the
	 * update, has "packed" (lineage) */
	bool ipc_tensors, ipc_packed, ipc_at_init;
	bool unique_id;       /* it also has "nccl_unique_id_b64" (lineage) */
	bool shutdown;        /* /shutdown_weight_transfer_engine (route) */
	bool reload;          /* /collective_rpc with "reload_weights": a load from disk (route) */

	/* -- fields of /update_weights_from_distributed (field); unknown ones
	 * are ignored in silence -- */
	bool load_format;     /* supports "flattened_bucket"; servers without it hang */
	bool mixed_bucket;    /* tensors of one such bucket may differ in dtype (lineage) */
	bool weight_version;  /* else the version is set by /update_weight_version, or not at all */
	bool abort_requests;  /* "abort_all_requests" */
	bool free_kv;         /* "free_kv_cache_before_recv"; the scheduler must be idle */
	bool empty_cache;     /* "torch_empty_cache" */
	bool selector;        /* "selector": target, draft or all */

	/* -- life of a server -- */
	bool pause;           /* /pause_generation, /continue_generation (route) */
	bool pause_modes;     /* the body of pause has "mode": abort, retract, in_place (field) */
	bool pause_wait;      /* vLLM's modes: abort, wait, keep (lineage) */
	bool flush;           /* /flush_cache (route) */
	bool flush_waits; /* flush's query parameter "timeout": waits until idle (field) */
	bool set_version;     /* /update_weight_version (route) */
	bool memory;          /* /release_memory_occupation, /resume_memory_occupation (route) */
	bool sleep;           /* /sleep, /wake_up (route) */
	bool health_open;     /* /health succeeds also while weights arrive (lineage) */

	/* -- queries -- */
	bool list_weights;    /* GET /list_weights (route) */
	bool checker;         /* /weights_checker: snapshot, reset_tensors, compare (route) */
	bool checksums;       /* its action "checksum" reports digests (lineage) */
	bool skip_tensors;    /* its "skip_tensor_list" (field) */
	bool get_weights;     /* /get_weights_by_name; depends on the model too (route) */
	bool generate;        /* /generate (route) */
	bool completions;     /* /v1/completions with token ids, for servers without it (route) */
	bool routed_experts;  /* its "return_routed_experts" (field) */

	/* -- hidden behavior and ways to die; all (lineage) -- */
	/* init creates NCCL's communicator; else the first broadcast does */
	bool eager_comm;
	bool late_refusal;    /* a flush that finds requests is refused after the weights changed */
	bool dies_of_flush;   /* a flush that finds requests ends the server */
	bool dies_of_group;   /* an update of an unknown group ends the server */
	bool dies_of_format;  /* an unknown load format ends the server */
	bool dies_of_release; /* a release of memory while requests run ends the server */
	bool forces_flush;    /* every update flushes, whatever the request says (/server_info) */
	/* after a completion times out, prepare is refused until a restart */
	bool stuck_prepare;
	/* a prompt in the middle of an update, or after a failed one, ends the server */
	bool dies_of_prompt;
	/* after one of several ranks fails, later answers may be those of earlier requests */
	bool stale_answers;
};

#ifdef __cplusplus
}
#endif
#endif
