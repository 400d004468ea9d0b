/* SPDX-License-Identifier: Apache-2.0 */
/* buf.h - a growing byte buffer with a size limit.
 *
 * A buffer of foreign bytes (replies, requests, frames) must have a limit; exceeding the limit is
 * an error, not an allocation. A NUL follows the bytes, so that text can be used as a string. */
#ifndef WSYNC_BUF_H
#define WSYNC_BUF_H

#include "wsync/err.h"

#include <stddef.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ws_buf {
	char *data;  /* owned; NULL while empty; data[len] is NUL */
	size_t len;  /* bytes in use */
	size_t cap;  /* bytes allocated */
	size_t max;  /* most bytes len may reach; 0: 1 GiB */
	int failed;  /* an append failed; later appends are refused (check once at the end) */
};

void ws_buf_init(struct ws_buf *b, size_t max);
void ws_buf_free(struct ws_buf *b); /* NULL is fine; leaves an empty buffer with the same limit */
void ws_buf_reset(struct ws_buf *b); /* len = 0, keeps the memory */
int ws_buf_reserve(struct ws_buf *b, size_t more);
int ws_buf_add(struct ws_buf *b, const void *bytes, size_t n);
int ws_buf_puts(struct ws_buf *b, const char *s);
int ws_buf_putc(struct ws_buf *b, char c);
int ws_buf_printf(struct ws_buf *b, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
/* Drops the first n bytes. */
void ws_buf_consume(struct ws_buf *b, size_t n);
/* The string; "" while empty. */
const char *ws_buf_str(const struct ws_buf *b);
/* 0, or -1 with WS_ESYSTEM saying that `what` grew past its limit or memory ran out. */
int ws_buf_check(const struct ws_buf *b, const char *what, struct ws_err *err);

#ifdef __cplusplus
}
#endif
#endif
