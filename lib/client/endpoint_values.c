/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_values.c - reads the numbers of a parameter from servers.
 *
 *   POST /get_weights_by_name  {"name", "truncate_size": rows}
 *   200  nested arrays of numbers: the first rows of the tensor with that checkpoint name; with
 *        data-parallel ranks in one more array. Numbers that are not finite are null, NaN or
 *        Infinity, depending on the server's JSON writer.
 *   400  {"error": {"message": "Get parameter by name failed"}}: no such name, or the model does
 *        not support this. With data-parallel ranks: 200 and [null, null, ...], one per rank.
 *
 * The text is parsed directly: a JSON tree would take forty times the memory. */
#include "endpoint_call.h"

#include "wsync/tool/json.h"

#include <locale.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_DEPTH = WS_MAX_DIMS + 1, MAX_NUMBER = 64 };

static const char route[] = "/get_weights_by_name";

struct reader {
	const char *text;
	size_t len, at;
	size_t most, cap;
	locale_t c;              /* the decimal point in every locale */
	unsigned depth;          /* number of open arrays */
	int64_t count[MAX_DEPTH]; /* elements so far of the array open at each depth */
	bool known[MAX_DEPTH];   /* dims[d] is known from an array that was closed */
	int leaf;                /* depth of the numbers; -1: none seen */
	struct ws_values *out;
};

/* ---- text ---- */

static char peek(struct reader *r)
{
	while (r->at < r->len && r->text[r->at] && strchr(" \t\r\n", r->text[r->at]))
		r->at++;
	return r->at < r->len ? r->text[r->at] : '\0';
}

static bool take_word(struct reader *r, const char *word)
{
	const size_t n = strlen(word);
	if (r->len - r->at < n || memcmp(r->text + r->at, word, n))
		return false;
	r->at += n;
	return true;
}

static bool take_number(struct reader *r, double *value)
{
	char token[MAX_NUMBER], *end;
	size_t n = 0;
	if (take_word(r, "null") || take_word(r, "NaN"))
		return *value = NAN, true;
	if (take_word(r, "Infinity"))
		return *value = INFINITY, true;
	if (take_word(r, "-Infinity"))
		return *value = -INFINITY, true;
	for (; r->at + n < r->len && r->text[r->at + n] &&
	       strchr("0123456789+-.eE", r->text[r->at + n]);
	     n++) {
		if (n + 1 == sizeof token)
			return false;
		token[n] = r->text[r->at + n];
	}
	token[n] = '\0';
	*value = strtod_l(token, &end, r->c);
	r->at += n;
	return n && !*end;
}

/* ---- arrays ---- */

static int keep(struct reader *r, double value)
{
	struct ws_values *v = r->out;
	if (v->n == r->most)
		return -1;
	if (v->n == r->cap) {
		const size_t cap = r->cap ? 2 * r->cap : 1024;
		double *more = reallocarray(v->numbers, cap, sizeof *more);
		if (!more)
			return -1;
		v->numbers = more;
		r->cap = cap;
	}
	v->numbers[v->n++] = value;
	return 0;
}

static int open_array(struct reader *r)
{
	if (r->depth == MAX_DEPTH || (r->leaf >= 0 && (int)r->depth + 1 > r->leaf))
		return -1;
	r->at++;
	r->count[r->depth++] = 0;
	return 0;
}

static int close_array(struct reader *r)
{
	const unsigned d = --r->depth;
	r->at++;
	if (r->known[d] && r->out->dims[d] != r->count[d])
		return -1; /* ragged */
	r->known[d] = true;
	r->out->dims[d] = r->count[d];
	return 0;
}

static int take_leaf(struct reader *r)
{
	double value;
	if (!r->depth || (r->leaf >= 0 && r->leaf != (int)r->depth) ||
	    (r->depth < MAX_DEPTH && r->known[r->depth]) || !take_number(r, &value))
		return -1;
	r->leaf = (int)r->depth;
	return keep(r, value);
}

/* Reads the text after a value. 0: another follows; 1: the outermost array has ended; -1: wrong. */
static int after_value(struct reader *r)
{
	while (r->depth) {
		r->count[r->depth - 1]++;
		const char c = peek(r);
		if (c == ',') {
			r->at++;
			return 0;
		}
		if (c != ']' || close_array(r))
			return -1;
	}
	return 1;
}

