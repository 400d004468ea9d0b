/* SPDX-License-Identifier: Apache-2.0 */
/* gateway.c - start and stop, routes, replies. Errors have the form of FastAPI's, which xorl's
 * server uses: {"detail": ...}. */
#include "gateway_core.h"

#include "wsync/tool/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <time.h>
#include <unistd.h>

#define SYNC_KEYS                                                                                  \
	"source", "lora", "weight_version", "pause_mode", "cache_invalidation_mode",               \
		"flush_cache", "quantization", "skip_modules", "master_address", "master_port",    \
		"group_name", "buffer_size_mb", "model_id"

/* All keys that xorl's clients send are known. Only receiver_kv_cache_dtype is not used: the
 * endpoint reports it. */
static const char *const add_keys[] = { "host",         "port",    "worker_port",
	                                "world_size",   "pool",    "receiver_kv_cache_dtype",
	                                "sync_weights", SYNC_KEYS, NULL };
static const char *const remove_keys[] = { "host", "port", NULL };
static const char *const sync_keys[] = { "pools", SYNC_KEYS, NULL };
static const char *const quantization_keys[] = { "quantization", "skip_modules", NULL };

enum { LITTLE = 16 << 10, MUCH = 256 << 10 }; /* a parsed body takes many times its size */

static const struct route {
	const char *name; /* the path without its first slash and without api/v1/ */
	const char *method;
	void (*run)(struct gateway_call *c);
	const char *const *keys; /* of the body; NULL: the body is not read */
	size_t most;             /* bytes of the body */
} routes[] = {
	{ "add_inference_endpoint", "POST", gateway_add, add_keys, MUCH },
	{ "list_inference_endpoints", "GET", gateway_list, NULL, 0 },
	{ "remove_inference_endpoint", "POST", gateway_remove, remove_keys, LITTLE },
	{ "sync_inference_weights", "POST", gateway_sync, sync_keys, MUCH },
	{ "set_sync_quantization", "POST", gateway_set_quantization, quantization_keys, MUCH },
	{ "metrics", "GET", gateway_metrics, NULL, 0 },
	{ "health", "GET", NULL, NULL, 0 },
};

/* ---- answers ---- */

struct ws_jw gateway_begin(struct ws_serve_reply *rp, unsigned status)
{
	struct ws_jw w;
	ws_buf_reset(&rp->body);
	rp->status = status;
	rp->type = "application/json";
	rp->retry_s = 0;
	ws_jw_init(&w, &rp->body);
	ws_jw_object(&w, NULL);
	return w;
}

static void answer_detail(struct ws_serve_reply *rp, unsigned status, const char *text)
{
	struct ws_jw w = gateway_begin(rp, status);
	ws_jw_str(&w, "detail", text);
	ws_jw_end_object(&w);
}

void gateway_refuse(struct gateway_call *c, unsigned status, const char *fmt, ...)
{
	char text[2048];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	answer_detail(c->rp, status, text);
}

void gateway_refuse_busy(struct gateway_call *c, const char *text)
{
	answer_detail(c->rp, 503, text);
	c->rp->retry_s = GATEWAY_RETRY_S;
}

const char *gateway_words(const struct gateway_call *c, const char *sentence)
{
	return sentence ? c->gateway->opts.words(sentence, c->rq->body, c->rq->body_len) : NULL;
}

/* [{"type", "loc": ["body", KEY], "msg"}], from "body.KEY: reason". */
static void answer_invalid(struct gateway_call *c, const char *text)
{
	const char *key = text + strlen("body.");
	const size_t n = strcspn(key, ":");
	const char *reason = key[n] ? key + n + 2 : "invalid";
	struct ws_jw w = gateway_begin(c->rp, 422);
	ws_jw_array(&w, "detail");
	ws_jw_object(&w, NULL);
	ws_jw_str(&w, "type", strcmp(reason, "Field required") == 0 ? "missing" : "value_error");
	ws_jw_array(&w, "loc");
	ws_jw_str(&w, NULL, "body");
	ws_jw_strn(&w, NULL, key, n);
	ws_jw_end_array(&w);
	ws_jw_str(&w, "msg", reason);
	ws_jw_end_object(&w);
	ws_jw_end_array(&w);
	ws_jw_end_object(&w);
}

