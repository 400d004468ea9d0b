/* SPDX-License-Identifier: Apache-2.0 */
/* watchdog_probe.c - checks whether awaited endpoints are alive, while the caller cleans up. Each
 * gets two requests that change nothing: /model_info, which the HTTP side answers by itself, and
 * /health, for which some servers ask their scheduler. */
#include "watchdog_state.h"

#include "hang_core.h"

#include <stdio.h>
#include <stdlib.h>

static const int64_t PROBE_NS = WS_NS_PER_S;
enum { PROBED_AT_MOST = 64, PROBES = 2 };
static const char *const paths[PROBES] = { "/model_info", "/health" };

struct watchdog_probes {
	size_t n;
	size_t endpoint[PROBED_AT_MOST];
	struct ws_endpoint_call calls[PROBED_AT_MOST][PROBES];
	ws_deadline until;
};

static void start_probe(struct ws_watchdog *x, struct watchdog_probes *p, size_t i)
{
	const size_t at = p->n++;
	p->endpoint[at] = i;
	for (size_t k = 0; k < PROBES; k++) {
		p->calls[at][k].http.user = x;
		(void)ws_endpoint_start(x->opts.http, &p->calls[at][k], x->opts.urls[i], "GET",
		                        paths[k], NULL, p->until, NULL);
	}
}

void watchdog_probe_begin(struct ws_watchdog *x, const struct ws_hang *h)
{
	struct watchdog_probes *p = calloc(1, sizeof *p);
	if (!p)
		return; /* out of memory: the report has no probe results */
	p->until = ws_deadline_in(PROBE_NS);
	for (size_t i = 0; i < h->n_endpoints && p->n < PROBED_AT_MOST; i++)
		if (hang_is_awaited(h, i))
			start_probe(x, p, i);
	x->probes = p;
}

static bool all_done(const struct watchdog_probes *p)
{
	for (size_t i = 0; i < p->n; i++)
		for (size_t k = 0; k < PROBES; k++)
			if (!p->calls[i][k].http.done)
				return false;
	return true;
}

static enum ws_hang_probe outcome(const struct ws_http_call *call)
{
	if (call->done && call->err.code == WS_OK)
		return WS_HANG_ANSWERS;
	if (call->stage != WS_HTTP_CONNECTING)
		return WS_HANG_SILENT;
	return call->done && call->err.code == WS_EREACH ? WS_HANG_REFUSED : WS_HANG_UNREACHED;
}

void watchdog_probe_end(struct ws_watchdog *x, struct ws_hang *h)
{
	struct watchdog_probes *p = x->probes;
	if (!p)
		return;
	while (h && !all_done(p) && !ws_deadline_passed(p->until))
		if (ws_http_wait(x->opts.http, p->until, NULL, -1, NULL) < 0)
			break;
	for (size_t i = 0; i < p->n; i++) {
		for (size_t k = 0; k < PROBES; k++)
			ws_http_drop(x->opts.http, &p->calls[i][k].http);
		if (h) {
			struct ws_hang_endpoint *e = &h->endpoints[p->endpoint[i]];
			e->front = outcome(&p->calls[i][0].http);
			e->health = outcome(&p->calls[i][1].http);
			e->health_status = p->calls[i][1].http.status;
		}
		for (size_t k = 0; k < PROBES; k++)
			ws_endpoint_call_free(&p->calls[i][k]);
	}
	free(p);
	x->probes = NULL;
}
