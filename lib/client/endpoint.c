/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint.c - opens connections for programs, and detects the server behind each URL. */
#include "endpoint_call.h"
#include "wsync/tool/hub.h"
#include "lineage_probe.h"
#include "vllm_probe.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ws_client_open(const struct ws_client_opts *opts, struct ws_http **out, struct ws_err *err)
{
	const struct ws_http_opts http = {
		.api_key = opts->api_key,
		.ca_file = opts->ca_file,
		.connect_ns = opts->connect_ns,
		.log = opts->log,
		.trace = opts->trace,
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
	static const char *const names[] = { "abort", "retract", "in_place", "wait", "none" };
	return (unsigned)mode < sizeof names / sizeof *names ? names[mode] : "unknown";
}

/* ---- the probe ---- */

/* After a 404 to one of the first two requests its older route is tried. The third, for the list of
 * routes, is optional and waits LINEAGE_NS at most. A server without /model_info gets the fourth
 * while it does not answer the first: a vLLM, whose first /server_info takes many seconds. */
enum { SERVER, MODEL, ROUTES, FIRST_QUESTIONS, VERSION = FIRST_QUESTIONS, QUESTIONS };
static const char *const paths[QUESTIONS] = { "/server_info", "/model_info", "/openapi.json",
	                                      "/version" };
static const char *const old_paths[QUESTIONS] = { "/get_server_info", "/get_model_info", NULL,
	                                          NULL };
static const int64_t LINEAGE_NS = 5 * WS_NS_PER_S;
enum { OPENAPI_MAX = 4 << 20 };

struct probe {
	const struct ws_call *to;
	ws_deadline lineage_until, slow_until;
	struct ws_endpoint_call *calls; /* QUESTIONS calls per endpoint */
	struct ws_lineage_signs *signs;
	bool *silent;                   /* per endpoint: no list of its routes was received */
	bool *strange, *vllm;           /* not SGLang, it seems; it is a vLLM */
};

static int ask_version(struct probe *p, size_t i, struct ws_err *err)
{
	struct ws_endpoint_call *call = &p->calls[i * QUESTIONS + VERSION];
	return call->http.url ? 0 :
	                        ws_endpoint_start(p->to->http, call, p->to->urls[i], "GET",
	                                          paths[VERSION], NULL, p->to->until, err);
}

static bool tells_version(struct ws_endpoint_call *call)
{
	const struct ws_json *root;
	struct ws_err none = WS_ERR_INIT;
	return call->http.url && call->http.done &&
	       ws_endpoint_reply(call, &root, NULL, 0, &none) == 0 &&
	       ws_json_get_string(root, "version", NULL);
}

/* Stops the wait for the first answer of a vLLM. */
static int look_for_vllm(struct probe *p, struct ws_err *err)
{
	for (size_t i = 0; i < p->to->n; i++) {
		struct ws_endpoint_call *calls = &p->calls[i * QUESTIONS];
		if (calls[SERVER].http.done || !calls[MODEL].http.done ||
		    calls[MODEL].http.status != 404)
			continue;
		if (ask_version(p, i, err))
			return -1;
		if (!tells_version(&calls[VERSION]))
			continue;
		ws_http_drop(p->to->http, &calls[SERVER].http);
		ws_err_set(&calls[SERVER].http.err, WS_ETIMEOUT, "GET %s%s: no answer yet",
		           p->to->urls[i], paths[SERVER]);
		calls[SERVER].http.done = p->strange[i] = true;
	}
	return 0;
}

static bool is_pending(const struct probe *p)
{
	for (size_t i = 0; i < p->to->n * QUESTIONS; i++)
		if (p->calls[i].http.url && !p->calls[i].http.done)
			return true;
	return false;
}

static int run_questions(struct probe *p, struct ws_err *err)
{
	struct ws_http *http = p->to->http;
	int rc = 0;
	for (size_t i = 0; rc == 0 && i < p->to->n * QUESTIONS; i++)
		if (i % QUESTIONS < FIRST_QUESTIONS)
			rc = ws_http_start(http, &p->calls[i].http, err);
	while (rc == 0 && is_pending(p))
		rc = ws_http_wait(http, WS_FOREVER, p->to->cancel, -1, err) < 0 ||
		                     look_for_vllm(p, err) ?
		             -1 :
		             0;
	for (size_t i = 0; rc && i < p->to->n * QUESTIONS; i++)
		ws_http_drop(http, &p->calls[i].http);
	return rc;
}

static int ask_questions(struct probe *p, struct ws_err *err)
{
	const size_t n = p->to->n * QUESTIONS;
	for (size_t i = 0; i < n; i++)
		if (i % QUESTIONS < FIRST_QUESTIONS &&
		    ws_endpoint_prepare(&p->calls[i], p->to->urls[i / QUESTIONS], "GET",
		                        paths[i % QUESTIONS], NULL,
		                        i % QUESTIONS == ROUTES ? p->lineage_until : p->to->until,
		                        err))
			return -1;
	if (run_questions(p, err))
		return -1;
	for (size_t i = 0; i < n; i++)
		if (p->calls[i].http.status == 404 && old_paths[i % QUESTIONS] &&
		    ws_endpoint_prepare(&p->calls[i], p->to->urls[i / QUESTIONS], "GET",
		                        old_paths[i % QUESTIONS], NULL,
		                        ws_endpoint_later(p->to->until), err))
			return -1;
	return ws_endpoint_run(p->to->http, p->calls, n, p->to->cancel, err);
}

static void doubt(const char *url, struct ws_err *err)
{
	const unsigned port = ws_http_assumed_port(url);
	if (port)
		ws_err_hint(err,
		            "is this an SGLang or vLLM server? no port is given, so port %u was "
		            "asked; theirs are 30000 and 8000 unless they are told otherwise",
		            port);
	else
		ws_err_hint(err, "is this an SGLang or vLLM server, and is this its port?");
}

static int refuse_strange(int question, const struct ws_endpoint_info *info, struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED, "GET %s: the answer is no JSON object", paths[question]);
	doubt(info->url, err);
	return ws_err_where(err, NULL, info->url);
}

