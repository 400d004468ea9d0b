/* SPDX-License-Identifier: Apache-2.0 */
/* serve_memory.c - releases and resumes memory by tag: weights, kv_cache, cuda_graph.
 *
 * Without a memory saver no memory is freed, and the server only records the released tags. With a
 * memory saver, released weights are lost: they come back as zeros, unless there is a backup.
 * Three mistakes kill the scheduler: a release while requests run, a resume of a tag that is not
 * released, and an update of released weights. /sleep and /wake_up, of another server, do the same;
 * /sleep always for all tags. */
#include "serve_call.h"
#include "serve_model.h"

#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const char *const ws_serve_tags[WS_SERVE_TAGS] = { "weights", "kv_cache", "cuda_graph" };
enum { ALL_TAGS = (1u << WS_SERVE_TAGS) - 1 };

/* ---- dropping weights ---- */

/* Frees the pages of private memory, which then reads as zeros. */
static void drop(uint8_t *data, uint64_t n)
{
	const uintptr_t page = (uintptr_t)sysconf(_SC_PAGESIZE);
	const uintptr_t from = ((uintptr_t)data + page - 1) & ~(page - 1);
	const uintptr_t to = ((uintptr_t)data + (uintptr_t)n) & ~(page - 1);
	if (!data || !n)
		return;
	if (from >= to || madvise(data + (from - (uintptr_t)data), to - from, MADV_DONTNEED)) {
		memset(data, 0, (size_t)n);
		return;
	}
	memset(data, 0, (size_t)(from - (uintptr_t)data));
	memset(data + (to - (uintptr_t)data), 0, (size_t)((uintptr_t)data + (uintptr_t)n - to));
}

void ws_serve_drop_weights(struct ws_serve *s)
{
	const struct ws_serve_model *m = s->model;
	for (size_t i = 0; i < s->weights.n; i++) {
		struct ws_serve_weight *w = &s->weights.items[i];
		drop(w->data, w->bytes);
		w->hash = ~w->hash; /* if only hashes are kept: the weights have changed */
	}
	for (unsigned r = 0; m && r < m->tp; r++)
		drop(m->memory[r], m->memory[r] ? m->rank_bytes[r] : 0);
}

/* ---- the routes ---- */

/* Crashes the scheduler; the lenient lineage refuses instead. */
static void fail(struct ws_serve_call *c, const char *why)
{
	if (c->serve->opts.lineage == WS_SERVE_LENIENT)
		ws_serve_answer(c, false, "%s", why);
	else
		ws_serve_crash(c, "%s", why);
}

bool ws_serve_has_weights(struct ws_serve_call *c)
{
	struct ws_serve *s = c->serve;
	pthread_mutex_lock(&s->lock);
	const bool gone = s->opts.memory_saver && s->released & 1u;
	pthread_mutex_unlock(&s->lock);
	if (gone)
		fail(c, "CUDA error: an illegal memory access was encountered (the weights are "
		        "released)");
	return !gone;
}

/* Servers accept unknown tags and ignore them. */
static unsigned tag_of(const char *name)
{
	return 1u << ws_serve_find_word(ws_serve_tags, WS_SERVE_TAGS, name) & ALL_TAGS;
}

static int decode_tags(const struct ws_json *body, unsigned *out, struct ws_err *err)
{
	const struct ws_json *list = ws_json_get(body, "tags");
	*out = 0;
	if (list && ws_json_type(list) != WS_JSON_NULL && ws_json_type(list) != WS_JSON_ARRAY)
		return ws_err_set(err, WS_EUSAGE, "body.tags: Input should be a valid list");
	const bool some = list && ws_json_type(list) == WS_JSON_ARRAY && ws_json_count(list);
	for (const struct ws_json *t = some ? ws_json_first(list) : NULL; t; t = ws_json_next(t)) {
		if (!ws_json_string(t))
			return ws_err_set(err, WS_EUSAGE,
			                  "body.tags: Input should be a valid string");
		*out |= tag_of(ws_json_string(t));
	}
	if (!some)
		*out = ALL_TAGS;
	return 0;
}

/* In the scheduler. False: it failed and has answered, or the endpoint has crashed. */
static bool release(struct ws_serve_call *c, unsigned which)
{
	struct ws_serve *s = c->serve;
	if (!ws_serve_is_idle(s)) {
		fail(c, "AssertionError: release_memory_occupation should be called only when "
		        "server is idle.");
		return false;
	}
	if (which & 1u && s->opts.memory_saver && !s->opts.cpu_backup)
		ws_serve_drop_weights(s);
	ws_serve_mark_dirty(s);
	pthread_mutex_lock(&s->lock);
	s->released |= which;
	pthread_mutex_unlock(&s->lock);
	return true;
}

static bool resume(struct ws_serve_call *c, unsigned which)
{
	struct ws_serve *s = c->serve;
	pthread_mutex_lock(&s->lock);
	const unsigned missing = which & ~s->released;
	if (!missing)
		s->released &= ~which;
	pthread_mutex_unlock(&s->lock);
	for (unsigned i = 0; i < WS_SERVE_TAGS; i++)
		if (missing & 1u << i) {
			char why[40] = "KeyError: '";
			strcat(strcat(why, ws_serve_tags[i]), "'");
			fail(c, why);
			return false;
		}
	return true;
}

static void run(struct ws_serve_call *c, unsigned which,
                bool (*work)(struct ws_serve_call *c, unsigned which))
{
	if (!ws_serve_enter(c, false))
		return;
	if (work(c, which))
		ws_buf_puts(&c->rp->body, "null");
	ws_serve_release(c->serve);
}

static void run_with_tags(struct ws_serve_call *c,
                          bool (*work)(struct ws_serve_call *c, unsigned which))
{
	unsigned which = 0;
	if (decode_tags(c->body, &which, &c->invalid) == 0)
		run(c, which, work);
}

void ws_serve_route_release(struct ws_serve_call *c)
{
	run_with_tags(c, release);
}

void ws_serve_route_resume(struct ws_serve_call *c)
{
	run_with_tags(c, resume);
}

void ws_serve_route_sleep(struct ws_serve_call *c)
{
	run(c, ALL_TAGS, release);
}

/* Resumes only released tags: to wake twice is not an error here. */
void ws_serve_route_wake(struct ws_serve_call *c)
{
	const char *text = ws_serve_query(c, "tags");
	run(c, (text ? tag_of(text) : ALL_TAGS) & c->serve->released, resume);
}
