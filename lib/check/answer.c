/* SPDX-License-Identifier: Apache-2.0 */
/* answer.c - reads one answer, or an array of answers. A saved file of several prompts is an array.
 * Its members may be arrays of one answer, as a server sent them. */
#include "answer.h"

#include "file.h"
#include "wsync/tool/prompts.h"

#include <stdio.h>

struct ws_json *ws_answer_file(const char *path, size_t most, struct ws_err *err)
{
	struct ws_json *root = NULL;
	struct ws_buf text;
	ws_buf_init(&text, most);
	if (!ws_file_read(path, &text, err))
		root = ws_json_parse_most(ws_buf_str(&text), text.len, WS_JSON_FILE, path, err);
	ws_buf_free(&text);
	return root;
}

const struct ws_json *ws_answer_only(const struct ws_json *root, const char *what,
                                     struct ws_err *err)
{
	if (ws_json_type(root) != WS_JSON_ARRAY)
		return root;
	if (ws_json_count(root) == 1)
		return ws_json_first(root);
	ws_err_set(err, WS_EINPUT, "%s: %zu answers, where one is wanted", what,
	           ws_json_count(root));
	return NULL;
}

size_t ws_answers_count(const struct ws_json *root)
{
	return ws_json_type(root) == WS_JSON_ARRAY ? ws_json_count(root) : 1;
}

int ws_answers_walk(const struct ws_json *root, const char *what, ws_answer_take *take, void *ctx,
                    struct ws_err *err)
{
	const size_t n = ws_answers_count(root);
	char name[1024];
	if (ws_json_type(root) != WS_JSON_ARRAY)
		return take(ctx, 0, root, what, err);
	if (!n || n > WS_PROMPTS_MAX)
		return ws_err_set(err, WS_EINPUT, "%s: %zu answers, where 1 to %d are wanted", what,
		                  n, WS_PROMPTS_MAX);
	const struct ws_json *x = ws_json_first(root);
	for (size_t i = 0; x; x = ws_json_next(x), i++) {
		snprintf(name, sizeof name, n > 1 ? "%s: prompt %zu" : "%s", what, i + 1);
		const struct ws_json *answer = ws_answer_only(x, name, err);
		if (!answer || take(ctx, i, answer, name, err))
			return -1;
	}
	return 0;
}
