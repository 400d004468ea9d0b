/* SPDX-License-Identifier: Apache-2.0 */
/* push_prove.c - does a prompt still find what was computed with the old weights?
 *
 * A prompt is sent twice before the push, so that it is in the cache if there is one, and once after it,
 * when the endpoints have resumed. Servers say how many of its tokens they took from the cache. After a
 * flushed push that is none; a push without a flush only reports it. */
#include "push_state.h"

#include <inttypes.h>
#include <stdlib.h>

/* How many tokens, at each endpoint, into what each has for it. */
static int ask(struct ws_push *p, int64_t *tokens, struct ws_err *err)
{
	const size_t n = push_select(p, NULL);
	const ws_deadline until = ws_deadline_min(p->until, ws_deadline_in(p->opts.bucket_ns));
	return ws_endpoint_cached_tokens(p->http, p->urls, n, p->opts.prove_flush, until, p->opts.cancel,
	                                 tokens, p->errs, err);
}

int push_prove_before(struct ws_push *p, struct ws_err *err)
{
	if (!p->opts.prove_flush)
		return 0;
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		if (p->infos[i].can.generate)
			continue;
		ws_err_set(err, WS_EREFUSED, "%s has no /generate, so nothing can be proved of its cache",
		           p->endpoints[i].url);
		ws_err_hint(err, "leave --prove-flush out");
		return ws_err_where(err, NULL, p->endpoints[i].url);
	}
	free(p->cached);
	p->cached = calloc(p->opts.n_endpoints, 2 * sizeof *p->cached);
	if (!p->cached)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	return ask(p, p->cached, err) || ask(p, p->cached, err) ? -1 : 0;
}

int push_prove_after(struct ws_push *p, struct ws_err *err)
{
	const size_t n = p->opts.n_endpoints;
	const bool flushed = push_flush_when(p) != WS_FLUSH_NEVER;
	int rc = 0;
	if (!p->opts.prove_flush || !p->cached)
		return 0;
	if (ask(p, p->cached + n, err))
		return -1;
	for (size_t i = 0; i < n; i++) {
		struct ws_ev_endpoint_result *r = &p->results[i];
		r->proved = true;
		r->cached_before = p->cached[i];
		r->cached_after = p->cached[n + i];
		if (!r->cached_before)
			push_warn(p, r->url, "had nothing of the prompt in its cache before the push either, "
			          "so --prove-flush proves nothing: use a longer prompt");
		if (!flushed || !r->cached_after || rc)
			continue;
		rc = ws_err_set(err, WS_EMISMATCH, "%s: %" PRId64 " tokens of the prompt came from the cache "
		                "after the push: they were computed with the old weights", r->url,
		                r->cached_after);
		ws_err_hint(err, "drop the cache by hand: wsync-ctl pause, flush and resume");
		ws_err_where(err, NULL, r->url);
	}
	return rc;
}
