/* SPDX-License-Identifier: Apache-2.0 */
/* load_gpu.c - a source on into the memory of a GPU: through the feed that pushes from there have (feed.h),
 * against a plain copy of as many bytes from pinned memory, which it cannot beat. */
#include "feed.h"
#include "gpu.h"
#include "load.h"

#include <stdio.h>

enum { RING = 4, PIECE = 16 << 20 };

struct load_gpu {
	struct bench_gpu g;
	struct ws_feed feed;
	void *pinned[RING];
	ws_devptr there[RING];
	uint64_t bytes;      /* to be copied */
};

static int open_all(struct load_gpu *x, const struct ws_bench_gpu *to, const struct ws_cancel *cancel,
                    struct ws_err *err)
{
	if (bench_gpu_open(&x->g, to, cancel, err) || ws_feed_open(&x->feed, x->g.gpu, err))
		return -1;
	for (int i = 0; i < RING; i++)
		if (ws_gpu_alloc_pinned(x->g.gpu, PIECE, &x->pinned[i], err) ||
		    ws_gpu_alloc(x->g.gpu, PIECE, &x->there[i], err))
			return -1;
	return 0;
}

static void close_all(struct load_gpu *x)
{
	ws_feed_close(&x->feed);
	for (int i = 0; x->g.gpu && i < RING; i++) {
		ws_gpu_free_pinned(x->g.gpu, x->pinned[i]);
		ws_gpu_free(x->g.gpu, x->there[i]);
	}
	bench_gpu_close(&x->g);
}

/* Nobody waits for one piece before the next is asked for. */
static int copy_pinned(void *ctx, int64_t *ns, struct ws_err *err)
{
	struct load_gpu *x = ((struct bench_load *)ctx)->gpu;
	const int64_t since = ws_now_ns();
	for (uint64_t at = 0, i = 0; at < x->bytes; at += PIECE, i++) {
		const uint64_t n = x->bytes - at < PIECE ? x->bytes - at : PIECE;
		if (ws_gpu_copy_in(x->g.gpu, x->there[i % RING], x->pinned[i % RING], n, x->g.stream, err))
			return -1;
	}
	if (bench_gpu_wait(&x->g, err))
		return -1;
	*ns = ws_now_ns() - since;
	return 0;
}

static int feed_bucket(void *load, const struct bench_bucket *k, struct ws_err *err)
{
	const struct bench_load *l = load;
	struct load_gpu *x = l->gpu;
	struct ws_feed_box *box = ws_feed_box(&x->feed, k->payloads, k->n);
	int rc = 0;
	while (!rc && box->loaded < k->n)
		rc = ws_feed_load(&x->feed, box, WS_FOREVER, l->cancel, err);
	ws_feed_drop(box); /* what comes into its memory next does so in the same stream */
	return rc;
}

static int feed_all(void *ctx, int64_t *ns, struct ws_err *err)
{
	struct bench_load *l = ctx;
	struct load_gpu *x = l->gpu;
	if (l->cold)
		bench_load_drop_caches(l);
	const int64_t since = ws_now_ns();
	if (bench_load_each(l, feed_bucket, err) ||
	    ws_stream_wait(x->g.gpu, x->feed.stream, WS_FOREVER, l->cancel, err))
		return -1;
	*ns = ws_now_ns() - since;
	return 0;
}

static int measure(const struct ws_bench_opts *opts, struct bench_load *l, struct ws_err *err)
{
	const struct bench_timed pinned = { .run = copy_pinned, .ctx = l };
	const struct bench_timed feed = { .run = feed_all, .ctx = l };
	char name[32];
	struct ws_bench_row row = { .stage = "load", .name = "copied to GPU", .detail = "pinned memory",
		                    .bytes = l->bytes };
	if (bench_measure(opts, &row, &pinned, NULL, err))
		return -1;
	snprintf(name, sizeof name, "%s to GPU", bench_load_name(l));
	row = (struct ws_bench_row){ .stage = "load", .name = name, .detail = bench_load_cache(l),
		                     .bytes = l->bytes, .against = "pinned copy", .against_bytes = l->bytes };
	return bench_measure(opts, &row, &feed, &pinned, err);
}

int bench_load_gpu(const struct ws_bench_opts *opts, struct bench_load *l, const struct ws_bench_gpu *to,
                   struct ws_err *err)
{
	struct load_gpu x = { .bytes = l->bytes };
	l->gpu = &x;
	const int rc = open_all(&x, to, opts->cancel, err) || measure(opts, l, err) ? -1 : 0;
	close_all(&x);
	l->gpu = NULL;
	return rc;
}
