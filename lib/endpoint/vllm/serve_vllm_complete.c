/* SPDX-License-Identifier: Apache-2.0 */
/* serve_vllm_complete.c - POST /v1/completions, with the tokens of serve_generate.h.
 *
 *   prompt           token IDs or a text, or a list of them
 *   max_tokens (16), logprobs, prompt_logprobs, return_token_ids, return_tokens_as_token_ids,
 *   return_weight_versions (0.33)
 *
 * The request is read by the reader of /generate, in its words. */
#include "serve_vllm.h"

#include "serve_generate.h"
#include "serve_lineage.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

/* ---- the request ---- */

static bool is_given(const struct ws_json *node)
{
	return node && ws_json_type(node) != WS_JSON_NULL;
}

static void copy_prompt(struct ws_jw *jw, const char *key, const struct ws_json *node)
{
	int64_t number = 0;
	if (ws_json_type(node) == WS_JSON_ARRAY) {
		ws_jw_array(jw, key);
		for (const struct ws_json *i = ws_json_first(node); i; i = ws_json_next(i))
			copy_prompt(jw, NULL, i);
		ws_jw_end_array(jw);
	} else if (ws_json_string(node)) {
		ws_jw_str(jw, key, ws_json_string(node));
	} else if (ws_json_int(node, &number)) {
		ws_jw_int(jw, key, number);
	} else {
		ws_jw_null(jw, key);
	}
}

static bool is_text(const struct ws_json *prompt)
{
	return ws_json_string(prompt) ||
	       (ws_json_type(prompt) == WS_JSON_ARRAY && ws_json_string(ws_json_first(prompt)));
}

/* Writes the request as one of /generate. */
static void translate(const struct ws_json *body, struct ws_buf *out)
{
	const struct ws_json *prompt = ws_json_get(body, "prompt");
	const bool all = is_given(ws_json_get(body, "prompt_logprobs"));
	struct ws_jw jw;
	ws_jw_init(&jw, out);
	ws_jw_object(&jw, NULL);
	copy_prompt(&jw, is_text(prompt) ? "text" : "input_ids", prompt);
	ws_jw_object(&jw, "sampling_params");
	ws_jw_int(&jw, "max_new_tokens", ws_json_get_int(body, "max_tokens", 16));
	ws_jw_int(&jw, "n", ws_json_get_int(body, "n", 1));
	ws_jw_end_object(&jw);
	ws_jw_bool(&jw, "stream", ws_json_get_bool(body, "stream", false));
	ws_jw_bool(&jw, "return_logprob", all || is_given(ws_json_get(body, "logprobs")));
	ws_jw_int(&jw, "logprob_start_len", all ? 0 : -1);
	ws_jw_end_object(&jw);
}

/* ---- the answer ---- */

static bool asks(const struct ws_serve_call *c, const char *key)
{
	return ws_json_get_bool(c->body, key, false);
}

/* A printable token is itself, another one its number. */
static void name_token(char name[32], int32_t id, bool as_id)
{
	if (as_id)
		snprintf(name, 32, "token_id:%" PRId32, id);
	else if (id >= ' ' && id <= '~')
		snprintf(name, 32, "%c", (char)id);
	else
		snprintf(name, 32, "<%" PRId32 ">", id);
}

static double logprob_of(const struct ws_generate *g, const struct ws_generate_one *one, size_t i)
{
	return ws_generate_logprob(g, one->states[i - 1], one->ids[i]);
}

static void write_text(struct ws_jw *jw, const struct ws_generate_one *one)
{
	struct ws_buf text;
	char name[32];
	ws_buf_init(&text, 0);
	for (size_t i = one->n_prompt; i < one->n_prompt + one->n_new; i++) {
		name_token(name, one->ids[i], false);
		ws_buf_puts(&text, name);
	}
	ws_jw_str(jw, "text", ws_buf_str(&text));
	jw->out->failed |= text.failed;
	ws_buf_free(&text);
}

static void write_logprobs(struct ws_jw *jw, const struct ws_generate *g,
                           const struct ws_generate_one *one, bool as_ids)
{
	const size_t first = one->n_prompt, end = first + one->n_new;
	char name[32];
	int64_t offset = 0;
	ws_jw_object(jw, "logprobs");
	ws_jw_array(jw, "text_offset");
	for (size_t i = first; i < end; i++, offset += (int64_t)strlen(name)) {
		name_token(name, one->ids[i], as_ids);
		ws_jw_int(jw, NULL, offset);
	}
	ws_jw_end_array(jw);
	ws_jw_array(jw, "token_logprobs");
	for (size_t i = first; i < end; i++)
		ws_jw_double(jw, NULL, logprob_of(g, one, i));
	ws_jw_end_array(jw);
	ws_jw_array(jw, "tokens");
	for (size_t i = first; i < end; i++) {
		name_token(name, one->ids[i], as_ids);
		ws_jw_str(jw, NULL, name);
	}
	ws_jw_end_array(jw);
	ws_jw_array(jw, "top_logprobs");
	for (size_t i = first; i < end; i++) {
		name_token(name, one->ids[i], as_ids);
		ws_jw_object(jw, NULL);
		ws_jw_double(jw, name, logprob_of(g, one, i));
		ws_jw_end_object(jw);
	}
	ws_jw_end_array(jw);
	ws_jw_end_object(jw);
}

