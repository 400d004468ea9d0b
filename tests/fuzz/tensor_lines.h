/* SPDX-License-Identifier: Apache-2.0 */
/* tensor_lines.h - a safetensors file out of lines that say what there is; an
 * empty line or "--" ends them:
 *
 *   NAME DTYPE DIM DIM ...      (safetensors' DTYPE)
 *   NAME = TEXT                 (U8, as long as the text)
 *
 * Bytes are dealt out to the tensors, again and again when they are few. */
#ifndef TESTS_FUZZ_TENSOR_LINES_H
#define TESTS_FUZZ_TENSOR_LINES_H

#include "wsync/dtype.h"
#include "wsync/tool/json.h"

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { MAX_BYTES = 1 << 15, MAX_TENSORS = 16 };

static void require(int true_here)
{
	if (!true_here)
		abort();
}

/* ---- the file ---- */

struct tensor {
	const char *text; /* "= TEXT" */
	size_t text_len;
	uint64_t bytes;
};

struct made {
	struct ws_buf header;
	struct ws_jw w;
	struct tensor tensors[MAX_TENSORS];
	size_t n;
	uint64_t bytes;
};

static bool read_dims(const char *rest, enum ws_dtype dtype, struct ws_jw *w, uint64_t *bytes)
{
	int64_t dims[WS_MAX_DIMS];
	unsigned n = 0;
	char *end;
	for (; n < WS_MAX_DIMS; n++, rest = end) {
		const long long d = strtoll(rest, &end, 10);
		if (end == rest)
			break;
		if (d < 0)
			return false;
		dims[n] = d;
		ws_jw_int(w, NULL, d);
	}
	return ws_dtype_bytes(dtype, n, dims, bytes) && *bytes <= MAX_BYTES;
}

static bool add_tensor(struct made *m, const char *line, size_t len)
{
	struct tensor *t = &m->tensors[m->n++];
	const size_t name = strcspn(line, " ");
	const char *const rest = line + name + strspn(line + name, " ");
	const size_t word = strcspn(rest, " ");
	enum ws_dtype dtype = WS_DTYPE_U8;
	char spelled[16];
	snprintf(spelled, sizeof spelled, "%.*s", (int)(word < 16 ? word : 0), rest);
	const bool text = strcmp(spelled, "=") == 0;
	if (!text && !ws_dtype_from_safetensors(spelled, &dtype))
		return false;
	char *const key = strndup(line, name);
	ws_jw_object(&m->w, key);
	free(key);
	ws_jw_str(&m->w, "dtype", ws_dtype_safetensors(dtype));
	ws_jw_array(&m->w, "shape");
	*t = (struct tensor){ .text = NULL };
	if (text) {
		t->text = rest + 1 + (rest[1] == ' ');
		t->bytes = t->text_len = (size_t)(line + len - t->text);
		ws_jw_uint(&m->w, NULL, t->bytes);
	} else if (!read_dims(rest + word, dtype, &m->w, &t->bytes)) {
		return false;
	}
	ws_jw_end_array(&m->w);
	ws_jw_array(&m->w, "data_offsets");
	ws_jw_uint(&m->w, NULL, m->bytes);
	ws_jw_uint(&m->w, NULL, m->bytes + t->bytes);
	ws_jw_end_array(&m->w);
	ws_jw_end_object(&m->w);
	m->bytes += t->bytes;
	return m->bytes <= MAX_BYTES;
}

/* The header of the lines; where they end, or NULL. */
static const char *read_lines(struct made *m, const char *text)
{
	ws_jw_init(&m->w, &m->header);
	ws_jw_object(&m->w, NULL);
	while (*text && *text != '\n' && strncmp(text, "--\n", 3)) {
		char *line = strndup(text, strcspn(text, "\n"));
		const size_t len = strlen(line);
		/* The text of "= TEXT" is in the input itself. */
		const bool good = m->n < MAX_TENSORS && add_tensor(m, line, len);
		if (good && m->tensors[m->n - 1].text)
			m->tensors[m->n - 1].text = text + (m->tensors[m->n - 1].text - line);
		free(line);
		if (!good)
			return NULL;
		text += len + (text[len] == '\n');
	}
	ws_jw_end_object(&m->w);
	return m->header.failed ? NULL : text + (*text == '\n');
}

static void put(int fd, const void *bytes, size_t n)
{
	require(write(fd, bytes, n) == (ssize_t)n);
}

static void put_data(int fd, const struct made *m, const char *data, size_t n)
{
	uint8_t bytes[MAX_BYTES];
	size_t at = 0, taken = 0;
	for (size_t i = 0; i < m->n; i++)
		for (uint64_t k = 0; k < m->tensors[i].bytes; k++)
			bytes[at++] = (uint8_t)(m->tensors[i].text ? m->tensors[i].text[k] :
			                        n ? data[taken++ % n] : 0);
	put(fd, bytes, at);
}

/* A file in memory of the lines that text begins with, and its path; -1: they are none. */
static int open_lines(const char *text, const char *data, size_t n_data, char path[64])
{
	struct made m = { .n = 0 };
	ws_buf_init(&m.header, 1 << 20);
	const int fd = read_lines(&m, text) ? memfd_create("x.safetensors", 0) : -1;
	if (fd >= 0) {
		const uint64_t n = m.header.len;
		put(fd, &n, sizeof n);
		put(fd, m.header.data, m.header.len);
		put_data(fd, &m, data, n_data);
		snprintf(path, 64, "/proc/self/fd/%d", fd);
	}
	ws_buf_free(&m.header);
	return fd;
}

#endif
