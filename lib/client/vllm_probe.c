/* SPDX-License-Identifier: Apache-2.0 */
/* vllm_probe.c - what a vLLM reports of itself.
 *
 *   GET /version                          {"version": "0.32.0"}; always there
 *   GET /server_info?config_format=json   {"vllm_config": {...}}; the first answer takes seconds
 *   GET /get_world_size                   {"world_size": ranks of all engines}
 *   GET /v1/models                        {"data": [{"id", "root"}]}; wants the API key
 *   GET /weight_info                      {"weight_version"}, since 0.27
 *   GET /metrics     vllm:engine_sleep_state{...,sleep_state=S} 1.0, where S is "awake",
 *                    "weights_offloaded" or "discard_all"
 *
 * /server_info, /get_world_size and /weight_info exist only with VLLM_SERVER_DEV_MODE=1.
 * /weight_info waits for the engine: while it receives weights, it does not answer. /is_sleeping is
 * of no use: it says true of a server that is only paused (0.20 to 0.33).
 *
 * Two programs put routes of their own on vLLM, whose requests differ: TRL's server up to 1.10, and
 * prime-rl. */
#include "vllm_probe.h"

#include "endpoint_caches.h"
#include "endpoint_call.h"
#include "identity.h"
#include "lineage_probe.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 65536 };
/* For the first answer with the configuration, of a server that has answered to /version. */
static const int64_t CONFIG_NS = 60 * WS_NS_PER_S;
/* For the label, which is not answered while workers wait for a sender that has died, and the name
 * of the model. */
static const int64_t OPTIONAL_NS = 3 * WS_NS_PER_S;
enum { VERSION, TRL, WORLD, MODELS, LABEL, SLEEPING, CONFIG, QUESTIONS };
static const char CONFIG_PATH[] = "/server_info?config_format=json";
static const char *const paths[QUESTIONS] = {
	[VERSION] = "/version",   [TRL] = "/get_world_size/", [CONFIG] = CONFIG_PATH,
	[WORLD] = "/get_world_size", [MODELS] = "/v1/models",
	[LABEL] = "/weight_info", [SLEEPING] = "/metrics",
};

struct vllm_probe {
	const struct ws_call *to;
	ws_deadline slow_until, version_until, world_until, config_until, optional_until;
	const bool *wanted;
	const struct ws_vllm_known *known;
	struct ws_endpoint_info *infos;
	struct ws_err *errs;
	bool *vllm;
	struct ws_endpoint_call *calls; /* QUESTIONS per endpoint */
};

/* ---- the configuration ---- */

static void take_text(const struct ws_json *from, const char *key, char *dst, size_t n)
{
	const char *text = ws_json_get_string(from, key, NULL);
	if (text)
		ws_printable(dst, n, text, strlen(text));
}

static void take_size(const struct ws_json *from, const char *key, unsigned *dst)
{
	const int64_t value = ws_json_get_int(from, key, 0);
	if (value >= 1 && value <= MAX_RANKS)
		*dst = (unsigned)value;
}

static void decode_ranks(const struct ws_json *parallel, struct ws_endpoint_info *info)
{
	take_size(parallel, "tensor_parallel_size", &info->tp_size);
	take_size(parallel, "pipeline_parallel_size", &info->pp_size);
	take_size(parallel, "data_parallel_size", &info->dp_size);
	const uint64_t experts = (uint64_t)info->tp_size * info->dp_size;
	if (ws_json_get_bool(parallel, "enable_expert_parallel", false) && experts <= MAX_RANKS)
		info->ep_size = (unsigned)experts;
	info->moves_experts = ws_json_get_bool(parallel, "enable_eplb", false);
	const char *extension = ws_json_get_string(parallel, "worker_extension_cls", "");
	info->gloo_worker = strcmp(extension, "wsync_vllm.WorkerExtension") == 0;
}

/* {"device": "cpu"} of 0.32, or "cuda:0"; "device_type" too where its field is written. */
static void take_device(const struct ws_json *config, struct ws_endpoint_info *info)
{
	take_text(config, "device", info->device, sizeof info->device);
	take_text(config, "device_type", info->device, sizeof info->device);
	info->device[strcspn(info->device, ":")] = '\0';
}

