/* SPDX-License-Identifier: Apache-2.0 */
/* push_ready.h - a push whose bytes were made beforehand, for who measures the wire alone. */
#ifndef WS_PUSH_READY_H
#define WS_PUSH_READY_H

#include "push_protocol.h"

/* Where the options want it: makes all bytes, once for a plan. */
int push_ready_make(struct ws_push *p, struct ws_err *err);
bool push_is_ready(const struct ws_push *p);
/* As ws_plan_payloads, from what was made; free(3) frees it. */
int push_ready_bucket(const struct ws_push *p, size_t b, struct ws_payload **out, size_t *n_out,
                      struct ws_err *err);

#endif
