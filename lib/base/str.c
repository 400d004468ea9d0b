/* SPDX-License-Identifier: Apache-2.0 */
#include "wsync/tool/str.h"

#include <ctype.h>
#include <errno.h>
#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

struct unit {
	const char *name;
	double factor;
};

/* Leading decimal number; hexadecimal, exponents, inf, nan and signs are
 * not how people write sizes. */
static int leading_number(const char *s, double *value, const char **rest)
{
	const size_t n = strspn(s, "0123456789.");
	if (n == 0 || !isdigit((unsigned char)s[0]) || n > 24)
		return -1;
	char digits[32];
	memcpy(digits, s, n);
	digits[n] = 0;
	char *end;
	*value = strtod(digits, &end);
	*rest = s + n;
	return *end ? -1 : 0;
}

static int with_unit(const char *s, const struct unit *units, size_t n_units, double *out)
{
	const char *rest;
	double value;
	if (leading_number(s, &value, &rest))
		return -1;
	for (size_t i = 0; i < n_units; i++) {
		if (strcmp(rest, units[i].name) == 0) {
			*out = value * units[i].factor;
			return 0;
		}
	}
	return -1;
}

int ws_parse_size(const char *s, uint64_t *bytes, struct ws_err *err)
{
	static const struct unit units[] = {
		{ "", 1 },
		{ "B", 1 },
		{ "k", 0x1p10 },   { "K", 0x1p10 },   { "KiB", 0x1p10 }, { "kB", 1e3 },
		{ "m", 0x1p20 },   { "M", 0x1p20 },   { "MiB", 0x1p20 }, { "MB", 1e6 },
		{ "g", 0x1p30 },   { "G", 0x1p30 },   { "GiB", 0x1p30 }, { "GB", 1e9 },
		{ "t", 0x1p40 },   { "T", 0x1p40 },   { "TiB", 0x1p40 }, { "TB", 1e12 },
	};
	double value;
	if (with_unit(s, units, sizeof units / sizeof units[0], &value) || value > 0x1p62 ||
	    value != floor(value))
		return ws_err_set(err, WS_EUSAGE, "invalid SIZE '%s', must be like 512MiB or 2GB",
		                  s);
	*bytes = (uint64_t)value;
	return 0;
}

int ws_parse_duration(const char *s, int64_t *ns, struct ws_err *err)
{
	static const struct unit units[] = {
		{ "", 1e9 },   { "s", 1e9 },  { "ms", 1e6 },
		{ "us", 1e3 }, { "m", 60e9 }, { "h", 3600e9 },
	};
	if (strcmp(s, "none") == 0) {
		*ns = INT64_MAX;
		return 0;
	}
	double value;
	if (with_unit(s, units, sizeof units / sizeof units[0], &value) || value > 9e18)
		return ws_err_set(err, WS_EUSAGE,
		                  "invalid DURATION '%s', must be like 30s, 10m or none", s);
	*ns = (int64_t)value;
	return 0;
}

int ws_parse_uint(const char *s, uint64_t lo, uint64_t hi, const char *what, uint64_t *out,
                  struct ws_err *err)
{
	const size_t n = strspn(s, "0123456789");
	errno = 0;
	const unsigned long long value = n && n == strlen(s) ? strtoull(s, NULL, 10) : 0;
	if (n == 0 || s[n] || errno || value < lo || value > hi)
		return ws_err_set(err, WS_EUSAGE, "invalid %s '%s'", what, s);
	*out = value;
	return 0;
}

char *ws_format_size(char *dst, size_t n, uint64_t bytes)
{
	static const char *const units[] = { "B", "KiB", "MiB", "GiB", "TiB", "PiB" };
	double value = (double)bytes;
	size_t i = 0;
	while (value >= 1023.95 && i + 1 < sizeof units / sizeof units[0]) {
		value /= 1024;
		i++;
	}
	snprintf(dst, n,
	         i == 0        ? "%.0f %s" :
	         value < 9.995 ? "%.2f %s" :
	                         "%.1f %s",
	         value, units[i]);
	return dst;
}

