/* SPDX-License-Identifier: Apache-2.0 */
/* serve_vllm_control.c - routes that report the server, and that pause and resume it.
 *
 * Only a pause with clear_cache, or /reset_prefix_cache, empties the cache of prompts. */
#include "serve_vllm.h"

#include "serve_generate.h"
#include "serve_lineage.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <string.h>

/* ---- information ---- */

void ws_serve_route_vllm_version(struct ws_serve_call *c)
{
	ws_serve_vllm_say(c, "version", ws_serve_lineages[c->serve->opts.lineage].version);
}

/* There is one data-parallel rank, so include_dp changes nothing. */
void ws_serve_route_vllm_world_size(struct ws_serve_call *c)
{
	bool include_dp = true;
	struct ws_jw jw;
	if (!ws_serve_vllm_query_bool(c, "include_dp", &include_dp))
		return;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_uint(&jw, "world_size", c->serve->opts.tp);
	ws_jw_end_object(&jw);
}

/* With gloo, the server runs with wsync's worker extension: a stock worker has only NCCL. */
static const char *extension_of(const struct ws_serve *s)
{
	return s->opts.backend == WS_SERVE_GLOO ? "wsync_vllm.WorkerExtension" : "";
}

static void write_config(struct ws_jw *jw, struct ws_serve *s)
{
	char dtype[64], id[24];
	snprintf(dtype, sizeof dtype, "torch.%s", s->dtype);
	ws_jw_object(jw, "vllm_config");
	ws_jw_object(jw, "model_config");
	pthread_mutex_lock(&s->lock);
	ws_jw_str(jw, "model", s->model_path);
	ws_jw_str(jw, "served_model_name", s->served_model_name);
	pthread_mutex_unlock(&s->lock);
	ws_jw_str(jw, "tokenizer", s->tokenizer_path);
	ws_jw_str(jw, "dtype", dtype);
	ws_jw_str(jw, "quantization", s->quantization);
	ws_jw_uint(jw, "max_model_len", WS_GENERATE_CONTEXT);
	ws_jw_null(jw, "multimodal_config");
	ws_jw_end_object(jw);
	ws_jw_null(jw, "kv_transfer_config");
	ws_jw_null(jw, "ec_transfer_config");
	ws_jw_object(jw, "parallel_config");
	ws_jw_uint(jw, "pipeline_parallel_size", 1);
	ws_jw_uint(jw, "tensor_parallel_size", s->opts.tp);
	ws_jw_uint(jw, "prefill_context_parallel_size", 1);
	ws_jw_uint(jw, "data_parallel_size", 1);
	ws_jw_uint(jw, "data_parallel_index", 0);
	ws_jw_bool(jw, "enable_expert_parallel", s->opts.ep > 1);
	ws_jw_uint(jw, "world_size", s->opts.tp);
	ws_jw_str(jw, "worker_extension_cls", extension_of(s));
	ws_jw_uint(jw, "_api_process_count", 1);
	ws_jw_uint(jw, "_api_process_rank", 0);
	ws_jw_end_object(jw);
	snprintf(id, sizeof id, "%lld", (long long)s->clock_ns);
	ws_jw_str(jw, "instance_id", id);
	ws_jw_object(jw, "weight_transfer_config");
	ws_jw_str(jw, "backend", s->opts.backend == WS_SERVE_IPC ? "ipc" : "nccl");
	ws_jw_end_object(jw);
	ws_jw_end_object(jw);
}

/* The text form is Python's, of a class: model='...', dtype=torch.bfloat16, ... */
static void write_text(struct ws_jw *jw, struct ws_serve *s)
{
	struct ws_buf text;
	ws_buf_init(&text, 0);
	pthread_mutex_lock(&s->lock);
	ws_buf_printf(&text, "model='%s', ", s->model_path);
	pthread_mutex_unlock(&s->lock);
	ws_buf_printf(&text,
	              "dtype=torch.%s, max_seq_len=%d, tensor_parallel_size=%u, "
	              "pipeline_parallel_size=1, data_parallel_size=1, quantization=%s",
	              s->dtype, WS_GENERATE_CONTEXT, s->opts.tp,
	              s->quantization ? s->quantization : "None");
	ws_jw_str(jw, "vllm_config", ws_buf_str(&text));
	ws_buf_free(&text);
}

void ws_serve_route_vllm_info(struct ws_serve_call *c)
{
	const char *format = ws_serve_query(c, "config_format");
	const bool json = format && strcmp(format, "json") == 0;
	struct ws_jw jw;
	if (format && !json && strcmp(format, "text") != 0) {
		ws_serve_vllm_answer_invalid(c, "query.config_format: Input should be 'text' or "
		                                "'json'");
		return;
	}
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	if (json)
		write_config(&jw, c->serve);
	else
		write_text(&jw, c->serve);
	ws_jw_object(&jw, "vllm_env");
	ws_jw_bool(&jw, "VLLM_SERVER_DEV_MODE", true);
	ws_jw_end_object(&jw);
	ws_jw_object(&jw, "system_env");
	ws_jw_end_object(&jw);
	ws_jw_end_object(&jw);
}

void ws_serve_route_vllm_is_paused(struct ws_serve_call *c)
{
	struct ws_jw jw;
	if (!ws_serve_vllm_enter(c, false))
		return;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_bool(&jw, "is_paused", c->serve->paused);
	ws_jw_end_object(&jw);
	ws_serve_release(c->serve);
}

void ws_serve_route_vllm_weights(struct ws_serve_call *c)
{
	if (!ws_serve_vllm_enter(c, false))
		return;
	ws_serve_vllm_say(c, "weight_version", c->serve->weight_version);
	ws_serve_release(c->serve);
}

