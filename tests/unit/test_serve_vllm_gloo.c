/* SPDX-License-Identifier: Apache-2.0 */
/* Updates of vLLM over gloo, by wsync's worker extension: this program is the trainer. */
#include "scratch.h"
#include "tensor_file.h"

#include "serve_model.h"
#include "serve_vllm_rank0.h"

#include <sys/stat.h>

RANK0_TEST(an_update_is_one_call_in_0_20)
{
	start(&(struct ws_serve_opts){ .lineage = WS_SERVE_VLLM_0_20, .tp = 2 });
	form_vllm("");
	update_vllm(DESCRIBED, each, 4, 200, "{\"message\":\"Weights updated\"}");
	assert_checksums();
	renew_bytes(2);
	/* a limit of 0: every tensor exceeds it */
	update_vllm(DESCRIBED ",\"packed\":true,\"packed_buffer_size_bytes\":0", each, 4, 200,
	            "Weights");
	assert_checksums();
	assert_int_equal(serve->journal.updates, 2);
	assert_int_equal(serve->journal.bytes, 2 * sizeof bytes);
}

RANK0_TEST(packed_broadcasts_are_cut_after_the_limit)
{
	static const size_t ends[] = { 1, 4 };
	start(&(struct ws_serve_opts){ .lineage = WS_SERVE_VLLM_0_24 });
	form_vllm("");
	post("/start_weight_update", "{}", 200, "started");
	/* w.a exceeds it alone; then the offset of w.c, 6, is no multiple of 8 */
	update_vllm(DESCRIBED ",\"packed\":true,\"packed_buffer_size_bytes\":1000", ends, 2, 500,
	            "self.storage_offset() must be divisible by 8 to view Byte as int64");
	post("/start_weight_update", "{}", 200, "started");
	update_vllm("\"names\":[\"w.a\",\"w.b\"],\"dtype_names\":[\"float32\",\"bfloat16\"],"
	            "\"shapes\":[[700,100],[3]],\"packed\":true,"
	            "\"packed_buffer_size_bytes\":280000", (const size_t[]){ 2 }, 1, 200,
	            "Weights");
	post("/finish_weight_update", "", 200, "finished");
}

RANK0_TEST(packing_is_agreed_on_at_the_init_and_lists_are_remembered)
{
	start(&(struct ws_serve_opts){ .lineage = WS_SERVE_VLLM_0_33, .tp = 2 });
	form_vllm(",\"packed\":true,\"packed_buffer_size_bytes\":0");
	post("/start_weight_update", "", 200, "started");
	update_vllm(DESCRIBED, each, 4, 200, "Weights");
	post("/finish_weight_update", "{\"weight_version\":\"7\"}", 200, "finished");
	assert_checksums();
	renew_bytes(2);
	post("/start_weight_update", "", 200, "started");
	update_vllm("", each, 4, 200, "Weights");
	post("/finish_weight_update", "", 200, "finished");
	assert_checksums();
	struct post p;
	get(&p, "/weight_info", 200, "{\"weight_version\":\"7\"}");
	post("/weight_checker", "{\"action\":\"checksum\"}", 500, "has no --model");
	post("/shutdown_weight_transfer_engine", "", 200, "shut down");
	assert_null(serve->groups);
}

RANK0_TEST(nothing_is_sent_for_tensors_without_bytes)
{
	struct post p;
	start(&(struct ws_serve_opts){ .lineage = WS_SERVE_VLLM_0_27 });
	form_vllm("");
	post("/start_weight_update", "", 200, "started");
	begin(&p, "POST", "/update_weights", "%s",
	      "{\"update_info\":{\"names\":[\"x\",\"y\"],\"dtype_names\":[\"int8\",\"int8\"],"
	      "\"shapes\":[[0],[2,0]]}}");
	end(&p, 200, "Weights updated");
	update_vllm("\"names\":[\"x\",\"w.a\",\"z\"],\"dtype_names\":[\"int8\",\"float32\","
	            "\"int8\"],\"shapes\":[[0],[700,100],[0]]", each, 1, 200, "Weights");
	post("/finish_weight_update", "", 200, "finished");
}

