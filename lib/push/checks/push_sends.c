/* SPDX-License-Identifier: Apache-2.0 */
/* push_sends.c - finds the formats that a plan sends. Each module tells its own, by its codes and
 * by the scales beside them: a source may have some modules in FP8 and others in 16 bits. */
#include "push_checks.h"
#include "wsync/tool/formats.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* The tensor of this name, up to its ".weight" or whole, with another end; NULL: not sent. */
static const struct ws_plan_tensor *find_beside(const struct push_sends *s, const char *name,
                                                const char *end)
{
	char other[PUSH_MODULE];
	return snprintf(other, sizeof other, "%s%s", name, end) < (int)sizeof other ?
	               ws_plan_find(s->plan, s->index, other) :
	               NULL;
}

/* The format of E4M3 codes, by their scales. */
static enum ws_sends of_codes(const struct push_sends *s, const char *name)
{
	const struct ws_plan_tensor *blocks = find_beside(s, name, "_scale_inv"),
				    *scale = find_beside(s, name, "_scale");
	const struct ws_plan_tensor *of = blocks ? blocks : scale;
	if (of && of->dtype == WS_DTYPE_U8)
		return WS_SENDS_MXFP8;
	return blocks ? WS_SENDS_FP8_BLOCKS : WS_SENDS_FP8_SCALES;
}

/* Bytes are codes of what their scales say. */
static enum ws_sends of_bytes(const struct push_sends *s, const char *name)
{
	static const struct { const char *end; enum ws_sends format; } known[] = {
		{ "_scale_2", WS_SENDS_NVFP4 }, { "_global_scale", WS_SENDS_NVFP4 },
		{ ".absmax", WS_SENDS_BNB },    { "_blocks", WS_SENDS_MXFP4 },
	};
	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++)
		if (find_beside(s, name, known[i].end))
			return known[i].format;
	return WS_SENDS_CODES;
}

/* q: of the server; NULL: not known. */
static enum ws_sends format_of(const struct push_sends *s, const struct ws_plan_tensor *t,
                               const struct ws_quant *q)
{
	char module[PUSH_MODULE];
	const enum ws_sends format = ws_format_of_tensor(t->name, t->dtype, t->n_dims);
	if (format == WS_SENDS_FP8_SCALES)
		return of_codes(s, t->name);
	if (format == WS_SENDS_CODES)
		return of_bytes(s, t->name);
	if (format != WS_SENDS_OTHER || !ws_format_is_dense(t->dtype) ||
	    !ws_format_is_matrix(t->name, t->n_dims, module, sizeof module))
		return format;
	return q && ws_quant_skips(q, module) ? WS_SENDS_OTHER : WS_SENDS_DENSE;
}

int push_sends_open(const struct ws_plan *plan, struct push_sends *out, struct ws_err *err)
{
	*out = (struct push_sends){ .plan = plan, .index = ws_plan_index(plan) };
	return out->index ? 0 : ws_oom(err);
}

void push_sends_find(struct push_sends *s, const struct ws_quant *q)
{
	memset(s->name, 0, sizeof s->name);
	for (size_t i = 0; i < s->plan->n_tensors; i++) {
		const struct ws_plan_tensor *t = &s->plan->tensors[i];
		const enum ws_sends format = format_of(s, t, q);
		if (!s->name[format])
			s->name[format] = t->name;
	}
}

static int64_t blocks_of(int64_t size, int64_t block)
{
	return (size + block - 1) / block;
}

bool push_scales_fit(const struct push_sends *s, const struct ws_plan_tensor *codes,
                     const int64_t block[2], bool packed)
{
	const struct ws_plan_tensor *scale = find_beside(s, codes->name, "_scale_inv");
	const unsigned n = codes->n_dims;
	if (!scale || !block[0] || n < 2 || packed)
		return true;
	return scale->dtype != WS_DTYPE_I32 && scale->n_dims == n &&
	       scale->dims[n - 2] == blocks_of(codes->dims[n - 2], block[0]) &&
	       scale->dims[n - 1] == blocks_of(codes->dims[n - 1], block[1]);
}

void push_sends_close(struct push_sends *s)
{
	free(s->index);
	s->index = NULL;
}
