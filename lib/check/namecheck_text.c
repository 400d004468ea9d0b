/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_text.c - names and shapes as findings quote them, and small predicates on both. */
#include "namecheck_core.h"

#include <ctype.h>
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_SUGGESTIONS = 2000 };

/* Suffix of a scale, and of the tensor that it scales. */
static const char *const scaled[][2] = {
	{ ".weight_scale_inv", ".weight" }, { ".weight_scale", ".weight" },
	{ "_proj_scales", "_proj_blocks" },
};

struct ws_text ws_textf(const char *fmt, ...)
{
	struct ws_text t;
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(t.s, sizeof t.s, fmt, ap);
	va_end(ap);
	return t;
}

const char *ws_text_gives(const struct ws_check *c)
{
	return c->layout && ws_layout_is_like(c->layout) ? "the reference has" :
	                                                   "config.json gives";
}

const char *ws_text_lacks(const struct ws_check *c)
{
	return c->layout && ws_layout_is_like(c->layout) ? "the reference does not have" :
	                                                   "config.json does not give";
}

const char *ws_text_by(const struct ws_check *c)
{
	return c->layout && ws_layout_is_like(c->layout) ? "in the reference" : "by config.json";
}

const char *ws_text_compare(const struct ws_check *c)
{
	return c->layout && ws_layout_is_like(c->layout) ?
	               "is this the model that the server was started from?" :
	               "compare the config.json of the server with the checkpoint's";
}

struct ws_text ws_text_shape(unsigned n_dims, const int64_t *dims)
{
	struct ws_text t = { "a scalar" };
	size_t used = 0;
	for (unsigned i = 0; i < n_dims && used < sizeof t.s; i++)
		used += (size_t)snprintf(t.s + used, sizeof t.s - used, "%s%" PRId64,
		                         i ? ", " : "[", dims[i]);
	if (n_dims && used < sizeof t.s)
		snprintf(t.s + used, sizeof t.s - used, "]");
	return t;
}

static bool is_number(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (!isdigit((unsigned char)s[i]))
			return false;
	return n > 0;
}

struct ws_text ws_text_kind(const char *name)
{
	struct ws_text t;
	size_t used = 0;
	for (const char *p = name;; p++) {
		const size_t n = strcspn(p, "."), put = is_number(p, n) ? 1 : n;
		if (used + put + 2 > sizeof t.s)
			break;
		memcpy(t.s + used, put == n ? p : "*", put);
		if (is_number(p, n))
			t.s[used] = '*';
		used += put;
		p += n;
		if (!*p)
			break;
		t.s[used++] = '.';
	}
	t.s[used] = 0;
	return t;
}

/* True for last segments that name a tensor of a module. */
static bool names_tensor(const char *s, size_t n)
{
	static const char *const words[] = { "weight", "bias", "weight_scale_inv", "weight_scale",
		                             "input_scale" };
	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
		if (strlen(words[i]) == n && !memcmp(words[i], s, n))
			return true;
	return false;
}

struct ws_text ws_text_module(const char *name)
{
	struct ws_text t;
	const char *end = name + strlen(name);
	const char *start = end;
	while (start > name && start[-1] != '.')
		start--;
	if (start > name && names_tensor(start, (size_t)(end - start))) {
		end = start - 1;
		start = end;
		while (start > name && start[-1] != '.')
			start--;
	}
	snprintf(t.s, sizeof t.s, "%.*s", (int)(end - start), start);
	return t;
}

struct ws_text ws_text_parts(const struct ws_layout *l, const struct ws_param *p)
{
	struct ws_text t = { "" };
	size_t used = 0;
	if (p->n_parts > 4) {
		snprintf(t.s, sizeof t.s, "%zu tensors", p->n_parts);
		return t;
	}
	for (size_t i = 0; i < p->n_parts && used < sizeof t.s; i++) {
		const char *before = i == 0 ? "" : i + 1 == p->n_parts ? " and " : ", ";
		used += (size_t)snprintf(t.s + used, sizeof t.s - used, "%s%s", before,
		                         ws_text_module(ws_layout_part(l, p->first + i)->name).s);
	}
	return t;
}

