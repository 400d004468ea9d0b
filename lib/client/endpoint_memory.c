/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_memory.c - sleep and wake: memory that is given away and taken back.
 *
 *   POST /release_memory_occupation  {"tags": ["weights", "kv_cache", "cuda_graph"]}
 *   POST /resume_memory_occupation   the same; without "tags": all there is
 *   POST /sleep                      where a server has only this: all at once
 *   POST /wake_up?tags=weights
 */
#include "endpoint_call.h"

#include "wsync/tool/json.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { N_TAGS = 3, BODY_MAX = 256, WAKE_MAX = 64 };
static const char *const tags[N_TAGS] = { "weights", "kv_cache", "cuda_graph" };

int ws_memory_parse(const char *text, unsigned *out, struct ws_err *err)
{
	unsigned memory = 0;
	for (const char *word = text;; word++) {
		const size_t n = strcspn(word, ",");
		unsigned bit = 0;
		for (unsigned i = 0; i < N_TAGS; i++)
			if (strlen(tags[i]) == n && !strncmp(word, tags[i], n))
				bit = 1u << i;
		if (!bit) {
			char shown[40];
			ws_printable(shown, sizeof shown, word, n);
			return ws_err_set(err, WS_EUSAGE, "'%s' is none of weights, kv_cache and "
			                  "cuda_graph", shown);
		}
		memory |= bit;
		word += n;
		if (!*word)
			break;
	}
	*out = memory;
	return 0;
}

const char *ws_memory_text(unsigned memory)
{
	static const char *const texts[WS_MEMORY_ALL + 1] = {
		"", "weights", "kv_cache", "weights,kv_cache", "cuda_graph", "weights,cuda_graph",
		"kv_cache,cuda_graph", "weights,kv_cache,cuda_graph",
	};
	return texts[memory & WS_MEMORY_ALL];
}

static void write_tags(struct ws_buf *body, unsigned memory)
{
	struct ws_jw w;
	ws_jw_init(&w, body);
	ws_jw_object(&w, NULL);
	if (memory != WS_MEMORY_ALL) { /* a server that knows fewer tags than we do knows "all" */
		ws_jw_array(&w, "tags");
		for (unsigned i = 0; i < N_TAGS; i++)
			if (memory & 1u << i)
				ws_jw_str(&w, NULL, tags[i]);
		ws_jw_end_array(&w);
	}
	ws_jw_end_object(&w);
}

/* The route at one server. wake has room for the one with a query. */
static int choose(const struct ws_endpoint_info *info, bool sleep, unsigned memory,
                  char *wake, const char **path, struct ws_err *err)
{
	if (info->can.memory) {
		*path = sleep ? "/release_memory_occupation" : "/resume_memory_occupation";
		return 0;
	}
	if (!info->can.sleep)
		ws_err_set(err, WS_EREFUSED, "%s has neither /release_memory_occupation nor /sleep",
		           info->url);
	else if (sleep && memory != WS_MEMORY_ALL)
		ws_err_set(err, WS_EREFUSED,
		           "%s sleeps whole or not at all: its /sleep knows no tags", info->url);
	else if (memory != WS_MEMORY_ALL && memory & (memory - 1))
		ws_err_set(err, WS_EREFUSED, "%s wakes one tag at a time, or everything",
		           info->url);
	else {
		const unsigned i = memory == WS_MEMORY_WEIGHTS  ? 0 :
		                   memory == WS_MEMORY_KV_CACHE ? 1 :
		                                                  2;
		snprintf(wake, WAKE_MAX, memory == WS_MEMORY_ALL ? "/wake_up" : "/wake_up?tags=%s",
		         tags[i]);
		*path = sleep ? "/sleep" : wake;
		return 0;
	}
	return ws_err_where(err, NULL, info->url);
}

/* Servers refuse, or die, when asked for what they have not given away. */
static void hint_at_sleep(struct ws_err *err)
{
	if (err && err->code == WS_EREFUSED && err->native && !err->hint[0])
		ws_err_hint(err, "does it sleep? wake what does, and nothing else: wsync-ctl wake "
		                 "--tags weights,kv_cache");
}

