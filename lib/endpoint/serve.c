/* SPDX-License-Identifier: Apache-2.0 */
/* serve.c - opens, starts, stops and frees the endpoint. */
#include "serve_gpu.h"
#include "serve_group.h"
#include "serve_lineage.h"
#include "serve_model.h"
#include "serve_call.h"
#include "serve_vllm.h"

#include "http.h"
#include "sock.h"
#include "wsync/tool/str.h"

#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <time.h>
#include <unistd.h>

static int copy_text(char **out, const char *text, const char *fallback, struct ws_err *err)
{
	if (!text && !fallback)
		return 0;
	*out = strdup(text ? text : fallback);
	return *out ? 0 : ws_oom(err);
}

static int open_model(struct ws_serve *s, const struct ws_serve_opts *o, struct ws_err *err)
{
	if (s->opts.tp % s->opts.ep)
		return ws_err_set(err, WS_EUSAGE,
		                  "%u tensor-parallel ranks do not form %u expert-parallel groups",
		                  s->opts.tp, s->opts.ep);
	if (o->routed_experts && !ws_serve_in(o->lineage, WS_IN_FROM_2026))
		return ws_err_set(err, WS_EUSAGE, "%s has no answers with routed experts",
		                  ws_serve_lineages[o->lineage].name);
	s->opts.device = !o->device ? NULL : strcmp(o->device, "cuda") ? "cpu" : "cuda";
	if (o->device && (!o->model || o->keep != WS_KEEP_MEMORY))
		return ws_err_set(err, WS_EUSAGE,
		                  "{device}: the checksums of parameters need {model} and {keep} "
		                  "memory");
	if (!o->model)
		return 0;
	const unsigned rules =
		ws_quant_rules(s->vllm, ws_serve_lineages[s->opts.lineage].version);
	if (ws_serve_model_open(o->model, rules, s->opts.tp, s->opts.ep, o->dtype, o->quantization,
	                        o->keep == WS_KEEP_MEMORY, &s->model, err))
		return -1;
	s->model->refuses_unknown = s->vllm != NULL;
	return 0;
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
	/* Only the copies are used from here on: the caller may free its strings. */
	s->opts.listen = s->opts.model = s->opts.model_path = s->opts.served_model_name = NULL;
	s->opts.dtype = s->opts.quantization = s->opts.api_key_file = NULL;
	s->opts.admin_api_key_file = NULL;
	s->opts.faults = NULL;
	s->opts.nccl_library = s->opts.nccl_from = NULL;
	return 0;
}

static int parse_faults(struct ws_serve *s, const struct ws_serve_opts *o, struct ws_err *err)
{
	if (!o->n_faults)
		return 0;
	s->faults = calloc(o->n_faults, sizeof *s->faults);
	if (!s->faults)
		return ws_oom(err);
	for (; s->n_faults < o->n_faults; s->n_faults++)
		if (ws_serve_fault_parse(o->faults[s->n_faults], o->lineage,
		                         &s->faults[s->n_faults], err))
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

static void free_key(char *key)
{
	if (key)
		explicit_bzero(key, strlen(key));
	free(key);
}

static int read_key(const char *path, char **key, const struct ws_serve_opts *o,
                    struct ws_err *err)
{
	bool loose = false;
	if (!path)
		return 0;
	if (ws_http_read_key(path, key, &loose, err))
		return -1;
	if (loose)
		warn(o, "the file with the API key can be read by other users");
	return 0;
}

bool ws_serve_has_admin_key(enum ws_serve_lineage lineage)
{
	return ws_serve_in(lineage, WS_IN_FROM_2026);
}

static int read_keys(struct ws_serve *s, const struct ws_serve_opts *o, struct ws_err *err)
{
	if (o->admin_api_key_file && !ws_serve_has_admin_key(o->lineage))
		return ws_err_set(err, WS_EUSAGE, "{admin_api_key}: servers of this family have "
		                  "no such key");
	return read_key(o->api_key_file, &s->api_key, o, err) ||
	                       read_key(o->admin_api_key_file, &s->admin_key, o, err) ?
	               -1 :
	               0;
}

static int init_locks(struct ws_serve *s, struct ws_err *err)
{
	pthread_condattr_t monotonic;
	pthread_condattr_init(&monotonic);
	pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
	const int bad =
		pthread_mutex_init(&s->lock, NULL) || pthread_cond_init(&s->changed, &monotonic);
	pthread_condattr_destroy(&monotonic);
	return bad ? ws_err_set(err, WS_ESYSTEM, "no lock for the endpoint") : 0;
}

static int64_t clock_ns(void)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	return (int64_t)now.tv_sec * WS_NS_PER_S + now.tv_nsec;
}

