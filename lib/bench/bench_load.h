/* SPDX-License-Identifier: Apache-2.0 */
/* bench_load.h - reads a source repeatedly, for bench_load.c, bench_load_gpu.c and
 * bench_push.c. */
#ifndef WS_BENCH_LOAD_H
#define WS_BENCH_LOAD_H

#include "payloads.h"
#include "bench_samples.h"
#include "wsync/tool/input.h"

struct bench_load {
	struct ws_input input;
	struct ws_plan *plan;
	size_t n_buckets;    /* buckets that are read */
	uint64_t bytes;      /* their size */
	int *files;
	uint64_t *sizes, file_bytes;
	size_t n_files;
	char *buffer;
	bool cold;
	struct load_gpu *gpu; /* owned by bench_load_gpu.c; NULL: not open */
	ws_elsewhere_fn *elsewhere; /* chooses tensors the GPU computes; NULL: none */
	const struct ws_cancel *cancel;
};

/* The caller calls bench_load_close even after a failure. */
int bench_load_open(struct bench_load *l, const struct ws_bench_load *what,
                    const struct ws_cancel *cancel, struct ws_err *err);
void bench_load_close(struct bench_load *l);
int bench_load_run(void *load, int64_t *ns, struct ws_err *err); /* a `run` of bench_timed */
void bench_load_drop_caches(const struct bench_load *l);
const char *bench_load_name(const struct bench_load *l); /* "read", "read and made" */
const char *bench_load_cache(const struct bench_load *l);

struct bench_bucket {
	struct ws_payload *payloads;
	size_t n;
};
typedef int bench_load_take(void *load, const struct bench_bucket *k, struct ws_err *err);
/* Calls take for every bucket in order, with the next bucket already opened. */
int bench_load_each(struct bench_load *l, bench_load_take *take, struct ws_err *err);

/* ---- bench_load_gpu.c ---- */

/* Prepares to load into GPU memory, as a push does that sends from it. Unless `on` is the CPU, the
 * GPU computes the tensors that it has kernels for. Call bench_stage_close even after a failure. */
int bench_stage_open(struct bench_load *l, const struct ws_bench_gpu *to,
                    enum ws_push_transform_on on, struct ws_err *err);
int bench_stage_run(void *load, int64_t *ns, struct ws_err *err); /* a `run` of bench_timed */
void bench_stage_close(struct bench_load *l);
/* Measures and delivers two rows: a plain pinned copy, and the staged load. */
int bench_load_gpu(const struct ws_bench_opts *opts, struct bench_load *l,
                   const struct ws_bench_load *load, struct ws_err *err);

#endif
