/* SPDX-License-Identifier: Apache-2.0 */
/* payloads.h - the plan as the data planes see it. */
#ifndef WS_MODEL_PAYLOADS_H
#define WS_MODEL_PAYLOADS_H

#include "payload.h"
#include "wsync/tool/plan.h"

/* The broadcasts of bucket b in order: one payload per tensor, or a single one when flattened. The
 * arrays are allocated; free with ws_plan_payloads_free. The plan, its catalog and its sources must
 * outlive. */
int ws_plan_payloads(const struct ws_plan *p, size_t bucket, struct ws_payload **out, size_t *n_out,
                     struct ws_err *err);
/* The same for a data plane that sends from a GPU, and computes some of what is made there by
 * itself: it is asked for each such tensor, with its formula or NULL. What it takes upon itself
 * is not made ahead, and its spans have the formula; views of what is on GPUs are one span with
 * its boxes. Their fill works all the same. */
typedef bool ws_elsewhere_fn(void *ctx, const struct ws_formula_out *f);
int ws_plan_payloads_but(const struct ws_plan *p, size_t bucket, ws_elsewhere_fn *elsewhere,
                         void *ctx, struct ws_payload **out, size_t *n_out, struct ws_err *err);
void ws_plan_payloads_free(struct ws_payload *payloads, size_t n); /* NULL is fine */
/* What is made of these is also hashed as it is handed out, so that it is made once: the XXH3-64
 * of tensor i of the plan goes to hashes[i], which are borrowed, when its last byte does.
 * Tensors that are read stay for ws_plan_hash, which takes no one's time that sends. */
int ws_plan_payloads_watch(struct ws_payload *payloads, uint64_t *hashes, struct ws_err *err);

/* XXH3-64 of the bytes that tensor i sends. */
int ws_plan_hash(const struct ws_plan *p, size_t i, uint64_t *hash, struct ws_err *err);

#endif