unsigned gateway_status(const struct ws_err *err)
{
	switch (err->code) {
	case WS_EMISMATCH:
	case WS_EUSAGE:
	case WS_EINPUT:
		return 400;
	case WS_ETIMEOUT:
		return 504;
	default:
		return 500;
	}
}

void gateway_fail(struct gateway_call *c, const struct ws_err *err)
{
	const char *text = gateway_words(c, err->msg);
	if (err->code == WS_EUSAGE && strncmp(err->msg, "body.", 5) == 0)
		answer_invalid(c, text);
	else
		answer_detail(c->rp, gateway_status(err), text);
}

/* ---- members ---- */

static bool is_absent(const struct ws_json *body, const char *key)
{
	const struct ws_json *node = ws_json_get(body, key);
	return !node || ws_json_type(node) == WS_JSON_NULL;
}

int gateway_int(const struct ws_json *body, const char *key, int64_t least, int64_t most,
                int64_t *out, struct ws_err *err)
{
	if (is_absent(body, key))
		return 0;
	if (ws_serve_field_int(body, key, out, err))
		return -1;
	return *out >= least && *out <= most ?
	               0 :
	               ws_serve_field_invalid(err, key, "Input is out of range");
}

int gateway_text(const struct ws_json *body, const char *key, const char **out, struct ws_err *err)
{
	return is_absent(body, key) ? 0 : ws_serve_field_str(body, key, true, out, err);
}

int gateway_texts(const struct ws_json *body, const char *key, const char **out, size_t most,
                  size_t *n, struct ws_err *err)
{
	const struct ws_json *node = ws_json_get(body, key);
	*n = 0;
	if (is_absent(body, key))
		return 0;
	if (ws_json_type(node) == WS_JSON_STRING) {
		*n = 1;
		return ws_serve_field_str(body, key, true, out, err);
	}
	if (ws_json_type(node) != WS_JSON_ARRAY)
		return ws_serve_field_invalid(err, key, "Input should be a valid list");
	for (node = ws_json_first(node); node; node = ws_json_next(node)) {
		const char *text = ws_json_string(node);
		if (!text || strlen(text) > WS_SERVE_MAX_TEXT)
			return ws_serve_field_invalid(err, key,
			                              "Input should be a list of valid strings");
		if (*n == most)
			return ws_serve_field_invalid(err, key, "List is too long");
		out[(*n)++] = text;
	}
	return 0;
}

static bool is_one_of(const char *const *texts, const char *text)
{
	for (; *texts; texts++)
		if (strcmp(*texts, text) == 0)
			return true;
	return false;
}

int gateway_check_keys(const struct ws_json *object, const char *where, const char *const *known,
                       struct ws_err *err)
{
	char list[512] = "";
	const struct ws_json *node = ws_json_first(object);
	while (node && is_one_of(known, ws_json_key(node)))
		node = ws_json_next(node);
	if (!node)
		return 0;
	for (size_t used = 0; *known && used < sizeof list; known++)
		used += (size_t)snprintf(list + used, sizeof list - used, "%s%s", used ? ", " : "",
		                         *known);
	return ws_err_set(err, WS_EINPUT, "%s: unknown key '%.100s'; known keys: %s", where,
	                  ws_json_key(node), list);
}

/* ---- one request ---- */

static const struct route *find_route(const char *path)
{
	if (strncmp(path, "/api/v1/", 8) == 0)
		path += 7;
	for (size_t i = 0; *path == '/' && i < sizeof routes / sizeof routes[0]; i++)
		if (strcmp(path + 1, routes[i].name) == 0)
			return &routes[i];
	return NULL;
}

static size_t body_most(void *ctx, const struct ws_serve_request *rq)
{
	const struct route *r = find_route(rq->path);
	(void)ctx;
	return r && r->most ? r->most : LITTLE;
}

