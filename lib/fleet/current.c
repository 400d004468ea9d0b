/* SPDX-License-Identifier: Apache-2.0 */
/* current.c - see current.h. The order of the lines of one server is that of its pushes, because a
 * push writes them while it has the server's lock. */
#include "current.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

const char *ws_current_name(enum ws_current current)
{
	static const char *const names[WS_N_CURRENT] = {
		[WS_CURRENT_BY_LABEL] = "label", [WS_CURRENT_BY_RECORD] = "record",
		[WS_CURRENT_BY_PROOF] = "proof",
	};
	return (unsigned)current < WS_N_CURRENT ? names[current] : NULL;
}

/* What a line says of a server. */
struct deed {
	const struct ws_history_push *push; /* NULL: no line is about it */
	const struct ws_history_endpoint *of;
	bool sure; /* it is about this start of the server */
};

static void __attribute__((format(printf, 2, 3)))
deny(struct fleet_current *out, const char *fmt, ...)
{
	va_list args;
	va_start(args, fmt);
	vsnprintf(out->why, sizeof out->why, fmt, args);
	va_end(args);
	out->by = WS_CURRENT_NOT;
}

/* Why its label is not that of the weights that this push has left; false: it is. */
static bool denies(const struct deed *d, const char *label, ws_fleet_has_plan *has_plan, void *ctx,
                   const struct ws_endpoint_info *info, struct fleet_current *out)
{
	const struct ws_history_push *p = d->push;
	const long long pid = (long long)p->pid;
	const bool is_version = d->of->ok && strcmp(p->weight_version, label) == 0;
	const int same = is_version && has_plan && p->digest ? has_plan(ctx, info, p->digest) : -1;
	if (!p->ended && *d->of->message)
		deny(out, "%.200s", d->of->message);
	else if (!p->ended)
		deny(out, "push %lld on %.64s has begun to change its weights, and no end is "
		     "recorded", pid, p->host);
	else if (!d->of->ok || d->of->state != WS_COMMITTED)
		deny(out, "push %lld on %.64s has failed there since", pid, p->host);
	else if (!*p->weight_version)
		deny(out, "push %lld on %.64s has replaced its weights since, without a version",
		     pid, p->host);
	else if (!is_version)
		deny(out, "push %lld on %.64s has replaced its weights since", pid, p->host);
	else if (!p->whole && same != 1)
		deny(out, "push %lld on %.64s has sent only a part of the weights", pid, p->host);
	else if (same == 0)
		deny(out, "push %lld on %.64s has sent another plan (digest %016" PRIx64 ")", pid,
		     p->host, p->digest);
	return *out->why;
}

/* Has somebody else set its label since? A push that has not ended may have set its own. */
static bool is_foreign(const struct deed *d, const char *label)
{
	const bool untold = !d->push->ended && !*d->of->label;
	if (untold || strcmp(d->of->label, label) == 0)
		return false;
	const bool may_have_set = !d->push->ended || !d->of->ok;
	return !may_have_set || strcmp(d->push->weight_version, label) != 0;
}

void fleet_current_judge(const struct ws_history *h, const char *url,
                         const struct ws_endpoint_info *info, ws_fleet_has_plan *has_plan,
                         void *plan_ctx, struct fleet_current *out)
{
	const char *label = info->weight_version;
	struct deed d = { 0 };
	d.push = ws_history_last_change(h, url, info, &d.of, &d.sure);
	*out = (struct fleet_current){ .push = d.push ? d.push->id : 0 };
	if (!*label)
		return;
	out->by = WS_CURRENT_BY_LABEL;
	/* Without an id, an older wsync has written the line: it says too little. */
	if (!d.push || !d.push->id || is_foreign(&d, label) ||
	    denies(&d, label, has_plan, plan_ctx, info, out))
		return;
	out->by = d.sure ? WS_CURRENT_BY_RECORD : WS_CURRENT_BY_LABEL;
	out->established = d.of->established;
}
