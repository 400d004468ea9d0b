/* SPDX-License-Identifier: Apache-2.0 */
#include "wsync/tool/json_read.h"
#include "wsync/tool/str.h"

#include <cjson/cJSON.h>

#include <float.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* ---- reading ---- */

static const cJSON *node_of(const struct ws_json *j)
{
	return (const cJSON *)(const void *)j;
}

static const struct ws_json *json_of(const cJSON *c)
{
	return (const struct ws_json *)(const void *)c;
}

struct scanned {
	size_t wrong;    /* offset of what cJSON takes and is not allowed; len: there is none */
	const char *why; /* a NUL, raw or escaped, or bytes that are not UTF-8 */
	size_t values;   /* the text has no more values and keys than this */
};

/* Every value but the first follows a comma, or opens an array or an object; every key is before a
 * colon. A key counts because cJSON allocates it as it does a text. Bytes of a text that
 * is not JSON may count too much or too little, but cJSON stops at the first wrong one. */
static struct scanned scan(const char *text, size_t len)
{
	struct scanned s = { .wrong = len, .values = 1 };
	bool in_string = false;
	for (size_t i = 0; i < len; i++) {
		const char c = text[i];
		const size_t step = (unsigned char)c < 0x80 ? 1 : ws_utf8_step(text + i, len - i);
		if (c == 0 || step == 0 ||
		    (c == '\\' && len - i >= 6 && memcmp(text + i, "\\u0000", 6) == 0)) {
			s.wrong = i;
			s.why = step ? "NUL character" : "not UTF-8";
			break;
		}
		i += step - 1;
		if (c == '\\') {
			i++; /* skip the escaped character: "\\\\u0000" has no NUL */
		} else if (c == '"') {
			in_string = !in_string;
		} else if (!in_string) {
			s.values += c == ',' || c == '[' || c == '{' || c == ':';
		}
	}
	return s;
}

struct ws_json *ws_json_parse_most(const char *text, size_t len, size_t most, const char *what,
                                   struct ws_err *err)
{
	const struct scanned has = scan(text, len);
	if (has.wrong < len) {
		ws_err_set(err, WS_EINPUT, "%s: not JSON at byte %zu: %s", what, has.wrong,
		           has.why);
		return NULL;
	}
	if (has.values > most) {
		ws_err_set(err, WS_EINPUT,
		           "%s: has %zu JSON values and keys, and at most %zu are read", what,
		           has.values, most);
		return NULL;
	}
	const char *end = NULL;
	cJSON *root = cJSON_ParseWithLengthOpts(text, len, &end, 0);
	if (!root) {
		const size_t at = end && end >= text ? (size_t)(end - text) : 0;
		ws_err_set(err, WS_EINPUT, "%s: not JSON at byte %zu%s", what, at,
		           at >= len ? ": the text ends early" : "");
		return NULL;
	}
	size_t at = (size_t)(end - text);
	while (at < len && strchr(" \t\r\n", text[at]))
		at++;
	if (at < len) {
		cJSON_Delete(root);
		ws_err_set(err, WS_EINPUT, "%s: not JSON at byte %zu: text after the value", what,
		           at);
		return NULL;
	}
	return (struct ws_json *)(void *)root;
}

struct ws_json *ws_json_parse(const char *text, size_t len, const char *what, struct ws_err *err)
{
	return ws_json_parse_most(text, len, WS_JSON_USUAL, what, err);
}

void ws_json_free(struct ws_json *root)
{
	cJSON_Delete((cJSON *)(void *)root);
}

enum ws_json_type ws_json_type(const struct ws_json *node)
{
	const cJSON *c = node_of(node);
	if (!c || cJSON_IsNull(c))
		return WS_JSON_NULL;
	if (cJSON_IsBool(c))
		return WS_JSON_BOOL;
	if (cJSON_IsNumber(c))
		return WS_JSON_NUMBER;
	if (cJSON_IsString(c))
		return WS_JSON_STRING;
	return cJSON_IsArray(c) ? WS_JSON_ARRAY : WS_JSON_OBJECT;
}

