/* SPDX-License-Identifier: Apache-2.0 */
/* push_tensor.c - /update_weights_from_tensor: the weights stand in the requests, and there is no group.
 *
 *   {"serialized_named_tensors":[the same base64 of a pickle for each rank],
 *    "load_format":"flattened_bucket","flush_cache","abort_all_requests","weight_version" (last bucket only)}
 *
 * A byte is sent once for each rank of a server, as four thirds of a byte, and lies in memory as often on
 * both sides: this is for tests and small models, and refuses what is large. */
#include "push_protocol.h"

#include "base64.h"
#include "pickle.h"
#include "wsync/str.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum {
	PLAN_MOST = 1 << 30,      /* bytes of all tensors together */
	ELEMENTS_MOST = 200 << 20 /* bytes of the elements of one request; servers and ours have limits */
};

/* ---- is it small enough? ---- */

static unsigned ranks_of(const struct ws_push *p)
{
	return p->infos[0].tp_size ? p->infos[0].tp_size : 1;
}

static int check_ranks(const struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 1; i < p->opts.n_endpoints; i++) {
		if (p->infos[i].tp_size == p->infos[0].tp_size)
			continue;
		ws_err_set(err, WS_EREFUSED, "%s has %u ranks and %s %u: one request holds an element for each",
		           p->endpoints[0].url, p->infos[0].tp_size, p->endpoints[i].url,
		           p->infos[i].tp_size);
		return ws_err_hint(err, "push to servers of one size at a time");
	}
	return 0;
}

static int refuse_size(uint64_t bytes, uint64_t most, const char *of, struct ws_err *err)
{
	char is[32], may[32];
	ws_err_set(err, WS_EREFUSED, "--backend tensor: %s is %s, and at most %s go by requests", of,
	           ws_format_size(is, sizeof is, bytes), ws_format_size(may, sizeof may, most));
	return ws_err_hint(err, "--backend gloo has no such limit");
}

static int legal(struct ws_push *p, struct ws_err *err)
{
	const uint64_t most = (uint64_t)ELEMENTS_MOST / ranks_of(p) / 4 * 3;
	if (check_ranks(p, err))
		return -1;
	if (p->plan->bytes > PLAN_MOST)
		return refuse_size(p->plan->bytes, PLAN_MOST, "the source", err);
	for (size_t b = 0; b < p->plan->n_buckets; b++)
		if (p->plan->buckets[b].bytes > most)
			return refuse_size(p->plan->buckets[b].bytes, most, "a bucket for all ranks", err);
	return 0;
}

/* ---- a request ---- */

static int read_span(const struct ws_span *s, char *dst, struct ws_err *err)
{
	uint64_t at = 0;
	if (s->fd < 0)
		return s->fill(s->ctx, 0, dst, (size_t)s->length, err);
	while (at < s->length) {
		const ssize_t n = pread(s->fd, dst + at, (size_t)(s->length - at), (off_t)(s->offset + at));
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return ws_err_errno(err, "read the source");
		if (n == 0)
			return ws_err_set(err, WS_EINPUT, "the source became shorter while it was sent");
		at += (uint64_t)n;
	}
	return 0;
}

static int add_payload(struct ws_buf *out, const struct ws_payload *payload, struct ws_err *err)
{
	for (size_t i = 0; i < payload->n_spans; i++) {
		const struct ws_span *s = &payload->spans[i];
		if (ws_buf_reserve(out, (size_t)s->length))
			return ws_buf_check(out, "bucket", err);
		if (read_span(s, out->data + out->len, err))
			return -1;
		out->len += (size_t)s->length;
	}
	return 0;
}

