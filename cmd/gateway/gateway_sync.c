/* SPDX-License-Identifier: Apache-2.0 */
/* gateway_sync.c - runs the push that a request describes.
 *
 * Difference from xorl's server: xorl pauses with "retract" by default and flushes the cache
 * ("auto", also the default) while requests wait. Servers refuse that flush after the weights have
 * changed, or crash. Here a request with a flush implies "abort", and the reply's
 * "pause_mode" says so. With "cache_invalidation_mode": "none" and no "flush_cache" nothing is
 * flushed, and "pause_mode" is used as requested ("retract" if it is not given). A request with
 * none of these keys uses the gateway's options. */
#include "gateway_core.h"

#include "wsync/tool/str.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sync {
	struct gateway_call *call;
	const char *paths[GATEWAY_PATHS], *adapters[GATEWAY_PATHS], *pools[GATEWAY_PATHS];
	size_t n_paths, n_adapters, n_pools;
	char *resolved[2 * GATEWAY_PATHS]; /* of paths and adapters, owned */
	/* the URL of the one endpoint to push to; NULL: those of the pools */
	const char *only;
	const char *mode;          /* of cache invalidation */
	bool flush;                /* as requested */
	struct gateway_quant quant;
	const char **urls;         /* normalized; those of `registry`, or the only one */
	size_t n_urls;
	struct ws_registry registry;
	struct ws_transform_opts transform;
	struct ws_push_opts push;
	struct ws_buf warnings;    /* a line each */
};

/* ---- members of the request ---- */

static int take_pause(struct sync *s, const char *name, struct ws_err *err)
{
	static const enum ws_pause_mode modes[] = { WS_PAUSE_ABORT, WS_PAUSE_RETRACT,
		                                    WS_PAUSE_IN_PLACE };
	for (size_t i = 0; name && i < sizeof modes / sizeof modes[0]; i++)
		if (strcmp(name, ws_pause_mode_name(modes[i])) == 0) {
			s->push.pause = modes[i];
			name = NULL;
		}
	return name ? ws_serve_field_invalid(err, "pause_mode",
	                                     "Input should be 'retract', 'abort' or 'in_place'") :
	              0;
}

/* If the request sets neither the cache nor the pause, the gateway's options apply. */
static int take_cache(struct sync *s, bool said, struct ws_err *err)
{
	const bool never = strcmp(s->mode, "none") == 0;
	if (!said && !s->flush && strcmp(s->mode, "auto") == 0)
		return 0;
	if (!never && strcmp(s->mode, "auto") != 0 && strcmp(s->mode, "flush") != 0)
		return ws_serve_field_invalid(err, "cache_invalidation_mode",
		                              "Input should be 'auto', 'flush' or 'none'");
	s->push.flush = never && !s->flush ? WS_FLUSH_NEVER : WS_FLUSH_LAST;
	if (s->push.flush == WS_FLUSH_LAST)
		s->push.pause = WS_PAUSE_ABORT;
	else if (!said)
		s->push.pause = WS_PAUSE_RETRACT;
	return 0;
}

static int take_rendezvous(struct sync *s, const struct ws_json *body, struct ws_err *err)
{
	const char *address = "", *group = NULL;
	int64_t port = 0, megabytes = 0;
	if (gateway_text(body, "master_address", &address, err) ||
	    gateway_int(body, "master_port", 0, 65535, &port, err) ||
	    gateway_text(body, "group_name", &group, err) ||
	    gateway_int(body, "buffer_size_mb", 1, 1 << 20, &megabytes, err))
		return -1;
	if (*address && strcmp(address, "localhost") != 0)
		s->push.master_address = address;
	if (port)
		s->push.master_port = (uint16_t)port;
	if (group)
		s->push.group_name = group;
	if (megabytes)
		s->push.bucket_size = (uint64_t)megabytes << 20;
	return 0;
}

/* Refuses an empty list: it is a mistake, and would count as a missing key. */
static int take_list(struct sync *s, const char *key, const char **out, size_t *n,
                     const char *instead, struct ws_err *err)
{
	if (gateway_texts(s->call->body, key, out, GATEWAY_PATHS, n, err))
		return -1;
	const struct ws_json *node = ws_json_get(s->call->body, key);
	if (*n || !node || ws_json_type(node) == WS_JSON_NULL)
		return 0;
	return ws_err_set(err, WS_EINPUT, "%s: the list is empty; leave the key out for %s", key,
	                  instead);
}

