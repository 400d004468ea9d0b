/* SPDX-License-Identifier: Apache-2.0 */
/* push_require.c - {require}: what must be established of each server before it is paused, and
 * before the push is a success. */
#include "push_state.h"

#include <string.h>

static int refuse(const struct ws_push *p, size_t i, enum ws_code code, const char *what,
                  struct ws_err *err)
{
	ws_err_set(err, code, "%s: %s", p->to.endpoints[i].url, what);
	return ws_err_where(err, NULL, p->to.endpoints[i].url);
}

static int check_format(const struct ws_push *p, size_t i, struct ws_err *err)
{
	const struct push_format *f = &p->to.endpoints[i].format;
	if (f->verdict && strcmp(f->verdict, "right") == 0)
		return 0;
	return refuse(p, i, WS_EREFUSED,
	              "the format of its weights is not known ({require} format)", err);
}

int push_require_before(const struct ws_push *p, struct ws_err *err)
{
	const struct ws_name_check_run *names = &p->checks.names;
	if (p->opts.require & WS_REQUIRE_NAMES && p->opts.n_endpoints && !names->checked) {
		ws_err_set(err, WS_EREFUSED,
		           "the names were not compared with anything of the servers "
		           "({require} names)%s%s", *names->why ? ": " : "", names->why);
		return ws_err_hint(err, "{config} DIR names the servers' config.json");
	}
	for (size_t i = 0; i < p->opts.n_endpoints; i++)
		if (p->opts.require & WS_REQUIRE_FORMAT && check_format(p, i, err))
			return -1;
	return 0;
}

/* Of these kinds every server has one, or is asked. */
static int check_caches(const struct ws_push *p, size_t i, struct ws_err *err)
{
	const struct push_endpoint *e = &p->to.endpoints[i];
	bool untold = false;
	for (int k = 0; k < WS_N_CACHES; k++) {
		if (e->caches.of[k].fact == WS_CACHE_OLD || e->unflushed)
			return refuse(p, i, WS_EREFUSED, "it has the new weights, and a cache that "
			              "may hold results of the old ones ({require} caches)", err);
		untold |= e->caches.of[k].fact == WS_CACHE_UNTOLD;
	}
	return untold ? refuse(p, i, WS_EUNKNOWN,
	                       "it has the new weights, and does not tell whether all of its "
	                       "caches are clear ({require} caches)", err) :
	                0;
}

int push_require_after(const struct ws_push *p, struct ws_err *err)
{
	for (size_t i = 0; i < p->opts.n_endpoints; i++) {
		const struct push_endpoint *e = &p->to.endpoints[i];
		if (p->opts.require & WS_REQUIRE_BYTES && e->not_covered)
			return refuse(p, i, WS_EREFUSED,
			              "parameters of the server were not sent, so their bytes are "
			              "not proven ({require} bytes)", err);
		if (p->opts.require & WS_REQUIRE_CACHES && check_caches(p, i, err))
			return -1;
	}
	return 0;
}
