/* SPDX-License-Identifier: Apache-2.0 */
/* push_vllm.h - shared by the two ways into a vLLM: broadcasts (push_vllm.c) and memory that it
 * opens (push_vllm_ipc.c). */
#ifndef WS_PUSH_VLLM_H
#define WS_PUSH_VLLM_H

#include "push_protocol.h"

/* Writes names, types and shapes of a bucket's tensors as members of update_info. */
void push_vllm_write_tensors(const struct ws_push *p, struct ws_jw *w, size_t b);
/* Reads the answers to bucket k, whose bytes were `right`, and adds hints to errors. */
void push_vllm_report(struct ws_push *p, const struct push_bucket *k, bool right);
/* Adds such a hint to the first error. */
void push_vllm_explain(const struct ws_push *p, struct ws_err *err);
/* Adds members to the update_info of no tensors; NULL: none. */
typedef void push_vllm_more(const struct ws_push *p, struct ws_jw *w);
/* Begins the updates. */
int push_vllm_begin(struct ws_push *p, push_vllm_more *more, struct ws_err *err);
/* Sends an update of no tensors to the wanted endpoints, which are without sessions: their layers
 * forget parts. Layers without parts have their old values again. The caller closes r. */
int push_vllm_send_nothing(struct ws_push *p, struct push_request *r, push_vllm_more *more,
                           bool (*wanted)(const struct push_endpoint *), ws_deadline until,
                           const struct ws_cancel *cancel, struct ws_err *err);
/* Was endpoint i started with this engine? */
int push_vllm_check_engine(const struct ws_push *p, size_t i, const char *engine,
                           struct ws_err *err);
int push_vllm_refuse(const struct ws_push *p, size_t i, const char *what, const char *remedy,
                     struct ws_err *err);

#endif