static int take_request(struct sync *s, struct ws_err *err)
{
	const struct ws_json *body = s->call->body;
	const char *pause = NULL, *model = NULL;
	s->mode = "auto";
	if (take_list(s, "source", s->paths, &s->n_paths, "the gateway's --source", err) ||
	    take_list(s, "lora", s->adapters, &s->n_adapters, "the gateway's --lora", err) ||
	    take_list(s, "pools", s->pools, &s->n_pools, "all endpoints", err) ||
	    gateway_text(body, "model_id", &model, err) ||
	    gateway_text(body, "weight_version", &s->push.weight_version, err) ||
	    gateway_text(body, "pause_mode", &pause, err) || take_pause(s, pause, err) ||
	    ws_serve_field_bool(body, "flush_cache", &s->flush, err) ||
	    gateway_text(body, "cache_invalidation_mode", &s->mode, err) ||
	    take_cache(s, pause, err) || take_rendezvous(s, body, err) ||
	    gateway_quant_read(body, &s->quant, err))
		return -1;
	if (model)
		return ws_err_set(
			err, WS_EINPUT,
			"model_id '%.200s': sessions live in a trainer; name the adapter's "
			"directory as \"lora\"",
			model);
	return 0;
}

/* ---- sources ---- */

static void free_resolved(struct sync *s)
{
	for (size_t i = 0; i < 2 * GATEWAY_PATHS; i++) {
		free(s->resolved[i]);
		s->resolved[i] = NULL;
	}
}

static int find_sources(struct sync *s, struct ws_err *err)
{
	const struct ws_gateway *g = s->call->gateway;
	for (size_t i = 0; g->opts.n_roots && i < s->n_paths + s->n_adapters; i++) {
		const char **path = i < s->n_paths ? &s->paths[i] : &s->adapters[i - s->n_paths];
		if (gateway_find_source(g, path, &s->resolved[i], err))
			return -1;
	}
	for (size_t i = 0; s->n_paths == 0 && i < g->opts.n_sources && i < GATEWAY_PATHS; i++)
		s->paths[i] = g->opts.sources[i];
	if (s->n_paths == 0)
		s->n_paths = g->opts.n_sources < GATEWAY_PATHS ? g->opts.n_sources : GATEWAY_PATHS;
	return s->n_paths ? 0 : ws_serve_field_missing(err, "source");
}

/* ---- endpoints ---- */

static bool is_wanted(const struct sync *s, const struct ws_registry_entry *e)
{
	if (s->only)
		return strcmp(s->only, e->url) == 0;
	for (size_t i = 0; i < s->n_pools; i++)
		if (strcmp(s->pools[i], e->pool) == 0)
			return true;
	return s->n_pools == 0;
}

/* Is there an endpoint before the n-th in this pool? */
static bool has_pool(const struct ws_registry *r, size_t n, const char *pool)
{
	for (size_t i = 0; i < n; i++)
		if (strcmp(r->items[i].pool, pool) == 0)
			return true;
	return false;
}

static int check_pools(const struct sync *s, struct ws_err *err)
{
	const struct ws_registry *r = &s->registry;
	char list[512] = "";
	size_t i = 0;
	while (i < s->n_pools && has_pool(r, r->n, s->pools[i]))
		i++;
	if (i == s->n_pools)
		return 0;
	for (size_t k = 0, used = 0; k < r->n && used < sizeof list; k++)
		if (!has_pool(r, k, r->items[k].pool))
			used += (size_t)snprintf(list + used, sizeof list - used, "%s%s",
			                         used ? ", " : "", r->items[k].pool);
	return ws_err_set(err, WS_EINPUT,
	                  "pools: no endpoint is registered in pool '%.100s'; known pools: %s",
	                  s->pools[i], list);
}

static int find_endpoints(struct sync *s, struct ws_err *err)
{
	ws_registry_free(&s->registry);
	free(s->urls);
	s->urls = NULL;
	s->n_urls = 0;
	if (ws_registry_load(s->call->gateway->opts.registry, &s->registry, err))
		return -1;
	s->urls = calloc(s->registry.n + 1, sizeof *s->urls);
	if (!s->urls)
		return ws_oom(err);
	for (size_t i = 0; i < s->registry.n; i++) {
		const char *url = s->registry.items[i].url;
		if (!is_wanted(s, &s->registry.items[i]))
			continue;
		if (!gateway_permits(s->call->gateway, url))
			return ws_err_set(err, WS_EINPUT,
			                  "%s is registered, but its host is not allowed here "
			                  "(--allow-host)", url);
		s->urls[s->n_urls++] = url;
	}
	if (s->registry.n && check_pools(s, err))
		return -1;
	if (s->n_urls)
		return 0;
	if (s->only)
		return ws_err_set(err, WS_EINPUT, "%s is no longer registered", s->only);
	return ws_err_set(err, WS_EINPUT, "no inference endpoint is registered");
}

