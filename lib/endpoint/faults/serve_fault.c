/* SPDX-License-Identifier: Apache-2.0 */
/* serve_fault.c - misbehaviour by appointment: KIND:ROUTE:K, flip:ROUTE:K:TENSOR, and
 * corrupt:ROUTE:K:HOW (serve_corrupt_parse.c). */
#include "serve_corrupt.h"
#include "serve_routes.h"

#include "wsync/tool/str.h"

#include <string.h>

static const char *const names[] = { "",      "refuse", "hang",    "drop",         "die",
	                             "flip",  "slow",   "garbage", "wrong-length", "batch-variant",
	                             "stale", "corrupt" };

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
	for (size_t i = 0; i < WS_WIRE_STEPS; i++)
		if (strcmp(steps[i], name) == 0)
			return steps[i];
	return NULL;
}

static bool can_flip(const char *route)
{
	return strcmp(route, "update_weights_from_distributed") == 0 ||
	       strcmp(route, "prepare_weights_update") == 0 ||
	       strcmp(route, "receive_weights") == 0 ||
	       strcmp(route, "update_weights_from_disk") == 0;
}

/* Where tensors are loaded. */
static bool can_corrupt(const char *route)
{
	static const char *const all[] = {
		"update_weights_from_distributed",
		"update_weights_from_tensor",
		"update_weights_from_disk",
		"complete_weights_update",
		"receive_weights",
		"receive_weights_ep_scatter",
	};
	size_t i = 0;
	while (i < sizeof all / sizeof all[0] && strcmp(all[i], route) != 0)
		i++;
	return i < sizeof all / sizeof all[0];
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

/* What follows K: which tensor. */
static int parse_tensor(const char *text, const char *rest, struct ws_serve_fault *f,
                        struct ws_err *err)
{
	const size_t n = rest ? strlen(rest) : 1;
	if (rest && f->kind != WS_FAULT_FLIP)
		return ws_err_set(err, WS_EUSAGE, "fault '%s': only flip is of a tensor", text);
	if (n == 0 || n >= sizeof f->tensor)
		return ws_err_set(err, WS_EUSAGE, "fault '%s': no such tensor", text);
	memcpy(f->tensor, rest ? rest : "*", n + 1);
	return 0;
}

static int parse_call(const char *text, const char *at, struct ws_serve_fault *f,
                      struct ws_err *err)
{
	char number[24];
	const size_t n = strcspn(at, ":");
	if (n >= sizeof number)
		return ws_err_set(err, WS_EUSAGE, "fault '%s': K: too large", text);
	memcpy(number, at, n);
	number[n] = 0;
	if (ws_parse_uint(number, 1, UINT32_MAX, "K", &f->call, err))
		return ws_err_wrap(err, "fault '%s'", text);
	if (f->kind == WS_FAULT_CORRUPT && !at[n])
		return ws_err_set(err, WS_EUSAGE, "fault '%s': not of the form corrupt:ROUTE:K:HOW",
		                  text);
	if (f->kind == WS_FAULT_CORRUPT)
		return ws_serve_corrupt_parse(text, at + n + 1, f, err);
	return parse_tensor(text, at[n] ? at + n + 1 : NULL, f, err);
}

int ws_serve_fault_parse(const char *text, enum ws_serve_lineage lineage,
                         struct ws_serve_fault *out, struct ws_err *err)
{
	const char *first = strchr(text, ':');
	const char *last = first ? strchr(first + 1, ':') : NULL;
	if (!last)
		return ws_err_set(err, WS_EUSAGE, "fault '%s': not of the form KIND:ROUTE:K", text);
	const enum ws_serve_fault_kind kind = find_kind(text, (size_t)(first - text));
	if (kind == WS_FAULT_NONE)
		return ws_err_set(err, WS_EUSAGE,
		                  "fault '%s': kind is none of refuse, hang, drop, die, flip, "
		                  "slow, garbage, wrong-length, batch-variant, stale, corrupt",
		                  text);
	char route[64];
	const size_t n = (size_t)(last - first) - 1;
	if (n >= sizeof route)
		return ws_err_set(err, WS_EUSAGE, "fault '%s': no such route", text);
	memcpy(route, first + 1, n);
	route[n] = 0;
	const char *known = find_step(route);
	if (!known)
		known = ws_serve_route_name(route, lineage);
	if (!known)
		return ws_err_set(err, WS_EUSAGE, "fault '%s': no such route", text);
	if (kind == WS_FAULT_FLIP && !can_flip(known))
		return ws_err_set(
			err, WS_EUSAGE,
			"fault '%s': flip is for update_weights_from_distributed, "
			"prepare_weights_update, receive_weights and update_weights_from_disk "
			"only",
			text);
	if (kind == WS_FAULT_BATCH_VARIANT && strcmp(known, "generate") != 0)
		return ws_err_set(err, WS_EUSAGE, "fault '%s': batch-variant is for generate only",
		                  text);
	if (kind == WS_FAULT_STALE && strcmp(known, "flush_cache") != 0)
		return ws_err_set(err, WS_EUSAGE, "fault '%s': stale is for flush_cache only",
		                  text);
	if (kind == WS_FAULT_CORRUPT && !can_corrupt(known))
		return ws_err_set(err, WS_EUSAGE,
		                  "fault '%s': corrupt is for routes that load tensors", text);
	if (kind == WS_FAULT_REFUSE && known == steps[WS_WIRE_PAYLOAD])
		return ws_err_set(err, WS_EUSAGE, "fault '%s': bytes cannot be refused", text);
	*out = (struct ws_serve_fault){ .kind = kind, .route = known };
	return parse_call(text, last + 1, out, err);
}
