/* SPDX-License-Identifier: Apache-2.0 */
/* http_hide.c - replaces our keys in what servers reply: error pages and echo routes repeat the
 * headers of a request, and replies end in messages, records and logs.
 *
 * A key is found as it is, escaped for JSON or a URL, and in base64, alone or behind other bytes.
 * A short key may be a word of any reply. It is only replaced after "Bearer", and where it is a
 * whole word of an error or of the log. */
#include "http_core.h"

#include "base64.h"

#include <ctype.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { LONG_KEY = 8, MAX_BACKSLASHES = 8 };

/* ---- the keys ---- */

/* RFC 4648 has two alphabets. */
static char other_digit(char c)
{
	return (char)(c == '+' ? '-' : c == '/' ? '_' : c);
}

/* Keeps a form of a key without its backslashes, which match() skips in texts. */
static bool add_form(struct ws_http *h, const char *text, size_t n, bool base64)
{
	struct ws_http_secret *s = &h->secrets[h->n_secrets];
	if (!(s->text = malloc(n + 1)))
		return false;
	s->n = 0;
	s->base64 = base64;
	for (size_t i = 0; i < n; i++)
		if (text[i] != '\\')
			s->text[s->n++] = text[i];
	s->text[s->n] = '\0';
	h->n_secrets++;
	const char first = s->text[0];
	h->starts[(unsigned char)first] = h->starts[(unsigned char)other_digit(first)] = true;
	h->starts[0xc0 | (unsigned char)first >> 6] = true;
	h->starts['\\'] = h->starts['%'] = h->starts['b'] = h->starts['B'] = true;
	return true;
}

/* Base64 of the key behind `before` bytes, without the characters that have bits of neighbors. */
static bool add_base64(struct ws_http *h, const char *key, size_t n, size_t before)
{
	const size_t from = (before * 8 + 5) / 6, to = (before + n) * 8 / 6;
	struct ws_buf bytes, text;
	ws_buf_init(&bytes, 0);
	ws_buf_init(&text, 0);
	ws_buf_add(&bytes, "\0\0", before);
	ws_buf_add(&bytes, key, n);
	ws_base64_encode(&text, ws_buf_str(&bytes), bytes.len);
	const bool ok =
		!bytes.failed && !text.failed && add_form(h, text.data + from, to - from, true);
	if (bytes.data)
		explicit_bzero(bytes.data, bytes.cap);
	if (text.data)
		explicit_bzero(text.data, text.cap);
	ws_buf_free(&bytes);
	ws_buf_free(&text);
	return ok;
}

int ws_http_hide_key(struct ws_http *h, const char *key, size_t n, struct ws_err *err)
{
	bool ok = !n || add_form(h, key, n, false);
	for (size_t before = 0; ok && n >= LONG_KEY && before < 3; before++)
		ok = add_base64(h, key, n, before);
	return ok ? 0 : ws_oom(err);
}

void ws_http_forget_keys(struct ws_http *h)
{
	for (size_t i = 0; i < h->n_secrets; i++) {
		explicit_bzero(h->secrets[i].text, h->secrets[i].n);
		free(h->secrets[i].text);
	}
	h->n_secrets = 0;
}

/* ---- one place of a text ---- */

/* The value of n hexadecimal digits; -1: other characters. */
static int hex(const char *text, size_t n)
{
	int value = 0;
	for (size_t i = 0; i < n; i++) {
		const unsigned char c = (unsigned char)text[i];
		if (!isxdigit(c))
			return -1;
		value = value * 16 + (isdigit(c) ? c - '0' : tolower(c) - 'a' + 10);
	}
	return value;
}

/* The bytes of the text that stand for c: c, %XX, \uXXXX, or c of Latin-1 in UTF-8, and some
 * backslashes before it. 0: c is not there. */
static size_t match_byte(const char *text, size_t n, unsigned char c)
{
	size_t at = 0, slashes = 0;
	for (; slashes < MAX_BACKSLASHES && at < n; slashes++)
		if (text[at] == '\\')
			at++;
		else if (n - at >= 3 && text[at] == '%' && hex(text + at + 1, 2) == '\\')
			at += 3;
		else
			break;
	if (slashes && n - at >= 5 && text[at] == 'u' && hex(text + at + 1, 4) == c)
		return at + 5;
	if (n - at >= 3 && text[at] == '%' && hex(text + at + 1, 2) == c)
		return at + 3;
	if (c >= 0x80 && n - at >= 2 && (unsigned char)text[at] == (0xc0 | c >> 6) &&
	    (unsigned char)text[at + 1] == (0x80 | (c & 0x3f)))
		return at + 2;
	return at < n && (unsigned char)text[at] == c ? at + 1 : 0;
}

/* The bytes of the text that are this form of a key; 0: it does not begin with it. */
static size_t match(const char *text, size_t n, const struct ws_http_secret *s)
{
	size_t at = 0;
	for (size_t i = 0; i < s->n; i++) {
		size_t took = match_byte(text + at, n - at, (unsigned char)s->text[i]);
		if (!took && s->base64)
			took = match_byte(text + at, n - at,
			                  (unsigned char)other_digit(s->text[i]));
		if (!took)
			return 0;
		at += took;
	}
	return at;
}

/* The length of "Bearer" and the blanks behind it; 0: the text begins otherwise. */
static size_t match_bearer(const char *text, size_t n)
{
	size_t at = 6, took;
	if (n < at || strncasecmp(text, "bearer", at))
		return 0;
	while (at < n && (took = text[at] == '+' ? 1 : match_byte(text + at, n - at, ' ')))
		at += took;
	return at;
}

static bool is_word(const struct ws_buf *text, size_t at, size_t end)
{
	return !(at && isalnum((unsigned char)text->data[at - 1])) &&
	       !(end < text->len && isalnum((unsigned char)text->data[end]));
}

static size_t find_key(const struct ws_http *h, const struct ws_buf *text, size_t at, bool told,
                       bool words)
{
	for (size_t i = 0; i < h->n_secrets; i++) {
		const struct ws_http_secret *s = &h->secrets[i];
		const size_t n = match(text->data + at, text->len - at, s);
		if (n && (s->n >= LONG_KEY || told || (words && is_word(text, at, at + n))))
			return n;
	}
	return 0;
}

/* Returns the bytes of a key at `at`. *bearer is where the key after the last "Bearer" begins. */
static size_t find(const struct ws_http *h, const struct ws_buf *text, size_t at, size_t *bearer,
                   bool words)
{
	if (!h->starts[(unsigned char)text->data[at]])
		return 0;
	const size_t n = find_key(h, text, at, at == *bearer, words);
	const size_t begun = n ? 0 : match_bearer(text->data + at, text->len - at);
	if (begun)
		*bearer = at + begun;
	return n;
}

void ws_http_hide_keys(const struct ws_http *h, struct ws_buf *text, bool words)
{
	size_t out = 0, bearer = SIZE_MAX;
	if (!h->n_secrets || !text->data)
		return;
	for (size_t at = 0, n; at < text->len; at += n ? n : 1) {
		n = find(h, text, at, &bearer, words);
		for (size_t i = 0; i < n && i < 3; i++)
			text->data[out++] = '*';
		if (!n)
			text->data[out++] = text->data[at];
	}
	text->len = out;
	text->data[out] = '\0';
}
