/* SPDX-License-Identifier: Apache-2.0 */
/* serve_lineage.c - the table of lineages, and how an emulated server dies.
 *
 * An uncaught exception in a server's scheduler takes the whole server down: the
 * scheduler signals its parent, which kills every process. Clients see connections that close
 * without an answer, all of them at once, and its port is closed. */
#include "serve_lineage.h"

#include "serve_call.h"
#include "serve_gpu.h"
#include "serve_group.h"

#include "wsync/tool/str.h"
#include "wsync/version.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* The local part of the version names this program. */
#define OURS "+wsync." WSYNC_VERSION

static const struct ws_serve_lineage_traits lineages[] = {
	[WS_SERVE_LENIENT] = {
		.name = "lenient", .version = "0.5.15" OURS,
		.update_version = true, .load_format = true,
		.pause_modes = true, .flush_timeout = true, .checksums = true, .x_api_key = true,
		.extended_info = true, .survives = true,
	},
	[WS_SERVE_SGLANG_0_4] = {
		.name = "sglang-0.4", .version = "0.4.6" OURS, .health_generates = true,
		.tells_last_token = true,
	},
	[WS_SERVE_SGLANG_0_5] = {
		.name = "sglang-0.5", .version = "0.5.4" OURS, .update_version = true,
		.health_generates = true, .tells_last_token = true,
	},
	[WS_SERVE_SGLANG_2026] = {
		.name = "sglang-2026", .version = "0.5.15" OURS, .update_version = true,
		.load_format = true, .pause_modes = true, .flush_timeout = true, .checksums = true,
		.x_api_key = true, .extended_info = true,
	},
	[WS_SERVE_XORL_LEGACY] = {
		.name = "xorl-legacy", .version = "0.5.6" OURS, .update_version = true,
		.load_format = true, .free_kv_cache = true, .pause_modes = true, .x_api_key = true,
		.extended_info = true, .survives = true, .health_bypass = true,
		.tells_last_token = true,
	},
	[WS_SERVE_XORL] = {
		.name = "xorl", .version = "0.5.15" OURS,
		.update_version = true, .load_format = true,
		.pause_modes = true, .flush_timeout = true, .checksums = true, .x_api_key = true,
		.extended_info = true, .stuck_prepare = true,
	},
	[WS_SERVE_SESSION] = {
		.name = "session", .version = "0.5.15" OURS,
		.update_version = true, .load_format = true,
		.pause_modes = true, .flush_timeout = true, .checksums = true, .x_api_key = true,
		.extended_info = true, .needs_session = true,
	},
	[WS_SERVE_SLIME] = {
		.name = "slime", .version = "0.5.15" OURS,
		.update_version = true, .load_format = true,
		.pause_modes = true, .flush_timeout = true, .checksums = true, .x_api_key = true,
		.extended_info = true,
	},
};

const struct ws_serve_lineage_traits *ws_serve_lineage_traits(enum ws_serve_lineage lineage)
{
	return &lineages[lineage];
}

/* ---- death ---- */

/* One dies once. */
static void die_of(struct ws_serve *s, const char *why)
{
	pthread_mutex_lock(&s->lock);
	const bool first = !s->dead;
	s->dead = s->stopping = true;
	for (struct ws_serve_group *g = s->groups; g; g = g->next)
		ws_serve_group_abort(g, why);
	ws_serve_gpus_stop(s);
	pthread_cond_broadcast(&s->changed);
	pthread_mutex_unlock(&s->lock);
	if (first && s->opts.crash)
		s->opts.crash(s->opts.ctx, why);
}

bool ws_serve_is_dead(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	const bool dead = s->dead;
	pthread_mutex_unlock(&s->lock);
	return dead;
}

void ws_serve_crash(struct ws_serve_call *c, const char *fmt, ...)
{
	struct ws_serve *s = c->serve;
	char why[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(why, sizeof why, fmt, ap);
	va_end(ap);
	ws_printable(c->note.message, sizeof c->note.message, why, strlen(why));
	c->rp->drop = true;
	ws_log(s->opts.log, 1, "scheduler hit an exception: %s", why);
	die_of(s, why);
}

void ws_serve_die(struct ws_serve *s)
{
	if (s->opts.die)
		s->opts.die(s->opts.ctx);
	else if (s->opts.crash)
		die_of(s, "killed by a fault");
}
