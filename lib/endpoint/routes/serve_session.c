/* SPDX-License-Identifier: Apache-2.0 */
/* serve_session.c - routes around updates on some servers: sessions, and slime's post-processing.
 *
 * Both exist for weights that are packed after loading: the first call makes them loadable again,
 * and the last call packs them again. This endpoint packs nothing, but requires the same order and
 * refuses the same calls. The texts of sessions are from sglang 0.5.23, whose updates from disk
 * need no session. */
#include "serve_call.h"

static bool set_session(struct ws_serve *s, bool open)
{
	pthread_mutex_lock(&s->lock);
	const bool changed = s->session != open;
	s->session = open;
	pthread_mutex_unlock(&s->lock);
	return changed;
}

bool ws_serve_may_update(struct ws_serve_call *c)
{
	struct ws_serve *s = c->serve;
	pthread_mutex_lock(&s->lock);
	const bool open = s->session;
	pthread_mutex_unlock(&s->lock);
	if (open || s->opts.lineage != WS_SERVE_SESSION)
		return true;
	ws_serve_answer(c, false,
	                "%s must run between begin_weight_update() and end_weight_update()",
	                c->rq->path + 1);
	return false;
}

void ws_serve_route_begin(struct ws_serve_call *c)
{
	static const char *const selectors[] = { "target", "draft", "all" };
	const char *selector = "all";
	if (ws_serve_field_str(c->body, "selector", false, &selector, &c->invalid))
		return;
	if (ws_serve_find_word(selectors, 3, selector) == 3) {
		ws_err_set(&c->invalid, WS_EUSAGE,
		           "body.selector: Input should be 'target', 'draft' or 'all'");
	} else if (ws_serve_enter(c, false)) {
		if (set_session(c->serve, true))
			ws_serve_answer(c, true, "Success");
		else
			ws_serve_answer(c, false, "a weight-update session is already open; call "
			                "end_weight_update() first");
		ws_serve_release(c->serve);
	}
}

void ws_serve_route_end(struct ws_serve_call *c)
{
	if (!ws_serve_enter(c, false))
		return;
	if (set_session(c->serve, false))
		ws_serve_answer(c, true, "Success");
	else
		ws_serve_answer(c, false,
		                "no weight-update session is open; call begin_weight_update() "
		                "first");
	ws_serve_release(c->serve);
}

void ws_serve_route_post_process(struct ws_serve_call *c)
{
	bool restore = false, process = false;
	if (ws_serve_field_bool(c->body, "restore_weights_before_load", &restore, &c->invalid) ||
	    ws_serve_field_bool(c->body, "post_process_quantization", &process, &c->invalid) ||
	    !ws_serve_enter(c, false))
		return;
	ws_serve_answer(c, true, "Success");
	ws_serve_release(c->serve);
}
