/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of requests to the embedded endpoint. The first byte picks the route, the rest is the body.
 * Nothing connects anywhere: init requests are only decoded and checked. */
#include "serve_core.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static struct ws_serve *endpoint(void)
{
	static struct ws_serve *s;
	if (!s && ws_serve_new(&(const struct ws_serve_opts){ .keep = WS_KEEP_HASH, .tp = 2 }, &s, NULL))
		abort();
	return s;
}

static void feed_handler(const char *path, const char *body, size_t n)
{
	const struct ws_serve_request rq = { .method = "POST", .path = path, .body = body, .body_len = n };
	struct ws_serve_reply rp;
	ws_serve_handle(endpoint(), &rq, &rp);
	if (rp.status < 200 || rp.status > 599 || rp.drop)
		abort();
	/* Whatever was asked, the answer is JSON. */
	struct ws_json *answer = ws_json_parse(ws_buf_str(&rp.body), rp.body.len, "answer", NULL);
	if (!answer)
		abort();
	ws_json_free(answer);
	ws_buf_free(&rp.body);
}

static void feed_checks(const char *body, size_t n)
{
	struct ws_serve_init in;
	struct ws_serve_update u;
	struct ws_err err;
	struct ws_json *root = ws_json_parse(body, n, "body", &err);
	if (!root)
		return;
	if (ws_serve_decode_init(root, &in, &err) == 0)
		ws_serve_check_init(endpoint(), &in, &err);
	if (ws_serve_decode_update(root, &u, &err) == 0) {
		if (ws_serve_check_update(endpoint(), &u, &err) == 0)
			ws_serve_check_load(endpoint(), &u, &err);
		ws_serve_update_fini(&u);
	}
	ws_json_free(root);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	static const char *const paths[] = {
		"/destroy_weights_update_group", "/update_weights_from_distributed", "/pause_generation",
		"/continue_generation", "/update_weight_version", "/weights_checker",
	};
	const size_t n_paths = sizeof paths / sizeof paths[0];
	if (!size)
		return 0;
	const char *body = (const char *)data + 1;
	if (data[0] % (n_paths + 1) < n_paths)
		feed_handler(paths[data[0] % (n_paths + 1)], body, size - 1);
	else
		feed_checks(body, size - 1);
	/* An update outside of a pause would wait for requests that nobody ends. */
	ws_serve_abort_requests(endpoint());
	return 0;
}
