/* SPDX-License-Identifier: Apache-2.0 */
/* serve_tensor.c - update_weights_from_tensor: the weights are in the request.
 *
 *   {"serialized_named_tensors":["<base64 of a pickle>", one per tensor-parallel rank],
 *    "load_format":"flattened_bucket", "flush_cache" (default true), "abort_all_requests",
 *    "weight_version"}
 *
 * Servers accept many forms; this endpoint accepts only flattened buckets (pickle.h). Their bytes
 * are in the request, or, if the endpoint has GPUs, in another process's GPU memory. Each rank
 * reads its own element, and all elements must have the same tensors. */
#include "base64.h"
#include "pickle_bucket.h"
#include "serve_gpu.h"
#include "serve_call.h"
#include "serve_fetch.h"
#include "serve_lineage.h"

#include <stdlib.h>
#include <string.h>

/* One rank's element. */
struct parcel {
	struct ws_buf pickle;
	struct ws_pickle_bucket bucket;
	uint8_t *fetched; /* bytes copied from a GPU; NULL: they are in the pickle */
};

struct parcels {
	struct ws_serve_update update; /* the first parcel owns the slots' strings */
	struct parcel *items;
	size_t n;
};

static void fini(struct parcels *all)
{
	for (size_t i = 0; i < all->n; i++) {
		ws_pickle_free(&all->items[i].bucket);
		free(all->items[i].fetched);
		ws_buf_free(&all->items[i].pickle);
	}
	free(all->items);
	ws_serve_update_fini(&all->update);
}

static int open_parcel(struct parcel *one, const char *text, struct ws_err *err)
{
	const size_t n = strlen(text);
	ws_buf_init(&one->pickle, n);
	return ws_base64_decode(&one->pickle, text, n, err) ||
	       ws_pickle_read(one->pickle.data, one->pickle.len, &one->bucket, err) ? -1 : 0;
}

static bool same_tensors(const struct ws_pickle_bucket *a, const struct ws_pickle_bucket *b)
{
	if (a->n != b->n || a->length != b->length)
		return false;
	for (size_t i = 0; i < a->n; i++) {
		const struct ws_pickle_tensor *x = &a->tensors[i], *y = &b->tensors[i];
		if (strcmp(x->name, y->name) != 0 || x->dtype != y->dtype ||
		    x->n_dims != y->n_dims ||
		    memcmp(x->dims, y->dims, x->n_dims * sizeof x->dims[0]) != 0)
			return false;
	}
	return true;
}

/* Fetches the bytes of all ranks, and checks that they are equal. */
static int fetch(struct ws_serve *s, struct parcels *all, struct ws_err *err)
{
	const struct ws_pickle_bucket *first = &all->items[0].bucket;
	for (size_t i = 0; i < all->n; i++) {
		struct parcel *one = &all->items[i];
		if (!one->bucket.bytes && ws_serve_ipc_fetch(s, &one->bucket, &one->fetched, err))
			return -1;
		if (one->fetched)
			one->bucket.bytes = one->fetched;
		if (i && memcmp(first->bytes, one->bucket.bytes, (size_t)first->length) != 0)
			return ws_err_set(err, WS_EINPUT,
			                  "rank %zu is sent other tensors than rank 0", i);
	}
	return 0;
}

static int open_parcels(const struct ws_serve *s, const struct ws_json *list, struct parcels *all,
                        struct ws_err *err)
{
	if (ws_json_count(list) != s->opts.tp)
		return ws_err_set(err, WS_EINPUT,
		                  "serialized_named_tensors has %zu elements for %u "
		                  "tensor-parallel ranks",
		                  ws_json_count(list), s->opts.tp);
	all->items = calloc(s->opts.tp, sizeof *all->items);
	if (!all->items)
		return ws_oom(err);
	for (const struct ws_json *node = ws_json_first(list); node; node = ws_json_next(node)) {
		struct parcel *one = &all->items[all->n++];
		if (open_parcel(one, ws_json_string(node), err))
			return -1;
		if (!same_tensors(&all->items[0].bucket, &one->bucket))
			return ws_err_set(err, WS_EINPUT,
			                  "rank %zu is sent other tensors than rank 0", all->n - 1);
	}
	return 0;
}

