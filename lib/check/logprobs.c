/* SPDX-License-Identifier: Apache-2.0 */
/* logprobs.c - the numbers that answers give to tokens.
 *
 *   {"meta_info": {"input_token_logprobs":  [[number or null, token, text or null], ...],
 *                  "output_token_logprobs": the same}}, or an array of one of these
 */
#include "wsync/logprobs.h"

#include "file.h"
#include "json.h"

#include <math.h>
#include <stdlib.h>

enum { FILE_MAX = 64 << 20 };

static const char *const keys[WS_LOGPROB_PARTS] = { "input_token_logprobs", "output_token_logprobs" };

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
	const struct ws_json *number = ws_json_type(triple) == WS_JSON_ARRAY ? ws_json_first(triple) : NULL;
	if (!number || !ws_json_int(ws_json_next(number), id))
		return false;
	*value = NAN;
	return ws_json_type(number) == WS_JSON_NULL || (ws_json_double(number, value) && isfinite(*value));
}

static int read_part(const struct ws_json *meta, unsigned p, const char *what, struct ws_logprobs *out,
                     struct ws_err *err)
{
	const struct ws_json *list = ws_json_get(meta, keys[p]);
	const size_t n = ws_json_count(list);
	if (ws_json_type(list) != WS_JSON_ARRAY) {
		ws_err_set(err, WS_EINPUT, "%s: the answer has no %s", what, keys[p]);
		return ws_err_hint(err, "ask with \"return_logprob\": true and \"logprob_start_len\": 0");
	}
	out->part[p].ids = calloc(n + 1, sizeof *out->part[p].ids);
	out->part[p].values = calloc(n + 1, sizeof *out->part[p].values);
	if (!out->part[p].ids || !out->part[p].values)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	for (const struct ws_json *t = ws_json_first(list); t; t = ws_json_next(t), out->part[p].n++)
		if (!read_token(t, &out->part[p].values[out->part[p].n], &out->part[p].ids[out->part[p].n]))
			return ws_err_set(err, WS_EINPUT, "%s: %s: token %zu is no [number, token]", what, keys[p],
			                  out->part[p].n);
	return 0;
}

int ws_logprobs_parse(const char *text, size_t n, const char *what, struct ws_logprobs *out,
                      struct ws_err *err)
{
	*out = (struct ws_logprobs){ 0 };
	struct ws_json *root = ws_json_parse(text, n, what, err);
	const struct ws_json *answer = root;
	int rc = root ? 0 : -1;
	if (!rc && ws_json_type(root) == WS_JSON_ARRAY) {
		answer = ws_json_first(root);
		if (ws_json_count(root) != 1)
			rc = ws_err_set(err, WS_EINPUT, "%s: %zu answers, where one is wanted", what, ws_json_count(root));
	}
	for (unsigned p = 0; !rc && p < WS_LOGPROB_PARTS; p++)
		rc = read_part(ws_json_get(answer, "meta_info"), p, what, out, err);
	ws_json_free(root);
	if (rc)
		ws_logprobs_free(out);
	return rc;
}

int ws_logprobs_read(const char *path, struct ws_logprobs *out, struct ws_err *err)
{
	struct ws_buf text;
	*out = (struct ws_logprobs){ 0 };
	ws_buf_init(&text, FILE_MAX);
	int rc = ws_file_read(path, &text, err);
	if (!rc)
		rc = ws_logprobs_parse(ws_buf_str(&text), text.len, path, out, err);
	ws_buf_free(&text);
	return rc;
}

void ws_logprobs_compare(const struct ws_logprobs *a, const struct ws_logprobs *b,
                         struct ws_logprobs_diff out[WS_LOGPROB_PARTS])
{
	for (unsigned p = 0; p < WS_LOGPROB_PARTS; p++) {
		struct ws_logprobs_diff *d = &out[p];
		double sum = 0;
		*d = (struct ws_logprobs_diff){ 0 };
		for (; d->same < a->part[p].n && d->same < b->part[p].n &&
		       a->part[p].ids[d->same] == b->part[p].ids[d->same]; d->same++) {
			const double x = fabs(a->part[p].values[d->same] - b->part[p].values[d->same]);
			if (isnan(x))
				continue;
			sum += x;
			d->tokens++;
			if (x > d->max) {
				d->max = x;
				d->worst = d->same;
			}
		}
		d->diverges = d->same < a->part[p].n || d->same < b->part[p].n;
		d->mean = d->tokens ? sum / (double)d->tokens : 0;
	}
}
