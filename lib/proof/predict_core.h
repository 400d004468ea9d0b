/* SPDX-License-Identifier: Apache-2.0 */
/* predict_core.h - shared by predict.c and predict_fp8.c. */
#ifndef WS_PROOF_PREDICT_CORE_H
#define WS_PROOF_PREDICT_CORE_H

#include "digest.h"
#include "stripe.h"

struct ws_predict {
	struct ws_predict_opts opts;
	const struct ws_plan_tensor **sorted; /* the plan's tensors, by name */
};

/* A parameter at a rank, as bytes. */
struct predict_param {
	const struct ws_param *param;
	enum ws_dtype dtype, stored; /* of the parameter, and of its tensors */
	int64_t dims[WS_MAX_DIMS];
	uint64_t bytes, stored_bytes;
	struct ws_stripes stripes; /* of stored bytes */
	size_t at;                /* the stripe that was read last */
	/* of the numbers that were read: are any, the first one, and are they not all equal? */
	bool read, varies;
	uint8_t first[8];
};

/* WS_EREFUSED: this parameter cannot be predicted. Close it in any case. */
int predict_param_open(const struct ws_predict *p, const struct ws_param *param, unsigned rank,
                       struct predict_param *out, struct ws_err *err);
void predict_param_close(struct predict_param *x);
/* Copies stored bytes [at, at + n) to dst. Rising offsets are fast. */
int predict_param_read(struct predict_param *x, uint64_t at, void *dst, size_t n,
                       struct ws_err *err);

/* The param of a weight's block scales; NULL: it has none. */
const struct ws_param *predict_scales_of(const struct ws_predict *p, const struct ws_param *param);
/* WS_EREFUSED: codes and scales of these shapes and types cannot be dequantized. */
int predict_check_blocks(const struct predict_param *codes, const struct predict_param *scales,
                         struct ws_err *err);
/* True for such a param. */
bool predict_is_scales(const struct ws_predict *p, const struct ws_param *param);
/* Adds the dequantization of a weight to d: bf16 of code * scale, each to nearest. *rewrites: a
 * server may rewrite such a weight when it loads; *rewritten then has that. WS_EREFUSED: it has a
 * NaN, of which the bits depend on the server's device. */
int predict_dequantized(const struct ws_predict *p, struct predict_param *codes,
                        struct predict_param *scales, struct ws_digest *d,
                        struct ws_digest *rewritten, bool *rewrites, struct ws_err *err);

#endif
