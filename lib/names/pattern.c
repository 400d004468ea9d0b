/* SPDX-License-Identifier: Apache-2.0 */
/* pattern.c - matches names with patterns, segment by segment.
 *
 * "**" is captured as "<**" if it is the first of several segments, else as "**>". If a name
 * can be divided in several ways, the leading "**" is as short as possible. */
#include "rules.h"
#include "wsync/tool/layout.h"

#include <string.h>

enum { MAX_NAME = 4096 };

struct found {
	struct ws_capture caps[WS_MAX_CAPTURES];
	size_t n;
};

static size_t segment(const char *s)
{
	size_t n = 0;
	while (s[n] && s[n] != '.')
		n++;
	return n;
}

/* Compares the first segments: most patterns that do not match already differ there. */
static bool may_begin(const char *pattern, const char *name)
{
	if (*pattern == '{' || *pattern == '*')
		return true;
	while (*pattern && *pattern == *name && *pattern != '.')
		pattern++, name++;
	return (!*pattern || *pattern == '.') && (!*name || *name == '.');
}

static bool is_any(const char *segment_at, size_t n)
{
	return n == 2 && memcmp(segment_at, "**", 2) == 0;
}

static const struct ws_capture *captured(const struct ws_capture *caps, size_t n_caps,
                                         const char *var, size_t n)
{
	for (size_t i = 0; i < n_caps; i++)
		if (strlen(caps[i].var) == n && memcmp(caps[i].var, var, n) == 0)
			return &caps[i];
	return NULL;
}

static bool capture(struct found *f, const char *var, size_t n, const char *at, size_t len)
{
	const struct ws_capture *before = captured(f->caps, f->n, var, n);
	if (before)
		return before->n == len && memcmp(before->at, at, len) == 0;
	if (f->n == WS_MAX_CAPTURES || n >= sizeof f->caps->var)
		return false;
	struct ws_capture *c = &f->caps[f->n++];
	*c = (struct ws_capture){ .at = at, .n = len };
	memcpy(c->var, var, n);
	return true;
}

static bool match_segment(const char *pattern, size_t n_p, const char *name, size_t n,
                          struct found *f)
{
	if (n_p >= 2 && pattern[0] == '{' && pattern[n_p - 1] == '}')
		return n > 0 && capture(f, pattern + 1, n_p - 2, name, n);
	return n_p == n && memcmp(pattern, name, n) == 0;
}

/* Matches a pattern without leading "**" with the whole name. */
static bool match_from(const char *pattern, const char *name, struct found *f)
{
	for (;;) {
		const size_t n_p = segment(pattern);
		if (is_any(pattern, n_p) && !pattern[n_p])
			return capture(f, "**>", 3, name ? name : "", name ? strlen(name) : 0);
		if (!name)
			return false;
		const size_t n = segment(name);
		if (!match_segment(pattern, n_p, name, n, f))
			return false;
		name = name[n] ? name + n + 1 : NULL;
		if (!pattern[n_p])
			return !name;
		pattern += n_p + 1;
	}
}

static bool match(const char *pattern, const char *name, struct found *f)
{
	f->n = 0;
	if (strncmp(pattern, "**.", 3) != 0)
		return may_begin(pattern, name) && match_from(pattern, name, f);
	const char *rest = pattern + 3;
	for (const char *at = name;; at++) {
		f->n = 0;
		if (may_begin(rest, at) && match_from(rest, at, f))
			return capture(f, "<**", 3, name, at == name ? 0 : (size_t)(at - name) - 1);
		at += segment(at);
		if (!*at)
			return false;
	}
}

uint64_t ws_pattern_bits(const char *pattern)
{
	uint64_t bits = 0;
	for (;; pattern++) {
		const bool any = *pattern == '{' || *pattern == '*';
		uint32_t hash = 2166136261u; /* FNV-1a */
		for (; *pattern && *pattern != '.'; pattern++)
			hash = (hash ^ (unsigned char)*pattern) * 16777619u;
		if (!any)
			bits |= UINT64_C(1) << ((hash ^ hash >> 16) & 63);
		if (!*pattern)
			return bits;
	}
}