static int read_arrays(struct reader *r)
{
	if (peek(r) != '[')
		return -1;
	for (int rc = 0; rc <= 0;) {
		if (peek(r) == '[') {
			if (open_array(r))
				return -1;
			if (peek(r) != ']')
				continue;
			if (close_array(r))
				return -1;
		} else if (take_leaf(r)) {
			return -1;
		}
		rc = after_value(r);
		if (rc < 0)
			return -1;
	}
	return peek(r) || r->at != r->len ? -1 : 0;
}

static int check_dims(struct reader *r)
{
	struct ws_values *v = r->out;
	while (v->n_dims < MAX_DEPTH && r->known[v->n_dims])
		v->n_dims++;
	return r->leaf >= 0 && v->n_dims != (unsigned)r->leaf ? -1 : 0;
}

int ws_endpoint_decode_values(const char *text, size_t len, size_t most, struct ws_values *out,
                              struct ws_err *err)
{
	struct reader r = { .text = text, .len = len, .most = most, .leaf = -1, .out = out };
	*out = (struct ws_values){ 0 };
	r.c = newlocale(LC_ALL_MASK, "C", (locale_t)0);
	if (!r.c)
		return ws_err_errno(err, "the C locale");
	const int rc = read_arrays(&r) || check_dims(&r) ? -1 : 0;
	freelocale(r.c);
	if (!rc)
		return 0;
	if (out->n == most)
		ws_err_set(err, WS_EREFUSED, "POST %s: the answer has more than the %zu numbers "
		           "that were asked for", route, most);
	else
		ws_err_set(err, WS_EREFUSED,
		           "POST %s: the answer is no array of numbers, from byte %zu on",
		           route, r.at);
	ws_values_free(out);
	return -1;
}

/* One null per replica: no values. A parameter with one dimension has two here, one array per
 * replica, so it is not empty even if all of its numbers are NaN. */
bool ws_values_empty(const struct ws_values *v, unsigned dp_size)
{
	if (v->n == 0)
		return true;
	if (dp_size < 2 || v->n_dims != 1 || v->n != dp_size)
		return false;
	for (size_t i = 0; i < v->n; i++)
		if (!isnan(v->numbers[i]))
			return false;
	return true;
}

void ws_values_free(struct ws_values *v)
{
	if (!v)
		return;
	free(v->numbers);
	*v = (struct ws_values){ 0 };
}

/* ---- requests ---- */

static int write_request(struct ws_buf *body, const char *name, uint64_t rows, struct ws_err *err)
{
	struct ws_jw w;
	ws_jw_init(&w, body);
	ws_jw_object(&w, NULL);
	ws_jw_str(&w, "name", name);
	ws_jw_uint(&w, "truncate_size", rows);
	ws_jw_end_object(&w);
	return ws_buf_check(body, "get_weights_by_name", err);
}

struct reading {
	const char *const *urls;
	size_t most;
	struct ws_values *outs;
};

static int read_values(void *ctx, struct ws_endpoint_call *calls, size_t i, struct ws_err *errs)
{
	const struct reading *r = ctx;
	const struct ws_http_call *http = &calls[i].http;
	const bool yes = !http->err.code && http->status == 200 && http->reply.len &&
	                 http->reply.data[0] != '{';
	if (!yes && ws_endpoint_reply(&calls[i], NULL, NULL, 0, &errs[i]))
		return -1;
	if (ws_endpoint_decode_values(http->reply.data ? http->reply.data : "", http->reply.len,
	                              r->most, &r->outs[i], &errs[i]))
		return ws_err_where(&errs[i], NULL, r->urls[i]);
	return 0;
}

int ws_endpoint_get_weights(const struct ws_call *to, const char *name, uint64_t rows, size_t most,
                            struct ws_values *outs, struct ws_err *errs, struct ws_err *err)
{
	struct ws_buf body;
	struct ws_err why = WS_ERR_INIT;
	struct reading r = { to->urls, most, outs };
	struct ws_endpoint_call *calls = calloc(to->n ? to->n : 1, sizeof *calls);
	ws_buf_init(&body, 0);
	int rc = calls ? write_request(&body, name, rows, &why) : ws_oom(&why);
	for (size_t i = 0; i < to->n; i++)
		outs[i] = (struct ws_values){ 0 };
	for (size_t i = 0; !rc && i < to->n; i++)
		rc = ws_endpoint_prepare(&calls[i], to->urls[i], "POST", route, &body, to->until,
		                         &why);
	if (!rc)
		ws_endpoint_run(to->http, calls, to->n, to->cancel, &why);
	rc = ws_endpoint_take(calls, to->n, &why, read_values, &r, errs, err);
	ws_buf_free(&body);
	return rc;
}
