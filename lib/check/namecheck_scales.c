/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_scales.c - scales without weights, and quantized weights without scales. With a
 * layout the latter is a missing part, which namecheck_missing.c says. */
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
	              "%s is sent without a scale: the server multiplies it by "
	              "what it holds",
	              ws_dtype_torch(item->dtype));
}

int ws_check_scales(struct ws_check *c)
{
	for (size_t i = 0; i < c->n_sent; i++) {
		const struct ws_item *item = c->sent[i];
		/* What the server leaves aside, or does not know at all, needs no scale. */
		if (c->layout && ws_check_part(c, item->name) == WS_NONE)
			continue;
		check_scale(c, item);
		if (!c->layout)
			check_weight(c, item);
	}
	return 0;
}
