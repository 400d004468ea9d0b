/* SPDX-License-Identifier: Apache-2.0 */
/* A few tensors, quantized or not: lines of tensor_lines.h, an empty one, and their
 * bytes. What is found must fit its tensors, and its rows must be the same whole, one
 * by one, and by both levels. */
#include "simd.h"
#include "unpack.h"

#include "fuzz/tensor_lines.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

/* ---- what it comes to ---- */

static float *rows_of(const struct ws_packed *p, const char *level, int64_t step,
                      struct ws_err *err)
{
	struct ws_buf scratch = { .max = 0 };
	float *x = malloc((size_t)(p->rows * p->cols) * sizeof *x + 1);
	int rc = x && ws_simd_set_level(level) ? 0 : -1;
	for (int64_t row = 0; row < p->rows && rc == 0; row += step)
		rc = ws_packed_rows(p, row, step < p->rows - row ? step : p->rows - row,
		                    x + row * p->cols, &scratch, err);
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
	if (ws_simd_set_level("avx2")) {
		y = rows_of(p, "avx2", 3, NULL);
		require(!x == !y && (!x || memcmp(x, y, n) == 0));
		free(y);
	}
	free(x);
}

static void look_at(const struct ws_catalog *c, const struct ws_item *item,
                    const struct ws_quant *config)
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
	char path[64], *text = malloc(size + 1);
	if (!text)
		return 0;
	memcpy(text, data, size);
	text[size] = 0;
	const char *end = strstr(text, "\n\n");
	const char *bytes = end ? end + 2 : text + size;
	const int fd = open_lines(text, bytes, size - (size_t)(bytes - text), path);
	if (fd >= 0) {
		look_at_all(path);
		close(fd);
	}
	free(text);
	return 0;
}
