/* SPDX-License-Identifier: Apache-2.0 */
/* config_write.c - copies the members of a JSON text and replaces one member.
 *
 * Members are copied as text, because a number that goes through a double does not always print as
 * before. The text is valid JSON, so the walk only needs to tell strings from brackets. */
#include "wsync/tool/config.h"

#include "wsync/tool/json_read.h"

#include <string.h>

/* Skips white space, and a byte order mark, like the JSON reader. */
static const char *skip_space(const char *p)
{
	if (strncmp(p, "\xef\xbb\xbf", 3) == 0)
		p += 3;
	while (*p && (unsigned char)*p <= ' ')
		p++;
	return p;
}

/* Returns the position behind the string that begins here. */
static const char *skip_string(const char *p)
{
	for (p++; *p && *p != '"'; p++)
		if (*p == '\\' && p[1])
			p++;
	return *p ? p + 1 : p;
}

static const char *skip_value(const char *p)
{
	unsigned depth = 0;
	do {
		if (*p == '"') {
			p = skip_string(p);
			continue;
		}
		depth += *p == '{' || *p == '[';
		depth -= *p == '}' || *p == ']';
		p++;
	} while (*p && (depth || ((unsigned char)*p > ' ' && !strchr(",}]", *p))));
	return p;
}

struct member {
	const char *key, *value; /* first bytes; the key with its quotes */
	size_t key_len, value_len;
};

/* Reads the member at or after *p and moves *p behind it. False: no more members. */
static bool next_member(const char **p, struct member *m)
{
	const char *at = skip_space(*p);
	if (*at == '{' || *at == ',')
		at = skip_space(at + 1);
	if (*at != '"')
		return false;
	m->key = at;
	at = skip_string(at);
	m->key_len = (size_t)(at - m->key);
	at = skip_space(at);
	m->value = skip_space(*at ? at + 1 : at); /* behind the colon */
	at = skip_value(m->value);
	m->value_len = (size_t)(at - m->value);
	*p = at;
	return true;
}

static bool is_called(const struct member *m, const char *name)
{
	const size_t n = strlen(name);
	return m->key_len == n + 2 && memcmp(m->key + 1, name, n) == 0;
}

static void write_quant(const struct ws_quant *q, struct ws_buf *out)
{
	struct ws_jw w;
	ws_jw_init(&w, out);
	ws_jw_object(&w, NULL);
	ws_jw_str(&w, "quant_method", q->method);
	ws_jw_str(&w, "fmt", "e4m3");
	ws_jw_str(&w, "activation_scheme", *q->activation ? q->activation : "dynamic");
	if (q->block[0]) {
		ws_jw_array(&w, "weight_block_size");
		ws_jw_int(&w, NULL, q->block[0]);
		ws_jw_int(&w, NULL, q->block[1]);
		ws_jw_end_array(&w);
	}
	if (*q->scale_fmt)
		ws_jw_str(&w, "scale_fmt", q->scale_fmt);
	if (q->n_skip)
		ws_jw_strs(&w, "modules_to_not_convert", q->skip, q->n_skip);
	ws_jw_end_object(&w);
}

/* Copies a level without the members about quantization, and writes q instead if it is not NULL. */
static void write_level(const char *p, const struct ws_quant *q, bool top, struct ws_buf *out)
{
	const char *lead = "\n  ";
	struct member m;
	ws_buf_putc(out, '{');
	while (next_member(&p, &m)) {
		if (is_called(&m, "quantization_config") || is_called(&m, "compression_config"))
			continue;
		ws_buf_puts(out, lead);
		ws_buf_add(out, m.key, m.key_len);
		ws_buf_puts(out, ": ");
		if (top && is_called(&m, "text_config") && *m.value == '{')
			write_level(m.value, NULL, false, out);
		else
			ws_buf_add(out, m.value, m.value_len);
		lead = ",\n  ";
	}
	if (q) {
		ws_buf_puts(out, lead);
		ws_buf_puts(out, "\"quantization_config\": ");
		write_quant(q, out);
	}
	ws_buf_puts(out, "\n}");
}

int ws_config_requantize(const char *text, size_t n, const char *what, const struct ws_quant *q,
                         struct ws_buf *out, struct ws_err *err)
{
	struct ws_json *root = ws_json_parse(text, n, what, err);
	if (!root)
		return -1;
	const bool object = ws_json_type(root) == WS_JSON_OBJECT;
	ws_json_free(root);
	if (!object)
		return ws_err_set(err, WS_EINPUT, "%s: not a JSON object", what);
	struct ws_buf copy; /* NUL-terminated */
	ws_buf_init(&copy, n + 1);
	ws_buf_add(&copy, text, n);
	if (!copy.failed)
		write_level(ws_buf_str(&copy), *q->method ? q : NULL, true, out);
	ws_buf_putc(out, '\n');
	const int rc = ws_buf_check(&copy, what, err) || ws_buf_check(out, what, err) ? -1 : 0;
	ws_buf_free(&copy);
	return rc;
}