static int write_pickle(const struct ws_push *p, const struct push_bucket *k, struct ws_buf *out,
                        struct ws_err *err)
{
	const struct ws_plan_bucket *bucket = &p->plan->buckets[k->b];
	const struct ws_plan_tensor *t = &p->plan->tensors[bucket->first];
	struct ws_pickle_tensor *tensors = calloc(bucket->n, sizeof *tensors);
	if (!tensors)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	for (size_t i = 0; i < bucket->n; i++) {
		tensors[i] = (struct ws_pickle_tensor){ .name = t[i].name, .dtype = t[i].dtype,
			                                .n_dims = t[i].n_dims, .bytes = t[i].bytes };
		for (unsigned d = 0; d < t[i].n_dims; d++)
			tensors[i].dims[d] = t[i].dims[d];
	}
	int rc = 0;
	ws_pickle_begin(out, (uint32_t)bucket->bytes);
	for (size_t i = 0; i < k->n_payloads && rc == 0; i++)
		rc = add_payload(out, &k->payloads[i], err);
	ws_pickle_end(out, tensors, bucket->n, (uint32_t)bucket->bytes);
	free(tensors);
	return rc ? rc : ws_buf_check(out, "bucket", err);
}

static int write_body(const struct ws_push *p, struct ws_jw *w, const struct push_bucket *k, struct ws_err *err)
{
	struct ws_buf pickle, text;
	ws_buf_init(&pickle, 0);
	ws_buf_init(&text, 0);
	int rc = write_pickle(p, k, &pickle, err);
	if (rc == 0) {
		ws_base64_encode(&text, pickle.data, pickle.len);
		rc = ws_buf_check(&text, "bucket", err);
	}
	ws_jw_array(w, "serialized_named_tensors");
	for (unsigned r = 0; rc == 0 && r < ranks_of(p); r++)
		ws_jw_strn(w, NULL, text.data, text.len);
	ws_jw_end_array(w);
	ws_jw_str(w, "load_format", "flattened_bucket");
	ws_jw_bool(w, "flush_cache", k->flush);
	ws_jw_bool(w, "abort_all_requests", false);
	if (k->last && p->weight_version && push_carries_version(p))
		ws_jw_str(w, "weight_version", p->weight_version);
	ws_buf_free(&pickle);
	ws_buf_free(&text);
	return rc;
}

/* The bytes were in the request: whoever refused it may have loaded some of them. */
static void judge(struct ws_push *p, const struct push_bucket *k)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		struct push_endpoint *e = &p->endpoints[i];
		if (p->errs[i].code != WS_OK || !k->last)
			continue;
		e->arrived = true;
		if (!e->begun)
			e->state = WS_COMMITTED;
	}
}

static int post_bucket(struct ws_push *p, const struct push_bucket *k, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_min(p->until, ws_deadline_in(p->opts.bucket_ns));
	const int64_t start = ws_now_ns();
	struct push_request r;
	int rc = push_request_open(p, &r, "/update_weights_from_tensor", err) ||
	         write_body(p, &r.w, k, err) ? -1 : 0;
	const int64_t asked = ws_now_ns();
	if (rc == 0) {
		r.changes = true;
		rc = push_request_ask(p, &r, NULL, until, p->opts.cancel, err);
		judge(p, k);
		push_request_note(p, &r);
	}
	if (rc == 0) {
		const struct push_moved m = { .over = true, .ns = ws_now_ns() - start };
		const uint64_t bytes = p->plan->buckets[k->b].bytes * p->opts.n_endpoints * ranks_of(p);
		p->posted += bytes;
		push_trace_posted(p, "requests", k->b, asked, bytes);
		push_moved_emit(p, k, &m);
	}
	push_request_close(p, &r);
	return rc;
}

/* Older servers know buckets of one type only, whose places count elements. */
static bool takes(const struct ws_capabilities *can)
{
	return can->from_tensor && can->load_format && can->mixed_bucket && !can->session;
}

const struct push_protocol push_tensor = {
	.name = "tensor", .routes = "/update_weights_from_tensor for flattened buckets of bytes",
	.takes = takes, .groupless = true, .carries_version = true, .legal = legal,
	.begin = push_brackets_begin, .bucket = post_bucket, .end = push_brackets_end,
	.undo = push_brackets_undo,
};

/* What is asked of a data plane where nothing is sent by one. */
static const char *refuse_nothing(const struct ws_transport *t, const char *dtype, bool flattened)
{
	(void)t, (void)dtype, (void)flattened;
	return NULL;
}

const struct ws_transport_ops push_tensor_transport = { .name = "tensor", .refuses = refuse_nothing };