static int tell(struct ws_http *http, const struct ws_endpoint_info *infos, const char *const *urls,
                size_t n, bool sleep, unsigned memory, ws_deadline patience, ws_deadline until,
                const struct ws_cancel *cancel, struct ws_endpoint_answer *answers,
                struct ws_err *err)
{
	const char **paths = calloc(n ? n : 1, sizeof *paths);
	char (*wakes)[WAKE_MAX] = calloc(n ? n : 1, sizeof *wakes);
	struct ws_buf body;
	ws_buf_init(&body, BODY_MAX);
	write_tags(&body, memory);
	int rc = paths && wakes ? 0 : ws_oom(err);
	for (size_t i = 0; !rc && i < n; i++)
		rc = choose(&infos[i], sleep, memory, wakes[i], &paths[i], err);
	for (size_t i = 0; rc && i < n; i++)
		answers[i] = (struct ws_endpoint_answer){ .err = err ? *err :
			                                               (struct ws_err)WS_ERR_INIT };
	if (!rc && sleep)
		rc = ws_endpoint_flush(http, urls, n, patience, until, cancel, answers, err);
	if (!rc)
		rc = ws_endpoint_tell(http, urls, n, sleep ? "sleep" : "wake", "POST", paths, false,
		                      &body, until, cancel, answers, err);
	if (!sleep) {
		hint_at_sleep(err);
		for (size_t i = 0; i < n; i++)
			hint_at_sleep(&answers[i].err);
	}
	ws_buf_free(&body);
	free(paths);
	free(wakes);
	return rc;
}

int ws_endpoint_sleep(struct ws_http *http, const struct ws_endpoint_info *infos,
                      const char *const *urls, size_t n, unsigned memory, ws_deadline patience,
                      ws_deadline until, const struct ws_cancel *cancel,
                      struct ws_endpoint_answer *answers, struct ws_err *err)
{
	return tell(http, infos, urls, n, true, memory, patience, until, cancel, answers, err);
}

int ws_endpoint_wake(struct ws_http *http, const struct ws_endpoint_info *infos,
                     const char *const *urls, size_t n, unsigned memory, ws_deadline until,
                     const struct ws_cancel *cancel, struct ws_endpoint_answer *answers,
                     struct ws_err *err)
{
	return tell(http, infos, urls, n, false, memory, until, until, cancel, answers, err);
}

bool ws_waking_failed(const struct ws_waking *w)
{
	return w->answer.err.code != WS_OK &&
	       (!w->answer.sent || ws_endpoint_said_no(&w->answer.err));
}

/* Those of one set of memory, all at once. Arrays with room for n. */
static void wake_alike(struct ws_http *http, struct ws_waking *items, size_t n, unsigned memory,
                       ws_deadline until, const struct ws_cancel *cancel,
                       struct ws_endpoint_info *infos, const char **urls,
                       struct ws_endpoint_answer *answers)
{
	struct ws_err err = WS_ERR_INIT; /* also in the answers */
	size_t k = 0;
	for (size_t i = 0; i < n; i++)
		if (items[i].memory == memory) {
			infos[k] = *items[i].info;
			urls[k++] = items[i].url;
		}
	if (k == 0)
		return;
	(void)ws_endpoint_wake(http, infos, urls, k, memory, until, cancel, answers, &err);
	k = 0;
	for (size_t i = 0; i < n; i++)
		if (items[i].memory == memory)
			items[i].answer = answers[k++];
}

int ws_endpoint_wake_each(struct ws_http *http, struct ws_waking *items, size_t n,
                          ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err)
{
	struct ws_endpoint_info *infos = calloc(n + 1, sizeof *infos);
	const char **urls = calloc(n + 1, sizeof *urls);
	struct ws_endpoint_answer *answers = calloc(n + 1, sizeof *answers);
	struct ws_err none = WS_ERR_INIT;
	const struct ws_err *first = NULL;
	if (!infos || !urls || !answers)
		ws_oom(&none);
	for (size_t i = 0; i < n; i++)
		items[i].answer = (struct ws_endpoint_answer){ .err = none };
	for (unsigned memory = 1; none.code == WS_OK && memory <= WS_MEMORY_ALL; memory++)
		wake_alike(http, items, n, memory, until, cancel, infos, urls, answers);
	for (size_t i = 0; i < n && !first; i++)
		if (items[i].answer.err.code != WS_OK)
			first = &items[i].answer.err;
	if (first && err) {
		*err = *first;
		err->phase[0] = 0; /* the caller's */
	}
	free(infos);
	free(urls);
	free(answers);
	return first ? -1 : 0;
}
