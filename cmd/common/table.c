/* SPDX-License-Identifier: Apache-2.0 */
#include "table.h"

#include <stdarg.h>
#include <stdlib.h>
#include <string.h>

void table_add(struct table *t, enum ui_color color, ...)
{
	struct table_row *rows = realloc(t->rows, (t->n + 1) * sizeof *rows);
	if (!rows) {
		t->failed = true;
		return;
	}
	t->rows = rows;
	struct table_row *row = &rows[t->n++];
	*row = (struct table_row){ .color = color };
	va_list ap;
	va_start(ap, color);
	for (size_t i = 0; i < t->n_columns; i++) {
		const char *text = va_arg(ap, const char *);
		row->cells[i] = strdup(*text || i + 1 == t->n_columns ? ui_text(text) : "-");
	}
	va_end(ap);
}

static const char *cell(const struct table_row *row, size_t column)
{
	return row->cells[column] ? row->cells[column] : "?";
}

static int width_of(const struct table *t, size_t column)
{
	size_t width = 0;
	for (size_t i = 0; i < t->n; i++)
		if (strlen(cell(&t->rows[i], column)) > width)
			width = strlen(cell(&t->rows[i], column));
	return (int)width;
}

/* Blanks are printed when something follows them, so that no line ends in one. */
static void print_row(const struct table_row *row, size_t n_columns, const int *widths, bool header,
                      struct ui *ui)
{
	int blanks = 0;
	for (size_t c = 0; c < n_columns; c++) {
		const char *text = cell(row, c);
		const bool colored = ui->color && row->color != UI_PLAIN && (c == 1 || header);
		if (*text)
			ui_say(ui, "%*s%s%s%s", blanks, "", colored ? ui_on(ui, row->color) : "",
			       text, colored ? ui_off(ui) : "");
		blanks = (*text ? 0 : blanks) + widths[c] - (int)strlen(text) + 2;
	}
	ui_say(ui, "\n");
}

void table_print(const struct table *t, struct ui *ui)
{
	int widths[TABLE_COLUMNS];
	for (size_t c = 0; c < t->n_columns; c++)
		widths[c] = width_of(t, c);
	for (size_t i = 0; i < t->n; i++)
		print_row(&t->rows[i], t->n_columns, widths, t->rows[i].color == UI_DIM, ui);
}

void table_free(struct table *t)
{
	for (size_t i = 0; i < t->n; i++)
		for (size_t c = 0; c < t->n_columns; c++)
			free(t->rows[i].cells[c]);
	free(t->rows);
	*t = (struct table){ .n_columns = t->n_columns };
}
