/* SPDX-License-Identifier: Apache-2.0 */
/* push_require.c - {require}: what must be established of each server before it is paused, and
 * before the push is a success. */
#include "push_state.h"

static int refuse(const struct ws_push *p, size_t i, enum ws_code code, const char *what,
                  struct ws_err *err)
{
	ws_err_set(err, code, "%s: %s", p->to.endpoints[i].url, what);
	return ws_err_where(err, NULL, p->to.endpoints[i].url);
}

static bool lacks(const struct ws_push *p, size_t i, unsigned what)
{
	return p->opts.require & what & ~push_established(p, i);
}

int push_require_before(const struct ws_push *p, struct ws_err *err)
{
	const struct ws_name_check_run *names = &p->checks.names;
	if (p->opts.require & WS_REQUIRE_NAMES && p->opts.n_endpoints && !names->checked) {
		ws_err_set(err, WS_EREFUSED,
		           "the names were not compared with anything of the servers "
		           "({require} names)%s%s", *names->why ? ": " : "", names->why);
		return ws_err_hint(err, "{like} DIR names a checkpoint that the servers can be "
		                   "started from, {config} DIR their config.json");
	}
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (lacks(p, i, WS_REQUIRE_FORMAT))
			return refuse(p, i, WS_EREFUSED, "the format of its weights is not known "
			              "({require} format)", err);
	return 0;
}

static int refuse_caches(const struct ws_push *p, size_t i, struct ws_err *err)
{
	const struct push_endpoint *e = &p->to.endpoints[i];
	bool old = e->unflushed;
	for (int k = 0; k < WS_N_CACHES; k++)
		old |= e->caches.of[k].fact == WS_CACHE_OLD;
	return old ? refuse(p, i, WS_EREFUSED, "it has the new weights, and a cache that may hold "
	                    "results of the old ones ({require} caches)", err) :
	             refuse(p, i, WS_EUNKNOWN, "it has the new weights, and does not tell whether "
	                    "all of its caches are clear ({require} caches)", err);
}

int push_require_after(const struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		if (lacks(p, i, WS_REQUIRE_BYTES))
			return refuse(p, i, WS_EREFUSED,
			              p->to.endpoints[i].not_covered ?
			                      "parameters of the server were not sent, so their "
			                      "bytes are not proven ({require} bytes)" :
			                      "its bytes were not compared ({require} bytes)",
			              err);
		if (lacks(p, i, WS_REQUIRE_CACHES))
			return refuse_caches(p, i, err);
	}
	return 0;
}
