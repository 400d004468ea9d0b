/* SPDX-License-Identifier: Apache-2.0 */
/* A few tensors, quantized or not. Lines say what there is; an empty line ends them, and the bytes that
 * follow are dealt out, again and again when they are few:
 *
 *   NAME DTYPE DIM DIM ...      (safetensors' DTYPE)
 *   NAME = TEXT                 (U8, as long as the text)
 *
 * What is found must fit its tensors, and its rows must be the same whole, one by one, and by both levels. */
#include "unpack.h"

#include "wsync/json.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

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
	while (*text && *text != '\n') {
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

/* ---- what it comes to ---- */

static float *rows_of(const struct ws_packed *p, const char *level, int64_t step, struct ws_err *err)
{
	struct ws_buf scratch = { .max = 0 };
	float *x = malloc((size_t)(p->rows * p->cols) * sizeof *x + 1);
	int rc = x && ws_unpack_set_level(level) ? 0 : -1;
	for (int64_t row = 0; row < p->rows && rc == 0; row += step)
		rc = ws_packed_rows(p, row, step < p->rows - row ? step : p->rows - row, x + row * p->cols,
		                    &scratch, err);
	ws_buf_free(&scratch);
	if (rc == 0)
		return x;
	free(x);
	return NULL;
}

static void compare_rows(const struct ws_packed *p)
{
	struct ws_err err = WS_ERR_INIT;
	const size_t n = (size_t)(p->rows * p->cols) * sizeof(float);
	float *x = rows_of(p, "scalar", p->rows, &err);
	require(x || (err.code == WS_EINPUT && err.msg[0]));
	float *y = rows_of(p, "scalar", 1, NULL);
	require(!x == !y && (!x || memcmp(x, y, n) == 0));
	free(y);
	if (ws_unpack_set_level("avx2")) {
		y = rows_of(p, "avx2", 3, NULL);
		require(!x == !y && (!x || memcmp(x, y, n) == 0));
		free(y);
	}
	free(x);
}

static void look_at(const struct ws_catalog *c, const struct ws_item *item, const struct ws_quant *config)
{
	struct ws_packed p;
	struct ws_err err = WS_ERR_INIT;
	int64_t rows = 1;
	if (ws_packed_find(c, item, config, &p, &err)) {
		require(err.code == WS_EINPUT && err.msg[0]);
		return;
	}
	require(!p.weight || p.weight == item);
	for (unsigned d = 0; d + 1 < p.n_dims && item->bytes; d++)
		rows *= p.dims[d];
	require(!p.weight || !item->bytes || p.rows == rows);
	require(!p.weight || p.packing == WS_PACK_NONE || (p.bn > 0 && p.bk > 0));
	if (p.weight && p.rows > 0 && p.cols > 0)
		compare_rows(&p);
	ws_packed_free(&p);
}

static void look_at_all(const char *path)
{
	static const struct ws_quant blocks = { .block = { 128, 128 } };
	const struct ws_catalog_opts opts = { .family = NULL };
	struct ws_source *s = NULL;
	struct ws_catalog *c = NULL;
	if (ws_source_open(&path, 1, &s, NULL) == 0) {
		const struct ws_source *const source = s;
		if (ws_catalog_make(&source, 1, &opts, &c, NULL) == 0)
			for (size_t i = 0; i < ws_catalog_count(c); i++)
				look_at(c, ws_catalog_item(c, i), i % 2 ? &blocks : NULL);
	}
	ws_catalog_free(c);
	ws_source_close(s);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct made m = { .n = 0 };
	char path[64], *text = malloc(size + 1);
	if (!text)
		return 0;
	memcpy(text, data, size);
	text[size] = 0;
	ws_buf_init(&m.header, 1 << 20);
	const char *rest = read_lines(&m, text);
	const int fd = rest ? memfd_create("x.safetensors", 0) : -1;
	if (fd >= 0) {
		const uint64_t n = m.header.len;
		put(fd, &n, sizeof n);
		put(fd, m.header.data, m.header.len);
		put_data(fd, &m, rest, size - (size_t)(rest - text));
		snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
		look_at_all(path);
		close(fd);
	}
	ws_buf_free(&m.header);
	free(text);
	return 0;
}