void ws_vllm_decode_config(const struct ws_json *root, struct ws_endpoint_info *info)
{
	const struct ws_json *config = ws_json_get(root, "vllm_config");
	const struct ws_json *model = ws_json_get(config, "model_config"),
			     *cache = ws_json_get(config, "cache_config"),
			     *drafts = ws_json_get(config, "speculative_config"),
			     *engine = ws_json_get(config, "weight_transfer_config");
	double gb = 0;
	decode_ranks(ws_json_get(config, "parallel_config"), info);
	take_text(model, "dtype", info->dtype, sizeof info->dtype); /* "torch.bfloat16" */
	if (strncmp(info->dtype, "torch.", 6) == 0)
		memmove(info->dtype, info->dtype + 6, strlen(info->dtype + 6) + 1);
	take_text(model, "quantization", info->quantization, sizeof info->quantization);
	const struct ws_json *quantization = ws_json_get(model, "quantization");
	info->quant_told = ws_json_type(quantization) == WS_JSON_STRING ||
	                   (quantization && ws_json_type(quantization) == WS_JSON_NULL);
	if (ws_endpoint_overrides(ws_json_get(model, "hf_overrides")))
		info->path_unused = ws_overridden;
	take_text(model, "model", info->model_path, sizeof info->model_path);
	take_text(model, "model", info->start_path, sizeof info->start_path);
	take_text(model, "revision", info->revision, sizeof info->revision);
	take_text(cache, "cache_dtype", info->kv_cache_dtype, sizeof info->kv_cache_dtype);
	info->disable_radix_cache = !ws_json_get_bool(cache, "enable_prefix_caching", true);
	ws_json_double(ws_json_get(cache, "cpu_offload_gb"), &gb);
	info->offloads = gb > 0;
	info->has_draft = ws_json_type(drafts) == WS_JSON_OBJECT;
	const struct ws_json *lora = ws_json_get(config, "lora_config");
	if (lora)
		info->adapters = ws_json_type(lora) == WS_JSON_NULL ? "none" : "kept";
	if (config)
		ws_caches_of_vllm(config, info);
	take_text(engine, "backend", info->engine, sizeof info->engine);
	take_text(ws_json_get(config, "load_config"), "load_format", info->load_format,
	          sizeof info->load_format);
	take_device(ws_json_get(config, "device_config"), info);
	ws_identity_read(root, 0, &info->identity);
	info->instance = ws_identity_number(&info->identity);
}

/* ---- answers ---- */

static struct ws_endpoint_call *call_of(const struct vllm_probe *p, size_t i, int question)
{
	return &p->calls[i * QUESTIONS + (size_t)question];
}

/* The answer as JSON; NULL: none, or an error. */
static const struct ws_json *answer(const struct vllm_probe *p, size_t i, int question)
{
	const struct ws_json *root;
	struct ws_err none = WS_ERR_INIT;
	return ws_endpoint_reply(call_of(p, i, question), &root, NULL, 0, &none) ? NULL : root;
}

static void read_models(const struct ws_json *root, struct ws_endpoint_info *info)
{
	const struct ws_json *first = ws_json_first(ws_json_get(root, "data"));
	take_text(first, "id", info->served_model, sizeof info->served_model);
	if (!info->model_path[0]) {
		take_text(first, "root", info->model_path, sizeof info->model_path);
		memcpy(info->start_path, info->model_path, sizeof info->start_path);
	}
}

static bool has_route(const struct ws_json *openapi, const char *path)
{
	return ws_json_get(ws_json_get(openapi, "paths"), path) != NULL;
}

/* Routes decide where the server lists them. */
static void check_routes(const struct ws_json *openapi, struct ws_capabilities *can)
{
	static const struct {
		const char *path;
		size_t at;
	} needs[] = {
#define NEEDS(path, field) { path, offsetof(struct ws_capabilities, field) }
		NEEDS("/pause", pause), NEEDS("/reset_prefix_cache", flush),
		NEEDS("/sleep", sleep), NEEDS("/init_weight_transfer_engine", transfer),
		NEEDS("/update_weight_version", set_version),
		NEEDS("/start_weight_update", transfer_session),
		NEEDS("/shutdown_weight_transfer_engine", shutdown),
		NEEDS("/weight_checker", checksums), NEEDS("/collective_rpc", reload),
#undef NEEDS
	};
	if (!has_route(openapi, "/version"))
		return;
	for (size_t k = 0; k < sizeof needs / sizeof *needs; k++)
		*(bool *)((char *)can + needs[k].at) &= has_route(openapi, needs[k].path);
}

