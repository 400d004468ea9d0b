/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.h - reads and checks the header of a safetensors file, and writes one (format:
 * safetensors.c). */
#ifndef WS_MODEL_SAFETENSORS_H
#define WS_MODEL_SAFETENSORS_H

#include "entry.h"
#include "wsync/tool/source.h"
#include "wsync/tool/buf.h"
#include "wsync/dtype.h"
#include "wsync/tool/json.h"

struct ws_safetensors {
	struct ws_tensor *tensors; /* in order of offset; .file is 0 */
	size_t n_tensors;
	char *text;                /* names point into it */
};

#define WS_SAFETENSORS_INIT { 0, 0, 0 }

/* Reads the header of an open file of `size` bytes; path names it in messages. */
int ws_safetensors_read(int fd, const char *path, uint64_t size, struct ws_safetensors *out,
                        struct ws_err *err);
/* The same for a whole file in memory. */
int ws_safetensors_parse(const void *file, size_t size, const char *path,
                         struct ws_safetensors *out, struct ws_err *err);
void ws_safetensors_free(struct ws_safetensors *st); /* NULL is fine */

/* The head of a safetensors file that is being written. */
struct ws_head {
	struct ws_buf *out;
	struct ws_jw w;
	uint64_t at; /* bytes of data so far */
};

/* Begins a header in `out`; ws_head_end completes it and sets its length. */
void ws_head_begin(struct ws_head *h, struct ws_buf *out);
/* Adds the next tensor, whose bytes follow those of the previous tensor. */
void ws_head_add(struct ws_head *h, const char *name, enum ws_dtype dtype, unsigned n_dims,
                 const int64_t *dims, uint64_t bytes);
int ws_head_end(struct ws_head *h, struct ws_err *err);

#endif
