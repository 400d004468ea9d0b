/* SPDX-License-Identifier: Apache-2.0 */
/* prompts.h - prompts for servers whose answers are compared. */
#ifndef WSYNC_PROMPTS_H
#define WSYNC_PROMPTS_H

#include "wsync/err.h"

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum { WS_PROMPTS_MAX = 10000, WS_PROMPT_TOKENS = 1 << 20 };

struct ws_prompt {
	char *text;      /* owned; NULL: ids */
	int64_t *ids;    /* owned; tokens of the model */
	size_t n_ids;
	unsigned most;   /* new tokens; 0: the same number as other prompts */
};

struct ws_prompts {  /* zeroed: none */
	struct ws_prompt *items;
	size_t n;
};

/* Text and ids are copied; one of them is NULL. */
int ws_prompts_add(struct ws_prompts *p, const char *text, const int64_t *ids, size_t n_ids,
                   unsigned most, struct ws_err *err);
/* Adds the prompts of a file, one in each line that is not empty: text, or, if it begins with
 * "{", an object with "text" or "input_ids" and perhaps "max_new_tokens". */
int ws_prompts_read(struct ws_prompts *p, const char *path, struct ws_err *err);
int ws_prompts_parse(struct ws_prompts *p, const char *text, size_t n, const char *what,
                     struct ws_err *err);
/* Adds the built-in prompts, of different kinds and lengths. */
int ws_prompts_add_usual(struct ws_prompts *p, struct ws_err *err);
void ws_prompts_free(struct ws_prompts *p);

#ifdef __cplusplus
}
#endif
#endif
