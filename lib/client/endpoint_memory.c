/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_memory.c - sleep and wake: servers release memory and take it back.
 *
 *   POST /release_memory_occupation  {"tags": ["weights", "kv_cache", "cuda_graph"]}
 *   POST /resume_memory_occupation   the same; without "tags": all memory
 *   POST /sleep                      for servers with only this route: releases all memory
 *   POST /wake_up?tags=weights
 */
#include "endpoint_call.h"
#include "endpoint_words.h"

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

unsigned ws_endpoint_memory(const struct ws_endpoint_info *info)
{
	return info->can.memory ? WS_MEMORY_ALL : WS_MEMORY_WEIGHTS | WS_MEMORY_KV_CACHE;
}

/* /sleep without a level is vLLM's level 1. */
bool ws_endpoint_keeps_weights(const struct ws_endpoint_info *info)
{
	return info->weights_copy || !info->can.memory;
}

static void write_tags(struct ws_buf *body, unsigned memory)
{
	struct ws_jw w;
	ws_jw_init(&w, body);
	ws_jw_object(&w, NULL);
	if (memory != WS_MEMORY_ALL) { /* no "tags": all, also if a server has fewer tags */
		ws_jw_array(&w, "tags");
		for (unsigned i = 0; i < N_TAGS; i++)
			if (memory & 1u << i)
				ws_jw_str(&w, NULL, tags[i]);
		ws_jw_end_array(&w);
	}
	ws_jw_end_object(&w);
}

/* Chooses the route for one server, which has some of this memory. wake is room for a route with a
 * query. */
static int choose(const struct ws_endpoint_info *info, bool sleep, unsigned memory,
                  char *wake, const char **path, struct ws_err *err)
{
	if (info->can.memory) {
		*path = sleep ? "/release_memory_occupation" : "/resume_memory_occupation";
		return 0;
	}
	const unsigned has = ws_endpoint_memory(info), part = memory & has;
	if (!info->can.sleep)
		ws_err_set(err, WS_EREFUSED, "%s has neither /release_memory_occupation nor /sleep",
		           info->url);
	else if (sleep && part != has)
		ws_err_set(err, WS_EREFUSED,
		           "%s can only sleep completely: its /sleep has no tags", info->url);
	else {
		if (part == has)
			snprintf(wake, WAKE_MAX, "/wake_up");
		else
			snprintf(wake, WAKE_MAX, "/wake_up?tags=%s", ws_memory_text(part));
		*path = sleep ? "/sleep" : wake;
		return 0;
	}
	return ws_err_where(err, NULL, info->url);
}

/* Servers refuse, or die, if they are asked to take back memory that they have not released. */
static void hint_at_sleep(struct ws_err *err)
{
	if (err && err->code == WS_EREFUSED && err->native && !err->hint[0])
		ws_err_hint(err, "has it released this? wake only released memory: wsync-ctl wake "
		                 "--tags weights,kv_cache");
}

struct request {
	const char **paths;
	char (*wakes)[WAKE_MAX];
	struct ws_buf body;
	struct ws_lifecycle what;
};

static void close_request(struct request *r)
{
	ws_buf_free(&r->body);
	free(r->paths);
	free(r->wakes);
}

/* Chooses the route for each server and writes the body. Call close_request also after a
 * failure. */
static int open_request(struct request *r, const struct ws_call *to,
                        const struct ws_endpoint_info *infos, bool sleep, unsigned memory,
                        struct ws_err *err)
{
	r->paths = calloc(to->n + 1, sizeof *r->paths);
	r->wakes = calloc(to->n + 1, sizeof *r->wakes);
	ws_buf_init(&r->body, BODY_MAX);
	write_tags(&r->body, memory);
	r->what = (struct ws_lifecycle){ .name = sleep ? "sleep" : "wake",
		                         .method = "POST",
		                         .paths = r->paths,
		                         .body = &r->body };
	int rc = r->paths && r->wakes ? 0 : ws_oom(err);
	for (size_t i = 0; !rc && i < to->n; i++)
		rc = choose(&infos[i], sleep, memory, r->wakes[i], &r->paths[i], err);
	return rc;
}

static int refuse_all(const struct ws_call *to, const struct ws_err *why,
                      struct ws_endpoint_answer *answers, struct ws_err *err)
{
	for (size_t i = 0; i < to->n; i++)
		answers[i] = (struct ws_endpoint_answer){ .err = *why };
	if (err)
		*err = *why;
	return -1;
}

/* vLLM up to 0.25 does not confirm the flush; it drops its cache when it goes to sleep. */
static int flush_first(const struct ws_call *to, ws_deadline patience,
                       struct ws_endpoint_answer *answers, struct ws_err *err)
{
	const int rc = ws_endpoint_flush(to, patience, answers, err);
	for (size_t i = 0; rc && i < to->n; i++)
		if (answers[i].err.code && !ws_endpoint_is_silent_reset(&answers[i].err))
			return -1;
	if (rc && err)
		*err = (struct ws_err)WS_ERR_INIT;
	return 0;
}

