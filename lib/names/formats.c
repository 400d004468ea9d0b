/* SPDX-License-Identifier: Apache-2.0 */
/* formats.c - see formats.h. Read in SGLang 0.5.23 (layers/quantization) and vLLM 0.32.0
 * (model_executor/layers/quantization, and model_loader/reload, which loads a layer again as at the
 * start and rearranges it then). What an update does not reach was tried on vLLM 0.32.0 on a CPU,
 * and no release is known in which it does: UnquantizedFusedMoEMethod packs experts once, a tied
 * head is no layer that is loaded, and gpt_oss.py copies into tensors that are placeholders. */
#include "wsync/tool/formats.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <string.h>
#include <strings.h>

/* ---- what a server keeps --------------------------------------------------------------------- */

/* The methods of both families. FP8 and MXFP8 need the config too. */
/* clang-format off */
static const struct {
	const char *method;
	enum ws_keeps sglang, vllm;
} methods[] = {
	{ "fp8",                 WS_KEEPS_FP8,        WS_KEEPS_FP8 },
	{ "w8a8_fp8",            WS_KEEPS_FP8_SCALES, WS_KEEPS_FP8_SCALES },
	{ "fbgemm_fp8",          WS_KEEPS_FP8_SCALES, WS_KEEPS_FP8_SCALES },
	{ "modelopt_fp8",        WS_KEEPS_FP8_SCALES, WS_KEEPS_FP8_SCALES },
	{ "modelopt_fp4",        WS_KEEPS_NVFP4,      WS_KEEPS_NVFP4 },
	{ "minimax_m3_nvfp4",    WS_KEEPS_NVFP4,      WS_KEEPS_NVFP4 },
	{ "petit_nvfp4",         WS_KEEPS_NVFP4,      WS_KEEPS_NVFP4 },
	{ "modelopt_mxfp8",      WS_KEEPS_MXFP8,      WS_KEEPS_MXFP8 },
	{ "mxfp8",               WS_KEEPS_MXFP8,      WS_KEEPS_MXFP8 },
	{ "mxfp4",               WS_KEEPS_MXFP4,      WS_KEEPS_MXFP4 },
	{ "gpt_oss_mxfp4",       WS_KEEPS_MXFP4,      WS_KEEPS_MXFP4 },
	{ "awq",                 WS_KEEPS_AWQ,        WS_KEEPS_AWQ },
	{ "awq_marlin",          WS_KEEPS_AWQ,        WS_KEEPS_AWQ },
	{ "auto_awq",            WS_KEEPS_AWQ,        WS_KEEPS_AWQ },
	{ "gptq",                WS_KEEPS_GPTQ,       WS_KEEPS_GPTQ },
	{ "gptq_marlin",         WS_KEEPS_GPTQ,       WS_KEEPS_GPTQ },
	{ "auto_gptq",           WS_KEEPS_GPTQ,       WS_KEEPS_GPTQ },
	{ "compressed-tensors",  WS_KEEPS_COMPRESSED, WS_KEEPS_COMPRESSED },
	{ "w8a8_int8",           WS_KEEPS_INT8,       WS_KEEPS_INT8 },
	{ "blockwise_int8",      WS_KEEPS_INT8,       WS_KEEPS_INT8 },
	{ "auto-round-int8",     WS_KEEPS_INT8,       WS_KEEPS_INT8 },
	{ "bitsandbytes",        WS_KEEPS_BNB,        WS_KEEPS_BNB },
	{ "gguf",                WS_KEEPS_GGUF,       WS_KEEPS_GGUF },
	{ "torchao",             WS_KEEPS_TORCHAO,    WS_KEEPS_TORCHAO },
	{ "quark",               WS_KEEPS_QUARK,      WS_KEEPS_QUARK },
	{ "quark_mxfp4",         WS_KEEPS_QUARK,      WS_KEEPS_QUARK },
	{ "quark_int4fp8_moe",   WS_KEEPS_ONCE,       WS_KEEPS_QUARK },
	{ "nvfp4_online",        WS_KEEPS_ONCE,       WS_KEEPS_NEW },
	{ "moe_wna16",           WS_KEEPS_MIXED,      WS_KEEPS_MIXED },
	{ "w4afp8",              WS_KEEPS_MIXED,      WS_KEEPS_MIXED },
	{ "auto-round",          WS_KEEPS_MIXED,      WS_KEEPS_MIXED },
	{ "inc",                 WS_KEEPS_MIXED,      WS_KEEPS_MIXED },
	{ "humming",             WS_KEEPS_MIXED,      WS_KEEPS_MIXED },
	{ "modelslim",           WS_KEEPS_MIXED,      WS_KEEPS_MIXED },
	{ "modelopt_mixed",      WS_KEEPS_MIXED,      WS_KEEPS_MIXED },
	{ "fp_quant",            WS_KEEPS_MIXED,      WS_KEEPS_MIXED },
	{ "deepseek_v4_fp8",     WS_KEEPS_MIXED,      WS_KEEPS_MIXED },
	{ "online",              WS_KEEPS_NEW,        WS_KEEPS_ONLINE },
	{ "experts_int8",        WS_KEEPS_NEW,        WS_KEEPS_ONLINE },
	{ "fp8_per_tensor",      WS_KEEPS_NEW,        WS_KEEPS_ONLINE },
	{ "fp8_per_block",       WS_KEEPS_NEW,        WS_KEEPS_ONLINE },
	{ "fp8_per_channel",     WS_KEEPS_NEW,        WS_KEEPS_ONLINE },
	{ "nvfp4_per_token",     WS_KEEPS_NEW,        WS_KEEPS_ONLINE },
	{ "int8_per_channel_weight_only", WS_KEEPS_NEW, WS_KEEPS_ONLINE },
};
/* clang-format on */

