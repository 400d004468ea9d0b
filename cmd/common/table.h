/* SPDX-License-Identifier: Apache-2.0 */
/* table.h - a few short rows for people, aligned; nothing with --json or -q.
 *
 * A dim first row is the header. Cells are copied and made printable; "" is shown as "-", in the
 * last column as nothing. */
#ifndef WSYNC_CMD_TABLE_H
#define WSYNC_CMD_TABLE_H

#include "ui.h"

enum { TABLE_COLUMNS = 10 };

struct table {
	size_t n_columns;
	struct table_row *rows; /* owned */
	size_t n;
	bool failed;            /* out of memory: the rows that fit are printed */
};

struct table_row {
	char *cells[TABLE_COLUMNS];
	enum ui_color color;    /* of the second column, where a verdict stands */
};

/* Reads as many strings as the table has columns. */
void table_add(struct table *t, enum ui_color color, ...);
void table_print(const struct table *t, struct ui *ui);
void table_free(struct table *t);

#endif
