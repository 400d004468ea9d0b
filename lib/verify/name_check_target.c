/* SPDX-License-Identifier: Apache-2.0 */
/* name_check_target.c - reads the sizes, the model path and the listed names of servers. */
#include "wsync/tool/name_check_run.h"

#include "endpoint_weights.h"
#include "listing_read.h"
#include "wsync/tool/history.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* A path on the server's machine, or a name on a hub, so it is usually not here. With model_path, a
 * source that was pushed from disk would be compared with itself. */
const char *ws_name_check_model_dir(const struct ws_endpoint_info *info)
{
	char path[1100];
	struct stat st;
	const char *dir = info->start_path[0] == '/' ? info->start_path : info->snapshot;
	snprintf(path, sizeof path, "%s/config.json", dir);
	return *dir && !info->path_unused && stat(path, &st) == 0 ? dir : NULL;
}

/* vLLM's id is the time of its start. */
static int64_t started(const struct ws_endpoint_info *info)
{
	const struct ws_identity *i = &info->identity;
	return ws_lineage_family(info->lineage) == WS_FAMILY_VLLM && i->unique && i->n ?
	               (int64_t)i->seen[0].id : 0;
}

void ws_name_check_reference(const struct ws_endpoint_info *info, struct ws_input_found *out)
{
	*out = (struct ws_input_found){ .started = started(info) };
	memcpy(out->of, info->start_path, sizeof out->of);
	memcpy(out->architecture, info->architecture, sizeof out->architecture);
	memcpy(out->model_type, info->model_type, sizeof out->model_type);
	if (info->path_unused || info->keeps_anything)
		return;
	const bool cached = info->start_path[0] != '/';
	const char *dir = cached ? info->snapshot : info->start_path;
	if (!*dir || !ws_reference_at(dir))
		return;
	out->cached = cached;
	snprintf(out->path, sizeof out->path, "%s", dir);
	snprintf(out->name, sizeof out->name, "%.600s%s", info->start_path, cached ? " as cached" :
	         "");
}

/* When the first recorded push to this start of the server began, in ns since 1970; 0: none. */
static int64_t first_push(const char *state_dir, uint64_t instance)
{
	struct ws_history h = { 0 };
	int64_t first = 0;
	if (!state_dir || !instance || ws_history_read(state_dir, &h, NULL))
		return 0;
	for (size_t i = 0; !first && i < h.n; i++)
		for (size_t k = 0; k < h.items[i].n_endpoints; k++)
			if (h.items[i].endpoints[k].instance == instance)
				first = (h.items[i].began + 1) * WS_NS_PER_S; /* whole seconds */
	ws_history_free(&h);
	return first;
}

struct ws_input_found ws_name_check_references(const struct ws_endpoint_info *infos, size_t n,
                                               const char *state_dir)
{
	struct ws_input_found found = { .started = 0 };
	for (size_t i = 0; i < n && !*found.path; i++) {
		ws_name_check_reference(&infos[i], &found);
		if (*found.path && !found.started && !found.cached)
			found.seen = first_push(state_dir, infos[i].instance);
	}
	return found;
}

static unsigned rules_of(const struct ws_endpoint_info *info)
{
	return ws_quant_rules(ws_lineage_family(info->lineage) == WS_FAMILY_VLLM, info->version);
}

bool ws_name_check_alike(const struct ws_endpoint_info *a, const struct ws_endpoint_info *b)
{
	return strcmp(a->start_path, b->start_path) == 0 && a->path_unused == b->path_unused &&
	       rules_of(a) == rules_of(b);
}

struct ws_config *ws_name_check_config(const struct ws_endpoint_info *info)
{
	const char *dir = ws_name_check_model_dir(info);
	struct ws_config *config;
	if (!dir || ws_config_open(dir, &config, NULL))
		return NULL;
	ws_config_set_rules(config, rules_of(info));
	return config;
}

struct ws_config *ws_name_check_quant(const struct ws_endpoint_info *infos, size_t n,
                                      const struct ws_transform_opts *t)
{
	for (size_t i = 0; t->quantize != WS_QUANTIZE_NONE && !t->quant && i < n; i++) {
		struct ws_config *config = ws_name_check_config(&infos[i]);
		if (config && strcmp(ws_config_quant(config)->method, "fp8") == 0)
			return config;
		ws_config_free(config);
	}
	return NULL;
}

