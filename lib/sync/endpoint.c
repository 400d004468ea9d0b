/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint.c - connections for programs, and the probe: what is behind each URL. */
#include "endpoint_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ws_client_open(const struct ws_client_opts *opts, struct ws_http **out, struct ws_err *err)
{
	const struct ws_http_opts http = {
		.api_key = opts->api_key, .connect_ns = opts->connect_ns, .log = opts->log,
	};
	return ws_http_open(&http, out, err);
}

void ws_client_close(struct ws_http *http)
{
	ws_http_close(http);
}

int ws_client_read_key(const char *path, char **key, bool *loose, struct ws_err *err)
{
	return ws_http_read_key(path, key, loose, err);
}

const char *ws_pause_mode_name(enum ws_pause_mode mode)
{
	static const char *const names[] = { "abort", "retract", "in_place", "none" };
	return (unsigned)mode < sizeof names / sizeof *names ? names[mode] : "unknown";
}

/* ---- the probe ---- */

/* Two questions per endpoint. Servers knew them by other names first; those are tried on a 404. */
enum { SERVER, MODEL, QUESTIONS };
static const char *const paths[QUESTIONS] = { "/server_info", "/model_info" };
static const char *const old_paths[QUESTIONS] = { "/get_server_info", "/get_model_info" };

static int ask(struct ws_http *http, struct ws_endpoint_call *calls, const char *const *urls,
               size_t n, ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err)
{
	for (size_t i = 0; i < n * QUESTIONS; i++)
		if (ws_endpoint_prepare(&calls[i], urls[i / QUESTIONS], "GET", paths[i % QUESTIONS],
		                        NULL, until, err))
			return -1;
	if (ws_endpoint_run(http, calls, n * QUESTIONS, cancel, err))
		return -1;
	for (size_t i = 0; i < n * QUESTIONS; i++)
		if (calls[i].http.status == 404 &&
		    ws_endpoint_prepare(&calls[i], urls[i / QUESTIONS], "GET",
		                        old_paths[i % QUESTIONS], NULL, until, err))
			return -1;
	return ws_endpoint_run(http, calls, n * QUESTIONS, cancel, err);
}

static int read_server_info(struct ws_endpoint_call *call, struct ws_endpoint_info *info,
                            struct ws_err *err)
{
	const struct ws_json *root;
	if (ws_endpoint_reply(call, &root, NULL, 0, err)) {
		if (err->native == 404)
			ws_err_hint(err, "is this an SGLang server, and is this its port?");
		return -1;
	}
	if (ws_json_type(root) != WS_JSON_OBJECT) {
		ws_err_set(err, WS_EREFUSED, "GET %s: the answer is no JSON object", paths[SERVER]);
		ws_err_hint(err, "is this an SGLang server, and is this its port?");
		return ws_err_where(err, NULL, info->url);
	}
	ws_endpoint_decode_server_info(root, info);
	return 0;
}

/* A server without this route still has told everything but its live weight version. */
static int read_model_info(struct ws_endpoint_call *call, struct ws_endpoint_info *info,
                           struct ws_err *err)
{
	const struct ws_json *root;
	if (ws_endpoint_reply(call, &root, NULL, 0, err)) {
		if (err->native != 404)
			return -1;
		*err = (struct ws_err)WS_ERR_INIT;
		return 0;
	}
	ws_endpoint_decode_model_info(root, info);
	return 0;
}

static int read_info(struct ws_endpoint_call *calls, const char *url, struct ws_endpoint_info *info,
                     struct ws_err *err)
{
	*info = (struct ws_endpoint_info){ .tp_size = 1, .dp_size = 1, .pp_size = 1, .ep_size = 1 };
	*err = (struct ws_err)WS_ERR_INIT;
	snprintf(info->url, sizeof info->url, "%s", url);
	if (ws_endpoint_host_port(url, info->host, &info->port, err))
		return -1;
	info->tls = !strncmp(url, "https", 5);
	for (int q = 0; q < QUESTIONS; q++)
		if (calls[q].http.ns > info->ns)
			info->ns = calls[q].http.ns;
	if (read_server_info(&calls[SERVER], info, err))
		return -1;
	const struct ws_lineage_signs signs = { .version = info->version };
	info->lineage = ws_lineage_detect(&signs, &info->can);
	return read_model_info(&calls[MODEL], info, err);
}

int ws_endpoint_probe_all(struct ws_http *http, const char *const *urls, size_t n,
                          ws_deadline until, const struct ws_cancel *cancel,
                          struct ws_endpoint_info *infos, struct ws_err *errs, struct ws_err *err)
{
	struct ws_endpoint_call *calls = calloc(n ? n * QUESTIONS : 1, sizeof *calls);
	const struct ws_err *first = NULL;
	struct ws_err why = WS_ERR_INIT;
	const int rc = calls ? ask(http, calls, urls, n, until, cancel, &why)
	                     : ws_err_set(&why, WS_ESYSTEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		if (rc)
			errs[i] = why;
		else if (read_info(&calls[i * QUESTIONS], urls[i], &infos[i], &errs[i]) && !first)
			first = &errs[i];
	}
	if (rc)
		first = &why;
	for (size_t i = 0; calls && i < n * QUESTIONS; i++)
		ws_endpoint_call_free(&calls[i]);
	free(calls);
	if (first && err)
		*err = *first;
	return rc || first ? -1 : 0;
}
