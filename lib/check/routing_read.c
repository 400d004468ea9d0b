/* SPDX-License-Identifier: Apache-2.0 */
/* routing_read.c - reads the routed experts of a saved answer.
 *
 *   /generate  {"meta_info": {"routed_experts", "prompt_tokens", "completion_tokens", ...}},
 *              or an array of one of these
 *   OpenAI     {"choices": [{"sglext": {"routed_experts"}}], "usage": {"prompt_tokens", ...}},
 *              or routed_experts in the choice itself
 *   the value  base64 (standard alphabet, padded) of little-endian int32 [T, L, K];
 *              or {"data": that, "shape": [T, L, K], "rows": T};
 *              or lists of lists of lists of integers */
#include "answer.h"

#include "base64.h"
#include "file.h"

#include <inttypes.h>
#include <limits.h>
#include <stdlib.h>
#include <string.h>

struct reading {
	const char *what;
	const struct ws_routing_shape *shape;
	struct ws_routing *out;
	size_t n; /* ids read so far */
};

static int32_t read_int32(const unsigned char *b)
{
	const uint32_t bits =
		(uint32_t)b[0] | (uint32_t)b[1] << 8 | (uint32_t)b[2] << 16 | (uint32_t)b[3] << 24;
	int32_t value;
	memcpy(&value, &bits, sizeof value);
	return value;
}

static int read_base64(struct reading *r, const char *text, struct ws_err *err)
{
	struct ws_buf bytes;
	ws_buf_init(&bytes, WS_ANSWERS_MAX);
	int rc = ws_base64_decode(&bytes, text, strlen(text), err);
	if (rc)
		ws_err_wrap(err, "%s: routed_experts", r->what);
	else if (bytes.len % 4)
		rc = ws_err_set(
			err, WS_EINPUT,
			"%s: routed_experts: %zu bytes are not int32: not a multiple of 4",
			r->what, bytes.len);
	else if (!(r->out->ids = malloc(bytes.len + 1)))
		rc = ws_oom(err);
	for (; !rc && r->n < bytes.len / 4; r->n++)
		r->out->ids[r->n] = read_int32((const unsigned char *)bytes.data + 4 * r->n);
	ws_buf_free(&bytes);
	return rc;
}

/* ---- the other forms ---- */

/* One token's lists: `layers` lists of k integers. */
static int read_token(struct reading *r, const struct ws_json *token, struct ws_err *err)
{
	const struct ws_routing_shape *s = r->shape;
	bool fits = ws_json_type(token) == WS_JSON_ARRAY && ws_json_count(token) == s->layers;
	for (const struct ws_json *row = fits ? ws_json_first(token) : NULL; fits && row;
	     row = ws_json_next(row)) {
		fits = ws_json_type(row) == WS_JSON_ARRAY && ws_json_count(row) == s->k;
		for (const struct ws_json *x = fits ? ws_json_first(row) : NULL; fits && x;
		     x = ws_json_next(x)) {
			int64_t id;
			if (!ws_json_int(x, &id) || id < INT32_MIN || id > INT32_MAX)
				return ws_err_set(err, WS_EINPUT,
				                  "%s: routed_experts: number %zu is not an int32",
				                  r->what, r->n);
			r->out->ids[r->n++] = (int32_t)id;
		}
	}
	return fits ? 0 :
	              ws_err_set(err, WS_EMISMATCH,
	                         "%s: routed_experts: a token is not %zu lists of %zu experts",
	                         r->what, s->layers, s->k);
}

static int read_lists(struct reading *r, const struct ws_json *list, struct ws_err *err)
{
	const size_t each = r->shape->layers * r->shape->k, tokens = ws_json_count(list);
	if (tokens > WS_ANSWERS_MAX / each)
		return ws_err_set(err, WS_EINPUT, "%s: routed_experts: too many tokens", r->what);
	r->out->ids = malloc((tokens * each + 1) * sizeof *r->out->ids);
	if (!r->out->ids)
		return ws_oom(err);
	for (const struct ws_json *t = ws_json_first(list); t; t = ws_json_next(t))
		if (read_token(r, t, err))
			return -1;
	return 0;
}

/* The shape that an object gives must match the lists. */
static int check_said(const struct reading *r, const struct ws_json *object, struct ws_err *err)
{
	const struct ws_json *shape = ws_json_get(object, "shape"),
			     *rows = ws_json_get(object, "rows");
	const size_t each = r->shape->layers * r->shape->k;
	const int64_t dims[3] = { (int64_t)(r->n / each), (int64_t)r->shape->layers,
		                  (int64_t)r->shape->k };
	const struct ws_json *dim = ws_json_first(shape);
	bool right = !shape || (ws_json_type(shape) == WS_JSON_ARRAY && ws_json_count(shape) == 3);
	int64_t stated;
	for (size_t i = 0; right && shape && i < 3; i++, dim = ws_json_next(dim))
		right = ws_json_int(dim, &stated) && stated == dims[i];
	if (right && rows)
		right = ws_json_int(rows, &stated) && stated == dims[0];
	return right ? 0 :
	               ws_err_set(err, WS_EMISMATCH,
	                          "%s: routed_experts: its shape or rows are not those of "
	                          "%zu numbers as [%" PRId64 ", %" PRId64 ", %" PRId64 "]",
	                          r->what, r->n, dims[0], dims[1], dims[2]);
}

