/* SPDX-License-Identifier: Apache-2.0 */
/* transform.h - changes weights before they are sent: merges adapters, unpacks quantized
 * bases, quantizes to FP8.
 *
 * A transform turns a catalog into another catalog, whose items are computed when they are read:
 * tile by tile, in bounded scratch memory, by a few threads that run ahead of the sender. All
 * users of catalogs (plan, name check, hash, push, verify) work with the result. Source files are
 * never written.
 *
 * Results are defined to the bit (wsync-transforms(7)): fp32 arithmetic, the order of every sum,
 * every rounding. SIMD and CUDA give the same bits as the plain C. */
#ifndef WSYNC_TRANSFORM_H
#define WSYNC_TRANSFORM_H

#include "wsync/trace.h"

#include <stdbool.h>

#ifdef __cplusplus
extern "C" {
#endif

/* The scale of an FP8 block, computed from its largest magnitude. Sources: xorl's generic
 * quantizer and slime's block kernel; servers take both. */
enum ws_scale_rule {
	WS_SCALE_XORL, /* s = max(amax, 1e-12) / 448, q = rne(clamp(x / s)) */
	WS_SCALE_SLIME /* s = max(amax, 1e-10) / 448, q = rne(clamp(x * (1 / s))) */
};

enum ws_quantize {
	WS_QUANTIZE_NONE,
	/* blocks: X.weight, X.weight_scale_inv [ceil(R/bn), ceil(C/bk)] fp32 */
	WS_QUANTIZE_FP8
};

enum ws_lora_rounding {
	WS_LORA_FOLD,    /* bf16(fp32(W) + fp32(delta)) */
	WS_LORA_TWO_STEP /* bf16(W + bf16(delta)), each rounded */
};

struct ws_transform_opts {
	enum ws_quantize quantize;
	int64_t block[2];                 /* rows, columns; 0, 0: 128 x 128 */
	enum ws_scale_rule rule;
	bool ue8m0;                       /* scales are rounded up to powers of two */
	/* with quantize and blocks of 128 x 128: ue8m0, and X.weight_scale_inv is as SGLang's
	 * DeepGEMM keeps it on Blackwell, int32 [R, ceil(ceil(C/128)/4)]. Row r has the scales of
	 * block row r/128, each as its exponent byte, the first in the lowest byte; missing ones
	 * are 0 (sglang/srt/layers/quantization/fp8_utils.py, inverse_transform_scale_ue8m0) */
	bool packed_scales;
	/* unpack bases of nf4, nvfp4 and FP8, also without an adapter */
	bool unpack;
	/* globs over the names of modules that are never quantized */
	const char *const *skip;
	size_t n_skip;
	/* A push fills in quant, base, family, layout and config itself: leave them NULL.
	 * quant: the server's quantization; NULL: unknown. If it lists
	 * modules_to_not_convert, every other matrix named X.weight becomes FP8;
	 * without a list only those known to be FP8: *_proj, *_proj_with_mqa, and
	 * the in_proj_* of linear attention. */
	const struct ws_quant *quant;
	const struct ws_quant *base;      /* the checkpoint's quantization; NULL: unknown */
	const char *const *adapters;      /* PEFT directories, merged in this order */
	size_t n_adapters;
	bool adapter_partial;             /* factors that bind to nothing are a warning */
	enum ws_lora_rounding rounding;
	const char *correction; /* safetensors with X.correction_U [R, k] and X.correction_V [k, C]
	                         * or _B: one more low-rank pair, scale 1; NULL: none */
	/* globs of ws_plan_opts: tensors that are not sent cause no error and are not counted */
	const char *const *include;
	/* n_include 0 and n_exclude 0: all are sent */
	size_t n_include;
	const char *const *exclude;
	size_t n_exclude;
	const struct ws_family *family;   /* its renames also match adapters' names; NULL: none */
	const struct ws_layout *layout;   /* to follow adapters into fused bases; NULL */
	const struct ws_config *config;   /* the model's config.json; NULL: unknown */
	unsigned threads;                 /* 0: one for each processor, at most 8 */
	/* most bytes of scratch memory, at least 16 MiB; 0: 128 MiB */
	uint64_t scratch;
	struct ws_trace *trace;           /* of tiles and their reads; NULL: none */
	/* skip a push's checks of NaN and of replicas before the pause */
	bool trust_values;
};

/* Do the options request any transform? */
bool ws_transform_wanted(const struct ws_transform_opts *opts);

/* Counts tensors that are sent. */
struct ws_transform_report {
	size_t quantized, already;        /* tensors made FP8; already FP8 with the same blocks */
	size_t unpacked;                  /* tensors of nf4, nvfp4 or FP8 bases made dense */
	size_t bound, replaced;           /* modules with deltas; tensors of modules_to_save */
	size_t left_over;                 /* adapter tensors that bound to nothing */
	char left_over_first[256];
	/* modules that adapters' configs name, that the base has and that have no factors */
	size_t lacking;
	char lacking_first[256];
	/* max |delta| / max |W| over modules computed so far */
	double largest_change;
	char largest_name[256];
	uint64_t peak;                    /* most bytes of scratch memory in use */
};

#ifdef __cplusplus
}
#endif
#endif
