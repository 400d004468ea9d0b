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
	float least, most;           /* of the positive finite ones; most 0: there are none */
	uint64_t dead;               /* zero scales of blocks that have no code but zero */
	/* Of blocks with codes and a positive finite scale: the largest magnitude of each */
	uint64_t blocks;
	/* sums of ln(code * scale), and ln(code / scale): if it were inverted */
	double log_times, log_over;
	double largest;              /* code * scale */
	double smallest;
};

/* One more scale, the product of two, of a block whose largest code has this magnitude; < 0: not
 * known. second is 1, or the tensor's scale, which may be the inverted one of the two. */
void ws_scale_values_add(struct ws_scale_values *v, float scale, float second, float code);
bool ws_scale_is_power(float scale); /* of two */
/* Typical magnitudes of blocks; 0: not known. */
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
	/* its scales are all powers of two, or not; neither: all zero */
	bool powers, others;
	bool compared;
	struct ws_scales_error error;
};

struct ws_scales {
	const struct ws_scales_opts *opts;
	struct ws_scales_notes notes;
	struct ws_scales_task *tasks;
	size_t n_tasks;
	/* the config's, with the block size that was asked for */
	struct ws_quant quant;
	size_t next;                         /* atomic: the task to take next */
	uint64_t bytes, total;               /* atomic: read; to be read */
	uint64_t n_scales;                   /* atomic */
	struct ws_cancel stop;               /* the first that fails sets it */
	int64_t since, reported;
};

/* One thread's. */
struct ws_scales_buffers {
	struct ws_buf codes, scales, best, ours, theirs, scratch[2];
};
/* What a worker calls now and then: counts bytes, tells of progress (the
 * first one), -1 when cancelled. */
int ws_scales_step(struct ws_scales *s, uint64_t bytes, bool first, struct ws_err *err);
/* Findings by names and shapes; makes a task of what is to be read: 1, or 0. */
int ws_scales_pair(struct ws_scales *s, const struct ws_item *item, size_t order,
                   struct ws_scales_task *out, struct ws_err *err);
/* What the whole checkpoint says about its config. */
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
