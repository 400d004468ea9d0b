/* SPDX-License-Identifier: Apache-2.0 */
/* control.c - round trips: what a request costs that carries nothing. */
#include "endpoint_call.h"
#include "samples.h"

#include <stdio.h>
#include <stdlib.h>

struct control {
	const char *const *urls;
	size_t n;
	const struct ws_client_opts *client;
	struct ws_http *http;          /* kept; NULL: a new one for each sample */
	struct ws_endpoint_call *calls;
	int64_t timeout_ns;
	const struct ws_cancel *cancel;
};

static int ask_all(struct control *c, struct ws_http *http, struct ws_err *err)
{
	for (size_t i = 0; i < c->n; i++)
		if (ws_endpoint_prepare(&c->calls[i], c->urls[i], "GET", "/model_info", NULL,
		                        ws_deadline_in(c->timeout_ns), err))
			return -1;
	if (ws_endpoint_run(http, c->calls, c->n, c->cancel, err))
		return -1;
	/* Any answer is a round trip; older servers have another name for this route, and say
	 * 404. */
	for (size_t i = 0; i < c->n; i++) {
		if (c->calls[i].http.err.code == WS_OK)
			continue;
		if (err)
			*err = c->calls[i].http.err;
		return ws_err_where(err, NULL, c->urls[i]);
	}
	return 0;
}

static int run(void *ctx, int64_t *ns, struct ws_err *err)
{
	struct control *c = ctx;
	struct ws_http *http = c->http;
	if (!http && ws_client_open(c->client, &http, err))
		return -1;
	const int64_t since = ws_now_ns();
	const int rc = ask_all(c, http, err);
	*ns = ws_now_ns() - since;
	if (!c->http)
		ws_client_close(http);
	return rc;
}

int ws_bench_control(const struct ws_bench_opts *opts, const char *const *urls, size_t n,
                     const char *api_key, const char *ca_file, int64_t timeout_ns,
                     struct ws_err *err)
{
	const struct ws_client_opts client = {
		.api_key = api_key, .ca_file = ca_file, .connect_ns = timeout_ns, .log = opts->log
	};
	struct control one = { .urls = urls, .n = 1, .client = &client, .timeout_ns = timeout_ns,
		               .cancel = opts->cancel };
	one.calls = calloc(n, sizeof *one.calls);
	if (!one.calls)
		return ws_oom(err);
	char detail[64];
	struct ws_http *http = NULL;
	struct ws_bench_row row = { .stage = "control",
		                    .name = "request",
		                    .detail = "a new connection" };
	int rc = bench_measure(opts, &row, &(struct bench_timed){ .run = run, .ctx = &one }, NULL,
	                       err);
	if (!rc)
		rc = ws_client_open(&client, &http, err);
	one.http = http;
	row = (struct ws_bench_row){ .stage = "control",
		                     .name = "request",
		                     .detail = "a kept connection" };
	if (!rc)
		rc = bench_measure(opts, &row, &(struct bench_timed){ .run = run, .ctx = &one },
		                   NULL, err);
	if (!rc && n > 1) {
		struct control all = one;
		all.n = n;
		snprintf(detail, sizeof detail, "%zu endpoints at once", n);
		row = (struct ws_bench_row){ .stage = "control",
			                     .name = "fan-out",
			                     .detail = detail,
			                     .against = "one request" };
		rc = bench_measure(opts, &row, &(struct bench_timed){ .run = run, .ctx = &all },
		                   &(struct bench_timed){ .run = run, .ctx = &one }, err);
	}
	for (size_t i = 0; i < n; i++)
		ws_endpoint_call_free(&one.calls[i]);
	free(one.calls);
	ws_client_close(http);
	return rc;
}
