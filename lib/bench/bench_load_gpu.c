/* SPDX-License-Identifier: Apache-2.0 */
/* bench_load_gpu.c - loads a source into GPU memory through the staging buffers of pushes
 * (gpu_stage.h). Reference, and upper limit: a copy of as many bytes from pinned memory. */
#include "gpu_stage.h"
#include "bench_gpu.h"
#include "bench_load.h"

#include <stdio.h>
#include <stdlib.h>

enum { RING = 4, PIECE = 16 << 20 };

struct load_gpu {
	struct bench_gpu g;
	struct ws_gpu_stage stage;
	void *pinned[RING];
	ws_devptr there[RING];
};

static bool is_made_there(void *ctx, const struct ws_recipe_output *f)
{
	const struct load_gpu *x = ctx;
	return ws_gpu_stage_computes(&x->stage, f);
}

int bench_stage_open(struct bench_load *l, const struct ws_bench_gpu *to,
                    enum ws_push_transform_on on, struct ws_err *err)
{
	struct load_gpu *x = l->gpu = calloc(1, sizeof *x);
	if (!x)
		return ws_oom(err);
	if (bench_gpu_open(&x->g, to, l->cancel, err) ||
	    ws_gpu_stage_open(&x->stage, x->g.gpu, err))
		return -1;
	if (!l->input.transform || on == WS_TRANSFORM_ON_CPU)
		return 0;
	l->elsewhere = is_made_there;
	return ws_gpu_stage_use_kernels(&x->stage, 0, err);
}

static int open_pinned(struct load_gpu *x, struct ws_err *err)
{
	for (int i = 0; i < RING; i++)
		if (ws_gpu_alloc_pinned(x->g.gpu, PIECE, &x->pinned[i], err) ||
		    ws_gpu_alloc(x->g.gpu, PIECE, &x->there[i], err))
			return -1;
	return 0;
}

void bench_stage_close(struct bench_load *l)
{
	struct load_gpu *x = l->gpu;
	if (!x)
		return;
	if (x->g.gpu)
		ws_gpu_use(x->g.gpu, NULL);
	ws_gpu_stage_close(&x->stage);
	for (int i = 0; x->g.gpu && i < RING; i++) {
		ws_gpu_free_pinned(x->g.gpu, x->pinned[i]);
		ws_gpu_free(x->g.gpu, x->there[i]);
	}
	bench_gpu_close(&x->g);
	free(x);
	l->gpu = NULL;
	l->elsewhere = NULL;
}

/* Starts all copies without waiting for each, then waits for all of them. */
static int copy_pinned(void *ctx, int64_t *ns, struct ws_err *err)
{
	const struct bench_load *l = ctx;
	struct load_gpu *x = l->gpu;
	const int64_t since = ws_now_ns();
	for (uint64_t at = 0, i = 0; at < l->bytes; at += PIECE, i++) {
		const uint64_t n = l->bytes - at < PIECE ? l->bytes - at : PIECE;
		if (ws_gpu_copy_in(x->g.gpu, x->there[i % RING], x->pinned[i % RING], n,
		                   x->g.stream, err))
			return -1;
	}
	if (bench_gpu_wait(&x->g, err))
		return -1;
	*ns = ws_now_ns() - since;
	return 0;
}

static int stage_bucket(void *load, const struct bench_bucket *k, struct ws_err *err)
{
	const struct bench_load *l = load;
	struct load_gpu *x = l->gpu;
	struct ws_staging_buffer *buffer = ws_gpu_stage_buffer(&x->stage, k->payloads, k->n);
	int rc = 0;
	while (!rc && buffer->loaded < k->n)
		rc = ws_gpu_stage_load(&x->stage, buffer, WS_FOREVER, l->cancel, err);
	ws_gpu_stage_release(buffer); /* safe: later uses of its memory are in the same stream */
	return rc;
}

int bench_stage_run(void *ctx, int64_t *ns, struct ws_err *err)
{
	struct bench_load *l = ctx;
	struct load_gpu *x = l->gpu;
	if (l->cold)
		bench_load_drop_caches(l);
	/* A push on this thread may have made another context current. */
	if (ws_gpu_use(x->g.gpu, err))
		return -1;
	const int64_t since = ws_now_ns();
	if (bench_load_each(l, stage_bucket, err) ||
	    ws_stream_wait(x->g.gpu, x->stage.stream, WS_FOREVER, l->cancel, err))
		return -1;
	*ns = ws_now_ns() - since;
	return 0;
}

static int measure_gpu(const struct ws_bench_opts *opts, struct bench_load *l, struct ws_err *err)
{
	const struct bench_timed pinned = { .run = copy_pinned, .ctx = l };
	const struct bench_timed stage = { .run = bench_stage_run, .ctx = l };
	char name[32];
	struct ws_bench_row row = { .stage = "load",
		                    .name = "copied to GPU",
		                    .detail = "pinned memory",
		                    .bytes = l->bytes };
	if (bench_measure(opts, &row, &pinned, NULL, err))
		return -1;
	snprintf(name, sizeof name, l->elsewhere ? "%s on GPU" : "%s to GPU", bench_load_name(l));
	row = (struct ws_bench_row){ .stage = "load",
		                     .name = name,
		                     .detail = bench_load_cache(l),
		                     .bytes = l->bytes,
		                     .against = "pinned copy",
		                     .against_bytes = l->bytes };
	return bench_measure(opts, &row, &stage, &pinned, err);
}

int bench_load_gpu(const struct ws_bench_opts *opts, struct bench_load *l,
                   const struct ws_bench_load *load, struct ws_err *err)
{
	const int rc = bench_stage_open(l, load->to, load->transform_on, err) ||
	                               open_pinned(l->gpu, err) || measure_gpu(opts, l, err) ?
	                       -1 :
	                       0;
	bench_stage_close(l);
	return rc;
}
