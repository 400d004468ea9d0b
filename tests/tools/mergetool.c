/* SPDX-License-Identifier: Apache-2.0 */
/* mergetool - an adapter bound to a base and merged into it, for tests and for timing.
 *
 *   mergetool [-2] [-n] [-f] [-t SECONDS] BASE ADAPTER [OUT]
 *
 * Writes every tensor that the adapter changes to OUT, a safetensors file of bf16; -2 rounds deltas
 * first, -n takes the base's names as they are (nothing is unfused), -f forgets its
 * config. On stdout one line of JSON: bound, replaced, left_over, or "error" with its
 * "code" and "hint". Without OUT the merge runs again and again for so many seconds, and
 * ns are those of its fastest run. */
#include "factor.h"
#include "lowrank.h"
#include "number.h"

#include "wsync/tool/buf.h"
#include "wsync/clock.h"
#include "wsync/tool/input.h"
#include "wsync/tool/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { BAND = 64 };

struct merge {
	struct ws_input base;
	struct ws_catalog *plain; /* -n */
	const struct ws_catalog *catalog;
	struct ws_adapter *adapter;
	struct ws_bindings bindings;
	bool two_step;
	float *w, *delta, *sum;
	uint8_t *raw;
	uint16_t *out;
};

static void grid_of(const struct ws_item *item, int64_t *rows, int64_t *cols)
{
	*cols = item->n_dims ? item->dims[item->n_dims - 1] : 1;
	*rows = *cols ? (int64_t)(item->bytes * 8 / ws_dtype_bits(item->dtype)) / *cols : 0;
}

static void to_floats(enum ws_dtype dtype, const uint8_t *raw, size_t n, float *out)
{
	double x;
	for (size_t i = 0; dtype == WS_DTYPE_BF16 && i < n; i++) {
		const uint32_t bits = (uint32_t)raw[2 * i] << 16 | (uint32_t)raw[2 * i + 1] << 24;
		memcpy(&out[i], &bits, sizeof bits);
	}
	for (size_t i = 0; dtype != WS_DTYPE_BF16 && i < n; i++) {
		ws_number_read(dtype, raw + i * (ws_dtype_bits(dtype) / 8), 1, &x);
		out[i] = (float)x;
	}
}

struct factors {
	float *a, *b;
};

/* All deltas that touch rows [row, row + n), one after the other. */
static void add_deltas(struct merge *m, const struct ws_binding *b, const struct factors *f,
                       int64_t row, int64_t n, int64_t cols)
{
	memset(m->sum, 0, (size_t)(n * cols) * sizeof *m->sum);
	for (size_t i = 0; i < b->n_deltas; i++) {
		const struct ws_delta *d = &b->deltas[i];
		const int64_t from = d->row > row ? d->row : row;
		const int64_t to = d->row + d->rows < row + n ? d->row + d->rows : row + n;
		if (from >= to)
			continue;
		const struct ws_lowrank l = { f[i].a, f[i].b, d->rank, cols, d->scale };
		ws_lowrank_tile(&l, from - d->row, to - from, 0, cols, m->delta, (size_t)cols);
		for (int64_t k = 0; k < (to - from) * cols; k++)
			m->sum[(from - row) * cols + k] += m->delta[k];
	}
}

/* One delta over all rows: nothing to add up. */
static void one_delta(struct merge *m, const struct ws_binding *b, const struct factors *f,
                      int64_t row, int64_t n, int64_t cols)
{
	const struct ws_lowrank l = { f->a, f->b, b->deltas->rank, cols, b->deltas->scale };
	ws_lowrank_tile(&l, row, n, 0, cols, m->sum, (size_t)cols);
}

static int merge_rows(struct merge *m, const struct ws_binding *b, const struct ws_item *from,
                      const struct factors *f, int64_t row, int64_t n, int64_t cols,
                      struct ws_err *err)
{
	const uint64_t size = ws_dtype_bits(from->dtype) / 8;
	float max_delta, max_w;
	const size_t stride = (size_t)cols;
	if (ws_item_read(from, (uint64_t)(row * cols) * size, m->raw, (size_t)(n * cols) * size,
	                 err))
		return -1;
	to_floats(from->dtype, m->raw, (size_t)(n * cols), m->w);
	if (b->n_deltas == 1 && b->deltas->rows >= row + n && b->deltas->row == 0)
		one_delta(m, b, f, row, n, cols);
	else
		add_deltas(m, b, f, row, n, cols);
	ws_merge_bf16(m->w, stride, m->sum, stride, n, cols, m->two_step, m->out, stride,
	              &max_delta, &max_w);
	return 0;
}

