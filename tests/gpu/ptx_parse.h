/* SPDX-License-Identifier: Apache-2.0 */
/* ptx_parse.h - what ptx_parse.c, which reads modules, and ptx_decode.c, which
 * reads instructions, share. */
#ifndef TESTS_GPU_PTX_PARSE_H
#define TESTS_GPU_PTX_PARSE_H

#include "ptx.h"

#include <stdlib.h>
#include <string.h>

enum { PTX_NAME = 128, PTX_FILES = 16 };

struct ptx_file { /* of registers: %r<17> */
	char prefix[16];
	char class;
	uint32_t first, n;
};

struct ptx_label { /* or a jump to one */
	char name[64];
	uint32_t at;
};

struct ptx_parser {
	struct ptx_module *m;
	struct ptx_kernel *k;
	struct ptx_trouble *why;
	const char *at;
	uint32_t line;
	char param[PTX_NAME];
	struct ptx_file files[PTX_FILES];
	struct ptx_label *labels, *jumps;
	uint32_t n_files, n_labels, n_jumps;
};

/* False. */
bool ptx_refuse(struct ptx_parser *p, const char *what, const char *which);
/* .reg .b32 %r<17> */
bool ptx_declare_registers(struct ptx_parser *p, const char *text);
/* One more instruction of the kernel; text is cut up. */
bool ptx_decode(struct ptx_parser *p, char *text);

static inline bool ptx_begins(const char *text, const char *with)
{
	return strncmp(text, with, strlen(with)) == 0;
}

/* Room for one more in an array, which doubles whenever its length is a power of two. */
static inline void *ptx_grow(void *array, uint32_t n, size_t size)
{
	void *more = n & (n - 1) ? array : realloc(array, (n ? 2 * (size_t)n : 1) * size);
	if (!more)
		abort();
	return more;
}
#define PTX_APPEND(array, n) ((array) = ptx_grow(array, n, sizeof *(array)), &(array)[(n)++])

#endif
