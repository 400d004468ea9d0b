/* SPDX-License-Identifier: Apache-2.0 */
/* answer.h - answers of servers to prompts, from a file or a reply: one answer, or an array of
 * them. */
#ifndef WS_CHECK_ANSWER_H
#define WS_CHECK_ANSWER_H

#include "wsync/tool/logprobs.h"
#include "wsync/tool/routing.h"
#include "wsync/tool/json_read.h"

enum { WS_ANSWERS_MAX = 256 << 20 }; /* bytes of a file */

/* Parses a JSON file of at most `most` bytes. The caller frees the root; NULL on failure. */
struct ws_json *ws_answer_file(const char *path, size_t most, struct ws_err *err);

/* The answer to one prompt: the value itself, or the only member of an array. NULL: an empty
 * array, or several answers. */
const struct ws_json *ws_answer_only(const struct ws_json *root, const char *what,
                                     struct ws_err *err);

/* The number of answers, and a walk over them. Messages begin with `what`, followed by the number
 * of the prompt if there are several. */
typedef int ws_answer_take(void *ctx, size_t i, const struct ws_json *answer, const char *what,
                           struct ws_err *err);
size_t ws_answers_count(const struct ws_json *root);
int ws_answers_walk(const struct ws_json *root, const char *what, ws_answer_take *take, void *ctx,
                    struct ws_err *err);

/* For one answer that is already parsed. */
int ws_logprobs_take(const struct ws_json *answer, const char *what, struct ws_logprobs *out,
                     struct ws_err *err);
int ws_routing_take(const struct ws_json *answer, const char *what,
                    const struct ws_routing_shape *shape, struct ws_routing *out,
                    struct ws_err *err);

#endif
