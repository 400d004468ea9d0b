/* SPDX-License-Identifier: Apache-2.0 */
/* serve_small.h - models of a few kilobytes, tensors for them, and a request that loads them. */
#ifndef TESTS_SERVE_SMALL_H
#define TESTS_SERVE_SMALL_H

#include "hash.h"
#include "serve_model.h"

#include "scratch.h"
#include "test.h"

static struct ws_serve_model *model;
static unsigned tp, ep;

/* ---- small models ---- */

static const char llama[] = "{\"architectures\":[\"LlamaForCausalLM\"],\"model_type\":\"llama\","
                            "\"torch_dtype\":\"bfloat16\","
			    "\"hidden_size\":48,\"intermediate_size\":64,\"num_hidden_layers\":2,"
                            "\"num_attention_heads\":8,"
			    "\"num_key_value_heads\":4,\"vocab_size\":100}";
static const char qwen3[] =
	"{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"torch_dtype\":"
        "\"bfloat16\","
	"\"hidden_size\":32,\"intermediate_size\":64,\"num_hidden_layers\":2,\"num_attention_"
        "heads\":8,"
	"\"num_key_value_heads\":2,\"head_dim\":6,\"vocab_size\":70,\"tie_word_embeddings\":true}";
static const char qwen3_moe[] =
	"{\"architectures\":[\"Qwen3MoeForCausalLM\"],\"model_type\":\"qwen3_moe\","
	"\"torch_dtype\":\"bfloat16\",\"hidden_size\":32,\"intermediate_size\":64,\"num_hidden_"
        "layers\":2,"
	"\"num_attention_heads\":8,\"num_key_value_heads\":4,\"head_dim\":4,\"vocab_size\":64,"
	"\"num_experts\":8,\"num_experts_per_tok\":2,\"moe_intermediate_size\":16,"
	"\"mlp_only_layers\":[0],\"decoder_sparse_step\":1,\"tie_word_embeddings\":false}";
static const char deepseek[] =
	"{\"architectures\":[\"DeepseekV3ForCausalLM\"],\"model_type\":\"deepseek_v3\","
	"\"torch_dtype\":\"bfloat16\",\"hidden_size\":32,\"intermediate_size\":64,\"num_hidden_"
        "layers\":2,"
	"\"num_attention_heads\":8,\"num_key_value_heads\":8,\"vocab_size\":64,\"q_lora_rank\":24,"
	"\"kv_lora_rank\":16,\"qk_nope_head_dim\":4,\"qk_rope_head_dim\":2,\"v_head_dim\":4,"
	"\"n_routed_experts\":8,\"n_shared_experts\":1,\"num_experts_per_tok\":2,\"n_group\":2,"
	"\"topk_group\":1,\"moe_intermediate_size\":16,\"first_k_dense_replace\":1,\"moe_layer_"
        "freq\":1,"
	"\"topk_method\":\"noaux_tc\",\"num_nextn_predict_layers\":1,\"tie_word_embeddings\":"
        "false}";

static void write_config(const char *config)
{
	put_text("config.json", config);
}

static void open_model(const char *config, unsigned with_tp, unsigned with_ep)
{
	struct ws_err err = WS_ERR_INIT;
	write_config(config);
	tp = with_tp;
	ep = with_ep;
	if (ws_serve_model_open(".", 0, tp, ep, NULL, NULL, true, &model, &err))
		fail_msg("%s", err.msg);
}

static void close_model(void)
{
	ws_serve_model_close(model);
	model = NULL;
}

/* ---- tensors ---- */

/* Element i of a tensor, as 16 bits that are a small number in bfloat16. */
static uint16_t element(const char *name, uint64_t i)
{
	uint64_t x = ws_hash64(name, strlen(name)) + i * UINT64_C(0x9e3779b97f4a7c15);
	x = (x ^ x >> 31) * UINT64_C(0xbf58476d1ce4e5b9);
	x ^= x >> 29;
	return (uint16_t)((x & 0x80ffu) | 0x3f00u);
}

struct tensor {
	struct ws_serve_slot slot;
	uint8_t *bytes;
};

static struct tensor tensors[2000];
static size_t n_tensors;

static void put_slot(const char *name, enum ws_dtype dtype, unsigned n_dims, const int64_t *dims)
{
	struct tensor *t = &tensors[n_tensors++];
	uint64_t count = 1;
	t->slot = (struct ws_serve_slot){ .name = name, .dtype_name = ws_dtype_torch(dtype),
		                          .dtype = dtype, .n_dims = n_dims };
	for (unsigned d = 0; d < n_dims; d++) {
		t->slot.dims[d] = dims[d];
		count *= (uint64_t)dims[d];
	}
	assert_true(ws_dtype_bytes(dtype, n_dims, dims, &t->slot.bytes));
	t->bytes = malloc((size_t)t->slot.bytes + 1);
	assert_non_null(t->bytes);
	for (uint64_t i = 0; i < count; i++) {
		const uint16_t bits = element(name, i);
		ws_serve_convert(dtype, t->bytes + i * ws_dtype_bits(dtype) / 8, WS_DTYPE_BF16,
		                 &bits, 1);
	}
}

static void put(const char *name, int64_t rows, int64_t cols)
{
	const int64_t dims[] = { rows, cols };
	put_slot(name, WS_DTYPE_BF16, cols ? 2 : 1, dims);
}

/* Every tensor that the layout expects. */
static void put_all(void)
{
	for (size_t i = 0; i < ws_layout_part_count(model->layout); i++) {
		const struct ws_part *p = ws_layout_part(model->layout, i);
		put_slot(p->name, model->dtypes[p->param], p->n_dims, p->dims);
	}
}

static void drop_tensors(void)
{
	while (n_tensors)
		free(tensors[--n_tensors].bytes);
}

static struct ws_serve_load load;

static unsigned noise = 1;
static unsigned next(unsigned below)
{
	noise = noise * 1103515245 + 12345;
	return (noise >> 8) % below;
}

/* One request with all tensors, to every rank, in pieces of any length. Returns whether it was
 * refused. load.* can be looked at until the next one. */
static bool send(void)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_serve_slot slots[2000];
	uint64_t duplicates = 0;
	for (size_t i = 0; i < n_tensors; i++)
		slots[i] = tensors[i].slot;
	const struct ws_serve_update u = { .slots = slots, .n = n_tensors };
	ws_serve_load_fini(&load);
	assert_int_equal(ws_serve_load_begin(&load, model, &u, NULL, &err), 0);
	for (unsigned r = 0; r < tp; r++)
		for (size_t i = 0; i < n_tensors; i++)
			for (uint64_t at = 0; at < slots[i].bytes; ) {
				uint64_t n = 1 + next(400);
				if (n > slots[i].bytes - at)
					n = slots[i].bytes - at;
				ws_serve_load_put(&load, r, i, at, tensors[i].bytes + at,
				                  (size_t)n);
				at += n;
			}
	ws_serve_load_commit(&load, 1, &duplicates);
	drop_tensors();
	return load.why.code != 0;
}

static int close_scratch(void **state)
{
	drop_tensors();
	ws_serve_load_fini(&load);
	close_model();
	return scratch_leave(state);
}

#define WITH_MODEL(name) TEST_BETWEEN(name, scratch_enter, close_scratch)

#endif
