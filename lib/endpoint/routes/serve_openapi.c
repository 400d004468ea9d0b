/* SPDX-License-Identifier: Apache-2.0 */
/* serve_openapi.c - GET /openapi.json: routes, and the fields of their
 * bodies, in FastAPI's format.
 *
 * Clients read this first to detect a server's capabilities. Servers that do not decode bodies with
 * FastAPI's own library (xorl's) list routes without fields. */
#include "serve_call.h"
#include "serve_lineage.h"

#include "wsync/version.h"

#include <stdio.h>
#include <string.h>

static const struct fields {
	const char *route, *names;
	unsigned lineages;
	bool query;
} fields[] = {
	{ "init_weights_update_group",
	  "master_address master_port rank_offset world_size group_name backend",
	  WS_IN_ALL, false },
	{ "destroy_weights_update_group", "group_name", WS_IN_ALL, false },
	{ "update_weights_from_distributed",
	  "names dtypes shapes group_name flush_cache", WS_IN_ALL, false },
	{ "update_weights_from_distributed", "abort_all_requests weight_version",
	  WS_IN_FROM_0_5, false },
	{ "update_weights_from_distributed", "load_format", WS_IN_FROM_2026, false },
	{ "update_weights_from_distributed", "free_kv_cache_before_recv",
	  WS_IN_XORL_LEGACY, false },
	{ "update_weights_from_distributed", "torch_empty_cache", WS_IN_0_5_15, false },
	{ "update_weights_from_distributed", "selector", WS_IN_SESSION, false },
	{ "update_weights_from_tensor",
	  "serialized_named_tensors load_format flush_cache abort_all_requests "
	  "weight_version", WS_IN_ALL, false },
	{ "update_weights_from_disk", "model_path load_format flush_cache", WS_IN_ALL, false },
	{ "update_weights_from_disk", "abort_all_requests weight_version",
	  WS_IN_FROM_0_5, false },
	{ "generate",
	  "text input_ids sampling_params rid return_logprob logprob_start_len", WS_IN_ALL, false },
	{ "generate", "return_routed_experts", WS_IN_FROM_2026, false },
	{ "prepare_weights_update",
	  "buckets num_buckets names dtypes shapes group_name load_format", WS_IN_ALL, false },
	{ "complete_weights_update", "group_name flush_cache weight_version", WS_IN_ALL, false },
	{ "receive_weights",
	  "num_buckets buckets group_name flush_cache free_kv_cache_before_recv "
	  "recapture_cuda_graph", WS_IN_ALL, false },
	{ "receive_weights_ep_scatter",
	  "weight_names group_name training_world_size num_experts_per_rank "
	  "total_num_experts inference_tp_size flush_cache free_kv_cache_before_recv "
	  "recapture_cuda_graph skip_flush_cache master_address master_port "
	  "expert_transfer_plan non_expert_transfer_plan non_expert_batch_size "
	  "rank_offset total_inference_world_size", WS_IN_ALL, false },
	{ "begin_weight_update", "selector", WS_IN_ALL, false },
	{ "open_session", "capacity_of_str_len session_id", WS_IN_ALL, false },
	{ "close_session", "session_id", WS_IN_ALL, false },
	{ "post_process_weights",
	  "restore_weights_before_load post_process_quantization", WS_IN_ALL, false },
	{ "release_memory_occupation", "tags", WS_IN_ALL, false },
	{ "resume_memory_occupation", "tags", WS_IN_ALL, false },
	{ "update_weight_version", "new_version abort_all_requests", WS_IN_ALL, false },
	{ "flush_cache", "timeout", WS_IN_0_5_15, true },
	{ "pause_generation", "mode", WS_IN_FROM_2026, false },
	{ "pause", "mode clear_cache", WS_IN_VLLM, true },
	{ "get_world_size", "include_dp", WS_IN_VLLM, true },
	{ "server_info", "config_format", WS_IN_VLLM, true },
	{ "reset_prefix_cache", "reset_running_requests reset_external", WS_IN_VLLM, true },
	{ "sleep", "level mode", WS_IN_VLLM_0_33, true },
	{ "continue_generation", "torch_empty_cache", WS_IN_0_5_15, false },
	{ "weights_checker", "action", WS_IN_ALL, false },
	{ "weights_checker", "allow_quant_error", WS_IN_0_5_15, false },
	{ "weights_checker", "skip_tensor_list", WS_IN_SESSION, false },
	{ "list_weights", "prefix rank", WS_IN_ALL, true },
	{ "get_weights_by_name", "name truncate_size", WS_IN_ALL, false },
};

