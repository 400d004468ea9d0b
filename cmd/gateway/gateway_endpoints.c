/* SPDX-License-Identifier: Apache-2.0 */
/* gateway_endpoints.c - adds, lists and removes endpoints.
 *
 * Differences from xorl's server, which keeps its endpoints in memory: here they are in the
 * registry, as for wsync-register. An endpoint that does not answer is listed as not healthy; xorl
 * forgets it, and it serves old weights from then on. Endpoints may have different tp sizes. */
#include "gateway_core.h"

#include "wsync/tool/str.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static bool is_loose(const char *text)
{
	return strcmp(text, "auto") == 0 || !*text;
}

/* ---- answers ---- */

static void put_server(struct ws_jw *w, const struct ws_registry_entry *e,
                       const struct ws_endpoint_info *i)
{
	ws_jw_object(w, "server_info");
	if (i)
		ws_jw_str(w, "model_path", i->model_path);
	ws_jw_str(w, "served_model_name", e->served_model);
	ws_jw_uint(w, "tp_size", e->tp_size);
	ws_jw_str(w, "quantization", *e->quantization ? e->quantization : NULL);
	ws_jw_str(w, "dtype", e->dtype);
	if (i) {
		ws_jw_str(w, "kv_cache_dtype", i->kv_cache_dtype);
		ws_jw_bool(w, "fp8_kv_cache_enabled", strncmp(i->kv_cache_dtype, "fp8", 3) == 0);
		ws_jw_bool(w, "radix_cache_enabled", !i->disable_radix_cache);
	}
	ws_jw_str(w, "version", e->version);
	ws_jw_str(w, "lineage", e->lineage);
	ws_jw_end_object(w);
}

static void put_endpoint(struct ws_jw *w, const char *key, const struct ws_registry_entry *e,
                         const struct ws_endpoint_info *info, bool healthy)
{
	ws_jw_object(w, key);
	ws_jw_str(w, "host", e->host);
	ws_jw_uint(w, "port", e->port);
	ws_jw_uint(w, "worker_port", e->port);
	ws_jw_uint(w, "world_size", e->world_size);
	ws_jw_bool(w, "healthy", healthy);
	ws_jw_str(w, "pool", e->pool);
	put_server(w, e, info);
	ws_jw_end_object(w);
}

static struct ws_jw begin(struct gateway_call *c, bool success, const char *message)
{
	struct ws_jw w = gateway_begin(c->rp, 200);
	ws_jw_bool(&w, "success", success);
	ws_jw_str(&w, "message", message);
	return w;
}

static void answer_no(struct gateway_call *c, const char *message)
{
	struct ws_jw w = begin(c, false, message);
	ws_jw_end_object(&w);
}

static int open_client(const struct ws_gateway *g, struct ws_http **out, struct ws_err *err)
{
	const struct ws_client_opts opts = { .api_key = g->opts.push.api_key,
		                             .ca_file = g->opts.push.ca_file,
		                             .connect_ns = g->opts.push.connect_ns,
		                             .log = g->opts.log };
	return ws_client_open(&opts, out, err);
}

/* ---- add ---- */

struct adding {
	char url[WS_URL_MAX];
	struct ws_registry_entry entry;
	struct ws_endpoint_info info;
	int64_t world_size;
	bool sync;
};

static int make_url(const char *host, int64_t port, char *url, struct ws_err *err)
{
	char text[WS_URL_MAX];
	const bool v6 = strchr(host, ':') && host[0] != '[';
	if (!*host || strlen(host) > 255 || strpbrk(host, "/@?# \t\r\n"))
		return ws_serve_field_invalid(err, "host",
		                              "Input should be a host name or an address");
	snprintf(text, sizeof text, v6 ? "http://[%s]:%" PRId64 : "http://%s:%" PRId64, host, port);
	return ws_endpoint_normalize(text, url, WS_URL_MAX, err);
}