static int read_value(struct reading *r, const struct ws_json *value, struct ws_err *err)
{
	const char *text = ws_json_string(value);
	if (text)
		return read_base64(r, text, err);
	if (ws_json_type(value) == WS_JSON_ARRAY)
		return read_lists(r, value, err);
	text = ws_json_string(ws_json_get(value, "data"));
	if (text)
		return read_base64(r, text, err) || check_said(r, value, err) ? -1 : 0;
	if (ws_json_type(value) == WS_JSON_OBJECT)
		return ws_err_set(
			err, WS_EINPUT,
			"%s: routed_experts is an object without data: a reference to a file "
			"of the server",
			r->what);
	ws_err_set(err, WS_EINPUT, "%s: the answer has no routed_experts", r->what);
	return ws_err_hint(err,
	                   "start the server with --enable-return-routed-experts and ask it with "
	                   "\"return_routed_experts\": true");
}

/* ---- the answer ---- */

static int64_t read_count(const struct ws_json *object, const char *key)
{
	const int64_t n = ws_json_get_int(object, key, -1);
	return n < 0 || n > INT32_MAX ? -1 : n;
}

static const struct ws_json *find_value(const struct ws_json *root, struct ws_routing *out)
{
	const struct ws_json *counts = ws_json_get(root, "meta_info");
	const struct ws_json *value = ws_json_get(counts, "routed_experts");
	if (!counts) {
		const struct ws_json *choice = ws_json_first(ws_json_get(root, "choices"));
		counts = ws_json_get(root, "usage");
		value = ws_json_get(ws_json_get(choice, "sglext"), "routed_experts");
		if (!value)
			value = ws_json_get(choice, "routed_experts");
	}
	out->prompt_tokens = read_count(counts, "prompt_tokens");
	out->completion_tokens = read_count(counts, "completion_tokens");
	out->cached_tokens = read_count(counts, "cached_tokens");
	return value;
}

/* Checks that the ids are [tokens, layers, k], with as many tokens as were counted. */
static int fit(struct reading *r, struct ws_err *err)
{
	const struct ws_routing_shape *s = r->shape;
	struct ws_routing *o = r->out;
	const size_t each = s->layers * s->k, sparse = (s->layers - s->n_dense) * s->k;
	const bool counted = o->prompt_tokens >= 0 && o->completion_tokens >= 0;
	const int64_t tokens = o->prompt_tokens + o->completion_tokens - 1;
	if (counted && tokens >= 0 && r->n == (size_t)tokens * each) {
		o->tokens = (size_t)tokens;
		return 0;
	}
	if (counted && s->n_dense && tokens > 0 && r->n == (size_t)tokens * sparse)
		return ws_err_set(err, WS_EMISMATCH,
		                  "%s: routed_experts: its layers without experts are left out: "
		                  "%zu numbers are [%" PRId64 ", %zu, %zu], not %zu layers",
		                  r->what, r->n, tokens, s->layers - s->n_dense, s->k, s->layers);
	if (counted)
		return ws_err_set(err, WS_EMISMATCH,
		                  "%s: routed_experts: %zu numbers are not [%" PRId64
		                  ", %zu, %zu] for %" PRId64 " tokens of prompt and %" PRId64
		                  " more, the last of which is not routed",
		                  r->what, r->n, tokens, s->layers, s->k, o->prompt_tokens,
		                  o->completion_tokens);
	if (r->n % each)
		return ws_err_set(
			err, WS_EMISMATCH,
			"%s: routed_experts: %zu numbers do not divide by %zu layers x %zu experts",
			r->what, r->n, s->layers, s->k);
	o->tokens = r->n / each;
	return 0;
}

int ws_routing_take(const struct ws_json *answer, const char *what,
                    const struct ws_routing_shape *shape, struct ws_routing *out,
                    struct ws_err *err)
{
	struct reading r = { .what = what, .shape = shape, .out = out };
	*out = (struct ws_routing){ .layers = shape->layers, .k = shape->k };
	if (!read_value(&r, find_value(answer, out), err) && !fit(&r, err))
		return 0;
	ws_routing_free(out);
	return -1;
}

int ws_routing_parse(const char *text, size_t n, const char *what,
                     const struct ws_routing_shape *shape, struct ws_routing *out,
                     struct ws_err *err)
{
	*out = (struct ws_routing){ 0 };
	struct ws_json *root = ws_json_parse_most(text, n, WS_JSON_FILE, what, err);
	const struct ws_json *answer = root ? ws_answer_only(root, what, err) : NULL;
	const int rc = answer ? ws_routing_take(answer, what, shape, out, err) : -1;
	ws_json_free(root);
	return rc;
}

void ws_routing_free(struct ws_routing *r)
{
	free(r->ids);
	*r = (struct ws_routing){ 0 };
}

/* ---- several prompts ---- */

struct list_reading {
	const struct ws_routing_shape *shape;
	struct ws_routing_list *out;
};

static int read_one_answer(void *ctx, size_t i, const struct ws_json *answer, const char *what,
                    struct ws_err *err)
{
	struct list_reading *r = ctx;
	if (ws_routing_take(answer, what, r->shape, &r->out->items[i], err))
		return -1;
	r->out->n = i + 1;
	return 0;
}

int ws_routing_read_all(const char *path, const struct ws_routing_shape *shape,
                        struct ws_routing_list *out, struct ws_err *err)
{
	struct list_reading r = { shape, out };
	struct ws_json *root = ws_answer_file(path, WS_ANSWERS_MAX, err);
	int rc = root ? 0 : -1;
	*out = (struct ws_routing_list){ 0 };
	if (!rc && !(out->items = calloc(ws_answers_count(root) + 1, sizeof *out->items)))
		rc = ws_oom(err);
	if (!rc)
		rc = ws_answers_walk(root, path, read_one_answer, &r, err);
	ws_json_free(root);
	if (rc)
		ws_routing_list_free(out);
	return rc;
}

void ws_routing_list_free(struct ws_routing_list *list)
{
	for (size_t i = 0; i < list->n; i++)
		ws_routing_free(&list->items[i]);
	free(list->items);
	*list = (struct ws_routing_list){ 0 };
}
