/* SPDX-License-Identifier: Apache-2.0 */
/* serve_fault.c - parses and triggers configured faults: KIND:ROUTE:K, corrupt:ROUTE:K:HOW, and
 * flip:ROUTE:K[:TENSOR], short for corrupt:ROUTE:K:flip,tensor=TENSOR. */
#include "serve_core.h"
#include "serve_call.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <string.h>

static const char *const names[] = { "",        "refuse",       "hang",          "drop",
	                             "die",     "slow",         "garbage",       "wrong-length",
	                             "batch-variant", "stale",  "corrupt" };
static const char flip[] = "flip";

const char *ws_serve_fault_name(enum ws_serve_fault_kind kind)
{
	return names[kind];
}

static enum ws_serve_fault_kind find_kind(const char *text, size_t n)
{
	for (size_t k = WS_FAULT_REFUSE; k < sizeof names / sizeof names[0]; k++)
		if (strlen(names[k]) == n && memcmp(names[k], text, n) == 0)
			return (enum ws_serve_fault_kind)k;
	return WS_FAULT_NONE;
}

static const char *const steps[] = { "wire/store", "wire/connect", "wire/payload" };

static const char *find_step(const char *name)
{
	const size_t i = ws_serve_find_word(steps, WS_WIRE_STEPS, name);
	return i < WS_WIRE_STEPS ? steps[i] : NULL;
}

/* Whether the route loads tensors. */
static bool can_corrupt(const char *route)
{
	static const char *const all[] = {
		"update_weights_from_distributed",
		"update_weights_from_tensor",
		"update_weights_from_disk",
		"complete_weights_update",
		"receive_weights",
		"receive_weights_ep_scatter",
		"update_weights",
		"collective_rpc",
	};
	const size_t n = sizeof all / sizeof all[0];
	return ws_serve_find_word(all, n, route) < n;
}

enum ws_serve_fault_kind ws_serve_wire_fault(struct ws_serve *s, enum ws_serve_wire step)
{
	enum ws_serve_fault_kind due = WS_FAULT_NONE;
	pthread_mutex_lock(&s->lock);
	const uint64_t call = ++s->wire_calls[step];
	for (size_t i = 0; i < s->n_faults; i++)
		if (s->faults[i].route == steps[step] && s->faults[i].call == call)
			due = s->faults[i].kind;
	pthread_mutex_unlock(&s->lock);
	return due;
}

void ws_serve_linger(struct ws_serve *s)
{
	const ws_deadline until = ws_deadline_in(s->opts.slow_ns);
	pthread_mutex_lock(&s->lock);
	while (!s->stopping && !ws_deadline_passed(until))
		ws_serve_wait_changed(s, until);
	pthread_mutex_unlock(&s->lock);
}

int ws_serve_fault_set_tensor(struct ws_serve_fault *f, const char *glob, struct ws_err *err)
{
	const size_t n = strlen(glob);
	if (n == 0 || n >= sizeof f->tensor)
		return ws_err_set(err, WS_EUSAGE, "the tensor name is empty or too long");
	memcpy(f->tensor, glob, n + 1);
	return 0;
}

/* "K[:WHAT]" */
static int parse_call(const char *at, bool flips, struct ws_serve_fault *f, struct ws_err *err)
{
	char number[24];
	const size_t n = strcspn(at, ":");
	const char *what = at[n] ? at + n + 1 : NULL;
	if (n >= sizeof number)
		return ws_err_set(err, WS_EUSAGE, "K: too large");
	memcpy(number, at, n);
	number[n] = 0;
	if (ws_parse_uint(number, 1, UINT32_MAX, "K", &f->call, err))
		return -1;
	if (f->kind != WS_FAULT_CORRUPT)
		return what ? ws_err_set(err, WS_EUSAGE, "only flip accepts a tensor") : 0;
	if (flips)
		return what ? ws_serve_fault_set_tensor(f, what, err) : 0;
	return what ? ws_serve_corrupt_parse(what, f, err) :
	              ws_err_set(err, WS_EUSAGE, "not of the form corrupt:ROUTE:K:HOW");
}

/* Refuses kinds that the route does not support. */
static int check_route(enum ws_serve_fault_kind kind, const char *route, struct ws_err *err)
{
	static const char *const generating[] = { "generate", "v1/completions" };
	static const char *const flushing[] = { "flush_cache", "reset_prefix_cache", "pause" };
	if (kind == WS_FAULT_BATCH_VARIANT && ws_serve_find_word(generating, 2, route) == 2)
		return ws_err_set(err, WS_EUSAGE,
		                  "batch-variant is for generate and v1/completions only");
	if (kind == WS_FAULT_STALE && ws_serve_find_word(flushing, 3, route) == 3)
		return ws_err_set(err, WS_EUSAGE,
		                  "stale is for flush_cache, reset_prefix_cache and pause only");
	if (kind == WS_FAULT_CORRUPT && !can_corrupt(route))
		return ws_err_set(err, WS_EUSAGE,
		                  "flip and corrupt are for routes that load tensors");
	if (kind == WS_FAULT_REFUSE && route == steps[WS_WIRE_PAYLOAD])
		return ws_err_set(err, WS_EUSAGE, "wire/payload has no fault refuse");
	return 0;
}

static int parse(const char *text, enum ws_serve_lineage lineage, struct ws_serve_fault *out,
                 struct ws_err *err)
{
	char route[64];
	const char *first = strchr(text, ':');
	const char *last = first ? strchr(first + 1, ':') : NULL;
	if (!last)
		return ws_err_set(err, WS_EUSAGE, "not of the form KIND:ROUTE:K");
	const size_t n_kind = (size_t)(first - text), n = (size_t)(last - first) - 1;
	const bool flips = n_kind == sizeof flip - 1 && memcmp(text, flip, n_kind) == 0;
	const enum ws_serve_fault_kind kind = flips ? WS_FAULT_CORRUPT : find_kind(text, n_kind);
	if (kind == WS_FAULT_NONE)
		return ws_err_set(err, WS_EUSAGE,
		                  "unknown kind: use refuse, hang, drop, die, flip, slow, garbage, "
		                  "wrong-length, batch-variant, stale or corrupt");
	snprintf(route, sizeof route, "%.*s", (int)n, first + 1);
	const char *known = find_step(route);
	if (!known)
		known = ws_serve_route_name(route, lineage);
	if (!known || n >= sizeof route)
		return ws_err_set(err, WS_EUSAGE, "no such route");
	*out = (struct ws_serve_fault){ .kind = kind, .route = known, .tensor = "*",
		                        .corrupt.rank = -1 };
	return check_route(kind, known, err) || parse_call(last + 1, flips, out, err) ? -1 : 0;
}

int ws_serve_fault_parse(const char *text, enum ws_serve_lineage lineage,
                         struct ws_serve_fault *out, struct ws_err *err)
{
	return parse(text, lineage, out, err) ? ws_err_wrap(err, "fault '%s'", text) : 0;
}
