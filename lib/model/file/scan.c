/* SPDX-License-Identifier: Apache-2.0 */
#include "scan.h"

#include "file.h"
#include "name_index.h"
#include "wsync/tool/buf.h"
#include "wsync/tool/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = 64 };

typedef unsigned long long ull;

int ws_scan_file(const char *path, size_t most, struct ws_scan *out, struct ws_err *err)
{
	struct ws_buf text;
	ws_buf_init(&text, most);
	if (ws_file_read(path, &text, err)) {
		ws_buf_free(&text);
		return -1;
	}
	*out = (struct ws_scan){ .text = text.data, .len = text.len, .path = path, .err = err };
	return 0;
}

int ws_scan_copy(const void *text, size_t len, const char *path, struct ws_scan *out,
                 struct ws_err *err)
{
	const struct ws_scan s = {
		.text = malloc(len ? len : 1), .len = len, .path = path, .err = err
	};
	if (!s.text)
		return ws_oom(s.err);
	if (len)
		memcpy(s.text, text, len);
	*out = s;
	return 0;
}

int ws_scan_refuse(const struct ws_scan *s, const char *fmt, ...)
{
	char why[480];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	if (!s->tensor)
		return ws_err_set(s->err, WS_EINPUT, "%s: %s", s->path, why);
	return ws_err_set(s->err, WS_EINPUT, "%s: tensor '%s': %s", s->path,
	                  ws_quote(s->tensor).text, why);
}

static int no_json(const struct ws_scan *s, size_t at, const char *why)
{
	return ws_scan_refuse(s, "not JSON at byte %llu: %s", (ull)(s->base + at),
	                      at >= s->len ? "the text ends early" : why);
}

/* Refuses a value that is not of the required kind. `what` names the value. */
static int expected(struct ws_scan *s, const char *what, const char *kind)
{
	if (ws_scan_peek(s) == 0)
		return no_json(s, s->at, "NUL character");
	return ws_scan_refuse(s, "%s at byte %llu is no %s", what, (ull)(s->base + s->at), kind);
}

char ws_scan_peek(struct ws_scan *s)
{
	while (s->at < s->len) {
		const char c = s->text[s->at];
		if (c != ' ' && c != '\n' && c != '\r' && c != '\t')
			return c;
		s->at++;
	}
	return 0;
}

unsigned long long ws_scan_here(struct ws_scan *s)
{
	ws_scan_peek(s);
	return s->base + s->at;
}

int ws_scan_open(struct ws_scan *s, char bracket, const char *what)
{
	if (ws_scan_peek(s) != bracket)
		return expected(s, what, bracket == '{' ? "object" : "array");
	s->at++;
	return 0;
}

int ws_scan_next(struct ws_scan *s, char closing, size_t *n)
{
	const char c = ws_scan_peek(s);
	if (c == closing) {
		s->at++;
		return 0;
	}
	if (*n > 0) {
		if (c != ',')
			return no_json(s, s->at, closing == '}' ? "expected ',' or '}'" :
			                                          "expected ',' or ']'");
		s->at++;
		ws_scan_peek(s);
	}
	(*n)++;
	return 1;
}

int ws_scan_key(struct ws_scan *s, char **key)
{
	if (ws_scan_peek(s) != '"')
		return no_json(s, s->at, "expected a key");
	if (ws_scan_string(s, "key", key))
		return -1;
	if (ws_scan_peek(s) != ':')
		return no_json(s, s->at, "expected ':'");
	s->at++;
	return 0;
}

/* Reads four hexadecimal digits at `at`; -1: invalid. */
static int32_t hex4(const struct ws_scan *s, size_t at)
{
	int32_t value = 0;
	if (s->len - at < 4)
		return -1;
	for (size_t i = at; i < at + 4; i++) {
		const char c = s->text[i];
		const int digit = c >= '0' && c <= '9' ? c - '0' :
		                  c >= 'a' && c <= 'f' ? c - 'a' + 10 :
		                  c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
		if (digit < 0)
			return -1;
		value = value * 16 + digit;
	}
	return value;
}