static enum ws_keeps by_algo(const char *algo, enum ws_keeps unknown)
{
	return strcasestr(algo, "mixed")                         ? WS_KEEPS_MIXED :
	       strcasestr(algo, "nvfp4") || strstr(algo, "FP4")  ? WS_KEEPS_NVFP4 :
	       strcasestr(algo, "mxfp8")                         ? WS_KEEPS_MXFP8 :
	       strcasestr(algo, "mxfp4")                         ? WS_KEEPS_MXFP4 :
	       strcasestr(algo, "fp8") || strstr(algo, "float-") ? WS_KEEPS_FP8_SCALES :
	                                                           unknown;
}

static enum ws_keeps compressed(const struct ws_quant *q)
{
	if (q->integers)
		return q->bits == 8 ? WS_KEEPS_INT8 : WS_KEEPS_COMPRESSED;
	const enum ws_keeps told = by_algo(q->algo ? q->algo : "", WS_KEEPS_COMPRESSED);
	return told == WS_KEEPS_COMPRESSED && q->bits == 8 ? WS_KEEPS_FP8_SCALES :
	       told == WS_KEEPS_COMPRESSED && q->bits == 4 ? WS_KEEPS_NVFP4 :
	                                                     told;
}

/* By the method's name, and what the config (NULL: not known) adds. */
static enum ws_keeps by_method(bool vllm, const char *method, const struct ws_quant *q)
{
	enum ws_keeps keeps = WS_KEEPS_NEW;
	if (strncmp(method, "modelopt", 8) == 0 && q && q->algo && *q->algo)
		return by_algo(q->algo, WS_KEEPS_NEW);
	if (strcmp(method, "modelopt") == 0) /* of FP8, unless the config says otherwise */
		return q ? WS_KEEPS_FP8_SCALES : WS_KEEPS_FP8;
	for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
		if (strcasecmp(method, methods[i].method) == 0)
			keeps = vllm ? methods[i].vllm : methods[i].sglang;
	if (!q)
		return keeps;
	return keeps == WS_KEEPS_FP8        ? (q->block[0] ? WS_KEEPS_FP8_BLOCKS :
	                                                     WS_KEEPS_FP8_SCALES) :
	       keeps == WS_KEEPS_COMPRESSED ? compressed(q) :
	                                      keeps;
}

