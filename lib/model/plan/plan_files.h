/* SPDX-License-Identifier: Apache-2.0 */
/* plan_files.h - a plan written down as a Hugging Face checkpoint: each bucket is a file.
 *
 * A bucket's bytes are exactly the data of a safetensors file, so what would travel is what is
 * written, by the same means and in no more memory. The plan must be one of flattened buckets,
 * which are in an order that aligns their tensors. */
#ifndef WS_MODEL_PLAN_FILES_H
#define WS_MODEL_PLAN_FILES_H

#include "payload.h"
#include "wsync/tool/plan.h"

enum { WS_PLAN_FILE_NAME = 64 };

/* "model.safetensors", or "model-00002-of-00005.safetensors". Returns dst. */
char *ws_plan_file_name(const struct ws_plan *p, size_t bucket, char dst[WS_PLAN_FILE_NAME]);
/* What all of them take on a disk, a little more rather than less. */
uint64_t ws_plan_files_bytes(const struct ws_plan *p);

/* Asked after every few MiB, with the bytes since it was asked last; -1
 * (and *err) ends the writing. */
typedef int ws_plan_files_tick(void *ctx, uint64_t bytes, struct ws_err *err);

/* Writes bucket's file into the directory dir, where there must be none of its name, and has it
 * on the disk. payloads are the bucket's. A file that could not be finished is left. */
int ws_plan_file_write(const struct ws_plan *p, size_t bucket, const struct ws_payload *payloads,
                       size_t n_payloads, const char *dir, ws_plan_files_tick *tick, void *ctx,
                       struct ws_err *err);
/* model.safetensors.index.json; nothing where there is one file only. */
int ws_plan_index_write(const struct ws_plan *p, const char *dir, struct ws_err *err);

extern const char ws_plan_index_name[];

#endif
