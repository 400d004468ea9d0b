/* SPDX-License-Identifier: Apache-2.0 */
/* serve_openapi.c - GET /openapi.json: routes, and the fields of their
 * bodies, as FastAPI tells them.
 *
 * A client that wants to know what a server can reads this first. Servers whose bodies are
 * decoded by another library than FastAPI's own (xorl's) show routes without fields. */
#include "serve_call.h"
#include "serve_lineage.h"

#include <stdio.h>
#include <string.h>

static const struct field {
	const char *route, *name;
	unsigned lineages;
	bool query;
} fields[] = {
	{ "init_weights_update_group", "master_address", WS_IN_ALL, false },
	{ "init_weights_update_group", "master_port", WS_IN_ALL, false },
	{ "init_weights_update_group", "rank_offset", WS_IN_ALL, false },
	{ "init_weights_update_group", "world_size", WS_IN_ALL, false },
	{ "init_weights_update_group", "group_name", WS_IN_ALL, false },
	{ "init_weights_update_group", "backend", WS_IN_ALL, false },
	{ "destroy_weights_update_group", "group_name", WS_IN_ALL, false },
	{ "update_weights_from_distributed", "names", WS_IN_ALL, false },
	{ "update_weights_from_distributed", "dtypes", WS_IN_ALL, false },
	{ "update_weights_from_distributed", "shapes", WS_IN_ALL, false },
	{ "update_weights_from_distributed", "group_name", WS_IN_ALL, false },
	{ "update_weights_from_distributed", "flush_cache", WS_IN_ALL, false },
	{ "update_weights_from_distributed", "abort_all_requests", WS_IN_FROM_0_5, false },
	{ "update_weights_from_distributed", "weight_version", WS_IN_FROM_0_5, false },
	{ "update_weights_from_distributed", "load_format", WS_IN_FROM_2026, false },
	{ "update_weights_from_distributed", "free_kv_cache_before_recv", WS_IN_XORL_LEGACY,
	  false },
	{ "update_weights_from_distributed", "torch_empty_cache",
	  WS_IN_FROM_2026 & ~(unsigned)WS_IN_XORL_LEGACY, false },
	{ "update_weights_from_distributed", "selector", WS_IN_SESSION, false },
	{ "update_weights_from_tensor", "serialized_named_tensors", WS_IN_ALL, false },
	{ "update_weights_from_tensor", "load_format", WS_IN_ALL, false },
	{ "update_weights_from_tensor", "flush_cache", WS_IN_ALL, false },
	{ "update_weights_from_tensor", "abort_all_requests", WS_IN_ALL, false },
	{ "update_weights_from_tensor", "weight_version", WS_IN_ALL, false },
	{ "update_weights_from_disk", "model_path", WS_IN_ALL, false },
	{ "update_weights_from_disk", "load_format", WS_IN_ALL, false },
	{ "update_weights_from_disk", "flush_cache", WS_IN_ALL, false },
	{ "update_weights_from_disk", "abort_all_requests", WS_IN_FROM_0_5, false },
	{ "update_weights_from_disk", "weight_version", WS_IN_FROM_0_5, false },
	{ "generate", "text", WS_IN_ALL, false },
	{ "generate", "input_ids", WS_IN_ALL, false },
	{ "generate", "sampling_params", WS_IN_ALL, false },
	{ "generate", "rid", WS_IN_ALL, false },
	{ "generate", "return_logprob", WS_IN_ALL, false },
	{ "generate", "logprob_start_len", WS_IN_ALL, false },
	{ "generate", "return_routed_experts", WS_IN_FROM_2026, false },
	{ "prepare_weights_update", "buckets", WS_IN_ALL, false },
	{ "prepare_weights_update", "num_buckets", WS_IN_ALL, false },
	{ "prepare_weights_update", "names", WS_IN_ALL, false },
	{ "prepare_weights_update", "dtypes", WS_IN_ALL, false },
	{ "prepare_weights_update", "shapes", WS_IN_ALL, false },
	{ "prepare_weights_update", "group_name", WS_IN_ALL, false },
	{ "prepare_weights_update", "load_format", WS_IN_ALL, false },
	{ "complete_weights_update", "group_name", WS_IN_ALL, false },
	{ "complete_weights_update", "flush_cache", WS_IN_ALL, false },
	{ "complete_weights_update", "weight_version", WS_IN_ALL, false },
	{ "receive_weights", "num_buckets", WS_IN_ALL, false },
	{ "receive_weights", "buckets", WS_IN_ALL, false },
	{ "receive_weights", "group_name", WS_IN_ALL, false },
	{ "receive_weights", "flush_cache", WS_IN_ALL, false },
	{ "receive_weights", "free_kv_cache_before_recv", WS_IN_ALL, false },
	{ "receive_weights", "recapture_cuda_graph", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter", "weight_names", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter", "group_name", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter", "training_world_size", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter", "num_experts_per_rank", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter", "total_num_experts", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter", "inference_tp_size", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter", "flush_cache", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter", "free_kv_cache_before_recv", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter", "recapture_cuda_graph", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter", "skip_flush_cache", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter", "master_address", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter", "master_port", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter", "expert_transfer_plan", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter", "non_expert_transfer_plan", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter", "non_expert_batch_size", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter", "rank_offset", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter", "total_inference_world_size", WS_IN_ALL, false },
	{ "begin_weight_update", "selector", WS_IN_ALL, false },
	{ "open_session", "capacity_of_str_len", WS_IN_ALL, false },
	{ "open_session", "session_id", WS_IN_ALL, false },
	{ "close_session", "session_id", WS_IN_ALL, false },
	{ "post_process_weights", "restore_weights_before_load", WS_IN_ALL, false },
	{ "post_process_weights", "post_process_quantization", WS_IN_ALL, false },
	{ "release_memory_occupation", "tags", WS_IN_ALL, false },
	{ "resume_memory_occupation", "tags", WS_IN_ALL, false },
	{ "update_weight_version", "new_version", WS_IN_ALL, false },
	{ "update_weight_version", "abort_all_requests", WS_IN_ALL, false },
	{ "flush_cache", "timeout", WS_IN_FROM_2026 & ~(unsigned)WS_IN_XORL_LEGACY, true },
	{ "pause_generation", "mode", WS_IN_FROM_2026, false },
	{ "continue_generation", "torch_empty_cache",
	  WS_IN_FROM_2026 & ~(unsigned)WS_IN_XORL_LEGACY, false },
	{ "weights_checker", "action", WS_IN_ALL, false },
	{ "weights_checker", "allow_quant_error", WS_IN_FROM_2026 & ~(unsigned)WS_IN_XORL_LEGACY,
	  false },
	{ "list_weights", "prefix", WS_IN_ALL, true },
	{ "list_weights", "rank", WS_IN_ALL, true },
	{ "get_weights_by_name", "name", WS_IN_ALL, false },
	{ "get_weights_by_name", "truncate_size", WS_IN_ALL, false },
};

/* Whoever reports checksums has the field that came with them. */
static bool has_field(const struct ws_serve *s, size_t i)
{
	return fields[i].lineages & 1u << s->opts.lineage ||
	       (s->opts.checksums && strcmp(fields[i].name, "allow_quant_error") == 0);
}

static bool next_field(size_t *i, const char *route, const struct ws_serve *s, bool query)
{
	for (; *i < sizeof fields / sizeof fields[0]; ++*i)
		if (has_field(s, *i) && fields[*i].query == query &&
		    strcmp(fields[*i].route, route) == 0)
			return true;
	return false;
}

static void write_parameters(struct ws_jw *jw, const char *route, const struct ws_serve *s)
{
	size_t i = 0;
	if (!next_field(&i, route, s, true))
		return;
	ws_jw_array(jw, "parameters");
	for (; next_field(&i, route, s, true); i++) {
		ws_jw_object(jw, NULL);
		ws_jw_str(jw, "name", fields[i].name);
		ws_jw_str(jw, "in", "query");
		ws_jw_bool(jw, "required", false);
		ws_jw_end_object(jw);
	}
	ws_jw_end_array(jw);
}

/* The name of a body's schema is that of its route. */
static void write_body(struct ws_jw *jw, const char *route, const struct ws_serve *s)
{
	char ref[96];
	size_t i = 0;
	if (s->opts.lineage == WS_SERVE_XORL || !next_field(&i, route, s, false))
		return;
	snprintf(ref, sizeof ref, "#/components/schemas/%s", route);
	ws_jw_object(jw, "requestBody");
	ws_jw_object(jw, "content");
	ws_jw_object(jw, "application/json");
	ws_jw_object(jw, "schema");
	ws_jw_str(jw, "$ref", ref);
	for (int depth = 0; depth < 4; depth++)
		ws_jw_end_object(jw);
}

static void write_method(struct ws_jw *jw, const char *method, const char *route,
                         const struct ws_serve *s)
{
	ws_jw_object(jw, method);
	write_parameters(jw, route, s);
	write_body(jw, route, s);
	ws_jw_end_object(jw);
}

static void write_schema(struct ws_jw *jw, const char *route, const struct ws_serve *s)
{
	size_t i = 0;
	if (!next_field(&i, route, s, false))
		return;
	ws_jw_object(jw, route);
	ws_jw_str(jw, "type", "object");
	ws_jw_object(jw, "properties");
	for (; next_field(&i, route, s, false); i++) {
		ws_jw_object(jw, fields[i].name);
		ws_jw_end_object(jw);
	}
	ws_jw_end_object(jw);
	ws_jw_end_object(jw);
}

static void write_paths(struct ws_jw *jw, const struct ws_serve *s)
{
	bool get = false, post = false, end = false;
	for (size_t i = 0; !end; i++) {
		char path[64];
		const char *name = ws_serve_route_at(i, s->opts.lineage, &get, &post, &end);
		if (!name)
			continue;
		snprintf(path, sizeof path, "/%s", name);
		ws_jw_object(jw, path);
		if (get)
			write_method(jw, "get", name, s);
		if (post)
			write_method(jw, "post", name, s);
		ws_jw_end_object(jw);
	}
}

static void write_schemas(struct ws_jw *jw, const struct ws_serve *s)
{
	bool get = false, post = false, end = false;
	for (size_t i = 0; !end && s->opts.lineage != WS_SERVE_XORL; i++) {
		const char *name = ws_serve_route_at(i, s->opts.lineage, &get, &post, &end);
		if (name)
			write_schema(jw, name, s);
	}
}

void ws_serve_route_openapi(struct ws_serve_call *c)
{
	const struct ws_serve *s = c->serve;
	struct ws_jw jw;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_str(&jw, "openapi", "3.1.0");
	ws_jw_object(&jw, "info");
	ws_jw_str(&jw, "title", "wsync-endpoint");
	ws_jw_str(&jw, "version", WSYNC_VERSION);
	ws_jw_end_object(&jw);
	ws_jw_object(&jw, "paths");
	write_paths(&jw, s);
	ws_jw_end_object(&jw);
	ws_jw_object(&jw, "components");
	ws_jw_object(&jw, "schemas");
	write_schemas(&jw, s);
	ws_jw_end_object(&jw);
	ws_jw_end_object(&jw);
	ws_jw_end_object(&jw);
}
