/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_generate.c - a prompt, for the sake of what a server says of its cache.
 *
 *   POST /generate  {"text", "sampling_params": {"max_new_tokens": 1, "temperature": 0}}
 *   {"text", "meta_info": {"prompt_tokens", "cached_tokens", "weight_version", ...}}
 */
#include "endpoint_call.h"

#include "wsync/json.h"

#include <stdlib.h>

enum { BODY_MAX = 8 << 20 };

static void write_body(struct ws_buf *body, const char *prompt)
{
	struct ws_jw w;
	ws_jw_init(&w, body);
	ws_jw_object(&w, NULL);
	ws_jw_str(&w, "text", prompt);
	ws_jw_object(&w, "sampling_params");
	ws_jw_int(&w, "max_new_tokens", 1);
	ws_jw_int(&w, "temperature", 0);
	ws_jw_end_object(&w);
	ws_jw_end_object(&w);
}

struct reading {
	const char *const *urls;
	int64_t *cached;
};

static int read_cached(void *ctx, struct ws_endpoint_call *calls, size_t i, struct ws_err *errs)
{
	const struct reading *r = ctx;
	const struct ws_json *root;
	if (ws_endpoint_reply(&calls[i], &root, NULL, 0, &errs[i]))
		return -1;
	if (ws_json_type(root) == WS_JSON_ARRAY)
		root = ws_json_first(root);
	const struct ws_json *number = ws_json_get(ws_json_get(root, "meta_info"), "cached_tokens");
	if (ws_json_int(number, &r->cached[i]) && r->cached[i] >= 0)
		return 0;
	r->cached[i] = 0;
	ws_err_set(&errs[i], WS_EREFUSED, "POST /generate: the answer does not say how many tokens came from "
	           "the cache (meta_info.cached_tokens)");
	return ws_err_where(&errs[i], NULL, r->urls[i]);
}

int ws_endpoint_cached_tokens(struct ws_http *http, const char *const *urls, size_t n,
                              const char *prompt, ws_deadline until, const struct ws_cancel *cancel,
                              int64_t *cached, struct ws_err *errs, struct ws_err *err)
{
	struct ws_endpoint_call *calls = calloc(n ? n : 1, sizeof *calls);
	struct reading r = { urls, cached };
	struct ws_err why = WS_ERR_INIT;
	struct ws_buf body;
	ws_buf_init(&body, BODY_MAX);
	write_body(&body, prompt);
	int rc = calls ? ws_buf_check(&body, "prompt", &why) : ws_err_set(&why, WS_ESYSTEM, "out of memory");
	for (size_t i = 0; !rc && i < n; i++)
		rc = ws_endpoint_prepare(&calls[i], urls[i], "POST", "/generate", &body, until, &why);
	if (!rc)
		ws_endpoint_run(http, calls, n, cancel, &why);
	rc = ws_endpoint_take(calls, n, &why, read_cached, &r, errs, err);
	ws_buf_free(&body);
	return rc;
}
