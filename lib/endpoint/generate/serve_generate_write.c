/* SPDX-License-Identifier: Apache-2.0 */
/* serve_generate_write.c - the answer of /generate.
 *
 *   {"text", "output_ids", "meta_info": {"id", "finish_reason", "prompt_tokens", "weight_version",
 *    "completion_tokens", "cached_tokens", "e2e_latency", ...}}
 *   with return_logprob: "input_token_logprobs", "output_token_logprobs": [[logprob, id, text or
 * null], ...], and the same of the best tokens ("_top_") and of those asked for ("_token_ids_"), a
 * list at each place with return_routed_experts: "routed_experts", int32 in base64
 *
 * Several prompts: a list of that. As a stream: one event with all of it, and the end. */
#include "serve_generate.h"
#include "serve_lineage.h"

#include "base64.h"
#include "wsync/tool/json.h"

#include <inttypes.h>
#include <stdio.h>

/* ---- tokens ---- */

/* Of printable characters themselves, of others a number. */
static size_t write_token(char dst[16], int32_t id)
{
	if (id >= ' ' && id <= '~')
		return (size_t)snprintf(dst, 16, "%c", (char)id);
	return (size_t)snprintf(dst, 16, "<%" PRId32 ">", id);
}

static void write_text(struct ws_jw *w, const struct ws_generate_one *one)
{
	struct ws_buf text;
	ws_buf_init(&text, 0);
	for (size_t i = 0; i < one->n_new; i++) {
		char token[16];
		ws_buf_add(&text, token, write_token(token, one->ids[one->n_prompt + i]));
	}
	ws_jw_str(w, "text", ws_buf_str(&text));
	w->out->failed |= text.failed;
	ws_buf_free(&text);
	ws_jw_array(w, "output_ids");
	for (size_t i = 0; i < one->n_new; i++)
		ws_jw_int(w, NULL, one->ids[one->n_prompt + i]);
	ws_jw_end_array(w);
}

/* NULL: nothing predicted it. */
static void write_entry(struct ws_jw *w, const double *logprob, int32_t id, bool text)
{
	char token[16];
	ws_jw_array(w, NULL);
	if (logprob)
		ws_jw_double(w, NULL, *logprob);
	else
		ws_jw_null(w, NULL);
	ws_jw_int(w, NULL, id);
	if (text)
		ws_jw_strn(w, NULL, token, write_token(token, id));
	else
		ws_jw_null(w, NULL);
	ws_jw_end_array(w);
}

/* ---- logprobs ---- */

/* Tokens [from, to). */
static void write_tokens(struct ws_jw *w, const char *key, const struct ws_generate_one *one,
                         size_t from, size_t to, bool texts)
{
	ws_jw_array(w, key);
	for (size_t i = from; i < to; i++)
		write_entry(w, i >= ws_generate_first(one) ? &one->logprob[i] : NULL, one->ids[i],
		            texts);
	ws_jw_end_array(w);
}

/* The same places, of n other tokens each: ids either of every place, or the same at all. */
static void write_others(struct ws_jw *w, const char *key, const struct ws_generate_one *one,
                         size_t from, size_t to, size_t n, const int32_t *ids, size_t stride,
                         const double *logprobs, bool texts)
{
	const size_t first = ws_generate_first(one);
	ws_jw_array(w, key);
	for (size_t i = from; i < to; i++) {
		if (i < first) {
			ws_jw_null(w, NULL);
			continue;
		}
		ws_jw_array(w, NULL);
		for (size_t k = 0; k < n; k++)
			write_entry(w, &logprobs[(i - first) * n + k],
			            ids[(i - first) * stride + k], texts);
		ws_jw_end_array(w);
	}
	ws_jw_end_array(w);
}

