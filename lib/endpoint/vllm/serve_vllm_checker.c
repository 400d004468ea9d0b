/* SPDX-License-Identifier: Apache-2.0 */
/* serve_vllm_checker.c - POST /weight_checker: SHA-256 of the bytes of each runtime parameter at
 * each rank.
 *
 *   {"action":"checksum"}                 {"checksums":{"dp0:pp0:pcp0:tp0:NAME":"<hex>",...}}
 *   {"action":"compare","baseline":{...}} {"match":b,"mismatches":[...]}
 *   {"action":"reset"}                    {"status":"reset"}, and all parameters are zeros
 *
 * Tied parameters are not listed. Without a model there is nothing to list: a vLLM never has the
 * names of the tensors that were sent. */
#include "serve_vllm.h"

#include "digest.h"
#include "serve_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sum {
	char key[512];
	char hex[WS_CHECKSUM_TEXT];
};

struct sums {
	struct sum *items;
	size_t n;
};

static size_t count_names(const struct ws_serve *s)
{
	return ws_layout_param_count(s->model->layout);
}

static void add_sum(struct sums *sums, const char *name, unsigned rank, const uint8_t *data,
                    uint64_t bytes, struct ws_digest *d)
{
	struct sum *sum = &sums->items[sums->n++];
	snprintf(sum->key, sizeof sum->key, "dp0:pp0:pcp0:tp%u:%.480s", rank, name);
	ws_digest_begin(d, bytes);
	ws_digest_add(d, data, data ? (size_t)bytes : 0);
	ws_digest_end(d, sum->hex);
}

static int by_key(const void *a, const void *b)
{
	return strcmp(((const struct sum *)a)->key, ((const struct sum *)b)->key);
}

/* In the scheduler. -1: out of memory. */
static int make_sums(const struct ws_serve *s, struct sums *sums)
{
	struct ws_digest d = { 0 };
	sums->items = calloc(count_names(s) * s->opts.tp + 1, sizeof *sums->items);
	if (!sums->items || ws_digest_open(&d, WS_CHECKSUM_SHA256, NULL))
		return -1;
	for (unsigned r = 0; r < s->opts.tp; r++)
		for (size_t i = 0; i < count_names(s); i++) {
			const struct ws_param *p = ws_layout_param(s->model->layout, i);
			if (!p->tied_to)
				add_sum(sums, p->name, r, ws_serve_model_at(s->model, i, r),
				        ws_serve_model_bytes(s->model, i, r), &d);
		}
	ws_digest_close(&d);
	qsort(sums->items, sums->n, sizeof *sums->items, by_key);
	return 0;
}

/* ---- the actions ---- */

static void write_sums(struct ws_serve_call *c, const struct sums *sums)
{
	struct ws_jw jw;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_object(&jw, "checksums");
	for (size_t i = 0; i < sums->n; i++)
		ws_jw_str(&jw, sums->items[i].key, sums->items[i].hex);
	ws_jw_end_object(&jw);
	ws_jw_end_object(&jw);
}

struct mismatches {
	const char **keys;
	size_t n;
};

static int by_text(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

/* Names that differ, and names of one side only. keys has room for all. */
static void find_mismatches(const struct sums *sums, const struct ws_json *baseline,
                            struct mismatches *out)
{
	for (size_t i = 0; i < sums->n; i++) {
		const char *was = ws_json_get_string(baseline, sums->items[i].key, "");
		if (strcmp(was, sums->items[i].hex) != 0)
			out->keys[out->n++] = sums->items[i].key;
	}
	for (const struct ws_json *m = ws_json_first(baseline); m; m = ws_json_next(m)) {
		struct sum key;
		snprintf(key.key, sizeof key.key, "%s", ws_json_key(m));
		if (!bsearch(&key, sums->items, sums->n, sizeof key, by_key))
			out->keys[out->n++] = ws_json_key(m);
	}
	qsort(out->keys, out->n, sizeof *out->keys, by_text);
}

static void write_comparison(struct ws_serve_call *c, const struct sums *sums,
                             const struct ws_json *baseline)
{
	struct mismatches bad = { 0 };
	struct ws_jw jw;
	bad.keys = calloc(sums->n + ws_json_count(baseline) + 1, sizeof *bad.keys);
	if (!bad.keys) {
		ws_serve_vllm_fail(c, "not enough memory");
		return;
	}
	find_mismatches(sums, baseline, &bad);
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_bool(&jw, "match", bad.n == 0);
	ws_jw_strs(&jw, "mismatches", bad.keys, bad.n);
	ws_jw_end_object(&jw);
	free(bad.keys);
}

static void reset(struct ws_serve_call *c)
{
	ws_serve_drop_weights(c->serve);
	ws_serve_mark_dirty(c->serve);
	ws_serve_vllm_say(c, "status", "reset");
}

static void check(struct ws_serve_call *c, bool compares)
{
	struct sums sums = { 0 };
	if (make_sums(c->serve, &sums))
		ws_serve_vllm_fail(c, "not enough memory");
	else if (compares)
		write_comparison(c, &sums, ws_json_get(c->body, "baseline"));
	else
		write_sums(c, &sums);
	free(sums.items);
}

/* ---- the route ---- */

void ws_serve_route_vllm_checker(struct ws_serve_call *c)
{
	static const char *const actions[] = { "checksum", "reset", "compare" };
	const struct ws_json *baseline = ws_json_get(c->body, "baseline");
	const char *action = NULL;
	if (ws_serve_field_str(c->body, "action", true, &action, &c->invalid))
		return;
	const size_t i = ws_serve_find_word(actions, 3, action);
	if (i == 3)
		ws_serve_vllm_answer_invalid(c, "body.action: Input should be 'checksum', 'reset' "
		                                "or 'compare'");
	else if (i == 2 && (!baseline || ws_json_type(baseline) != WS_JSON_OBJECT))
		ws_serve_vllm_answer_error(c, 400, "Bad Request",
		                           "action='compare' requires a 'baseline' object");
	else if (c->serve->opts.keep != WS_KEEP_MEMORY)
		ws_serve_vllm_fail(c, "wsync-endpoint does not keep its weights");
	else if (!c->serve->model)
		ws_serve_vllm_fail(c, "wsync-endpoint has no --model");
	else if (ws_serve_vllm_enter(c, false)) {
		if (i == 1)
			reset(c);
		else
			check(c, i == 2);
		ws_serve_release(c->serve);
	}
}
