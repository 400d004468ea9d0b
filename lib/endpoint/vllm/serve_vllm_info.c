/* SPDX-License-Identifier: Apache-2.0 */
/* serve_vllm_info.c - init_info and update_info: keyword arguments of Python dataclasses, so an
 * unknown key is an error, and a missing one too.
 *
 *   init_info     master_address, master_port, rank_offset, world_size; from 0.28 on packed,
 *                 packed_buffer_size_bytes, packed_num_buffers; from 0.30 on nccl_unique_id_b64
 *                 instead of the first two
 *   update_info   names, dtype_names, shapes; before 0.28 packed, packed_buffer_size_bytes,
 *                 packed_num_buffers; 0.20 is_checkpoint_format; 0.24 update_kind,
 *                 num_updates_list
 *
 * Of the engine "ipc":
 *
 *   init_info     nothing; from 0.27 on packed
 *   update_info   names, dtype_names, shapes, ipc_handles_pickled; from 0.22 on tensor_sizes; from
 *                 0.22 to 0.26 packed */
#include "serve_vllm.h"

#include "serve_lineage.h"

#include "base64.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { OPTIONAL = 0, FROM_0_20_TO_0_27 = WS_IN_VLLM & ~WS_IN_VLLM_0_33 };
static const uint64_t DEFAULT_LIMIT = UINT64_C(1) << 30;

struct key {
	const char *name;
	unsigned lineages, required; /* sets */
};

static const struct key init_keys[] = {
	{ "master_address", WS_IN_VLLM, FROM_0_20_TO_0_27 },
	{ "master_port", WS_IN_VLLM, FROM_0_20_TO_0_27 },
	{ "rank_offset", WS_IN_VLLM, WS_IN_VLLM },
	{ "world_size", WS_IN_VLLM, WS_IN_VLLM },
	{ "nccl_unique_id_b64", WS_IN_VLLM_0_33, OPTIONAL },
	{ "packed", WS_IN_VLLM_0_33, OPTIONAL },
	{ "packed_buffer_size_bytes", WS_IN_VLLM_0_33, OPTIONAL },
	{ "packed_num_buffers", WS_IN_VLLM_0_33, OPTIONAL },
	{ NULL, 0, 0 },
};
static const struct key update_keys[] = {
	{ "names", WS_IN_VLLM, FROM_0_20_TO_0_27 },
	{ "dtype_names", WS_IN_VLLM, FROM_0_20_TO_0_27 },
	{ "shapes", WS_IN_VLLM, FROM_0_20_TO_0_27 },
	{ "packed", FROM_0_20_TO_0_27, OPTIONAL },
	{ "packed_buffer_size_bytes", FROM_0_20_TO_0_27, OPTIONAL },
	{ "packed_num_buffers", FROM_0_20_TO_0_27, OPTIONAL },
	{ "is_checkpoint_format", WS_IN_VLLM_0_20, OPTIONAL },
	{ "update_kind", WS_IN_VLLM_0_24, OPTIONAL },
	{ "num_updates_list", WS_IN_VLLM_0_24, OPTIONAL },
	{ NULL, 0, 0 },
};

static const struct key ipc_init_keys[] = {
	{ "packed", WS_IN_VLLM_0_27 | WS_IN_VLLM_0_33, OPTIONAL },
	{ NULL, 0, 0 },
};
static const struct key ipc_update_keys[] = {
	{ "names", WS_IN_VLLM, WS_IN_VLLM },
	{ "dtype_names", WS_IN_VLLM, WS_IN_VLLM },
	{ "shapes", WS_IN_VLLM, WS_IN_VLLM },
	{ "ipc_handles_pickled", WS_IN_VLLM, OPTIONAL },
	{ "tensor_sizes", WS_IN_VLLM & ~WS_IN_VLLM_0_20, OPTIONAL },
	{ "packed", WS_IN_VLLM_0_24, OPTIONAL },
	{ "is_checkpoint_format", WS_IN_VLLM_0_20, OPTIONAL },
	{ "update_kind", WS_IN_VLLM_0_24, OPTIONAL },
	{ "num_updates_list", WS_IN_VLLM_0_24, OPTIONAL },
	{ NULL, 0, 0 },
};