char *ws_format_duration(char *dst, size_t n, int64_t ns)
{
	const double s = (double)ns / 1e9;
	if (s >= 120)
		snprintf(dst, n, "%d m %02d s", (int)(s / 60), (int)fmod(s, 60));
	else if (s >= 1)
		snprintf(dst, n, "%.2f s", s);
	else if (s >= 1e-3)
		snprintf(dst, n, s >= 0.1 ? "%.0f ms" : "%.1f ms", s * 1e3);
	else
		snprintf(dst, n, "%.0f us", s * 1e6);
	return dst;
}

char *ws_format_rate(char *dst, size_t n, uint64_t bytes, int64_t ns)
{
	static const char *const units[] = { "B/s", "kB/s", "MB/s", "GB/s", "TB/s" };
	double value = ns > 0 ? (double)bytes * 1e9 / (double)ns : 0;
	size_t i = 0;
	while (value >= 999.5 && i + 1 < sizeof units / sizeof units[0]) {
		value /= 1000;
		i++;
	}
	snprintf(dst, n, value < 9.995 ? "%.2f %s" : value < 99.95 ? "%.1f %s" : "%.0f %s", value,
	         units[i]);
	return dst;
}

bool ws_glob_match(const char *pattern, const char *name)
{
	return fnmatch(pattern, name, 0) == 0;
}

bool ws_glob_any(const char *const *patterns, size_t n, const char *name)
{
	for (size_t i = 0; i < n; i++)
		if (ws_glob_match(patterns[i], name))
			return true;
	return false;
}

bool ws_glob_choose(const char *const *include, size_t n_include, const char *const *exclude,
                    size_t n_exclude, const char *name)
{
	return (!n_include || ws_glob_any(include, n_include, name)) &&
	       !ws_glob_any(exclude, n_exclude, name);
}

bool ws_ends_with(const char *s, const char *end)
{
	const size_t n = strlen(s), k = strlen(end);
	return n >= k && memcmp(s + n - k, end, k) == 0;
}

size_t ws_utf8_step(const char *text, size_t n)
{
	const unsigned char *s = (const unsigned char *)text;
	if (n == 0)
		return 0;
	const size_t want = s[0] < 0x80 ? 1 : s[0] < 0xc2 ? 0 : s[0] < 0xe0 ? 2 : s[0] < 0xf0 ? 3 :
	                    s[0] < 0xf5 ? 4 : 0;
	if (want == 0 || want > n)
		return 0;
	for (size_t i = 1; i < want; i++)
		if ((s[i] & 0xc0) != 0x80)
			return 0;
	if (want == 3 && ((s[0] == 0xe0 && s[1] < 0xa0) || (s[0] == 0xed && s[1] >= 0xa0)))
		return 0;
	if (want == 4 && ((s[0] == 0xf0 && s[1] < 0x90) || (s[0] == 0xf4 && s[1] >= 0x90)))
		return 0;
	return want;
}

uint32_t ws_utf8_code(const char *text, size_t step)
{
	static const unsigned char head[] = { 0, 0x7f, 0x1f, 0x0f, 0x07 };
	const unsigned char *s = (const unsigned char *)text;
	uint32_t code = s[0] & head[step];
	for (size_t i = 1; i < step; i++)
		code = code << 6 | (s[i] & 0x3f);
	return code;
}

bool ws_utf8_is(const char *text)
{
	size_t step = 1;
	for (size_t left = strlen(text); left && (step = ws_utf8_step(text, left)); left -= step)
		text += step;
	return step != 0;
}

/* By code. Controls; the format characters of Unicode (category Cf), which reorder the text around
 * them or are not seen; the separators of lines and paragraphs; and the other characters that
 * Unicode wants ignored where they cannot be shown (Default_Ignorable_Code_Point). */
