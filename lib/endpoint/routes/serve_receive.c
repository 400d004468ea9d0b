/* SPDX-License-Identifier: Apache-2.0 */
/* serve_receive.c - receive_weights of xorl-legacy: everything in one request.
 *
 * Tensors are received by blocking broadcasts, one at a time in the order of the list, then loaded
 * in one call. Only a few types are supported. The cache is flushed only on request. */
#include "serve_call.h"
#include "serve_group.h"
#include "serve_fetch.h"

#include <stdio.h>

static int check_types(const struct ws_serve_update *all, struct ws_err *err)
{
	static const char *const known[] = { "float32", "float16", "bfloat16",
		                             "int8",    "int32",   "int64" };
	const size_t n = sizeof known / sizeof known[0];
	for (size_t i = 0; i < all->n; i++)
		if (ws_serve_find_word(known, n, all->slots[i].dtype_name) == n)
			return ws_err_set(err, WS_EINPUT, "Unknown dtype: %.100s",
			                  all->slots[i].dtype_name);
	return 0;
}

static int receive_each(struct ws_serve *s, struct ws_serve_group *g,
                        const struct ws_serve_update *all, const struct ws_serve_call *c,
                        struct ws_err *err)
{
	const ws_deadline until = ws_deadline_in(s->opts.receive_ns);
	for (size_t i = 0; i < all->n; i++) {
		struct ws_serve_update one = *all;
		one.slots = &all->slots[i];
		one.n = 1;
		one.bytes = one.slots->bytes;
		one.fault = i == all->n / 2 ? c->fault : WS_FAULT_NONE;
		if (ws_serve_group_receive(g, &one, true, until, err))
			return -1;
	}
	return 0;
}

/* In the scheduler. */
static void receive(struct ws_serve_call *c, struct ws_serve_buckets *b)
{
	struct ws_serve *s = c->serve;
	struct ws_serve_update *all = &b->all;
	struct ws_err err = WS_ERR_INIT;
	if (!ws_serve_has_weights(c))
		return;
	struct ws_serve_group *g = ws_serve_named_group(c, all->group);
	if (!g || !ws_serve_may_free_kv(c, all->free_kv_cache))
		return;
	all->nccl = g->nccl;
	int rc = check_types(all, &err);
	if (rc == 0)
		rc = ws_serve_stage_buckets(s, b, &err);
	ws_serve_note_update(&c->note, all);
	if (rc == 0)
		rc = receive_each(s, g, all, c, &err);
	c->rp->drop = rc && ws_serve_fault_ends(c->fault);
	if (rc == 0)
		rc = ws_serve_fetch_all(
			c, &(struct ws_serve_fetch){ ws_serve_fetch_bytes, b->block }, all, &err);
	char text[64];
	snprintf(text, sizeof text, "Received and applied %zu weights", all->n);
	if (rc)
		ws_serve_answer(c, false, "%s", err.msg);
	else
		ws_serve_finish_update(c, all, text);
}

static int decode(const struct ws_json *body, struct ws_serve_buckets *b, struct ws_err *err)
{
	static const char *const required[] = { "num_buckets", "buckets" };
	bool recapture = true;
	for (size_t i = 0; i < 2; i++)
		if (!ws_json_get(body, required[i]))
			return ws_err_set(err, WS_EUSAGE, "body.%s: Field required", required[i]);
	if (ws_serve_decode_buckets(body, b, err))
		return -1;
	struct ws_serve_update *all = &b->all;
	all->load_format = NULL; /* there is no such field */
	all->flattened = false;
	all->flush = false;
	return ws_serve_field_bool(body, "flush_cache", &all->flush, err) ||
	       ws_serve_field_bool(body, "free_kv_cache_before_recv", &all->free_kv_cache, err) ||
	       ws_serve_field_bool(body, "recapture_cuda_graph", &recapture, err) ? -1 : 0;
}

void ws_serve_route_receive(struct ws_serve_call *c)
{
	struct ws_serve_buckets b = { 0 };
	if (decode(c->body, &b, &c->invalid) == 0 && ws_serve_begin_update(c, false)) {
		receive(c, &b);
		ws_serve_end_update(c);
	}
	ws_serve_buckets_fini(&b);
}
