/* SPDX-License-Identifier: Apache-2.0 */
/* serve_prompts.h - the cache of prefixes. */
#ifndef WS_ENDPOINT_SERVE_PROMPTS_H
#define WS_ENDPOINT_SERVE_PROMPTS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* What the cache of prefixes knows, serve_prompts.c. */
struct ws_toy; /* serve_toy.h */
enum { WS_SERVE_MAX_PROMPTS = 64 };
/* tokens of a prompt and its answer; of all */
enum { WS_SERVE_CONTEXT = 32768, WS_SERVE_POOL = 65536 };
struct ws_serve_prompt {
	int32_t *ids;                  /* owned, as the following */
	const struct ws_toy **made_by; /* with what each token was computed */
	size_t n;
};
struct ws_serve_prompts {
	struct ws_serve_prompt items[WS_SERVE_MAX_PROMPTS]; /* a ring */
	size_t next;
};
/* How many of the first n tokens are there, and who made them. */
size_t ws_serve_prompts_find(const struct ws_serve_prompts *p, const int32_t *ids, size_t n,
                             const struct ws_toy **made_by);
void ws_serve_prompts_add(struct ws_serve_prompts *p, const int32_t *ids, size_t n,
                          const struct ws_toy *const *made_by);
bool ws_serve_prompts_use(const struct ws_serve_prompts *p, const struct ws_toy *toy);
void ws_serve_prompts_forget(struct ws_serve_prompts *p);

#endif