struct ws_text ws_text_ranges(const bool *flags, size_t n_max)
{
	struct ws_text t = { "" };
	size_t used = 0, i = 0;
	while (i < n_max && used + 64 < sizeof t.s) {
		while (i < n_max && !flags[i])
			i++;
		size_t end = i;
		while (end < n_max && flags[end])
			end++;
		if (i == end)
			break;
		bool more = false;
		for (size_t k = end; k < n_max && !more; k++)
			more = flags[k];
		const char *before = !used ? "" : more ? ", " : " and ";
		const char *format = end - i == 1 ? "%s%zu" : end - i == 2 ? "%s%zu and %zu"
		                                                          : "%s%zu to %zu";
		if (end - i == 2 && more)
			format = "%s%zu, %zu";
		used += (size_t)snprintf(t.s + used, sizeof t.s - used, format, before, i, end - 1);
		i = end;
	}
	if (i < n_max && used + 64 >= sizeof t.s)
		snprintf(t.s + used, sizeof t.s - used, " and more");
	return t;
}

bool ws_dims_equal(unsigned n, const int64_t *a, unsigned m, const int64_t *b)
{
	return n == m && !memcmp(a, b, n * sizeof *a);
}

bool ws_scaled_name(const char *name, char *dst, size_t n)
{
	for (size_t i = 0; i < sizeof scaled / sizeof scaled[0]; i++) {
		if (!ws_ends_with(name, scaled[i][0]))
			continue;
		const size_t stem = strlen(name) - strlen(scaled[i][0]);
		return (size_t)snprintf(dst, n, "%.*s%s", (int)stem, name, scaled[i][1]) < n;
	}
	return false;
}

bool ws_dtype_is_fp8(enum ws_dtype d)
{
	return d == WS_DTYPE_F8_E4M3 || d == WS_DTYPE_F8_E5M2 || d == WS_DTYPE_F8_E4M3FNUZ ||
	       d == WS_DTYPE_F8_E5M2FNUZ;
}

bool ws_dtype_is_floating(enum ws_dtype d)
{
	return d == WS_DTYPE_F16 || d == WS_DTYPE_BF16 || d == WS_DTYPE_F32 || d == WS_DTYPE_F64;
}

int64_t ws_layer_of(const char *name)
{
	for (const char *p = name; *p; p += strcspn(p, "."), p += *p == '.') {
		const size_t n = strspn(p, "0123456789");
		if (n && n <= 9 && (p[n] == '.' || !p[n]))
			return atoll(p);
	}
	return -1;
}

const char *ws_server_only(const char *name)
{
	static const char *const ends[][2] = {
		{ ".k_scale", "a scale of the server's own KV cache" },
		{ ".v_scale", "a scale of the server's own KV cache" },
		{ ".inv_freq", "the server computes its rotary frequencies" },
		{ ".cos_sin_cache", "the server computes its rotary frequencies" },
		{ ".gemma_weight", "the server computes it from the weight of the norm" },
	};
	for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
		if (ws_ends_with(name, ends[i][0]))
			return ends[i][1];
	return strncmp(name, "draft.", 6) ? NULL : "a draft model's, which is updated on its own";
}

const char *ws_vllm_only(const struct ws_check *c, const struct ws_weight *w)
{
	static const char *const ends[] = { ".W_UV", ".W_UK", ".W_UK_T", "_scale", "_scale_inv",
		                            "_scale_2", "_zero_point" };
	for (size_t i = 0; c->opts->whole_modules && w->shapeless &&
	                   i < sizeof ends / sizeof ends[0]; i++)
		if (ws_ends_with(w->name, ends[i]))
			return "the server computes it of the weights that it loads";
	return NULL;
}

size_t ws_check_part(const struct ws_check *c, const char *name)
{
	const struct ws_part *p = c->layout ? ws_layout_find_part(c->layout, name) : NULL;
	return p ? (size_t)(p - c->parts) : WS_NONE;
}

const char *ws_check_rule(const struct ws_check *c, const struct ws_part *p)
{
	return ws_layout_rule(c->layout, p->rule);
}

/* ---- suggestions ---- */

static bool make_suggest(struct ws_check *c)
{
	const size_t n = c->layout ? c->n_parts : c->listing ? c->listing->n : 0;
	if (c->suggest_names)
		return false;
	c->suggest_names = malloc((n + 1) * sizeof *c->suggest_names);
	if (!c->suggest_names)
		return false;
	for (size_t i = 0; i < n; i++)
		c->suggest_names[i] = c->layout ? c->parts[i].name : c->listing->items[i].name;
	return !ws_suggest_make(c->suggest_names, n, &c->suggest, NULL);
}

const char *ws_check_near(struct ws_check *c, const char *name)
{
	if (c->n_suggestions++ >= MOST_SUGGESTIONS)
		return NULL;
	if (!c->suggest && !make_suggest(c))
		return NULL;
	return ws_suggest_nearest(c->suggest, name);
}
