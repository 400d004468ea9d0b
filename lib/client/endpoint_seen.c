/* SPDX-License-Identifier: Apache-2.0 */
#include "endpoint_seen.h"

#include "endpoint_call.h"

#include <stdlib.h>
#include <string.h>

enum { VERSION, PAUSE, QUESTIONS };

static const char VLLM_PAUSED[] = "/is_paused";

/* The route that reports a pause; NULL: none. */
static const char *pause_path(const struct ws_endpoint_info *info)
{
	return info->can.session ? "/ready" : info->can.pause_wait ? VLLM_PAUSED : NULL;
}

bool ws_endpoint_tells_pause(const struct ws_endpoint_info *info)
{
	return pause_path(info) != NULL;
}

static int read_version(struct ws_endpoint_call *call, struct ws_seen *out, struct ws_err *err)
{
	const struct ws_json *root;
	struct ws_endpoint_info now = { 0 };
	if (ws_endpoint_reply(call, &root, NULL, 0, err))
		return -1;
	if (ws_json_type(root) != WS_JSON_OBJECT)
		return ws_err_set(err, WS_EREFUSED, "%.*s: GET %s: the answer is no JSON object",
		                  (int)call->base_len, call->url, call->path);
	ws_endpoint_decode_model_info(root, &now);
	memcpy(out->version, now.weight_version, sizeof out->version);
	return 0;
}

static int read_pause(struct ws_endpoint_call *call, struct ws_seen *out, struct ws_err *err)
{
	const long status = call->http.status;
	if (call->http.err.code) {
		*err = call->http.err;
		return -1;
	}
	out->pause = status == 200 ? WS_SEEN_RUNS :
	             status == 503 ? WS_SEEN_PAUSED :
	                             WS_SEEN_NOT_TOLD;
	if (strcmp(call->path, VLLM_PAUSED) != 0)
		return 0;
	const struct ws_json *root;
	if (ws_endpoint_reply(call, &root, NULL, 0, err))
		return -1;
	const struct ws_json *paused = ws_json_get(root, "is_paused");
	out->pause = ws_json_type(paused) != WS_JSON_BOOL ? WS_SEEN_NOT_TOLD :
	             ws_json_bool(paused, false)          ? WS_SEEN_PAUSED :
	                                                    WS_SEEN_RUNS;
	return 0;
}

static int send_questions(const struct ws_call *to, const struct ws_endpoint_info *infos,
                          unsigned what, struct ws_endpoint_call *calls, struct ws_err *err)
{
	for (size_t i = 0; i < to->n; i++) {
		struct ws_endpoint_call *c = &calls[i * QUESTIONS];
		const char *paths[] = {
			what & WS_SEE_VERSION ? infos[i].version_path : NULL,
			what & WS_SEE_PAUSE ? pause_path(&infos[i]) : NULL,
		};
		for (size_t k = 0; k < QUESTIONS; k++)
			if (paths[k] && ws_endpoint_prepare(&c[k], to->urls[i], "GET", paths[k],
			                                    NULL, to->until, err))
				return -1;
	}
	return ws_endpoint_run(to->http, calls, to->n * QUESTIONS, to->cancel, err);
}

int ws_endpoint_see(const struct ws_call *to, const struct ws_endpoint_info *infos, unsigned what,
                    struct ws_seen *out, struct ws_err *errs, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	struct ws_endpoint_call *calls = calloc(to->n + 1, QUESTIONS * sizeof *calls);
	const int rc = calls ? send_questions(to, infos, what, calls, &why) : ws_oom(&why);
	const struct ws_err *first = rc ? &why : NULL;
	memset(out, 0, to->n * sizeof *out);
	for (size_t i = 0; i < to->n; i++) {
		struct ws_endpoint_call *c = calls ? &calls[i * QUESTIONS] : NULL;
		errs[i] = why;
		if (rc == 0 &&
		    ((c[VERSION].http.url && read_version(&c[VERSION], &out[i], &errs[i])) ||
		     (c[PAUSE].http.url && read_pause(&c[PAUSE], &out[i], &errs[i]))))
			ws_err_where(&errs[i], NULL, to->urls[i]);
		if (!first && errs[i].code)
			first = &errs[i];
		for (size_t k = 0; c && k < QUESTIONS; k++)
			ws_endpoint_call_free(&c[k]);
	}
	free(calls);
	if (first && err)
		*err = *first;
	return first ? -1 : 0;
}
