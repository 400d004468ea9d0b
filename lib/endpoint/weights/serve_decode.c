/* SPDX-License-Identifier: Apache-2.0 */
/* serve_decode.c - decodes JSON bodies to requests, with the field sets, defaults
 * and messages of the servers.
 *
 * There are two kinds of refusal, as in the servers. A field that is missing or of the wrong type
 * is a validation error (WS_EUSAGE, answered by the web framework). A value that torch or the
 * loader cannot use is an exception in the scheduler (any other code, answered as success=false).
 * Unknown fields are ignored. */
#include "serve_decode.h"
#include "dims.h"
#include "serve_core.h"
#include "serve_http.h"
#include "serve_lineage.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

int ws_serve_field_list(const struct ws_json *body, const char *key, bool required,
                        const struct ws_json **out, struct ws_err *err)
{
	*out = ws_json_get(body, key);
	if (!*out && required)
		return ws_serve_field_missing(err, key);
	if (!required && ws_json_type(*out) == WS_JSON_NULL)
		*out = NULL;
	if (*out && ws_json_type(*out) != WS_JSON_ARRAY)
		return ws_serve_field_invalid(err, key, "Input should be a valid list");
	return 0;
}

/* ---- init_weights_update_group ---- */

int ws_serve_decode_init(const struct ws_json *body, struct ws_serve_init *out, struct ws_err *err)
{
	int64_t port = 0, offset = 0, size = 0;
	*out = (struct ws_serve_init){ .group = "weight_update_group", .backend = "nccl" };
	if (ws_serve_field_str(body, "master_address", true, &out->address, err) ||
	    ws_serve_field_int(body, "master_port", &port, err) ||
	    ws_serve_field_int(body, "rank_offset", &offset, err) ||
	    ws_serve_field_int(body, "world_size", &size, err) ||
	    ws_serve_field_str(body, "group_name", false, &out->group, err) ||
	    ws_serve_field_str(body, "backend", false, &out->backend, err))
		return -1;
	if (port < 1 || port > 65535)
		return ws_err_set(err, WS_EINPUT, "port out of range: %" PRId64, port);
	if (size < 2 || size > WS_SERVE_MAX_WORLD)
		return ws_err_set(err, WS_EINPUT, "world_size %" PRId64 " is not between 2 and %d",
		                  size, WS_SERVE_MAX_WORLD);
	if (offset < 1 || offset >= size)
		return ws_err_set(err, WS_EINPUT,
		                  "rank_offset %" PRId64 " is not between 1 and %" PRId64, offset,
		                  size - 1);
	out->port = (uint16_t)port;
	out->rank_offset = (unsigned)offset;
	out->world_size = (unsigned)size;
	return 0;
}

static int check_text(const char *what, const char *text, size_t most, struct ws_err *err)
{
	const size_t n = strlen(text);
	if (!n || n > most)
		return ws_err_set(err, WS_EINPUT, "%s must have 1 to %zu characters", what, most);
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)text[i] < 0x20 || text[i] == 0x7f)
			return ws_err_set(err, WS_EINPUT, "%s has a control or hidden character",
			                  what);
	return 0;
}

int ws_serve_check_init(const struct ws_serve *s, const struct ws_serve_init *in,
                        struct ws_err *err)
{
	if (check_text("master_address", in->address, 255, err) ||
	    check_text("group_name", in->group, 200, err))
		return -1;
	const bool nccl = strcmp(in->backend, "nccl") == 0;
	if (nccl && s->opts.backend != WS_SERVE_NCCL)
		return ws_err_set(err, WS_EINPUT, "Distributed package doesn't have NCCL built in");
	if (!nccl && strcmp(in->backend, "gloo") != 0)
		return ws_err_set(err, WS_EINPUT, "Invalid backend: '%.40s'", in->backend);
	if (in->rank_offset + s->opts.tp > in->world_size)
		return ws_err_set(err, WS_EINPUT,
		                  "rank_offset %u and %u tensor-parallel ranks exceed "
		                  "world_size %u",
		                  in->rank_offset, s->opts.tp, in->world_size);
	return 0;
}