static int read_server_info(struct ws_endpoint_call *call, struct ws_endpoint_info *info,
                            struct ws_err *err)
{
	const struct ws_json *root;
	if (ws_endpoint_reply(call, &root, NULL, 0, err)) {
		if (err->native == 404)
			doubt(info->url, err);
		return -1;
	}
	if (ws_json_type(root) != WS_JSON_OBJECT)
		return refuse_strange(SERVER, info, err);
	ws_endpoint_decode_server_info(root, info);
	info->info_path = strcmp(call->path, old_paths[SERVER]) ? paths[SERVER] : old_paths[SERVER];
	return 0;
}

/* This route is optional: without it only the live weight version and the model's type are
 * unknown. */
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
	if (ws_json_type(root) != WS_JSON_OBJECT)
		return refuse_strange(MODEL, info, err);
	const bool live =
		ws_json_get_string(root, "weight_version", NULL) && !info->many_tokenizers;
	info->version_path = !live                                 ? NULL :
	                     !strcmp(call->path, old_paths[MODEL]) ? old_paths[MODEL] :
	                                                             paths[MODEL];
	ws_endpoint_decode_model_info(root, info);
	return 0;
}

/* True if endpoint i sent a list of routes that contains the route it has just answered. */
static bool read_routes(struct probe *p, size_t i)
{
	const struct ws_endpoint_call *calls = &p->calls[i * QUESTIONS];
	const struct ws_http_call *http = &calls[ROUTES].http;
	if (http->err.code || http->status != 200 || http->reply.len > OPENAPI_MAX)
		return false;
	struct ws_json *root =
		ws_json_parse(http->reply.data, http->reply.len, "openapi.json", NULL);
	const bool own = root && !ws_lineage_read_openapi(root, calls[SERVER].path, &p->signs[i]);
	ws_json_free(root);
	return own;
}

static int read_info(struct probe *p, size_t i, struct ws_endpoint_info *info, struct ws_err *err)
{
	struct ws_endpoint_call *calls = &p->calls[i * QUESTIONS];
	*info = (struct ws_endpoint_info){ .dp_size = 1, .pp_size = 1, .ep_size = 1 };
	*err = (struct ws_err)WS_ERR_INIT;
	snprintf(info->url, sizeof info->url, "%s", p->to->urls[i]);
	if (ws_endpoint_host_port(p->to->urls[i], info->host, &info->port, err))
		return -1;
	info->tls = !strncmp(p->to->urls[i], "https", 5);
	for (int q = SERVER; q <= MODEL; q++)
		if (calls[q].http.ns > info->ns)
			info->ns = calls[q].http.ns;
	if (read_server_info(&calls[SERVER], info, err) ||
	    read_model_info(&calls[MODEL], info, err))
		return -1;
	p->silent[i] = !read_routes(p, i);
	return 0;
}

/* A vLLM has no /server_info without VLLM_SERVER_DEV_MODE=1, and a different one with it. */
static bool is_strange(const struct probe *p, size_t i)
{
	const struct ws_endpoint_call *call = &p->calls[i * QUESTIONS + SERVER];
	return p->strange[i] || call->http.status == 404 || ws_json_get(call->root, "vllm_config");
}

