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
bool ws_utf8_is(const char *text); /* all of it */
/* The character of such a sequence. */
uint32_t ws_utf8_code(const char *s, size_t step);
/* Can a person see it? Not a control, and no character that is invisible, ends a line or changes
 * the direction of the text around it. */
bool ws_utf8_is_shown(const char *s, size_t step);

/* Can servers be told this text? NULL is fine; WS_EUSAGE "<what> 'TEXT': it is not UTF-8". */
int ws_check_utf8(const char *text, const char *what, struct ws_err *err);
/* The same for a label that servers report and people compare: at most `most` bytes, all of whose
 * characters are shown. */
int ws_check_label(const char *text, const char *what, size_t most, struct ws_err *err);

/* Copies at most n-1 bytes of s with invalid UTF-8 and the characters that are not shown replaced
 * by '?', so that foreign text can be quoted on a terminal. Returns dst. */
char *ws_printable(char *dst, size_t n, const char *s, size_t len);
/* A word of a command that a message proposes, quoted for a shell where that is necessary. */
struct ws_shell_word {
	char text[768];
};
struct ws_shell_word ws_shell_word(const char *word);
/* Puts asterisks in the place of the user and password of "http://user:password@host", and of the
 * password of "user:password@host": messages quote arguments. cut: the text has lost its end; then
 * what may be a password goes, too. */
void ws_hide_passwords(char *text, bool cut);

#ifdef __cplusplus
}
#endif
#endif
