/* SPDX-License-Identifier: Apache-2.0 */
/* serve_control.c - routes that report or change the state: information, health, pause, continue,
 * flush, version.
 *
 * As in the servers, pause and continue answer with "status" instead of "success", and flush
 * answers with plain text. */
#include "serve_call.h"
#include "serve_generate.h"
#include "serve_gpu.h"
#include "serve_lineage.h"
#include "serve_model.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void set_text(struct ws_serve_call *c, unsigned status, const char *text)
{
	c->rp->status = status;
	c->rp->type = "text/plain; charset=utf-8";
	ws_buf_puts(&c->rp->body, text);
}

/* ---- information ---- */

/* A server generates a token for this, which its scheduler cannot do while it receives weights. */
void ws_serve_route_health_generate(struct ws_serve_call *c)
{
	const bool bypass = c->serve->opts.lineage == WS_SERVE_XORL_LEGACY;
	pthread_mutex_lock(&c->serve->lock);
	c->rp->status = c->serve->receiving && !bypass ? 503 : 200;
	pthread_mutex_unlock(&c->serve->lock);
	c->rp->type = "";
}

void ws_serve_route_health(struct ws_serve_call *c)
{
	if (ws_serve_in(c->serve->opts.lineage, WS_HEALTH_GENERATES))
		ws_serve_route_health_generate(c);
	c->rp->type = "";
}

/* Like sglang since 0.5.20: 503 while paused. */
void ws_serve_route_ready(struct ws_serve_call *c)
{
	pthread_mutex_lock(&c->serve->lock);
	c->rp->status = c->serve->paused ? 503 : 200;
	pthread_mutex_unlock(&c->serve->lock);
	c->rp->type = "";
}

static void write_version(struct ws_jw *jw, struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	ws_jw_str(jw, "weight_version", s->weight_version);
	pthread_mutex_unlock(&s->lock);
}

/* Real servers list the seconds of each phase of their start. */
static void write_startup(struct ws_jw *jw, const struct ws_serve *s)
{
	ws_jw_object(jw, "startup_time");
	ws_jw_double(jw, "e2e_s", (double)(s->clock_ns % (1000 * WS_NS_PER_S)) / 1e9);
	ws_jw_end_object(jw);
}

/* Locks, because an update from disk changes model_path. */
static void write_path(struct ws_jw *jw, struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	ws_jw_str(jw, "model_path", s->model_path);
	pthread_mutex_unlock(&s->lock);
	ws_jw_str(jw, "tokenizer_path", s->tokenizer_path);
}

static void write_architecture(struct ws_jw *jw, const struct ws_config *config)
{
	ws_jw_str(jw, "model_type", ws_config_model_type(config));
	ws_jw_array(jw, "architectures");
	ws_jw_str(jw, NULL, ws_config_architecture(config));
	ws_jw_end_array(jw);
}

void ws_serve_route_model_info(struct ws_serve_call *c)
{
	struct ws_jw jw;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	write_path(&jw, c->serve);
	ws_jw_bool(&jw, "is_generation", true);
	ws_jw_null(&jw, "preferred_sampling_params");
	if (ws_serve_in(c->serve->opts.lineage, WS_HAS_UPDATE_VERSION))
		write_version(&jw, c->serve);
	if (ws_serve_in(c->serve->opts.lineage, WS_HAS_EXTENDED_INFO)) {
		ws_jw_bool(&jw, "has_image_understanding", false);
		ws_jw_bool(&jw, "has_audio_understanding", false);
		if (c->serve->model)
			write_architecture(&jw, c->serve->model->config);
	}
	ws_jw_end_object(&jw);
}

static void write_switches(struct ws_jw *jw)
{
	static const char *const off[] = {
		"enable_dp_attention", "disable_radix_cache", "enable_lora", "enable_fp32_lm_head",
		"enable_deterministic_inference",
	};
	static const char *const none[] = {
		"max_lora_rank",
		"rl_on_policy_target",
		"speculative_algorithm",
		"custom_weight_loader",
		"hicache_storage_backend",
	};
	for (size_t i = 0; i < sizeof off / sizeof off[0]; i++)
		ws_jw_bool(jw, off[i], false);
	for (size_t i = 0; i < sizeof none / sizeof none[0]; i++)
		ws_jw_null(jw, none[i]);
}

