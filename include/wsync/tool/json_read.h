/* SPDX-License-Identifier: Apache-2.0 */
/* json_read.h - reading JSON, with the guards that cJSON leaves to its caller.
 *
 * Only json.c uses cJSON. It adds checks: the whole text must be one value; NUL, raw or as
 * \u0000, is refused (cJSON would cut the string there), and so is text that is not UTF-8 (two
 * keys may be one when they are written again); look-ups are case-sensitive; integers are exact or
 * refused (cJSON keeps doubles: beyond 2^53 they differ from the text); duplicate keys can be
 * found. cJSON itself limits the depth to 1000.
 *
 * A parsed value costs up to 150 bytes, and "0," are two bytes of text. So the values are counted
 * before the text is parsed, and a text with more than the caller wants is refused. Memory stays
 * below 150 bytes for each value that is allowed, and the length of the text: 10 MiB, 150 MiB or
 * 600 MiB for the first three limits.
 *
 * Look-up walks the members: for large objects iterate once and build an index. */
#ifndef WSYNC_TOOL_JSON_READ_H
#define WSYNC_TOOL_JSON_READ_H

#include "wsync/err.h"
#include "wsync/tool/json.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_json; /* a node; the caller of ws_json_parse owns the root */

enum ws_json_type { WS_JSON_NULL, WS_JSON_BOOL, WS_JSON_NUMBER, WS_JSON_STRING, WS_JSON_ARRAY,
	            WS_JSON_OBJECT };

/* How many values and keys a text may have. */
enum {
	WS_JSON_SMALL = 1 << 16, /* a request that names a few things */
	WS_JSON_USUAL = 1 << 20, /* ws_json_parse */
	WS_JSON_LARGE = 1 << 22, /* a server's answer: a listing of 93,000 tensors has 1,000,000 */
	WS_JSON_FILE = 1 << 25,  /* a file of answers that the user names */
};

/* NULL with WS_EINPUT "<what>: not JSON at byte N: <reason>", or because it has too many values.
 * text need not be NUL-terminated. */
struct ws_json *ws_json_parse(const char *text, size_t len, const char *what, struct ws_err *err);
struct ws_json *ws_json_parse_most(const char *text, size_t len, size_t most, const char *what,
                                   struct ws_err *err);
void ws_json_free(struct ws_json *root); /* NULL is fine */

enum ws_json_type ws_json_type(const struct ws_json *node); /* NULL node: WS_JSON_NULL */
const struct ws_json *ws_json_get(const struct ws_json *object, const char *key); /* NULL: absent */
/* for (n = ws_json_first(x); n; n = ws_json_next(n)) walks an array or object. */
const struct ws_json *ws_json_first(const struct ws_json *container);
const struct ws_json *ws_json_next(const struct ws_json *node);
const char *ws_json_key(const struct ws_json *member); /* "" when it is no member */
size_t ws_json_count(const struct ws_json *container);

/* Typed reads; borrowed strings live as long as the root. */
const char *ws_json_string(const struct ws_json *node); /* NULL: no string */
/* false: no integer, or 2^53 and more */
bool ws_json_int(const struct ws_json *node, int64_t *out);
bool ws_json_double(const struct ws_json *node, double *out);
bool ws_json_bool(const struct ws_json *node, bool fallback);
/* Member of an object or the fallback. */
const char *ws_json_get_string(const struct ws_json *object, const char *key, const char *fallback);
int64_t ws_json_get_int(const struct ws_json *object, const char *key, int64_t fallback);
bool ws_json_get_bool(const struct ws_json *object, const char *key, bool fallback);

/* A key that appears twice in this object (not in nested ones), or NULL. O(n log n). */
const char *ws_json_duplicate(const struct ws_json *object);

#endif
