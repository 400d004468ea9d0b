/* SPDX-License-Identifier: Apache-2.0 */
/* push_values.c - weights that are changed on their way: who can take what comes of it, and are they
 * computed from numbers at all?
 *
 * A server that keeps bf16 copies FP8 codes into its parameters as they are, drops the scales as names
 * that it does not know, and says that all went well. So FP8 goes only to servers that keep it, as far as
 * they or their config.json say. A NaN must be found before anybody is paused, so everything that is
 * computed with is read once while the endpoints are reached and the group is made; what that finds of
 * scales is used afterwards. */
#include "push_state.h"

#include <poll.h>
#include <stdio.h>
#include <string.h>

/* ---- who keeps FP8 ------------------------------------------------------------------------------- */

static bool is_fp8_name(const char *quantization)
{
	return strstr(quantization, "fp8") || strcmp(quantization, "compressed-tensors") == 0;
}

/* *out NULL: there is none that can be read here. */
static int open_config(const struct ws_endpoint_info *info, struct ws_config **out)
{
	const char *dir = ws_audit_model_dir(info);
	*out = NULL;
	if (dir && ws_config_open(dir, out, NULL))
		*out = NULL; /* malformed, it is none: it is not what the operator named */
	return 0;
}

int push_find_server(struct ws_push *p, struct ws_err *err)
{
	const struct ws_transform_opts *o = p->opts.transform;
	(void)err;
	if (!o || o->quantize == WS_QUANTIZE_NONE || o->quant || p->server)
		return 0;
	for (size_t i = 0; p->known && !p->server && i < p->opts.n_endpoints; i++) {
		open_config(&p->infos[i], &p->server);
		if (p->server && strcmp(ws_config_quant(p->server)->method, "fp8")) {
			ws_config_free(p->server);
			p->server = NULL;
		}
	}
	return 0;
}

static bool sends_fp8(const struct ws_push *p)
{
	for (size_t i = 0; i < p->plan->n_tensors; i++)
		if (p->plan->tensors[i].dtype == WS_DTYPE_F8_E4M3)
			return true;
	return false;
}

static int refuse_bf16(const struct ws_endpoint_info *info, const char *what, struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED, "%s does not keep its weights in FP8 (%s): it would take the codes for "
	           "numbers and drop the scales, and say that all went well", info->url, what);
	ws_err_hint(err, "start it from an FP8 checkpoint, or send what it keeps");
	return ws_err_where(err, NULL, info->url);
}

static int check_scale_format(const struct ws_endpoint_info *info, const struct ws_config *config,
                              struct ws_err *err)
{
	if (config && strcmp(ws_config_quant(config)->scale_fmt, "ue8m0") == 0)
		return 0;
	ws_err_set(err, WS_EREFUSED, "%s is not known to want scales that are powers of two: its config.json "
	           "%s", info->url, config ? "has no \"scale_fmt\": \"ue8m0\"" : "cannot be read here");
	return ws_err_where(err, NULL, info->url);
}

static int check_one(const struct ws_push *p, const struct ws_endpoint_info *info,
                     const struct ws_config *config, struct ws_err *err)
{
	const struct ws_transform_opts *o = p->opts.transform;
	char what[128];
	if (o && o->quantize != WS_QUANTIZE_NONE && o->ue8m0 && check_scale_format(info, config, err))
		return -1;
	if (!sends_fp8(p) || is_fp8_name(info->quantization))
		return 0;
	if (*info->quantization) {
		snprintf(what, sizeof what, "its quantization is %s", info->quantization);
		return refuse_bf16(info, what, err);
	}
	if (config && !is_fp8_name(ws_config_quant(config)->method))
		return refuse_bf16(info, "its config.json has no quantization_config for it", err);
	return 0;
}

int push_check_fp8(struct ws_push *p, struct ws_err *err)
{
	int rc = 0;
	for (size_t i = 0; p->known && i < p->opts.n_endpoints && rc == 0; i++) {
		struct ws_config *config;
		open_config(&p->infos[i], &config);
		rc = check_one(p, &p->infos[i], config, err);
		ws_config_free(config);
	}
	return rc;
}

/* ---- values -------------------------------------------------------------------------------------- */

static int look(void *arg, struct ws_err *err)
{
	struct ws_push *p = arg;
	return ws_transform_check(p->input.transform, p->plan, &p->check_stop, err);
}

int push_values_begin(struct ws_push *p, struct ws_err *err)
{
	if (!p->input.transform || p->opts.transform->trust_values || p->opts.dry_run)
		return 0;
	if (ws_cancel_init(&p->check_stop, err))
		return -1;
	if (ws_job_init(&p->check, err) || ws_job_start(&p->check, look, p, err)) {
		ws_job_fini(&p->check);
		ws_cancel_fini(&p->check_stop);
		return -1;
	}
	p->checking = true;
	return 0;
}

int push_values(struct ws_push *p, struct ws_err *err)
{
	struct pollfd over = { .fd = p->check.fd, .events = POLLIN };
	if (!p->checking)
		return 0;
	while (poll(&over, 1, 0) <= 0) {
		if (ws_http_wait(p->http, p->until, p->opts.cancel, over.fd, err) < 0)
			return -1;
		if (ws_deadline_passed(p->until))
			return ws_err_set(err, WS_ETIMEOUT, "looking at the values of the source: the deadline "
			                  "passed");
	}
	return ws_job_wait(&p->check, err);
}

void push_values_end(struct ws_push *p)
{
	if (!p->checking)
		return;
	ws_cancel_set(&p->check_stop);
	ws_job_fini(&p->check);
	ws_cancel_fini(&p->check_stop);
	p->checking = false;
}
