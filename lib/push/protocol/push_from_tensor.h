/* SPDX-License-Identifier: Apache-2.0 */
/* push_from_tensor.h - posts a bucket to /update_weights_from_tensor, for protocols with its bytes
 * in the request (push_tensor.c) or in GPU memory (push_ipc.c). */
#ifndef WS_PUSH_FROM_TENSOR_H
#define WS_PUSH_FROM_TENSOR_H

#include "pickle.h"
#include "push_protocol.h"

/* Do servers take buckets of mixed dtypes? */
bool push_from_tensor_takes(const struct ws_capabilities *can);
/* The ranks of a server. A request has an element for each, and is the same for all endpoints. */
unsigned push_from_tensor_ranks(const struct ws_push *p);
int push_from_tensor_check_ranks(const struct ws_push *p, struct ws_err *err);

/* Lists the bucket's tensors for a pickle. The caller frees the list; the plan owns the names. */
struct ws_pickle_tensor *push_from_tensor_list(const struct ws_push *p, size_t b,
                                               struct ws_err *err);
/* Posts bucket k, whose bytes are in the pickle or in memory that it names, and reports the
 * answers. since: when the work on this bucket began. */
int push_from_tensor(struct ws_push *p, const struct push_bucket *k, const struct ws_buf *pickle,
                     int64_t since, struct ws_err *err);
/* Posts a bucket without tensors to all endpoints. A rank that loads it has finished with all
 * earlier buckets. errs of the push name the endpoints that failed. */
int push_from_tensor_empty(struct ws_push *p, ws_deadline until, struct ws_err *err);

#endif
