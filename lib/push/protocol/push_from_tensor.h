/* SPDX-License-Identifier: Apache-2.0 */
/* push_from_tensor.h - /update_weights_from_tensor: what is common to whoever posts a bucket to
 * it, whether its bytes stand in the request or lie elsewhere. */
#ifndef WS_PUSH_FROM_TENSOR_H
#define WS_PUSH_FROM_TENSOR_H

#include "pickle.h"
#include "push_protocol.h"

/* Do they take buckets of any types in one? */
bool push_from_tensor_takes(const struct ws_capabilities *can);
/* One request is for all endpoints, and has an element for each rank. */
unsigned push_from_tensor_ranks(const struct ws_push *p);
int push_from_tensor_check_ranks(const struct ws_push *p, struct ws_err *err);

/* The bucket's tensors as a pickle lists them; free(3) frees them. Their names are the plan's. */
struct ws_pickle_tensor *push_from_tensor_list(const struct ws_push *p, size_t b,
                                               struct ws_err *err);
/* Posts bucket k, which the pickle holds or points to, and judges the answers.
 * since: when its turn began. */
int push_from_tensor(struct ws_push *p, const struct push_bucket *k, const struct ws_buf *pickle,
                     int64_t since, struct ws_err *err);
/* Posts a bucket of no tensors to all endpoints. Afterwards their ranks are done with what they
 * were given before, or errs of the push say whose are not. */
int push_from_tensor_empty(struct ws_push *p, ws_deadline until, struct ws_err *err);

#endif
