/* SPDX-License-Identifier: Apache-2.0 */
/* prompts.c - reads prompts from files, and has some built in. One prompt a line: plain text,
 * {"text": "...", "max_new_tokens": 16}, or {"input_ids": [1, 2, 3]}. */
#include "wsync/tool/prompts.h"

#include "file.h"
#include "wsync/tool/str.h"
#include "wsync/tool/json_read.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 64 << 20, MOST_NEW = 1 << 20 };

void ws_prompts_free(struct ws_prompts *p)
{
	for (size_t i = 0; i < p->n; i++) {
		free(p->items[i].text);
		free(p->items[i].ids);
	}
	free(p->items);
	*p = (struct ws_prompts){ 0 };
}

int ws_prompts_add(struct ws_prompts *p, const char *text, const int64_t *ids, size_t n_ids,
                   unsigned most, struct ws_err *err)
{
	struct ws_prompt x = { .n_ids = text ? 0 : n_ids, .most = most };
	if (ws_check_utf8(text, "prompt", err))
		return -1;
	if (p->n >= WS_PROMPTS_MAX)
		return ws_err_set(err, WS_EINPUT, "more than %d prompts", WS_PROMPTS_MAX);
	struct ws_prompt *items = realloc(p->items, (p->n + 1) * sizeof *items);
	if (items)
		p->items = items;
	if (text)
		x.text = strdup(text);
	else if ((x.ids = malloc(n_ids * sizeof *ids + 1)) && n_ids)
		memcpy(x.ids, ids, n_ids * sizeof *ids);
	if (!items || (!x.text && !x.ids)) {
		free(x.text);
		free(x.ids);
		return ws_oom(err);
	}
	items[p->n++] = x;
	return 0;
}

/* ---- files ---- */

static int add_ids(struct ws_prompts *p, const struct ws_json *list, unsigned most,
                   struct ws_err *err)
{
	const size_t n = ws_json_count(list);
	size_t i = 0;
	if (ws_json_type(list) != WS_JSON_ARRAY || !n || n > WS_PROMPT_TOKENS)
		return ws_err_set(err, WS_EINPUT, "input_ids is not an array of 1 to %d tokens",
		                  WS_PROMPT_TOKENS);
	int64_t *ids = malloc(n * sizeof *ids);
	if (!ids)
		return ws_oom(err);
	int rc = 0;
	for (const struct ws_json *x = ws_json_first(list); !rc && x; x = ws_json_next(x), i++)
		if (!ws_json_int(x, &ids[i]) || ids[i] < 0 || ids[i] > INT32_MAX)
			rc = ws_err_set(err, WS_EINPUT, "input_ids: number %zu is not a token", i);
	if (!rc)
		rc = ws_prompts_add(p, NULL, ids, n, most, err);
	free(ids);
	return rc;
}

static int add_object(struct ws_prompts *p, const struct ws_json *o, struct ws_err *err)
{
	const char *text = ws_json_get_string(o, "text", NULL);
	const struct ws_json *ids = ws_json_get(o, "input_ids"),
			     *number = ws_json_get(o, "max_new_tokens");
	int64_t most = 0;
	if (number && (!ws_json_int(number, &most) || most < 1 || most > MOST_NEW))
		return ws_err_set(err, WS_EINPUT, "max_new_tokens is not a number from 1 to %d",
		                  MOST_NEW);
	if (!ids == !text || (text && !*text))
		return ws_err_set(err, WS_EINPUT, "neither a text nor input_ids, or both");
	return text ? ws_prompts_add(p, text, NULL, 0, (unsigned)most, err) :
	              add_ids(p, ids, (unsigned)most, err);
}

static int add_line(struct ws_prompts *p, const char *line, size_t n, struct ws_err *err)
{
	if (*line == '{') {
		struct ws_json *root = ws_json_parse(line, n, "the object", err);
		const int rc = root ? add_object(p, root, err) : -1;
		ws_json_free(root);
		return rc;
	}
	if (memchr(line, 0, n))
		return ws_err_set(err, WS_EINPUT, "a NUL in the text");
	char *text = strndup(line, n);
	const int rc = text ? ws_prompts_add(p, text, NULL, 0, 0, err) : ws_oom(err);
	free(text);
	return rc;
}

int ws_prompts_parse(struct ws_prompts *p, const char *text, size_t n, const char *what,
                     struct ws_err *err)
{
	const size_t before = p->n;
	const char *end = text + n;
	char where[32];
	for (size_t line = 1; text < end; line++) {
		const char *stop = memchr(text, '\n', (size_t)(end - text));
		size_t len = (size_t)((stop ? stop : end) - text);
		const char *next = text + len + 1;
		len -= len && text[len - 1] == '\r';
		if (len && add_line(p, text, len, err)) {
			snprintf(where, sizeof where, "line %zu", line);
			ws_err_wrap(err, "%s: %s", what, where);
			if (err && err->code == WS_EUSAGE)
				err->code = WS_EINPUT;
			return -1;
		}
		text = next;
	}
	return p->n > before ? 0 : ws_err_set(err, WS_EINPUT, "%s: has no prompts", what);
}

int ws_prompts_read(struct ws_prompts *p, const char *path, struct ws_err *err)
{
	struct ws_buf text;
	ws_buf_init(&text, FILE_MAX);
	int rc = ws_file_read(path, &text, err);
	if (!rc)
		rc = ws_prompts_parse(p, ws_buf_str(&text), text.len, path, err);
	ws_buf_free(&text);
	return rc;
}

/* ---- built in ---- */

/* Prose, numbers, code, another script, and a prompt that fills several cache blocks. */
static const char *const usual[] = {
	"The capital of France is",
	"2, 3, 5, 7, 11, 13, 17, 19, 23,",
	"def mean(values):\n    return",
	"\xe6\x98\xa5\xe3\x81\xaf\xe3\x81\x82\xe3\x81\x91\xe3\x81\xbc\xe3\x81\xae",
	"Explain in one sentence why the sky is blue.",
	"Seven ferries cross the bay each morning. The first leaves at six with the bakers and the "
	"nurses, the second carries schoolchildren, and the third is so full of bicycles that its "
	"captain keeps a list of those who have to wait for the fourth. In the evening the same "
	"boats return in the other order. The captain of the last one",
};

int ws_prompts_add_usual(struct ws_prompts *p, struct ws_err *err)
{
	for (size_t i = 0; i < sizeof usual / sizeof usual[0]; i++)
		if (ws_prompts_add(p, usual[i], NULL, 0, 0, err))
			return -1;
	return 0;
}