static int read_delta(const struct ws_delta *d, struct factors *f, struct ws_buf *buf,
                      struct ws_err *err)
{
	const struct ws_factor a = ws_delta_a(d), b = ws_delta_b(d);
	f->a = malloc((size_t)(d->rank * d->cols) * sizeof *f->a);
	f->b = malloc((size_t)(d->rank * d->rows) * sizeof *f->b);
	if (!f->a || !f->b)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	return ws_factor_read(&a, 0, d->rank, 0, d->cols, f->a, buf, err) ||
	       ws_factor_read(&b, 0, d->rows, 0, d->rank, f->b, buf, err) ? -1 : 0;
}

static int read_factors(const struct ws_binding *b, struct factors *f, struct ws_err *err)
{
	struct ws_buf buf;
	int rc = 0;
	ws_buf_init(&buf, 0);
	for (size_t i = 0; rc == 0 && i < b->n_deltas; i++)
		rc = read_delta(&b->deltas[i], &f[i], &buf, err);
	ws_buf_free(&buf);
	return rc;
}

static int make_room(struct merge *m, int64_t cols, struct ws_err *err)
{
	const size_t n = (size_t)(BAND * cols);
	free(m->w), free(m->delta), free(m->sum), free(m->raw), free(m->out);
	m->w = malloc(n * sizeof *m->w);
	m->delta = malloc(n * sizeof *m->delta);
	m->sum = malloc(n * sizeof *m->sum);
	m->raw = malloc(n * sizeof(double));
	m->out = malloc(n * sizeof *m->out);
	return m->w && m->delta && m->sum && m->raw && m->out ? 0 :
	       ws_err_set(err, WS_ESYSTEM, "out of memory");
}

static int merge_one(struct merge *m, const struct ws_binding *b, FILE *out, struct ws_err *err)
{
	const struct ws_item *target = ws_catalog_find(m->catalog, b->target);
	const struct ws_item *from = b->replaced ? b->replaced : target;
	struct factors *f = calloc(b->n_deltas + 1, sizeof *f);
	int64_t rows, cols;
	grid_of(target, &rows, &cols);
	int rc = f ? make_room(m, cols, err) : ws_err_set(err, WS_ESYSTEM, "out of memory");
	if (rc == 0)
		rc = read_factors(b, f, err);
	for (int64_t row = 0; rc == 0 && row < rows; row += BAND) {
		const int64_t n = rows - row < BAND ? rows - row : BAND;
		rc = merge_rows(m, b, from, f, row, n, cols, err);
		if (rc == 0 && out && fwrite(m->out, 2 * (size_t)cols, (size_t)n, out) != (size_t)n)
			rc = ws_err_errno(err, "writing");
	}
	for (size_t i = 0; f && i < b->n_deltas; i++)
		free(f[i].a), free(f[i].b);
	free(f);
	return rc;
}

static void put_header(const struct merge *m, FILE *out)
{
	struct ws_buf text;
	uint64_t at = 0;
	ws_buf_init(&text, 0);
	for (size_t i = 0; i < m->bindings.n; i++) {
		const struct ws_item *t = ws_catalog_find(m->catalog, m->bindings.items[i].target);
		int64_t rows, cols;
		grid_of(t, &rows, &cols);
		ws_buf_printf(&text, "%c\"%s\":{\"dtype\":\"BF16\",\"shape\":[", i ? ',' : '{',
		              t->name);
		for (unsigned d = 0; d < t->n_dims; d++)
			ws_buf_printf(&text, "%s%lld", d ? "," : "", (long long)t->dims[d]);
		ws_buf_printf(&text, "],\"data_offsets\":[%llu,", (unsigned long long)at);
		at += (uint64_t)(rows * cols) * 2;
		ws_buf_printf(&text, "%llu]}", (unsigned long long)at);
	}
	ws_buf_putc(&text, '}');
	const uint64_t n = text.len;
	fwrite(&n, sizeof n, 1, out);
	fwrite(text.data, text.len, 1, out);
	ws_buf_free(&text);
}

