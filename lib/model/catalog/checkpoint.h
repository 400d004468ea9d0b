/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h - the part of a source that cmd/ does not need: spans to send, and the config.json
 * of a synthetic model. */
#ifndef WS_MODEL_CHECKPOINT_H
#define WS_MODEL_CHECKPOINT_H

#include "payload.h"
#include "wsync/tool/buf.h"
#include "wsync/tool/source.h"

/* Fills *span with the whole tensor, which must belong to s and not be empty. The span borrows
 * from the source. */
void ws_source_span(const struct ws_source *s, const struct ws_tensor *t, struct ws_span *span);

/* Appends the config.json of a synthetic model; model is its name, without a seed. */
int ws_synthetic_config(const char *model, struct ws_buf *out, struct ws_err *err);

#endif
