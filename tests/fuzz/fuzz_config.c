/* SPDX-License-Identifier: Apache-2.0 */
/* A config.json. What is accepted must answer every question about the keys that matter, and an
 * expression over it. */
#include "wsync/tool/config.h"
#include "expr.h"
#include "wsync/tool/json_read.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void require(int true_here)
{
	if (!true_here)
		abort();
}

static void try_quant(const struct ws_quant *q)
{
	static const char *const modules[] = {
		"lm_head", "model.layers.0.mlp.gate", "model.layers.0.self_attn.q_proj", "",
	};
	require(q && q->method);
	require((q->block[0] > 0) == (q->block[1] > 0));
	for (size_t i = 0; i < sizeof modules / sizeof modules[0]; i++)
		ws_quant_skips(q, modules[i]);
	for (size_t i = 0; i < q->n_skip; i++)
		ws_quant_skips(q, q->skip[i]);
}

/* What is written anew is JSON again, with everything that it had. */
static void try_write(const struct ws_config *c, const char *text, size_t n)
{
	const struct ws_quant q = { .method = "fp8", .scale_fmt = "", .activation = "" };
	struct ws_buf out;
	ws_buf_init(&out, 0);
	require(ws_config_requantize(text, n, "fuzz", &q, &out, NULL) == 0);
	struct ws_json *root = ws_json_parse(ws_buf_str(&out), out.len, "fuzz", NULL);
	require(root != NULL);
	require(ws_json_get(root, "quantization_config") != NULL);
	require((ws_config_model_type(c)[0] == 0) || ws_json_get(root, "model_type") ||
	        ws_json_get(root, "text_config"));
	ws_json_free(root);
	ws_buf_free(&out);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	static const char *const keys[] = {
		"hidden_size",         "num_attention_heads", "head_dim",
		"tie_word_embeddings", "torch_dtype",         "mlp_only_layers",
		"text_config",         "architectures",       "",
	};
	static const char text[] = "head_dim ?? hidden_size / num_attention_heads";
	struct ws_config *c = NULL;
	struct ws_expr *e;
	struct ws_err err = WS_ERR_INIT;
	int64_t v;
	if (size > 1 << 16)
		return 0;
	if (ws_config_parse((const char *)data, size, "fuzz", &c, &err)) {
		require(err.code == WS_EINPUT && err.msg[0]);
		return 0;
	}
	require(ws_config_architecture(c) && ws_config_text_architecture(c));
	require(ws_config_model_type(c) && ws_config_text_model_type(c));
	for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++) {
		if (ws_config_int(c, keys[i], &v))
			require(ws_config_knows(c, keys[i]) && !ws_config_string(c, keys[i]));
		ws_config_has(c, keys[i], 3);
		ws_config_disagrees(c, keys[i]);
	}
	try_quant(ws_config_quant(c));
	try_write(c, (const char *)data, size);
	require(ws_expr_parse(text, strlen(text), &e, &err) == 0);
	if (ws_expr_eval(e, &(struct ws_scope){ .config = c }, &v, &err))
		require(err.code == WS_EINPUT);
	ws_expr_free(e);
	ws_config_free(c);
	return 0;
}