/* A form of a web page has another type, and a script needs this server's consent for this one. */
static bool is_json(const char *type)
{
	static const char json[] = "application/json";
	const size_t n = sizeof json - 1;
	return type && strncasecmp(type, json, n) == 0 &&
	       (!type[n] || type[n + strspn(type + n, " \t")] == ';');
}

/* Returns 0, or a status with the reason. A client with the key is no web page, and may reach the
 * gateway by a name that the gateway does not know: behind a proxy, or as a service of a cluster.
 */
static unsigned check_client(const struct ws_gateway *g, const struct ws_serve_request *rq,
                             const char **why)
{
	const struct route *r = find_route(rq->path);
	const bool health = r && !r->run; /* load balancers ask for it by any name */
	const bool keyed = g->opts.api_key && ws_serve_has_key(rq, g->opts.api_key, true);
	*why = "Host is not this gateway: use an IP address, localhost or the name of --listen "
	       "with the gateway's port";
	if (!keyed && !health && !gateway_is_own_host(g, rq->host))
		return 403;
	*why = "Origin is another host: web pages may not send requests here";
	if (rq->origin && !gateway_is_own_origin(rq))
		return 403;
	*why = "Unauthorized";
	if (g->opts.api_key && !keyed && !health)
		return 401;
	*why = "Content-Type is not application/json";
	return r && strcmp(r->method, "POST") == 0 && strcmp(rq->method, "POST") == 0 &&
	       !is_json(rq->content_type) ? 415 : 0;
}

static bool admit(void *ctx, const struct ws_serve_request *rq, struct ws_serve_reply *rp)
{
	const char *why = NULL;
	const unsigned status = check_client(ctx, rq, &why);
	if (status)
		answer_detail(rp, status, why);
	return status == 0;
}

static void run(struct gateway_call *c, const struct route *r)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_json *root = NULL;
	if (!r->run) {
		answer_detail(c->rp, 200, "ok");
		return;
	}
	if (strcmp(r->method, "POST") == 0) {
		const char *text = c->rq->body_len ? c->rq->body : "{}";
		root = ws_json_parse_most(text, c->rq->body_len ? c->rq->body_len : 2,
		                          WS_JSON_SMALL, "body", &err);
		if (!root || ws_json_type(root) != WS_JSON_OBJECT) {
			gateway_refuse(c, 422, "%s", root ? "body: not an object" :
			                                    gateway_words(c, err.msg));
			ws_json_free(root);
			return;
		}
		if (gateway_check_keys(root, "body", r->keys, &err)) {
			gateway_fail(c, &err);
			ws_json_free(root);
			return;
		}
	}
	c->body = root;
	r->run(c);
	ws_json_free(root);
}

int gateway_wait(struct ws_gateway *g, ws_deadline until)
{
	const struct timespec t = { .tv_sec = until / WS_NS_PER_S, .tv_nsec = until % WS_NS_PER_S };
	return pthread_cond_timedwait(&g->turn, &g->lock, &t);
}

/* Counts the requests that run; /health is always answered. Requests whose clients have left end
 * soon, so one more waits a while. */
static void run_one(struct gateway_call *c, const struct route *r)
{
	struct ws_gateway *g = c->gateway;
	const ws_deadline until = ws_deadline_in(GATEWAY_PATIENCE_NS);
	int rc = 0;
	pthread_mutex_lock(&g->lock);
	while (r->run && g->n_running >= GATEWAY_RUNNING && rc == 0)
		rc = gateway_wait(g, until);
	const bool busy = rc != 0;
	g->n_running += !busy;
	pthread_mutex_unlock(&g->lock);
	if (busy) {
		gateway_refuse_busy(c, "Too many requests are being answered");
		return;
	}
	run(c, r);
	pthread_mutex_lock(&g->lock);
	if (g->n_running-- == GATEWAY_RUNNING)
		pthread_cond_broadcast(&g->turn);
	pthread_mutex_unlock(&g->lock);
}

