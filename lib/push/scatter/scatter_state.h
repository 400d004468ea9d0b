/* SPDX-License-Identifier: Apache-2.0 */
/* scatter_state.h - shared by scatter.c, scatter_share.c and scatter_bytes.c. */
#ifndef WS_PUSH_SCATTER_STATE_H
#define WS_PUSH_SCATTER_STATE_H

#include "scatter.h"

/* The plan's tensor of that part; NULL: none. */
const struct ws_plan_tensor *ws_scatter_tensor(const struct ws_scatter *s,
                                               const struct ws_part *part);

/* The bytes of an entry for all ranks together. */
uint64_t ws_scatter_entry_bytes(const struct ws_scatter *s, const struct ws_scatter_entry *e);
/* Assigns senders: fills in the ranges of all entries. */
int ws_scatter_share(struct ws_scatter *s, struct ws_err *err);

#endif
