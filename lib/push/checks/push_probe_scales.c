/* SPDX-License-Identifier: Apache-2.0 */
/* push_probe_scales.c - does a server keep FP8 in blocks? For servers that do not report it and
 * whose files are elsewhere.
 *
 *   POST /get_weights_by_name {"name":"X.weight_scale_inv","truncate_size":1}
 *
 * Servers do not report the quantization of their checkpoint ("quantization" is an option, mostly
 * null). But many return a parameter, and the scales of a weight are few numbers. The weight must
 * not be fused: servers cut a part out of fused ones by sizes that do not fit scales. Weights are
 * not requested: a server converts a whole weight to numbers to return one row. A server that
 * returns a norm and no scales has no scales. A server that returns neither does not support the
 * request. With data-parallel ranks, an empty answer is a null for each (ws_values_empty). */
#include "endpoint_weights.h"
#include "push_state.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <string.h>

enum { MOST_NUMBERS = 1 << 20 };

static int shows(struct ws_push *p, const struct ws_endpoint_info *info, const char *name,
                 bool *yes, struct ws_err *err)
{
	const char *url = info->url;
	const ws_deadline until = ws_deadline_min(p->run.until, ws_deadline_in(p->opts.connect_ns));
	struct ws_values values;
	struct ws_err why = WS_ERR_INIT;
	const struct ws_call to = { p->http, &url, 1, until, p->opts.cancel, NULL };
	*yes = ws_endpoint_get_weights(&to, name, 1, MOST_NUMBERS, &values, &why, NULL) == 0 &&
	       !ws_values_empty(&values, info->dp_size);
	ws_values_free(&values);
	if (why.code != WS_ECANCELLED && why.code != WS_ESYSTEM)
		return 0;
	*err = why;
	return -1;
}

/* A weight that is neither fused nor of an expert, in all families. */
static const char *find_weight(const struct ws_plan *plan)
{
	for (size_t i = 0; i < plan->n_tensors; i++) {
		const char *name = plan->tensors[i].name;
		if ((ws_ends_with(name, ".o_proj.weight") ||
		     ws_ends_with(name, ".down_proj.weight")) &&
		    !strstr(name, "expert"))
			return name;
	}
	return NULL;
}

static const char *find_norm(const struct ws_plan *plan)
{
	for (size_t i = 0; i < plan->n_tensors; i++)
		if (plan->tensors[i].n_dims == 1 &&
		    ws_ends_with(plan->tensors[i].name, "norm.weight"))
			return plan->tensors[i].name;
	return NULL;
}

int push_probe_scales(struct ws_push *p, const struct ws_endpoint_info *info, enum push_probed *out,
                      struct ws_err *err)
{
	const char *weight = find_weight(p->from.plan), *norm = find_norm(p->from.plan);
	char scale[1100];
	bool scales = false, anything = false;
	*out = PROBED_NOTHING;
	if (!weight || !norm)
		return 0;
	snprintf(scale, sizeof scale, "%.1024s_scale_inv", weight);
	if (shows(p, info, scale, &scales, err) ||
	    (!scales && shows(p, info, norm, &anything, err)))
		return -1;
	*out = scales ? PROBED_SCALES : anything ? PROBED_NO_SCALES : PROBED_NOTHING;
	return 0;
}
