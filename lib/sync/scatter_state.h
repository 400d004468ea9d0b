/* SPDX-License-Identifier: Apache-2.0 */
/* scatter_state.h - what scatter.c and scatter_bytes.c share. */
#ifndef WS_SYNC_SCATTER_STATE_H
#define WS_SYNC_SCATTER_STATE_H

#include "scatter.h"

/* The plan's tensor of that part; NULL: none. */
const struct ws_plan_tensor *ws_scatter_tensor(const struct ws_scatter *s, const struct ws_part *part);

#endif