/* ---- update_weights_from_distributed ---- */

static int decode_shape(const struct ws_json *node, size_t i, struct ws_serve_slot *slot,
                        struct ws_err *err)
{
	if (ws_json_type(node) != WS_JSON_ARRAY)
		return ws_err_set(err, WS_EUSAGE, "body.shapes.%zu: Input should be a valid list",
		                  i);
	slot->n_dims = 0;
	for (const struct ws_json *d = ws_json_first(node); d; d = ws_json_next(d)) {
		if (slot->n_dims == WS_MAX_DIMS)
			return ws_err_set(err, WS_EUSAGE,
			                  "body.shapes.%zu: List should have at most %d items", i,
			                  WS_MAX_DIMS);
		if (!ws_json_int(d, &slot->dims[slot->n_dims++]))
			return ws_err_set(err, WS_EUSAGE,
			                  "body.shapes.%zu.%u: Input should be a valid integer", i,
			                  slot->n_dims - 1);
	}
	return 0;
}

static int decode_slots(const struct ws_json *names, const struct ws_json *dtypes,
                        const struct ws_json *shapes, struct ws_serve_update *u, struct ws_err *err)
{
	const struct ws_json *name = ws_json_first(names), *dtype = ws_json_first(dtypes);
	const struct ws_json *shape = ws_json_first(shapes);
	for (size_t i = 0; i < u->n; i++) {
		struct ws_serve_slot *slot = &u->slots[i];
		slot->name = ws_json_string(name);
		slot->dtype_name = ws_json_string(dtype);
		if (!slot->name)
			return ws_err_set(err, WS_EUSAGE,
			                  "body.names.%zu: Input should be a valid string", i);
		if (!slot->dtype_name)
			return ws_err_set(err, WS_EUSAGE,
			                  "body.dtypes.%zu: Input should be a valid string", i);
		if (decode_shape(shape, i, slot, err))
			return -1;
		name = ws_json_next(name);
		dtype = ws_json_next(dtype);
		shape = ws_json_next(shape);
	}
	return 0;
}

int ws_serve_decode_lists(const struct ws_json *body, struct ws_serve_update *u, struct ws_err *err)
{
	const struct ws_json *names = NULL, *dtypes = NULL, *shapes = NULL;
	if (ws_serve_field_list(body, "names", true, &names, err) ||
	    ws_serve_field_list(body, "dtypes", true, &dtypes, err) ||
	    ws_serve_field_list(body, "shapes", true, &shapes, err))
		return -1;
	const size_t n = ws_json_count(names);
	/* Servers zip the lists and silently drop the rest. This endpoint reports the mistake. */
	if (ws_json_count(dtypes) != n || ws_json_count(shapes) != n)
		return ws_err_set(err, WS_EUSAGE,
		                  "body: names, dtypes and shapes differ in length: "
		                  "%zu, %zu and %zu",
		                  n, ws_json_count(dtypes), ws_json_count(shapes));
	u->slots = calloc(n ? n : 1, sizeof *u->slots);
	if (!u->slots)
		return ws_oom(err);
	u->n = n;
	return decode_slots(names, dtypes, shapes, u, err);
}

int ws_serve_decode_options(const struct ws_json *body, enum ws_serve_lineage lineage,
                            unsigned load_format, struct ws_serve_update *u, struct ws_err *err)
{
	if (ws_serve_field_bool(body, "flush_cache", &u->flush, err) ||
	    (ws_serve_in(lineage, WS_HAS_UPDATE_VERSION) &&
	     (ws_serve_field_bool(body, "abort_all_requests", &u->abort_all, err) ||
	      ws_serve_field_str(body, "weight_version", false, &u->version, err))) ||
	    (ws_serve_in(lineage, load_format) &&
	     ws_serve_field_str(body, "load_format", false, &u->load_format, err)))
		return -1;
	u->flattened = u->load_format && strcmp(u->load_format, "flattened_bucket") == 0;
	return 0;
}

