/* SPDX-License-Identifier: Apache-2.0 */
/* compute.h - transforms of weights on a GPU. The results have the same bits as lib/transform.
 *
 * Every function queues its work in a stream and returns; addresses must stay valid until the
 * stream has done it. Shapes are asserted. Kernels write findings about the numbers (the first
 * that is not finite, the largest) to a record on the device, which the caller copies out. */
#ifndef WS_GPU_COMPUTE_H
#define WS_GPU_COMPUTE_H

#include "cuda_driver.h"
#include "kernels/args.h"

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
	int64_t row, col;        /* the first such element of a launch, row by row */
	float max_delta, max_w;  /* merges: the largest |delta|, as added, and |w| */
};

/* Sets the record to zeros. One record serves all launches over one tensor. */
int ws_record_clear(struct ws_compute *c, ws_devptr record, struct ws_stream *s,
                    struct ws_err *err);
/* Decodes bytes that were copied out. cols: columns of the tensor. */
void ws_record_read(const void *bytes, int64_t cols, struct ws_record *out);

/* ---- transforms ---- */

/* As lib/transform/fp8/fp8.h; x is F32 or BF16. */
int ws_compute_fp8(struct ws_compute *c, bool is_f32, const struct ws_fp8_args *a,
                   struct ws_stream *s, struct ws_err *err);

/* out = bf16(w + scale * b @ a), as lib/transform/lora/lowrank.h. A delta that is not finite shows
 * in max_delta of the record. */
int ws_compute_merge(struct ws_compute *c, const struct ws_merge_args *a, struct ws_stream *s,
                     struct ws_err *err);

/* As lib/transform/unpack/unpack.h. Codes and results are dense. */
enum ws_unpack_kind { WS_UNPACK_FP8, WS_UNPACK_NVFP4, WS_UNPACK_NF4 };
int ws_compute_unpack(struct ws_compute *c, enum ws_unpack_kind kind,
                      const struct ws_unpack_args *args, struct ws_stream *s, struct ws_err *err);

/* ---- values ---- */

/* The largest magnitude of the elements of a strided range, as bits: an element under `mask`, which
 * has all bits except the sign. NaN and infinities are larger than every finite number. */
struct ws_largest_job {
	ws_devptr src;              /* a multiple of size */
	unsigned size;              /* bytes of an element: 1, 2 or 4 */
	uint32_t mask;
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];  /* > 0 */
	int64_t read[WS_MAX_DIMS];  /* strides in elements, >= 0 */
	ws_devptr found;            /* out: 32 bits on the device; set them to 0 before */
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