/* A method that the server was started with, on a checkpoint in 16 bits by its config. vLLM's other
 * methods of FP8 need a checkpoint in FP8, so the config that was read is not the server's. Told
 * alone, "mxfp8" may be that of a checkpoint too. */
static enum ws_keeps made_of_dense(const struct ws_format_server *s)
{
	const enum ws_keeps keeps = by_method(s->vllm, s->quantization, NULL);
	if (s->vllm)
		return strcmp(s->quantization, "fp8") == 0 || keeps == WS_KEEPS_MXFP8 ?
		               WS_KEEPS_ONLINE :
		               keeps;
	return keeps == WS_KEEPS_FP8 || keeps == WS_KEEPS_MXFP8 || keeps == WS_KEEPS_FP8_SCALES ?
	               WS_KEEPS_ONCE :
	               keeps;
}

enum ws_keeps ws_format_kept(const struct ws_format_server *s)
{
	static const struct { const char *format; enum ws_keeps keeps; } loads[] = {
		{ "gguf", WS_KEEPS_GGUF }, { "bitsandbytes", WS_KEEPS_BNB },
	};
	const struct ws_quant *q = s->override ? NULL : s->quant;
	if (strstr(s->quantization, "fp8") && strcmp(s->load_format, "flash_rl") == 0)
		return WS_KEEPS_ONLINE;
	for (size_t i = 0; i < sizeof loads / sizeof loads[0]; i++)
		if (strcmp(s->load_format, loads[i].format) == 0)
			return loads[i].keeps;
	if (q && *q->method)
		return by_method(s->vllm, q->method, q);
	if (*s->quantization && q)
		return made_of_dense(s);
	if (*s->quantization)
		return by_method(s->vllm, s->quantization, NULL);
	if (s->override)
		return WS_KEEPS_NEW;
	/* vLLM's null is none; SGLang's is an option that was not given. */
	return (s->vllm && s->told) || q ? WS_KEEPS_DENSE : WS_KEEPS_UNTOLD;
}

const char *ws_format_in_name(const char *name)
{
	static const char *const words[] = { "awq",   "gptq",  "int4", "int8", "w4a16", "w8a8",
		                             "nvfp4", "mxfp",  "fp8",  "fp4",  "bnb",   "4bit",
		                             "8bit",  "gguf" };
	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++)
		if (strcasestr(name, words[i]))
			return words[i];
	return NULL;
}

/* ---- what is sent ---------------------------------------------------------------------------- */

/* Masks, positions and tables of numbers, which are no codes of weights. */
static bool is_index(const char *name)
{
	static const char *const ends[] = { ".bias", "mask", "_ids", "_idx", "2eid", "_perm",
		                            "_shape", "_scale", "_scales", "_scale_inv", "zeros",
		                            "zero_point" };
	for (size_t i = 0; i < sizeof ends / sizeof ends[0]; i++)
		if (ws_ends_with(name, ends[i]))
			return true;
	return false;
}

bool ws_format_is_dense(enum ws_dtype dtype)
{
	return dtype == WS_DTYPE_BF16 || dtype == WS_DTYPE_F16 || dtype == WS_DTYPE_F32 ||
	       dtype == WS_DTYPE_F64;
}

/* Codes that no other rule knows: W_q of HQQ, codes of AQLM, a weight of int64. */
static bool has_codes(const char *name, enum ws_dtype dtype, unsigned n_dims)
{
	if (ws_format_is_dense(dtype) || is_index(name))
		return false;
	const bool wide = dtype == WS_DTYPE_I64 || dtype == WS_DTYPE_BOOL;
	return ws_ends_with(name, ".weight") || (n_dims > 1 && !wide);
}