static int take_request(struct gateway_call *c, struct adding *a, struct ws_err *err)
{
	const char *host = "", *pool = WS_POOL_DEFAULT;
	int64_t port = 0, worker = 0;
	a->world_size = 0;
	if (ws_serve_field_str(c->body, "host", true, &host, err) ||
	    ws_serve_field_int(c->body, "port", &port, err) ||
	    gateway_int(c->body, "port", 1, 65535, &port, err) ||
	    gateway_int(c->body, "worker_port", 1, 65535, &worker, err) ||
	    gateway_int(c->body, "world_size", 1, 4096, &a->world_size, err) ||
	    gateway_text(c->body, "pool", &pool, err) ||
	    ws_serve_field_bool(c->body, "sync_weights", &a->sync, err) ||
	    ws_registry_check_pool(pool, err) ||
	    make_url(host, worker ? worker : port, a->url, err))
		return -1;
	snprintf(a->entry.pool, sizeof a->entry.pool, "%s", pool);
	memcpy(a->entry.url, a->url, sizeof a->url);
	return ws_endpoint_host_port(a->url, a->entry.host, &a->entry.port, err);
}

static bool may_ask(const void *gateway, const struct ws_registry_entry *e)
{
	return gateway_permits(gateway, e->url);
}

static int ask(struct gateway_call *c, struct adding *a, struct ws_err *err)
{
	struct ws_gateway *g = c->gateway;
	const char *const urls[] = { a->url };
	struct ws_http *http = NULL;
	struct ws_err answer = WS_ERR_INIT;
	if (open_client(g, &http, err))
		return -1;
	const struct ws_call to = { http, urls, 1, gateway_until(), &g->stop, NULL };
	int rc = ws_endpoint_probe_all(&to, &a->info, &answer, err);
	if (rc == 0)
		rc = ws_registry_check_instances(g->opts.registry, &to, &a->info, may_ask, g, err);
	ws_client_close(http);
	if (rc)
		return -1;
	ws_registry_describe(&a->entry, &a->info);
	a->entry.world_size = a->entry.tp_size ? a->entry.tp_size : (unsigned)a->world_size;
	return 0;
}

/* An endpoint of the same pool with another quantization, which one push cannot serve; or NULL. */
static const struct ws_registry_entry *differs(const struct ws_registry *r, const struct adding *a)
{
	for (size_t i = 0; i < r->n; i++) {
		const char *other = r->items[i].quantization, *mine = a->entry.quantization;
		if (strcmp(r->items[i].pool, a->entry.pool) == 0 && r->items[i].tp_size &&
		    strcmp(is_loose(other) ? "" : other, is_loose(mine) ? "" : mine) != 0)
			return &r->items[i];
	}
	return NULL;
}

/* 1: the request is answered; 0: go on; -1: error. */
static int check_others(struct gateway_call *c, const struct adding *a, struct ws_err *err)
{
	struct ws_registry r;
	char text[1600];
	if (ws_registry_load(c->gateway->opts.registry, &r, err))
		return -1;
	const struct ws_registry_entry *other = differs(&r, a);
	const bool twice = ws_registry_find(&r, a->url);
	if (twice)
		snprintf(text, sizeof text, "Endpoint %s:%u is already registered", a->entry.host,
		         (unsigned)a->entry.port);
	else if (other)
		snprintf(text, sizeof text,
		         "%s has quantization '%s', and %s of the same pool has '%s'", a->url,
		         a->entry.quantization, other->url, other->quantization);
	ws_registry_free(&r);
	if (twice || other)
		answer_no(c, text);
	return twice || other;
}

static void answer_added(struct gateway_call *c, const struct adding *a)
{
	char text[1024], note[128] = "";
	struct ws_buf message;
	bool synced = false;
	ws_buf_init(&message, 0);
	if (a->sync)
		synced = gateway_push(c, a->url, &message);
	if (a->world_size && a->entry.tp_size && a->world_size != a->entry.tp_size)
		snprintf(note, sizeof note, "; it has %u ranks, not %" PRId64, a->entry.tp_size,
		         a->world_size);
	snprintf(text, sizeof text, "Endpoint %s:%u added%s", a->entry.host,
	         (unsigned)a->entry.port, note);
	struct ws_jw w = begin(c, true, text);
	put_endpoint(&w, "endpoint", &a->entry, &a->info, true);
	ws_jw_bool(&w, "weights_synced", synced);
	ws_jw_str(&w, "sync_message", a->sync ? ws_buf_str(&message) : NULL);
	ws_jw_end_object(&w);
	ws_buf_free(&message);
}