/* ---- transforms ---- */

/* Uses the quantization of the request, else the one set before, else the endpoints'. */
static int find_quant(struct sync *s, struct ws_err *err)
{
	struct ws_gateway *g = s->call->gateway;
	int rc = 0;
	if (!s->quant.known) {
		gateway_quant_free(&s->quant);
		pthread_mutex_lock(&g->lock);
		rc = gateway_quant_copy(&g->quant, &s->quant, err);
		pthread_mutex_unlock(&g->lock);
	}
	for (size_t i = 0; !s->quant.known && i < s->registry.n; i++)
		s->quant.fp8 |= is_wanted(s, &s->registry.items[i]) &&
		                strcmp(s->registry.items[i].quantization, "fp8") == 0;
	return rc;
}

static void set_up_push(struct sync *s)
{
	if (s->push.transform)
		s->transform = *s->push.transform;
	if (s->quant.fp8) {
		s->transform.quantize = WS_QUANTIZE_FP8;
		memcpy(s->transform.block, s->quant.block, sizeof s->transform.block);
		s->transform.skip = (const char *const *)s->quant.skip;
		s->transform.n_skip = s->quant.n_skip;
	} else if (s->quant.known) {
		s->transform.quantize = WS_QUANTIZE_NONE;
	}
	if (s->n_adapters) {
		s->transform.adapters = s->adapters;
		s->transform.n_adapters = s->n_adapters;
	}
	s->push.transform = &s->transform;
	s->push.endpoints = s->urls;
	s->push.n_endpoints = s->n_urls;
	s->push.cancel = &s->call->gateway->stop;
}

/* ---- the push ---- */

static void take_event(void *ctx, const struct ws_event *ev)
{
	struct sync *s = ctx;
	const struct ws_sink *sink = &s->call->gateway->opts.push.sink;
	if (ev->type == WS_EV_WARNING) {
		ws_buf_puts(&s->warnings, gateway_words(s->call, ev->warning.message));
		ws_buf_putc(&s->warnings, '\n');
	}
	gateway_hear(s->call->gateway, ev);
	sink->event(sink->ctx, ev);
}

static void put_times(struct ws_jw *w, const struct ws_ev_end *end)
{
	ws_jw_double(w, "transfer_time", (double)end->total_ns / WS_NS_PER_S);
	ws_jw_uint(w, "total_bytes", end->bytes);
	ws_jw_uint(w, "num_parameters", end->tensors);
	ws_jw_uint(w, "num_buckets", end->buckets);
	ws_jw_object(w, "timing_breakdown");
	for (int i = 0; i < WS_PHASE_COUNT; i++)
		ws_jw_double(w, ws_phase_name((enum ws_phase)i), (double)end->ns[i] / WS_NS_PER_S);
	ws_jw_end_object(w);
}

static void put_endpoints(const struct sync *s, struct ws_jw *w, const struct ws_ev_end *end)
{
	ws_jw_array(w, "endpoints_synced");
	for (size_t i = 0; i < end->n_endpoints; i++) {
		const struct ws_ev_endpoint_result *e = &end->endpoints[i];
		char host[256] = "";
		uint16_t port = 0;
		ws_endpoint_host_port(e->url, host, &port, NULL);
		ws_jw_object(w, NULL);
		ws_jw_str(w, "host", host);
		ws_jw_uint(w, "port", port);
		ws_jw_bool(w, "success", e->ok);
		ws_jw_str(w, "message", gateway_words(s->call, e->message));
		ws_jw_str(w, "state", ws_endpoint_state_name(e->state));
		ws_jw_bool(w, "paused", e->paused);
		ws_jw_bool(w, "unflushed", e->unflushed);
		ws_jw_end_object(w);
	}
	ws_jw_end_array(w);
}

