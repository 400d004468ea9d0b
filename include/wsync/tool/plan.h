/* SPDX-License-Identifier: Apache-2.0 */
/* plan.h - the tensors to send, how they are made, and their buckets and order.
 *
 * A plan is made from headers alone. --dry-run prints it and the real run executes the same object,
 * whose digest covers names, dtypes, shapes, recipes and their order: neither the bytes nor how
 * they are put into buckets. */
#ifndef WSYNC_PLAN_H
#define WSYNC_PLAN_H

#include "wsync/tool/catalog.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ws_load_format {
	WS_FORMAT_TENSORS,  /* servers' load_format null: one broadcast per tensor */
	WS_FORMAT_FLATTENED /* "flattened_bucket": one uint8 broadcast per bucket, no padding */
};

/* How an output tensor is made from the source. */
enum ws_transform_op {
	WS_OP_COPY, /* a tensor of the source, whole and as it is */
	WS_OP_VIEW, /* pieces of source tensors (catalog.h) */
	WS_OP_MAKE  /* computed: merged, unpacked, quantized (transform.h) */
};
const char *ws_transform_op_name(enum ws_transform_op op); /* "copy", "view", "make" */

struct ws_plan_tensor {
	const char *name; /* as announced to the server; owned by the catalog */
	enum ws_dtype dtype;
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];
	uint64_t bytes;
	enum ws_transform_op op;
	size_t group; /* equal for neighbours that must share a bucket */
	const struct ws_item *item; /* borrowed from the catalog */
};

struct ws_plan_bucket {
	size_t first, n;  /* tensors[first .. first+n) */
	uint64_t bytes;
	uint64_t limit;   /* the bucket size that it was cut for */
};

struct ws_plan {
	struct ws_plan_tensor *tensors; /* in sending order */
	size_t n_tensors;
	struct ws_plan_bucket *buckets;
	size_t n_buckets, room; /* room: buckets that the array can hold */
	uint64_t bytes;       /* payload of one copy */
	enum ws_load_format format;
	uint64_t bucket_size, large, together; /* as asked */
	bool reordered;       /* a bucket needed another order than the catalog's */
	size_t n_skipped;     /* by include/exclude, and empty tensors, which no server needs */
	uint64_t digest;
};

struct ws_plan_opts {
	uint64_t bucket_size;         /* bytes; 0: 512 MiB */
	/* tensors of more than `large` bytes share buckets of at most `together`; 0: they do not */
	uint64_t large, together;
	enum ws_load_format format;
	bool whole_layers;            /* all tensors of a layer are in one bucket */
	const char *const *include;   /* globs; n_include 0: everything */
	size_t n_include;
	const char *const *exclude;
	size_t n_exclude;
};

/* Rules: a bucket has at most bucket_size bytes unless a single tensor (or a group that must stay
 * together) is larger. With `together` groups of more than `large` bytes share a bucket. It may
 * have small ones before, between and behind them, of a quarter of `large` each time. Groups are
 * X.weight with X.weight_scale_inv or X.weight_scale, and DeepSeek's q_a_proj with
 * kv_a_proj_with_mqa of one layer (their loaders pair them within one request); with `whole_layers`
 * all tensors of a layer. The catalog's order is kept, but in a flattened bucket where a view that
 * the server makes would then not begin at a multiple of its element size: the tensors of that
 * bucket go by falling element size. (Order matters to transforms: scales that follow their codes
 * need no second read of the weights.) WS_EUSAGE: no tensor is left. The catalog must outlive the
 * plan. */
int ws_plan_make(const struct ws_catalog *c, const struct ws_plan_opts *opts, struct ws_plan **out,
                 struct ws_err *err);
/* Cuts the buckets from `first` on again, for another bucket size. Tensors keep their order. The
 * buckets stay as they are if one needed another order of its tensors, or would need one now, or
 * without memory. */
void ws_plan_recut(struct ws_plan *p, size_t first, uint64_t size);
void ws_plan_free(struct ws_plan *p); /* NULL is fine */
/* The plan's tensors by name, for ws_plan_find; the caller frees the array. NULL: out of memory. */
const struct ws_plan_tensor **ws_plan_index(const struct ws_plan *p);
const struct ws_plan_tensor *ws_plan_find(const struct ws_plan *p,
                                          const struct ws_plan_tensor **index, const char *name);
/* ws_source_check_file for each file whose tensors are in bucket b. */
int ws_plan_check_bucket(const struct ws_plan *p, size_t b, struct ws_err *err);

/* The first of patterns[*next..n) that matches no tensor, and is probably misspelled; NULL:
 * none. *next must start at 0; the call sets it behind the pattern. */
const char *ws_plan_unused(const struct ws_catalog *c, const char *const *patterns, size_t n,
                           size_t *next);

#ifdef __cplusplus
}
#endif
#endif
