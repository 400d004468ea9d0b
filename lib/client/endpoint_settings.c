/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_settings.c - reads the arguments that endpoints were started with.
 *
 *   GET /server_info (earlier /get_server_info)   flat: every argument by its name
 */
#include "endpoint_call.h"
#include "wsync/tool/flags.h"

#include <stdlib.h>

static int ask_settings(const struct ws_call *to, struct ws_endpoint_call *calls,
                        struct ws_err *err)
{
	for (size_t i = 0; i < to->n; i++)
		if (ws_endpoint_prepare(&calls[i], to->urls[i], "GET", "/server_info", NULL,
		                        to->until, err))
			return -1;
	if (ws_endpoint_run(to->http, calls, to->n, to->cancel, err))
		return -1;
	for (size_t i = 0; i < to->n; i++)
		if (calls[i].http.status == 404 &&
		    ws_endpoint_prepare(&calls[i], to->urls[i], "GET", "/get_server_info", NULL,
		                        ws_endpoint_later(to->until), err))
			return -1;
	return ws_endpoint_run(to->http, calls, to->n, to->cancel, err);
}

struct reading {
	const char *const *urls;
	struct ws_settings *outs;
};

static int read_settings(void *ctx, struct ws_endpoint_call *calls, size_t i, struct ws_err *errs)
{
	const struct reading *r = ctx;
	const struct ws_json *root;
	if (ws_endpoint_reply(&calls[i], &root, NULL, 0, &errs[i]))
		return -1;
	if (ws_json_type(root) != WS_JSON_OBJECT)
		ws_err_set(&errs[i], WS_EREFUSED, "GET /server_info: the answer is no JSON object");
	else if (!ws_settings_take(&r->outs[i], root, false, "/server_info", &errs[i]))
		return 0;
	return ws_err_where(&errs[i], NULL, r->urls[i]);
}

int ws_endpoint_settings(const struct ws_call *to, struct ws_settings *outs, struct ws_err *errs,
                         struct ws_err *err)
{
	struct ws_endpoint_call *calls = calloc(to->n ? to->n : 1, sizeof *calls);
	struct reading r = { to->urls, outs };
	struct ws_err why = WS_ERR_INIT;
	for (size_t i = 0; i < to->n; i++)
		outs[i] = (struct ws_settings){ 0 };
	if (!calls)
		ws_oom(&why);
	else
		ask_settings(to, calls, &why);
	return ws_endpoint_take(calls, to->n, &why, read_settings, &r, errs, err);
}

/* ---- settings of NCCL ---- */

/* vLLM has set neither since 0.11 (its PR 24141), and no release before 0.16 takes updates. */
static int cumem_of(const struct ws_endpoint_info *info)
{
	return ws_lineage_family(info->lineage) == WS_FAMILY_VLLM ? WS_NCCL_OWN_CUMEM :
	                                                            info->nccl_cumem;
}

static int nvls_of(const struct ws_endpoint_info *info)
{
	return ws_lineage_family(info->lineage) == WS_FAMILY_VLLM ? WS_NCCL_OWN_NVLS :
	                                                            info->nccl_nvls;
}

void ws_endpoint_nccl_settings(const struct ws_endpoint_info *infos, size_t n,
                               struct ws_nccl_settings *out)
{
	*out = (struct ws_nccl_settings){ .cumem = cumem_of(&infos[0]), .nvls = nvls_of(&infos[0]),
		                          .url = infos[0].url };
	/* Ranks agree among themselves whether they use NVLS. */
	for (size_t i = 1; i < n && !out->other; i++)
		if (cumem_of(&infos[i]) != out->cumem)
			out->other = infos[i].url;
}
