/* SPDX-License-Identifier: Apache-2.0 */
/* What is said of checkpoints that trainers and other programs save in their own formats. */
#include "foreign.h"
#include "lora.h"
#include "scratch.h"
#include "tensor_file.h"
#include "test.h"
#include "wsync/tool/input.h"
#include "wsync/tool/source.h"

#include <sys/stat.h>
#include <unistd.h>

#define ZIP "PK\3\4\0\0\10\10\0\0"

/* Makes a file, and the directories of its path. */
static void put(const char *path)
{
	char part[512];
	for (const char *p = path; (p = strchr(p, '/')); p++) {
		snprintf(part, sizeof part, "%.*s", (int)(p - path), path);
		mkdir(part, 0700);
	}
	put_bytes(path, ZIP, sizeof ZIP - 1);
}

static void expect(const char *path, const char *sentence, const char *hint)
{
	struct ws_source *s = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_source_open(&path, 1, &s, &err), -1);
	assert_int_equal(err.code, WS_EINPUT);
	if (!strstr(err.msg, sentence) || !strstr(err.hint, hint))
		print_error("%s: %s\nhint: %s\n", path, err.msg, err.hint);
	assert_non_null(strstr(err.msg, sentence));
	assert_non_null(strstr(err.hint, hint));
}

struct layout {
	const char *files[5]; /* made in this order */
	const char *source, *sentence, *hint;
};

static const char verl[] = "FSDP shards of verl", megatron[] = "checkpoint of Megatron",
		  dcp[] = "torch (DCP)", zero[] = "shards of DeepSpeed ZeRO",
		  pickle[] = "a PyTorch pickle";

static const struct layout layouts[] = {
	{ { "a/model_world_size_8_rank_0.pt", "a/optim_world_size_8_rank_0.pt" },
	  "a",
	  verl,
	  "--backend fsdp --local_dir a --target_dir OUT" },
	{ { "b/global_step_9/actor/model_world_size_1_rank_0.pt",
	    "b/global_step_10/actor/model_world_size_1_rank_0.pt",
	    "b/global_step_10/critic/model_world_size_1_rank_0.pt", "b/global_step_10/data.pt",
	    "b/latest_checkpointed_iteration.txt" },
	  "b",
	  verl,
	  "--local_dir b/global_step_10/actor --target_dir OUT" },
	{ { "c/model_world_size_1_rank_0.pt", "c/huggingface/config.json" },
	  "c/huggingface",
	  verl,
	  "--local_dir c --target_dir OUT" },
	{ { "d/actor/dist_ckpt/__0_0.distcp", "d/actor/dist_ckpt/common.pt" },
	  "d",
	  megatron,
	  "--backend megatron --local_dir d/actor --target_dir OUT" },
	{ { "e/iter_0000010/__0_0.distcp", "e/iter_0000010/metadata.json" },
	  "e",
	  megatron,
	  "--megatron-path e/iter_0000010 --hf-path OUT" },
	{ { "f/iter_0000010/mp_rank_00/model_optim_rng.pt", "f/latest_checkpointed_iteration.txt" },
	  "f",
	  megatron,
	  "--megatron-path f/iter_0000010 --hf-path OUT" },
	{ { "g/.metadata", "g/__0_0.distcp" }, "g", dcp, "dcp_to_torch g OUT.pt" },
	{ { "h/policy/weights/__0_0.distcp", "h/policy/optimizer/__0_0.distcp" },
	  "h",
	  dcp,
	  "dcp_to_torch h/policy/weights OUT.pt" },
	{ { "i/pytorch_model_fsdp_0/__0_0.distcp", "i/optimizer_0/__0_0.distcp" },
	  "i",
	  "FSDP shards of accelerate",
	  "accelerate merge-weights i/pytorch_model_fsdp_0 OUT" },
	{ { "j/zero_to_fp32.py", "j/latest", "j/global_step5/mp_rank_00_model_states.pt" },
	  "j",
	  zero,
	  "python j/zero_to_fp32.py j OUT --safe_serialization" },
	{ { "k/global_step5/zero_pp_rank_0_mp_rank_00_model_states.pt" },
	  "k/global_step5",
	  zero,
	  "python k/zero_to_fp32.py k OUT --tag global_step5 --safe_serialization" },
	{ { "l/latest", "l/global_step5/x" }, "l", zero, "zero_to_fp32.py l OUT" },
	{ { "L/zero_to_fp32.py", "L/latest", "L/pytorch_model.bin" },
	  "L",
	  pickle,
	  "save_pretrained" },
	{ { "M/zero_to_fp32.py", "M/latest" }, "M", zero, "python M/zero_to_fp32.py M OUT" },
	{ { "m/model.Q4_K_M.gguf" }, "m", "a GGUF file", "that it was made from" },
	{ { "n/pytorch_model-00001-of-00002.bin", "n/config.json" },
	  "n",
	  pickle,
	  "save_pretrained" },
	{ { "o/training_args.bin", "o/optimizer.pt", "o/epoch_3.pth" },
	  "o",
	  "a PyTorch pickle (epoch_3.pth)",
	  "save_file" },
	{ { "p/training_args.bin", "p/optimizer.pt", "p/rng_state_0.pth" },
	  "p",
	  "p: no checkpoint there: looked for model.safetensors.index.json",
	  "" },
	{ { "q/adapter_config.json", "q/adapter_model.bin" },
	  "q",
	  "adapter as a PyTorch pickle",
	  "wsync-push BASE --lora q" },
	{ { "r/x y/adapter_config.json", "r/x y/adapter_model.safetensors" },
	  "r",
	  "a PEFT adapter (x y/adapter_config.json)",
	  "wsync-push BASE --lora 'r/x y'" },
	{ { "s/weights.npz" }, "s", "as of MLX", "save_file" },
	{ { "t/flax_model.msgpack" }, "t", "Flax weights", "from_flax" },
	{ { "u/_CHECKPOINT_METADATA" }, "u", "Orbax", "safetensors" },
	{ { "v/rank0.engine" }, "v", "TensorRT", "that it was made from" },
	{ { "w/consolidated.00.pth", "w/params.json" },
	  "w",
	  "Meta",
	  "convert_llama_weights_to_hf" },
	{ { "x/actor/huggingface/model.safetensors", "x/actor/model_world_size_1_rank_0.pt" },
	  "x",
	  "x: no checkpoint there, but one below",
	  "name its directory: x/actor/huggingface" },
	{ { "y/checkpoint-90/model.safetensors", "y/checkpoint-1000/model.safetensors",
	    "y/checkpoint-500/model.safetensors", "y/checkpoint-600/model.safetensors" },
	  "y",
	  "y: no checkpoint there, but several below",
	  "y/checkpoint-1000, y/checkpoint-600, y/checkpoint-500, ..." },
	{ { "z/models--Q--M/snapshots/abc/model.safetensors", "z/models--Q--M/blobs/1" },
	  "z/models--Q--M",
	  "the Hugging Face cache of a repository",
	  "name its snapshot: z/models--Q--M/snapshots/abc" },
	{ { "A/optimizer/model.safetensors", "A/.git/model.safetensors" },
	  "A",
	  "no checkpoint there: looked for",
	  "" },
};