void ws_serve_route_weight_version(struct ws_serve_call *c)
{
	struct ws_jw jw;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	write_version(&jw, c->serve);
	ws_jw_end_object(&jw);
}

/* A stock server has no local part. */
static void write_version_of_server(struct ws_jw *jw, const struct ws_serve *s)
{
	const char *all = ws_serve_lineages[s->opts.lineage].version;
	char text[64];
	const size_t n = s->opts.device ? strcspn(all, "+") : strlen(all);
	snprintf(text, sizeof text, "%.*s", (int)n, all);
	ws_jw_str(jw, "version", text);
}

void ws_serve_route_server_info(struct ws_serve_call *c)
{
	struct ws_serve *s = c->serve;
	struct ws_jw jw;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	write_path(&jw, s);
	pthread_mutex_lock(&s->lock);
	ws_jw_str(&jw, "served_model_name", s->served_model_name);
	pthread_mutex_unlock(&s->lock);
	ws_jw_str(&jw, "host", s->host);
	ws_jw_uint(&jw, "port", s->port);
	ws_jw_uint(&jw, "random_seed", s->seed);
	if (ws_serve_in(s->opts.lineage, WS_HAS_STARTUP_TIME))
		write_startup(&jw, s);
	ws_jw_str(&jw, "device", s->opts.device ? s->opts.device : "cpu");
	ws_jw_uint(&jw, "tp_size", s->opts.tp);
	ws_jw_uint(&jw, "dp_size", 1);
	ws_jw_uint(&jw, "pp_size", 1);
	ws_jw_uint(&jw, "ep_size", s->opts.ep);
	ws_jw_str(&jw, "dtype", s->dtype);
	ws_jw_str(&jw, "quantization", s->quantization);
	if (!s->model)
		ws_jw_bool(&jw, "keeps_anything", true); /* not in servers: accepts any tensor */
	if (s->gpus && s->gpus->nccl)
		ws_jw_str(&jw, "nccl_version", ws_nccl_version_text(s->gpus->nccl)); /* likewise */
	ws_jw_str(&jw, "kv_cache_dtype", "auto");
	ws_jw_str(&jw, "attention_backend", "torch_native");
	ws_jw_str(&jw, "sampling_backend", "pytorch");
	write_switches(&jw);
	ws_jw_bool(&jw, "enable_return_routed_experts", s->opts.routed_experts);
	ws_jw_bool(&jw, "enable_memory_saver", s->opts.memory_saver);
	ws_jw_bool(&jw, "enable_weights_cpu_backup", s->opts.cpu_backup);
	if (s->opts.lineage == WS_SERVE_XORL_LEGACY) {
		ws_jw_bool(&jw, "enable_fp32_router", false);
		ws_jw_bool(&jw, "enable_return_expert_logits", false);
	}
	if (ws_serve_in(s->opts.lineage, WS_HAS_UPDATE_VERSION))
		write_version(&jw, s);
	ws_jw_uint(&jw, "max_total_num_tokens", WS_GENERATE_MAX_TOKENS);
	ws_jw_array(&jw, "internal_states");
	ws_jw_object(&jw, NULL);
	if (ws_serve_in(s->opts.lineage, WS_HAS_UPDATE_VERSION))
		write_version(&jw, s);
	ws_jw_end_object(&jw);
	ws_jw_end_array(&jw);
	write_version_of_server(&jw, s);
	ws_jw_end_object(&jw);
}

void ws_serve_route_models(struct ws_serve_call *c)
{
	struct ws_serve *s = c->serve;
	struct ws_jw jw;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_str(&jw, "object", "list");
	ws_jw_array(&jw, "data");
	ws_jw_object(&jw, NULL);
	pthread_mutex_lock(&s->lock);
	ws_jw_str(&jw, "id", s->served_model_name);
	ws_jw_str(&jw, "root", s->vllm ? s->model_path : s->served_model_name);
	pthread_mutex_unlock(&s->lock);
	ws_jw_str(&jw, "object", "model");
	ws_jw_int(&jw, "created", s->clock_ns / WS_NS_PER_S);
	ws_jw_str(&jw, "owned_by", s->vllm ? "vllm" : "sglang");
	ws_jw_null(&jw, "parent");
	ws_jw_int(&jw, "max_model_len", WS_GENERATE_CONTEXT);
	ws_jw_end_object(&jw);
	ws_jw_end_array(&jw);
	ws_jw_end_object(&jw);
}