enum ws_sends ws_format_of_tensor(const char *name, enum ws_dtype dtype, unsigned n_dims)
{
	if (strstr(name, ".quant_state.bitsandbytes__"))
		return WS_SENDS_BNB;
	if (ws_ends_with(name, "weight_scale_2") || ws_ends_with(name, "weight_global_scale"))
		return WS_SENDS_NVFP4;
	if (ws_ends_with(name, "_blocks") && dtype == WS_DTYPE_U8)
		return WS_SENDS_MXFP4;
	if (ws_ends_with(name, ".qweight") || ws_ends_with(name, ".weight_packed") ||
	    (ws_ends_with(name, ".weight") && dtype == WS_DTYPE_I8))
		return WS_SENDS_INTEGERS;
	if (ws_ends_with(name, "_scale_inv"))
		return dtype == WS_DTYPE_U8 ? WS_SENDS_MXFP8 : WS_SENDS_FP8_BLOCKS;
	if (dtype == WS_DTYPE_F8_E4M3)
		return ws_ends_with(name, "_scale") ? WS_SENDS_OTHER : WS_SENDS_FP8_SCALES;
	return has_codes(name, dtype, n_dims) ? WS_SENDS_CODES : WS_SENDS_OTHER;
}

/* Whatever a checkpoint calls the matrices of its experts: experts.0.w1, mixer.experts.weight, or
 * moe.gate_proj of all experts in one tensor. */
bool ws_format_is_expert(const char *name, unsigned n_dims)
{
	static const char *const others[] = { "bias", "_scale", "_scale_inv", "_zeros", "_blocks",
		                              "_scales" };
	const char *word = strstr(name, n_dims == 3 ? "moe." : ".experts.");
	if (n_dims == 3 && word && word > name && word[-1] != '.' && word[-1] != '_')
		word = NULL; /* olmoe. */
	if (n_dims != 2 && n_dims != 3)
		return false;
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
		if (ws_ends_with(name, others[i]))
			return false;
	return word || (n_dims == 3 && strstr(name, "experts"));
}

bool ws_format_is_whole(const char *module)
{
	/* last parts of a name, and parts of those */
	static const char *const leaves[] = { "lm_head", "output", "score", "wte", "wpe", "gate",
		                              "moe_gate", "shared_expert_gate", "router", "wg",
		                              "weights_proj", "eh_proj" };
	static const char *const parts[] = { "embed", "conv", "norm", ".router.", "rel_pos" };
	const char *dot = strrchr(module, '.'), *leaf = dot ? dot + 1 : module;
	for (size_t i = 0; i < sizeof leaves / sizeof leaves[0]; i++)
		if (strcmp(leaf, leaves[i]) == 0)
			return true;
	for (size_t i = 0; i < sizeof parts / sizeof parts[0]; i++)
		if (strstr(parts[i][0] == '.' ? module : leaf, parts[i]))
			return true;
	return false;
}

bool ws_format_is_matrix(const char *name, unsigned n_dims, char *module, size_t n)
{
	const bool has_leaf = n_dims == 2 && ws_ends_with(name, ".weight");
	if (snprintf(module, n, "%s", name) >= (int)n)
		return false;
	if (has_leaf)
		module[strlen(name) - strlen(".weight")] = 0;
	return ws_format_is_expert(name, n_dims) || (has_leaf && !ws_format_is_whole(module));
}

/* ---- the table ------------------------------------------------------------------------------- */

#define BIT(sends) (1U << WS_SENDS_##sends)
#define CODES (BIT(FP8_BLOCKS) | BIT(FP8_SCALES))
#define ANY ((1U << WS_N_SENDS) - 1)

static const char as_numbers[] =
	"does not keep quantized weights: it would take the codes for numbers, drop the scales, "
	"and report success";
static const char packed[] =
	"keeps packed weights, rearranged when it started: it would drop what is sent, or refuse "
	"it in the middle";
static const char in_16[] =
	"start the server from the checkpoint in 16 bits, or from one of block FP8 with "
	"{quantize} fp8";

static const char pack_again[] =
	"start the server with --worker-extension-cls wsync_vllm.WorkerExtension of this release, "
	"which packs them again";