static int probe_strange(struct probe *p, struct ws_endpoint_info *infos, struct ws_err *errs,
                         struct ws_err *err)
{
	const size_t n = p->to->n;
	struct ws_json **routes = calloc(n + 1, sizeof *routes);
	struct ws_vllm_known *known = calloc(n + 1, sizeof *known);
	bool any = false;
	int rc = routes && known ? 0 : ws_oom(err);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		struct ws_endpoint_call *version = &p->calls[i * QUESTIONS + VERSION];
		const struct ws_http_call *http = &p->calls[i * QUESTIONS + ROUTES].http;
		any |= p->strange[i] = is_strange(p, i);
		if (p->strange[i] && http->status == 200 && http->reply.len <= OPENAPI_MAX)
			routes[i] = ws_json_parse(http->reply.data, http->reply.len, "openapi.json",
			                          NULL);
		known[i].routes = routes[i];
		if (tells_version(version))
			known[i].version = ws_json_get_string(version->root, "version", NULL);
	}
	if (rc == 0 && any)
		rc = ws_vllm_probe(p->to, p->strange, known, p->slow_until, infos, errs, p->vllm,
		                   err);
	for (size_t i = 0; routes && i < n; i++) {
		p->silent[i] &= !p->strange[i];
		ws_json_free(routes[i]);
	}
	free(routes);
	free(known);
	return rc;
}

/* XORL servers that were started for training flush at every update; see dies_of_flush. */
static void settle_flush(struct ws_endpoint_info *info)
{
	info->can.forces_flush = info->lineage == WS_LINEAGE_XORL && info->on_policy &&
	                         !info->disable_radix_cache;
}

/* The model of a server on another machine is here too, if it is from the hub and was fetched. */
static void find_snapshot(struct ws_endpoint_info *info)
{
	char *dir = *info->start_path && info->start_path[0] != '/' ?
	            ws_hub_find(info->start_path, *info->revision ? info->revision : NULL) : NULL;
	if (dir && strlen(dir) < sizeof info->snapshot)
		memcpy(info->snapshot, dir, strlen(dir) + 1);
	free(dir);
}

static int probe(struct probe *p, struct ws_endpoint_info *infos, struct ws_err *errs,
                 struct ws_err *err)
{
	if (!p->calls || !p->signs || !p->silent || !p->strange || !p->vllm)
		return ws_oom(err);
	if (ask_questions(p, err))
		return -1;
	for (size_t i = 0; i < p->to->n; i++)
		read_info(p, i, &infos[i], &errs[i]);
	if (probe_strange(p, infos, errs, err))
		return -1;
	struct ws_call late = *p->to;
	late.until = ws_endpoint_later(p->lineage_until);
	if (ws_lineage_ask(&late, p->silent, p->signs, err))
		return -1;
	for (size_t i = 0; i < p->to->n; i++) {
		find_snapshot(&infos[i]);
		if (p->vllm[i])
			continue;
		p->signs[i].version = infos[i].version;
		infos[i].lineage = ws_lineage_detect(&p->signs[i], &infos[i].can);
		settle_flush(&infos[i]);
	}
	return 0;
}

int ws_endpoint_probe_all(const struct ws_call *to, struct ws_endpoint_info *infos,
                          struct ws_err *errs, struct ws_err *err)
{
	return ws_endpoint_probe_slow(to, to->until, infos, errs, err);
}

ws_deadline ws_endpoint_slow_until(int64_t connect_ns, ws_deadline until, ws_deadline run)
{
	return connect_ns <= 0 || connect_ns == WS_ENDPOINT_CONNECT_NS ? run : until;
}

int ws_endpoint_probe_slow(const struct ws_call *to, ws_deadline slow_until,
                           struct ws_endpoint_info *infos, struct ws_err *errs,
                           struct ws_err *err)
{
	const size_t n = to->n, most = n ? n : 1;
	struct probe p = {
		.to = to,
		.slow_until = slow_until,
		/* leaves time for what a vLLM is asked then */
		.lineage_until = ws_deadline_min(ws_deadline_part(to->until, 2),
		                                 ws_deadline_in(LINEAGE_NS)),
		.calls = calloc(most, QUESTIONS * sizeof *p.calls),
		.signs = calloc(most, sizeof *p.signs),
		.silent = calloc(most, sizeof *p.silent),
		.strange = calloc(most, sizeof *p.strange),
		.vllm = calloc(most, sizeof *p.vllm),
	};
	const struct ws_err *first = NULL;
	struct ws_err why = WS_ERR_INIT;
	const int rc = probe(&p, infos, errs, &why);
	for (size_t i = 0; i < n; i++) {
		if (rc)
			errs[i] = why;
		else if (errs[i].code && !first)
			first = &errs[i];
	}
	if (rc)
		first = &why;
	for (size_t i = 0; p.calls && i < n * QUESTIONS; i++)
		ws_endpoint_call_free(&p.calls[i]);
	free(p.calls);
	free(p.signs);
	free(p.silent);
	free(p.strange);
	free(p.vllm);
	if (first && err)
		*err = *first;
	return rc || first ? -1 : 0;
}

void ws_endpoint_assume(struct ws_endpoint_info *info, enum ws_lineage lineage)
{
	if (lineage == WS_LINEAGE_UNKNOWN)
		return;
	info->lineage = lineage;
	ws_lineage_capabilities(lineage, &info->can);
	settle_flush(info);
}
