/* SPDX-License-Identifier: Apache-2.0 */
/* serve_generate_read.c - the body of /generate: fields, defaults and refusals as the servers have
 * them.
 *
 *   text | input_ids     one or a list; a byte of a text is a token
 *   sampling_params      an object, or a list of them
 *   return_logprob, logprob_start_len, top_logprobs_num, token_ids_logprob, rid   one for all, or a
 * list return_text_in_logprobs, return_routed_experts, stream
 *
 * Fields that are not here are ignored, as a server ignores what it does not know. */
#include "serve_generate.h"
#include "serve_lineage.h"

#include "wsync/tool/str.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static int refuse(struct ws_err *err, const char *fmt, const char *text)
{
	return ws_err_set(err, WS_EREFUSED, fmt, text);
}

static bool is_given(const struct ws_json *node)
{
	return node && ws_json_type(node) != WS_JSON_NULL;
}

static bool is_list(const struct ws_json *node)
{
	return ws_json_type(node) == WS_JSON_ARRAY;
}

/* ---- one for all, or one for each ---- */

/* The field of each prompt in turn. */
struct each {
	const char *key;
	const struct ws_json *node; /* of the prompt at hand; NULL: not given */
	bool list;
};

static int begin_each(struct each *e, const struct ws_json *body, const char *key, bool list,
                      const struct ws_generate *g, struct ws_err *err)
{
	const struct ws_json *node = ws_json_get(body, key);
	*e = (struct each){ .key = key,
		            .node = is_given(node) ? node : NULL,
		            .list = is_given(node) && list };
	if (!e->list)
		return 0;
	if (!g->list)
		return ws_serve_field_invalid(err, key, "a list is for a list of prompts");
	if (ws_json_count(node) != g->n)
		return ws_serve_field_invalid(err, key,
		                              "the list should be as long as that of the prompts");
	e->node = ws_json_first(node);
	return 0;
}

static void next_each(struct each *e)
{
	if (e->list)
		e->node = ws_json_next(e->node);
}

/* ---- prompts ---- */

static int check_length(size_t n, struct ws_err *err)
{
	if (n < WS_SERVE_CONTEXT)
		return 0;
	return ws_err_set(err, WS_EREFUSED,
	                  "The input (%zu tokens) is longer than the model's context length "
	                  "(%d tokens).",
	                  n, WS_SERVE_CONTEXT);
}

static int keep_prompt(struct ws_generate_one *one, size_t n, struct ws_err *err)
{
	if (check_length(n, err))
		return -1;
	one->n_prompt = n;
	one->ids = malloc((n + 1) * sizeof *one->ids);
	return one->ids ? 0 : ws_err_set(err, WS_ESYSTEM, "not enough memory");
}

static int read_text(struct ws_generate_one *one, const struct ws_json *node, size_t vocab,
                     struct ws_err *err)
{
	const char *text = ws_json_string(node);
	const size_t n = text ? strlen(text) : 0;
	if (!text || !n)
		return ws_serve_field_invalid(err, "text",
		                              text ? "String should have at least 1 character" :
		                                     "Input should be a valid string");
	for (size_t i = 0, step; i < n; i += step)
		if (!(step = ws_utf8_step(text + i, n - i)))
			return ws_serve_field_invalid(
				err, "text",
				"Input should be a valid string, unable to parse "
				"raw data as a unicode string");
	if (keep_prompt(one, n, err))
		return -1;
	for (size_t i = 0; i < n; i++)
		one->ids[i] = (int32_t)((unsigned char)text[i] % vocab);
	return 0;
}

/* n ids of a list, into dst. */
static int read_ids(int32_t *dst, const struct ws_json *list, const char *key, size_t vocab,
                    struct ws_err *err)
{
	for (const struct ws_json *i = ws_json_first(list); i; i = ws_json_next(i)) {
		int64_t id = 0;
		if (ws_json_type(i) != WS_JSON_NUMBER || !ws_json_int(i, &id))
			return ws_serve_field_invalid(err, key, "Input should be a valid integer");
		if (id < 0 || (uint64_t)id >= vocab)
			return ws_err_set(err, WS_EREFUSED,
			                  "The %s %" PRId64 " is out of range: the vocabulary has "
			                  "%zu tokens.",
			                  strcmp(key, "input_ids") ? "token id" : "input id", id,
			                  vocab);
		*dst++ = (int32_t)id;
	}
	return 0;
}

static int read_prompt_ids(struct ws_generate_one *one, const struct ws_json *node, size_t vocab,
                           struct ws_err *err)
{
	if (!is_list(node))
		return ws_serve_field_invalid(err, "input_ids", "Input should be a valid list");
	if (!ws_json_count(node))
		return refuse(err, "%s", "The input_ids are empty.");
	if (keep_prompt(one, ws_json_count(node), err))
		return -1;
	return read_ids(one->ids, node, "input_ids", vocab, err);
}