/* Of older releases it is not known from which on they do. */
static bool keeps_biases(const char *version)
{
	unsigned major, minor;
	return sscanf(version, "%u.%u", &major, &minor) == 2 && (major || minor >= 32);
}

static void describe(struct ws_name_check_target *t, const struct ws_endpoint_info *info)
{
	*t = (struct ws_name_check_target){ .tp = info->tp_size,
		                            .ep = info->ep_size,
		                            .replicas = info->dp_size };
	memcpy(t->url, info->url, sizeof t->url);
	ws_name_check_reference(info, &t->found);
	memcpy(t->start, info->start_path, sizeof t->start);
	memcpy(t->model_type, info->model_type, sizeof t->model_type);
	memcpy(t->architecture, info->architecture, sizeof t->architecture);
	const uint64_t shares = (info->dp_attention && info->dp_size ? info->dp_size : 1) *
	                        (uint64_t)(info->attention_cp ? info->attention_cp : 1);
	if (shares > 1 && info->tp_size % shares == 0)
		t->attention_tp = (unsigned)(info->tp_size / shares);
	t->config = ws_name_check_config(info);
	enum ws_dtype dtype;
	t->dtype_told = ws_dtype_from_torch(info->dtype, &dtype);
	t->unused = info->path_unused;
	t->keeps_anything = info->keeps_anything;
	/* A first pipeline stage lacks layers that would be requested. */
	t->whole_modules = ws_lineage_family(info->lineage) == WS_FAMILY_VLLM;
	t->keeps_biases = t->whole_modules && keeps_biases(info->version);
	t->summable = !t->config && t->whole_modules && info->can.checksums;
	t->askable = !t->config && info->pp_size <= 1 && !info->keeps_anything && !t->whole_modules;
}

static void take_listing(struct ws_name_check_target *t, const char *route, const struct ws_err *e)
{
	if (e->code == WS_OK)
		snprintf(t->listed, sizeof t->listed, "%s%s", t->url, route);
	else if (e->native == 404)
		snprintf(t->unlisted, sizeof t->unlisted, "the endpoint does not list its weights");
	else
		snprintf(t->unlisted, sizeof t->unlisted,
		         "the endpoint does not list its weights (%.190s)", e->msg);
}

int ws_name_check_sums(const struct ws_call *how, const struct ws_endpoint_info *infos,
                       struct ws_name_check_target *targets, size_t n, struct ws_err *err)
{
	const char **urls = calloc(n + 1, sizeof *urls);
	const struct ws_endpoint_info **of = calloc(n + 1, sizeof *of);
	struct ws_weight_list *lists = calloc(n + 1, sizeof *lists);
	struct ws_err *errs = calloc(n + 1, sizeof *errs), why = WS_ERR_INIT;
	struct ws_call to = *how;
	to.n = 0;
	if (!urls || !of || !lists || !errs)
		ws_oom(&why);
	for (size_t i = 0; !why.code && i < n; i++)
		if (targets[i].summable) {
			of[to.n] = infos ? &infos[i] : NULL;
			urls[to.n++] = targets[i].url;
		}
	to.urls = urls;
	to.infos = infos ? of : NULL;
	if (to.n)
		ws_endpoint_checker_names(&to, lists, errs, &why);
	for (size_t i = 0, k = 0; k < to.n; i++) {
		struct ws_name_check_target *t = &targets[i];
		if (!t->summable)
			continue;
		t->summable = false;
		if (errs[k].code == WS_OK) {
			ws_weight_list_free(&t->listing);
			t->listing = lists[k];
			t->listing.received |= t->keeps_anything;
			take_listing(t, ws_endpoint_checker_route(t->whole_modules ?
			                                          WS_FAMILY_VLLM :
			                                          WS_FAMILY_SGLANG), &errs[k]);
		} else if (errs[k].native != 404) {
			snprintf(t->unlisted, sizeof t->unlisted,
			         "its checksums, which tell their names, did not come (%.190s)",
			         errs[k].msg);
		}
		k++;
	}
	free(urls);
	free(of);
	free(lists);
	free(errs);
	if (why.code != WS_ECANCELLED && why.code != WS_ESYSTEM)
		return 0;
	*err = why;
	return -1;
}

