/* SPDX-License-Identifier: Apache-2.0 */
/* tensors.h - lists of tensors as a table, as names, tab-separated, or as JSON lines.
 *
 * The tab-separated format is an interface: name, dtype, shape (151936,1024), bytes and, if
 * requested, checksum; "-" stands for an unknown value and for the shape of a scalar. */
#ifndef WSYNC_CMD_TENSORS_H
#define WSYNC_CMD_TENSORS_H

#include "ui.h"

enum tensors_format { TENSORS_TABLE, TENSORS_NAMES, TENSORS_TSV };
extern const char *const tensors_format_names[];

/* The pointers of a row must stay valid until it is printed. */
struct tensors_row {
	const char *name, *dtype; /* dtype "": unknown */
	unsigned n_dims;
	const int64_t *dims;
	bool shapeless;           /* n_dims and dims are unknown */
	bool sized;
	uint64_t bytes;
	/* how it is made from the source (NULL: unchanged), or why it has no checksum */
	const char *note;
	const void *origin;       /* the caller's */
};

struct tensors {
	struct ui *ui;
	unsigned format;              /* enum tensors_format */
	const char *from_key, *from;  /* one more member of JSON lines; from_key NULL: none */
	const char *sum_key;          /* of the checksum in JSON lines; NULL: "hash" */
	const char *note_key;         /* of the note in JSON lines; NULL: they have none */
	struct tensors_row *rows;     /* owned */
	size_t n;
	uint64_t bytes;
	int name_width, dtype_width, shape_width;
};

/* Empties the list and makes room for this many rows. */
int tensors_start(struct tensors *t, size_t most, struct ws_err *err);
void tensors_add(struct tensors *t, const struct tensors_row *row);
/* sum: the row's checksum as text, "" unknown; NULL: rows have none. */
void tensors_print(const struct tensors *t, const struct tensors_row *row, const char *sum);
/* "310 tensors, 1.11 GiB" below a table. */
void tensors_total(const struct tensors *t);
void tensors_free(struct tensors *t);

#endif
