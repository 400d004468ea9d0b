/* SPDX-License-Identifier: Apache-2.0 */
/* scan.h - JSON read in place, from front to back.
 *
 * For the headers and indices of checkpoints: up to 100 MB that nobody vouches for. A tree of
 * them (wsync/tool/json_read.h) takes forty times their size, keeps integers as doubles and
 * forgets where things stood. Here reading allocates nothing, integers are exact and every
 * refusal names its byte.
 *
 * Strings are unescaped where they stand and end in NUL, so they live as long as the text, which is
 * changed. The calls return 0, or -1 with WS_EINPUT and a sentence that says at which byte. */
#ifndef WS_MODEL_SCAN_H
#define WS_MODEL_SCAN_H

#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_scan {
	/* borrowed, but for ws_scan_file and ws_scan_copy; may be NULL when len is 0 */
	char *text;
	size_t len;
	size_t at;          /* next byte */
	uint64_t base;      /* where in the file the text begins */
	const char *path;   /* for messages */
	const char *tensor; /* whose entry this is, for messages; NULL: nobody's */
	struct ws_err *err;
};

/* A scan of a whole file of at most `most` bytes, or of a copy of a text.
 * The caller frees its text. */
int ws_scan_file(const char *path, size_t most, struct ws_scan *out, struct ws_err *err);
int ws_scan_copy(const void *text, size_t len, const char *path, struct ws_scan *out,
                 struct ws_err *err);

/* WS_EINPUT "<path>: [tensor '<name>': ]" and the reason; -1. */
int ws_scan_refuse(const struct ws_scan *s, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
int ws_scan_no_memory(const struct ws_scan *s); /* WS_ESYSTEM; -1 */

/* The next byte that is no white space; 0 at the end. */
char ws_scan_peek(struct ws_scan *s);
/* Where it is in the file. */
unsigned long long ws_scan_here(struct ws_scan *s);
/* Takes the opening bracket, '{' or '['; `what` names the value in the refusal. */
int ws_scan_open(struct ws_scan *s, char bracket, const char *what);
/* Goes to the next item before the closing bracket: 1 there is one, 0 closed, -1 refused.
 * *n counts the items; start with 0. */
int ws_scan_next(struct ws_scan *s, char closing, size_t *n);
/* A key and its colon. */
int ws_scan_key(struct ws_scan *s, char **key);
int ws_scan_string(struct ws_scan *s, const char *what, char **out);
int ws_scan_uint(struct ws_scan *s, const char *what, uint64_t *out);

/* What one field of an object holds is read to where it belongs in *into. */
struct ws_scan_field {
	const char *name;
	int (*read)(struct ws_scan *s, const char *name, void *into);
	bool optional;
};

/* The fields of an object, in any order, up to its closing bracket. One that the table lacks is
 * refused, as is one that comes twice or is missing. The table ends in one without a name and
 * has at most 32. n: so many items of the object were read before. *seen: bit i is set where
 * fields[i] was there; may be NULL. */
int ws_scan_fields(struct ws_scan *s, const struct ws_scan_field *fields, size_t n, void *into,
                   unsigned *seen);
/* The same from the opening bracket on; `what` names the object in the refusal. */
int ws_scan_object(struct ws_scan *s, const char *what, const struct ws_scan_field *fields,
                   void *into, unsigned *seen);

/* Any value, at most 64 levels deep. */
int ws_scan_skip(struct ws_scan *s);
/* Nothing but white space is left. */
int ws_scan_end(struct ws_scan *s);

#endif
