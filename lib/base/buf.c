/* SPDX-License-Identifier: Apache-2.0 */
#include "wsync/tool/buf.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FIRST_CAP = 256 };

static size_t limit_of(const struct ws_buf *b)
{
	return b->max ? b->max : (size_t)1 << 30;
}

void ws_buf_init(struct ws_buf *b, size_t max)
{
	*b = (struct ws_buf){ .max = max };
}

void ws_buf_free(struct ws_buf *b)
{
	if (!b)
		return;
	free(b->data);
	*b = (struct ws_buf){ .max = b->max };
}

void ws_buf_reset(struct ws_buf *b)
{
	b->len = 0;
	b->failed = 0;
	if (b->data)
		b->data[0] = 0;
}

int ws_buf_reserve(struct ws_buf *b, size_t more)
{
	if (b->failed)
		return -1;
	if (more > limit_of(b) || b->len > limit_of(b) - more) {
		b->failed = 1;
		return -1;
	}
	const size_t need = b->len + more + 1;
	if (need <= b->cap)
		return 0;
	size_t cap = b->cap ? b->cap : FIRST_CAP;
	while (cap < need)
		cap += cap / 2;
	/* callers count memory by the limit, so the capacity must not exceed it */
	if (cap > limit_of(b) + 1)
		cap = limit_of(b) + 1;
	char *data = realloc(b->data, cap);
	if (!data) {
		b->failed = 1;
		return -1;
	}
	b->data = data;
	b->cap = cap;
	b->data[b->len] = 0;
	return 0;
}

int ws_buf_add(struct ws_buf *b, const void *bytes, size_t n)
{
	if (ws_buf_reserve(b, n))
		return -1;
	if (n)
		memcpy(b->data + b->len, bytes, n);
	b->len += n;
	b->data[b->len] = 0;
	return 0;
}

int ws_buf_puts(struct ws_buf *b, const char *s)
{
	return ws_buf_add(b, s, strlen(s));
}

int ws_buf_putc(struct ws_buf *b, char c)
{
	return ws_buf_add(b, &c, 1);
}

int ws_buf_printf(struct ws_buf *b, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	const int n = vsnprintf(NULL, 0, fmt, ap);
	va_end(ap);
	if (n < 0 || ws_buf_reserve(b, (size_t)n))
		return -1;
	va_start(ap, fmt);
	vsnprintf(b->data + b->len, (size_t)n + 1, fmt, ap);
	va_end(ap);
	b->len += (size_t)n;
	return 0;
}

void ws_buf_consume(struct ws_buf *b, size_t n)
{
	if (n >= b->len) {
		ws_buf_reset(b);
		return;
	}
	memmove(b->data, b->data + n, b->len - n + 1);
	b->len -= n;
}

const char *ws_buf_str(const struct ws_buf *b)
{
	return b->data ? b->data : "";
}

int ws_buf_check(const struct ws_buf *b, const char *what, struct ws_err *err)
{
	if (!b->failed)
		return 0;
	return ws_err_set(err, WS_ESYSTEM, "%s: more than %zu bytes, or out of memory", what,
	                  limit_of(b));
}