/* Any load format but "flattened_bucket" is received tensor by tensor, without an error, as in the
 * servers. */
int ws_serve_decode_update(const struct ws_json *body, enum ws_serve_lineage lineage,
                           struct ws_serve_update *out, struct ws_err *err)
{
	*out = (struct ws_serve_update){ .group = "weight_update_group", .flush = true };
	if (ws_serve_field_str(body, "group_name", false, &out->group, err) ||
	    ws_serve_decode_options(body, lineage, WS_HAS_LOAD_FORMAT, out, err) ||
	    (ws_serve_in(lineage, WS_HAS_FREE_KV_CACHE) &&
	     ws_serve_field_bool(body, "free_kv_cache_before_recv", &out->free_kv_cache, err)) ||
	    ws_serve_decode_lists(body, out, err)) {
		ws_serve_update_fini(out);
		return -1;
	}
	return 0;
}

void ws_serve_update_fini(struct ws_serve_update *u)
{
	free(u->slots);
	u->slots = NULL;
	u->n = 0;
}

/* ---- refusals by torch ---- */

static bool torch_has(enum ws_serve_torch torch, enum ws_dtype dtype)
{
	if (ws_dtype_bits(dtype) % 8)
		return false;
	if (torch != WS_TORCH_1_13)
		return dtype != WS_DTYPE_F8_E8M0; /* an attribute from 2.7 on */
	switch (dtype) {
	case WS_DTYPE_F8_E4M3: case WS_DTYPE_F8_E5M2: case WS_DTYPE_F8_E8M0:
	case WS_DTYPE_F8_E4M3FNUZ: case WS_DTYPE_F8_E5M2FNUZ:
	case WS_DTYPE_U16: case WS_DTYPE_U32: case WS_DTYPE_U64:
		return false;
	default:
		return true;
	}
}

/* gloo sends bytes, but torch dispatches on the element type first, and supports only these. */
static bool gloo_has(enum ws_serve_torch torch, enum ws_dtype dtype)
{
	switch (dtype) {
	case WS_DTYPE_F16: case WS_DTYPE_F32: case WS_DTYPE_F64:
	case WS_DTYPE_U8: case WS_DTYPE_I8: case WS_DTYPE_I32: case WS_DTYPE_I64:
		return true;
	case WS_DTYPE_BF16: case WS_DTYPE_BOOL:
		return torch != WS_TORCH_1_13;
	default:
		return false;
	}
}

/* torch has no NCCL type for the other types. It sends FP8 as bytes. */
static bool nccl_has(enum ws_dtype dtype)
{
	return dtype != WS_DTYPE_I16 && dtype != WS_DTYPE_U16 && dtype != WS_DTYPE_U32 &&
	       dtype != WS_DTYPE_U64;
}

static int check_broadcast(const struct ws_serve *s, bool nccl, const struct ws_serve_slot *slot,
                           struct ws_err *err)
{
	if (nccl && !nccl_has(slot->dtype))
		return ws_err_set(err, WS_EINPUT,
		                  "Input tensor data type is not supported for NCCL process group: "
		                  "%.40s",
		                  slot->dtype_name);
	if (!nccl && !gloo_has(s->opts.torch, slot->dtype))
		return ws_err_set(err, WS_EINPUT, "Invalid scalar type");
	return 0;
}

