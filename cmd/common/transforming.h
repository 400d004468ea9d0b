/* SPDX-License-Identifier: Apache-2.0 */
/* transforming.h - options of transforms, for every command that sends tensors or examines the
 * tensors that would be sent. */
#ifndef WSYNC_CMD_TRANSFORMING_H
#define WSYNC_CMD_TRANSFORMING_H

#include "opt.h"

#include "wsync/transform.h"

struct transforming {
	unsigned quantize, rule, rounding; /* the library's enums */
	int64_t block[2];
	bool ue8m0, packed_scales, unpack, partial, trust;
	struct opt_list include, exclude; /* tensors; not options of every command */
	struct opt_list skip, adapters;
	const char *correction;
	uint64_t scratch;                  /* 0: not given */
};

extern const char *const transforming_quantize[], *const transforming_rules[];
extern const char *const transforming_roundings[];
extern const struct opt_gone transforming_quantize_gone[];

#define OPT_TRANSFORMING(t)                                                                        \
	OPT_CHOICE(0, "quantize", transforming_quantize, &(t)->quantize,                           \
	           "FP8 with one scale per block (none)", .basic = true,                           \
	           .gone = transforming_quantize_gone),                                            \
		OPT_CALL(0, "block-size", "ROWSxCOLUMNS", transforming_block, t,                   \
	                 "FP8 block size (that of the servers' config, else 128x128)"),            \
		OPT_LIST(0, "skip-modules", "GLOB", &(t)->skip,                                    \
	                 "do not quantize modules that match GLOB; repeatable"),                   \
		OPT_CHOICE(0, "scale-rule", transforming_rules, &(t)->rule,                        \
	                   "arithmetic of block scales (xorl)"),                                   \
		OPT_FLAG(0, "ue8m0", &(t)->ue8m0,                                                  \
	                 "round scales up to powers of two, for servers with ue8m0"),              \
		OPT_FLAG(0, "packed-scales", &(t)->packed_scales,                                  \
	                 "ue8m0 scales, 4 in an int32, for SGLang with DeepGEMM on Blackwell"),    \
		OPT_FLAG(0, "unpack", &(t)->unpack, "send nf4, nvfp4 and FP8 weights in 16 bits"), \
		OPT_LIST(0, "lora", "DIR", &(t)->adapters, "merge this LoRA adapter; repeatable",  \
	                 .basic = true),                                                           \
		OPT_CHOICE(0, "lora-rounding", transforming_roundings, &(t)->rounding,             \
	                   "round the sum once, or each change first (fold)"),                     \
		OPT_FLAG(0, "lora-partial", &(t)->partial,                                         \
	                 "skip adapter tensors that match no weight"),                             \
		OPT_STRING(0, "correction", "FILE", &(t)->correction,                              \
	                   "safetensors file of low-rank pairs to add to weights first"),          \
		OPT_FLAG(0, "trust-values", &(t)->trust,                                           \
	                 "skip the checks of values before the push (NaN, replicas)"),             \
		OPT_CALL(0, "scratch", "SIZE", transforming_scratch, t,                            \
	                 "memory limit of transforms (128MiB; at least 16MiB)")

/* The members include and exclude of an options struct of the library. */
#define TRANSFORMING_CHOICE(t)                                                                     \
	.include = (t)->include.items, .n_include = (t)->include.n,                                \
	.exclude = (t)->exclude.items, .n_exclude = (t)->exclude.n

int transforming_block(void *transforming, const char *value, struct ws_err *err);
int transforming_scratch(void *transforming, const char *value, struct ws_err *err);
struct ws_transform_opts transforming_opts(const struct transforming *t);
/* The name of a given option that requests a transform, like "lora"; NULL: none was given. */
const char *transforming_given(const struct transforming *t);
/* The usage error of an option that needs another one; NULL: none. Not for the gateway, whose
 * options are defaults for requests that may quantize. */
const char *transforming_lacks(const struct transforming *t);

#endif