/* What is neither right nor assumed nor unknown is refused. */
/* clang-format off */
static const struct {
	const char *word;
	unsigned right[2], unknown[2]; /* of SGLang, of vLLM */
	unsigned assumed;
	const char *why, *remedy;
} table[WS_N_KEEPS] = {
	[WS_KEEPS_UNTOLD] = { "untold", { 0, 0 }, { ANY, ANY }, BIT(DENSE),
		"does not tell the format of its weights",
		"name its checkpoint's config.json with {config}" },
	[WS_KEEPS_NEW] = { "unknown", { 0, 0 }, { ANY, ANY }, 0,
		"names a quantization that is not known here", in_16 },
	[WS_KEEPS_DENSE] = { "16-bit", { BIT(DENSE), BIT(DENSE) }, { BIT(CODES), BIT(CODES) }, 0,
		as_numbers,
		"{unpack} sends 16 bits; or start it from a checkpoint of this format" },
	[WS_KEEPS_ONLINE] = { "online", { BIT(DENSE), BIT(DENSE) }, { 0, 0 }, 0,
		"quantizes the 16-bit weights that it receives, with scales of its own: it would "
		"take the codes and drop the scales",
		"push without {quantize}, from a 16-bit checkpoint" },
	[WS_KEEPS_ONCE] = { "online-once", { 0, 0 }, { 0, 0 }, 0,
		"quantized its 16-bit checkpoint when it started: its weights lie transposed and "
		"without their loaders, and an update fails in the middle",
		"start it from a checkpoint of block FP8 and push with {quantize} fp8, or start it "
		"in 16 bits" },
	[WS_KEEPS_FP8] = { "fp8", { 0, 0 }, { BIT(DENSE), BIT(DENSE) }, CODES,
		"keeps its weights in FP8, with scales of a kind that it does not tell: it may "
		"cast 16-bit weights, keep the old scales, and report success",
		"add {quantize} fp8" },
	[WS_KEEPS_FP8_BLOCKS] = { "fp8-blocks", { BIT(FP8_BLOCKS), BIT(FP8_BLOCKS) }, { 0, 0 }, 0,
		"keeps its weights in FP8 with a scale for each block: it would cast other "
		"weights, keep the old scales, and report success",
		"add {quantize} fp8" },
	[WS_KEEPS_FP8_SCALES] = { "fp8-scales", { 0, BIT(FP8_SCALES) }, { BIT(FP8_SCALES), 0 }, 0,
		"keeps FP8 with one scale for each tensor or row, transposed and without their "
		"loaders: an update fails in the middle",
		"start it from a checkpoint of block FP8 and push with {quantize} fp8, or start it "
		"in 16 bits" },
	[WS_KEEPS_MXFP8] = { "mxfp8", { 0, 0 }, { BIT(MXFP8), BIT(MXFP8) | BIT(DENSE) }, 0,
		"keeps MXFP8, which cannot be made here, unless it makes it itself: it would read "
		"scales of another type", in_16 },
	[WS_KEEPS_NVFP4] = { "nvfp4", { 0, BIT(NVFP4) }, { BIT(NVFP4), 0 }, 0,
		"keeps NVFP4, which cannot be made here; some of its kernels rearrange it when the "
		"server starts and cannot load it again", in_16 },
	[WS_KEEPS_MXFP4] = { "mxfp4", { 0, 0 }, { BIT(MXFP4), BIT(MXFP4) }, 0,
		"keeps MXFP4, rearranged when it started", in_16 },
	[WS_KEEPS_AWQ] = { "awq", { 0, 0 }, { BIT(INTEGERS), BIT(INTEGERS) }, 0, packed, in_16 },
	[WS_KEEPS_GPTQ] = { "gptq", { 0, 0 }, { BIT(INTEGERS), BIT(INTEGERS) }, 0, packed, in_16 },
	[WS_KEEPS_COMPRESSED] = { "compressed-tensors", { 0, 0 },
		{ BIT(INTEGERS) | BIT(NVFP4) | BIT(FP8_SCALES),
		  BIT(INTEGERS) | BIT(NVFP4) | BIT(FP8_SCALES) }, 0, packed, in_16 },
	[WS_KEEPS_INT8] = { "int8", { 0, 0 }, { BIT(INTEGERS), BIT(INTEGERS) }, 0,
		"keeps 8-bit integers with scales: it would cast other weights, keep the old "
		"scales, and report success", in_16 },
	[WS_KEEPS_BNB] = { "bitsandbytes", { 0, 0 }, { BIT(BNB), BIT(BNB) }, 0, packed, in_16 },
	[WS_KEEPS_GGUF] = { "gguf", { 0, 0 }, { 0, 0 }, 0, packed, in_16 },
	[WS_KEEPS_TORCHAO] = { "torchao", { 0, 0 }, { 0, 0 }, 0,
		"quantized its weights with torchao when it started", in_16 },
	[WS_KEEPS_QUARK] = { "quark", { 0, 0 }, { CODES | BIT(MXFP4), CODES | BIT(MXFP4) }, 0,
		packed, in_16 },
	[WS_KEEPS_MIXED] = { "mixed", { 0, 0 }, { ANY & ~BIT(DENSE), ANY & ~BIT(DENSE) }, 0,
		packed, in_16 },
	[WS_KEEPS_PACKED_EXPERTS] = { "packed-experts", { 0, 0 }, { ANY, ANY }, 0,
		"runs on a CPU, where vLLM packs experts when it starts and not again after an "
		"update: it would report success and answer wrongly", pack_again },
	[WS_KEEPS_PACKED_HEAD] = { "packed-head", { 0, 0 }, { ANY, ANY }, 0,
		"runs on a CPU, where the head of a vLLM is a packed copy of the embedding, made "
		"when it started: it would report success and keep the old head", pack_again },
	[WS_KEEPS_PAST_LOADER] = { "past-loader", { 0, 0 }, { ANY, ANY }, 0,
		"is a vLLM with gpt-oss, whose attention sinks and experts no update reaches: it "
		"would report success and keep the old ones",
		"start the server again, from the new checkpoint" },
};
/* clang-format on */

