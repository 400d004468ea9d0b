/* SPDX-License-Identifier: Apache-2.0 */
/* serve_route_table.c - the table of routes: the names, methods and bodies of each lineage. */
#include "serve_call.h"
#include "serve_lineage.h"
#include "serve_vllm.h"

#include <string.h>

enum { GET = WS_SERVE_GET, POST = WS_SERVE_POST };
enum { NO_BODY = WS_SERVE_NO_BODY, BODY = WS_SERVE_BODY, OPTIONAL_BODY = WS_SERVE_OPTIONAL_BODY };

const struct ws_serve_route ws_serve_routes[] = {
	{ "health", GET, NO_BODY, ws_serve_route_health, WS_IN_EVERY },
	{ "health_generate", GET, NO_BODY, ws_serve_route_health_generate, WS_IN_ALL },
	{ "ready", GET, NO_BODY, ws_serve_route_ready, WS_IN_SESSION },
	{ "model_info", GET, NO_BODY, ws_serve_route_model_info, WS_IN_FROM_2026 },
	{ "get_model_info", GET, NO_BODY, ws_serve_route_model_info, WS_IN_ALL },
	{ "server_info", GET, NO_BODY, ws_serve_route_server_info, WS_IN_FROM_2026 },
	{ "get_server_info", GET, NO_BODY, ws_serve_route_server_info, WS_IN_ALL },
	{ "v1/models", GET, NO_BODY, ws_serve_route_models, WS_IN_EVERY },
	{ "init_weights_update_group", POST, BODY, ws_serve_route_init, WS_IN_ALL },
	{ "destroy_weights_update_group", POST, BODY, ws_serve_route_destroy, WS_IN_FROM_0_5 },
	{ "update_weights_from_distributed", POST, BODY, ws_serve_route_update, WS_IN_ALL },
	{ "update_weights_from_tensor", POST, BODY, ws_serve_route_tensor, WS_IN_FROM_2026 },
	{ "update_weights_from_disk", POST, BODY, ws_serve_route_disk, WS_IN_ALL },
	{ "prepare_weights_update", POST, BODY, ws_serve_route_prepare, WS_IN_XORLS },
	{ "complete_weights_update", POST, BODY, ws_serve_route_complete, WS_IN_XORLS },
	{ "discard_weights_update", POST, BODY, ws_serve_route_discard, WS_IN_XORLS },
	{ "receive_weights", POST, BODY, ws_serve_route_receive, WS_IN_XORL_LEGACY },
	{ "receive_weights_ep_scatter", POST, BODY, ws_serve_route_scatter, WS_IN_XORL_LEGACY },
	{ "begin_weight_update", POST, BODY, ws_serve_route_begin, WS_IN_SESSION },
	{ "end_weight_update", POST, BODY, ws_serve_route_end, WS_IN_SESSION },
	{ "post_process_weights", POST, BODY, ws_serve_route_post_process, WS_IN_SLIME },
	{ "get_weight_version", GET, NO_BODY, ws_serve_route_weight_version, WS_IN_SLIME },
	{ "release_memory_occupation", GET | POST, BODY, ws_serve_route_release, WS_IN_ALL },
	{ "resume_memory_occupation", GET | POST, BODY, ws_serve_route_resume, WS_IN_ALL },
	{ "sleep", POST, NO_BODY, ws_serve_route_sleep, WS_IN_LENIENT },
	{ "wake_up", POST, NO_BODY, ws_serve_route_wake, WS_IN_LENIENT },
	{ "update_weight_version", POST, BODY, ws_serve_route_version, WS_IN_FROM_0_5 },
	{ "flush_cache", GET | POST, NO_BODY, ws_serve_route_flush, WS_IN_ALL },
	{ "hicache/storage-backend/clear", POST, NO_BODY, ws_serve_route_clear_storage,
	  WS_IN_FROM_2026 },
	{ "pause_generation", POST, BODY, ws_serve_route_pause, WS_IN_FROM_2026 },
	{ "pause_generation", POST, NO_BODY, ws_serve_route_pause, WS_IN_0_5 },
	{ "continue_generation", POST, BODY, ws_serve_route_continue, WS_IN_FROM_2026 },
	{ "continue_generation", POST, NO_BODY, ws_serve_route_continue, WS_IN_0_5 },
	{ "weights_checker", GET | POST, OPTIONAL_BODY, ws_serve_route_checker,
	  WS_HAS_CHECKSUMS },
	{ "weights_checker", POST, BODY, ws_serve_route_checker, WS_IN_XORL_LEGACY },
	{ "list_weights", GET | POST, NO_BODY, ws_serve_route_list, WS_IN_LENIENT },
	{ "list_weights", GET, NO_BODY, ws_serve_route_list, WS_IN_XORL_LEGACY },
	{ "get_weights_by_name", GET | POST, BODY, ws_serve_route_values, WS_IN_ALL },
	{ "open_session", GET | POST, BODY, ws_serve_route_open_chat, WS_IN_ALL },
	{ "close_session", GET | POST, BODY, ws_serve_route_close_chat, WS_IN_ALL },
	{ "generate", POST, BODY, ws_serve_route_generate, WS_IN_ALL },
	{ "version", GET, NO_BODY, ws_serve_route_vllm_version, WS_IN_VLLM },
	{ "get_world_size", GET, NO_BODY, ws_serve_route_vllm_world_size, WS_IN_VLLM },
	{ "server_info", GET, NO_BODY, ws_serve_route_vllm_info, WS_IN_VLLM },
	{ "is_paused", GET, NO_BODY, ws_serve_route_vllm_is_paused, WS_IN_VLLM },
	{ "pause", POST, NO_BODY, ws_serve_route_vllm_pause, WS_IN_VLLM },
	{ "resume", POST, NO_BODY, ws_serve_route_vllm_resume, WS_IN_VLLM },
	{ "abort_requests", POST, BODY, ws_serve_route_vllm_abort, WS_IN_VLLM_FROM_0_27 },
	{ "reset_prefix_cache", POST, NO_BODY, ws_serve_route_vllm_reset_cache, WS_IN_VLLM },
	{ "reset_mm_cache", POST, NO_BODY, ws_serve_route_vllm_reset_images, WS_IN_VLLM },
	{ "reset_encoder_cache", POST, NO_BODY, ws_serve_route_vllm_reset_images, WS_IN_VLLM },
	{ "metrics", GET, NO_BODY, ws_serve_route_vllm_metrics, WS_IN_VLLM },
	{ "sleep", POST, NO_BODY, ws_serve_route_vllm_sleep, WS_IN_VLLM },
	{ "wake_up", POST, NO_BODY, ws_serve_route_vllm_wake, WS_IN_VLLM },
	{ "init_weight_transfer_engine", POST, BODY, ws_serve_route_vllm_init, WS_IN_VLLM },
	{ "start_weight_update", POST, BODY, ws_serve_route_vllm_start, WS_IN_VLLM_0_24 },
	{ "start_weight_update", POST, NO_BODY, ws_serve_route_vllm_start, WS_IN_VLLM_FROM_0_27 },
	{ "update_weights", POST, BODY, ws_serve_route_vllm_update, WS_IN_VLLM },
	{ "finish_weight_update", POST, NO_BODY, ws_serve_route_vllm_finish, WS_IN_VLLM_0_24 },
	{ "finish_weight_update", POST, OPTIONAL_BODY, ws_serve_route_vllm_finish,
	  WS_IN_VLLM_FROM_0_27 },
	{ "shutdown_weight_transfer_engine", POST, NO_BODY, ws_serve_route_vllm_shutdown,
	  WS_IN_VLLM_0_33 },
	{ "update_weight_version", POST, BODY, ws_serve_route_vllm_set_version,
	  WS_IN_VLLM_FROM_0_27 },
	{ "weight_info", GET, NO_BODY, ws_serve_route_vllm_weights, WS_IN_VLLM_FROM_0_27 },
	{ "weight_checker", POST, BODY, ws_serve_route_vllm_checker, WS_IN_VLLM_0_33 },
	{ "collective_rpc", POST, BODY, ws_serve_route_vllm_rpc, WS_IN_VLLM },
	{ "v1/completions", POST, BODY, ws_serve_route_vllm_complete, WS_IN_VLLM },
	{ "openapi.json", GET, NO_BODY, ws_serve_route_openapi, WS_IN_EVERY },
	{ "wsync/checksums", GET, NO_BODY, ws_serve_route_checksums, WS_IN_EVERY },
	{ "wsync/journal", GET, NO_BODY, ws_serve_route_journal, WS_IN_EVERY },
	{ NULL, 0, NO_BODY, NULL, 0 },
};
_Static_assert(sizeof ws_serve_routes / sizeof ws_serve_routes[0] <= (size_t)WS_SERVE_MAX_ROUTES,
               "the journal counts calls per route");

const struct ws_serve_route *ws_serve_find_route(const char *name,
                                                 enum ws_serve_lineage lineage)
{
	const struct ws_serve_route *r = ws_serve_routes;
	while (r->name && !(ws_serve_in(lineage, r->lineages) && strcmp(r->name, name) == 0))
		r++;
	return r->name ? r : NULL;
}

const char *ws_serve_route_name(const char *name, enum ws_serve_lineage lineage)
{
	const struct ws_serve_route *r = ws_serve_find_route(name, lineage);
	return r ? r->name : NULL;
}