/* ---- pausing ---- */

static void forget_prompts(struct ws_serve_call *c)
{
	c->serve->journal.flushes++;
	if (c->fault != WS_FAULT_STALE)
		ws_serve_prompts_forget(c->serve);
}

/* The emulated requests are aborted, end, or stay. With clear_cache, requests that stay are
 * computed again later. */
static void pause_scheduler(struct ws_serve_call *c, enum ws_pause_mode mode, bool clear)
{
	struct ws_serve *s = c->serve;
	pthread_mutex_lock(&s->lock);
	s->paused = true;
	s->mode = mode;
	s->rejects = mode != WS_PAUSE_IN_PLACE && ws_serve_vllm_has(c, WS_IN_VLLM_0_33);
	s->sync++;
	s->waiting = mode != WS_PAUSE_IN_PLACE ? 0 : clear ? s->waiting + s->running : s->waiting;
	s->running = mode == WS_PAUSE_IN_PLACE && !clear ? s->running : 0;
	if (clear)
		forget_prompts(c);
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
}

void ws_serve_route_vllm_pause(struct ws_serve_call *c)
{
	const char *const *modes = ws_serve_pause_names_of(c->serve);
	const char *mode = ws_serve_query(c, "mode");
	bool clear = true, wait = false;
	const size_t i = mode ? ws_serve_find_word(modes, 3, mode) : WS_PAUSE_ABORT;
	if (i == 3) {
		ws_serve_vllm_answer_invalid(c, "query.mode: Input should be 'abort', 'wait' or "
		                                "'keep'");
		return;
	}
	if (!ws_serve_vllm_query_bool(c, "clear_cache", &clear) ||
	    (!ws_serve_vllm_has(c, WS_IN_VLLM_0_33) &&
	     !ws_serve_vllm_query_bool(c, "wait_for_inflight_requests", &wait)) ||
	    !ws_serve_vllm_enter(c, false))
		return;
	const enum ws_pause_mode as = wait ? WS_PAUSE_RETRACT : (enum ws_pause_mode)i;
	snprintf(c->note.mode, sizeof c->note.mode, "%s", modes[as]);
	pause_scheduler(c, as, clear);
	ws_serve_release(c->serve);
	ws_serve_vllm_say(c, "status", "paused");
}

void ws_serve_route_vllm_resume(struct ws_serve_call *c)
{
	if (!ws_serve_vllm_enter(c, false))
		return;
	pthread_mutex_lock(&c->serve->lock);
	c->serve->rejects = false;
	pthread_mutex_unlock(&c->serve->lock);
	c->rp->drop |= !ws_serve_continue(c->serve);
	ws_serve_release(c->serve);
	ws_serve_vllm_say(c, "status", "resumed");
}

/* The IDs of emulated requests are known to nobody: a list of IDs aborts none of them. */
void ws_serve_route_vllm_abort(struct ws_serve_call *c)
{
	struct ws_serve *s = c->serve;
	const size_t named = ws_json_count(ws_json_get(c->body, "request_ids"));
	struct ws_jw jw;
	pthread_mutex_lock(&s->lock);
	const size_t all = s->running + s->waiting;
	pthread_mutex_unlock(&s->lock);
	if (!named)
		ws_serve_abort_requests(s);
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_str(&jw, "status", "aborted");
	ws_jw_uint(&jw, "aborted", named ? named : all);
	ws_jw_end_object(&jw);
}

/* Fails while running requests hold blocks of the cache, unless they are preempted. Servers before
 * 0.26 do not say so. */
void ws_serve_route_vllm_reset_cache(struct ws_serve_call *c)
{
	struct ws_serve *s = c->serve;
	bool preempt = false, external = false;
	struct ws_jw jw;
	if (!ws_serve_vllm_query_bool(c, "reset_running_requests", &preempt) ||
	    !ws_serve_vllm_query_bool(c, "reset_external", &external) ||
	    !ws_serve_vllm_enter(c, false))
		return;
	pthread_mutex_lock(&s->lock);
	const bool ok = !s->running || preempt;
	if (ok)
		forget_prompts(c);
	else
		s->journal.failed_flushes++;
	pthread_mutex_unlock(&s->lock);
	ws_serve_release(s);
	if (!ws_serve_vllm_has(c, WS_IN_VLLM_FROM_0_27)) {
		c->rp->type = "";
		return;
	}
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_bool(&jw, "success", ok);
	ws_jw_end_object(&jw);
}

/* No model here reads images: the caches are empty. */
void ws_serve_route_vllm_reset_images(struct ws_serve_call *c)
{
	if (!ws_serve_vllm_enter(c, false))
		return;
	ws_serve_release(c->serve);
	c->rp->type = "";
}

/* ---- the label of the weights ---- */

void ws_serve_route_vllm_set_version(struct ws_serve_call *c)
{
	const char *version = NULL;
	struct ws_err err = WS_ERR_INIT;
	struct ws_jw jw;
	if (ws_serve_field_str(c->body, "new_version", true, &version, &c->invalid) ||
	    !ws_serve_vllm_enter(c, false))
		return;
	const int rc = ws_serve_set_text(c->serve, &c->serve->weight_version, version, &err);
	ws_serve_release(c->serve);
	if (rc) {
		ws_serve_vllm_fail(c, err.msg);
		return;
	}
	snprintf(c->note.weight_version, sizeof c->note.weight_version, "%s", version);
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_bool(&jw, "success", true);
	ws_jw_str(&jw, "new_version", version);
	ws_jw_end_object(&jw);
}
