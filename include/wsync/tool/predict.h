/* SPDX-License-Identifier: Apache-2.0 */
/* predict.h - the checksum that a server must report for each runtime parameter of each rank, if it
 * has the tensors of a plan.
 *
 * The bytes of a parameter follow from the layout: fused, cut for the rank, padded with zeros. They
 * are read in pieces and never stored. Sources: SGLang's WeightChecker (0.5.12 to 0.5.23), which
 * lists block FP8 under the weight's name alone, over its bf16 dequantization; vLLM's
 * /weight_checker (since 0.32), SHA-256 of each parameter's bytes. */
#ifndef WSYNC_PREDICT_H
#define WSYNC_PREDICT_H

#include "wsync/cancel.h"
#include "wsync/tool/layout.h"
#include "wsync/tool/plan.h"

#ifdef __cplusplus
extern "C" {
#endif

enum ws_checksum_fn {
	WS_CHECKSUM_SGLANG_CPU,
	WS_CHECKSUM_SGLANG_CUDA,
	/* the same of a server that makes block scales powers of two when it loads: `rewritten` */
	WS_CHECKSUM_SGLANG_CUDA_UE8M0,
	WS_CHECKSUM_SHA256
};
extern const char *const ws_checksum_fn_names[]; /* "sglang-cpu", ...; ends with NULL */

enum { WS_CHECKSUM_TEXT = 65 }; /* hex digits of the longest checksum, and NUL */

struct ws_predict_opts {
	const struct ws_layout *layout;
	const struct ws_plan *plan;
	/* of parameters whose dtype the layout does not fix; NULL: they have that of the plan */
	const enum ws_dtype *dtype;
	enum ws_checksum_fn fn;
	const struct ws_cancel *cancel; /* NULL */
};

enum ws_predict_state {
	WS_PREDICT_KNOWN,
	WS_PREDICT_OPAQUE,  /* no rule, or a tensor is missing: `why` */
	WS_PREDICT_UNLISTED /* the server reports none: a scale */
};

struct ws_prediction {
	enum ws_predict_state state;
	char checksum[WS_CHECKSUM_TEXT];
	/* of block FP8 on CUDA, if the server makes the scales powers of two when it loads
	 * (DeepGEMM on Blackwell); "": it does not, or they are so already */
	char rewritten[WS_CHECKSUM_TEXT];
	char why[256];
	uint64_t bytes;         /* of the parameter at this rank; 0: unknown */
	/* all its numbers are equal, so they are the same in any arrangement */
	bool constant;
};

struct ws_predict; /* opaque */

/* Everything that opts points to must outlive *out. */
int ws_predict_open(const struct ws_predict_opts *opts, struct ws_predict **out,
                    struct ws_err *err);
void ws_predict_close(struct ws_predict *p); /* NULL is fine */
/* Predicts parameter `param` of the layout at that rank; a tied one as if it had its own memory.
 * Several threads may call it at once. Fails only if the source cannot be read, or on a cancel. */
int ws_predict(const struct ws_predict *p, size_t param, unsigned rank, struct ws_prediction *out,
               struct ws_err *err);

/* The same of wrong weights, to recognize them: the two halves of a fused parameter are swapped (up
 * before gate). *known false: the parameter does not have two halves. */
int ws_predict_swapped(const struct ws_predict *p, size_t param, unsigned rank, bool *known,
                       char checksum[WS_CHECKSUM_TEXT], struct ws_err *err);
/* Number of the plan's tensors that go to that parameter. */
size_t ws_predict_tensors(const struct ws_predict *p, size_t param);
/* Can that parameter be predicted? Reads no tensor. False: *why (256 bytes) says what prevents it;
 * *bytes are those at that rank, 0 if unknown, or if servers report none of it (scales). */
bool ws_predict_can(const struct ws_predict *p, size_t param, unsigned rank, char *why,
                    uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