static void handle(void *ctx, const struct ws_serve_request *rq, struct ws_serve_reply *rp)
{
	struct ws_gateway *g = ctx;
	const struct route *r = find_route(rq->path);
	struct gateway_call c = { .gateway = g, .rq = rq, .rp = rp };
	const int64_t start = ws_now_ns();
	*rp = (struct ws_serve_reply){ .status = 200, .type = "application/json" };
	ws_buf_init(&rp->body, 0);
	if (!r) {
		answer_detail(rp, 404, "Not Found");
	} else if (strcmp(rq->method, r->method) != 0) {
		answer_detail(rp, 405, "Method Not Allowed");
		rp->allow = r->method;
	} else {
		run_one(&c, r);
	}
	char path[80];
	ws_printable(path, sizeof path, rq->path, strlen(rq->path));
	ws_log(g->opts.log, 1, "%s %s: %u in %.0f ms", rq->method, path, rp->status,
	       (double)(ws_now_ns() - start) / WS_NS_PER_MS);
}

/* ---- life ---- */

static int refuse_open(const struct ws_gateway *g, struct ws_err *err)
{
	ws_err_set(err, WS_EUSAGE,
	           "listen '%s': other machines can reach this address, and without a key anyone "
	           "there could push any checkpoint to any host", g->opts.listen);
	return ws_err_hint(err, "require a key with --require-key-file, or listen on 127.0.0.1");
}

/* Waits end by a clock that nobody sets. */
static void init_turn(pthread_cond_t *turn)
{
	pthread_condattr_t a;
	pthread_condattr_init(&a);
	pthread_condattr_setclock(&a, CLOCK_MONOTONIC);
	pthread_cond_init(turn, &a);
	pthread_condattr_destroy(&a);
}

/* Reports options that would make every push fail at the start, not at each request. */
static int try_push(const struct ws_push_opts *opts, struct ws_err *err)
{
	struct ws_push_opts dry = *opts;
	struct ws_push *p = NULL;
	dry.dry_run = true; /* the endpoints are not known yet */
	const int rc = ws_push_open(&dry, &p, err);
	ws_push_close(p);
	return rc;
}

int ws_gateway_start(const struct ws_gateway_opts *opts, struct ws_gateway **out,
                     struct ws_err *err)
{
	if (gateway_check_hosts(opts, err) || try_push(&opts->push, err))
		return -1;
	struct ws_gateway *g = calloc(1, sizeof *g);
	if (!g)
		return ws_oom(err);
	g->opts = *opts;
	pthread_mutex_init(&g->lock, NULL);
	init_turn(&g->turn);
	const struct ws_serve_handler handler = { .ctx = g, .admit = admit, .handle = handle,
		                                  .body_most = body_most };
	int fd = -1;
	if (ws_metrics_open(&g->metrics, err) || ws_cancel_init(&g->stop, err) ||
	    ws_serve_parse_listen(opts->listen, g->host, &g->port,
	                          err) ||
	    (fd = ws_serve_listen(g->host, &g->port, opts->cancel, g->url, err)) < 0)
		goto fail;
	if (!opts->api_key && !ws_serve_is_loopback(fd)) {
		close(fd);
		refuse_open(g, err);
		goto fail;
	}
	if (ws_serve_http_open(&handler, fd, &g->http, err)) /* takes fd */
		goto fail;
	*out = g;
	return 0;
fail:
	ws_gateway_stop(g);
	return -1;
}

const char *ws_gateway_url(const struct ws_gateway *g)
{
	return g->url;
}

void ws_gateway_stop(struct ws_gateway *g)
{
	if (!g)
		return;
	ws_cancel_set(&g->stop);
	ws_serve_http_close(g->http);
	ws_cancel_fini(&g->stop);
	gateway_quant_free(&g->quant);
	ws_metrics_close(g->metrics);
	pthread_cond_destroy(&g->turn);
	pthread_mutex_destroy(&g->lock);
	free(g);
}
