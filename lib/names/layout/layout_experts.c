/* SPDX-License-Identifier: Apache-2.0 */
/* layout_experts.c - the experts of a rank in two tensors, w13 (gate above up) and w2 (down).
 *
 * Shared experts are a layer of their own. Or they follow the routed ones as further experts, which
 * every ep rank has; SGLang does this for a single shared expert of the same width. */
#include "layout_build.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

struct experts {
	char name[WS_NAME_MAX];
	int64_t count, in, mid;
	bool gated, fp8;
	struct ws_division d;
	const char *trouble;
};

/* One tensor of each expert: weights or scales of w13 or w2. */
struct expert_tensor {
	const char *leaf;         /* "gate_proj" */
	const char *suffix;       /* ".weight" */
	struct ws_part part;
};

static const char *find_trouble(struct ws_build *b, const struct experts *x)
{
	const int64_t tp = x->d.tp, ep = x->d.ep;
	if (x->count % ep)
		return ws_build_keepf(b, "%" PRId64 " experts do not divide by ep %" PRId64,
		                      x->count, ep);
	if (x->mid % tp)
		return ws_build_keepf(b, "%" PRId64 " rows of an expert do not divide by %s %"
		                      PRId64, x->mid, ep > 1 ? "tp / ep" : "tp", tp);
	if (!x->fp8)
		return NULL;
	const int64_t local = x->mid / tp, *block = b->quant->block;
	if (!block[0]) /* one scale for each tensor */
		return NULL;
	if (local % block[0])
		return ws_build_keepf(b, "%" PRId64 " rows of an expert at each rank are no "
		                      "multiple of the FP8 block's %" PRId64, local, block[0]);
	const int64_t columns = ws_build_scale_columns(b);
	if (tp > 1 && local % columns)
		return ws_build_keepf(b, "%" PRId64 " columns of an expert at each rank are no "
		                      "multiple of %s %" PRId64, local,
		                      columns > block[1] ? "4 packed scales'" :
		                                           "the FP8 block's", columns);
	return NULL;
}

static bool all_quantized(const struct ws_build *b, const struct experts *x)
{
	static const char *const leaves[] = { "gate_proj", "up_proj", "down_proj" };
	if (!ws_build_quantized(b, x->name))
		return false;
	for (size_t i = x->gated ? 0 : 1; i < 3; i++) {
		char module[WS_NAME_MAX + 32];
		snprintf(module, sizeof module, "%s.0.%s", x->name, leaves[i]);
		if (!ws_build_quantized(b, module))
			return false;
	}
	return true;
}

static bool joins(const struct ws_shared *s, const struct experts *x)
{
	return x->gated && strcmp(s->into, x->name) == 0 && s->in == x->in && s->mid == x->mid;
}

static int build_one(struct ws_build *b, const char *module, int64_t expert,
                     const struct expert_tensor *t, size_t n)
{
	for (size_t i = 0; i < n; i++) {
		char name[WS_NAME_MAX];
		struct ws_part p = t[i].part;
		p.expert = expert;
		if (ws_build_namef(b, name, "%s.%s", module, t[i].leaf) < 0 ||
		    ws_build_part(b, name, t[i].suffix, p) < 0)
			return -1;
	}
	return 0;
}

static int build_tensor(struct ws_build *b, const struct experts *x, const char *param,
                        const struct expert_tensor *t, size_t n)
{
	struct ws_division d = x->d;
	d.per_expert = (unsigned)n;
	if (ws_build_param(b, x->name, param, &d, x->trouble) < 0)
		return -1;
	for (int64_t e = 0; e < x->count; e++) {
		char module[WS_NAME_MAX];
		if (ws_build_namef(b, module, "%s.%" PRId64, x->name, e) < 0 ||
		    build_one(b, module, e, t, n) < 0)
			return -1;
	}
	int64_t expert = x->count;
	for (size_t i = 0; i < b->n_shared; i++) {
		if (!joins(&b->shared[i], x))
			continue;
		b->shared[i].used = true;
		if (build_one(b, b->shared[i].name, expert++, t, n) < 0)
			return -1;
	}
	return ws_build_end(b);
}

/* Describes the scales: one for each block of the weight, or one for the whole tensor. */
static void describe_scale(const struct ws_build *b, struct expert_tensor *t)
{
	const int64_t *block = b->quant->block;
	t->suffix = block[0] ? ".weight_scale_inv" : ".weight_scale";
	t->part.dtype = WS_DTYPE_F32;
	t->part.exact = false;
	if (block[0]) {
		ws_build_blocks(b, &t->part);
		return;
	}
	t->part.n_dims = 1;
	t->part.dims[0] = 1;
	t->part.dims[1] = 0;
	t->part.axis = -1; /* every rank with the expert has the whole scale */
}

