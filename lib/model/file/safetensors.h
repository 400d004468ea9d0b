/* SPDX-License-Identifier: Apache-2.0 */
/* safetensors.h - the header of one safetensors file, read and judged. */
#ifndef WS_MODEL_SAFETENSORS_H
#define WS_MODEL_SAFETENSORS_H

#include "entry.h"
#include "wsync/tool/source.h"

struct ws_safetensors {
	struct ws_tensor *tensors; /* by offset in the file; .file is 0 */
	size_t n_tensors;
	struct ws_pair *metadata;  /* as in the file */
	size_t n_metadata;
	char *text;                /* names and metadata point into it */
};

#define WS_SAFETENSORS_INIT { 0, 0, 0, 0, 0 }

/* Reads the header of an open file of `size` bytes; path names it in messages. */
int ws_safetensors_read(int fd, const char *path, uint64_t size, struct ws_safetensors *out,
                        struct ws_err *err);
/* The same for a whole file in memory. */
int ws_safetensors_parse(const void *file, size_t size, const char *path,
                         struct ws_safetensors *out, struct ws_err *err);
void ws_safetensors_free(struct ws_safetensors *st); /* NULL is fine */

#endif
