/* SPDX-License-Identifier: Apache-2.0 */
/* serve_lineage.c - the names of lineages, and how an emulated server dies.
 *
 * An uncaught exception in a server's scheduler ends the whole server: the scheduler signals its
 * parent, which kills every process. Then all connections close at once without an answer, and
 * the port is closed. */
#include "serve_lineage.h"

#include "serve_call.h"

#include "wsync/tool/str.h"
#include "wsync/version.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

/* the local part of the version identifies wsync-endpoint */
#define OURS "+wsync." WSYNC_VERSION

const struct ws_serve_lineage_names ws_serve_lineages[WS_SERVE_N_LINEAGES] = {
	[WS_SERVE_LENIENT] = { "lenient", "0.5.15" OURS },
	[WS_SERVE_SGLANG_0_4] = { "sglang-0.4", "0.4.6" OURS },
	[WS_SERVE_SGLANG_0_5] = { "sglang-0.5", "0.5.4" OURS },
	[WS_SERVE_SGLANG_2026] = { "sglang-2026", "0.5.15" OURS },
	[WS_SERVE_XORL_LEGACY] = { "xorl-legacy", "0.5.6" OURS },
	[WS_SERVE_XORL] = { "xorl", "0.5.15" OURS },
	[WS_SERVE_SESSION] = { "session", "0.5.23" OURS },
	[WS_SERVE_SLIME] = { "slime", "0.5.15" OURS },
	[WS_SERVE_VLLM_0_20] = { "vllm-0.20", "0.20.2" OURS },
	[WS_SERVE_VLLM_0_24] = { "vllm-0.24", "0.24.0" OURS },
	[WS_SERVE_VLLM_0_27] = { "vllm-0.27", "0.27.1" OURS },
	[WS_SERVE_VLLM_0_33] = { "vllm-0.33", "0.33.0" OURS },
};

/* ---- death ---- */

/* Reports the crash only once. */
static void die_of(struct ws_serve *s, const char *why)
{
	if (!ws_serve_halt(s, true, why) && s->opts.crash)
		s->opts.crash(s->opts.ctx, why);
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
