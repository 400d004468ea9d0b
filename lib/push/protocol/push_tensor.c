/* SPDX-License-Identifier: Apache-2.0 */
/* push_tensor.c - sends the weights inside the requests, without a group.
 *
 * Each byte is sent once per rank of a server, in base64 (four thirds of the size). Both sides
 * keep all copies in memory. So this is for tests and small models, and large ones are refused. */
#include "push_from_tensor.h"

#include "file.h"
#include "wsync/tool/str.h"

#include <stdlib.h>

enum {
	PLAN_MOST = 1 << 30,      /* bytes of all tensors together */
	/* bytes of the elements of one request; servers and wsync limit its size */
	ELEMENTS_MOST = 200 << 20
};

/* ---- is it small enough? ---- */

static int refuse_size(uint64_t bytes, uint64_t most, const char *of, struct ws_err *err)
{
	char is[32], may[32];
	ws_err_set(err, WS_EREFUSED, "{backend} tensor: %s is %s, and at most %s go by requests",
	           of, ws_format_size(is, sizeof is, bytes), ws_format_size(may, sizeof may, most));
	return ws_err_hint(err, "{backend} gloo has no such limit");
}

static int legal(struct ws_push *p, struct ws_err *err)
{
	const uint64_t most = (uint64_t)ELEMENTS_MOST / push_from_tensor_ranks(p) / 4 * 3;
	if (push_from_tensor_check_ranks(p, err))
		return -1;
	if (p->from.plan->bytes > PLAN_MOST)
		return refuse_size(p->from.plan->bytes, PLAN_MOST, "the source", err);
	for (size_t b = 0; b < p->from.plan->n_buckets; b++)
		if (p->from.plan->buckets[b].bytes > most)
			return refuse_size(p->from.plan->buckets[b].bytes, most,
			                   "a bucket for all ranks", err);
	return 0;
}

/* ---- a request ---- */

static int read_span(const struct ws_span *s, char *dst, struct ws_err *err)
{
	const size_t n = (size_t)s->length;
	return s->fd < 0 ? s->fill(s->ctx, 0, dst, n, err) :
	       ws_file_pread(s->fd, "a file of the source", s->offset, dst, n, err);
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
	const struct ws_plan_bucket *bucket = &p->from.plan->buckets[k->b];
	struct ws_pickle_tensor *tensors = push_from_tensor_list(p, k->b, err);
	if (!tensors)
		return -1;
	int rc = 0;
	ws_pickle_begin(out, (uint32_t)bucket->bytes);
	for (size_t i = 0; i < k->n_payloads && rc == 0; i++)
		rc = add_payload(out, &k->payloads[i], err);
	ws_pickle_end(out, tensors, bucket->n, (uint32_t)bucket->bytes);
	free(tensors);
	return rc ? rc : ws_buf_check(out, "bucket", err);
}

static int post_bucket(struct ws_push *p, const struct push_bucket *k, struct ws_err *err)
{
	const int64_t since = ws_now_ns();
	const uint64_t posted = p->run.posted;
	struct ws_buf pickle;
	ws_buf_init(&pickle, 0);
	int rc = write_pickle(p, k, &pickle, err);
	const int64_t asked = ws_now_ns();
	if (rc == 0)
		rc = push_from_tensor(p, k, &pickle, since, err);
	if (rc == 0)
		push_trace_posted(p, "requests", k->b, asked, p->run.posted - posted);
	ws_buf_free(&pickle);
	return rc;
}

const struct push_protocol push_tensor = {
	.name = "tensor",
	.routes = "/update_weights_from_tensor for flattened buckets of bytes",
	.takes = push_from_tensor_takes,
	.groupless = true,
	.legal = legal,
	.begin = push_scope_begin,
	.bucket = post_bucket,
	.end = push_scope_end,
	.undo = push_scope_undo,
};

const struct ws_transport_ops push_tensor_transport = { .name = "tensor" };