static int fill_slots(struct parcels *all, struct ws_err *err)
{
	const struct ws_pickle_bucket *b = &all->items[0].bucket;
	struct ws_serve_update *u = &all->update;
	u->slots = calloc(b->n + 1, sizeof *u->slots);
	if (!u->slots)
		return ws_oom(err);
	u->n = b->n;
	for (size_t i = 0; i < b->n; i++) {
		const struct ws_pickle_tensor *t = &b->tensors[i];
		struct ws_serve_slot *slot = &u->slots[i];
		*slot = (struct ws_serve_slot){ .name = t->name,
			                        .dtype_name = ws_dtype_torch(t->dtype),
			                        .n_dims = t->n_dims };
		memcpy(slot->dims, t->dims, sizeof slot->dims);
	}
	return 0;
}

/* In the scheduler. */
static void update(struct ws_serve_call *c, struct parcels *all)
{
	struct ws_serve *s = c->serve;
	struct ws_serve_update *u = &all->update;
	struct ws_err err = WS_ERR_INIT;
	if (!ws_serve_may_update(c) || !ws_serve_has_weights(c))
		return;
	int rc = ws_serve_check_update(s, u, &err) || fetch(s, all, &err) ? -1 : 0;
	void *bytes = (void *)(uintptr_t)all->items[0].bucket.bytes; /* only read */
	ws_serve_note_update(&c->note, u);
	if (rc == 0)
		rc = ws_serve_fetch_all(
			c, &(struct ws_serve_fetch){ ws_serve_fetch_bytes, bytes }, u, &err);
	ws_serve_ipc_fetched(s, rc || u->flush);
	if (rc)
		ws_serve_answer(c, false, "%s", err.msg);
	else
		ws_serve_finish_update(c, u, "Success");
}

/* Also called for refused requests, because this endpoint does not read them again. */
static void give_back(const struct ws_serve *s, const struct parcels *all)
{
	for (size_t i = 0; s->gpus && i < all->n; i++)
		ws_serve_give_back(&all->items[i].bucket.memory, s->opts.log);
}

/* WS_EUSAGE: a refusal by the web framework. */
static int decode(const struct ws_json *body, enum ws_serve_lineage lineage,
                  struct ws_serve_update *u, const struct ws_json **list, struct ws_err *err)
{
	static const char key[] = "serialized_named_tensors";
	*u = (struct ws_serve_update){ .group = "", .flush = true };
	if (ws_serve_field_list(body, key, true, list, err))
		return -1;
	for (const struct ws_json *node = ws_json_first(*list); node; node = ws_json_next(node))
		if (!ws_json_string(node))
			return ws_serve_field_invalid(err, key, "Input should be a valid string");
	return ws_serve_decode_options(body, lineage, WS_IN_ALL, u, err);
}

void ws_serve_route_tensor(struct ws_serve_call *c)
{
	struct parcels all = { 0 };
	const struct ws_json *list = NULL;
	struct ws_err err = WS_ERR_INIT;
	if (decode(c->body, c->serve->opts.lineage, &all.update, &list, &c->invalid))
		return;
	if (!all.update.flattened) {
		ws_serve_answer(c, false, "only load_format \"flattened_bucket\" is taken here");
	} else if (open_parcels(c->serve, list, &all, &err) || fill_slots(&all, &err)) {
		ws_serve_answer(c, false, "%s", err.msg);
	} else if (ws_serve_begin_update(c, all.update.abort_all)) {
		update(c, &all);
		ws_serve_end_update(c);
	}
	give_back(c->serve, &all);
	fini(&all);
}