void gateway_add(struct gateway_call *c)
{
	struct adding a = { .sync = false };
	struct ws_err err = WS_ERR_INIT;
	bool updated = false;
	if (take_request(c, &a, &err)) {
		gateway_fail(c, &err);
		return;
	}
	if (!gateway_permits(c->gateway, a.url)) {
		gateway_refuse(c, 400, "host '%s' may not be registered here (--allow-host)",
		               a.entry.host);
		return;
	}
	const int given = check_others(c, &a, &err); /* a duplicate is not probed */
	if (given > 0)
		return;
	if (given < 0) {
		gateway_fail(c, &err);
		return;
	}
	if (ask(c, &a, &err)) {
		answer_no(c, gateway_words(c, err.msg));
		return;
	}
	const int again = check_others(c, &a, &err);
	if (again > 0)
		return;
	if (again < 0 ||
	    ws_registry_add(c->gateway->opts.registry, &a.entry, gateway_until(),
	                    &c->gateway->stop, &updated, &err)) {
		gateway_fail(c, &err);
		return;
	}
	answer_added(c, &a);
}

/* ---- list ---- */

/* An endpoint that --allow-host does not allow is not asked: it would receive the API key. */
static void ask_health(struct gateway_call *c, const struct ws_registry *r, bool *healthy)
{
	struct ws_gateway *g = c->gateway;
	const char **urls = calloc(r->n + 1, sizeof *urls);
	struct ws_endpoint_answer *answers = calloc(r->n + 1, sizeof *answers);
	struct ws_http *http = NULL;
	struct ws_err err = WS_ERR_INIT;
	size_t n = 0;
	for (size_t i = 0; urls && i < r->n; i++)
		if (gateway_permits(g, r->items[i].url))
			urls[n++] = r->items[i].url;
	if (n && urls && answers && open_client(g, &http, &err) == 0) {
		const struct ws_call to = { http, urls, n, ws_deadline_in(5 * WS_NS_PER_S),
			                    &g->stop, NULL };
		ws_endpoint_health(&to, answers, &err);
		for (size_t i = 0, k = 0; i < r->n; i++)
			if (k < n && urls[k] == r->items[i].url)
				healthy[i] = answers[k++].err.code == WS_OK;
	}
	ws_client_close(http);
	free(urls);
	free(answers);
}

void gateway_list(struct gateway_call *c)
{
	struct ws_registry r;
	struct ws_err err = WS_ERR_INIT;
	if (ws_registry_load(c->gateway->opts.registry, &r, &err)) {
		gateway_fail(c, &err);
		return;
	}
	bool *healthy = calloc(r.n + 1, sizeof *healthy);
	if (healthy)
		ask_health(c, &r, healthy);
	struct ws_jw w = gateway_begin(c->rp, 200);
	ws_jw_array(&w, "endpoints");
	for (size_t i = 0; i < r.n; i++)
		put_endpoint(&w, NULL, &r.items[i], NULL, healthy && healthy[i]);
	ws_jw_end_array(&w);
	ws_jw_uint(&w, "count", r.n);
	ws_jw_end_object(&w);
	free(healthy);
	ws_registry_free(&r);
}

/* ---- remove ---- */

void gateway_remove(struct gateway_call *c)
{
	const char *host = "";
	int64_t port = 0;
	char url[WS_URL_MAX], text[1024];
	struct ws_err err = WS_ERR_INIT;
	if (ws_serve_field_str(c->body, "host", true, &host, &err) ||
	    ws_serve_field_int(c->body, "port", &port, &err) ||
	    gateway_int(c->body, "port", 1, 65535, &port, &err) ||
	    make_url(host, port, url, &err)) {
		gateway_fail(c, &err);
		return;
	}
	const int rc = ws_registry_remove(c->gateway->opts.registry, url, gateway_until(),
	                                  &c->gateway->stop, &err);
	if (rc && err.code != WS_EINPUT) {
		gateway_fail(c, &err);
		return;
	}
	snprintf(text, sizeof text, rc ? "%.900s" : "Endpoint %.900s removed",
	         rc ? gateway_words(c, err.msg) : url);
	struct ws_jw w = begin(c, rc == 0, text);
	ws_jw_end_object(&w);
}
