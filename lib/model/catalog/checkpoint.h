/* SPDX-License-Identifier: Apache-2.0 */
/* checkpoint.h - the part of a source that cmd/ does not need: spans to send, files to write. */
#ifndef WS_MODEL_CHECKPOINT_H
#define WS_MODEL_CHECKPOINT_H

#include "payload.h"
#include "wsync/tool/buf.h"
#include "wsync/tool/source.h"

/* Fills *span with the whole tensor, which must belong to s and not be empty. The span borrows
 * from the source. */
void ws_source_span(const struct ws_source *s, const struct ws_tensor *t, struct ws_span *span);

/* Writes all tensors of s as a Hugging Face checkpoint into directory dir (made when missing):
 * model.safetensors, or with several shards model-0000i-of-0000n.safetensors and the index.
 * shard_bytes 0: one file. Each file is written under a temporary name and renamed. Files of
 * another checkpoint in that directory stay, except an index that would hide what was written. */
int ws_checkpoint_write(const struct ws_source *s, const char *dir, uint64_t shard_bytes,
                        struct ws_err *err);

/* Appends the config.json of a synthetic model; model is its name, without a seed. */
int ws_synthetic_config(const char *model, struct ws_buf *out, struct ws_err *err);

#endif
