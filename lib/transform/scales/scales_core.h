/* SPDX-License-Identifier: Apache-2.0 */
/* scales_core.h - shared by the parts of the scale check.
 *
 *   scales_check.c   the tensors, their threads, the report
 *   scales_pair.c    names, shapes, types and the config
 *   scales_codes.c   8-bit codes and their scales, read once
 *   scales_nibbles.c 4-bit codes and their scales
 *   scales_values.c  plausible values of scales, whatever their origin
 *   scales_error.c   the distance from the source */
#ifndef WS_TRANSFORM_SCALES_CORE_H
#define WS_TRANSFORM_SCALES_CORE_H

#include "unpack_core.h"

#include "wsync/tool/scales.h"

#include <pthread.h>

/* ---- findings ---- */

struct ws_scales_notes {
	struct ws_scales_report *report;
	size_t cap;
	pthread_mutex_t lock;
	bool failed;       /* out of memory */
};

void ws_scales_notes_begin(struct ws_scales_notes *n, struct ws_scales_report *report);
/* Sorts and counts. */
int ws_scales_notes_end(struct ws_scales_notes *n, struct ws_err *err);
/* order: the tensor's number; findings of one kind are reported in this order. Any thread. */
void ws_scales_say(struct ws_scales_notes *n, size_t order, enum ws_scales_verdict verdict,
                   enum ws_severity severity, const char *name, const char *fmt, ...)
	__attribute__((format(printf, 6, 7)));

/* ---- numbers of one tensor's scales ---- */

struct ws_scale_values {
	uint64_t n, nan, infinite, zero, negative, subnormal, powers; /* of two */
	float least, most;           /* of the positive finite scales; most 0: there are none */
	uint64_t dead;               /* zero scales of blocks that have no code but zero */
	/* Blocks with a non-zero code and a positive finite scale: count and largest magnitudes */
	uint64_t blocks;
	/* sums of ln(code * scale), and of ln(code / scale): as if the scale were inverted */
	double log_times, log_over;
	double largest;              /* code * scale */
	double smallest;
};

/* Adds the scale of a block, scale * second. code: magnitude of the largest code; < 0: unknown.
 * second: 1, or the scale of the tensor, which may then be the inverted one of the two. */
void ws_scale_values_add(struct ws_scale_values *v, float scale, float second, float code);
bool ws_scale_is_power(float scale); /* of two */
/* Typical largest magnitude of a block, with these scales or with inverted ones; 0: unknown. */
double ws_scale_values_times(const struct ws_scale_values *v);
double ws_scale_values_over(const struct ws_scale_values *v);
bool ws_scale_values_inverted(const struct ws_scale_values *v);
void ws_scale_values_judge(const struct ws_scale_values *v, const char *name, size_t order,
                           struct ws_scales_notes *notes);

/* ---- one tensor to read ---- */

struct ws_scales_task {
	const struct ws_item *item, *source; /* source NULL: nothing to compare with */
	struct ws_packed packed;
	size_t order;
	uint64_t bytes;                      /* to read, for progress */
	/* all scales are powers of two; not all are. Neither: all codes are zero, or NF4 */
	bool powers, others;
	bool compared;
	struct ws_scales_error error;
};

struct ws_scales {
	const struct ws_scales_opts *opts;
	struct ws_scales_notes notes;
	struct ws_scales_task *tasks;
	size_t n_tasks;
	/* from the config, with the requested block size */
	struct ws_quant quant;
	size_t next;                         /* atomic: the task to take next */
	uint64_t bytes, total;               /* atomic: read; to be read */
	uint64_t n_scales;                   /* atomic */
	struct ws_cancel stop;               /* the first worker that fails sets it */
	int64_t since, reported;
};

/* The buffers of one thread. */
struct ws_scales_buffers {
	struct ws_buf codes, scales, best, ours, theirs, scratch[2];
};
/* Workers call it now and then: counts bytes; the first worker reports progress. -1: cancelled. */
int ws_scales_step(struct ws_scales *s, uint64_t bytes, bool first, struct ws_err *err);
/* Reports findings about names and shapes. 1: *out is a task to read; 0: nothing to read. */
int ws_scales_pair(struct ws_scales *s, const struct ws_item *item, size_t order,
                   struct ws_scales_task *out, struct ws_err *err);
/* Compares the config with the whole checkpoint. */
void ws_scales_config(struct ws_scales *s, size_t n_quantized);

/* Reports that all or most codes are zero; false: they are not. */
bool ws_scales_zero_codes(struct ws_scales_notes *notes, const struct ws_scales_task *t,
                          uint64_t zero, uint64_t codes);
int ws_scales_codes(struct ws_scales *s, struct ws_scales_task *t, struct ws_scales_buffers *b,
                    bool first, struct ws_scale_values *values, struct ws_err *err);
int ws_scales_nibbles(struct ws_scales *s, struct ws_scales_task *t, struct ws_scales_buffers *b,
                      bool first, struct ws_scale_values *values, struct ws_err *err);
int ws_scales_compare(struct ws_scales *s, struct ws_scales_task *t, struct ws_scales_buffers *b,
                      bool first, const struct ws_scale_values *values, struct ws_err *err);

#endif
