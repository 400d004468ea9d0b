/* SPDX-License-Identifier: Apache-2.0 */
/* bench_load.h - a source that is read repeatedly, for bench_load.c, bench_load_gpu.c and
 * bench_push.c. */
#ifndef WS_BENCH_LOAD_H
#define WS_BENCH_LOAD_H

#include "payloads.h"
#include "bench_samples.h"
#include "wsync/tool/input.h"

struct bench_load {
	struct ws_input input;
	struct ws_plan *plan;
	size_t n_buckets;    /* that are read */
	uint64_t bytes;      /* of them */
	int *files;
	uint64_t *sizes, file_bytes;
	size_t n_files;
	char *buffer;
	bool cold;
	struct load_gpu *gpu; /* bench_load_gpu.c's; NULL: none is open */
	ws_elsewhere_fn *elsewhere; /* what is made there; NULL: nothing */
	const struct ws_cancel *cancel;
};

/* To be closed in any case. */
int bench_load_open(struct bench_load *l, const struct ws_bench_load *what,
                    const struct ws_cancel *cancel, struct ws_err *err);
void bench_load_close(struct bench_load *l);
int bench_load_run(void *load, int64_t *ns, struct ws_err *err); /* as of struct bench_timed */
void bench_load_drop_caches(const struct bench_load *l);
const char *bench_load_name(const struct bench_load *l); /* "read", "read and made" */
const char *bench_load_cache(const struct bench_load *l);

struct bench_bucket {
	struct ws_payload *payloads;
	size_t n;
};
typedef int bench_load_take(void *load, const struct bench_bucket *k, struct ws_err *err);
/* Every bucket in turn, the next one begun. */
int bench_load_each(struct bench_load *l, bench_load_take *take, struct ws_err *err);

/* ---- bench_load_gpu.c ---- */

/* On into a GPU's memory, as a push that sends from there brings it. Tensors are made there, as
 * far as it has kernels for them, unless `on` says otherwise. To be closed in any case. */
int bench_stage_open(struct bench_load *l, const struct ws_bench_gpu *to,
                    enum ws_push_transform_on on, struct ws_err *err);
int bench_stage_run(void *load, int64_t *ns, struct ws_err *err); /* as of struct bench_timed */
void bench_stage_close(struct bench_load *l);
/* Two more rows. */
int bench_load_gpu(const struct ws_bench_opts *opts, struct bench_load *l,
                   const struct ws_bench_load *load, struct ws_err *err);

#endif