RANK0_TEST(without_the_key_the_worker_wants_a_gpu)
{
	struct post p;
	start(&(struct ws_serve_opts){ .lineage = WS_SERVE_VLLM_0_27 });
	begin_vllm_init(&p, "");
	end(&p, 500, "Found no NVIDIA driver on your system.");
	assert_null(serve->groups);
}

RANK0_TEST(a_second_init_replaces_the_group)
{
	start(&(struct ws_serve_opts){ .lineage = WS_SERVE_VLLM_0_20 });
	form_vllm("");
	ws_gloo_close(gloo);
	gloo = NULL;
	ws_store_close(store);
	const struct ws_store_opts so = { .host = "127.0.0.1", .world_size = 2, .group = "g" };
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_store_open(&so, &store, &err), 0);
	form_vllm("");
	update_vllm(DESCRIBED, each, 4, 200, "Weights");
	assert_checksums();
	post("/collective_rpc", "{\"method\":\"wsync_leave\"}", 200, "{\"results\":[null]}");
	assert_null(serve->groups);
	post("/update_weights", "{\"update_info\":{" DESCRIBED "}}", 500, "not initialized");
}

RANK0_TEST(a_blocked_engine_answers_only_what_the_front_end_knows)
{
	struct post init, paused, p;
	start(&(struct ws_serve_opts){ .lineage = WS_SERVE_VLLM_0_33 });
	assert_int_equal(ws_store_set(store, "/wsync/gloo", "g/g//cpu/", 9, true, NULL), 0);
	begin_vllm_init(&init, "");
	await_receiving();
	begin(&paused, "GET", "/is_paused", "%s", "");
	get(&p, "/health", 200, "");
	get(&p, "/version", 200, "0.33.0");
	get(&p, "/get_world_size", 200, "1");
	get(&p, "/wsync/journal", 200, "\"path\":\"/init_weight_transfer_engine\",\"status\":0");
	assert_int_equal(serve->occupied, true);
	ws_store_close(store); /* the sender dies */
	store = NULL;
	end(&init, 500, "Call to collective_rpc method failed: rank 1: ");
	end(&paused, 200, "{\"is_paused\":false}");
}

/* ---- with a model ---- */

static const char config[] =
	"{\"architectures\":[\"Qwen3ForCausalLM\"],\"model_type\":\"qwen3\",\"torch_dtype\":"
	"\"bfloat16\",\"hidden_size\":32,\"intermediate_size\":64,\"num_hidden_layers\":1,"
	"\"num_attention_heads\":8,\"num_key_value_heads\":2,\"head_dim\":6,\"vocab_size\":70,"
	"\"tie_word_embeddings\":true}";

static int with_model(void **state)
{
	return set_up(state) || scratch_enter(state) ? -1 : 0;
}

static int without_model(void **state)
{
	tear_down(state);
	return scratch_leave(state);
}

#define MODEL_TEST(name) TEST_BETWEEN(name, with_model, without_model)

static void start_model(enum ws_serve_lineage lineage)
{
	put_text("config.json", config);
	start(&(struct ws_serve_opts){ .lineage = lineage, .model = "." });
}

/* A checkpoint of these tensors, in zeros; names end with a NULL. */
static void reload(const char *const *names)
{
	mkdir("new", 0755);
	struct tensor_file t = tensor_file_begin("new/model.safetensors");
	for (; *names; names += 2)
		tensor_file_entry(&t, names[0], "BF16", names[1],
		                  strchr(names[1], ',') ? 2 * 32 * strtoul(names[1] + 1, NULL, 10)
		                                        : 2 * 32);
	tensor_file_end(&t);
	post("/collective_rpc",
	     "{\"method\":\"reload_weights\",\"kwargs\":{\"weights_path\":\"new\"}}", 200,
	     "{\"results\":[null]}");
}

