/* SPDX-License-Identifier: Apache-2.0 */
/* plan_files.h - writes a plan as a Hugging Face checkpoint: each bucket is a file.
 *
 * A bucket's bytes are the data of a safetensors file. They are produced like the bytes of a push,
 * with no more memory. The plan must have flattened buckets, whose order aligns their tensors. */
#ifndef WS_MODEL_PLAN_FILES_H
#define WS_MODEL_PLAN_FILES_H

#include "payload.h"
#include "wsync/tool/plan.h"

enum { WS_PLAN_FILE_NAME = 64 };

/* "model.safetensors", or "model-00002-of-00005.safetensors". Returns dst. */
char *ws_plan_file_name(const struct ws_plan *p, size_t bucket, char dst[WS_PLAN_FILE_NAME]);
/* Upper estimate of the disk space for all files. */
uint64_t ws_plan_files_bytes(const struct ws_plan *p);

/* Called every few MiB with the bytes since the last call; -1 (and *err) ends the writing. */
typedef int ws_plan_files_tick(void *ctx, uint64_t bytes, struct ws_err *err);

/* Writes the bucket's file into directory dir, where the name must be free, and syncs it. payloads
 * are the bucket's. On failure an incomplete file remains. */
int ws_plan_file_write(const struct ws_plan *p, size_t bucket, const struct ws_payload *payloads,
                       size_t n_payloads, const char *dir, ws_plan_files_tick *tick, void *ctx,
                       struct ws_err *err);
/* Writes model.safetensors.index.json; does nothing if there is only one file. */
int ws_plan_index_write(const struct ws_plan *p, const char *dir, struct ws_err *err);

extern const char ws_plan_index_name[];

#endif