static int read_prompts(struct ws_generate *g, const struct ws_json *body, struct ws_err *err)
{
	const struct ws_json *text = ws_json_get(body, "text"),
			     *ids = ws_json_get(body, "input_ids");
	if (is_given(text) == is_given(ids))
		return refuse(err, "%s",
		              "Either text, input_ids or input_embeds should be provided.");
	const struct ws_json *node = is_given(text) ? text : ids;
	g->list = is_list(node) && (node == text || is_list(ws_json_first(node)));
	g->n = g->list ? ws_json_count(node) : 1;
	if (!g->n || g->n > WS_GENERATE_MAX_BATCH)
		return ws_err_set(err, WS_EREFUSED,
		                  "A batch of %zu prompts: this endpoint takes 1 to %d.", g->n,
		                  WS_GENERATE_MAX_BATCH);
	g->items = calloc(g->n, sizeof *g->items);
	if (!g->items)
		return ws_err_set(err, WS_ESYSTEM, "not enough memory");
	node = g->list ? ws_json_first(node) : node;
	for (size_t i = 0; i < g->n; i++, node = ws_json_next(node))
		if (is_given(text) ? read_text(&g->items[i], node, g->shape.vocab, err)
		                   : read_prompt_ids(&g->items[i], node, g->shape.vocab, err))
			return -1;
	return 0;
}

/* ---- sampling ---- */

static int read_samplings(struct ws_generate *g, const struct ws_json *body, struct ws_err *err)
{
	struct each e;
	size_t tokens = 0;
	if (begin_each(&e, body, "sampling_params", is_list(ws_json_get(body, "sampling_params")),
	               g, err))
		return -1;
	for (size_t i = 0; i < g->n; i++, next_each(&e)) {
		if (ws_generate_read_sampling(&g->items[i], e.node, err))
			return -1;
		tokens += g->items[i].n_prompt + g->items[i].n_new;
	}
	if (tokens > WS_SERVE_POOL)
		return ws_err_set(err, WS_EREFUSED,
		                  "A batch of %zu tokens: this endpoint has room for %d.", tokens,
		                  WS_SERVE_POOL);
	return 0;
}

/* ---- what is told ---- */

static int read_number(const struct each *e, int64_t *out, struct ws_err *err)
{
	if (!is_given(e->node))
		return 0;
	if (ws_json_type(e->node) != WS_JSON_NUMBER || !ws_json_int(e->node, out))
		return ws_serve_field_invalid(err, e->key, "Input should be a valid integer");
	return 0;
}

/* Where the logprobs of a prompt begin. -1: with what is generated; servers before 2026 begin
 * with the last token of the prompt then, of which there is nothing to tell. */
static int read_start(struct ws_generate_one *one, const struct each *e, bool with_last,
                      struct ws_err *err)
{
	int64_t start = -1;
	if (read_number(e, &start, err))
		return -1;
	if (start < -1 || start > (int64_t)one->n_prompt ||
	    (with_last && start == (int64_t)one->n_prompt))
		return ws_err_set(err, WS_EREFUSED,
		                  "logprob_start_len, (%" PRId64
		                  ") is higher than the number of input "
		                  "tokens (%zu). Request with a lower logprob_start_len.",
		                  start, one->n_prompt);
	one->from = start < 0 ? one->n_prompt - with_last : (size_t)start;
	return 0;
}

static int read_asked(struct ws_generate_one *one, const struct ws_json *list, size_t vocab,
                      struct ws_err *err)
{
	if (!is_given(list))
		return 0;
	if (!is_list(list))
		return ws_serve_field_invalid(err, "token_ids_logprob",
		                              "Input should be a valid list");
	one->n_asked = ws_json_count(list);
	one->asked = malloc((one->n_asked + 1) * sizeof *one->asked);
	if (!one->asked)
		return ws_err_set(err, WS_ESYSTEM, "not enough memory");
	return read_ids(one->asked, list, "token_ids_logprob", vocab, err);
}

static int read_flag(const struct each *e, bool *out, struct ws_err *err)
{
	if (is_given(e->node) && ws_json_type(e->node) != WS_JSON_BOOL)
		return ws_serve_field_invalid(err, e->key, "Input should be a valid boolean");
	*out = ws_json_bool(e->node, false);
	return 0;
}

