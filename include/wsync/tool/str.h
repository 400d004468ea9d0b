/* SPDX-License-Identifier: Apache-2.0 */
/* str.h - numbers as people write them: sizes, durations, rates. */
#ifndef WSYNC_STR_H
#define WSYNC_STR_H

#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* "512", "512MiB", "1.5GiB", "64k" (k, m, g, t alone are binary; kB, MB, GB, TB decimal) to bytes.
 * 0, or -1 with WS_EUSAGE "invalid SIZE 'x'". */
int ws_parse_size(const char *s, uint64_t *bytes, struct ws_err *err);
/* "10", "1.5s", "200ms", "5m", "2h", "none" (WS_FOREVER's INT64_MAX) to ns;
 * a plain number is seconds. */
int ws_parse_duration(const char *s, int64_t *ns, struct ws_err *err);
/* Decimal digits only, lo..hi. `what` names the value in the message. */
int ws_parse_uint(const char *s, uint64_t lo, uint64_t hi, const char *what, uint64_t *out,
                  struct ws_err *err);

/* "1.1 GiB", "512 B"; "1.84 s", "312 ms", "85 us"; "2.41 GB/s" (decimal). Return dst. */
char *ws_format_size(char *dst, size_t n, uint64_t bytes);
char *ws_format_duration(char *dst, size_t n, int64_t ns);
char *ws_format_rate(char *dst, size_t n, uint64_t bytes, int64_t ns);

/* Shell-style match of * ? [..] over a whole name, case-sensitive, where * also crosses dots. */
bool ws_glob_match(const char *pattern, const char *name);
bool ws_glob_any(const char *const *patterns, size_t n, const char *name); /* any of them matches */
/* A name is chosen when an include pattern matches it, or there is none,
 * and no exclude pattern does. */
bool ws_glob_choose(const char *const *include, size_t n_include, const char *const *exclude,
                    size_t n_exclude, const char *name);

bool ws_ends_with(const char *s, const char *end);

/* Length of the valid UTF-8 sequence that begins at s and ends within n bytes; 0: there is none. */
size_t ws_utf8_step(const char *s, size_t n);

/* Copies at most n-1 bytes of s with control characters and invalid UTF-8 replaced by '?', so that
 * foreign text can be quoted on a terminal. Returns dst. */
char *ws_printable(char *dst, size_t n, const char *s, size_t len);

#ifdef __cplusplus
}
#endif
#endif