const struct ws_json *ws_json_get(const struct ws_json *object, const char *key)
{
	if (!cJSON_IsObject(node_of(object)))
		return NULL;
	return json_of(cJSON_GetObjectItemCaseSensitive(node_of(object), key));
}

const struct ws_json *ws_json_first(const struct ws_json *container)
{
	const enum ws_json_type type = ws_json_type(container);
	if (type != WS_JSON_ARRAY && type != WS_JSON_OBJECT)
		return NULL;
	return json_of(node_of(container)->child);
}

const struct ws_json *ws_json_next(const struct ws_json *node)
{
	return json_of(node_of(node)->next);
}

const char *ws_json_key(const struct ws_json *member)
{
	return member && node_of(member)->string ? node_of(member)->string : "";
}

size_t ws_json_count(const struct ws_json *container)
{
	size_t n = 0;
	for (const struct ws_json *j = ws_json_first(container); j; j = ws_json_next(j))
		n++;
	return n;
}

const char *ws_json_string(const struct ws_json *node)
{
	return node ? cJSON_GetStringValue(node_of(node)) : NULL;
}

bool ws_json_double(const struct ws_json *node, double *out)
{
	if (ws_json_type(node) != WS_JSON_NUMBER)
		return false;
	*out = node_of(node)->valuedouble;
	return true;
}

bool ws_json_int(const struct ws_json *node, int64_t *out)
{
	double d;
	/* 2^53 itself is refused: 2^53 + 1 reads the same. */
	if (!ws_json_double(node, &d) || !(fabs(d) < 0x1p53) || d != floor(d))
		return false;
	*out = (int64_t)d;
	return true;
}

bool ws_json_bool(const struct ws_json *node, bool fallback)
{
	return ws_json_type(node) == WS_JSON_BOOL ? cJSON_IsTrue(node_of(node)) : fallback;
}

const char *ws_json_get_string(const struct ws_json *object, const char *key, const char *fallback)
{
	const char *s = ws_json_string(ws_json_get(object, key));
	return s ? s : fallback;
}

int64_t ws_json_get_int(const struct ws_json *object, const char *key, int64_t fallback)
{
	int64_t value;
	return ws_json_int(ws_json_get(object, key), &value) ? value : fallback;
}

bool ws_json_get_bool(const struct ws_json *object, const char *key, bool fallback)
{
	return ws_json_bool(ws_json_get(object, key), fallback);
}

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

const char *ws_json_duplicate(const struct ws_json *object)
{
	const size_t n = ws_json_count(object);
	if (n < 2)
		return NULL;
	const char **keys = malloc(n * sizeof *keys);
	if (!keys)
		return NULL;
	size_t i = 0;
	for (const struct ws_json *j = ws_json_first(object); j; j = ws_json_next(j))
		keys[i++] = ws_json_key(j);
	qsort(keys, n, sizeof *keys, by_text);
	const char *twice = NULL;
	for (i = 1; i < n && !twice; i++)
		if (strcmp(keys[i - 1], keys[i]) == 0)
			twice = keys[i];
	free(keys);
	return twice;
}

/* ---- writing ---- */

void ws_jw_init(struct ws_jw *w, struct ws_buf *out)
{
	*w = (struct ws_jw){ .out = out };
}

/* A character that is not shown, in the form that any JSON reader takes back. */
static void put_escaped(struct ws_buf *out, uint32_t code)
{
	if (code == '\n' || code == '\t')
		ws_buf_puts(out, code == '\n' ? "\\n" : "\\t");
	else if (code < 0x10000)
		ws_buf_printf(out, "\\u%04x", code);
	else
		ws_buf_printf(out, "\\u%04x\\u%04x", 0xd800 + ((code - 0x10000) >> 10),
		              0xdc00 + (code & 0x3ff));
}

