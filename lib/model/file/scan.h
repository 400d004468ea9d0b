/* SPDX-License-Identifier: Apache-2.0 */
/* scan.h - reads JSON in place, from front to back.
 *
 * Headers and indices of checkpoints have up to 100 MB and come from untrusted sources. A parsed
 * tree (wsync/tool/json_read.h) takes forty times their size, keeps integers as doubles and forgets
 * positions. This scanner allocates nothing, reads exact integers, and every error names its byte.
 *
 * Strings are unescaped in place and end in NUL: they live as long as the text, which is changed.
 * Calls return 0, or -1 with WS_EINPUT and a sentence with the byte's position. */
#ifndef WS_MODEL_SCAN_H
#define WS_MODEL_SCAN_H

#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_scan {
	/* borrowed, except after ws_scan_file and ws_scan_copy; may be NULL if len is 0 */
	char *text;
	size_t len;
	size_t at;          /* next byte */
	uint64_t base;      /* offset of the text in the file */
	const char *path;   /* for messages */
	const char *tensor; /* the tensor of this entry, for messages; NULL: none */
	struct ws_err *err;
};

/* Scans a whole file of at most `most` bytes, or a copy of a text. The caller frees the scan's
 * text. */
int ws_scan_file(const char *path, size_t most, struct ws_scan *out, struct ws_err *err);
int ws_scan_copy(const void *text, size_t len, const char *path, struct ws_scan *out,
                 struct ws_err *err);

/* Sets WS_EINPUT "<path>: [tensor '<name>': ]" and the reason; returns -1. */
int ws_scan_refuse(const struct ws_scan *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Skips white space and returns the byte after it, without skipping that byte; 0: the end. */
char ws_scan_peek(struct ws_scan *s);
/* Skips white space and returns the position in the file. */
unsigned long long ws_scan_here(struct ws_scan *s);
/* Reads the opening bracket, '{' or '['; `what` names the value in messages. */
int ws_scan_open(struct ws_scan *s, char bracket, const char *what);
/* Moves to the next item before the closing bracket: 1 found, 0 closed, -1 refused. *n counts
 * the items; start with 0. */
int ws_scan_next(struct ws_scan *s, char closing, size_t *n);
/* Reads a key and its colon. */
int ws_scan_key(struct ws_scan *s, char **key);
int ws_scan_string(struct ws_scan *s, const char *what, char **out);
int ws_scan_uint(struct ws_scan *s, const char *what, uint64_t *out);

/* Reads one field of an object into *into. */
struct ws_scan_field {
	const char *name;
	int (*read)(struct ws_scan *s, const char *name, void *into);
	bool optional;
};

/* Reads the fields of an object in any order, up to its closing bracket. Refuses unknown, duplicate
 * and missing fields. The table ends in an entry without a name and has at most 32 fields. n: items
 * of the object already read. *seen: bit i is set if fields[i] was found; seen may be NULL. */
int ws_scan_fields(struct ws_scan *s, const struct ws_scan_field *fields, size_t n, void *into,
                   unsigned *seen);
/* The same with the opening bracket; `what` names the object in messages. */
int ws_scan_object(struct ws_scan *s, const char *what, const struct ws_scan_field *fields,
                   void *into, unsigned *seen);

/* Skips any value, at most 64 levels deep. */
int ws_scan_skip(struct ws_scan *s);
/* Checks that only white space is left. */
int ws_scan_end(struct ws_scan *s);

#endif
