/* SPDX-License-Identifier: Apache-2.0 */
/* serve_prompts.c - /generate, as far as the cache of prefixes goes: nothing is generated.
 *
 * A token is a byte. What a prompt has in common with one that came before, from its beginning, comes from
 * the cache; the last token never does, because somebody has to compute what follows. Prompts that come
 * while generation is paused wait. */
#include "serve_core.h"

#include <stdlib.h>
#include <string.h>

enum { MAX_PROMPT = 1 << 20 };

/* All of these under the lock. */

static size_t in_common(const char *a, const char *b)
{
	size_t n = 0;
	while (a[n] && a[n] == b[n])
		n++;
	return n;
}

static size_t take(struct ws_serve_prompts *p, const char *prompt)
{
	const size_t len = strlen(prompt);
	size_t cached = 0;
	for (size_t i = 0; i < WS_SERVE_MAX_PROMPTS && p->items[i]; i++) {
		const size_t n = in_common(p->items[i], prompt);
		cached = n > cached ? n : cached;
	}
	char **place = &p->items[p->next++ % WS_SERVE_MAX_PROMPTS];
	free(*place);
	*place = strdup(prompt); /* none, where there is no memory: less is cached */
	return cached < len ? cached : len ? len - 1 : 0;
}

void ws_serve_prompts_forget(struct ws_serve_prompts *p)
{
	for (size_t i = 0; i < WS_SERVE_MAX_PROMPTS; i++)
		free(p->items[i]);
	*p = (struct ws_serve_prompts){ 0 };
}

static void write_answer(struct ws_serve_call *c, size_t tokens, size_t cached, const char *version)
{
	struct ws_jw w;
	ws_jw_init(&w, &c->rp->body);
	ws_jw_object(&w, NULL);
	ws_jw_str(&w, "text", "");
	ws_jw_object(&w, "meta_info");
	ws_jw_uint(&w, "prompt_tokens", tokens);
	ws_jw_uint(&w, "completion_tokens", 1);
	ws_jw_uint(&w, "cached_tokens", cached);
	ws_jw_str(&w, "weight_version", version);
	ws_jw_end_object(&w);
	ws_jw_end_object(&w);
}

void ws_serve_route_generate(struct ws_serve_call *c)
{
	struct ws_serve *s = c->serve;
	const char *prompt = ws_json_get_string(c->body, "text", NULL);
	if (!prompt || !*prompt || strlen(prompt) > MAX_PROMPT) {
		ws_serve_answer_invalid(c, "body.text: Input should be a string of 1 byte to 1 MiB");
		return;
	}
	pthread_mutex_lock(&s->lock);
	while ((s->paused || s->writer) && !s->stopping)
		pthread_cond_wait(&s->changed, &s->lock);
	if (s->stopping)
		c->rp->drop = true;
	else
		write_answer(c, strlen(prompt), take(&s->prompts, prompt), s->weight_version);
	pthread_mutex_unlock(&s->lock);
}
