/* SPDX-License-Identifier: Apache-2.0 */
/* serve_generate_read.c - decodes the body of /generate, with the servers' fields, defaults and
 * refusals.
 *
 *   text | input_ids     one prompt or a list; each byte of a text is a token
 *   sampling_params      an object, or one for each prompt
 *   return_logprob, logprob_start_len, return_routed_experts, rid   for all prompts
 *
 * Only max_new_tokens and n of sampling_params are used: the best token is always chosen. Fields
 * that this endpoint cannot support are refused. Unknown fields are ignored, as in servers. */
#include "serve_generate.h"
#include "serve_lineage.h"
#include "serve_model.h"

#include "wsync/tool/str.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { DEFAULT_VOCAB = 256, MAX_VOCAB = 1 << 20, DEFAULT_NEW = 128 };

static bool is_given(const struct ws_json *node)
{
	return node && ws_json_type(node) != WS_JSON_NULL;
}

static bool is_list(const struct ws_json *node)
{
	return ws_json_type(node) == WS_JSON_ARRAY;
}

static int check_others(const struct ws_json *body, struct ws_err *err)
{
	static const char *const others[] = { "stream", "top_logprobs_num", "token_ids_logprob",
		                              "return_text_in_logprobs", "input_embeds" };
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++) {
		const struct ws_json *node = ws_json_get(body, others[i]);
		int64_t number = 1;
		const bool off = ws_json_type(node) == WS_JSON_BOOL ?
		                         !ws_json_bool(node, false) :
		                         ws_json_int(node, &number) && number == 0;
		if (is_given(node) && !off)
			return ws_err_set(err, WS_EREFUSED, "wsync-endpoint does not support %s.",
			                  others[i]);
	}
	return 0;
}

/* ---- prompts ---- */

static int make_room(struct ws_generate_one *one, size_t n, struct ws_err *err)
{
	if (n >= WS_GENERATE_CONTEXT)
		return ws_err_set(err, WS_EREFUSED,
		                  "The input (%zu tokens) is longer than the model's context "
		                  "length (%d tokens).",
		                  n, WS_GENERATE_CONTEXT);
	one->n_prompt = n;
	one->ids = malloc(n * sizeof *one->ids);
	return one->ids ? 0 : ws_oom(err);
}

static int read_text(struct ws_generate_one *one, const struct ws_json *node, size_t vocab,
                     struct ws_err *err)
{
	const char *text = ws_json_string(node);
	const size_t n = text ? strlen(text) : 0;
	if (!n)
		return ws_serve_field_invalid(err, "text",
		                              text ? "String should have at least 1 character" :
		                                     "Input should be a valid string");
	for (size_t i = 0, step; i < n; i += step)
		if (!(step = ws_utf8_step(text + i, n - i)))
			return ws_serve_field_invalid(
				err, "text",
				"Input should be a valid string, unable to parse raw data as a "
				"unicode string");
	if (make_room(one, n, err))
		return -1;
	for (size_t i = 0; i < n; i++)
		one->ids[i] = (int32_t)((unsigned char)text[i] % vocab);
	return 0;
}

static int read_ids(struct ws_generate_one *one, const struct ws_json *node, size_t vocab,
                    struct ws_err *err)
{
	if (!is_list(node))
		return ws_serve_field_invalid(err, "input_ids", "Input should be a valid list");
	if (!ws_json_count(node))
		return ws_err_set(err, WS_EREFUSED, "The input_ids are empty.");
	if (make_room(one, ws_json_count(node), err))
		return -1;
	int32_t *dst = one->ids;
	for (const struct ws_json *i = ws_json_first(node); i; i = ws_json_next(i)) {
		int64_t id = 0;
		if (ws_json_type(i) != WS_JSON_NUMBER || !ws_json_int(i, &id))
			return ws_serve_field_invalid(err, "input_ids",
			                              "Input should be a valid integer");
		if (id < 0 || (uint64_t)id >= vocab)
			return ws_err_set(err, WS_EREFUSED,
			                  "The input id %" PRId64 " is out of range: the "
			                  "vocabulary has %zu tokens.",
			                  id, vocab);
		*dst++ = (int32_t)id;
	}
	return 0;
}

