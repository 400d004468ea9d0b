/* SPDX-License-Identifier: Apache-2.0 */
/* Bodies of /generate, at an endpoint without a model and at one with experts: they are refused, or
 * answered with what the readers of answers take. Answers that would take long are read and not
 * run. */
#include "serve_generate.h"
#include "serve_call.h"

#include "wsync/tool/logprobs.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

enum { MOST = 600 }; /* tokens generated for one body */

static const char config[] =
	"{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\",\"hidden_size\":"
        "32,"
	"\"intermediate_size\":64,\"num_hidden_layers\":2,\"num_attention_heads\":8,\"num_key_"
        "value_heads\":4,"
	"\"head_dim\":4,\"vocab_size\":64,\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_"
        "intermediate_size\":16,"
	"\"mlp_only_layers\":[0],\"decoder_sparse_step\":1,\"tie_word_embeddings\":false}";

static struct ws_serve *start(const char *model, enum ws_serve_lineage lineage)
{
	const struct ws_serve_opts opts = { .model = model,
		                            .lineage = lineage,
		                            .routed_experts = model != NULL };
	struct ws_serve *s = NULL;
	if (ws_serve_new(&opts, &s, NULL))
		abort();
	return s;
}

static struct ws_serve *with_model(void)
{
	char path[] = "/tmp/wsync-fuzz-XXXXXX";
	const int fd = mkstemp(path);
	if (fd < 0 || write(fd, config, sizeof config - 1) != (ssize_t)(sizeof config - 1))
		abort();
	close(fd);
	struct ws_serve *s = start(path, WS_SERVE_LENIENT);
	unlink(path);
	return s;
}

/* Is it worth running? Whatever is refused is. */
static bool is_short(const struct ws_serve *s, const char *body, size_t n)
{
	struct ws_generate g = { 0 };
	struct ws_err err = WS_ERR_INIT;
	size_t tokens = 0;
	struct ws_json *root = ws_json_parse(body, n, "body", &err);
	if (root && ws_json_type(root) == WS_JSON_OBJECT &&
	    ws_generate_read(s, root, &g, &err) == 0)
		for (size_t i = 0; i < g.n; i++)
			tokens += g.items[i].n_new;
	ws_generate_free(&g);
	ws_json_free(root);
	return tokens <= MOST;
}

static void check_answer(const char *text, size_t n)
{
	struct ws_logprobs l;
	struct ws_err err = WS_ERR_INIT;
	struct ws_json *answer = ws_json_parse(text, n, "answer", NULL);
	if (!answer)
		abort();
	const struct ws_json *meta = ws_json_get(answer, "meta_info");
	if (ws_json_get(meta, "output_token_logprobs") &&
	    ws_json_count(ws_json_get(answer, "output_ids"))) {
		if (ws_logprobs_parse(text, n, "answer", &l, &err))
			abort();
		ws_logprobs_free(&l);
	}
	ws_json_free(answer);
}

static void feed(struct ws_serve *s, const char *body, size_t n)
{
	const struct ws_serve_request rq = {
		.method = "POST", .path = "/generate", .body = body, .body_len = n
	};
	struct ws_serve_reply rp;
	if (!is_short(s, body, n))
		return;
	ws_serve_handle(s, &rq, &rp);
	if ((rp.status != 200 && rp.status != 400) || rp.drop)
		abort();
	check_answer(ws_buf_str(&rp.body), rp.body.len);
	ws_buf_free(&rp.body);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	static struct ws_serve *plain, *model;
	if (!plain)
		plain = start(NULL, WS_SERVE_SGLANG_0_5);
	if (!model)
		model = with_model();
	feed(plain, (const char *)data, size);
	feed(model, (const char *)data, size);
	return 0;
}
