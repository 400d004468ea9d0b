/* SPDX-License-Identifier: Apache-2.0 */
/* serve_listing.c - the route that lists names and shapes: with a model, its runtime parameters at
 * one rank; without a model, the received tensors. */
#include "serve_call.h"
#include "serve_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool starts_with(const char *text, const char *prefix)
{
	return strncmp(text, prefix, strlen(prefix)) == 0;
}

/* One row of a listing. */
struct row {
	const char *name;
	enum ws_dtype dtype;
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];
	const uint8_t *data;
};

static size_t count_rows(const struct ws_serve *s)
{
	return s->model ? ws_layout_param_count(s->model->layout) : s->weights.n;
}

/* False: the row is not listed. torch lists only the first of tied parameters. */
static bool row_at(const struct ws_serve *s, size_t i, unsigned rank, const char *prefix,
                   struct row *out)
{
	if (s->model) {
		const struct ws_param *p = ws_layout_param(s->model->layout, i);
		*out = (struct row){ .name = p->name,
			             .dtype = s->model->dtypes[i],
			             .n_dims = p->n_dims,
			             .data = ws_serve_model_at(s->model, i, rank) };
		ws_layout_dims(s->model->layout, p, rank, out->dims);
		if (s->model->read_only && s->model->read_only[i])
			out->n_dims = ws_serve_read_only_dims(s->model, i, false, rank, out->dims);
		return !p->tied_to && starts_with(p->name, prefix);
	}
	const struct ws_serve_weight *w = &s->weights.items[i];
	*out = (struct row){
		.name = w->name, .dtype = w->dtype, .n_dims = w->n_dims, .data = w->data
	};
	memcpy(out->dims, w->dims, sizeof out->dims);
	return starts_with(w->name, prefix);
}

/* Fills in the scales of parameter i. False: it is not read-only, or the name is not listed. */
static bool scale_at(const struct ws_serve *s, size_t i, unsigned rank, const char *prefix,
                     char *name, size_t n, struct row *out)
{
	if (!s->model || !s->model->read_only || !s->model->read_only[i])
		return false;
	snprintf(name, n, "%s_scale", ws_layout_param(s->model->layout, i)->name);
	*out = (struct row){ .name = name, .dtype = WS_DTYPE_F32 };
	out->n_dims = ws_serve_read_only_dims(s->model, i, true, rank, out->dims);
	return starts_with(name, prefix);
}

static void write_row(struct ws_jw *jw, const struct row *row)
{
	ws_jw_object(jw, NULL);
	ws_jw_str(jw, "name", row->name);
	ws_jw_array(jw, "shape");
	for (unsigned d = 0; d < row->n_dims; d++)
		ws_jw_int(jw, NULL, row->dims[d]);
	ws_jw_end_array(jw);
	ws_jw_str(jw, "dtype", ws_dtype_torch(row->dtype)); /* servers do not report it */
	ws_jw_uint(jw, "data_ptr", (uint64_t)(uintptr_t)row->data);
	ws_jw_end_object(jw);
}

static void write_rows(struct ws_serve_call *c, const char *prefix, unsigned rank)
{
	const struct ws_serve *s = c->serve;
	struct row row;
	char scale[512];
	size_t n = 0;
	for (size_t i = 0; i < count_rows(s); i++)
		n += (size_t)row_at(s, i, rank, prefix, &row) +
		     scale_at(s, i, rank, prefix, scale, sizeof scale, &row);
	char message[64];
	snprintf(message, sizeof message, "Found %zu weights", n);
	struct ws_jw jw;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_bool(&jw, "success", true);
	ws_jw_str(&jw, "message", message);
	ws_jw_array(&jw, "weights");
	for (size_t i = 0; i < count_rows(s); i++) {
		if (row_at(s, i, rank, prefix, &row))
			write_row(&jw, &row);
		if (scale_at(s, i, rank, prefix, scale, sizeof scale, &row))
			write_row(&jw, &row);
	}
	ws_jw_end_array(&jw);
	if (!s->model)
		ws_jw_bool(&jw, "received", true); /* not in servers: the sender's names */
	ws_jw_end_object(&jw);
}

/* An unknown rank means rank 0; servers use the first answer of any rank then. */
static bool read_rank(const struct ws_serve_call *c, unsigned *rank)
{
	const char *text = ws_serve_query(c, "rank");
	char *end = NULL;
	*rank = 0;
	if (!text)
		return true;
	const long value = strtol(text, &end, 10);
	if (end == text || *end)
		return false;
	if (value > 0 && value < (long)c->serve->opts.tp)
		*rank = (unsigned)value;
	return true;
}

void ws_serve_route_list(struct ws_serve_call *c)
{
	const char *prefix = ws_serve_query(c, "prefix");
	unsigned rank = 0;
	if (!read_rank(c, &rank)) {
		ws_err_set(&c->invalid, WS_EUSAGE, "query.rank: Input should be a valid integer");
	} else if (ws_serve_enter(c, false)) {
		write_rows(c, prefix ? prefix : "", rank);
		ws_serve_release(c->serve);
	}
}
