/* SPDX-License-Identifier: Apache-2.0 */
/* base64.c - encodes three bytes as four characters, and back. */
#include "base64.h"

#include <stdint.h>

static const char alphabet[] = "ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/";

void ws_base64_encode(struct ws_buf *out, const void *bytes, size_t n)
{
	const uint8_t *in = bytes;
	if (!n)
		return;
	if (n > SIZE_MAX / 2 || ws_buf_reserve(out, (n + 2) / 3 * 4)) {
		out->failed = 1;
		return;
	}
	for (size_t i = 0; i < n; i += 3) {
		const size_t left = n - i;
		const uint32_t v = (uint32_t)in[i] << 16 |
		                   (left > 1 ? (uint32_t)in[i + 1] << 8 : 0) |
		                   (left > 2 ? in[i + 2] : 0);
		const char four[] = { alphabet[v >> 18], alphabet[v >> 12 & 63],
			              left > 1 ? alphabet[v >> 6 & 63] : '=',
			              left > 2 ? alphabet[v & 63] : '=' };
		ws_buf_add(out, four, 4);
	}
}

/* -1: not in the alphabet. */
static int value_of(char c)
{
	if (c >= 'A' && c <= 'Z')
		return c - 'A';
	if (c >= 'a' && c <= 'z')
		return c - 'a' + 26;
	if (c >= '0' && c <= '9')
		return c - '0' + 52;
	return c == '+' ? 62 : c == '/' ? 63 : -1;
}

int ws_base64_decode(struct ws_buf *out, const char *text, size_t n, struct ws_err *err)
{
	if (n % 4)
		return ws_err_set(err, WS_EINPUT, "base64: %zu characters, not a multiple of four",
		                  n);
	if (!n)
		return ws_buf_check(out, "decoded base64", err);
	if (ws_buf_reserve(out, n / 4 * 3))
		return ws_buf_check(out, "decoded base64", err);
	for (size_t i = 0; i < n; i += 4) {
		size_t pad = 0;
		if (i + 4 == n && text[i + 3] == '=')
			pad = text[i + 2] == '=' ? 2 : 1;
		uint32_t v = 0;
		for (size_t k = 0; k < 4; k++) {
			const int six = k < 4 - pad ? value_of(text[i + k]) : 0;
			if (six < 0)
				return ws_err_set(err, WS_EINPUT,
				                  "base64: character %zu is not allowed", i + k);
			v = v << 6 | (uint32_t)six;
		}
		const char three[] = { (char)(v >> 16), (char)(v >> 8), (char)v };
		ws_buf_add(out, three, 3 - pad);
	}
	return ws_buf_check(out, "decoded base64", err);
}
