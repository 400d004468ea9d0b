/* SPDX-License-Identifier: Apache-2.0 */
/* answer_logprobs.c - reads the log probabilities of tokens from answers, and compares two answers
 * to the same prompt.
 *
 *   {"meta_info": {"input_token_logprobs":  [[number or null, token, text or null], ...],
 *                  "output_token_logprobs": the same, "cached_tokens", "weight_version"}},
 *   or an array of these
 *
 * Generated tokens count only up to the first that differs: later ones have another context. */
#include "answer.h"

#include "file.h"
#include "wsync/tool/str.h"
#include "wsync/tool/logprobs.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_TOKENS = 4 << 20 };

static const char *const keys[WS_LOGPROB_PARTS] = { "input_token_logprobs",
	                                            "output_token_logprobs" };

const char *ws_logprob_part_name(enum ws_logprob_part part)
{
	return part == WS_PREFILL ? "prefill" : "decode";
}

void ws_logprobs_free(struct ws_logprobs *l)
{
	for (unsigned p = 0; p < WS_LOGPROB_PARTS; p++) {
		free(l->part[p].ids);
		free(l->part[p].values);
	}
	*l = (struct ws_logprobs){ 0 };
}

/* [number or null, token, ...] */
static bool read_token(const struct ws_json *triple, double *value, int64_t *id)
{
	const struct ws_json *number =
		ws_json_type(triple) == WS_JSON_ARRAY ? ws_json_first(triple) : NULL;
	if (!number || !ws_json_int(ws_json_next(number), id))
		return false;
	*value = NAN;
	return ws_json_type(number) == WS_JSON_NULL ||
	       (ws_json_double(number, value) && isfinite(*value));
}

static int read_part(const struct ws_json *meta, unsigned p, const char *what,
                     struct ws_logprobs *out, struct ws_err *err)
{
	const struct ws_json *list = ws_json_get(meta, keys[p]);
	const size_t n = ws_json_count(list);
	if (ws_json_type(list) != WS_JSON_ARRAY) {
		ws_err_set(err, WS_EINPUT, "%s: the answer has no %s", what, keys[p]);
		return ws_err_hint(
			err, "ask with \"return_logprob\": true and \"logprob_start_len\": 0");
	}
	if (n > MAX_TOKENS)
		return ws_err_set(err, WS_EINPUT, "%s: %s: %zu tokens are too many", what, keys[p],
		                  n);
	out->part[p].ids = calloc(n + 1, sizeof *out->part[p].ids);
	out->part[p].values = calloc(n + 1, sizeof *out->part[p].values);
	if (!out->part[p].ids || !out->part[p].values)
		return ws_oom(err);
	for (const struct ws_json *t = ws_json_first(list); t;
	     t = ws_json_next(t), out->part[p].n++)
		if (!read_token(t, &out->part[p].values[out->part[p].n],
		                &out->part[p].ids[out->part[p].n]))
			return ws_err_set(err, WS_EINPUT, "%s: %s: token %zu is no [number, token]",
			                  what, keys[p], out->part[p].n);
	return 0;
}

int ws_logprobs_take(const struct ws_json *answer, const char *what, struct ws_logprobs *out,
                     struct ws_err *err)
{
	const struct ws_json *meta = ws_json_get(answer, "meta_info");
	const struct ws_json *version = ws_json_get(meta, "weight_version");
	*out = (struct ws_logprobs){ .cached_tokens = ws_json_get_int(meta, "cached_tokens", -1) };
	if (out->cached_tokens < 0)
		out->cached_tokens = -1;
	if (ws_json_string(version))
		ws_printable(out->weight_version, sizeof out->weight_version,
		             ws_json_string(version), strlen(ws_json_string(version)));
	for (unsigned p = 0; p < WS_LOGPROB_PARTS; p++)
		if (read_part(meta, p, what, out, err)) {
			ws_logprobs_free(out);
			return -1;
		}
	return 0;
}

int ws_logprobs_parse(const char *text, size_t n, const char *what, struct ws_logprobs *out,
                      struct ws_err *err)
{
	*out = (struct ws_logprobs){ 0 };
	struct ws_json *root = ws_json_parse_most(text, n, WS_JSON_FILE, what, err);
	const struct ws_json *answer = root ? ws_answer_only(root, what, err) : NULL;
	const int rc = answer ? ws_logprobs_take(answer, what, out, err) : -1;
	ws_json_free(root);
	return rc;
}

/* ---- several prompts ---- */

void ws_logprobs_list_free(struct ws_logprobs_list *list)
{
	for (size_t i = 0; i < list->n; i++)
		ws_logprobs_free(&list->items[i]);
	free(list->items);
	*list = (struct ws_logprobs_list){ 0 };
}

static int read_one_answer(void *ctx, size_t i, const struct ws_json *answer, const char *what,
                    struct ws_err *err)
{
	struct ws_logprobs_list *list = ctx;
	if (ws_logprobs_take(answer, what, &list->items[i], err))
		return -1;
	list->n = i + 1;
	return 0;
}

int ws_logprobs_parse_all(const char *text, size_t n, const char *what,
                          struct ws_logprobs_list *out, struct ws_err *err)
{
	struct ws_json *root = ws_json_parse_most(text, n, WS_JSON_FILE, what, err);
	int rc = root ? 0 : -1;
	*out = (struct ws_logprobs_list){ 0 };
	if (!rc && !(out->items = calloc(ws_answers_count(root) + 1, sizeof *out->items)))
		rc = ws_oom(err);
	if (!rc)
		rc = ws_answers_walk(root, what, read_one_answer, out, err);
	ws_json_free(root);
	if (rc)
		ws_logprobs_list_free(out);
	return rc;
}

