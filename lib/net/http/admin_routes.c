/* SPDX-License-Identifier: Apache-2.0 */
/* admin_routes.c - the routes for which SGLang wants its --admin-api-key.
 *
 * SGLang marks each of these routes (ADMIN_OPTIONAL in srt/utils/auth.py, since 0.5.8). With an
 * admin key it takes that key alone here, else its API key. On all other routes, and on paths that
 * it does not have, it takes its API key. */
#include "http.h"

#include <string.h>

static const char *const routes[] = {
	"/abort_request",
	"/add_external_corpus",
	"/begin_weight_update",
	"/clear_hicache_storage_backend", /* before 0.5.23 */
	"/configure_logging",
	"/continue_generation",
	"/destroy_weights_update_group",
	"/dump_expert_distribution_record",
	"/end_weight_update",
	"/flush_cache",
	"/freeze_gc",
	"/get_remote_instance_transfer_engine_info",
	"/get_weights_by_name",
	"/hicache/storage-backend",
	"/hicache/storage-backend/clear",
	"/init_weights_send_group_for_remote_instance",
	"/init_weights_update_group",
	"/is_scaling_elastic_ep",
	"/list_external_corpora",
	"/load_lora_adapter",
	"/load_lora_adapter_from_tensors",
	"/pause_generation",
	"/pd_role_switch",
	"/release_memory_occupation",
	"/remote_instance_transfer_engine_info",
	"/remove_external_corpus",
	"/resume_memory_occupation",
	"/scale_elastic_ep",
	"/send_weights_to_remote_instance",
	"/set_internal_state",
	"/set_trace_level",
	"/slow_down",
	"/start_expert_distribution_record",
	"/start_profile",
	"/stop_expert_distribution_record",
	"/stop_profile",
	"/unload_lora_adapter",
	"/update_weight_version",
	"/update_weights_from_disk",
	"/update_weights_from_distributed",
	"/update_weights_from_ipc",
	"/update_weights_from_tensor",
	"/weights_checker",
};

bool ws_http_wants_admin(const char *path)
{
	for (size_t i = 0; i < sizeof routes / sizeof *routes; i++)
		if (strcmp(path, routes[i]) == 0)
			return true;
	return strncmp(path, "/dumper/", 8) == 0;
}
