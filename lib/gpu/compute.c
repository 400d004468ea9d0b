/* SPDX-License-Identifier: Apache-2.0 */
/* compute.c - loads the kernels, checks shapes, and starts the kernels of transforms. */
#include "compute_core.h"

#include <assert.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

_Static_assert(WS_RECORD_BYTES == sizeof(struct ws_found), "the record of the kernels");

enum image { FP8, LOWRANK, UNPACK, GATHER, VALUES, N_IMAGES };
static const char *const image_names[N_IMAGES] = { "fp8", "lowrank", "unpack", "gather", "values" };

static const struct {
	const char *name;
	enum image image;
} kernels[WS_KERNEL_COUNT] = {
#define ENTRY(name, image) { #name, image },
	WS_KERNELS(ENTRY)
#undef ENTRY
};

struct ws_compute {
	struct ws_gpu *gpu;
	struct ws_module *modules[N_IMAGES];
	struct ws_kernel *kernels[WS_KERNEL_COUNT];
};

/* ---- kernels ---- */

static int load(struct ws_compute *c, struct ws_err *err)
{
	for (int i = 0; i < N_IMAGES; i++) {
		size_t bytes;
		const void *image = ws_cuda_image(image_names[i], &bytes);
		if (!image)
			return ws_err_set(err, WS_EDEVICE, "this build has no kernels");
		if (ws_module_load(c->gpu, image, image_names[i], &c->modules[i], err))
			return -1;
	}
	for (int i = 0; i < WS_KERNEL_COUNT; i++)
		if (ws_module_kernel(c->gpu, c->modules[kernels[i].image], kernels[i].name,
		                     &c->kernels[i], err))
			return -1;
	return 0;
}

int ws_compute_open(struct ws_gpu *g, struct ws_compute **out, struct ws_err *err)
{
	struct ws_compute *c = calloc(1, sizeof *c);
	if (!c)
		return ws_oom(err);
	c->gpu = g;
	if (load(c, err)) {
		ws_compute_close(c);
		return -1;
	}
	*out = c;
	return 0;
}

void ws_compute_close(struct ws_compute *c)
{
	if (!c)
		return;
	for (int i = 0; i < N_IMAGES; i++)
		ws_module_free(c->gpu, c->modules[i]);
	free(c);
}

int ws_compute_run(struct ws_compute *c, enum ws_kernel_id id, uint64_t blocks, uint32_t threads,
                   const void *args, struct ws_stream *s, struct ws_err *err)
{
	if (blocks == 0)
		return 0;
	if (blocks > INT32_MAX)
		return ws_err_set(err, WS_EINPUT,
		                  "kernel %s: %" PRIu64 " blocks are more than a GPU takes at once",
		                  kernels[id].name, blocks);
	const struct ws_launch l = { .kernel = c->kernels[id], .name = kernels[id].name,
		                     .blocks = (uint32_t)blocks, .threads = threads, .args = args };
	return ws_gpu_launch(c->gpu, &l, s, err);
}

static uint64_t parts(int64_t n, int64_t part)
{
	return (uint64_t)(n / part + (n % part != 0));
}

/* ---- records ---- */

int ws_record_clear(struct ws_compute *c, ws_devptr record, struct ws_stream *s, struct ws_err *err)
{
	return ws_gpu_fill(c->gpu, record, 0, WS_RECORD_BYTES, s, err);
}

static float float_of(uint32_t bits)
{
	float x;
	memcpy(&x, &bits, sizeof x);
	return x;
}

void ws_record_read(const void *bytes, int64_t cols, struct ws_record *out)
{
	struct ws_found found;
	memcpy(&found, bytes, sizeof found);
	*out = (struct ws_record){ .bad = found.bad != 0, .max_delta = float_of(found.max_delta),
		                   .max_w = float_of(found.max_w) };
	if (out->bad && cols > 0) {
		const uint64_t first = ~(uint64_t)found.bad;
		out->row = (int64_t)(first / (uint64_t)cols);
		out->col = (int64_t)(first % (uint64_t)cols);
	}
}

/* ---- transforms ---- */

int ws_compute_fp8(struct ws_compute *c, bool is_f32, const struct ws_fp8_args *a,
                   struct ws_stream *s, struct ws_err *err)
{
	assert(a->rows >= 0 && a->cols >= 0 && a->stride >= a->cols);
	assert(a->bn > 0 && a->bk > 0 && a->codes_stride >= a->cols);
	const uint64_t blocks = parts(a->rows, a->bn) * parts(a->cols, a->bk);
	return ws_compute_run(c, is_f32 ? WS_KERNEL_fp8_block_f32 : WS_KERNEL_fp8_block_bf16,
	                      blocks, WS_FP8_THREADS, a, s, err);
}

int ws_compute_merge(struct ws_compute *c, const struct ws_merge_args *a, struct ws_stream *s,
                     struct ws_err *err)
{
	assert(a->rows >= 0 && a->cols >= 0 && a->w_stride >= a->cols && a->out_stride >= a->cols);
	assert(a->n_terms > 0 && a->n_terms <= WS_MERGE_TERMS);
	assert(a->n_terms == 1 || !a->two_step);
	const uint64_t tiles = parts(a->rows, WS_MERGE_ROWS) * parts(a->cols, WS_MERGE_COLS);
	return ws_compute_run(c, a->n_terms == 1 ? WS_KERNEL_merge_bf16 : WS_KERNEL_merges_bf16,
	                      tiles, WS_MERGE_THREADS, a, s, err);
}

int ws_compute_unpack(struct ws_compute *c, enum ws_unpack_kind kind,
                      const struct ws_unpack_args *args, struct ws_stream *s, struct ws_err *err)
{
	static const enum ws_kernel_id ids[] = { WS_KERNEL_unpack_fp8, WS_KERNEL_unpack_nvfp4,
		                                 WS_KERNEL_unpack_nf4 };
	struct ws_unpack_args a = *args;
	assert(a.rows >= 0 && a.cols >= 0);
	if (a.rows == 0 || a.cols == 0)
		return 0;
	assert(kind == WS_UNPACK_NVFP4 ? a.cols % 2 == 0 : a.bn > 0 && a.bk > 0);
	a.each = a.each ? a.each : a.rows;
	if (kind == WS_UNPACK_NF4) { /* one long vector */
		a.cols *= a.rows;
		a.rows = 1;
	}
	const uint64_t blocks = parts(a.rows * a.cols, WS_UNPACK_THREADS * WS_UNPACK_EACH);
	return ws_compute_run(c, ids[kind], blocks, WS_UNPACK_THREADS, &a, s, err);
}
