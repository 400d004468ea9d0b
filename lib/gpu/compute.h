/* SPDX-License-Identifier: Apache-2.0 */
/* compute.h - transforms of weights on a GPU. The results have the same bits as lib/transform.
 *
 * Every function queues its work in a stream and returns; addresses must stay valid until the
 * stream has done it. Shapes are asserted. Kernels write findings about the numbers (the first
 * that is not finite, the largest) to a record on the device, which the caller copies out. */
#ifndef WS_GPU_COMPUTE_H
#define WS_GPU_COMPUTE_H

#include "cuda_driver.h"

#include "wsync/dtype.h"
#include "wsync/transform.h"

struct ws_compute; /* opaque: the kernels, loaded onto one GPU */

/* g is borrowed and must outlive it. */
int ws_compute_open(struct ws_gpu *g, struct ws_compute **out, struct ws_err *err);
void ws_compute_close(struct ws_compute *c); /* NULL is fine */

/* ---- records ---- */

enum { WS_RECORD_BYTES = 16 };

struct ws_record {
	bool bad;                /* an element is not finite; the results are undefined */
	int64_t row, col;        /* the first such element, row by row */
	float max_delta, max_w;  /* merges: the largest |delta|, as added, and |w| */
};

/* Sets it to zeros. One record serves all launches over one tensor. */
int ws_record_clear(struct ws_compute *c, ws_devptr record, struct ws_stream *s,
                    struct ws_err *err);
/* Decodes bytes that were copied out. cols: columns of the tensor. */
void ws_record_read(const void *bytes, int64_t cols, struct ws_record *out);

/* ---- transforms ---- */

/* Row-major; row r begins r * stride elements after at. */
struct ws_matrix {
	ws_devptr at;
	enum ws_dtype dtype; /* F32 or BF16 */
	int64_t rows, cols, stride;
};

/* As lib/transform/fp8/fp8.h. */
struct ws_fp8_job {
	struct ws_matrix x;
	enum ws_scale_rule rule;
	bool ue8m0;
	int64_t block[2];
	ws_devptr codes; /* row r at r * codes_stride */
	int64_t codes_stride;
	ws_devptr scales; /* fp32, ceil(rows / block[0]) x ceil(cols / block[1]) */
	ws_devptr record;
	int64_t row; /* of its tensor, that x begins with: for the record */
};
int ws_compute_fp8(struct ws_compute *c, const struct ws_fp8_job *job, struct ws_stream *s,
                   struct ws_err *err);

/* out = bf16(w + scale * b @ a), as lib/transform/lora/lowrank.h; w is bf16, and out may be w. The
 * deltas of several terms are summed before they are added to w; two_step rounds each delta and
 * takes one term at a time. A delta that is not finite shows in max_delta of the record. */
enum { WS_MERGE_MOST = 4 };
struct ws_merge_term {
	ws_devptr a, b; /* fp32, dense: [rank, cols], [rows, rank] */
	int64_t rank;
	float scale;
};
struct ws_merge_job {
	struct ws_matrix w;
	struct ws_merge_term terms[WS_MERGE_MOST];
	unsigned n_terms; /* 1 or more */
	bool two_step;
	ws_devptr out; /* bf16 */
	int64_t out_stride;
	ws_devptr record;
};
int ws_compute_merge(struct ws_compute *c, const struct ws_merge_job *job, struct ws_stream *s,
                     struct ws_err *err);

enum ws_unpack_kind { WS_UNPACK_FP8, WS_UNPACK_NVFP4, WS_UNPACK_NF4 };

/* As lib/transform/unpack/unpack.h. Codes and results are dense. */
struct ws_unpack_job {
	enum ws_unpack_kind kind;
	ws_devptr codes;
	/* fp8: fp32; nvfp4: E4M3; nf4: fp32, or bytes where they are nested */
	ws_devptr scales;
	int64_t rows, cols;      /* of the numbers */
	int64_t each;            /* fp8: rows of one matrix of a stack; 0: all */
	int64_t block[2];        /* fp8; nf4: block[1] elements */
	float tensor_scale;      /* nvfp4 */
	float levels[16];        /* nf4 */
	int64_t nested_block;    /* nf4: scales under one nested scale; 0: not nested */
	ws_devptr nested, map;   /* fp32 each; map has 256 */
	float nested_offset;
	ws_devptr out;
	enum ws_dtype dtype;     /* F32, or BF16 rounded from that */
	ws_devptr record;
};
int ws_compute_unpack(struct ws_compute *c, const struct ws_unpack_job *job, struct ws_stream *s,
                      struct ws_err *err);

/* ---- values ---- */

/* The largest magnitude of the elements of a strided range, as bits: an element under the mask
 * (all bits but its sign). NaN and infinities are larger than every finite number. */
struct ws_largest_job {
	ws_devptr src;              /* a multiple of size */
	unsigned size;              /* bytes of an element: 1, 2 or 4 */
	uint32_t mask;
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];  /* > 0 */
	int64_t read[WS_MAX_DIMS];  /* strides in elements, >= 0 */
	ws_devptr found;            /* 32 bits on the device, raised to it; set to 0 before */
};
int ws_compute_largest(struct ws_compute *c, const struct ws_largest_job *job, struct ws_stream *s,
                       struct ws_err *err);

/* ---- strided copies ---- */

/* Copies element i from src + sum of i[d] * read[d] to dst + sum of i[d] * write[d]. */
struct ws_gather_job {
	ws_devptr src, dst;
	/* bytes of an element: 1, 2, 4 or 8; src and dst are multiples of it */
	unsigned size;
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS]; /* > 0 */
	int64_t read[WS_MAX_DIMS], write[WS_MAX_DIMS]; /* strides in elements, >= 0 */
};
int ws_compute_gather(struct ws_compute *c, const struct ws_gather_job *job, struct ws_stream *s,
                      struct ws_err *err);

#endif