static struct expert_tensor describe(const struct ws_build *b, const struct experts *x,
                                     const char *leaf, bool scale)
{
	const bool down = strcmp(leaf, "down_proj") == 0;
	struct expert_tensor t = { leaf, ".weight", {
		.dtype = x->fp8 ? WS_DTYPE_F8_E4M3 : b->dtype, .exact = x->fp8, .n_dims = 2,
		.split = WS_SPLIT_EXPERT, .axis = down ? 1 : 0,
		.dims = { down ? x->in : x->mid, down ? x->mid : x->in } } };
	if (scale)
		describe_scale(b, &t);
	return t;
}

static int build_pair(struct ws_build *b, const struct experts *x, bool scale)
{
	const struct expert_tensor gate = describe(b, x, "gate_proj", scale),
	                           up = describe(b, x, "up_proj", scale),
	                           down = describe(b, x, "down_proj", scale);
	const struct expert_tensor w13[] = { x->gated ? gate : up, up };
	char first[32], second[32]; /* ".w13_weight_scale_inv" */
	snprintf(first, sizeof first, ".w13_%s", gate.suffix + 1);
	snprintf(second, sizeof second, ".w2_%s", gate.suffix + 1);
	if (build_tensor(b, x, first, w13, x->gated ? 2 : 1) < 0)
		return -1;
	return build_tensor(b, x, second, &down, 1);
}

int ws_build_experts_rule(struct ws_build *b)
{
	const struct ws_rule *r = b->rule;
	const struct ws_layout_opts *o = &b->l->opts;
	struct experts x = { .gated = !r->nongated };
	if (ws_build_name(b, r->name, x.name) < 0 ||
	    ws_build_size(b, r->count, "experts", &x.count) < 0 ||
	    ws_build_size(b, r->in, "columns", &x.in) < 0 ||
	    ws_build_size(b, r->mid, "rows of an expert", &x.mid) < 0)
		return -1;
	x.d = (struct ws_division){ .form = WS_FORM_EXPERTS, .tp = o->tp / o->ep, .ep = o->ep,
		                    .routed = x.count };
	x.fp8 = all_quantized(b, &x);
	x.trouble = find_trouble(b, &x);
	if (build_pair(b, &x, false) < 0)
		return -1;
	return x.fp8 ? build_pair(b, &x, true) : 0;
}

/* ---- shared experts --------------------------------------------------------------------------*/

static int build_layer(struct ws_build *b, const char *name, int64_t in, int64_t mid)
{
	static const char *const leaves[] = { "gate_proj", "up_proj", "down_proj" };
	struct ws_linear_part parts[3];
	char stacked[WS_NAME_MAX];
	for (int i = 0; i < 3; i++) {
		parts[i] = (struct ws_linear_part){ .out = i == 2 ? in : mid };
		if (ws_build_namef(b, parts[i].module, "%s.%s", name, leaves[i]) < 0)
			return -1;
	}
	if (ws_build_namef(b, stacked, "%s.gate_up_proj", name) < 0)
		return -1;
	const struct ws_linear first = {
		.kind = WS_RULE_COLUMN, .name = stacked, .in = in, .parts = parts, .n_parts = 2
	}, second = {
		.kind = WS_RULE_ROW, .name = parts[2].module, .in = mid, .parts = &parts[2],
		.n_parts = 1
	};
	return ws_build_linear(b, &first) < 0 ? -1 : ws_build_linear(b, &second);
}

static int remember(struct ws_build *b, const char *name, int64_t in, int64_t mid)
{
	char into[WS_NAME_MAX];
	if (ws_build_name(b, b->rule->of, into) < 0 ||
	    ws_build_grow(b, &b->shared, b->n_shared, &b->cap_shared, sizeof *b->shared) < 0)
		return -1;
	struct ws_shared s = { .name = ws_build_keep(b, name, ""), .in = in, .mid = mid,
		               .into = ws_build_keep(b, into, ""), .rule = b->rule };
	if (!s.name || !s.into)
		return -1;
	b->shared[b->n_shared++] = s;
	return 0;
}

int ws_build_shared_rule(struct ws_build *b)
{
	const struct ws_rule *r = b->rule;
	char name[WS_NAME_MAX];
	int64_t count, in, mid;
	if (ws_build_name(b, r->name, name) < 0 ||
	    ws_build_size(b, r->count, "shared experts", &count) < 0 ||
	    ws_build_size(b, r->in, "columns", &in) < 0 ||
	    ws_build_size(b, r->mid, "rows of a shared expert", &mid) < 0)
		return -1;
	const bool fusable = b->l->opts.fuse_shared && count == 1 && r->of;
	if (b->only_shared)
		return fusable ? remember(b, name, in, mid) : 0;
	if (count > (int64_t)1 << 20)
		return ws_build_fail(b, "%" PRId64 " shared experts", count);
	return fusable ? 0 : build_layer(b, name, in, mid * count);
}

int ws_build_shared_rest(struct ws_build *b)
{
	for (size_t i = 0; i < b->n_shared; i++) {
		const struct ws_shared *s = &b->shared[i];
		b->rule = s->rule;
		if (!s->used && build_layer(b, s->name, s->in, s->mid) < 0)
			return -1;
	}
	return 0;
}