static int check_slot(const struct ws_serve *s, const struct ws_serve_update *u,
                      struct ws_serve_slot *slot, struct ws_err *err)
{
	if (!ws_dtype_from_torch(slot->dtype_name, &slot->dtype) ||
	    !torch_has(s->opts.torch, slot->dtype))
		return ws_err_set(err, WS_EINPUT, "module 'torch' has no attribute '%.100s'",
		                  slot->dtype_name);
	for (unsigned d = 0; d < slot->n_dims; d++)
		if (slot->dims[d] < 0)
			return ws_err_set(
				err, WS_EINPUT,
				"Trying to create tensor with negative dimension %" PRId64,
				slot->dims[d]);
	if (!ws_dtype_bytes(slot->dtype, slot->n_dims, slot->dims, &slot->bytes))
		return ws_err_set(err, WS_EINPUT,
		                  "Storage size calculation overflowed for '%.200s'", slot->name);
	return u->flattened || u->from_files ? 0 : check_broadcast(s, u->nccl, slot, err);
}

static int compare_names(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static int check_distinct(const struct ws_serve_update *u, struct ws_err *err)
{
	const char **names = malloc((u->n ? u->n : 1) * sizeof *names);
	if (!names)
		return ws_oom(err);
	for (size_t i = 0; i < u->n; i++)
		names[i] = u->slots[i].name;
	qsort(names, u->n, sizeof *names, compare_names);
	int rc = 0;
	for (size_t i = 1; i < u->n && !rc; i++)
		if (strcmp(names[i - 1], names[i]) == 0)
			rc = ws_err_set(err, WS_EINPUT, "'%.200s' is named twice in one request",
			                names[i]);
	free(names);
	return rc;
}

int ws_serve_check_update(const struct ws_serve *s, struct ws_serve_update *u, struct ws_err *err)
{
	u->bytes = 0;
	for (size_t i = 0; i < u->n; i++) {
		if (check_slot(s, u, &u->slots[i], err))
			return -1;
		/* Each term is below 2^62. */
		if (u->bytes + u->slots[i].bytes >= UINT64_C(1) << 62)
			return ws_err_set(err, WS_EINPUT, "Storage size calculation overflowed");
		u->bytes += u->slots[i].bytes;
	}
	return check_distinct(u, err);
}

/* ---- refusals by the loader ---- */

int ws_serve_check_views(const struct ws_serve_update *u, struct ws_err *err)
{
	uint64_t at = 0;
	for (size_t i = 0; i < u->n; i++) {
		const unsigned size = ws_dtype_bits(u->slots[i].dtype) / 8;
		if (at % size)
			return ws_err_set(err, WS_EINPUT,
			                  "self.storage_offset() must be divisible by %u to view "
			                  "Byte as %s (different element sizes), but got %" PRIu64,
			                  size, u->slots[i].dtype_name, at);
		at += u->slots[i].bytes;
	}
	return 0;
}

static int check_same(const struct ws_serve_weight *have, const struct ws_serve_slot *slot,
                      struct ws_err *err)
{
	if (have->n_dims == slot->n_dims &&
	    memcmp(have->dims, slot->dims, slot->n_dims * sizeof slot->dims[0]) == 0)
		return 0;
	char old[160], new[160];
	return ws_err_set(err, WS_EINPUT,
	                  "shape mismatch for '%.200s': the parameter is %s %s, the loaded "
	                  "weight is %s %s",
	                  slot->name, ws_dtype_torch(have->dtype),
	                  ws_dims_text(old, sizeof old, have->n_dims, have->dims),
	                  ws_dtype_torch(slot->dtype),
	                  ws_dims_text(new, sizeof new, slot->n_dims, slot->dims));
}

int ws_serve_check_load(const struct ws_serve *s, const struct ws_serve_update *u,
                        struct ws_err *err)
{
	if (u->flattened && ws_serve_check_views(u, err))
		return -1;
	for (size_t i = 0; i < u->n; i++) {
		const struct ws_serve_weight *have =
			ws_serve_weights_find(&s->weights, u->slots[i].name);
		if (have && !s->model && check_same(have, &u->slots[i], err))
			return -1;
	}
	return 0;
}