/* Without VLLM_SERVER_DEV_MODE=1 a vLLM only answers prompts. */
static void drop_control(struct ws_endpoint_info *info)
{
	info->control_off = true;
	info->can = (struct ws_capabilities){ .health_open = true, .completions = true };
}

/* Does a line of the metric say that the memory of an engine is released? */
static bool reads_asleep(const char *text, size_t n)
{
	static const char metric[] = "vllm:engine_sleep_state{";
	for (const char *at = text, *end; at < text + n; at = end + 1) {
		end = memchr(at, '\n', (size_t)(text + n - at));
		end = end ? end : text + n;
		const size_t len = (size_t)(end - at);
		const char *value = memrchr(at, ' ', len);
		if (len >= sizeof metric && memcmp(at, metric, sizeof metric - 1) == 0 && value &&
		    value + 1 < end && value[1] >= '1' && value[1] <= '9' &&
		    !memmem(at, len, "sleep_state=\"awake\"", 19))
			return true;
	}
	return false;
}

static bool is_asleep(const struct vllm_probe *p, size_t i)
{
	const struct ws_http_call *http = &call_of(p, i, SLEEPING)->http;
	return http->status == 200 && http->reply.len &&
	       reads_asleep(http->reply.data, http->reply.len);
}

/* A vLLM answers this question, or answers 404. Any other answer is an error, because wsync does
 * not guess what the server did not say. A proxy may refuse metrics. */
static int check_told(const struct vllm_probe *p, size_t i, int question, struct ws_err *err)
{
	struct ws_endpoint_call *call = call_of(p, i, question);
	const struct ws_json *root;
	if (question == SLEEPING && !call->http.err.code && call->http.status < 500)
		return 0;
	if (ws_endpoint_reply(call, &root, NULL, 0, err) == 0 &&
	    ws_json_type(root) != WS_JSON_OBJECT) {
		ws_err_set(err, WS_EREFUSED, "GET %s: the answer is no JSON object",
		           paths[question]);
		return ws_err_where(err, NULL, p->infos[i].url);
	}
	if (err->code == WS_OK || err->native != 404)
		return err->code ? -1 : 0;
	*err = (struct ws_err)WS_ERR_INIT;
	return 0;
}

static void read_vllm(struct vllm_probe *p, size_t i)
{
	struct ws_endpoint_info *info = &p->infos[i];
	for (int q = WORLD; q < QUESTIONS; q++)
		if (q != MODELS && q != LABEL && check_told(p, i, q, &p->errs[i]))
			return;
	const struct ws_json *config = answer(p, i, CONFIG), *world = answer(p, i, WORLD),
			     *label = answer(p, i, LABEL);
	info->info_path = CONFIG_PATH;
	info->lineage = ws_lineage_vllm(info->version, &info->can);
	ws_vllm_decode_config(config, info);
	info->identity.since = call_of(p, i, CONFIG)->http.date * WS_NS_PER_S;
	take_size(world, "world_size", &info->world_size);
	read_models(answer(p, i, MODELS), info);
	if (call_of(p, i, WORLD)->http.status == 404)
		drop_control(info);
	else
		check_routes(p->known[i].routes, &info->can);
	if (!info->control_off && !info->world_size) {
		ws_err_set(&p->errs[i], WS_EREFUSED, "GET %s: the answer has no world_size",
		           paths[WORLD]);
		ws_err_where(&p->errs[i], NULL, info->url);
	}
	take_text(label, "weight_version", info->weight_version, sizeof info->weight_version);
	info->version_path =
		ws_json_get_string(label, "weight_version", NULL) ? paths[LABEL] : NULL;
	info->sleeping = is_asleep(p, i);
}

/* ---- programs on top of vLLM ---- */

static void refuse_trl(const char *url, struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED, "%s is TRL's own server (trl vllm-serve up to 1.10), whose "
	           "requests wsync does not speak: it confirms weights before they arrive", url);
	ws_err_hint(err, "TRL 1.11 and later use vLLM's own server: vllm serve, started with "
	                 "VLLM_SERVER_DEV_MODE=1 and --weight-transfer-config "
	                 "'{\"backend\":\"nccl\"}'");
	ws_err_where(err, NULL, url);
}

static void refuse_prime_rl(const char *url, struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED, "%s is prime-rl's server, which replaces vLLM's "
	           "/update_weights by a route of its own that wsync does not speak", url);
	ws_err_hint(err, "use vLLM's own server: vllm serve, started with VLLM_SERVER_DEV_MODE=1 "
	                 "and --weight-transfer-config '{\"backend\":\"nccl\"}'");
	ws_err_where(err, NULL, url);
}