static bool is_zero(const char *name)
{
	const struct ws_param *p = ws_layout_find_param(serve->model->layout, name);
	assert_non_null(p);
	const size_t i = (size_t)(p - ws_layout_param(serve->model->layout, 0));
	const uint8_t *data = ws_serve_model_at(serve->model, i, 0);
	uint8_t all = 0;
	for (uint64_t k = 0; k < ws_serve_model_bytes(serve->model, i, 0); k++)
		all |= data[k];
	return !all;
}

MODEL_TEST(a_part_of_a_fused_layer_leaves_garbage)
{
	static const char qkv[] = "model.layers.0.self_attn.qkv_proj.weight";
	start_model(WS_SERVE_VLLM_0_20);
	reload((const char *const[]){ "model.norm.weight", "[32]",
	                              "model.layers.0.self_attn.q_proj.weight", "[48,32]", NULL });
	assert_false(is_zero(qkv));
	assert_true(is_zero("model.norm.weight"));
	assert_true(is_zero("model.layers.0.mlp.gate_up_proj.weight"));
	reload((const char *const[]){ "model.layers.0.self_attn.q_proj.weight", "[48,32]",
	                              "model.layers.0.self_attn.k_proj.weight", "[12,32]",
	                              "model.layers.0.self_attn.v_proj.weight", "[12,32]", NULL });
	assert_true(is_zero(qkv));
	assert_false(serve->vllm->broken);
}

MODEL_TEST(a_refused_tensor_ends_the_receiving)
{
	struct post p;
	start_model(WS_SERVE_VLLM_0_27);
	form_vllm("");
	post("/start_weight_update", "", 200, "");
	/* w.a is received and refused; nobody receives w.b. */
	update_vllm(DESCRIBED, each, 1, 500,
	            "There is no module or parameter named 'w.a' in Qwen3ForCausalLM");
	assert_true(serve->vllm->broken);
	post("/start_weight_update", "", 200, "");
	/* a type that does not exist is seen before its broadcast */
	begin(&p, "POST", "/update_weights", "%s",
	      "{\"update_info\":{\"names\":[\"a\"],\"dtype_names\":[\"torch.int8\"],"
	      "\"shapes\":[[1]]}}");
	end(&p, 500, "module 'torch' has no attribute 'torch.int8'");
	post("/start_weight_update", "", 200, "");
	begin(&p, "POST", "/update_weights", "%s",
	      "{\"update_info\":{\"names\":[\"model.norm.weight\","
	      "\"b\"],\"dtype_names\":[\"uint8\",\"what\"],\"shapes\":[[5],[1]],\"packed\":true}}");
	end(&p, 500, "module 'torch' has no attribute 'what'");
}

MODEL_TEST(checksums_are_of_parameters)
{
	struct post p;
	start_model(WS_SERVE_VLLM_0_33);
	begin(&p, "POST", "/weight_checker", "%s", "{\"action\":\"checksum\"}");
	/* SHA-256 of 64 zeros */
	end(&p, 200,
	    "\"dp0:pp0:pcp0:tp0:model.norm.weight\":"
	    "\"f5a5fd42d16a20302798ef6ed309979b43003d2320d9f0e8ea9831a92759fb4b\"");
	assert_null(strstr(p.reply, "lm_head"));
	post("/weight_checker",
	     "{\"action\":\"compare\",\"baseline\":{\"dp0:pp0:pcp0:tp0:x\":\"00\"}}", 200,
	     "{\"match\":false,\"mismatches\":[\"dp0:pp0:pcp0:tp0:model.embed_tokens.weight\"");
	post("/weight_checker", "{\"action\":\"compare\"}", 400, "requires a 'baseline' object");
	post("/weight_checker", "{\"action\":\"snapshot\"}", 400,
	     "'checksum', 'reset' or 'compare'");
	post("/weight_checker", "{\"action\":\"reset\"}", 200, "{\"status\":\"reset\"}");
}

RUN_TESTS(NULL, NULL)