/* One of the two dataclasses of an engine. */
struct cls {
	const char *what, *engine, *name;
	const struct key *keys;
};
static const struct cls init_cls = { "init_info", "NCCL", "NCCLWeightTransferInitInfo",
	                             init_keys };
static const struct cls update_cls = { "update_info", "NCCL", "NCCLWeightTransferUpdateInfo",
	                               update_keys };
static const struct cls ipc_init_cls = { "init_info", "IPC", "IPCWeightTransferInitInfo",
	                                 ipc_init_keys };
static const struct cls ipc_update_cls = { "update_info", "IPC", "IPCWeightTransferUpdateInfo",
	                                   ipc_update_keys };

static int refuse(const struct cls *cls, const char *why, struct ws_err *err)
{
	return ws_err_set(err, WS_EINPUT, "Invalid %s for %sWeightTransferEngine: %s", cls->what,
	                  cls->engine, why);
}

static bool has_key(const struct cls *cls, const char *name, unsigned lineages)
{
	for (const struct key *k = cls->keys; k->name; k++)
		if ((k->lineages & lineages) && strcmp(k->name, name) == 0)
			return true;
	return false;
}

/* "'a'", "'a' and 'b'", "'a', 'b', and 'c'", as Python says it. */
static void list_missing(struct ws_buf *out, const char *const *names, size_t n)
{
	for (size_t i = 0; i < n; i++)
		ws_buf_printf(out, "%s'%s'",
		              i == 0     ? "" :
		              i + 1 < n  ? ", " :
		              n == 2     ? " and " : ", and ",
		              names[i]);
}

static int check_keys(const struct cls *cls, const struct ws_json *info, unsigned lineage,
                      struct ws_err *err)
{
	const char *missing[8];
	size_t n = 0;
	struct ws_buf text;
	ws_buf_init(&text, 0);
	for (const struct ws_json *m = ws_json_first(info); m && !text.len; m = ws_json_next(m))
		if (!has_key(cls, ws_json_key(m), lineage))
			ws_buf_printf(&text,
			              "%s.__init__() got an unexpected keyword argument '%.200s'",
			              cls->name, ws_json_key(m));
	for (const struct key *k = cls->keys; k->name && !text.len; k++)
		if ((k->required & lineage) && !ws_json_get(info, k->name))
			missing[n++] = k->name;
	if (n) {
		ws_buf_printf(&text, "%s.__init__() missing %zu required %s argument%s: ",
		              cls->name, n,
		              lineage & WS_IN_VLLM_0_33 ? "keyword-only" : "positional",
		              n > 1 ? "s" : "");
		list_missing(&text, missing, n);
	}
	const int rc = text.len ? refuse(cls, ws_buf_str(&text), err) : 0;
	ws_buf_free(&text);
	return rc;
}

static bool is_given(const struct ws_json *node)
{
	return node && ws_json_type(node) != WS_JSON_NULL;
}

/* Python's bool(). */
static bool is_true(const struct ws_json *node)
{
	int64_t number = 0;
	if (ws_json_type(node) == WS_JSON_BOOL)
		return ws_json_bool(node, false);
	if (ws_json_type(node) == WS_JSON_NUMBER)
		return !ws_json_int(node, &number) || number != 0;
	return is_given(node);
}

static int read_packing(const struct ws_json *info, bool *packed, uint64_t *limit,
                        struct ws_err *err)
{
	const struct ws_json *size = ws_json_get(info, "packed_buffer_size_bytes");
	int64_t bytes = (int64_t)DEFAULT_LIMIT;
	if (size && (!ws_json_int(size, &bytes) || bytes < 0))
		return ws_err_set(err, WS_EINPUT,
		                  "packed_buffer_size_bytes: wsync-endpoint wants a number of "
		                  "bytes");
	*packed = is_true(ws_json_get(info, "packed"));
	*limit = (uint64_t)bytes;
	return 0;
}

/* ---- init_info ---- */