int ws_endpoint_sleep(const struct ws_call *to, const struct ws_endpoint_info *infos,
                      unsigned memory, ws_deadline patience, struct ws_endpoint_answer *answers,
                      struct ws_err *err)
{
	struct request r;
	struct ws_err why = WS_ERR_INIT;
	int rc = open_request(&r, to, infos, true, memory, &why) ?
	                 refuse_all(to, &why, answers, err) :
	                 flush_first(to, patience, answers, err);
	for (size_t i = 0; rc && i < to->n; i++)
		answers[i].sent = false; /* the request to sleep */
	if (!rc)
		rc = ws_endpoint_tell(to, &r.what, answers, err);
	close_request(&r);
	return rc;
}

static int wake_all(const struct ws_call *to, const struct ws_endpoint_info *infos, unsigned memory,
                    struct ws_endpoint_answer *answers, struct ws_err *err)
{
	struct request r;
	struct ws_err why = WS_ERR_INIT;
	const int rc = open_request(&r, to, infos, false, memory, &why) ?
	                       refuse_all(to, &why, answers, err) :
	                       ws_endpoint_tell(to, &r.what, answers, err);
	hint_at_sleep(err);
	for (size_t i = 0; i < to->n; i++)
		hint_at_sleep(&answers[i].err);
	close_request(&r);
	return rc;
}

/* Room for one request to n endpoints. */
struct waking {
	struct ws_endpoint_info *infos;
	const char **urls;
	struct ws_endpoint_answer *answers;
};

static unsigned memory_of(const struct ws_waking *w)
{
	return w->memory & ws_endpoint_memory(w->info);
}

/* Wakes all items that released exactly this memory, at once. */
static void wake_alike(struct ws_call to, struct ws_waking *items, size_t n, unsigned memory,
                       struct waking *w)
{
	struct ws_err err = WS_ERR_INIT; /* each answer has it too */
	to.urls = w->urls;
	to.n = 0;
	for (size_t i = 0; i < n; i++)
		if (memory_of(&items[i]) == memory) {
			w->infos[to.n] = *items[i].info;
			w->urls[to.n++] = items[i].url;
		}
	if (to.n == 0)
		return;
	(void)wake_all(&to, w->infos, memory, w->answers, &err);
	for (size_t i = 0, k = 0; i < n; i++)
		if (memory_of(&items[i]) == memory)
			items[i].answer = w->answers[k++];
}

int ws_endpoint_wake_each(struct ws_http *http, struct ws_waking *items, size_t n,
                          ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err)
{
	const struct ws_call to = { .http = http, .until = until, .cancel = cancel };
	struct waking w = { .infos = calloc(n + 1, sizeof *w.infos),
		            .urls = calloc(n + 1, sizeof *w.urls),
		            .answers = calloc(n + 1, sizeof *w.answers) };
	struct ws_err none = WS_ERR_INIT;
	const struct ws_err *first = NULL;
	if (!w.infos || !w.urls || !w.answers)
		ws_oom(&none);
	for (size_t i = 0; i < n; i++)
		items[i].answer = (struct ws_endpoint_answer){ .err = none };
	for (unsigned memory = 1; none.code == WS_OK && memory <= WS_MEMORY_ALL; memory++)
		wake_alike(to, items, n, memory, &w);
	for (size_t i = 0; i < n && !first; i++)
		if (items[i].answer.err.code != WS_OK)
			first = &items[i].answer.err;
	if (first && err) {
		*err = *first;
		err->phase[0] = 0; /* the caller sets its own phase */
	}
	free(w.infos);
	free(w.urls);
	free(w.answers);
	return first ? -1 : 0;
}

int ws_endpoint_wake(const struct ws_call *to, const struct ws_endpoint_info *infos,
                     const unsigned *memory, struct ws_endpoint_answer *answers,
                     struct ws_err *err)
{
	struct ws_waking *items = calloc(to->n + 1, sizeof *items);
	struct ws_err why = WS_ERR_INIT;
	if (!items) {
		ws_oom(&why);
		return refuse_all(to, &why, answers, err);
	}
	for (size_t i = 0; i < to->n; i++)
		items[i] = (struct ws_waking){ .url = to->urls[i], .info = &infos[i],
			                       .memory = memory[i] };
	(void)ws_endpoint_wake_each(to->http, items, to->n, to->until, to->cancel, &why);
	for (size_t i = 0; i < to->n; i++)
		answers[i] = items[i].answer;
	free(items);
	return ws_endpoint_sum_up("wake", to->n, answers, err);
}
