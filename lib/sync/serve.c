/* SPDX-License-Identifier: Apache-2.0 */
/* serve.c - the life of the endpoint and its state machine.
 *
 * Two things keep requests apart, as in the servers. The scheduler loop runs one of them at a time:
 * an init that waits for its group blocks a flush that comes later, and a destroy waits for the
 * update before it. The model-update lock is taken by an update outside of a pause, which then waits
 * until no request runs; while paused, updates go ahead and a continue waits for them. */
#include "serve_corrupt.h"
#include "serve_group.h"
#include "serve_lineage.h"
#include "serve_model.h"
#include "serve_routes.h"
#include "serve_toy.h"

#include "http.h"
#include "sock.h"
#include "wsync/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

/* ---- who may run ---- */

static void announce(struct ws_serve *s)
{
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

bool ws_serve_occupy(struct ws_serve *s, bool receiving)
{
	pthread_mutex_lock(&s->lock);
	while (s->occupied && !s->stopping)
		pthread_cond_wait(&s->changed, &s->lock);
	const bool ok = !s->stopping;
	if (ok) {
		s->occupied = true;
		s->receiving = receiving;
		s->stirred |= receiving;
	}
	pthread_mutex_unlock(&s->lock);
	return ok;
}

void ws_serve_vacate(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	s->occupied = s->receiving = false;
	announce(s);
}

void ws_serve_stir(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	s->stirred = true;
	pthread_mutex_unlock(&s->lock);
}

void ws_serve_abort_requests(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	s->running = s->waiting = 0;
	announce(s);
}

bool ws_serve_enter_update(struct ws_serve *s, bool abort_all, bool *writer)
{
	if (abort_all)
		ws_serve_abort_requests(s);
	pthread_mutex_lock(&s->lock);
	while (!s->stopping && !s->paused && (s->running || s->writer))
		pthread_cond_wait(&s->changed, &s->lock);
	const bool ok = !s->stopping;
	*writer = !s->paused;
	if (ok && *writer)
		s->writer = true;
	else if (ok)
		s->under_pause++;
	pthread_mutex_unlock(&s->lock);
	return ok;
}

void ws_serve_leave_update(struct ws_serve *s, bool writer)
{
	pthread_mutex_lock(&s->lock);
	if (writer)
		s->writer = false;
	else
		s->under_pause--;
	announce(s);
}

bool ws_serve_pause(struct ws_serve *s, enum ws_serve_pause mode)
{
	pthread_mutex_lock(&s->lock);
	s->paused = true;
	s->mode = mode;
	s->sync++;
	if (mode == WS_PAUSE_RETRACT) {
		s->waiting += s->running;
		s->running = 0;
	}
	/* abort alone waits for the model-update lock; the other modes answer at once. */
	while (mode == WS_PAUSE_ABORT && s->writer && !s->stopping)
		pthread_cond_wait(&s->changed, &s->lock);
	if (mode == WS_PAUSE_ABORT)
		s->running = s->waiting = 0;
	const bool ok = !s->stopping;
	announce(s);
	return ok;
}

/* The load comes back with it: what was retracted runs again, and clients send new requests. */
bool ws_serve_continue(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	while (s->under_pause && !s->stopping)
		pthread_cond_wait(&s->changed, &s->lock);
	const bool ok = !s->stopping;
	s->paused = false;
	s->running = s->opts.busy;
	s->waiting = 0;
	announce(s);
	return ok;
}

void ws_serve_wait_changed(struct ws_serve *s, ws_deadline until)
{
	const struct timespec ts = { .tv_sec = (time_t)(until / WS_NS_PER_S),
		                     .tv_nsec = (long)(until % WS_NS_PER_S) };
	pthread_cond_timedwait(&s->changed, &s->lock, &ts);
}

bool ws_serve_flush(struct ws_serve *s, int64_t wait_ns)
{
	const ws_deadline until = ws_deadline_in(wait_ns);
	pthread_mutex_lock(&s->lock);
	while (!s->stopping && (s->running || s->waiting) && !ws_deadline_passed(until))
		ws_serve_wait_changed(s, until);
	const bool idle = !s->running && !s->waiting;
	if (idle) {
		s->journal.flushes++;
		ws_serve_prompts_forget(&s->prompts);
	} else {
		s->journal.failed_flushes++;
	}
	pthread_mutex_unlock(&s->lock);
	return idle;
}

int ws_serve_set_version(struct ws_serve *s, const char *version, struct ws_err *err)
{
	char *copy = strdup(version);
	if (!copy)
		return ws_err_set(err, WS_ESYSTEM, "not enough memory");
	pthread_mutex_lock(&s->lock);
	free(s->weight_version);
	s->weight_version = copy;
	pthread_mutex_unlock(&s->lock);
	return 0;
}

void ws_serve_wait_stop(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	while (!s->stopping)
		pthread_cond_wait(&s->changed, &s->lock);
	pthread_mutex_unlock(&s->lock);
}

/* One rank's memory can be hashed when somebody asks, and so can the shares that ranks have of a model;
 * several whose bytes are kept once must be compared as they receive. */
bool ws_serve_hashes(const struct ws_serve *s)
{
	return s->opts.keep == WS_KEEP_HASH ||
	       (s->opts.keep == WS_KEEP_MEMORY && s->opts.tp > 1 && !s->model);
}

/* ---- life ---- */

static int copy_text(char **out, const char *text, const char *fallback, struct ws_err *err)
{
	if (!text && !fallback)
		return 0;
	*out = strdup(text ? text : fallback);
	return *out ? 0 : ws_err_set(err, WS_ESYSTEM, "not enough memory");
}

static int open_model(struct ws_serve *s, const struct ws_serve_opts *o, struct ws_err *err)
{
	if (s->opts.tp % s->opts.ep)
		return ws_err_set(err, WS_EUSAGE, "%u tensor-parallel ranks do not form %u expert-parallel "
		                  "groups", s->opts.tp, s->opts.ep);
	if (o->routed_experts && !(WS_IN_FROM_2026 & 1u << o->lineage))
		return ws_err_set(err, WS_EUSAGE, "%s has no answers with routed experts", s->traits->name);
	if (!o->model)
		return 0;
	return ws_serve_model_open(o->model, s->opts.tp, s->opts.ep, o->dtype, o->quantization,
	                           o->keep == WS_KEEP_MEMORY, &s->model, err);
}

static const char *dtype_of(const struct ws_serve *s)
{
	return s->model ? ws_dtype_torch(s->model->dtype) : "bfloat16";
}

static const char *quantization_of(const struct ws_serve *s)
{
	const char *method = s->model ? ws_config_quant(s->model->config)->method : "";
	return *method ? method : NULL;
}

static int copy_texts(struct ws_serve *s, const struct ws_serve_opts *o, struct ws_err *err)
{
	const char *path = o->model ? o->model : "wsync-endpoint";
	if (copy_text(&s->model_path, o->model_path, path, err) ||
	    copy_text(&s->tokenizer_path, s->model_path, path, err) ||
	    copy_text(&s->served_model_name, o->served_model_name, s->model_path, err) ||
	    copy_text(&s->dtype, o->dtype, dtype_of(s), err) ||
	    copy_text(&s->quantization, o->quantization, quantization_of(s), err) ||
	    copy_text(&s->weight_version, NULL, "default", err))
		return -1;
	/* Only these copies are used from here on. */
	s->opts.listen = s->opts.model = s->opts.model_path = s->opts.served_model_name = NULL;
	s->opts.dtype = s->opts.quantization = s->opts.api_key_file = NULL;
	s->opts.faults = NULL;
	return 0;
}

static int parse_faults(struct ws_serve *s, const struct ws_serve_opts *o, struct ws_err *err)
{
	if (!o->n_faults)
		return 0;
	s->faults = calloc(o->n_faults, sizeof *s->faults);
	if (!s->faults)
		return ws_err_set(err, WS_ESYSTEM, "not enough memory");
	for (; s->n_faults < o->n_faults; s->n_faults++)
		if (ws_serve_fault_parse(o->faults[s->n_faults], o->lineage, &s->faults[s->n_faults],
		                         err))
			return -1;
	for (size_t i = 0; i < s->n_faults; i++)
		if (ws_serve_corrupt_check(s, &s->faults[i], err))
			return -1;
	return 0;
}

static void warn(const struct ws_serve_opts *o, const char *text)
{
	if (o->warn)
		o->warn(o->ctx, text);
}

static int read_key(struct ws_serve *s, const struct ws_serve_opts *o, struct ws_err *err)
{
	bool loose = false;
	if (!o->api_key_file)
		return 0;
	if (ws_http_read_key(o->api_key_file, &s->api_key, &loose, err))
		return -1;
	if (loose)
		warn(o, "the file with the API key can be read by other users");
	return 0;
}

static int init_locks(struct ws_serve *s, struct ws_err *err)
{
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	const int bad = pthread_mutex_init(&s->lock, NULL) || pthread_cond_init(&s->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	return bad ? ws_err_set(err, WS_ESYSTEM, "no lock for the endpoint") : 0;
}

int ws_serve_new(const struct ws_serve_opts *opts, struct ws_serve **out, struct ws_err *err)
{
	if (opts->tp > WS_SERVE_MAX_TP)
		return ws_err_set(err, WS_EUSAGE, "%u tensor-parallel ranks: more than %d", opts->tp,
		                  WS_SERVE_MAX_TP);
	struct ws_serve *s = calloc(1, sizeof *s);
	if (!s)
		return ws_err_set(err, WS_ESYSTEM, "not enough memory");
	if (init_locks(s, err)) {
		free(s);
		return -1;
	}
	s->opts = *opts;
	s->traits = ws_serve_lineage_traits(opts->lineage);
	s->opts.tp = opts->tp ? opts->tp : 1;
	s->opts.ep = opts->ep ? opts->ep : 1;
	s->opts.init_ns = opts->init_ns ? opts->init_ns : 600 * WS_NS_PER_S;
	s->opts.receive_ns = opts->receive_ns ? opts->receive_ns : 1800 * WS_NS_PER_S;
	s->opts.slow_ns = opts->slow_ns ? opts->slow_ns : 2 * WS_NS_PER_S;
	s->opts.ready_ns = opts->ready_ns ? opts->ready_ns : 60 * WS_NS_PER_S;
	s->opts.complete_ns = opts->complete_ns ? opts->complete_ns : 300 * WS_NS_PER_S;
	s->running = opts->busy;
	s->sync = 1;
	s->started_ns = ws_now_ns();
	s->created = (int64_t)time(NULL);
	if (ws_serve_parse_listen(opts->listen ? opts->listen : "127.0.0.1:30000", s->host, &s->port, err) ||
	    open_model(s, opts, err) || copy_texts(s, opts, err) || parse_faults(s, opts, err) ||
	    read_key(s, opts, err)) {
		ws_serve_stop(s);
		return -1;
	}
	*out = s;
	return 0;
}

static void warn_when_open(const struct ws_serve *s, const struct ws_serve_opts *o)
{
	bool loopback = false;
	const bool known = !ws_host_is_wildcard(s->host) &&
	                   ws_host_is_loopback(s->host, &loopback, NULL) == 0;
	if (!s->api_key && !(known && loopback))
		warn(o, "whoever reaches this address can make the endpoint connect anywhere: "
		        "give it a key with --api-key-file");
}

static bool admit(void *ctx, const struct ws_serve_request *rq, struct ws_serve_reply *rp)
{
	return ws_serve_admit(ctx, rq, rp);
}

static void handle(void *ctx, const struct ws_serve_request *rq, struct ws_serve_reply *rp)
{
	ws_serve_handle(ctx, rq, rp);
}

int ws_serve_start(const struct ws_serve_opts *opts, struct ws_serve **out, struct ws_err *err)
{
	struct ws_serve *s = NULL;
	if (ws_serve_new(opts, &s, err))
		return -1;
	const int fd = ws_serve_listen(s->host, &s->port, s->url, err);
	if (fd < 0)
		goto fail;
	warn_when_open(s, opts);
	const struct ws_serve_handler handler = { s, admit, handle };
	if (ws_serve_http_open(&handler, fd, &s->http, err))
		goto fail;
	ws_log(opts->log, 1, "listening on %s", s->url);
	*out = s;
	return 0;
fail:
	ws_serve_stop(s);
	return -1;
}

const char *ws_serve_url(const struct ws_serve *s)
{
	return s->url;
}

void ws_serve_measure(const struct ws_serve *s, struct ws_serve_size *out)
{
	const struct ws_serve_model *m = s->model;
	*out = (struct ws_serve_size){ 0 };
	if (!m)
		return;
	out->family = ws_layout_family(m->layout);
	out->kept = m->memory[0] != NULL;
	for (size_t i = 0; i < ws_layout_param_count(m->layout); i++)
		out->params += !ws_layout_param(m->layout, i)->tied_to;
	for (unsigned r = 0; r < m->tp; r++)
		out->bytes += m->rank_bytes[r];
}

/* From here on nothing waits any more: every request in work comes to an end. */
static void wake_everything(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	s->stopping = true;
	for (struct ws_serve_group *g = s->groups; g; g = g->next)
		ws_serve_group_abort(g, "the endpoint stops");
	announce(s);
}

void ws_serve_stop(struct ws_serve *s)
{
	if (!s)
		return;
	wake_everything(s);
	ws_serve_http_close(s->http);
	ws_serve_two_phase_fini(s);
	while (s->groups) {
		struct ws_serve_group *g = s->groups;
		s->groups = g->next;
		ws_serve_group_free(g);
	}
	ws_serve_weights_fini(&s->weights);
	ws_serve_snapshot_free(s->snapshot);
	ws_serve_model_close(s->model);
	ws_serve_journal_fini(&s->journal);
	if (s->api_key)
		explicit_bzero(s->api_key, strlen(s->api_key));
	free(s->api_key);
	free(s->model_path);
	free(s->tokenizer_path);
	free(s->served_model_name);
	free(s->dtype);
	free(s->quantization);
	ws_serve_prompts_forget(&s->prompts);
	ws_serve_toys_free(s);
	free(s->weight_version);
	free(s->faults);
	ws_serve_corrupt_free(s->bucket_before);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->lock);
	free(s);
}
