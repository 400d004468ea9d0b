/* SPDX-License-Identifier: Apache-2.0 */
/* lineage_openapi.c - reads the list of routes that a server publishes.
 *
 *   GET /openapi.json
 *   {"paths": {"/pause_generation": {"post": {
 *        "parameters": [{"in": "query", "name": "timeout"}],
 *        "requestBody": {"content": {"application/json": {"schema": S}}}}}},
 *    "components": {"schemas": {NAME: {"properties": {FIELD: ...}}}}}
 *
 * S is a schema, {"$ref": "#/components/schemas/NAME"}, or an anyOf of these. Servers that parse
 * request bodies themselves publish routes without a schema: the fields of these routes are
 * unknown, not absent. */
#include "lineage_probe.h"

#include <string.h>

/* Limit of schemas searched for one field: a body is one schema, or a union of it and null. */
enum { MAX_SCHEMAS = 12 };

#define PULL_WEIGHTS ((size_t)-1) /* not a capability, but a sign of slime */
#define CAN(f) offsetof(struct ws_capabilities, f)

static const struct {
	const char *path;
	size_t at; /* offset of the capability that needs the route */
} paths[] = {
	{ "/init_weights_update_group", CAN(update) },
	{ "/update_weights_from_distributed", CAN(update) },
	{ "/destroy_weights_update_group", CAN(destroy) },
	{ "/prepare_weights_update", CAN(two_phase) },
	{ "/complete_weights_update", CAN(two_phase) },
	{ "/receive_weights", CAN(receive) },
	{ "/receive_weights_ep_scatter", CAN(ep_scatter) },
	{ "/begin_weight_update", CAN(session) },
	{ "/end_weight_update", CAN(session) },
	{ "/post_process_weights", CAN(post_process) },
	{ "/update_weights_from_disk", CAN(from_disk) },
	{ "/update_weights_from_tensor", CAN(from_tensor) },
	{ "/update_weights_from_ipc", CAN(from_ipc) },
	{ "/update_weights_from_sparse_delta", CAN(sparse_delta) },
	{ "/pause_generation", CAN(pause) },
	{ "/continue_generation", CAN(pause) },
	{ "/flush_cache", CAN(flush) },
	{ "/update_weight_version", CAN(set_version) },
	{ "/release_memory_occupation", CAN(memory) },
	{ "/resume_memory_occupation", CAN(memory) },
	{ "/sleep", CAN(sleep) },
	{ "/wake_up", CAN(sleep) },
	{ "/list_weights", CAN(list_weights) },
	{ "/weights_checker", CAN(checker) },
	{ "/get_weights_by_name", CAN(get_weights) },
	{ "/generate", CAN(generate) },
	{ "/pull_weights", PULL_WEIGHTS },
};
enum { N_PATHS = sizeof paths / sizeof *paths };
_Static_assert((int)N_PATHS <= (int)WS_LINEAGE_PATHS_MAX, "callers keep an array of so many");

static const struct {
	const char *path, *field;
	size_t at;
} bodies[] = {
	{ "/update_weights_from_distributed", "load_format", CAN(load_format) },
	{ "/update_weights_from_distributed", "weight_version", CAN(weight_version) },
	{ "/update_weights_from_distributed", "abort_all_requests", CAN(abort_requests) },
	{ "/update_weights_from_distributed", "free_kv_cache_before_recv", CAN(free_kv) },
	{ "/update_weights_from_distributed", "torch_empty_cache", CAN(empty_cache) },
	{ "/update_weights_from_distributed", "selector", CAN(selector) },
	{ "/prepare_weights_update", "buckets", CAN(two_phase_whole) },
	{ "/pause_generation", "mode", CAN(pause_modes) },
	{ "/weights_checker", "skip_tensor_list", CAN(skip_tensors) },
	{ "/generate", "return_routed_experts", CAN(routed_experts) },
};

/* ---- routes ---- */

size_t ws_lineage_path_count(void)
{
	return N_PATHS;
}

const char *ws_lineage_path(size_t i)
{
	return paths[i].path;
}

static bool *at(struct ws_capabilities *can, size_t offset)
{
	return (bool *)((char *)can + offset);
}

void ws_lineage_sum_up(const enum ws_presence *found, struct ws_lineage_signs *signs)
{
	for (size_t i = 0; i < N_PATHS; i++) {
		enum ws_presence all = WS_PRESENT;
		if (paths[i].at == PULL_WEIGHTS) {
			signs->pull_weights = found[i] == WS_PRESENT;
			continue;
		}
		for (size_t k = 0; k < N_PATHS; k++)
			if (paths[k].at == paths[i].at && found[k] != WS_PRESENT &&
			    all != WS_ABSENT)
				all = found[k];
		if (all == WS_NOT_ASKED)
			continue;
		*at(&signs->asked, paths[i].at) = true;
		*at(&signs->seen, paths[i].at) = all == WS_PRESENT;
	}
}

