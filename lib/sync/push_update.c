/* SPDX-License-Identifier: Apache-2.0 */
/* push_update.c - /update_weights_from_distributed: a request for each bucket, which the server answers
 * when it has received and loaded it.
 *
 *   {"names":[..],"dtypes":[..],"shapes":[[..],..],"group_name","flush_cache","abort_all_requests",
 *    "weight_version" (last bucket only),"load_format":"flattened_bucket" (or absent)}
 *
 * flush_cache is written into every request, because servers flush when it is absent. */
#include "push_protocol.h"

#include <stdio.h>

static void write_body(const struct ws_push *p, struct ws_jw *w, const struct push_bucket *k)
{
	push_write_tensors(w, p->plan, k->b);
	ws_jw_str(w, "group_name", ws_group_name(p->group));
	ws_jw_bool(w, "flush_cache", k->flush);
	ws_jw_bool(w, "abort_all_requests", false);
	/* A version that is to be believed comes after the verification (push_set_version). */
	if (k->last && p->weight_version && p->opts.verify != WS_VERIFY_HASH)
		ws_jw_str(w, "weight_version", p->weight_version);
	if (p->plan->format == WS_FORMAT_FLATTENED)
		ws_jw_str(w, "load_format", "flattened_bucket");
}

/* After the last bucket an endpoint that agreed has everything; before, whoever was sent something has a
 * mixture, unless it refused the very first request before a byte had left. Where our own bytes could not
 * be had, what was begun was filled up with others, and nobody who agrees knows. */
static void judge(struct ws_push *p, const struct push_request *r, const struct push_bucket *k,
                  enum ws_code wire)
{
	const bool genuine = wire != WS_EINPUT && wire != WS_ESYSTEM;
	const struct ws_transport *t = ws_group_transport(p->group);
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->endpoints[i];
		const struct ws_err *said = &p->errs[i];
		if (said->code == WS_OK) {
			if (k->last && genuine)
				e->state = WS_COMMITTED;
		} else if (k->b == 0 && said->code == WS_EREFUSED && t->ops->sent(t, NULL) == p->sent_base) {
			e->state = e->before;
		}
		e->lost = said->code == WS_EREACH;
		snprintf(e->message, sizeof e->message, "%.255s",
		         said->code == WS_OK ? r->messages[i] : said->msg);
	}
}

static int move_bucket(struct ws_push *p, const struct push_bucket *k, struct ws_err *err)
{
	struct push_request r;
	enum ws_code wire = WS_OK;
	int rc = push_request_open(p, &r, "/update_weights_from_distributed", err);
	if (rc == 0) {
		r.changes = true;
		write_body(p, &r.w, k);
		rc = push_move(p, &r, k, &wire, err);
	}
	if (r.over)
		judge(p, &r, k, wire);
	push_request_close(p, &r);
	return rc;
}

const struct push_protocol push_update = { .name = "update", .bucket = move_bucket };
