/* SPDX-License-Identifier: Apache-2.0 */
/* head.h - the head of a safetensors file that is being written (the format: safetensors.c). */
#ifndef WS_MODEL_HEAD_H
#define WS_MODEL_HEAD_H

#include "wsync/tool/buf.h"
#include "wsync/dtype.h"
#include "wsync/tool/json.h"

struct ws_head {
	struct ws_buf *out;
	struct ws_jw w;
	uint64_t at; /* bytes of data so far */
};

/* The buffer becomes the length and the header. */
void ws_head_begin(struct ws_head *h, struct ws_buf *out);
/* The next tensor, whose bytes follow those of the one before. */
void ws_head_add(struct ws_head *h, const char *name, enum ws_dtype dtype, unsigned n_dims,
                 const int64_t *dims, uint64_t bytes);
int ws_head_end(struct ws_head *h, struct ws_err *err);

#endif
