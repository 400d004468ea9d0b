/* SPDX-License-Identifier: Apache-2.0 */
/* bench_control.c - times round trips of requests that change nothing. */
#include "endpoint_call.h"
#include "bench_samples.h"

#include <stdio.h>
#include <stdlib.h>

struct control {
	const struct ws_bench_control *what;
	size_t n; /* calls the first n endpoints */
	const struct ws_client_opts *client;
	struct ws_http *http; /* a kept client; NULL: each sample opens a new one */
	struct ws_endpoint_call *calls;
	const struct ws_cancel *cancel;
};

static int call_all(struct control *c, struct ws_http *http, struct ws_err *err)
{
	for (size_t i = 0; i < c->n; i++)
		if (ws_endpoint_prepare(&c->calls[i], c->what->urls[i], "GET", "/model_info", NULL,
		                        ws_deadline_in(c->what->timeout_ns), err))
			return -1;
	if (ws_endpoint_run(http, c->calls, c->n, c->cancel, err))
		return -1;
	/* Any answer is a round trip: older servers name this route otherwise, and send 404. */
	for (size_t i = 0; i < c->n; i++) {
		if (c->calls[i].http.err.code == WS_OK)
			continue;
		if (err)
			*err = c->calls[i].http.err;
		return ws_err_where(err, NULL, c->what->urls[i]);
	}
	return 0;
}

static int time_calls(void *ctx, int64_t *ns, struct ws_err *err)
{
	struct control *c = ctx;
	struct ws_http *http = c->http;
	if (!http && ws_client_open(c->client, &http, err))
		return -1;
	const int64_t since = ws_now_ns();
	const int rc = call_all(c, http, err);
	*ns = ws_now_ns() - since;
	if (!c->http)
		ws_client_close(http);
	return rc;
}

static int measure_control(const struct ws_bench_opts *opts, struct control *one,
                           struct ws_err *err)
{
	char detail[64];
	const struct bench_timed timed = { .run = time_calls, .ctx = one };
	struct ws_bench_row row = { .stage = "control", .name = "request",
		                    .detail = "a new connection" };
	if (bench_measure(opts, &row, &timed, NULL, err) ||
	    ws_client_open(one->client, &one->http, err))
		return -1;
	row = (struct ws_bench_row){ .stage = "control", .name = "request",
		                     .detail = "a kept connection" };
	if (bench_measure(opts, &row, &timed, NULL, err))
		return -1;
	if (one->what->n == 1)
		return 0;
	struct control all = *one;
	all.n = one->what->n;
	snprintf(detail, sizeof detail, "%zu endpoints at once", all.n);
	row = (struct ws_bench_row){ .stage = "control", .name = "fan-out", .detail = detail,
		                     .against = "one request" };
	return bench_measure(opts, &row, &(struct bench_timed){ .run = time_calls, .ctx = &all },
	                     &timed, err);
}

int ws_bench_control(const struct ws_bench_opts *opts, const struct ws_bench_control *what,
                     struct ws_err *err)
{
	const struct ws_client_opts client = { .api_key = what->api_key,
		                               .ca_file = what->ca_file,
		                               .connect_ns = what->timeout_ns, .log = opts->log };
	struct control one = { .what = what, .n = 1, .client = &client, .cancel = opts->cancel,
		               .calls = calloc(what->n, sizeof *one.calls) };
	const int rc = one.calls ? measure_control(opts, &one, err) : ws_oom(err);
	for (size_t i = 0; one.calls && i < what->n; i++)
		ws_endpoint_call_free(&one.calls[i]);
	free(one.calls);
	ws_client_close(one.http);
	return rc;
}