static int read_prompts(struct ws_generate *g, const struct ws_json *body, struct ws_err *err)
{
	const struct ws_json *text = ws_json_get(body, "text"),
			     *ids = ws_json_get(body, "input_ids");
	if (is_given(text) == is_given(ids))
		return ws_err_set(err, WS_EREFUSED,
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
		return ws_oom(err);
	node = g->list ? ws_json_first(node) : node;
	for (size_t i = 0; i < g->n; i++, node = ws_json_next(node))
		if (is_given(text) ? read_text(&g->items[i], node, g->vocab, err)
		                   : read_ids(&g->items[i], node, g->vocab, err))
			return -1;
	return 0;
}

/* ---- sampling ---- */

static int read_count(const struct ws_json *params, const char *name, int64_t least, int64_t *out,
                      struct ws_err *err)
{
	const struct ws_json *node = ws_json_get(params, name);
	if (!is_given(node))
		return 0;
	if (ws_json_type(node) != WS_JSON_NUMBER || !ws_json_int(node, out))
		return ws_err_set(err, WS_EREFUSED, "%s must be an integer.", name);
	if (*out < least)
		return ws_err_set(err, WS_EREFUSED,
		                  "%s must be at least %" PRId64 ", got %" PRId64 ".", name, least,
		                  *out);
	return 0;
}

static int read_sampling(struct ws_generate_one *one, const struct ws_json *params,
                         struct ws_err *err)
{
	int64_t new = DEFAULT_NEW, n = 1;
	if (is_given(params) && ws_json_type(params) != WS_JSON_OBJECT)
		return ws_serve_field_invalid(err, "sampling_params",
		                              "Input should be a valid dictionary");
	if (read_count(params, "max_new_tokens", 0, &new, err) ||
	    read_count(params, "n", 1, &n, err))
		return -1;
	if (n != 1)
		return ws_err_set(err, WS_EREFUSED,
		                  "n: this endpoint generates one answer to a prompt.");
	if (new >= WS_GENERATE_CONTEXT - (int64_t)one->n_prompt)
		return ws_err_set(err, WS_EREFUSED,
		                  "Requested token count exceeds the model's maximum context "
		                  "length of %d tokens: %zu tokens from the input messages and "
		                  "%" PRId64 " tokens for the completion.",
		                  WS_GENERATE_CONTEXT, one->n_prompt, new);
	one->n_new = (size_t)new;
	int32_t *ids = realloc(one->ids, (one->n_prompt + one->n_new) * sizeof *ids);
	if (!ids)
		return ws_oom(err);
	one->ids = ids;
	return 0;
}

static int read_samplings(struct ws_generate *g, const struct ws_json *body, struct ws_err *err)
{
	const struct ws_json *node = ws_json_get(body, "sampling_params");
	const bool each = is_given(node) && is_list(node);
	size_t tokens = 0;
	if (each && (!g->list || ws_json_count(node) != g->n))
		return ws_serve_field_invalid(err, "sampling_params",
		                              "the list should be as long as that of the prompts");
	node = each ? ws_json_first(node) : node;
	for (size_t i = 0; i < g->n; i++, node = each ? ws_json_next(node) : node) {
		if (read_sampling(&g->items[i], node, err))
			return -1;
		tokens += g->items[i].n_prompt + g->items[i].n_new;
	}
	if (tokens > WS_GENERATE_MAX_TOKENS)
		return ws_err_set(err, WS_EREFUSED,
		                  "A batch of %zu tokens: this endpoint takes at most %d.", tokens,
		                  WS_GENERATE_MAX_TOKENS);
	return 0;
}

/* ---- parts of the answer ---- */

static int refuse_without_weights(const struct ws_serve *s, const char *field, struct ws_err *err)
{
	if (s->opts.keep != WS_KEEP_NONE)
		return 0;
	return ws_err_set(err, WS_EREFUSED, "%s: this endpoint keeps nothing of its weights",
	                  field);
}

/* With -1, logprobs begin with the generated tokens. On servers before 2026 they then begin with
 * the last token of the prompt, which has no logprob. */
static int read_logprobs(const struct ws_serve *s, struct ws_generate *g,
                         const struct ws_json *body, struct ws_err *err)
{
	const bool with_last = ws_serve_in(s->opts.lineage, WS_HAS_LAST_TOKEN);
	bool logprobs = false;
	int64_t start = -1;
	if (ws_serve_field_bool(body, "return_logprob", &logprobs, err) ||
	    (is_given(ws_json_get(body, "logprob_start_len")) &&
	     ws_serve_field_int(body, "logprob_start_len", &start, err)) ||
	    (logprobs && refuse_without_weights(s, "return_logprob", err)))
		return -1;
	for (size_t i = 0; i < g->n && logprobs; i++) {
		struct ws_generate_one *one = &g->items[i];
		const int64_t n = (int64_t)one->n_prompt;
		if (start < -1 || start > n || (with_last && start == n))
			return ws_err_set(err, WS_EREFUSED,
			                  "logprob_start_len, (%" PRId64 ") is higher than the "
			                  "number of input tokens (%zu). Request with a lower "
			                  "logprob_start_len.",
			                  start, one->n_prompt);
		one->logprobs = true;
		one->from = start < 0 ? one->n_prompt - with_last : (size_t)start;
	}
	return 0;
}

static int read_routed(const struct ws_serve *s, struct ws_generate *g, const struct ws_json *body,
                       struct ws_err *err)
{
	const struct ws_routing_shape *shape = &g->routing;
	size_t tokens = 0;
	if (ws_serve_field_bool(body, "return_routed_experts", &g->routed, err))
		return -1;
	g->routed = g->routed && s->opts.routed_experts && shape->layers;
	if (g->routed && refuse_without_weights(s, "return_routed_experts", err))
		return -1;
	for (size_t i = 0; i < g->n && g->routed; i++)
		tokens += g->items[i].n_prompt + g->items[i].n_new;
	if (tokens * shape->layers * shape->k > WS_GENERATE_MAX_ROUTED)
		return ws_err_set(err, WS_EREFUSED,
		                  "return_routed_experts: %zu tokens of %zu layers with %zu "
		                  "experts each: this endpoint reports at most %d experts in one "
		                  "answer.",
		                  tokens, shape->layers, shape->k, WS_GENERATE_MAX_ROUTED);
	return 0;
}

/* Adds a number to the ID for each of several prompts. */
static int read_rid(struct ws_generate *g, const struct ws_json *body, struct ws_err *err)
{
	const char *text = NULL;
	if (ws_serve_field_str(body, "rid", false, &text, err))
		return -1;
	if (text && strlen(text) > 128)
		return ws_serve_field_invalid(err, "rid",
		                              "String should have at most 128 characters");
	for (size_t i = 0; i < g->n; i++) {
		char *rid = g->items[i].rid;
		if (!text)
			snprintf(rid, WS_GENERATE_RID, "%016" PRIx64 "-%zu", (uint64_t)g->began_ns,
			         i);
		else if (g->list)
			snprintf(rid, WS_GENERATE_RID, "%.128s_%zu", text, i);
		else
			snprintf(rid, WS_GENERATE_RID, "%.128s", text);
	}
	return 0;
}

int ws_generate_read(const struct ws_serve *s, const struct ws_json *body, struct ws_generate *out,
                     struct ws_err *err)
{
	int64_t vocab = DEFAULT_VOCAB;
	struct ws_err none = WS_ERR_INIT;
	if (s->model) {
		ws_config_int(s->model->config, "vocab_size", &vocab);
		if (ws_routing_shape_of(s->model->config, &out->routing, &none))
			out->routing.layers = 0;
	}
	out->vocab = vocab < 1 ? 1 : vocab > MAX_VOCAB ? MAX_VOCAB : (size_t)vocab;
	return check_others(body, err) || read_prompts(out, body, err) ||
	       read_samplings(out, body, err) || read_logprobs(s, out, body, err) ||
	       read_routed(s, out, body, err) || read_rid(out, body, err) ? -1 : 0;
}

void ws_generate_free(struct ws_generate *g)
{
	for (size_t i = 0; i < g->n && g->items; i++) {
		free(g->items[i].ids);
		free(g->items[i].states);
	}
	free(g->items);
}