SCRATCH_TEST(layouts_of_trainers_are_recognized)
{
	setenv("HF_HUB_CACHE", "no cache", 1);
	for (size_t i = 0; i < sizeof layouts / sizeof layouts[0]; i++) {
		for (size_t k = 0; k < 5 && layouts[i].files[k]; k++)
			put(layouts[i].files[k]);
		expect(layouts[i].source, layouts[i].sentence, layouts[i].hint);
	}
}

SCRATCH_TEST(the_directory_may_be_the_current_one)
{
	put("global_step5/bf16_zero_pp_rank_0_mp_rank_00_optim_states.pt");
	assert_int_equal(chdir("global_step5"), 0);
	expect(".", zero, "python ./../zero_to_fp32.py ./.. OUT --tag global_step5");
	assert_int_equal(chdir(".."), 0);
}

SCRATCH_TEST(files_are_recognized_by_name_or_first_bytes)
{
	static const struct {
		const char *path, *bytes;
		size_t n;
		const char *sentence, *hint;
	} files[] = {
		{ "model.gguf", "GGUF\3\0\0\0\0\0", 10, "a GGUF file", "made from" },
		{ "blob", "GGUF\3\0\0\0\0\0", 10, "blob: not a safetensors file, but a GGUF file",
		  "" },
		{ "x.pt", ZIP, 10, pickle, "save_file" },
		{ "x", "\x80\2}q\0(X\1\0\0\0a", 12, pickle, "save_file" },
		{ "pytorch_model.bin", ZIP, 10, pickle, "save_pretrained" },
		{ "weights.npz", ZIP, 10, "as of MLX", "" },
		{ "model_world_size_2_rank_0.pt", ZIP, 10, verl, "--local_dir . --target_dir" },
		{ "__0_0.distcp", ZIP, 10, dcp, "dcp_to_torch . OUT.pt" },
		{ "mp_rank_00_model_states.pt", ZIP, 10, zero, "--tag" },
		{ "empty.gguf", "", 0, "a GGUF file", "" },
		{ "page", "<!DOCTYPE html>", 15, "a web page", "" },
		/* Cut short, and no pickle: its header has 0x280 bytes. */
		{ "cut.safetensors", "\x80\2\0\0\0\0\0\0{\"a\"", 12,
		  "the header ends at byte 648, past the end of the file at 12", "" },
		{ "noise", "abcdefghijk", 11, "the header has length", "" },
	};
	for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
		put_bytes(files[i].path, files[i].bytes, files[i].n);
		expect(files[i].path, files[i].sentence, files[i].hint);
	}
}