int ws_logprobs_read_all(const char *path, struct ws_logprobs_list *out, struct ws_err *err)
{
	struct ws_buf text;
	*out = (struct ws_logprobs_list){ 0 };
	ws_buf_init(&text, WS_ANSWERS_MAX);
	int rc = ws_file_read(path, &text, err);
	if (!rc)
		rc = ws_logprobs_parse_all(ws_buf_str(&text), text.len, path, out, err);
	ws_buf_free(&text);
	return rc;
}

/* NaN: one side has no number. */
static void add_token(struct ws_logprobs_diff *d, size_t token, int64_t id, double a, double b)
{
	const double x = b - a;
	if (isnan(a) != isnan(b))
		d->missing++;
	if (isnan(x))
		return;
	d->tokens++;
	d->mean += fabs(x);
	d->k3 += expm1(x) - x;
	if (fabs(x) > d->max) {
		d->max = fabs(x);
		d->worst = token;
		d->worst_id = id;
		d->first = a;
		d->second = b;
	}
}

/* The two tokens are the most probable ones of their sides, so the difference of their
 * probabilities bounds that of the sides. */
static double go_apart(const struct ws_logprobs *a, const struct ws_logprobs *b, size_t token)
{
	const bool both = token < a->part[WS_DECODE].n && token < b->part[WS_DECODE].n;
	const double x =
		both ? a->part[WS_DECODE].values[token] - b->part[WS_DECODE].values[token] : 0;
	return isnan(x) ? 0 : fabs(x);
}

void ws_logprobs_compare(const struct ws_logprobs *a, const struct ws_logprobs *b,
                         struct ws_logprobs_diff out[WS_LOGPROB_PARTS])
{
	for (unsigned p = 0; p < WS_LOGPROB_PARTS; p++) {
		struct ws_logprobs_diff *d = &out[p];
		*d = (struct ws_logprobs_diff){ 0 };
		for (; d->same < a->part[p].n && d->same < b->part[p].n &&
		       a->part[p].ids[d->same] == b->part[p].ids[d->same]; d->same++)
			add_token(d, d->same, a->part[p].ids[d->same], a->part[p].values[d->same],
			          b->part[p].values[d->same]);
		d->diverges = d->same < a->part[p].n || d->same < b->part[p].n;
		d->apart = p == WS_DECODE ? go_apart(a, b, d->same) : 0;
		d->mean /= d->tokens ? (double)d->tokens : 1;
		d->k3 /= d->tokens ? (double)d->tokens : 1;
	}
}

void ws_logprobs_sum(struct ws_logprobs_diff *sum, const struct ws_logprobs_diff *d)
{
	const size_t tokens = sum->tokens + d->tokens;
	if (tokens) {
		const double share = (double)d->tokens / (double)tokens;
		sum->mean = sum->mean * (1 - share) + d->mean * share;
		sum->k3 = sum->k3 * (1 - share) + d->k3 * share;
	}
	sum->tokens = tokens;
	sum->missing += d->missing;
	sum->diverges |= d->diverges;
	sum->apart = d->apart > sum->apart ? d->apart : sum->apart;
	if (d->max > sum->max) {
		sum->max = d->max;
		sum->worst = d->worst;
		sum->worst_id = d->worst_id;
		sum->first = d->first;
		sum->second = d->second;
	}
}

/* ---- limits ---- */

/* NaN exceeds every limit. */
static bool exceeds(double value, double limit)
{
	return !isnan(limit) && !(value <= limit);
}

bool ws_logprobs_within(const struct ws_logprobs_diff *d, enum ws_logprob_part part,
                        const struct ws_logprobs_limits *limits, char *why, size_t n)
{
	struct ws_logprobs_limits l = *limits;
	if (isnan(l.max) && isnan(l.mean) && isnan(l.k3))
		l.max = 0;
	if (exceeds(d->max, l.max))
		snprintf(why, n,
		         "a difference of %.6g at token %zu, where %.6g is allowed (%.9g and %.9g, "
		         "of token id %" PRId64 ")",
		         d->max, d->worst, l.max, d->first, d->second, d->worst_id);
	else if (exceeds(d->mean, l.mean))
		snprintf(why, n, "a mean difference of %.6g, where %.6g is allowed", d->mean,
		         l.mean);
	else if (exceeds(d->k3, l.k3))
		snprintf(why, n, "a k3 of %.6g, where %.6g is allowed", d->k3, l.k3);
	else if (d->missing)
		snprintf(why, n, "only one side has a number for %zu token%s", d->missing,
		         d->missing == 1 ? "" : "s");
	else if (d->diverges && (part == WS_PREFILL || l.max <= 0))
		snprintf(why, n, "the tokens differ from %zu on", d->same);
	else if (exceeds(d->apart, l.max))
		snprintf(why, n,
		         "they go apart at token %zu with tokens whose probabilities differ by "
		         "%.6g, where %.6g is allowed",
		         d->same, d->apart, l.max);
	else if (d->diverges && !d->tokens && isnan(l.max))
		snprintf(why, n, "the first drawn token is another, so nothing can be compared");
	else
		return true;
	return false;
}
