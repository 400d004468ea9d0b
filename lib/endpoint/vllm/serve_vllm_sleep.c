/* SPDX-License-Identifier: Apache-2.0 */
/* serve_vllm_sleep.c - /sleep pauses the engine and gives memory away, /wake_up takes it back.
 *
 * Level 0 only pauses. Level 1 keeps the weights in host memory, level 2 loses them. The engine
 * resumes when nothing sleeps any more, up to 0.20 at every /wake_up. An update of weights that are
 * gone crashes the engine. /metrics shows the state, and nothing else here. */
#include "serve_vllm.h"

#include "serve_lineage.h"

#include <stdlib.h>
#include <string.h>

enum { WEIGHTS = 1, KV_CACHE = 2 };

/* False, and answered: there is no such level. */
static bool read_level(struct ws_serve_call *c, unsigned *level)
{
	const char *text = ws_serve_query(c, "level");
	*level = text ? (unsigned)text[0] - '0' : 1;
	if (*level <= 2 && (!text || !text[1]))
		return true;
	ws_serve_vllm_answer_invalid(c, "query.level: Input should be a valid integer from 0 to 2");
	return false;
}

void ws_serve_route_vllm_sleep(struct ws_serve_call *c)
{
	struct ws_serve *s = c->serve;
	const char *mode = ws_serve_query(c, "mode");
	const char *const *modes = ws_serve_pause_names_of(s);
	const size_t i = mode ? ws_serve_find_word(modes, 3, mode) : WS_PAUSE_ABORT;
	unsigned level = 1;
	struct ws_jw jw;
	if (i == 3) {
		ws_serve_vllm_answer_invalid(c, "query.mode: Input should be 'abort', 'wait' or "
		                                "'keep'");
		return;
	}
	if (!read_level(c, &level) || !ws_serve_vllm_enter(c, false))
		return;
	pthread_mutex_lock(&s->lock);
	s->paused = true;
	s->mode = (enum ws_pause_mode)i;
	s->running = s->waiting = 0;
	s->released |= level ? WEIGHTS | KV_CACHE : 0;
	if (level)
		ws_serve_prompts_forget(s);
	pthread_mutex_unlock(&s->lock);
	if (level == 2 && s->opts.memory_saver) {
		ws_serve_drop_weights(s);
		ws_serve_mark_dirty(s);
	}
	ws_serve_release(s);
	if (!ws_serve_vllm_has(c, WS_IN_VLLM_0_33)) {
		c->rp->type = "";
		return;
	}
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_str(&jw, "status", "sleeping");
	ws_jw_uint(&jw, "level", level);
	ws_jw_end_object(&jw);
}

/* All values of tags in the query; 0: there are none. */
static unsigned read_tags(const struct ws_serve_call *c)
{
	unsigned tags = 0;
	for (unsigned i = 0; i < WS_SERVE_TAGS && c->rq->query_has; i++)
		if (c->rq->query_has(c->rq->query_ctx, "tags", ws_serve_tags[i]))
			tags |= 1u << i;
	return tags;
}

static void write_wake(struct ws_serve_call *c, bool awake, bool all, unsigned tags)
{
	struct ws_jw jw;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_str(&jw, "status", awake ? "awake" : "sleeping");
	if (all)
		ws_jw_null(&jw, "tags");
	else
		ws_jw_array(&jw, "tags");
	for (unsigned i = 0; i < WS_SERVE_TAGS && !all; i++)
		if (tags & 1u << i)
			ws_jw_str(&jw, NULL, ws_serve_tags[i]);
	if (!all)
		ws_jw_end_array(&jw);
	ws_jw_end_object(&jw);
}

/* The tag "scheduling" names nothing but the pause. */
void ws_serve_route_vllm_wake(struct ws_serve_call *c)
{
	struct ws_serve *s = c->serve;
	const unsigned tags = read_tags(c);
	const bool all = !ws_serve_query(c, "tags");
	if (!ws_serve_vllm_enter(c, false))
		return;
	pthread_mutex_lock(&s->lock);
	s->released &= all ? 0 : ~tags;
	const bool awake = !s->released;
	if (awake || ws_serve_vllm_has(c, WS_IN_VLLM_0_20)) {
		s->paused = s->rejects = false;
		s->running = s->opts.busy;
	}
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	ws_serve_release(s);
	if (ws_serve_vllm_has(c, WS_IN_VLLM_0_33))
		write_wake(c, awake, all, tags);
	else
		c->rp->type = "";
}

/* The level cannot be told from the tags: both of them are released either way. */
void ws_serve_route_vllm_metrics(struct ws_serve_call *c)
{
	struct ws_serve *s = c->serve;
	pthread_mutex_lock(&s->lock);
	const bool asleep = s->released;
	pthread_mutex_unlock(&s->lock);
	c->rp->type = "text/plain";
	ws_buf_printf(&c->rp->body,
	              "# TYPE vllm:engine_sleep_state gauge\n"
	              "vllm:engine_sleep_state{engine=\"0\",sleep_state=\"awake\"} %d.0\n"
	              "vllm:engine_sleep_state{engine=\"0\",sleep_state="
	              "\"weights_offloaded\"} %d.0\n",
	              !asleep, asleep);
}