static int read_id(const char *text, struct ws_serve_vllm_init *out, struct ws_err *err)
{
	static const char ctx[] = "NCCLWeightTransferInitInfo";
	struct ws_err why = WS_ERR_INIT;
	struct ws_buf id;
	ws_buf_init(&id, 0);
	int rc = ws_base64_decode(&id, text, strlen(text), &why);
	if (rc)
		ws_err_set(err, WS_EINPUT,
		           "%s: nccl_unique_id_b64 is not valid standard base64 (URL-safe base64 "
		           "is not accepted)", ctx);
	else if (id.len != sizeof out->id)
		rc = ws_err_set(err, WS_EINPUT,
		                "%s: nccl_unique_id_b64 must decode to %zu bytes, got %zu", ctx,
		                sizeof out->id, id.len);
	else
		memcpy(out->id, id.data, sizeof out->id);
	ws_buf_free(&id);
	out->group.nccl_id = out->id;
	return rc;
}

static int read_rendezvous(const struct ws_json *info, struct ws_serve_vllm_init *out,
                           struct ws_err *err)
{
	static const char ctx[] = "NCCLWeightTransferInitInfo";
	const struct ws_json *address = ws_json_get(info, "master_address");
	const struct ws_json *port = ws_json_get(info, "master_port");
	const char *id = ws_json_get_string(info, "nccl_unique_id_b64", NULL);
	int64_t number = 0;
	if (id && *id && (is_given(address) || is_given(port)))
		return ws_err_set(err, WS_EINPUT,
		                  "%s: pass nccl_unique_id_b64 OR master_address/master_port, not "
		                  "both", ctx);
	if (id && *id)
		return read_id(id, out, err);
	if (!is_given(address) || !is_given(port))
		return ws_err_set(err, WS_EINPUT,
		                  "%s: need nccl_unique_id_b64, or both master_address and "
		                  "master_port (got master_address=%s, master_port=%s)", ctx,
		                  is_given(address) ? "'...'" : "None",
		                  is_given(port) ? "..." : "None");
	out->group.address = ws_json_string(address);
	if (!out->group.address)
		return ws_err_set(err, WS_EINPUT, "master_address must be a string");
	if (!ws_json_int(port, &number) || number < 1 || number > 65535)
		return ws_err_set(err, WS_EINPUT, "port out of range");
	out->group.port = (uint16_t)number;
	return 0;
}

int ws_serve_vllm_read_init(const struct ws_serve *s, const struct ws_json *info,
                            struct ws_serve_vllm_init *out, struct ws_err *err)
{
	int64_t offset = 0, size = 0;
	*out = (struct ws_serve_vllm_init){
		.group = { .group = ws_serve_vllm_group, .address = "127.0.0.1", .vllm = true,
		           .backend = s->opts.backend == WS_SERVE_NCCL ? "nccl" : "gloo" }
	};
	if (check_keys(&init_cls, info, 1u << s->opts.lineage, err) ||
	    read_rendezvous(info, out, err) || read_packing(info, &out->packed, &out->limit, err))
		return -1;
	if (!ws_json_int(ws_json_get(info, "rank_offset"), &offset) ||
	    !ws_json_int(ws_json_get(info, "world_size"), &size))
		return ws_err_set(err, WS_EINPUT, "rank_offset and world_size must be integers");
	if (size < 2 || size > WS_SERVE_MAX_WORLD || offset < 1 || offset >= size)
		return ws_err_set(err, WS_EINPUT,
		                  "rank_offset %" PRId64 " in a world of %" PRId64
		                  ": wsync-endpoint wants ranks after the trainer's 0",
		                  offset, size);
	out->group.rank_offset = (unsigned)offset;
	out->group.world_size = (unsigned)size;
	return 0;
}

int ws_serve_vllm_read_ipc_init(const struct ws_serve *s, const struct ws_json *info, bool *packed,
                                struct ws_err *err)
{
	if (check_keys(&ipc_init_cls, info, 1u << s->opts.lineage, err))
		return -1;
	*packed = is_true(ws_json_get(info, "packed"));
	return 0;
}

/* ---- update_info ---- */

static int read_shape(const struct ws_json *node, struct ws_serve_slot *slot, struct ws_err *err)
{
	for (const struct ws_json *d = ws_json_first(node); d; d = ws_json_next(d)) {
		if (slot->n_dims == WS_MAX_DIMS)
			return ws_err_set(err, WS_EINPUT,
			                  "wsync-endpoint supports at most %d dimensions",
			                  WS_MAX_DIMS);
		if (!ws_json_int(d, &slot->dims[slot->n_dims++]))
			return ws_err_set(err, WS_EINPUT,
			                  "empty(): argument 'size' must be tuple of ints");
	}
	return 0;
}