static const struct {
	uint32_t first, last;
} unseen[] = {
	{ 0x0000, 0x001f },   { 0x007f, 0x009f },   { 0x00ad, 0x00ad },   { 0x034f, 0x034f },
	{ 0x0600, 0x0605 },   { 0x061c, 0x061c },   { 0x06dd, 0x06dd },   { 0x070f, 0x070f },
	{ 0x0890, 0x0891 },   { 0x08e2, 0x08e2 },   { 0x115f, 0x1160 },   { 0x17b4, 0x17b5 },
	{ 0x180b, 0x180f },   { 0x200b, 0x200f },   { 0x2028, 0x202e },   { 0x2060, 0x206f },
	{ 0x3164, 0x3164 },   { 0xfe00, 0xfe0f },   { 0xfeff, 0xfeff },   { 0xffa0, 0xffa0 },
	{ 0xfff0, 0xfffb },   { 0x110bd, 0x110bd }, { 0x110cd, 0x110cd }, { 0x13430, 0x1343f },
	{ 0x1bca0, 0x1bca3 }, { 0x1d173, 0x1d17a }, { 0xe0000, 0xe0fff },
};

bool ws_utf8_is_shown(const char *text, size_t step)
{
	if (step == 1 && *text >= ' ' && *text <= '~') /* nearly all text */
		return true;
	const uint32_t code = ws_utf8_code(text, step);
	size_t lo = 0, hi = sizeof unseen / sizeof *unseen;
	while (lo < hi) {
		const size_t mid = lo + (hi - lo) / 2;
		if (code < unseen[mid].first)
			hi = mid;
		else if (code > unseen[mid].last)
			lo = mid + 1;
		else
			return false;
	}
	return true;
}

static int refuse_text(struct ws_err *err, const char *what, const char *text, const char *why)
{
	char shown[80];
	ws_printable(shown, sizeof shown, text, strlen(text));
	return ws_err_set(err, WS_EUSAGE, "%s '%s': %s", what, shown, why);
}

int ws_check_utf8(const char *text, const char *what, struct ws_err *err)
{
	if (!text || ws_utf8_is(text))
		return 0;
	refuse_text(err, what, text, "it is not UTF-8");
	return ws_err_hint(err, "servers are told it as JSON, which has no other bytes");
}

int ws_check_label(const char *text, const char *what, size_t most, struct ws_err *err)
{
	char why[48];
	if (ws_check_utf8(text, what, err))
		return -1;
	if (text && strlen(text) > most) {
		snprintf(why, sizeof why, "it is longer than %zu bytes", most);
		return refuse_text(err, what, text, why);
	}
	for (const char *s = text; s && *s; s += ws_utf8_step(s, strlen(s)))
		if (!ws_utf8_is_shown(s, ws_utf8_step(s, strlen(s))))
			return refuse_text(err, what, text, "it has a control or hidden character");
	return 0;
}

char *ws_printable(char *dst, size_t n, const char *s, size_t len)
{
	size_t out = 0;
	for (size_t i = 0; i < len && n;) {
		if (s[i] >= ' ' && s[i] <= '~' && out + 1 < n) { /* nearly all text */
			dst[out++] = s[i++];
			continue;
		}
		const size_t step = ws_utf8_step(s + i, len - i);
		const bool bad = step == 0 || !ws_utf8_is_shown(s + i, step);
		const size_t put = bad ? 1 : step;
		if (out + put >= n)
			break;
		if (bad)
			dst[out] = '?';
		else
			memcpy(dst + out, s + i, step);
		out += put;
		i += step ? step : 1;
	}
	if (n)
		dst[out] = 0;
	return dst;
}

/* The last '@', or its code in a URL. */
static char *find_last_at(char *text, size_t n)
{
	char *at = memrchr(text, '@', n);
	for (char *p = text; (p = memmem(p, n - (size_t)(p - text), "%40", 3)); p++)
		at = !at || p > at ? p : at;
	return at;
}

/* Puts asterisks in the place of the text from secret to `end`. Returns the new end. */
static char *hide(char *secret, char *end)
{
	enum { SHOWN = 3 };
	const size_t n = (size_t)(end - secret), shown = n < SHOWN ? n : SHOWN;
	memset(secret, '*', shown);
	memmove(secret + shown, end, strlen(end) + 1);
	return secret + shown;
}