static size_t put_utf8(char *dst, uint32_t c)
{
	if (c < 0x80) {
		dst[0] = (char)c;
		return 1;
	}
	if (c < 0x800) {
		dst[0] = (char)(0xc0 | c >> 6);
		dst[1] = (char)(0x80 | (c & 0x3f));
		return 2;
	}
	if (c < 0x10000) {
		dst[0] = (char)(0xe0 | c >> 12);
		dst[1] = (char)(0x80 | (c >> 6 & 0x3f));
		dst[2] = (char)(0x80 | (c & 0x3f));
		return 3;
	}
	dst[0] = (char)(0xf0 | c >> 18);
	dst[1] = (char)(0x80 | (c >> 12 & 0x3f));
	dst[2] = (char)(0x80 | (c >> 6 & 0x3f));
	dst[3] = (char)(0x80 | (c & 0x3f));
	return 4;
}

/* Decodes \uXXXX or a surrogate pair to dst, with s->at at the 'u'. Returns the length; 0:
 * refused. */
static size_t unescape_unicode(struct ws_scan *s, char *dst)
{
	const size_t start = s->at - 1;
	const int32_t high = hex4(s, s->at + 1);
	s->at += 5;
	if (high < 0) {
		no_json(s, start, "\\u wants four hexadecimal digits");
		return 0;
	}
	if (high == 0) {
		no_json(s, start, "NUL character");
		return 0;
	}
	if (high < 0xd800 || high > 0xdfff)
		return put_utf8(dst, (uint32_t)high);
	if (high <= 0xdbff && s->len - s->at >= 6 && memcmp(s->text + s->at, "\\u", 2) == 0) {
		const int32_t low = hex4(s, s->at + 2);
		if (low >= 0xdc00 && low <= 0xdfff) {
			s->at += 6;
			return put_utf8(dst, 0x10000 + (((uint32_t)high & 0x3ff) << 10) +
			                     ((uint32_t)low & 0x3ff));
		}
	}
	no_json(s, start, "half of a surrogate pair");
	return 0;
}

/* Decodes one escape to dst, with s->at after the backslash. Returns the length; 0: refused. The
 * output is never longer than the input, so dst may be shortly before s->at. */
static size_t unescape(struct ws_scan *s, char *dst)
{
	static const char from[] = "\"\\/bfnrt", to[] = "\"\\/\b\f\n\r\t";
	const char c = s->at < s->len ? s->text[s->at] : 0;
	if (c == 'u')
		return unescape_unicode(s, dst);
	const char *p = c ? strchr(from, c) : NULL;
	if (!p) {
		no_json(s, s->at, "unknown escape");
		return 0;
	}
	*dst = to[p - from];
	s->at++;
	return 1;
}

int ws_scan_string(struct ws_scan *s, const char *what, char **out)
{
	if (ws_scan_peek(s) != '"')
		return expected(s, what, "string");
	char *const start = s->text + ++s->at;
	char *dst = start;
	while (s->at < s->len && s->text[s->at] != '"') {
		const char c = s->text[s->at];
		if ((unsigned char)c < 0x20)
			return no_json(s, s->at, "control character in a string");
		if (c == '\\') {
			s->at++;
			const size_t n = unescape(s, dst);
			if (n == 0)
				return -1;
			dst += n;
			continue;
		}
		if ((unsigned char)c < 0x80) {
			*dst++ = c;
			s->at++;
			continue;
		}
		const size_t n = ws_utf8_step(s->text + s->at, s->len - s->at);
		if (n == 0)
			return no_json(s, s->at, "invalid UTF-8");
		memmove(dst, s->text + s->at, n);
		dst += n;
		s->at += n;
	}
	if (s->at >= s->len)
		return no_json(s, s->len, "");
	s->at++;
	*dst = 0;
	*out = start;
	return 0;
}

