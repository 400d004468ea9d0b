/* SPDX-License-Identifier: Apache-2.0 */
/* lineage_probe.c - for servers that publish no list of routes: sends one request per route.
 *
 * The first request is for a route that no server has. Some proxies accept every OPTIONS request
 * for the sake of browsers. A server that accepts the first request is not queried further. */
#include "lineage_probe.h"

#include "endpoint_call.h"

#include <stdlib.h>

static const char nowhere[] = "/wsync_asks_for_what_is_not_there";

struct asking {
	const struct ws_call *to;
	struct ws_endpoint_call *calls;
	bool *on;                        /* the endpoint is still queried */
	enum ws_presence *found;         /* to->n rows of WS_LINEAGE_PATHS_MAX */
};

static int ask_all(struct asking *a, const char *path, struct ws_err *err)
{
	for (size_t i = 0; i < a->to->n; i++)
		if (a->on[i] && ws_endpoint_prepare(&a->calls[i], a->to->urls[i], "OPTIONS", path,
		                                    NULL, a->to->until, err))
			return -1;
	return ws_endpoint_run(a->to->http, a->calls, a->to->n, a->to->cancel, err);
}

static enum ws_presence read_status(long status)
{
	if (status == 404)
		return WS_ABSENT;
	return status == 405 || (status >= 200 && status < 300) ? WS_PRESENT : WS_NOT_ASKED;
}

static int ask_everything(struct asking *a, struct ws_err *err)
{
	if (ask_all(a, nowhere, err))
		return -1;
	for (size_t i = 0; i < a->to->n; i++)
		a->on[i] = a->on[i] && a->calls[i].http.status == 404;
	for (size_t r = 0; r < ws_lineage_path_count(); r++) {
		if (ask_all(a, ws_lineage_path(r), err))
			return -1;
		for (size_t i = 0; i < a->to->n; i++) {
			if (!a->on[i])
				continue;
			a->found[i * WS_LINEAGE_PATHS_MAX + r] =
				read_status(a->calls[i].http.status);
			a->on[i] = !a->calls[i].http.err.code;
		}
	}
	return 0;
}

int ws_lineage_ask(const struct ws_call *to, const bool *wanted, struct ws_lineage_signs *signs,
                   struct ws_err *err)
{
	struct asking a = { .to = to };
	const size_t n = to->n, most = n ? n : 1;
	a.calls = calloc(most, sizeof *a.calls);
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
	for (size_t i = 0; a.calls && i < n; i++)
		ws_endpoint_call_free(&a.calls[i]);
	free(a.calls);
	free(a.on);
	free(a.found);
	return rc;
}
