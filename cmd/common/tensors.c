/* SPDX-License-Identifier: Apache-2.0 */
#include "tensors.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *const tensors_format_names[] = { "table", "names", "tsv", NULL };

/* A name longer than this does not widen the column of all rows. */
enum { WIDEST_COLUMN = 100, SHAPE_TEXT = 256 };

int tensors_start(struct tensors *t, size_t most, struct ws_err *err)
{
	free(t->rows);
	t->rows = calloc(most + 1, sizeof *t->rows);
	t->n = 0;
	t->bytes = 0;
	t->name_width = t->dtype_width = t->shape_width = 0;
	return t->rows ? 0 : ws_oom(err);
}

static void widen(int *width, const char *text)
{
	const size_t n = strlen(text);
	if (n <= WIDEST_COLUMN && (int)n > *width)
		*width = (int)n;
}

static const char *shape_text(char dst[SHAPE_TEXT], const struct tensors_row *r)
{
	return r->shapeless ? "-" : ui_shape(dst, SHAPE_TEXT, r->n_dims, r->dims);
}

void tensors_add(struct tensors *t, const struct tensors_row *row)
{
	char shape[SHAPE_TEXT];
	t->rows[t->n++] = *row;
	t->bytes += row->bytes;
	widen(&t->name_width, row->name);
	widen(&t->dtype_width, row->dtype);
	widen(&t->shape_width, shape_text(shape, row));
}

static void print_json(const struct tensors *t, const struct tensors_row *r, const char *sum)
{
	struct ws_jw *w = ui_line(t->ui, "tensor");
	ws_jw_str(w, "name", r->name);
	ws_jw_str(w, "dtype", *r->dtype ? r->dtype : NULL);
	if (r->shapeless)
		ws_jw_null(w, "shape");
	else
		ui_json_shape(w, "shape", r->n_dims, r->dims);
	if (r->sized)
		ws_jw_uint(w, "bytes", r->bytes);
	else
		ws_jw_null(w, "bytes");
	if (sum)
		ws_jw_str(w, t->sum_key ? t->sum_key : "hash", *sum ? sum : NULL);
	if (t->from_key)
		ws_jw_str(w, t->from_key, t->from);
	if (t->note_key)
		ws_jw_str(w, t->note_key, r->note);
	ui_line_end(t->ui);
}

static void print_tsv(const struct tensors_row *r, const char *sum)
{
	printf("%s\t%s\t%s", ui_text(r->name), *r->dtype ? ui_text(r->dtype) : "-",
	       r->n_dims ? "" : "-");
	for (unsigned i = 0; i < r->n_dims; i++)
		printf("%s%lld", i ? "," : "", (long long)r->dims[i]);
	if (r->sized)
		printf("\t%llu", (unsigned long long)r->bytes);
	else
		printf("\t-");
	if (sum)
		printf("\t%s", *sum ? ui_text(sum) : "-");
	putchar('\n');
}

static void print_aligned(const struct tensors *t, const struct tensors_row *r, const char *sum)
{
	char shape[SHAPE_TEXT], size[32] = "-";
	if (r->sized)
		ws_format_size(size, sizeof size, r->bytes);
	printf("%-*s  %-*s  %-*s  %10s", t->name_width, ui_text(r->name), t->dtype_width,
	       *r->dtype ? ui_text(r->dtype) : "-", t->shape_width,
	       shape_text(shape, r), size);
	if (sum)
		printf("  %16s", *sum ? ui_text(sum) : "-");
	if (r->note)
		printf("  %s", ui_text(r->note));
	putchar('\n');
}

void tensors_print(const struct tensors *t, const struct tensors_row *row, const char *sum)
{
	if (t->ui->json)
		print_json(t, row, sum);
	else if (t->ui->quiet)
		return;
	else if (t->format == TENSORS_NAMES)
		puts(ui_text(row->name));
	else if (t->format == TENSORS_TSV)
		print_tsv(row, sum);
	else
		print_aligned(t, row, sum);
}

void tensors_total(const struct tensors *t)
{
	char size[32];
	bool sized = true;
	for (size_t i = 0; i < t->n; i++)
		sized = sized && t->rows[i].sized;
	if (t->format != TENSORS_TABLE)
		return;
	ui_say(t->ui, "%s%zu tensor%s%s%s%s\n", ui_on(t->ui, UI_BOLD), t->n, t->n == 1 ? "" : "s",
	       sized ? ", " : "", sized ? ws_format_size(size, sizeof size, t->bytes) : "",
	       ui_off(t->ui));
}

void tensors_free(struct tensors *t)
{
	free(t->rows);
	t->rows = NULL;
}