/* An endpoint that reports checksums against its lineage shows it by the field that came with them,
 * or soon afterwards. */
static bool has_fields(const struct ws_serve *s, const struct fields *f)
{
	const bool reports = s->opts.checksums || s->opts.device;
	return ws_serve_in(s->opts.lineage, f->lineages) ||
	       (reports && strcmp(f->names, "allow_quant_error") == 0);
}

/* An iterator over the fields of one route; zeroed: before the first. */
struct field {
	size_t row;
	const char *next; /* into the row's names; NULL: at the first name */
	char name[48];
};

static bool next_field(struct field *at, const char *route, const struct ws_serve *s, bool query)
{
	for (; at->row < sizeof fields / sizeof fields[0]; at->row++, at->next = NULL) {
		const struct fields *f = &fields[at->row];
		if (f->query != query || strcmp(f->route, route) != 0 || !has_fields(s, f))
			continue;
		at->next = at->next ? at->next : f->names;
		const size_t n = strcspn(at->next, " ");
		snprintf(at->name, sizeof at->name, "%.*s", (int)n, at->next);
		at->next += n + (at->next[n] == ' ');
		if (n)
			return true;
	}
	return false;
}

static void write_parameters(struct ws_jw *jw, const char *route, const struct ws_serve *s)
{
	struct field f = { 0 };
	if (!next_field(&f, route, s, true))
		return;
	ws_jw_array(jw, "parameters");
	do {
		ws_jw_object(jw, NULL);
		ws_jw_str(jw, "name", f.name);
		ws_jw_str(jw, "in", "query");
		ws_jw_bool(jw, "required", false);
		ws_jw_end_object(jw);
	} while (next_field(&f, route, s, true));
	ws_jw_end_array(jw);
}

/* The schema of a body has the name of its route. */
static void write_body(struct ws_jw *jw, const char *route, const struct ws_serve *s)
{
	char ref[96];
	struct field f = { 0 };
	if (s->opts.lineage == WS_SERVE_XORL || !next_field(&f, route, s, false))
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
	struct field f = { 0 };
	if (!next_field(&f, route, s, false))
		return;
	ws_jw_object(jw, route);
	ws_jw_str(jw, "type", "object");
	ws_jw_object(jw, "properties");
	do {
		ws_jw_object(jw, f.name);
		ws_jw_end_object(jw);
	} while (next_field(&f, route, s, false));
	ws_jw_end_object(jw);
	ws_jw_end_object(jw);
}

static void write_paths(struct ws_jw *jw, const struct ws_serve *s)
{
	for (const struct ws_serve_route *r = ws_serve_routes; r->name; r++) {
		char path[64];
		if (!ws_serve_in(s->opts.lineage, r->lineages))
			continue;
		snprintf(path, sizeof path, "/%s", r->name);
		ws_jw_object(jw, path);
		if (r->methods & WS_SERVE_GET)
			write_method(jw, "get", r->name, s);
		if (r->methods & WS_SERVE_POST)
			write_method(jw, "post", r->name, s);
		ws_jw_end_object(jw);
	}
}

static void write_schemas(struct ws_jw *jw, const struct ws_serve *s)
{
	for (const struct ws_serve_route *r = ws_serve_routes;
	     r->name && s->opts.lineage != WS_SERVE_XORL; r++)
		if (ws_serve_in(s->opts.lineage, r->lineages))
			write_schema(jw, r->name, s);
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
