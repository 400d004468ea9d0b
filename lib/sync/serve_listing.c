/* SPDX-License-Identifier: Apache-2.0 */
/* serve_listing.c - the routes that tell what was received: names and shapes, and checksums.
 *
 * Checksums are XXH3-64 where upstream has a hash of its own and SHA-256; "algorithm" says so. */
#include "serve_core.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const char stops[] = "the endpoint stops";

static bool starts_with(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

static const char *query(const struct ws_serve_call *c, const char *key)
{
	return c->rq->query ? c->rq->query(c->rq->query_ctx, key) : NULL;
}

void ws_serve_route_list(struct ws_serve_call *c)
{
	const char *prefix = query(c, "prefix");
	const struct ws_serve_weights *w = &c->serve->weights;
	if (!ws_serve_occupy(c->serve, false)) {
		ws_serve_answer(c, false, stops);
		return;
	}
	size_t n = 0;
	for (size_t i = 0; i < w->n; i++)
		n += starts_with(w->items[i].name, prefix ? prefix : "");
	char message[64];
	snprintf(message, sizeof message, "Found %zu weights", n);
	struct ws_jw jw;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_bool(&jw, "success", true);
	ws_jw_str(&jw, "message", message);
	ws_jw_array(&jw, "weights");
	for (size_t i = 0; i < w->n; i++) {
		const struct ws_serve_weight *item = &w->items[i];
		if (!starts_with(item->name, prefix ? prefix : ""))
			continue;
		ws_jw_object(&jw, NULL);
		ws_jw_str(&jw, "name", item->name);
		ws_jw_array(&jw, "shape");
		for (unsigned d = 0; d < item->n_dims; d++)
			ws_jw_int(&jw, NULL, item->dims[d]);
		ws_jw_end_array(&jw);
		ws_jw_str(&jw, "dtype", ws_dtype_torch(item->dtype)); /* ours; servers do not tell */
		ws_jw_uint(&jw, "data_ptr", (uint64_t)(uintptr_t)item->data);
		ws_jw_end_object(&jw);
	}
	ws_jw_end_array(&jw);
	ws_jw_bool(&jw, "received", true); /* ours: what came, under the names it came by */
	ws_jw_end_object(&jw);
	ws_serve_vacate(c->serve);
}

/* What rank `tp_rank` holds. Rank 0's copy is read again: what counts is what is there now. */
static uint64_t hash_of(const struct ws_serve *s, const struct ws_serve_weight *item, unsigned tp_rank)
{
	if (tp_rank == 0 && s->opts.keep == WS_KEEP_MEMORY)
		return ws_hash64(item->data, item->data ? (size_t)item->bytes : 0);
	return item->hash;
}

static int compare_items(const void *a, const void *b)
{
	const struct ws_serve_weight *const *x = a, *const *y = b;
	return strcmp((*x)->name, (*y)->name);
}

/* The digest of one rank: over the names in order, each followed by its checksum. */
static uint64_t write_rank(struct ws_jw *jw, const struct ws_serve *s, unsigned tp_rank,
                           const struct ws_serve_weight *const *items, struct ws_hash *digest)
{
	ws_hash_reset(digest);
	ws_jw_object(jw, "checksums");
	for (size_t i = 0; i < s->weights.n; i++) {
		char hex[17];
		snprintf(hex, sizeof hex, "%016" PRIx64, hash_of(s, items[i], tp_rank));
		ws_jw_str(jw, items[i]->name, hex);
		ws_hash_add(digest, items[i]->name, strlen(items[i]->name));
		ws_hash_add(digest, hex, 16);
	}
	ws_jw_end_object(jw);
	return ws_hash_digest(digest);
}

static void write_parallelism(struct ws_jw *jw, const struct ws_serve *s, unsigned tp_rank)
{
	ws_jw_object(jw, "parallelism_info");
	ws_jw_uint(jw, "tp_rank", tp_rank);
	ws_jw_uint(jw, "tp_size", s->opts.tp);
	ws_jw_uint(jw, "dp_rank", 0);
	ws_jw_uint(jw, "dp_size", 1);
	ws_jw_uint(jw, "pp_rank", 0);
	ws_jw_uint(jw, "pp_size", 1);
	ws_jw_uint(jw, "rank", tp_rank);
	ws_jw_uint(jw, "size", s->opts.tp);
	ws_jw_end_object(jw);
}

static void write_checksums(struct ws_serve_call *c, const struct ws_serve_weight *const *items,
                            struct ws_hash *digest)
{
	const struct ws_serve *s = c->serve;
	uint64_t ranks[WS_SERVE_MAX_TP];
	struct ws_jw jw;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_bool(&jw, "success", true);
	ws_jw_str(&jw, "message", "Success.");
	ws_jw_str(&jw, "algorithm", "xxh3-64");
	ws_jw_array(&jw, "ranks");
	for (unsigned i = 0; i < s->opts.tp; i++) {
		ws_jw_object(&jw, NULL);
		ranks[i] = write_rank(&jw, s, i, items, digest);
		ws_jw_hex64(&jw, "per_gpu_checksum", ranks[i]);
		write_parallelism(&jw, s, i);
		ws_jw_end_object(&jw);
	}
	ws_jw_end_array(&jw);
	ws_jw_hex64(&jw, "per_engine_checksum", ws_hash64(ranks, s->opts.tp * sizeof ranks[0]));
	ws_jw_end_object(&jw);
}

static void answer_checksums(struct ws_serve_call *c)
{
	const struct ws_serve_weights *w = &c->serve->weights;
	struct ws_hash *digest = ws_hash_new();
	const struct ws_serve_weight **items = malloc((w->n + 1) * sizeof *items);
	if (digest && items) {
		for (size_t i = 0; i < w->n; i++)
			items[i] = &w->items[i];
		qsort(items, w->n, sizeof *items, compare_items);
		write_checksums(c, items, digest);
	} else {
		ws_serve_answer(c, false, "not enough memory");
	}
	free(items);
	ws_hash_free(digest);
}

void ws_serve_route_checker(struct ws_serve_call *c)
{
	const char *action = "checksum";
	struct ws_err err = WS_ERR_INIT;
	if (ws_serve_field_str(c->body, "action", false, &action, &err)) {
		ws_serve_answer_invalid(c, err.msg);
	} else if (strcmp(action, "checksum") != 0) {
		ws_serve_answer(c, false, "Unsupported action='%.40s'", action);
	} else if (c->serve->opts.keep == WS_KEEP_NONE) {
		ws_serve_answer(c, false, "this endpoint keeps nothing (--keep none)");
	} else if (!ws_serve_occupy(c->serve, false)) {
		ws_serve_answer(c, false, stops);
	} else {
		answer_checksums(c);
		ws_serve_vacate(c->serve);
	}
}