int ws_serve_new(const struct ws_serve_opts *opts, struct ws_serve **out, struct ws_err *err)
{
	if (opts->tp > WS_SERVE_MAX_TP)
		return ws_err_set(err, WS_EUSAGE, "%u tensor-parallel ranks: more than %d",
		                  opts->tp, WS_SERVE_MAX_TP);
	struct ws_serve *s = calloc(1, sizeof *s);
	if (!s)
		return ws_oom(err);
	if (init_locks(s, err)) {
		free(s);
		return -1;
	}
	s->opts = *opts;
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
	s->clock_ns = clock_ns();
	if (getrandom(&s->seed, sizeof s->seed, 0) != sizeof s->seed)
		s->seed = (uint32_t)ws_now_ns();
	s->seed >>= 2; /* servers draw 30 bits */
	if (ws_serve_parse_listen(opts->listen ? opts->listen : "127.0.0.1:30000", s->host,
	                          &s->port, err) ||
	    ws_serve_vllm_open(s, opts, err) || open_model(s, opts, err) ||
	    copy_texts(s, opts, err) || parse_faults(s, opts, err) ||
	    read_keys(s, opts, err) || ws_serve_gpus_open(s, opts, err)) {
		ws_serve_stop(s);
		return -1;
	}
	*out = s;
	return 0;
}

/* Does a key guard the routes that make the endpoint connect to others? xorl's own routes do not
 * take the admin key. */
static bool has_guard(const struct ws_serve *s)
{
	return s->api_key || (s->admin_key && !ws_serve_in(s->opts.lineage, WS_IN_XORLS));
}

static void warn_when_open(const struct ws_serve *s, const struct ws_serve_opts *o)
{
	bool loopback = false;
	const bool known = !ws_host_is_wildcard(s->host) &&
	                   ws_host_is_loopback(s->host, ws_deadline_in(WS_NS_PER_S), o->cancel,
	                                       &loopback, NULL) == 0;
	if (!has_guard(s) && !(known && loopback))
		warn(o, "any client of this address can make the endpoint connect anywhere: "
		        "set a key with {api_key_file}");
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
	const int fd = ws_serve_listen(s->host, &s->port, opts->cancel, s->url, err);
	if (fd < 0)
		goto fail;
	warn_when_open(s, opts);
	const struct ws_serve_handler handler = { .ctx = s, .admit = admit, .handle = handle };
	if (ws_serve_http_open(&handler, fd, &s->http, err))
		goto fail;
	ws_log(opts->log, 1, "listening on %s", s->url);
	*out = s;
	return 0;
fail:
	ws_serve_stop(s);
	return -1;
}

/* Weights in memory are hashed on request. But without a model, several ranks keep one copy: then
 * their bytes must be hashed and compared while they receive. */
bool ws_serve_hashes(const struct ws_serve *s)
{
	return s->opts.keep == WS_KEEP_HASH ||
	       (s->opts.keep == WS_KEEP_MEMORY && s->opts.tp > 1 && !s->model);
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

bool ws_serve_halt(struct ws_serve *s, bool dies, const char *why)
{
	pthread_mutex_lock(&s->lock);
	const bool dead = s->dead;
	s->dead |= dies;
	s->stopping = true;
	for (struct ws_serve_group *g = s->groups; g; g = g->next)
		ws_serve_group_abort(g, why);
	ws_serve_gpus_stop(s);
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	return dead;
}

void ws_serve_stop(struct ws_serve *s)
{
	if (!s)
		return;
	ws_serve_halt(s, false, ws_serve_stops);
	ws_serve_http_close(s->http);
	ws_serve_two_phase_fini(s);
	while (s->groups) {
		struct ws_serve_group *g = s->groups;
		s->groups = g->next;
		ws_serve_group_free(g);
	}
	ws_serve_gpus_close(s);
	ws_serve_weights_fini(&s->weights);
	ws_serve_snapshot_free(s->snapshot);
	ws_serve_vllm_close(s->vllm);
	ws_serve_model_close(s->model);
	ws_serve_journal_fini(&s->journal);
	free_key(s->api_key);
	free_key(s->admin_key);
	free(s->model_path);
	free(s->tokenizer_path);
	free(s->served_model_name);
	free(s->dtype);
	free(s->quantization);
	ws_serve_prompts_forget(s);
	for (size_t i = 0; i < WS_SERVE_MAX_CHATS; i++)
		free(s->chats[i]);
	free(s->weight_version);
	free(s->faults);
	pthread_cond_destroy(&s->changed);
	pthread_mutex_destroy(&s->lock);
	free(s);
}
