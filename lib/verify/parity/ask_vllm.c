/* SPDX-License-Identifier: Apache-2.0 */
#include "ask_vllm.h"

#include "answer.h"
#include "wsync/tool/json.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BODY_MAX = 512 << 20 };

/* ---- the request ---- */

static void write_prompt(struct ws_jw *w, const char *key, const struct ws_prompt *x)
{
	if (x->text) {
		ws_jw_str(w, key, x->text);
		return;
	}
	ws_jw_array(w, key);
	for (size_t i = 0; i < x->n_ids; i++)
		ws_jw_int(w, NULL, x->ids[i]);
	ws_jw_end_array(w);
}

static bool scores_prompts(const struct ws_ask *ask)
{
	return ask->logprobs && ask->as != WS_ASKED_CACHED;
}

/* A batch has one limit for all. */
static int check(const struct ws_ask *ask, const struct ws_prompt *x, size_t n, struct ws_err *err)
{
	if (ask->experts)
		return ws_err_set(err, WS_EREFUSED, "a vLLM does not report its routed experts");
	for (size_t i = 1; i < n; i++)
		if (!x[i].text != !x[0].text || ws_ask_most(ask, &x[i]) != ws_ask_most(ask, &x[0]))
			return ws_err_set(err, WS_EUSAGE,
			                  "prompts of different kinds, or with different numbers "
			                  "of tokens to draw, do not go into one batch");
	return 0;
}

int ws_ask_vllm_body(struct ws_buf *body, const struct ws_ask *ask, size_t from, size_t n,
                     struct ws_err *err)
{
	const struct ws_prompt *x = &ask->prompts->items[from];
	struct ws_jw w;
	if (check(ask, x, n, err))
		return -1;
	ws_buf_init(body, BODY_MAX);
	ws_jw_init(&w, body);
	ws_jw_object(&w, NULL);
	if (ask->as == WS_ASKED_BATCH) {
		ws_jw_array(&w, "prompt");
		for (size_t i = 0; i < n; i++)
			write_prompt(&w, NULL, &x[i]);
		ws_jw_end_array(&w);
	} else {
		write_prompt(&w, "prompt", x);
	}
	ws_jw_uint(&w, "max_tokens", ws_ask_most(ask, x));
	ws_jw_int(&w, "temperature", 0);
	ws_jw_bool(&w, "return_token_ids", true);
	if (ask->logprobs)
		ws_jw_int(&w, "logprobs", 0);
	if (scores_prompts(ask))
		ws_jw_int(&w, "prompt_logprobs", 0);
	ws_jw_end_object(&w);
	return ws_buf_check(body, "the prompt", err);
}

/* ---- the answer ---- */

/* [number or null, token, null] */
static void write_token(struct ws_jw *w, const struct ws_json *number, int64_t id)
{
	double value = 0;
	ws_jw_array(w, NULL);
	if (ws_json_double(number, &value))
		ws_jw_double(w, NULL, value);
	else
		ws_jw_null(w, NULL);
	ws_jw_int(w, NULL, id);
	ws_jw_null(w, NULL);
	ws_jw_end_array(w);
}

static bool write_drawn(struct ws_jw *w, const struct ws_json *choice)
{
	const struct ws_json *id = ws_json_first(ws_json_get(choice, "token_ids"));
	const struct ws_json *number =
		ws_json_first(ws_json_get(ws_json_get(choice, "logprobs"), "token_logprobs"));
	int64_t token;
	ws_jw_array(w, "output_token_logprobs");
	for (; id && number && ws_json_int(id, &token);
	     id = ws_json_next(id), number = ws_json_next(number))
		write_token(w, number, token);
	ws_jw_end_array(w);
	return !id && !number;
}

/* The first token of a prompt has no probability. */
static bool write_scored(struct ws_jw *w, const struct ws_json *choice)
{
	const struct ws_json *id = ws_json_first(ws_json_get(choice, "prompt_token_ids"));
	const struct ws_json *of = ws_json_first(ws_json_get(choice, "prompt_logprobs"));
	bool first = true;
	int64_t token;
	ws_jw_array(w, "input_token_logprobs");
	for (; id && of && ws_json_int(id, &token); id = ws_json_next(id), of = ws_json_next(of)) {
		char key[24];
		snprintf(key, sizeof key, "%lld", (long long)token);
		const struct ws_json *number = ws_json_get(ws_json_get(of, key), "logprob");
		if (!first && !number)
			break;
		write_token(w, number, token);
		first = false;
	}
	ws_jw_end_array(w);
	return !id && !of && !first;
}

static bool write_tokens(struct ws_jw *w, const struct ws_ask *ask, const struct ws_json *choice)
{
	if (scores_prompts(ask))
		return write_scored(w, choice) && write_drawn(w, choice);
	ws_jw_array(w, "input_token_logprobs");
	ws_jw_end_array(w);
	return write_drawn(w, choice);
}

static bool write_answer(struct ws_jw *w, const struct ws_ask *ask, const struct ws_json *choice,
                         const struct ws_json *usage)
{
	const struct ws_json *details = ws_json_get(usage, "prompt_tokens_details");
	const int64_t cached = ws_json_get_int(details, "cached_tokens", -1);
	bool ok = ws_json_type(choice) == WS_JSON_OBJECT;
	ws_jw_object(w, NULL);
	ws_jw_str(w, "text", ws_json_get_string(choice, "text", ""));
	ws_jw_object(w, "meta_info");
	ws_jw_object(w, "finish_reason");
	ws_jw_str(w, "type", ws_json_get_string(choice, "finish_reason", ""));
	ws_jw_end_object(w);
	ws_jw_int(w, "prompt_tokens", ws_json_get_int(usage, "prompt_tokens", 0));
	ws_jw_int(w, "completion_tokens", ws_json_get_int(usage, "completion_tokens", 0));
	if (cached >= 0)
		ws_jw_int(w, "cached_tokens", cached);
	if (ask->logprobs)
		ok = ok && write_tokens(w, ask, choice);
	ws_jw_end_object(w);
	ws_jw_end_object(w);
	return ok;
}

/* A batch may be answered in another order. */
static const struct ws_json *find_choice(const struct ws_json *choices, int64_t index)
{
	for (const struct ws_json *c = ws_json_first(choices); c; c = ws_json_next(c))
		if (ws_json_get_int(c, "index", -1) == index)
			return c;
	return NULL;
}

int ws_ask_vllm_answer(const struct ws_ask *ask, const struct ws_json *root, struct ws_buf *text,
                       struct ws_err *err)
{
	const bool batch = ask->as == WS_ASKED_BATCH;
	const struct ws_json *choices = ws_json_get(root, "choices");
	const struct ws_json *usage = batch ? NULL : ws_json_get(root, "usage");
	const size_t n = batch ? ask->prompts->n : 1;
	struct ws_jw w;
	bool ok = ws_json_count(choices) == n;
	ws_buf_init(text, WS_ANSWERS_MAX);
	ws_jw_init(&w, text);
	if (batch)
		ws_jw_array(&w, NULL);
	for (size_t i = 0; ok && i < n; i++)
		ok = write_answer(&w, ask, find_choice(choices, (int64_t)i), usage);
	if (batch)
		ws_jw_end_array(&w);
	if (!ok)
		return ws_err_set(err, WS_EREFUSED, "POST /v1/completions: the answer has not the "
		                  "expected tokens and probabilities");
	return ws_buf_check(text, "the answer", err);
}