/* Does the text begin with HOST or HOST:PORT? */
static bool is_host(const char *text)
{
	static const char letters[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ";
	const char *past = text;
	while (*past && (strchr(letters, *past) || strchr("0123456789.-_", *past)))
		past++;
	if (*past == ':')
		past += 1 + strspn(past + 1, "0123456789");
	return past > text && strchr(" \t\n'\"<>(),;:/?#", *past);
}

/* Hides what stands between "://" and the last '@'. If a '/', '?' or '#' follows the '@', or none
 * does at all, there may be blanks and quotes before it; else the URL ends with its word. A text
 * that was cut may lack the '@'. Returns where to go on. */
static char *hide_user(char *from, bool cut)
{
	const size_t word = strcspn(from, " \t\n'\"<>()");
	char *a = find_last_at(from, strcspn(from, "/?#")), *b = find_last_at(from, word);
	char *at = a && (!b || a > b) ? a : b;
	if (at)
		return at > from ? hide(from, at) : at;
	return cut && *from && (!from[word] || !is_host(from)) ? hide(from, from + strlen(from)) :
	                                                         from;
}

/* Is the word "hf:ORG/NAME@REVISION" or "hf:NAME@REVISION", and not a user "hf" with a password? A
 * slash in a password would be escaped, and a host has a domain or a port. */
static bool is_snapshot(const char *word)
{
	const char *hf = word + (*word == '\'');
	const char *end = hf + strcspn(hf, " \t\n"), *at = memchr(hf, '@', (size_t)(end - hf));
	if (strncmp(hf, "hf:", 3) != 0 || !at)
		return false;
	const char *slash = memchr(hf, '/', (size_t)(at - hf));
	const char *host = at + 1 + strcspn(at + 1, ".:@");
	return slash ? slash > hf + 3 : at > hf + 3 && (host >= end || host + 1 == end);
}

/* Hides what stands between the first ':' and the last '@' of a word, or of all that follows a
 * quote. Returns the end of the word. */
static char *hide_password(char *word, bool cut)
{
	const size_t n = *word == '\'' ? strlen(word) : strcspn(word, " \t\n");
	char *at = find_last_at(word, n), *end = word + (at ? (size_t)(at - word) : n);
	char *colon = memchr(word, ':', (size_t)(end - word));
	if (!colon || colon + 1 >= end || is_snapshot(word) ||
	    memmem(word, (size_t)(end - word), "://", 3) ||
	    !(at || (cut && !word[strcspn(word, " \t\n")])))
		return word + strcspn(word, " \t\n");
	return hide(colon + 1, end);
}

void ws_hide_passwords(char *text, bool cut)
{
	for (char *p = text; (p = strstr(p, "://"));)
		p = hide_user(p + 3, cut);
	for (char *p = text; *(p += strspn(p, " \t\n"));)
		p = hide_password(p, cut);
}

struct ws_shell_word ws_shell_word(const char *word)
{
	static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789"
				    "/._:@%+=,-", too_long[] = "FILE";
	struct ws_shell_word to;
	char shown[sizeof to.text / 2];
	size_t n = 0;
	if (strlen(word) >= sizeof shown - 2) {
		memcpy(to.text, too_long, sizeof too_long);
		return to;
	}
	/* A word that begins with "-" would be an option. */
	snprintf(shown, sizeof shown, "%s%s", *word == '-' ? "./" : "", word);
	if (*shown && !shown[strspn(shown, plain)]) {
		memcpy(to.text, shown, sizeof shown);
		return to;
	}
	to.text[n++] = '\'';
	for (const char *p = shown; *p; p++) {
		if (n + 6 > sizeof to.text) { /* many quotes */
			memcpy(to.text, too_long, sizeof too_long);
			return to;
		}
		if (*p == '\'') {
			memcpy(to.text + n, "'\\''", 4);
			n += 4;
		} else {
			to.text[n++] = *p;
		}
	}
	to.text[n++] = '\'';
	to.text[n] = 0;
	return to;
}