/* The first token has no logprob. Only the tokens of the prompt are listed, and no others. */
static void write_prompt_logprobs(struct ws_jw *jw, const struct ws_generate *g,
                                  const struct ws_generate_one *one)
{
	char key[16], name[32];
	ws_jw_array(jw, "prompt_logprobs");
	ws_jw_null(jw, NULL);
	for (size_t i = 1; i < one->n_prompt; i++) {
		snprintf(key, sizeof key, "%" PRId32, one->ids[i]);
		name_token(name, one->ids[i], false);
		ws_jw_object(jw, NULL);
		ws_jw_object(jw, key);
		ws_jw_double(jw, "logprob", logprob_of(g, one, i));
		ws_jw_int(jw, "rank", 1);
		ws_jw_str(jw, "decoded_token", name);
		ws_jw_end_object(jw);
		ws_jw_end_object(jw);
	}
	ws_jw_end_array(jw);
}

static void write_ids(struct ws_jw *jw, const char *key, const int32_t *ids, size_t n, bool given)
{
	if (!given) {
		ws_jw_null(jw, key);
		return;
	}
	ws_jw_array(jw, key);
	for (size_t i = 0; i < n; i++)
		ws_jw_int(jw, NULL, ids[i]);
	ws_jw_end_array(jw);
}

static void write_versions(struct ws_jw *jw, const struct ws_generate_one *one, const char *version)
{
	ws_jw_array(jw, "weight_versions");
	ws_jw_object(jw, NULL);
	ws_jw_int(jw, "start", 0);
	ws_jw_uint(jw, "end", one->n_new);
	ws_jw_str(jw, "version", version);
	ws_jw_end_object(jw);
	ws_jw_end_array(jw);
}

static void write_choice(struct ws_serve_call *c, struct ws_jw *jw, const struct ws_generate *g,
                         size_t i, const char *version)
{
	const struct ws_generate_one *one = &g->items[i];
	const bool ids = asks(c, "return_token_ids");
	ws_jw_object(jw, NULL);
	ws_jw_uint(jw, "index", i);
	write_text(jw, one);
	if (is_given(ws_json_get(c->body, "logprobs")))
		write_logprobs(jw, g, one, asks(c, "return_tokens_as_token_ids"));
	else
		ws_jw_null(jw, "logprobs");
	ws_jw_str(jw, "finish_reason", "length");
	ws_jw_null(jw, "stop_reason");
	write_ids(jw, "token_ids", one->ids + one->n_prompt, one->n_new, ids);
	if (is_given(ws_json_get(c->body, "prompt_logprobs")))
		write_prompt_logprobs(jw, g, one);
	else
		ws_jw_null(jw, "prompt_logprobs");
	write_ids(jw, "prompt_token_ids", one->ids, one->n_prompt, ids);
	if (asks(c, "return_weight_versions") && ws_serve_vllm_has(c, WS_IN_VLLM_0_33))
		write_versions(jw, one, version);
	ws_jw_end_object(jw);
}

static void write(struct ws_serve_call *c, const struct ws_generate *g, const char *version)
{
	struct ws_serve *s = c->serve;
	size_t prompt = 0, new = 0, cached = 0;
	struct ws_jw jw;
	char id[40];
	snprintf(id, sizeof id, "cmpl-%016" PRIx64, (uint64_t)g->began_ns);
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_str(&jw, "id", id);
	ws_jw_str(&jw, "object", "text_completion");
	ws_jw_int(&jw, "created", s->clock_ns / WS_NS_PER_S);
	ws_jw_str(&jw, "model", s->served_model_name);
	ws_jw_array(&jw, "choices");
	for (size_t i = 0; i < g->n; i++) {
		write_choice(c, &jw, g, i, version);
		prompt += g->items[i].n_prompt;
		new += g->items[i].n_new;
		cached += g->items[i].cached;
	}
	ws_jw_end_array(&jw);
	ws_jw_object(&jw, "usage");
	ws_jw_uint(&jw, "prompt_tokens", prompt);
	ws_jw_uint(&jw, "total_tokens", prompt + new);
	ws_jw_uint(&jw, "completion_tokens", new);
	ws_jw_object(&jw, "prompt_tokens_details"); /* --enable-prompt-tokens-details */
	ws_jw_uint(&jw, "cached_tokens", cached);
	ws_jw_end_object(&jw);
	ws_jw_end_object(&jw);
	ws_jw_end_object(&jw);
}

/* ---- the route ---- */

static bool knows_model(struct ws_serve_call *c)
{
	const char *model = ws_json_get_string(c->body, "model", NULL);
	char text[300];
	pthread_mutex_lock(&c->serve->lock);
	const bool known = !model || strcmp(model, c->serve->served_model_name) == 0;
	pthread_mutex_unlock(&c->serve->lock);
	if (known)
		return true;
	snprintf(text, sizeof text, "The model `%.200s` does not exist.", model);
	ws_serve_vllm_answer_error(c, 404, "NotFoundError", text);
	return false;
}

void ws_serve_route_vllm_complete(struct ws_serve_call *c)
{
	struct ws_generate g = { .began_ns = ws_now_ns() };
	struct ws_err err = WS_ERR_INIT;
	struct ws_buf text;
	if (!knows_model(c))
		return;
	ws_buf_init(&text, 0);
	translate(c->body, &text);
	struct ws_json *body = text.failed ? NULL :
	                       ws_json_parse(ws_buf_str(&text), text.len, "body", &err);
	if (body && ws_generate_read(c->serve, body, &g, &err) == 0)
		ws_generate_run(c, &g, write);
	else if (err.code == WS_EUSAGE)
		ws_serve_vllm_answer_invalid(c, err.msg);
	else
		ws_serve_vllm_answer_error(c, 400, "BadRequestError", err.msg);
	ws_generate_free(&g);
	ws_json_free(body);
	ws_buf_free(&text);
}
