/* SPDX-License-Identifier: Apache-2.0 */
#include "transforming.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <string.h>

/* Indexes are the values of the library's enums. */
const char *const transforming_quantize[] = { "none", "fp8", NULL };
const struct opt_gone transforming_quantize_gone[] = {
	{ "fp8-tensor", "was removed: use fp8, with one scale per block" },
	{ NULL, NULL },
};
const char *const transforming_rules[] = { "xorl", "slime", NULL };
const char *const transforming_roundings[] = { "fold", "two-step", NULL };

enum { MOST_OF_A_BLOCK = 1 << 20 };

int transforming_block(void *ctx, const char *value, struct ws_err *err)
{
	struct transforming *t = ctx;
	char rows[16] = "";
	uint64_t n, m;
	const size_t len = strcspn(value, "x");
	if (len < sizeof rows)
		snprintf(rows, sizeof rows, "%.*s", (int)len, value);
	if (!value[len] || ws_parse_uint(rows, 1, MOST_OF_A_BLOCK, "", &n, NULL) ||
	    ws_parse_uint(value + len + 1, 1, MOST_OF_A_BLOCK, "", &m, NULL))
		return ws_err_set(err, WS_EUSAGE,
		                  "invalid value '%s', must be like 128x128, and each 1 to %d",
		                  value, MOST_OF_A_BLOCK);
	t->block[0] = (int64_t)n;
	t->block[1] = (int64_t)m;
	return 0;
}

int transforming_scratch(void *ctx, const char *value, struct ws_err *err)
{
	struct transforming *t = ctx;
	uint64_t n;
	if (ws_parse_size(value, &n, NULL) || n < UINT64_C(16) << 20 || n > UINT64_C(1) << 40)
		return ws_err_set(
			err, WS_EUSAGE,
			"invalid value '%s', must be a size like 512MiB, from 16MiB to 1TiB",
			value);
	t->scratch = n;
	return 0;
}

const char *transforming_given(const struct transforming *t)
{
	return t->quantize ? "quantize" : t->unpack ? "unpack" : t->adapters.n ? "lora" :
	       t->correction ? "correction" : NULL;
}

const char *transforming_lacks(const struct transforming *t)
{
	if (t->quantize != WS_QUANTIZE_NONE)
		return NULL;
	return t->ue8m0         ? "--ue8m0: with --quantize fp8 only" :
	       t->packed_scales ? "--packed-scales: with --quantize fp8 only" :
	                          NULL;
}

struct ws_transform_opts transforming_opts(const struct transforming *t)
{
	return (struct ws_transform_opts){
		.quantize = t->quantize, .block = { t->block[0], t->block[1] }, .rule = t->rule,
		.ue8m0 = t->ue8m0, .packed_scales = t->packed_scales, .unpack = t->unpack,
		.skip = t->skip.items, .n_skip = t->skip.n,
		.adapters = t->adapters.items, .n_adapters = t->adapters.n,
		.adapter_partial = t->partial, .rounding = t->rounding, .correction = t->correction,
		.trust_values = t->trust, .scratch = t->scratch, TRANSFORMING_CHOICE(t),
	};
}
