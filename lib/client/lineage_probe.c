/* SPDX-License-Identifier: Apache-2.0 */
/* lineage_probe.c - for servers that publish no list of routes: sends one request per route.
 *
 * One request is for a route that no server has: some proxies accept every OPTIONS request for the
 * sake of browsers, and then nothing is known of the others. The requests go out at once: at most
 * 512, or one to each endpoint. */
#include "lineage_probe.h"

#include "endpoint_call.h"

#include <stdlib.h>

static const char nowhere[] = "/wsync_asks_for_what_is_not_there";

enum { AT_ONCE = 512 }; /* requests to all endpoints together */

struct asking {
	const struct ws_call *to;
	struct ws_endpoint_call *calls;  /* to->n for each route that is asked for at once */
	size_t at_once;                  /* routes */
	bool *on;                        /* the endpoint is still queried */
	enum ws_presence *found;         /* to->n rows of WS_LINEAGE_PATHS_MAX */
};

/* Asks all endpoints for n routes. */
static int ask_all(struct asking *a, const char *const *paths, size_t n, struct ws_err *err)
{
	for (size_t r = 0; r < n; r++)
		for (size_t i = 0; i < a->to->n; i++)
			if (a->on[i] && ws_endpoint_prepare(&a->calls[r * a->to->n + i],
			                                    a->to->urls[i], "OPTIONS", paths[r],
			                                    NULL, a->to->until, err))
				return -1;
	return ws_endpoint_run(a->to->http, a->calls, n * a->to->n, a->to->cancel, err);
}

static enum ws_presence read_status(long status)
{
	if (status == 404)
		return WS_ABSENT;
	return status == 405 || (status >= 200 && status < 300) ? WS_PRESENT : WS_NOT_ASKED;
}

static const char *path_of(size_t k)
{
	return k ? ws_lineage_path(k - 1) : nowhere;
}

/* Takes the answers for n paths. An endpoint that does not answer is not queried further. */
static void take_found(struct asking *a, size_t first, size_t n)
{
	for (size_t i = 0; i < a->to->n; i++) {
		bool answers = a->on[i];
		for (size_t r = 0; a->on[i] && r < n; r++) {
			const struct ws_http_call *call = &a->calls[r * a->to->n + i].http;
			answers = answers && !call->err.code;
			if (first + r == 0)
				a->on[i] = answers = call->status == 404;
			else
				a->found[i * WS_LINEAGE_PATHS_MAX + first + r - 1] =
					read_status(call->status);
		}
		a->on[i] = answers;
	}
}

static int ask_everything(struct asking *a, struct ws_err *err)
{
	const char *paths[WS_LINEAGE_PATHS_MAX + 1];
	const size_t all = ws_lineage_path_count() + 1;
	for (size_t k = 0; k < all; k += a->at_once) {
		const size_t n = all - k < a->at_once ? all - k : a->at_once;
		for (size_t r = 0; r < n; r++)
			paths[r] = path_of(k + r);
		if (ask_all(a, paths, n, err))
			return -1;
		take_found(a, k, n);
	}
	return 0;
}

int ws_lineage_ask(const struct ws_call *to, const bool *wanted, struct ws_lineage_signs *signs,
                   struct ws_err *err)
{
	struct asking a = { .to = to };
	const size_t n = to->n, most = n ? n : 1;
	a.at_once = AT_ONCE / most < 1 ? 1 : AT_ONCE / most;
	if (a.at_once > ws_lineage_path_count() + 1)
		a.at_once = ws_lineage_path_count() + 1;
	a.calls = calloc(most, a.at_once * sizeof *a.calls);
	a.on = calloc(most, sizeof *a.on);
	a.found = calloc(most, WS_LINEAGE_PATHS_MAX * sizeof *a.found);
	int rc = a.calls && a.on && a.found ? 0 : ws_oom(err);
	size_t n_on = 0;
	for (size_t i = 0; !rc && i < n; i++)
		n_on += a.on[i] = wanted[i];
	if (!rc && n_on)
		rc = ask_everything(&a, err);
	for (size_t i = 0; !rc && i < n; i++)
		ws_lineage_sum_up(a.found + i * WS_LINEAGE_PATHS_MAX, &signs[i]);
	for (size_t i = 0; a.calls && i < n * a.at_once; i++)
		ws_endpoint_call_free(&a.calls[i]);
	free(a.calls);
	free(a.on);
	free(a.found);
	return rc;
}