int ws_scan_uint(struct ws_scan *s, const char *what, uint64_t *out)
{
	static const char kind[] = "non-negative integer below 2^63";
	ws_scan_peek(s);
	size_t i = s->at;
	uint64_t value = 0;
	for (; i < s->len && s->text[i] >= '0' && s->text[i] <= '9'; i++) {
		const uint64_t digit = (uint64_t)(s->text[i] - '0');
		if (value > (INT64_MAX - digit) / 10)
			return expected(s, what, kind);
		value = value * 10 + digit;
	}
	const size_t digits = i - s->at;
	/* 01 is not JSON. 1.0 and 1e3 are, but no writer uses them for sizes. */
	if (digits == 0 || (digits > 1 && s->text[s->at] == '0') ||
	    (i < s->len && strchr(".eE", s->text[i]) && s->text[i]))
		return expected(s, what, kind);
	s->at = i;
	*out = value;
	return 0;
}

static int read_field(struct ws_scan *s, const struct ws_scan_field *fields, void *into,
                      unsigned *seen)
{
	char *key;
	size_t i = 0;
	if (ws_scan_key(s, &key))
		return -1;
	while (fields[i].name && strcmp(key, fields[i].name) != 0)
		i++;
	if (!fields[i].name)
		return ws_scan_refuse(s, "unknown field '%s' before byte %llu", ws_quote(key).text,
		                      ws_scan_here(s));
	if (*seen & 1u << i)
		return ws_scan_refuse(s, "field '%s' twice, again before byte %llu", key,
		                      ws_scan_here(s));
	*seen |= 1u << i;
	return fields[i].read(s, key, into);
}

int ws_scan_fields(struct ws_scan *s, const struct ws_scan_field *fields, size_t n, void *into,
                   unsigned *seen)
{
	unsigned found = 0;
	int more;
	while ((more = ws_scan_next(s, '}', &n)) > 0)
		if (read_field(s, fields, into, &found))
			return -1;
	for (size_t i = 0; more == 0 && fields[i].name; i++)
		if (!fields[i].optional && !(found & 1u << i))
			return ws_scan_refuse(s, "field '%s' is missing before byte %llu",
			                      fields[i].name, ws_scan_here(s));
	if (seen)
		*seen = found;
	return more;
}

int ws_scan_object(struct ws_scan *s, const char *what, const struct ws_scan_field *fields,
                   void *into, unsigned *seen)
{
	return ws_scan_open(s, '{', what) ? -1 : ws_scan_fields(s, fields, 0, into, seen);
}

static int skip_word(struct ws_scan *s)
{
	static const char *const words[] = { "true", "false", "null" };
	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
		const size_t n = strlen(words[i]);
		if (s->len - s->at >= n && memcmp(s->text + s->at, words[i], n) == 0) {
			s->at += n;
			return 0;
		}
	}
	/* Skips numbers without checking their range: the reader of a number does that. */
	const size_t start = s->at;
	while (s->at < s->len && s->text[s->at] && strchr("0123456789+-.eE", s->text[s->at]))
		s->at++;
	return s->at > start ? 0 : no_json(s, start, "expected a value");
}

static int skip(struct ws_scan *s, unsigned depth)
{
	const char c = ws_scan_peek(s);
	char *text;
	if (c == '"')
		return ws_scan_string(s, "value", &text);
	if (c != '{' && c != '[')
		return skip_word(s);
	if (depth == MAX_DEPTH)
		return no_json(s, s->at, "nested deeper than 64 levels");
	s->at++;
	size_t n = 0;
	int more;
	while ((more = ws_scan_next(s, c == '{' ? '}' : ']', &n)) > 0)
		if ((c == '{' && ws_scan_key(s, &text)) || skip(s, depth + 1))
			return -1;
	return more;
}

int ws_scan_skip(struct ws_scan *s)
{
	return skip(s, 0);
}

int ws_scan_end(struct ws_scan *s)
{
	ws_scan_peek(s);
	return s->at == s->len ? 0 : no_json(s, s->at, "text after the value");
}
