/* SPDX-License-Identifier: Apache-2.0 */
/* serve_values.c - returns parameters as numbers: /get_weights_by_name, a spot check of a few rows.
 *
 * With a model, a checkpoint's name gives the full tensor, assembled from the shares of all ranks;
 * the server's own name gives rank 0's share of the parameter. Servers return the first rows, not
 * the first elements, so the answer for an embedding is long. */
#include "serve_call.h"
#include "serve_model.h"

#include "number.h"

#include <stdlib.h>
#include <string.h>

/* The requested tensor. */
struct source {
	enum ws_dtype dtype;
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];
	const uint8_t *data;           /* all bytes; NULL: read through gather */
	struct ws_serve_gather gather;
};

static bool find_weight(const struct ws_serve *s, const char *name, struct source *out)
{
	const struct ws_serve_weight *w = ws_serve_weights_find(&s->weights, name);
	if (!w || !w->data)
		return false;
	out->dtype = w->dtype;
	out->n_dims = w->n_dims;
	memcpy(out->dims, w->dims, sizeof out->dims);
	out->data = w->data;
	return true;
}

static bool find_param(const struct ws_serve_model *m, const char *name, struct source *out)
{
	const struct ws_param *p = ws_layout_find_param(m->layout, name);
	if (!p)
		return false;
	const size_t i = (size_t)(p - ws_layout_param(m->layout, 0));
	out->dtype = m->dtypes[i];
	out->n_dims = p->n_dims;
	ws_layout_dims(m->layout, p, 0, out->dims);
	out->data = ws_serve_model_at(m, i, 0);
	return out->data != NULL;
}

static bool find(const struct ws_serve *s, const char *name, struct source *out)
{
	const struct ws_serve_model *m = s->model;
	if (!m)
		return find_weight(s, name, out);
	const struct ws_part *part = ws_layout_find_part(m->layout, name);
	if (!part)
		return find_param(m, name, out);
	if (!m->memory[0])
		return false;
	out->dtype = m->dtypes[part->param];
	out->n_dims = part->n_dims;
	memcpy(out->dims, part->dims, sizeof out->dims);
	out->data = NULL;
	ws_serve_gather_begin(&out->gather, m, part, out->dtype);
	return true;
}

/* Writes n elements from element `first` on, all in the same innermost row. */
static void write_numbers(struct ws_jw *jw, const struct source *s, uint64_t first, uint64_t n)
{
	uint8_t raw[4096];
	double numbers[512];
	const size_t size = ws_dtype_bits(s->dtype) / 8;
	while (n) {
		const size_t some = n < 512 ? (size_t)n : 512;
		if (s->data)
			memcpy(raw, s->data + first * size, some * size);
		else
			ws_serve_gather_read(&s->gather, 0, first * size, raw, some * size);
		ws_number_read(s->dtype, raw, some, numbers);
		for (size_t i = 0; i < some; i++)
			ws_jw_double(jw, NULL, numbers[i]);
		first += some;
		n -= some;
	}
}

/* Writes nested arrays, from axis d on. */
static void write_axis(struct ws_jw *jw, const struct source *s, unsigned d, uint64_t *at)
{
	ws_jw_array(jw, NULL);
	if (d + 1 == s->n_dims) {
		write_numbers(jw, s, *at, (uint64_t)s->dims[d]);
		*at += (uint64_t)s->dims[d];
	}
	for (int64_t i = 0; d + 1 < s->n_dims && i < s->dims[d] && !jw->out->failed; i++)
		write_axis(jw, s, d + 1, at);
	ws_jw_end_array(jw);
}

/* The length of Python's list[:n]. */
static int64_t cut(int64_t rows, int64_t n)
{
	if (n < 0)
		n = rows + n > 0 ? rows + n : 0;
	return n < rows ? n : rows;
}

static void answer_failure(struct ws_serve_call *c)
{
	ws_serve_answer_error(c, 400, "Get parameter by name failed");
}

static void answer_values(struct ws_serve_call *c, const char *name, int64_t rows)
{
	struct ws_jw jw;
	uint64_t at = 0;
	struct source *s = calloc(1, sizeof *s);
	if (!s || !find(c->serve, name, s) || !s->n_dims || !ws_number_readable(s->dtype)) {
		answer_failure(c);
		free(s);
		return;
	}
	s->dims[0] = cut(s->dims[0], rows);
	ws_jw_init(&jw, &c->rp->body);
	write_axis(&jw, s, 0, &at);
	if (c->rp->body.failed) {
		ws_buf_free(&c->rp->body);
		c->rp->body.failed = 0;
		answer_failure(c);
	}
	free(s);
}

void ws_serve_route_values(struct ws_serve_call *c)
{
	const char *name = NULL;
	int64_t rows = 100;
	if (ws_serve_field_str(c->body, "name", true, &name, &c->invalid) ||
	    (ws_json_get(c->body, "truncate_size") &&
	     ws_serve_field_int(c->body, "truncate_size", &rows, &c->invalid)))
		return;
	if (!ws_serve_acquire(c->serve, false)) {
		c->rp->drop = true;
	} else {
		answer_values(c, name, rows);
		ws_serve_release(c->serve);
	}
}
