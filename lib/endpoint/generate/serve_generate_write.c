/* SPDX-License-Identifier: Apache-2.0 */
/* serve_generate_write.c - the answer of /generate.
 *
 *   {"text", "output_ids", "meta_info": {"id", "finish_reason", "prompt_tokens", "weight_version",
 *    "completion_tokens", "cached_tokens", "e2e_latency", ...}}
 *
 * With return_logprob: "input_token_logprobs", "output_token_logprobs": [[logprob, id, null], ...].
 * With return_routed_experts: "routed_experts", int32 in base64. For a list of prompts, the answer
 * is a list of such objects. */
#include "serve_generate.h"
#include "serve_lineage.h"

#include "base64.h"
#include "wsync/tool/json.h"

#include <inttypes.h>
#include <stdio.h>

/* Writes printable characters as they are, and other tokens as numbers. */
static void write_text(struct ws_jw *w, const struct ws_generate_one *one)
{
	const int32_t *new = one->ids + one->n_prompt;
	struct ws_buf text;
	ws_buf_init(&text, 0);
	for (size_t i = 0; i < one->n_new; i++) {
		char token[16];
		const bool printable = new[i] >= ' ' && new[i] <= '~';
		snprintf(token, sizeof token, printable ? "%c" : "<%" PRId32 ">", new[i]);
		ws_buf_puts(&text, token);
	}
	ws_jw_str(w, "text", ws_buf_str(&text));
	w->out->failed |= text.failed;
	ws_buf_free(&text);
	ws_jw_array(w, "output_ids");
	for (size_t i = 0; i < one->n_new; i++)
		ws_jw_int(w, NULL, new[i]);
	ws_jw_end_array(w);
}

/* Writes the logprobs of tokens [from, to). The first reported token of the prompt (one->from) has
 * none. */
static void write_logprobs(struct ws_jw *w, const char *key, const struct ws_generate *g,
                           const struct ws_generate_one *one, size_t from, size_t to)
{
	ws_jw_array(w, key);
	for (size_t i = from; i < to; i++) {
		ws_jw_array(w, NULL);
		if (i > one->from || i >= one->n_prompt)
			ws_jw_double(w, NULL,
			             ws_generate_logprob(g, one->states[i - 1], one->ids[i]));
		else
			ws_jw_null(w, NULL);
		ws_jw_int(w, NULL, one->ids[i]);
		ws_jw_null(w, NULL);
		ws_jw_end_array(w);
	}
	ws_jw_end_array(w);
}

static void add_expert(struct ws_buf *bytes, size_t expert)
{
	const uint8_t le[] = { (uint8_t)expert, (uint8_t)(expert >> 8), (uint8_t)(expert >> 16),
		               (uint8_t)(expert >> 24) };
	ws_buf_add(bytes, le, sizeof le);
}

/* Writes zeros for layers without experts. */
static void write_experts(struct ws_jw *w, const struct ws_generate *g,
                          const struct ws_generate_one *one)
{
	const struct ws_routing_shape *shape = &g->routing;
	struct ws_buf bytes, text;
	ws_buf_init(&bytes, 0);
	ws_buf_init(&text, 0);
	for (size_t i = 0; i + 1 < one->n_prompt + one->n_new; i++)
		for (size_t l = 0; l < shape->layers; l++) {
			const size_t first = ws_generate_expert(g, one->states[i], l);
			for (size_t k = 0; k < shape->k; k++)
				add_expert(&bytes,
				           shape->dense[l] ? 0 : (first + k) % shape->experts);
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
	const size_t middle = one->n_prompt, end = middle + one->n_new;
	ws_jw_object(w, "meta_info");
	ws_jw_str(w, "id", one->rid);
	ws_jw_object(w, "finish_reason");
	ws_jw_str(w, "type", "length");
	ws_jw_uint(w, "length", one->n_new);
	ws_jw_end_object(w);
	ws_jw_uint(w, "prompt_tokens", one->n_prompt);
	if (ws_serve_in(s->opts.lineage, WS_HAS_UPDATE_VERSION))
		ws_jw_str(w, "weight_version", version);
	if (one->logprobs) {
		write_logprobs(w, "input_token_logprobs", g, one, one->from, middle);
		write_logprobs(w, "output_token_logprobs", g, one, middle, end);
	}
	if (g->routed)
		write_experts(w, g, one);
	ws_jw_uint(w, "completion_tokens", one->n_new);
	ws_jw_uint(w, "cached_tokens", one->cached);
	ws_jw_double(w, "e2e_latency", (double)(ws_now_ns() - g->began_ns) / (double)WS_NS_PER_S);
	ws_jw_end_object(w);
}

void ws_generate_write(struct ws_serve_call *c, const struct ws_generate *g, const char *version)
{
	struct ws_jw w;
	ws_jw_init(&w, &c->rp->body);
	if (g->list)
		ws_jw_array(&w, NULL);
	for (size_t i = 0; i < g->n; i++) {
		ws_jw_object(&w, NULL);
		write_text(&w, &g->items[i]);
		write_meta(&w, c->serve, g, &g->items[i], version);
		ws_jw_end_object(&w);
	}
	if (g->list)
		ws_jw_end_array(&w);
}