static void put_error(const struct sync *s, struct ws_jw *w, const struct ws_err *err)
{
	ws_jw_str(w, "detail", gateway_words(s->call, err->msg));
	ws_jw_object(w, "error");
	ws_jw_str(w, "code", ws_code_name(err->code));
	ws_jw_str(w, "message", gateway_words(s->call, err->msg));
	ws_jw_str(w, "hint", gateway_words(s->call, err->hint));
	ws_jw_str(w, "endpoint", err->endpoint);
	ws_jw_str(w, "phase", err->phase);
	ws_jw_end_object(w);
}

static void put_warnings(struct ws_jw *w, struct ws_buf *warnings)
{
	ws_jw_array(w, "warnings");
	for (const char *line = ws_buf_str(warnings); *line;) {
		const size_t n = strcspn(line, "\n");
		ws_jw_strn(w, NULL, line, n);
		line += n + (line[n] == '\n');
	}
	ws_jw_end_array(w);
}

static void answer(struct sync *s, const struct ws_ev_end *end, const struct ws_err *err)
{
	const bool flushed = s->push.flush != WS_FLUSH_NEVER;
	char text[256];
	snprintf(text, sizeof text, "Synchronized %zu tensors with %zu endpoints", end->tensors,
	         end->n_endpoints);
	struct ws_jw w = gateway_begin(s->call->rp, err ? gateway_status(err) : 200);
	ws_jw_bool(&w, "success", !err);
	ws_jw_str(&w, "message", err ? gateway_words(s->call, err->msg) : text);
	put_times(&w, end);
	ws_jw_array(&w, "p2p_rank_summaries");
	ws_jw_end_array(&w);
	ws_jw_str(&w, "cache_invalidation_mode", s->mode);
	ws_jw_bool(&w, "flush_cache", flushed);
	ws_jw_str(&w, "pause_mode", ws_pause_mode_name(s->push.pause));
	gateway_quant_write(&s->quant, &w, "quantization");
	ws_jw_str(&w, "weight_version", end->weight_version);
	put_endpoints(s, &w, end);
	put_warnings(&w, &s->warnings);
	if (err)
		put_error(s, &w, err);
	ws_jw_end_object(&w);
}

static int run(struct sync *s, struct ws_err *err)
{
	const struct ws_sink *sink = &s->call->gateway->opts.push.sink;
	const struct ws_push_source source = { .paths = s->paths, .n_paths = s->n_paths };
	struct ws_push *p = NULL;
	struct ws_ev_end end = { .ok = false };
	s->push.sink = (struct ws_sink){ take_event, s };
	if (ws_push_open(&s->push, &p, err))
		return -1;
	s->call->gateway->opts.reads(s->call->rq->body, s->call->rq->body_len);
	const int rc = ws_push_run(p, &source, &end, err);
	ws_push_finish(p, &end);
	answer(s, &end, rc ? err : NULL);
	const struct ws_event ev = { .type = WS_EV_RESULT, .end = end };
	gateway_hear(s->call->gateway, &ev);
	sink->event(sink->ctx, &ev);
	ws_push_close(p);
	s->call->gateway->opts.reads("", 0);
	return rc;
}

/* ---- turns ---- */

struct gateway_turn {
	struct gateway_turn *next;
	const struct ws_serve_request *rq;
	bool removed; /* from the queue: its client has left */
};

/* Removes those that wait and whose clients have left; not the first, which runs. Returns how many
 * remain. */
static int count_turns(struct ws_gateway *g)
{
	struct gateway_turn **at = &g->turns;
	int n = 0;
	while (*at) {
		struct gateway_turn *t = *at;
		t->removed = n && t->rq->left(t->rq->query_ctx);
		if (t->removed)
			*at = t->next;
		else
			at = &t->next;
		n += !t->removed;
	}
	return n;
}

/* Appends t and returns how many are before it; -1: too many. */
static int queue(struct ws_gateway *g, struct gateway_turn *t)
{
	struct gateway_turn **at = &g->turns;
	const int n = count_turns(g);
	pthread_cond_broadcast(&g->turn);
	if (n > GATEWAY_WAITING)
		return -1;
	while (*at)
		at = &(*at)->next;
	*at = t;
	return n;
}

static void remove_turn(struct ws_gateway *g, struct gateway_turn *t)
{
	struct gateway_turn **at = &g->turns;
	while (*at && *at != t)
		at = &(*at)->next;
	if (*at)
		*at = t->next;
	pthread_cond_broadcast(&g->turn);
}