static int merge_all(struct merge *m, FILE *out, struct ws_err *err)
{
	for (size_t i = 0; i < m->bindings.n; i++)
		if (merge_one(m, &m->bindings.items[i], out, err))
			return -1;
	return 0;
}

static int merge_to(struct merge *m, const char *path, struct ws_err *err)
{
	FILE *out = fopen(path, "wb");
	if (!out)
		return ws_err_errno(err, "open %s", path);
	put_header(m, out);
	const int rc = merge_all(m, out, err);
	return fclose(out) || rc ? (rc ? rc : ws_err_errno(err, "write %s", path)) : 0;
}

static int merge_for(struct merge *m, double seconds, int64_t *ns, struct ws_err *err)
{
	const int64_t end = ws_now_ns() + (int64_t)(seconds * 1e9);
	do {
		const int64_t began = ws_now_ns();
		if (merge_all(m, NULL, err))
			return -1;
		const int64_t took = ws_now_ns() - began;
		*ns = *ns && *ns < took ? *ns : took;
	} while (ws_now_ns() < end);
	return 0;
}

static int open_all(struct merge *m, const char *base, const char *adapter, bool plain, bool forget,
                    struct ws_err *err)
{
	const struct ws_input_opts opts = { .paths = &base, .n_paths = 1 };
	const struct ws_catalog_opts as_it_is = { .family = NULL };
	if (ws_input_open(&opts, &m->base, err) || ws_adapter_open(adapter, &m->adapter, err))
		return -1;
	m->catalog = m->base.catalog;
	if (plain) {
		if (ws_catalog_make((const struct ws_source *const *)m->base.sources, 1, &as_it_is,
		                    &m->plain, err))
			return -1;
		m->catalog = m->plain;
	}
	ws_adapter_rename(m->adapter, m->base.family);
	return ws_adapter_bind(m->adapter, m->catalog, forget ? NULL : m->base.layout, NULL, NULL,
	                       &m->bindings, err);
}

static void report(const struct merge *m, int rc, const struct ws_err *err, int64_t ns)
{
	struct ws_buf line;
	struct ws_jw w;
	size_t bound = 0, replaced = 0;
	for (size_t i = 0; i < m->bindings.n; i++) {
		bound += m->bindings.items[i].n_deltas > 0;
		replaced += m->bindings.items[i].replaced != NULL;
	}
	ws_buf_init(&line, 0);
	ws_jw_init(&w, &line);
	ws_jw_object(&w, NULL);
	if (rc) {
		ws_jw_str(&w, "error", err->msg);
		ws_jw_str(&w, "code", ws_code_name(err->code));
		ws_jw_str(&w, "hint", err->hint);
	} else {
		ws_jw_int(&w, "bound", (int64_t)bound);
		ws_jw_int(&w, "replaced", (int64_t)replaced);
		ws_jw_int(&w, "left_over", (int64_t)m->bindings.n_left_over);
		ws_jw_int(&w, "ns", ns);
	}
	ws_jw_end_object(&w);
	puts(ws_buf_str(&line));
	ws_buf_free(&line);
}

int main(int argc, char **argv)
{
	struct merge m = { .two_step = false };
	struct ws_err err = WS_ERR_INIT;
	bool plain = false, forget = false;
	double seconds = 0;
	int64_t ns = 0;
	for (int c; (c = getopt(argc, argv, "2nft:")) >= 0;)
		switch (c) {
		case '2': m.two_step = true; break;
		case 'n': plain = true; break;
		case 'f': forget = true; break;
		case 't': seconds = atof(optarg); break;
		default: return 2;
		}
	if (argc - optind < 2)
		return 2;
	int rc = open_all(&m, argv[optind], argv[optind + 1], plain, forget, &err);
	if (rc == 0)
		rc = argv[optind + 2] ? merge_to(&m, argv[optind + 2], &err) :
		                        merge_for(&m, seconds, &ns, &err);
	report(&m, rc, &err, ns);
	ws_bindings_free(&m.bindings);
	ws_adapter_close(m.adapter);
	ws_catalog_free(m.plain);
	ws_input_close(&m.base);
	free(m.w), free(m.delta), free(m.sum), free(m.raw), free(m.out);
	return rc ? (int)err.code : 0;
}