bool ws_pattern_match(const char *pattern, const char *name, struct ws_capture *caps, size_t n_caps)
{
	struct found f;
	if (!match(pattern, name, &f))
		return false;
	for (size_t i = 0; caps && i < n_caps; i++)
		caps[i] = i < f.n ? f.caps[i] : (struct ws_capture){ .at = "" };
	return true;
}

/* Finds the text that replaces a segment of a pattern; false: not captured. */
static bool meaning(const char *segment_at, size_t n, bool leads, const struct ws_capture *caps,
                    size_t n_caps, const char **at, size_t *len)
{
	const struct ws_capture *c = NULL;
	*at = segment_at;
	*len = n;
	if (is_any(segment_at, n)) {
		c = captured(caps, n_caps, leads ? "<**" : "**>", 3);
		if (!c)
			c = captured(caps, n_caps, leads ? "**>" : "<**", 3);
	} else if (n >= 2 && segment_at[0] == '{' && segment_at[n - 1] == '}') {
		c = captured(caps, n_caps, segment_at + 1, n - 2);
	} else {
		return true;
	}
	if (!c)
		return false;
	*at = c->at;
	*len = c->n;
	return true;
}

const char *ws_pattern_fill(const char *pattern, const struct ws_capture *caps, size_t n_caps,
                            char *dst, size_t n)
{
	size_t out = 0;
	for (const char *p = pattern;;) {
		const size_t n_p = segment(p);
		const char *at;
		size_t len;
		if (!meaning(p, n_p, p == pattern && p[n_p], caps, n_caps, &at, &len))
			return NULL;
		const size_t dot = out && len; /* "**" may be empty */
		if (n - out <= len + dot || out >= n)
			return NULL;
		if (dot)
			dst[out++] = '.';
		memcpy(dst + out, at, len);
		out += len;
		if (!p[n_p])
			break;
		p += n_p + 1;
	}
	dst[out] = 0;
	return dst;
}

static bool is_wrapper(const struct ws_family *f, const char *at, size_t n)
{
	for (size_t i = 0; i < f->n_strips; i++)
		if (f->strips[i][0] == at[0] && strncmp(f->strips[i], at, n) == 0 &&
		    !f->strips[i][n])
			return true;
	return false;
}

/* Copies the name without the segments that wrappers add. The last segment is never removed. */
static const char *unwrap(const struct ws_family *f, const char *name, char *dst, size_t n)
{
	size_t out = 0;
	for (;;) {
		const size_t len = segment(name);
		const bool last = !name[len];
		if (last || !is_wrapper(f, name, len)) {
			if (out >= n || n - out <= len + !last)
				return NULL;
			memcpy(dst + out, name, len);
			out += len;
			dst[out] = '.';
			out += !last;
		}
		if (last)
			break;
		name += len + 1;
	}
	dst[out] = 0;
	return dst;
}

const char *ws_family_rename(const struct ws_family *f, const char *name, char *dst, size_t n)
{
	struct ws_capture caps[WS_MAX_CAPTURES];
	char before[MAX_NAME];
	if (!unwrap(f, name, dst, n))
		return NULL;
	uint64_t bits = ws_pattern_bits(dst);
	for (size_t i = 0; i < f->n_renames; i++) {
		const struct ws_rename *r = &f->renames[i];
		if ((r->bits & ~bits) || !ws_pattern_match(r->from, dst, NULL, 0))
			continue;
		const size_t len = strlen(dst);
		if (len >= sizeof before)
			return NULL;
		memcpy(before, dst, len + 1);
		ws_pattern_match(r->from, before, caps, WS_MAX_CAPTURES);
		if (!ws_pattern_fill(r->to, caps, WS_MAX_CAPTURES, dst, n))
			return NULL;
		if (!dst[0])
			memcpy(dst, before, len + 1); /* nothing would remain */
		bits = ws_pattern_bits(dst);
	}
	return dst;
}