/* The length that a zip's first bytes mean fits into the file. */
SCRATCH_TEST(a_large_pickle_is_recognized)
{
	put_bytes("policy.pt", ZIP, sizeof ZIP - 1);
	put_bytes("large.pt", "PK\3\4\0\0\0\0\0\0", 10);
	assert_int_equal(truncate("large.pt", 80 << 20), 0);
	expect("large.pt", "large.pt: not a safetensors file, but a PyTorch pickle", "save_file");
}

SCRATCH_TEST(links_in_circles_and_closed_directories_end)
{
	assert_int_equal(mkdir("a", 0700) || mkdir("a/b", 0700) || symlink("..", "a/b/up") ||
	                         symlink("up", "a/up") || symlink("b", "a/again") ||
	                         mkdir("a/no", 0),
	                 0);
	expect("a", "no checkpoint there: looked for", "");
	put("a/b/x.gguf");
	expect("a", "a GGUF file", "");
	assert_int_equal(chmod("a/no", 0700), 0);
}

SCRATCH_TEST(a_directory_with_many_entries_is_read_to_a_limit)
{
	char name[64];
	assert_int_equal(mkdir("many", 0700), 0);
	for (int i = 0; i < 4300; i++) {
		snprintf(name, sizeof name, "many/%d", i);
		assert_int_equal(i < 200 ? mkdir(name, 0700) : symlink("x", name), 0);
	}
	expect("many", "no checkpoint there: looked for", "");
}

SCRATCH_TEST(an_adapter_below_is_found)
{
	put("run/step_5/policy/adapter_config.json");
	char *found = ws_foreign_adapter("run");
	assert_string_equal(found, "run/step_5/policy");
	free(found);
	put("other/x.gguf");
	assert_null(ws_foreign_adapter("other"));
	assert_null(ws_foreign_adapter("nowhere"));
}

static void write_tensor(const char *path, const char *name)
{
	put(path);
	struct tensor_file f = tensor_file_begin(path);
	tensor_file_entry(&f, name, "F32", "[2,2]", 16);
	tensor_file_end(&f);
}

static void expect_input(const char *path, const char *hint)
{
	struct ws_input in;
	struct ws_err err = WS_ERR_INIT;
	const int rc =
		ws_input_open(&(struct ws_input_opts){ .paths = &path, .n_paths = 1 }, &in, &err);
	if (!hint) {
		assert_ok(rc, &err);
		ws_input_close(&in);
		return;
	}
	assert_int_equal(rc, -1);
	assert_int_equal(err.code, WS_EINPUT);
	assert_non_null(strstr(err.msg, "an adapter, which has no weights of its base"));
	assert_string_equal(err.hint, hint);
}

SCRATCH_TEST(an_adapter_is_no_source)
{
	static const char factor[] = "base_model.model.model.layers.0.q_proj.lora_A.weight";
	write_tensor("ad/adapter_model.safetensors", factor);
	put_text("ad/adapter_config.json", "{}");
	expect_input("ad", "push it with its base: wsync-push BASE --lora ad");
	expect_input("ad/adapter_model.safetensors",
	             "push it with its base: wsync-push BASE --lora ad");
	/* modules_to_save */
	write_tensor("ad/adapter_model.safetensors", "base_model.model.lm_head.weight");
	expect_input("ad", "push it with its base: wsync-push BASE --lora ad");
	write_tensor("policy.safetensors", factor);
	expect_input("policy.safetensors", "push it with its base: wsync-push BASE --lora .");
	/* A merged model that was saved beside its adapter's config. */
	write_tensor("merged/model.safetensors", "model.norm.weight");
	put_text("merged/adapter_config.json", "{}");
	expect_input("merged", NULL);
}

static void expect_adapter(const char *path, const char *sentence, const char *hint)
{
	struct ws_adapter *a = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_adapter_open(path, &a, &err), -1);
	assert_int_equal(err.code, WS_EINPUT);
	assert_string_equal(err.msg, sentence);
	assert_string_equal(err.hint, hint);
}

SCRATCH_TEST(a_path_that_is_no_adapter_is_explained)
{
	write_tensor("run/nested/policy/adapter_model.safetensors", "a");
	put_text("run/nested/policy/adapter_config.json", "{}");
	expect_adapter("run", "run: no adapter_config.json there",
	               "name the directory below: {adapters} run/nested/policy");
	expect_adapter("run/nested/policy/adapter_model.safetensors",
	               "run/nested/policy/adapter_model.safetensors: not the directory of an "
	               "adapter",
	               "name the directory: {adapters} run/nested/policy/");
	put("other/x.gguf");
	expect_adapter("other", "other: no adapter_config.json there", "");
	expect_adapter("nowhere", "open nowhere/adapter_config.json: No such file or directory",
	               "");
}

RUN_TESTS(NULL, NULL)