/* Waits until t is the first. Returns false when its client has left or the gateway stops. A sync
 * that need not wait begins for a client that has left too. */
static bool await_turn(struct ws_gateway *g, const struct gateway_turn *t)
{
	bool waits = false;
	while (g->turns != t && !t->removed && !ws_cancelled(&g->stop)) {
		waits = true;
		if (gateway_wait(g, ws_deadline_in(WS_NS_PER_S)))
			count_turns(g);
	}
	return g->turns == t && !(waits && t->rq->left(t->rq->query_ctx));
}

static int take_turn(struct gateway_call *c, struct gateway_turn *t, struct ws_err *err)
{
	struct ws_gateway *g = c->gateway;
	pthread_mutex_lock(&g->lock);
	const int before = queue(g, t);
	if (before > 0)
		ws_log(g->opts.log, 1, "sync: waits for %d before it", before);
	const bool mine = before >= 0 && await_turn(g, t);
	if (before >= 0 && !mine)
		remove_turn(g, t);
	pthread_mutex_unlock(&g->lock);
	ws_log(g->opts.log, 1, mine ? "sync: begins" : before < 0 ? "sync: too many wait" :
	       "sync: its client has left");
	if (mine)
		return 0;
	gateway_refuse_busy(c, before < 0 ? "Too many syncs wait for their turn" :
	                                    "The sync has not begun");
	return ws_err_set(err, WS_ETIMEOUT, "too many syncs wait for their turn");
}

static void end_turn(struct ws_gateway *g, struct gateway_turn *t)
{
	pthread_mutex_lock(&g->lock);
	remove_turn(g, t);
	pthread_mutex_unlock(&g->lock);
}

/* Pushes the sources and to the endpoints that are allowed and registered when the turn comes. The
 * search before the turn only rejects a wrong request early. */
static int run_in_turn(struct sync *s, struct ws_err *err)
{
	struct gateway_turn turn = { .rq = s->call->rq };
	if (take_request(s, err) || find_sources(s, err) || find_endpoints(s, err) ||
	    take_turn(s->call, &turn, err))
		return -1;
	int rc = find_endpoints(s, err) || find_quant(s, err) ? -1 : 0;
	if (rc == 0) {
		set_up_push(s);
		rc = run(s, err);
	}
	end_turn(s->call->gateway, &turn);
	return rc;
}

bool gateway_push(struct gateway_call *c, const char *only, struct ws_buf *message)
{
	struct ws_gateway *g = c->gateway;
	struct ws_err err = WS_ERR_INIT;
	struct sync *s = calloc(1, sizeof *s);
	if (!s) {
		gateway_refuse(c, 500, "out of memory");
		return false;
	}
	s->call = c;
	s->only = only;
	s->push = g->opts.push;
	ws_buf_init(&s->warnings, 1 << 20);
	const int rc = run_in_turn(s, &err);
	if (rc && c->rp->body.len == 0) /* the push did not begin */
		gateway_fail(c, &err);
	if (message)
		ws_buf_puts(message, rc ? gateway_words(c, err.msg) : "weights are synchronized");
	gateway_quant_free(&s->quant);
	ws_registry_free(&s->registry);
	ws_buf_free(&s->warnings);
	free_resolved(s);
	free(s->urls);
	free(s);
	return rc == 0;
}

void gateway_sync(struct gateway_call *c)
{
	gateway_push(c, NULL, NULL);
}

void gateway_set_quantization(struct gateway_call *c)
{
	struct ws_gateway *g = c->gateway;
	struct gateway_quant q;
	struct ws_err err = WS_ERR_INIT;
	if (!ws_json_get(c->body, "quantization")) {
		ws_serve_field_missing(&err, "quantization");
		gateway_fail(c, &err);
		return;
	}
	if (gateway_quant_read(c->body, &q, &err)) {
		gateway_fail(c, &err);
		return;
	}
	struct ws_jw w = gateway_begin(c->rp, 200);
	gateway_quant_write(&q, &w, "quantization");
	ws_jw_str(&w, "message", q.fp8 ? "Weights are sent in FP8 from now on" :
	          q.known ? "Weights are sent as they are from now on"
	                  : "Weights are sent as the endpoints keep them from now on");
	ws_jw_end_object(&w);
	pthread_mutex_lock(&g->lock);
	gateway_quant_free(&g->quant);
	g->quant = q;
	pthread_mutex_unlock(&g->lock);
}
