/* SPDX-License-Identifier: Apache-2.0 */
/* http_trace.c - traces a call as a span: the server is the row, method and route are the name.
 * The query is omitted, as it may contain anything. */
#include "http_core.h"

#include <stdio.h>
#include <string.h>

void ws_http_trace_begin(struct ws_http_flight *f)
{
	const char *url = f->call->url, *host = strstr(url, "://");
	char of[128], name[128];
	if (!f->http->trace)
		return;
	host = host ? host + 3 : url;
	const char *path = host + strcspn(host, "/?#");
	snprintf(of, sizeof of, "%.*s", (int)(path - url), url);
	snprintf(name, sizeof name, "%s %.*s", f->call->method, (int)strcspn(path, "?#"), path);
	f->span = ws_trace_begin(f->http->trace, &(struct ws_trace_what){ .row = WS_TRACE_HTTP,
	                                                                  .of = of,
	                                                                  .name = name });
}

void ws_http_trace_end(const struct ws_http_flight *f, bool dropped)
{
	const struct ws_http_call *call = f->call;
	ws_trace_end(f->http->trace, f->span,
	             &(struct ws_trace_end){ .bytes = f->body_at,
	                                     .status = call->status,
	                                     .unfinished = dropped,
	                                     .why = call->err.code ? call->err.msg : NULL });
}