void ws_serve_route_journal(struct ws_serve_call *c)
{
	ws_serve_journal_write(c->serve, &c->rp->body);
}

/* ---- changes of the state ---- */

static void answer_status(struct ws_serve_call *c, const char *message)
{
	struct ws_jw jw;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_str(&jw, "message", message);
	ws_jw_str(&jw, "status", "ok");
	ws_jw_end_object(&jw);
}

void ws_serve_route_pause(struct ws_serve_call *c)
{
	const char *const *modes = ws_serve_pause_names;
	const char *mode = modes[WS_PAUSE_ABORT];
	if (ws_serve_field_str(c->body, "mode", false, &mode, &c->invalid))
		return;
	const size_t i = ws_serve_find_word(modes, 3, mode);
	if (i == 3) {
		ws_err_set(&c->invalid, WS_EUSAGE,
		           "body.mode: Input should be 'abort', 'retract' or 'in_place'");
		return;
	}
	snprintf(c->note.mode, sizeof c->note.mode, "%s", modes[i]);
	c->rp->drop = !ws_serve_pause(c->serve, (enum ws_pause_mode)i);
	answer_status(c, "Generation paused successfully.");
}

void ws_serve_route_continue(struct ws_serve_call *c)
{
	c->rp->drop = !ws_serve_continue(c->serve);
	answer_status(c, "Generation continued successfully.");
}

void ws_serve_route_version(struct ws_serve_call *c)
{
	const char *version = NULL;
	bool abort_all = true;
	struct ws_err err = WS_ERR_INIT;
	if (ws_serve_field_str(c->body, "new_version", true, &version, &c->invalid) ||
	    ws_serve_field_bool(c->body, "abort_all_requests", &abort_all, &c->invalid))
		return;
	if (abort_all)
		ws_serve_abort_requests(c->serve);
	if (ws_serve_set_text(c->serve, &c->serve->weight_version, version, &err)) {
		ws_serve_answer(c, false, "%s", err.msg);
		return;
	}
	snprintf(c->note.weight_version, sizeof c->note.weight_version, "%s", version);
	struct ws_buf message;
	ws_buf_init(&message, 0);
	ws_buf_printf(&message, "Weight version updated to %s", version);
	struct ws_jw jw;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_bool(&jw, "success", true);
	ws_jw_str(&jw, "message", ws_buf_str(&message));
	ws_jw_str(&jw, "new_version", version);
	ws_jw_end_object(&jw);
	ws_buf_free(&message);
}

/* Reads the query parameter timeout, in seconds. False: it is not a number. */
static bool read_timeout(const struct ws_serve_call *c, int64_t *ns)
{
	const char *text = ws_serve_query(c, "timeout");
	*ns = 0;
	if (!text || !ws_serve_in(c->serve->opts.lineage, WS_HAS_FLUSH_TIMEOUT))
		return true;
	char *end = NULL;
	const double seconds = strtod(text, &end);
	if (end == text || *end || !isfinite(seconds))
		return false;
	const double most = 24 * 3600;
	if (seconds > 0)
		*ns = (int64_t)((seconds < most ? seconds : most) * (double)WS_NS_PER_S);
	return true;
}

void ws_serve_route_flush(struct ws_serve_call *c)
{
	int64_t wait_ns = 0;
	if (!read_timeout(c, &wait_ns)) {
		ws_err_set(&c->invalid, WS_EUSAGE, "query.timeout: Input should be a valid number");
		return;
	}
	if (!ws_serve_acquire(c->serve, false)) {
		c->rp->drop = true;
		return;
	}
	const bool flushed = c->fault == WS_FAULT_STALE || ws_serve_flush(c->serve, wait_ns);
	ws_serve_release(c->serve);
	if (flushed)
		set_text(c, 200, "Cache flushed.\n");
	else
		set_text(c, 400, "Cache not flushed: there are running or waiting requests.\n");
}

/* There is no such storage. The text of the answer is the same then. */
void ws_serve_route_clear_storage(struct ws_serve_call *c)
{
	set_text(c, 400, "Hierarchical cache storage backend cleared.\n");
}
