/* SPDX-License-Identifier: Apache-2.0 */
/* serve_disk.c - update_weights_from_disk: the request names a checkpoint
 * that the endpoint can read.
 *
 *   {"model_path","load_format","flush_cache" (default true),"abort_all_requests","weight_version"}
 *   answered by {"success","message","num_paused_requests"}
 *
 * The whole checkpoint is loaded, under its own names. If it cannot be opened, nothing
 * changes. After a load, the endpoint reports the checkpoint's path as its model path and
 * served name. */
#include "hash.h"
#include "serve_call.h"
#include "serve_fetch.h"
#include "serve_lineage.h"
#include "serve_model.h"

#include "wsync/tool/source.h"

#include <stdlib.h>
#include <string.h>

enum { PIECE = 1 << 20 };

/* Loads one tensor, piece by piece. */
static int fetch_tensor(struct ws_serve *s, const struct ws_source *source,
                        struct ws_serve_update *u, size_t i, uint8_t *piece, struct ws_hash *hash,
                        struct ws_err *err)
{
	const struct ws_tensor *t = ws_source_tensor(source, i);
	ws_hash_reset(hash);
	for (uint64_t at = 0; at < t->bytes; at += PIECE) {
		const size_t n = t->bytes - at < PIECE ? (size_t)(t->bytes - at) : PIECE;
		if (ws_source_read(source, t, at, piece, n, err))
			return -1;
		ws_serve_put(s, u, i, at, piece, n);
		ws_hash_add(hash, piece, n);
	}
	u->slots[i].hash = ws_hash_digest(hash);
	return 0;
}

/* Applies a fault when half of the tensors are loaded. */
static int strike(struct ws_serve *s, const struct ws_serve_update *u, struct ws_err *err)
{
	if (u->fault == WS_FAULT_DIE)
		ws_serve_die(s);
	return ws_serve_fault_ends(u->fault) ?
	       ws_err_set(err, WS_EDATA, "struck by a fault") : 0;
}

/* The `fetch` of a struct ws_serve_fetch. */
static int fetch_checkpoint(struct ws_serve *s, void *ctx, struct ws_serve_update *u, bool keep,
                            struct ws_err *err)
{
	const struct ws_source *source = ctx;
	uint8_t *piece = malloc(PIECE);
	struct ws_hash *hash = ws_hash_new();
	int rc = piece && hash ? 0 : ws_oom(err);
	for (size_t i = 0; keep && rc == 0 && i < u->n; i++) {
		if (i == u->n / 2)
			rc = strike(s, u, err);
		if (rc == 0)
			rc = fetch_tensor(s, source, u, i, piece, hash, err);
	}
	ws_hash_free(hash);
	free(piece);
	return rc;
}

static int fill_slots(const struct ws_source *source, struct ws_serve_update *u, struct ws_err *err)
{
	const size_t n = ws_source_count(source);
	u->slots = calloc(n + 1, sizeof *u->slots);
	if (!u->slots)
		return ws_oom(err);
	u->n = n;
	for (size_t i = 0; i < n; i++) {
		const struct ws_tensor *t = ws_source_tensor(source, i);
		struct ws_serve_slot *slot = &u->slots[i];
		*slot = (struct ws_serve_slot){ .name = t->name,
			                        .dtype_name = ws_dtype_torch(t->dtype),
			                        .n_dims = t->n_dims };
		memcpy(slot->dims, t->dims, sizeof slot->dims);
	}
	u->from_files = true;
	return 0;
}

/* These formats load a checkpoint. Servers' other loaders invent weights, or read elsewhere. */
static bool has_loader(const char *format)
{
	return !format || strcmp(format, "auto") == 0 || strcmp(format, "safetensors") == 0;
}

int ws_serve_load_checkpoint(struct ws_serve_call *c, struct ws_serve_update *u,
                             const struct ws_source *source, struct ws_err *err)
{
	int rc = fill_slots(source, u, err);
	if (rc == 0)
		rc = ws_serve_check_update(c->serve, u, err);
	ws_serve_note_update(&c->note, u);
	if (rc == 0)
		rc = ws_serve_fetch_all(
			c,
			&(struct ws_serve_fetch){ fetch_checkpoint, (void *)(uintptr_t)source }, u,
			err);
	return rc;
}

/* In the scheduler. */
static void update(struct ws_serve_call *c, struct ws_serve_update *u, const char *path)
{
	struct ws_serve *s = c->serve;
	struct ws_source *source = NULL;
	struct ws_err err = WS_ERR_INIT;
	if (!ws_serve_has_weights(c))
		return;
	if (!has_loader(u->load_format)) {
		ws_serve_answer(c, false, "Failed to get model loader: load_format=%.100s.",
		                u->load_format);
		return;
	}
	int rc = ws_source_open(&path, 1, &source, &err);
	if (rc) {
		ws_serve_answer(c, false, "Failed to get weights iterator: %s.", err.msg);
		return;
	}
	rc = ws_serve_load_checkpoint(c, u, source, &err);
	if (rc == 0)
		rc = ws_serve_set_text(s, &s->model_path, path, &err) ||
		     ws_serve_set_text(s, &s->served_model_name, path, &err) ? -1 : 0;
	c->rp->drop = rc && ws_serve_fault_ends(u->fault);
	if (rc)
		ws_serve_answer(c, false, "Failed to update weights: %s.", err.msg);
	else
		ws_serve_finish_update(c, u, "Succeeded to update model weights.");
	ws_serve_update_fini(u);
	ws_source_close(source);
}

void ws_serve_route_disk(struct ws_serve_call *c)
{
	struct ws_serve_update u = { .group = "", .flush = true, .fault = c->fault };
	const char *path = NULL;
	c->counts_paused = true;
	if (ws_serve_field_str(c->body, "model_path", true, &path, &c->invalid) ||
	    ws_serve_decode_options(c->body, c->serve->opts.lineage, WS_IN_ALL, &u, &c->invalid) ||
	    !ws_serve_begin_update(c, u.abort_all))
		return;
	update(c, &u, path);
	ws_serve_end_update(c);
}