/* ---- fields ---- */

struct openapi {
	const struct ws_json *routes, *schemas;
};

static const struct ws_json *follow(const struct openapi *o, const struct ws_json *schema)
{
	static const char prefix[] = "#/components/schemas/";
	const char *ref = ws_json_get_string(schema, "$ref", NULL);
	if (!ref)
		return schema;
	return strncmp(ref, prefix, sizeof prefix - 1) ?
	               NULL :
	               ws_json_get(o->schemas, ref + sizeof prefix - 1);
}

/* A schema may refer to itself, directly or through others: *left limits the search. */
static enum ws_presence look_up(const struct openapi *o, const struct ws_json *schema,
                                const char *name, int *left)
{
	static const char *const unions[] = { "anyOf", "allOf", "oneOf" };
	enum ws_presence found = WS_NOT_ASKED;
	if ((*left)-- <= 0 || !(schema = follow(o, schema)))
		return WS_NOT_ASKED;
	const struct ws_json *properties = ws_json_get(schema, "properties");
	if (ws_json_get(properties, name))
		return WS_PRESENT;
	if (ws_json_count(properties))
		found = WS_ABSENT;
	for (size_t u = 0; u < sizeof unions / sizeof *unions; u++) {
		const struct ws_json *s = ws_json_first(ws_json_get(schema, unions[u]));
		for (; s && *left > 0 && found != WS_PRESENT; s = ws_json_next(s)) {
			const enum ws_presence in = look_up(o, s, name, left);
			found = in > found ? in : found;
		}
	}
	return found;
}

static enum ws_presence find_field(const struct openapi *o, const char *path, const char *field)
{
	const struct ws_json *post = ws_json_get(ws_json_get(o->routes, path), "post");
	const struct ws_json *content = ws_json_get(ws_json_get(post, "requestBody"), "content");
	const struct ws_json *json = ws_json_get(content, "application/json");
	const struct ws_json *schema = ws_json_get(json, "schema");
	int left = MAX_SCHEMAS;
	return schema ? look_up(o, schema, field, &left) : WS_NOT_ASKED;
}

static bool has_parameter(const struct ws_json *operation, const char *name)
{
	const struct ws_json *p = ws_json_first(ws_json_get(operation, "parameters"));
	for (; p; p = ws_json_next(p))
		if (!strcmp(ws_json_get_string(p, "name", ""), name))
			return true;
	return false;
}

/* Sets flush_waits only if "timeout" is listed: an operation that lists no parameters may still
 * parse the query itself. */
static void find_flush_timeout(const struct openapi *o, struct ws_lineage_signs *signs)
{
	const struct ws_json *flush = ws_json_get(o->routes, "/flush_cache");
	if (has_parameter(ws_json_get(flush, "get"), "timeout") ||
	    has_parameter(ws_json_get(flush, "post"), "timeout"))
		signs->asked.flush_waits = signs->seen.flush_waits = true;
}

/* The field came with 0.5.15, the action "checksum" with 0.5.12. If the field is missing, version
 * and table decide: the server may be older, or may publish no fields. */
static void find_checksums(const struct openapi *o, struct ws_lineage_signs *signs)
{
	if (find_field(o, "/weights_checker", "allow_quant_error") == WS_PRESENT)
		signs->asked.checksums = signs->seen.checksums = true;
}

/* SGLang 0.4.6 and its neighbors take one tensor per request: {"name","dtype","shape"}. */
static void find_one_by_one(const struct openapi *o, struct ws_lineage_signs *signs)
{
	static const char path[] = "/update_weights_from_distributed";
	signs->one_by_one = find_field(o, path, "name") == WS_PRESENT &&
	                    find_field(o, path, "names") == WS_ABSENT;
}

int ws_lineage_read_openapi(const struct ws_json *root, const char *own_route,
                            struct ws_lineage_signs *signs)
{
	const struct openapi o = {
		.routes = ws_json_get(root, "paths"),
		.schemas = ws_json_get(ws_json_get(root, "components"), "schemas"),
	};
	enum ws_presence found[N_PATHS];
	if (ws_json_type(o.routes) != WS_JSON_OBJECT || !ws_json_get(o.routes, own_route))
		return -1;
	for (size_t i = 0; i < N_PATHS; i++)
		found[i] = ws_json_get(o.routes, paths[i].path) ? WS_PRESENT : WS_ABSENT;
	ws_lineage_sum_up(found, signs);
	for (size_t i = 0; i < sizeof bodies / sizeof *bodies; i++) {
		const enum ws_presence field = find_field(&o, bodies[i].path, bodies[i].field);
		if (field == WS_NOT_ASKED)
			continue;
		*at(&signs->asked, bodies[i].at) = true;
		*at(&signs->seen, bodies[i].at) = field == WS_PRESENT;
	}
	find_flush_timeout(&o, signs);
	find_checksums(&o, signs);
	find_one_by_one(&o, signs);
	return 0;
}