static void write_logprobs(struct ws_jw *w, const struct ws_generate_one *one, bool texts)
{
	const size_t from = one->from, middle = one->n_prompt, end = middle + one->n_new;
	write_tokens(w, "input_token_logprobs", one, from, middle, texts);
	write_tokens(w, "output_token_logprobs", one, middle, end, texts);
	if (one->top) {
		write_others(w, "input_top_logprobs", one, from, middle, one->top, one->top_ids,
		             one->top, one->top_logprobs, texts);
		write_others(w, "output_top_logprobs", one, middle, end, one->top, one->top_ids,
		             one->top, one->top_logprobs, texts);
	}
	if (one->asked) {
		write_others(w, "input_token_ids_logprobs", one, from, middle, one->n_asked,
		             one->asked, 0, one->asked_logprobs, texts);
		write_others(w, "output_token_ids_logprobs", one, middle, end, one->n_asked,
		             one->asked, 0, one->asked_logprobs, texts);
	}
}

/* ---- the answer ---- */

static void write_experts(struct ws_jw *w, const struct ws_generate *g,
                          const struct ws_generate_one *one)
{
	const size_t tokens = one->n_prompt + one->n_new - 1;
	const size_t n = tokens * g->shape.routing.layers * g->shape.routing.k;
	struct ws_buf bytes, text;
	ws_buf_init(&bytes, 0);
	ws_buf_init(&text, 0);
	for (size_t i = 0; i < n; i++) {
		const uint32_t e = (uint32_t)one->experts[i];
		const uint8_t le[] = { (uint8_t)e, (uint8_t)(e >> 8), (uint8_t)(e >> 16),
			               (uint8_t)(e >> 24) };
		ws_buf_add(&bytes, le, sizeof le);
	}
	ws_base64_encode(&text, bytes.data, bytes.len);
	ws_jw_str(w, "routed_experts", ws_buf_str(&text));
	w->out->failed |= bytes.failed | text.failed;
	ws_buf_free(&bytes);
	ws_buf_free(&text);
}

static void write_meta(struct ws_jw *w, const struct ws_serve *s, const struct ws_generate *g,
                       const struct ws_generate_one *one, const char *version)
{
	ws_jw_object(w, "meta_info");
	ws_jw_str(w, "id", one->rid);
	ws_jw_object(w, "finish_reason");
	ws_jw_str(w, "type", "length");
	ws_jw_uint(w, "length", one->n_new);
	ws_jw_end_object(w);
	ws_jw_uint(w, "prompt_tokens", one->n_prompt);
	if (s->traits->update_version)
		ws_jw_str(w, "weight_version", version);
	if (one->logprobs)
		write_logprobs(w, one, g->texts);
	if (g->routed)
		write_experts(w, g, one);
	ws_jw_uint(w, "completion_tokens", one->n_new);
	ws_jw_uint(w, "cached_tokens", one->cached);
	ws_jw_double(w, "e2e_latency", (double)(ws_now_ns() - g->began_ns) / (double)WS_NS_PER_S);
	ws_jw_end_object(w);
}

static void write_one(struct ws_buf *out, const struct ws_serve *s, const struct ws_generate *g,
                      size_t i, const char *version)
{
	struct ws_jw w;
	ws_jw_init(&w, out);
	ws_jw_object(&w, NULL);
	write_text(&w, &g->items[i]);
	write_meta(&w, s, g, &g->items[i], version);
	if (g->stream && g->list)
		ws_jw_uint(&w, "index", i);
	ws_jw_end_object(&w);
}

void ws_generate_write(struct ws_serve_call *c, const struct ws_generate *g, const char *version)
{
	struct ws_buf *out = &c->rp->body;
	if (g->list && !g->stream)
		ws_buf_putc(out, '[');
	for (size_t i = 0; i < g->n; i++) {
		if (g->stream)
			ws_buf_puts(out, "data: ");
		else if (i)
			ws_buf_putc(out, ',');
		write_one(out, c->serve, g, i, version);
		if (g->stream)
			ws_buf_puts(out, "\n\n");
	}
	if (g->stream) {
		ws_buf_puts(out, "data: [DONE]\n\n");
		c->rp->type = "text/event-stream; charset=utf-8";
	} else if (g->list) {
		ws_buf_putc(out, ']');
	}
}
