/* SPDX-License-Identifier: Apache-2.0 */
/* push_checks.h - the checks of a push: names, FP8 and values before anything changes, checksums
 * afterwards. */
#ifndef WS_PUSH_CHECKS_H
#define WS_PUSH_CHECKS_H

#include "hashes.h"
#include "job.h"
#include "prover.h"
#include "wsync/push.h"
#include "wsync/tool/formats.h"
#include "wsync/tool/name_check_run.h"
#include "wsync/tool/plan.h"

struct ws_push;

struct push_checks {
	struct ws_name_check_run names; /* of all endpoints together (push_names.c) */
	struct ws_hashes hashes; /* push_verify.c: of what wsync-endpoint has */
	struct ws_prover *prover; /* push_verify.c: of what other servers have; NULL: none */
	/* push_label.c: of each endpoint, from before the push; NULL: none */
	struct ws_checksums *before;
	struct ws_job values;    /* scans for NaN and Inf in the background (push_values.c) */
	struct ws_cancel stop_values;
	bool on_values;
	bool values_read;        /* all of them were scanned, and are finite */
};

/* ---- push_names.c ---- */

/* Compares names, shapes and dtypes with every endpoint, unless --verify none. */
int push_names(struct ws_push *p, struct ws_err *err);
/* Do the names of this plan, of a source without a choice, fit what endpoint i lists, now or at an
 * earlier push? */
bool push_names_listed(const struct ws_push *p, size_t i);
/* Requests the list of each endpoint once, into p->to.listed. */
int push_find_targets(struct ws_push *p, struct ws_err *err);
/* Forgets p->to.listed: the endpoints may be other servers now. */
void push_names_forget(struct ws_push *p);

/* ---- push_require.c ---- */

int push_require_before(const struct ws_push *p, struct ws_err *err);
/* The weights are committed already. */
int push_require_after(const struct ws_push *p, struct ws_err *err);

/* ---- push_fp8.c ---- */

/* Sets p->from.server_config for a push that quantizes. */
void push_find_server_config(struct ws_push *p);
/* Checks that every endpoint can load the plan's weights (formats.h). Fills in `format` of each. */
int push_check_fp8(struct ws_push *p, struct ws_err *err);
/* What was assumed of formats, or allowed, for the last line; NULL: nothing. */
const char *push_format_note(const struct ws_push *p);

/* ---- push_sends.c: the formats that a plan sends ---- */

enum { PUSH_MODULE = 1024 }; /* bytes of a name */
struct push_sends {
	const struct ws_plan *plan;
	const struct ws_plan_tensor **index;
	const char *name[WS_N_SENDS]; /* of the first tensor of each format; NULL: not sent */
};
int push_sends_open(const struct ws_plan *plan, struct push_sends *out, struct ws_err *err);
/* Fills in `name`. A 16-bit matrix that q's list has is OTHER; q: of the server, NULL: not
 * known. */
void push_sends_find(struct push_sends *s, const struct ws_quant *q);
/* Have the scales of these codes the sizes of that weight_block_size? packed: the caller wants
 * packed ones, which are not compared. */
bool push_scales_fit(const struct push_sends *s, const struct ws_plan_tensor *codes,
                     const int64_t block[2], bool packed);
void push_sends_close(struct push_sends *s);

/* ---- push_probe_scales.c ---- */

enum push_probed { PROBED_NOTHING, PROBED_SCALES, PROBED_NO_SCALES };
/* Requests the scale of one weight of the plan. -1: cancelled, or a system error. */
int push_probe_scales(struct ws_push *p, const struct ws_endpoint_info *info, enum push_probed *out,
                      struct ws_err *err);

/* ---- push_finite.c ---- */

/* -1: a tensor that is sent as it is has a NaN or an infinity. Reads all of them. */
int push_check_finite(struct ws_push *p, struct ws_err *err);

/* ---- push_values.c: scans inputs of transforms for NaN and Inf ---- */

/* Adds the GPU memory and the pinned memory that the scan needs. */
void push_values_memory(const struct ws_push *p, uint64_t *gpu, uint64_t *pinned);
int push_values_begin(struct ws_push *p, struct ws_err *err); /* in the background */
int push_values(struct ws_push *p, struct ws_err *err);       /* waits for the result */
void push_values_end(struct ws_push *p);                      /* cancels the rest */

/* ---- push_label.c: was the weight version that of other bytes? ---- */

/* Asks endpoints that have the version of this push for their checksums. */
int push_label_begin(struct ws_push *p, struct ws_err *err);
/* Warns if they were different. */
void push_label_compare(struct ws_push *p, size_t i, const struct ws_checksums *now);
void push_label_end(struct ws_push *p);

/* ---- push_verify.c: --verify hash, and the weight version ---- */

/* Some layers may have no values now: then a request for checksums fails. */
bool push_may_lack_values(const struct ws_push *p, size_t i);

int push_hash_begin(struct ws_push *p, struct ws_err *err); /* in the background */
int push_hash_wait(struct ws_push *p, ws_deadline until, struct ws_err *err);
void push_hash_end(struct ws_push *p);                      /* cancels the rest */
int push_verify_can(struct ws_push *p, struct ws_err *err);
int push_verify(struct ws_push *p, struct ws_err *err);
int push_set_version(struct ws_push *p, struct ws_err *err);

#endif
