/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_quant.c - scales without weights and quantized weights without scales; and weights in
 * 4 bits, which no server accepts in an update: each is reported once, and nothing else is
 * reported about the tensors that belong to it. With a layout, a missing scale is a missing part
 * (namecheck_missing.c).
 *
 *   X with X.quant_state.bitsandbytes__nf4 (or __fp4), X.absmax, X.quant_map, X.nested_absmax,
 *   X.nested_quant_map
 *   M.weight U8 with M.weight_scale, M.weight_scale_2, M.input_scale (ModelOpt) */
#include "namecheck_core.h"

#include <stdio.h>
#include <string.h>

static void check_scale(struct ws_check *c, const struct ws_item *item)
{
	char weight[WS_CHECK_NAME];
	if (!ws_scaled_name(item->name, weight, sizeof weight) || ws_check_sent(c, weight))
		return;
	const size_t part = ws_check_part(c, item->name);
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_SCALE_ALONE, .severity = WS_ERROR, .name = item->name,
		.param = part == WS_NONE ? NULL : ws_layout_param(c->layout,
		                c->parts[part].param)->name,
		.near = weight,
		.shared = "scales are sent without their weights: the server applies them to what "
		        "it holds",
		.remedy = "send every weight with its scale, in one request",
	};
	ws_report_add(c->report, &finding, "a scale without %s: the server applies it to what it "
	              "holds", weight);
}

static bool has_scale(const struct ws_check *c, const char *name)
{
	static const char *const suffixes[] = { "_scale_inv", "_scale" };
	char scale[WS_CHECK_NAME];
	for (size_t i = 0; i < sizeof suffixes / sizeof suffixes[0]; i++)
		if (snprintf(scale, sizeof scale, "%s%s", name, suffixes[i]) < WS_CHECK_NAME &&
		    ws_check_sent(c, scale))
			return true;
	return false;
}

static void check_weight(struct ws_check *c, const struct ws_item *item)
{
	if (!ws_dtype_is_fp8(item->dtype) || has_scale(c, item->name))
		return;
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_NO_SCALE, .severity = WS_ERROR, .name = item->name,
		.shared = "quantized weights are sent without their scales: the server multiplies "
		        "them by what it holds",
		.remedy = "send the scales with them, in one request",
	};
	ws_report_add(c->report, &finding,
	              "%s is sent without a scale: the server multiplies it by what it holds",
	              ws_dtype_torch(item->dtype));
}

int ws_check_scales(struct ws_check *c)
{
	for (size_t i = 0; i < c->n_sent; i++) {
		const struct ws_item *item = c->sent[i];
		/* Tensors that the server ignores or does not know need no scale. */
		if (c->layout && ws_check_part(c, item->name) == WS_NONE)
			continue;
		check_scale(c, item);
		if (!c->layout)
			check_weight(c, item);
	}
	return 0;
}

static const struct packing {
	const char *mark;      /* suffix of a tensor that exists only beside a packed weight */
	const char *name;
	const char *parts[6];  /* suffixes of the tensors that belong to it; NULL ends the list */
} packings[] = {
	{ ".quant_state.bitsandbytes__nf4",
	  "nf4 (bitsandbytes)",
	  { ".quant_state.bitsandbytes__nf4", ".absmax", ".quant_map", ".nested_absmax",
	    ".nested_quant_map" } },
	{ ".quant_state.bitsandbytes__fp4",
	  "fp4 (bitsandbytes)",
	  { ".quant_state.bitsandbytes__fp4", ".absmax", ".quant_map", ".nested_absmax",
	    ".nested_quant_map" } },
	{ "_scale_2", "nvfp4 (ModelOpt)", { "_scale", "_scale_2" } },
};

/* How the tensor of this name is packed; NULL: it is not. */
static const struct packing *packing_of(const struct ws_check *c, const char *name)
{
	char mark[WS_CHECK_NAME];
	const struct ws_item *item = ws_catalog_find(c->items, name);
	for (size_t i = 0; item && i < sizeof packings / sizeof packings[0]; i++) {
		const int n = snprintf(mark, sizeof mark, "%s%s", name, packings[i].mark);
		const bool any_type = packings[i].mark[0] == '.';
		if (n > 0 && (size_t)n < sizeof mark && (any_type || item->dtype == WS_DTYPE_U8) &&
		    ws_catalog_find(c->items, mark))
			return &packings[i];
	}
	return NULL;
}

static bool is_part_of(const struct ws_check *c, const char *name, const char *suffix,
                       const char *leaf)
{
	char weight[WS_CHECK_NAME];
	return ws_ends_with(name, suffix) &&
	       (size_t)snprintf(weight, sizeof weight, "%.*s%s",
	                        (int)(strlen(name) - strlen(suffix)), name, leaf) < sizeof weight &&
	       packing_of(c, weight);
}

static bool belongs_to_packed(const struct ws_check *c, const char *name)
{
	for (size_t i = 0; i < sizeof packings / sizeof packings[0]; i++)
		for (size_t k = 0; k < 6 && packings[i].parts[k]; k++)
			if (is_part_of(c, name, packings[i].parts[k], ""))
				return true;
	return is_part_of(c, name, ".input_scale", ".weight");
}

/* Marks the part of this name and suffix as reported. */
static const struct ws_part *settle(struct ws_check *c, const char *name, const char *suffix)
{
	char full[WS_CHECK_NAME];
	if ((size_t)snprintf(full, sizeof full, "%s%s", name, suffix) >= sizeof full)
		return NULL;
	const size_t part = ws_check_part(c, full);
	if (part == WS_NONE)
		return NULL;
	c->part_reported[part] = true;
	return &c->parts[part];
}

static void report_packed(struct ws_check *c, const struct ws_item *item, const struct packing *how)
{
	const struct ws_part *p = settle(c, item->name, "");
	settle(c, item->name, "_scale_inv");
	settle(c, item->name, "_scale");
	const struct ws_text shared =
		ws_textf("weights are packed in %s, which servers do not take", how->name);
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_DTYPE,
		.severity = WS_ERROR,
		.name = item->name,
		.param = p ? ws_layout_param(c->layout, p->param)->name : NULL,
		.rule = p ? ws_check_rule(c, p) : NULL,
		.shared = shared.s,
		.remedy = "{unpack} sends them in 16 bits; {quantize} fp8, for a server in FP8, "
		          "and {adapters} unpack them, too",
	};
	ws_report_add(c->report, &finding, "packed in %s, and the server keeps %s", how->name,
	              !p                        ? "no such weight" :
	              ws_dtype_is_fp8(p->dtype) ? "codes and scales of FP8" :
	                                          "numbers of 16 bits or more");
}

bool ws_check_packed(struct ws_check *c, const struct ws_item *item)
{
	if (!c->layout || (ws_check_part(c, item->name) != WS_NONE &&
	                   c->parts[ws_check_part(c, item->name)].dtype == WS_DTYPE_U8))
		return false;
	const struct packing *how = packing_of(c, item->name);
	if (how)
		report_packed(c, item, how);
	return how || belongs_to_packed(c, item->name);
}