static int read_logprobs(const struct ws_serve *s, struct ws_generate *g,
                         const struct ws_json *body, struct ws_err *err)
{
	struct each want, start, top, asked;
	const struct ws_json *ids = ws_json_get(body, "token_ids_logprob");
	uint64_t told = 0;
	if (begin_each(&want, body, "return_logprob", is_list(ws_json_get(body, "return_logprob")),
	               g, err) ||
	    begin_each(&start, body, "logprob_start_len",
	               is_list(ws_json_get(body, "logprob_start_len")), g, err) ||
	    begin_each(&top, body, "top_logprobs_num",
	               is_list(ws_json_get(body, "top_logprobs_num")), g, err) ||
	    begin_each(&asked, body, "token_ids_logprob",
	               is_list(ids) && is_list(ws_json_first(ids)), g, err))
		return -1;
	for (size_t i = 0; i < g->n; i++) {
		struct ws_generate_one *one = &g->items[i];
		int64_t n = 0;
		if (read_flag(&want, &one->logprobs, err) || read_number(&top, &n, err))
			return -1;
		if (one->logprobs && (read_start(one, &start, s->traits->tells_last_token, err) ||
		                      read_asked(one, asked.node, g->shape.vocab, err)))
			return -1;
		if (n < 0 || (uint64_t)n > g->shape.vocab)
			return ws_err_set(err, WS_EREFUSED,
			                  "top_logprobs_num: %" PRId64 " of %zu tokens.", n,
			                  g->shape.vocab);
		one->top = one->logprobs ? (size_t)n : 0;
		told += (uint64_t)(one->top + one->n_asked) * (one->n_prompt + one->n_new);
		next_each(&want);
		next_each(&start);
		next_each(&top);
		next_each(&asked);
	}
	for (size_t i = 0; i < g->n; i++)
		if (g->items[i].logprobs && s->opts.keep == WS_KEEP_NONE)
			return refuse(err, "%s",
			              "return_logprob: this endpoint keeps nothing of its weights "
			              "(--keep none)");
	if (told > WS_GENERATE_MAX_TOLD)
		return ws_err_set(err, WS_EREFUSED,
		                  "top_logprobs_num, token_ids_logprob: %" PRIu64
		                  " logprobs in one answer: "
		                  "this endpoint tells at most %d.",
		                  told, WS_GENERATE_MAX_TOLD);
	return 0;
}

/* ---- the rest ---- */

/* One name for several prompts is numbered. */
static int read_names(struct ws_generate *g, const struct ws_json *body, uint64_t call,
                      struct ws_err *err)
{
	struct each e;
	if (begin_each(&e, body, "rid", is_list(ws_json_get(body, "rid")), g, err))
		return -1;
	for (size_t i = 0; i < g->n; i++, next_each(&e)) {
		char *rid = g->items[i].rid;
		const char *text = ws_json_string(e.node);
		if (is_given(e.node) && !text)
			return ws_serve_field_invalid(err, "rid", "Input should be a valid string");
		if (text && strlen(text) > 128)
			return ws_serve_field_invalid(err, "rid",
			                              "String should have at most 128 characters");
		if (!text)
			snprintf(rid, WS_GENERATE_RID, "%016" PRIx64 "-%zu", call, i);
		else if (g->list && !e.list)
			snprintf(rid, WS_GENERATE_RID, "%.128s_%zu", text, i);
		else
			snprintf(rid, WS_GENERATE_RID, "%s", text);
	}
	return 0;
}

static int read_routed(const struct ws_serve *s, struct ws_generate *g, const struct ws_json *body,
                       struct ws_err *err)
{
	const struct ws_routing_shape *shape = &g->shape.routing;
	size_t tokens = 0;
	if (ws_serve_field_bool(body, "return_routed_experts", &g->routed, err))
		return -1;
	g->routed = g->routed && s->opts.routed_experts && shape->layers;
	if (g->routed && s->opts.keep == WS_KEEP_NONE)
		return refuse(err, "%s",
		              "return_routed_experts: this endpoint keeps nothing of its weights "
		              "(--keep none)");
	for (size_t i = 0; i < g->n && g->routed; i++)
		tokens += g->items[i].n_prompt + g->items[i].n_new;
	if (tokens * shape->layers * shape->k > WS_GENERATE_MAX_ROUTED)
		return ws_err_set(
			err, WS_EREFUSED,
			"return_routed_experts: %zu tokens of %zu layers with %zu experts each: "
			"this endpoint tells at most %d experts in one answer.",
			tokens, shape->layers, shape->k, WS_GENERATE_MAX_ROUTED);
	return 0;
}

int ws_generate_read(const struct ws_serve *s, const struct ws_json *body, struct ws_generate *out,
                     struct ws_err *err)
{
	ws_serve_toy_shape(s, &out->shape);
	return read_prompts(out, body, err) || read_samplings(out, body, err) ||
	       read_logprobs(s, out, body, err) || read_routed(s, out, body, err) ||
	       read_names(out, body, (uint64_t)out->began_ns, err) ||
	       ws_serve_field_bool(body, "return_text_in_logprobs", &out->texts, err) ||
	       ws_serve_field_bool(body, "stream", &out->stream, err) ? -1 : 0;
}

void ws_generate_free(struct ws_generate *g)
{
	for (size_t i = 0; i < g->n && g->items; i++) {
		struct ws_generate_one *one = &g->items[i];
		free(one->ids);
		free(one->asked);
		free(one->made_by);
		free(one->logprob);
		free(one->top_ids);
		free(one->top_logprobs);
		free(one->asked_logprobs);
		free(one->experts);
	}
	free(g->items);
}
