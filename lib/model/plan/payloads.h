/* SPDX-License-Identifier: Apache-2.0 */
/* payloads.h - turns buckets of a plan into payloads for the data planes. */
#ifndef WS_MODEL_PAYLOADS_H
#define WS_MODEL_PAYLOADS_H

#include "payload.h"
#include "wsync/tool/plan.h"

/* Returns the broadcasts of bucket b in order: one payload for each tensor, or a single one if
 * flattened. Free with ws_plan_payloads_free. The plan, its catalog and its sources must
 * outlive the arrays. */
int ws_plan_payloads(const struct ws_plan *p, size_t bucket, struct ws_payload **out, size_t *n_out,
                     struct ws_err *err);
/* The same for a data plane that sends from a GPU and computes some items there. `elsewhere` gets
 * the recipe of each computed item, or NULL, and returns true to accept the item. Accepted items
 * are not computed ahead, and their spans have the recipe. Views of GPU memory are one span with
 * strided copies. The fill functions of these spans still work. */
typedef bool ws_elsewhere_fn(void *ctx, const struct ws_recipe_output *f);
int ws_plan_payloads_for_gpu(const struct ws_plan *p, size_t bucket, ws_elsewhere_fn *elsewhere,
                             void *ctx, struct ws_payload **out, size_t *n_out,
                             struct ws_err *err);
void ws_plan_payloads_free(struct ws_payload *payloads, size_t n); /* NULL is fine */
/* Also hashes computed tensors while they are read, so that they are computed once: the XXH3-64
 * of tensor i of the plan is stored in hashes[i] (borrowed) after its last byte. Tensors of
 * files are hashed by ws_plan_hash, which does not delay the sender. */
int ws_plan_payloads_watch(struct ws_payload *payloads, uint64_t *hashes, struct ws_err *err);

/* XXH3-64 of the bytes sent for tensor i. */
int ws_plan_hash(const struct ws_plan *p, size_t i, uint64_t *hash, struct ws_err *err);

#endif