static void quoted(struct ws_buf *out, const char *text, size_t len)
{
	const unsigned char *s = (const unsigned char *)text;
	ws_buf_putc(out, '"');
	for (size_t i = 0; i < len;) {
		const size_t step = ws_utf8_step(text + i, len - i);
		if (step == 0) {
			ws_buf_puts(out, "\\ufffd");
			i++;
		} else if (s[i] == '"' || s[i] == '\\') {
			ws_buf_printf(out, "\\%c", s[i]);
			i++;
		} else if (!ws_utf8_is_shown(text + i, step)) {
			put_escaped(out, ws_utf8_code(text + i, step));
			i += step;
		} else {
			ws_buf_add(out, s + i, step);
			i += step;
		}
	}
	ws_buf_putc(out, '"');
}

static void member(struct ws_jw *w, const char *key)
{
	const uint64_t bit = UINT64_C(1) << (w->depth & 63);
	if (w->comma & bit)
		ws_buf_putc(w->out, ',');
	w->comma |= bit;
	if (!key)
		return;
	quoted(w->out, key, strlen(key));
	ws_buf_putc(w->out, ':');
}

static void open_level(struct ws_jw *w, const char *key, char bracket)
{
	member(w, key);
	ws_buf_putc(w->out, bracket);
	w->depth++;
	w->comma &= ~(UINT64_C(1) << (w->depth & 63));
}

void ws_jw_object(struct ws_jw *w, const char *key)
{
	open_level(w, key, '{');
}

void ws_jw_array(struct ws_jw *w, const char *key)
{
	open_level(w, key, '[');
}

void ws_jw_end_object(struct ws_jw *w)
{
	w->depth--;
	ws_buf_putc(w->out, '}');
}

void ws_jw_end_array(struct ws_jw *w)
{
	w->depth--;
	ws_buf_putc(w->out, ']');
}

void ws_jw_strn(struct ws_jw *w, const char *key, const char *value, size_t len)
{
	member(w, key);
	quoted(w->out, value, len);
}

void ws_jw_str(struct ws_jw *w, const char *key, const char *value)
{
	if (value)
		ws_jw_strn(w, key, value, strlen(value));
	else
		ws_jw_null(w, key);
}

void ws_jw_strs(struct ws_jw *w, const char *key, const char *const *values, size_t n)
{
	ws_jw_array(w, key);
	for (size_t i = 0; i < n; i++)
		ws_jw_str(w, NULL, values[i]);
	ws_jw_end_array(w);
}

void ws_jw_int(struct ws_jw *w, const char *key, int64_t value)
{
	member(w, key);
	ws_buf_printf(w->out, "%lld", (long long)value);
}

void ws_jw_uint(struct ws_jw *w, const char *key, uint64_t value)
{
	member(w, key);
	ws_buf_printf(w->out, "%llu", (unsigned long long)value);
}

void ws_jw_thousandths(struct ws_jw *w, const char *key, int64_t value)
{
	member(w, key);
	ws_buf_printf(w->out, "%s%lld.%03lld", value < 0 ? "-" : "", llabs((long long)value / 1000),
	              llabs((long long)value % 1000));
}

/* Nine digits identify a float. If they read as another double, prints 17 digits. */
void ws_jw_double(struct ws_jw *w, const char *key, double value)
{
	char text[32];
	if (!isfinite(value)) {
		ws_jw_null(w, key);
		return;
	}
	member(w, key);
	snprintf(text, sizeof text, "%.9g", value);
	const bool is_float = fabs(value) <= FLT_MAX && (double)(float)value == value;
	if (is_float && strtod(text, NULL) != value)
		snprintf(text, sizeof text, "%.17g", value);
	ws_buf_puts(w->out, text);
}

void ws_jw_bool(struct ws_jw *w, const char *key, bool value)
{
	member(w, key);
	ws_buf_puts(w->out, value ? "true" : "false");
}

void ws_jw_null(struct ws_jw *w, const char *key)
{
	member(w, key);
	ws_buf_puts(w->out, "null");
}

void ws_jw_hex64(struct ws_jw *w, const char *key, uint64_t value)
{
	member(w, key);
	ws_buf_printf(w->out, "\"%016llx\"", (unsigned long long)value);
}