static int fill_slots(const struct ws_json *names, const struct ws_json *dtypes,
                      const struct ws_json *shapes, struct ws_serve_update *u, struct ws_err *err)
{
	const struct ws_json *name = ws_json_first(names), *dtype = ws_json_first(dtypes);
	const struct ws_json *shape = ws_json_first(shapes);
	for (size_t i = 0; i < u->n; i++) {
		struct ws_serve_slot *slot = &u->slots[i];
		slot->name = ws_json_string(name);
		slot->dtype_name = ws_json_string(dtype);
		if (!slot->name || !slot->dtype_name)
			return ws_err_set(err, WS_EINPUT, "attribute name must be string, not '%s'",
			                  slot->name ? "int" : "NoneType");
		if (read_shape(shape, slot, err))
			return -1;
		name = ws_json_next(name);
		dtype = ws_json_next(dtype);
		shape = ws_json_next(shape);
	}
	return 0;
}

static int read_lists(const struct ws_json *info, struct ws_serve_update *u, struct ws_err *err)
{
	static const char *const keys[] = { "names", "dtype_names", "shapes" };
	const struct ws_json *lists[3];
	for (size_t i = 0; i < 3; i++) {
		lists[i] = ws_json_get(info, keys[i]);
		if (lists[i] && ws_json_type(lists[i]) != WS_JSON_ARRAY)
			return refuse(&update_cls, "object of type 'int' has no len()", err);
	}
	u->n = ws_json_count(lists[0]);
	for (size_t i = 1; i < 3; i++)
		if (ws_json_count(lists[i]) != u->n)
			return ws_err_set(err, WS_EINPUT,
			                  "`%s` should be of the same size as `names`: got %zu and "
			                  "%zu", keys[i], ws_json_count(lists[i]), u->n);
	u->slots = calloc(u->n + 1, sizeof *u->slots);
	if (!u->slots)
		return ws_oom(err);
	return fill_slots(lists[0], lists[1], lists[2], u, err);
}

static int check_kind(const struct ws_json *info, struct ws_err *err)
{
	const struct ws_json *format = ws_json_get(info, "is_checkpoint_format");
	if (strcmp(ws_json_get_string(info, "update_kind", "dense"), "dense") != 0)
		return ws_err_set(err, WS_EINPUT,
		                  "Sparse weight updates require "
		                  "`start_weight_update(is_checkpoint_format=False)`.");
	if (format && !is_true(format))
		return ws_err_set(err, WS_EINPUT,
		                  "wsync-endpoint loads only the checkpoint format");
	return 0;
}

static int read_ipc_update(const struct ws_serve *s, const struct ws_json *info,
                           struct ws_serve_update *u, bool *packed, struct ws_err *err)
{
	if (check_keys(&ipc_update_cls, info, 1u << s->opts.lineage, err) ||
	    read_lists(info, u, err))
		return -1;
	if (s->opts.lineage == WS_SERVE_VLLM_0_20)
		*packed = false;
	if (s->opts.lineage == WS_SERVE_VLLM_0_24)
		*packed = is_true(ws_json_get(info, "packed"));
	if (!ws_json_string(ws_json_get(info, "ipc_handles_pickled")))
		return ws_err_set(err, WS_EINPUT,
		                  "Either `ipc_handles` or `ipc_handles_pickled` must be "
		                  "provided");
	if (*packed && ws_json_count(ws_json_get(info, "tensor_sizes")) != u->n)
		return ws_err_set(err, WS_EINPUT, "`tensor_sizes` is required when packed=True");
	return check_kind(info, err);
}

int ws_serve_vllm_read_update(const struct ws_serve *s, const struct ws_json *info,
                              struct ws_serve_update *u, bool *packed, uint64_t *limit,
                              struct ws_err *err)
{
	*u = (struct ws_serve_update){ .group = ws_serve_vllm_group };
	if (s->opts.backend == WS_SERVE_IPC)
		return read_ipc_update(s, info, u, packed, err);
	if (check_keys(&update_cls, info, 1u << s->opts.lineage, err) || read_lists(info, u, err) ||
	    (s->opts.lineage != WS_SERVE_VLLM_0_33 && read_packing(info, packed, limit, err)))
		return -1;
	return check_kind(info, err);
}