/* ---- questions ---- */

static ws_deadline until_of(const struct vllm_probe *p, int question)
{
	return question == CONFIG                      ? p->config_until :
	       question == LABEL || question == MODELS ? p->optional_until :
	       question == VERSION || question == TRL  ? p->version_until :
	                                                 p->world_until;
}

static int ask(struct vllm_probe *p, int from, int to, const bool *wanted, struct ws_err *err)
{
	for (size_t i = 0; i < p->to->n; i++)
		for (int q = from; wanted[i] && q < to; q++)
			if ((q != VERSION || !p->known[i].version) &&
			    ws_endpoint_prepare(call_of(p, i, q), p->to->urls[i], "GET", paths[q],
			                        NULL,
			                        until_of(p, q), err))
				return -1;
	return ws_endpoint_run(p->to->http, p->calls, p->to->n * QUESTIONS, p->to->cancel, err);
}

/* Is it a vLLM? Sets errs[i] if it is a server on top of one. */
static bool is_vllm(struct vllm_probe *p, size_t i)
{
	struct ws_endpoint_info *info = &p->infos[i];
	const char *version = p->known[i].version ?
	                              p->known[i].version :
	                              ws_json_get_string(answer(p, i, VERSION), "version", NULL);
	struct ws_err said = WS_ERR_INIT;
	if (!version) {
		if (ws_endpoint_reply(call_of(p, i, VERSION), NULL, NULL, 0, &said) &&
		    !ws_endpoint_said_no(&said))
			p->errs[i] = said;
		if (ws_json_get_int(answer(p, i, TRL), "world_size", 0) > 0)
			refuse_trl(info->url, &p->errs[i]);
		return false;
	}
	if (has_route(p->known[i].routes, "/init_broadcaster")) {
		refuse_prime_rl(info->url, &p->errs[i]);
		return false;
	}
	ws_printable(info->version, sizeof info->version, version, strlen(version));
	p->errs[i] = (struct ws_err)WS_ERR_INIT;
	return true;
}

static int probe(struct vllm_probe *p, struct ws_err *err)
{
	p->version_until = ws_endpoint_later(p->to->until);
	if (ask(p, VERSION, WORLD, p->wanted, err))
		return -1;
	for (size_t i = 0; i < p->to->n; i++)
		p->vllm[i] = p->wanted[i] && is_vllm(p, i);
	p->optional_until = ws_deadline_min(ws_endpoint_later(ws_deadline_part(p->to->until, 2)),
	                                    ws_deadline_in(OPTIONAL_NS));
	p->world_until = ws_endpoint_later(p->to->until);
	/* The first answer with the configuration takes seconds, in which no other comes. */
	if (ask(p, WORLD, CONFIG, p->vllm, err))
		return -1;
	const ws_deadline until = ws_deadline_min(p->slow_until, ws_deadline_in(CONFIG_NS));
	p->config_until = ws_endpoint_later(until > p->to->until ? until : p->to->until);
	if (ask(p, CONFIG, QUESTIONS, p->vllm, err))
		return -1;
	for (size_t i = 0; i < p->to->n; i++) {
		if (!p->vllm[i])
			continue;
		read_vllm(p, i);
		for (int q = 0; q < QUESTIONS; q++)
			if (call_of(p, i, q)->http.ns > p->infos[i].ns)
				p->infos[i].ns = call_of(p, i, q)->http.ns;
	}
	return 0;
}

int ws_vllm_probe(const struct ws_call *to, const bool *wanted,
                  const struct ws_vllm_known *known, ws_deadline slow_until,
                  struct ws_endpoint_info *infos, struct ws_err *errs, bool *vllm,
                  struct ws_err *err)
{
	struct vllm_probe p = {
		.to = to, .slow_until = slow_until, .wanted = wanted, .known = known,
		.infos = infos, .errs = errs, .vllm = vllm,
		.calls = calloc(to->n + 1, QUESTIONS * sizeof *p.calls),
	};
	const int rc = p.calls ? probe(&p, err) : ws_oom(err);
	for (size_t i = 0; p.calls && i < to->n * QUESTIONS; i++)
		ws_endpoint_call_free(&p.calls[i]);
	free(p.calls);
	return rc;
}