enum ws_keeps ws_format_copy(const struct ws_format_model *m, const char *name, unsigned n_dims)
{
	static const char *const heads[] = { "embed_tokens.weight", "word_embeddings.weight",
		                             "wte.weight", "tok_embeddings.weight" };
	/* vLLM gives these no head beside the embedding, which it loads and packs again */
	static const char *const headless[] = { "gemma2", "gemma3n_text", "cohere", "cohere2" };
	const bool cpu = strcmp(m->device, "cpu") == 0;
	bool head = cpu && m->tied;
	const bool expert = ws_format_is_expert(name, n_dims);
	for (size_t i = 0; i < sizeof headless / sizeof headless[0]; i++)
		head &= strcmp(m->type, headless[i]) != 0;
	if (strcmp(m->type, "gpt_oss") == 0 && (expert || ws_ends_with(name, ".sinks")))
		return WS_KEEPS_PAST_LOADER;
	if (cpu && m->dense && expert)
		return WS_KEEPS_PACKED_EXPERTS;
	for (size_t i = 0; head && i < sizeof heads / sizeof heads[0]; i++)
		if (ws_ends_with(name, heads[i]))
			return WS_KEEPS_PACKED_HEAD;
	return WS_N_KEEPS;
}

const char *ws_keeps_word(enum ws_keeps keeps)
{
	return table[keeps].word;
}

const char *ws_sends_word(enum ws_sends sends)
{
	static const char *const words[] = { "other", "16-bit", "fp8-blocks", "fp8-scales", "mxfp8",
		                             "nvfp4", "mxfp4",  "integers",   "bitsandbytes",
		                             "codes" };
	return words[sends];
}

enum ws_fits ws_format_fits(bool vllm, enum ws_keeps keeps, enum ws_sends sends, const char **why,
                            const char **remedy)
{
	const unsigned bit = 1U << sends;
	*why = table[keeps].why;
	*remedy = table[keeps].remedy;
	return sends == WS_SENDS_OTHER || (table[keeps].right[vllm] & bit) ? WS_FITS_RIGHT :
	       table[keeps].assumed & bit                                  ? WS_FITS_ASSUMED :
	       table[keeps].unknown[vllm] & bit                            ? WS_FITS_UNKNOWN :
	                                                                     WS_FITS_REFUSED;
}
