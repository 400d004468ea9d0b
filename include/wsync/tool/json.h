/* SPDX-License-Identifier: Apache-2.0 */
/* json.h - a streaming JSON writer onto a ws_buf.
 *
 * cJSON builds trees and prints numbers as doubles; our lines carry byte counts and nanoseconds, so
 * they are written directly. Keys are given in order and appear in order. Inside an array pass NULL
 * as key. Errors are collected in the buffer (ws_buf_check). Strings are escaped; bytes that
 * are not UTF-8 become U+FFFD. */
#ifndef WSYNC_JSON_H
#define WSYNC_JSON_H

#include "wsync/tool/buf.h"

#include <stdbool.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ws_jw {
	struct ws_buf *out; /* borrowed */
	uint64_t comma;     /* bit d set: level d has a member already; 63 levels */
	unsigned depth;
};

void ws_jw_init(struct ws_jw *w, struct ws_buf *out);
void ws_jw_object(struct ws_jw *w, const char *key); /* opens { */
void ws_jw_array(struct ws_jw *w, const char *key);  /* opens [ */
void ws_jw_end_object(struct ws_jw *w);
void ws_jw_end_array(struct ws_jw *w);
void ws_jw_str(struct ws_jw *w, const char *key, const char *value); /* NULL value: null */
void ws_jw_strs(struct ws_jw *w, const char *key, const char *const *values,
                size_t n); /* ["a", ...] */
void ws_jw_strn(struct ws_jw *w, const char *key, const char *value, size_t len);
void ws_jw_int(struct ws_jw *w, const char *key, int64_t value);
void ws_jw_uint(struct ws_jw *w, const char *key, uint64_t value);
void ws_jw_thousandths(struct ws_jw *w, const char *key, int64_t value); /* of it: 1234 is 1.234 */
void ws_jw_double(struct ws_jw *w, const char *key, double value); /* NaN, inf: null; nine
                                                                     * digits, of a float all */
void ws_jw_bool(struct ws_jw *w, const char *key, bool value);
void ws_jw_null(struct ws_jw *w, const char *key);
void ws_jw_hex64(struct ws_jw *w, const char *key, uint64_t value); /* "0011223344556677" */

#ifdef __cplusplus
}
#endif
#endif
