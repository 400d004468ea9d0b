/* SPDX-License-Identifier: Apache-2.0 */
/* push_export.h - buckets in memory of our GPU, which servers of this machine open (CUDA IPC).
 * Shared by push_ipc.c and push_vllm_ipc.c, whose requests name the place of a bucket.
 *
 * The memory is kept from one run to the next. */
#ifndef WS_PUSH_EXPORT_H
#define WS_PUSH_EXPORT_H

#include "pickle.h"
#include "push_protocol.h"

/* Functions of a protocol. prepare allocates the memory: no endpoint is paused yet, so a lack of
 * GPU memory does no harm. */
int push_export_prepare(struct ws_push *p, struct ws_err *err);
bool push_export_makes(const struct ws_push *p, const struct ws_recipe_output *f);
void push_export_stage(struct ws_push *p, const struct ws_payload *payloads, size_t n);
void push_export_forget(struct ws_push *p, bool ended);

/* Asks all endpoints to load bucket k from `where`. since: when the work on it began. */
typedef int push_export_post(struct ws_push *p, const struct push_bucket *k,
                             const struct ws_pickle_cuda *where, int64_t since,
                             struct ws_err *err);
/* Loads the bucket into the memory and posts it. From then on the memory is lent. */
int push_export_bucket(struct ws_push *p, const struct push_bucket *k, push_export_post *post,
                       struct ws_err *err);
/* Was the memory lent since the last call? Servers may still read it then. */
bool push_export_was_lent(struct ws_push *p);
/* Warns that endpoint i may still read the memory. why: what it answered. */
void push_export_warn(struct ws_push *p, size_t i, const char *why);
/* Waits for a server that refused a request: it still runs, and may still read. */
void push_export_grace(void);

#endif