static int ask_lists(struct ws_http *http, size_t n, bool thorough, ws_deadline until,
                     const struct ws_cancel *cancel, struct ws_name_check_target *out,
                     struct ws_weight_list *lists, const char **urls, struct ws_err *errs,
                     struct ws_err *err)
{
	for (size_t i = 0; i < n; i++)
		urls[i] = out[i].url;
	const struct ws_call to = { http, urls, n, until, cancel, NULL };
	const int rc = ws_endpoint_list_all(&to, NULL, 0, lists, errs, err);
	for (size_t i = 0; i < n; i++) /* the caller frees all, also after a failure */
		out[i].listing = lists[i];
	if (rc && (err->code == WS_ECANCELLED || err->code == WS_ESYSTEM))
		return -1;
	*err = (struct ws_err)WS_ERR_INIT;
	for (size_t i = 0; i < n; i++) {
		take_listing(&out[i], "/list_weights", &errs[i]);
		out[i].summable = !*out[i].listed && (thorough || out[i].summable);
	}
	if (thorough && ws_name_check_sums(&to, NULL, out, n, err))
		return -1;
	for (size_t i = 0; i < n; i++)
		out[i].askable = out[i].askable && (!*out[i].listed || out[i].listing.received);
	return 0;
}

int ws_name_check_ask(struct ws_http *http, const struct ws_endpoint_info *infos, size_t n,
                      bool thorough, ws_deadline until, const struct ws_cancel *cancel,
                      struct ws_name_check_target *out, struct ws_err *err)
{
	struct ws_weight_list *lists = calloc(n + 1, sizeof *lists);
	struct ws_err *errs = calloc(n + 1, sizeof *errs);
	const char **urls = calloc(n + 1, sizeof *urls);
	for (size_t i = 0; i < n; i++)
		describe(&out[i], &infos[i]);
	const int rc = !lists || !errs || !urls ? ws_oom(err) :
	                                          ask_lists(http, n, thorough, until, cancel, out,
	                                                    lists, urls, errs, err);
	for (size_t i = 0; rc && i < n; i++)
		ws_name_check_target_free(&out[i]);
	free(lists);
	free(errs);
	free(urls);
	return rc;
}

int ws_name_check_read(const char *path, struct ws_name_check_target *t, struct ws_err *err)
{
	ws_weight_list_free(&t->listing);
	*t->listed = 0;
	if (ws_weight_list_read(path, &t->listing, err))
		return -1;
	snprintf(t->listed, sizeof t->listed, "%s", strcmp(path, "-") ? path : "standard input");
	return 0;
}

void ws_name_check_target_free(struct ws_name_check_target *t)
{
	if (!t)
		return;
	ws_weight_list_free(&t->listing);
	ws_config_free(t->config);
	*t = (struct ws_name_check_target){ 0 };
}

static bool same_config(const struct ws_config *a, const struct ws_config *b)
{
	return (!a && !b) || (a && b && !strcmp(ws_config_path(a), ws_config_path(b)));
}

bool ws_name_check_same(const struct ws_name_check_target *a, const struct ws_name_check_target *b)
{
	return a->tp == b->tp && a->ep == b->ep && a->whole_modules == b->whole_modules &&
	       a->keeps_biases == b->keeps_biases && a->attention_tp == b->attention_tp &&
	       !*a->listed == !*b->listed && same_config(a->config, b->config) &&
	       !strcmp(a->model_type, b->model_type) && !strcmp(a->architecture, b->architecture) &&
	       !strcmp(a->differs, b->differs) && !strcmp(a->start, b->start) &&
	       ws_weight_list_same(&a->listing, &b->listing);
}

/* SGLang's "auto" is the config's, but a config of float32 makes it float16, or bfloat16 for Gemma
 * (_get_and_verify_dtype in its model_config.py, 0.4 to 0.5.23). */
enum ws_dtype ws_name_check_dtype(const struct ws_endpoint_info *info,
                                  const struct ws_config *config)
{
	enum ws_dtype dtype;
	if (ws_dtype_from_torch(info->dtype, &dtype))
		return dtype;
	const char *name = config ? ws_config_string(config, "torch_dtype") : NULL;
	if (config && !name)
		name = ws_config_string(config, "dtype");
	if (!name || !ws_dtype_from_torch(name, &dtype))
		return WS_DTYPE_COUNT;
	const char *type = ws_config_string(config, "model_type");
	if (dtype != WS_DTYPE_F32)
		return dtype;
	return type && strncmp(type, "gemma", 5) == 0 ? WS_DTYPE_BF16 : WS_DTYPE_F16;
}
