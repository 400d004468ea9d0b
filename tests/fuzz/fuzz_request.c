/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of requests to the embedded endpoint, one with a model and one without. The first byte
 * picks the route, the rest is the body. Nothing connects anywhere: init requests are only
 * decoded and checked, and of updates it is decided what would become of their tensors. */
#include "serve_model.h"
#include "serve_scatter.h"
#include "serve_call.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static const char config[] =
	"{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"hidden_size\":8,\"intermediate_size\":8,"
	"\"num_hidden_layers\":2,\"num_attention_heads\":2,\"vocab_size\":8,\"q_lora_rank\":4,"
	"\"kv_lora_rank\":4,\"qk_nope_head_dim\":2,\"qk_rope_head_dim\":2,\"v_head_dim\":2,"
	"\"n_routed_experts\":2,\"n_shared_experts\":1,\"moe_intermediate_size\":4,"
	"\"first_k_dense_replace\":1,\"moe_layer_freq\":1,\"topk_method\":\"noaux_tc\"}";

static struct ws_serve *start(struct ws_serve_opts opts)
{
	char path[] = "/tmp/wsync-fuzz-XXXXXX";
	struct ws_serve *s = NULL;
	struct ws_err err;
	const int fd = mkstemp(path);
	if (fd < 0 || write(fd, config, sizeof config - 1) != (ssize_t)(sizeof config - 1))
		abort();
	close(fd);
	opts.model = opts.keep == WS_KEEP_MEMORY ? path : NULL;
	if (ws_serve_new(&opts, &s, &err)) {
		fprintf(stderr, "%s\n", err.msg);
		abort();
	}
	unlink(path);
	return s;
}

static struct ws_serve *endpoint(void)
{
	static struct ws_serve *s;
	if (!s)
		s = start((struct ws_serve_opts){ .keep = WS_KEEP_HASH, .tp = 2 });
	return s;
}

static struct ws_serve *endpoint_with_model(void)
{
	static struct ws_serve *s;
	if (!s)
		s = start((struct ws_serve_opts){ .tp = 2 });
	return s;
}

static void feed_handler(struct ws_serve *s, const char *path, const char *body, size_t n)
{
	const struct ws_serve_request rq = {
		.method = "POST", .path = path, .body = body, .body_len = n
	};
	struct ws_serve_reply rp;
	ws_serve_handle(s, &rq, &rp);
	if (rp.status < 200 || rp.status > 599 || rp.drop)
		abort();
	/* Whatever was asked, the answer is JSON. */
	struct ws_json *answer = ws_json_parse(ws_buf_str(&rp.body), rp.body.len, "answer", NULL);
	if (!answer)
		abort();
	ws_json_free(answer);
	ws_buf_free(&rp.body);
}

/* Loads zeros, which costs a little memory only where a shape is that of a parameter. */
static void feed_loader(const struct ws_serve_update *u)
{
	static const uint8_t zeros[256];
	struct ws_serve_load load;
	uint64_t duplicates;
	if (ws_serve_load_begin(&load, endpoint_with_model()->model, u, NULL, NULL))
		abort();
	for (size_t i = 0; i < u->n; i++)
		for (uint64_t at = 0; load.dest[i].loads && at < u->slots[i].bytes;
		     at += sizeof zeros)
			ws_serve_load_put(&load, 1, i, at, zeros,
			                  u->slots[i].bytes - at < sizeof zeros ?
			                          (size_t)(u->slots[i].bytes - at) :
			                          sizeof zeros);
	ws_serve_load_commit(&load, 1, &duplicates);
	ws_serve_load_fini(&load);
}

static void feed_plan(const struct ws_json *root)
{
	struct ws_serve_share_rq rq;
	struct ws_serve_scatter x = { .model = endpoint_with_model()->model };
	struct ws_err err;
	if (ws_serve_scatter_decode(endpoint_with_model(), root, &rq, &err) == 0)
		ws_serve_scatter_plan(&x, &rq, NULL, &err);
	ws_serve_scatter_fini(&x);
}

static void feed_checks(const char *body, size_t n)
{
	struct ws_serve_init in;
	struct ws_serve_update u;
	struct ws_serve_buckets b;
	struct ws_err err;
	struct ws_json *root = ws_json_parse(body, n, "body", &err);
	if (!root)
		return;
	if (ws_serve_decode_init(root, &in, &err) == 0)
		ws_serve_check_init(endpoint(), &in, &err);
	if (ws_serve_decode_update(root, WS_SERVE_XORL_LEGACY, &u, &err) == 0) {
		if (ws_serve_check_update(endpoint(), &u, &err) == 0) {
			ws_serve_check_load(endpoint(), &u, &err);
			feed_loader(&u);
		}
		ws_serve_update_fini(&u);
	}
	if (ws_serve_decode_buckets(root, &b, &err) == 0) {
		if (ws_serve_stage_buckets(endpoint(), &b, &err) == 0 && b.n &&
		    b.buckets[b.n - 1].slots + b.buckets[b.n - 1].n != b.all.slots + b.all.n)
			abort();
		ws_serve_buckets_fini(&b);
	}
	feed_plan(root);
	ws_json_free(root);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	static const char *const paths[] = {
		"/destroy_weights_update_group",
		"/update_weights_from_distributed",
		"/pause_generation",
		"/continue_generation",
		"/update_weight_version",
		"/weights_checker",
		"/get_weights_by_name",
	};
	const size_t n_paths = sizeof paths / sizeof paths[0];
	if (!size)
		return 0;
	const char *body = (const char *)data + 1;
	const size_t which = data[0] % (n_paths + 1);
	if (which < n_paths) {
		feed_handler(endpoint(), paths[which], body, size - 1);
		feed_handler(endpoint_with_model(), paths[which], body, size - 1);
	} else {
		feed_checks(body, size - 1);
	}
	/* An update outside of a pause would wait for requests that nobody ends. */
	ws_serve_abort_requests(endpoint());
	ws_serve_abort_requests(endpoint_with_model());
	return 0;
}
