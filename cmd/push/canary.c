/* SPDX-License-Identifier: Apache-2.0 */
#include "canary.h"

#include "child.h"
#include "wsync/tool/str.h"

#include <sys/wait.h>

static int judge(const struct child_end *how, bool by_timeout, int64_t limit, struct ws_err *err)
{
	char time[32];
	ws_format_duration(time, sizeof time, limit);
	if (how->late && by_timeout)
		ws_err_set(err, WS_ETIMEOUT, "the canary check did not end before {timeout_ns}");
	else if (how->late)
		ws_err_set(err, WS_EMISMATCH, "the canary check did not end within %s", time);
	else if (WIFSIGNALED(how->status))
		ws_err_set(err, WS_EMISMATCH, "the canary check was ended by signal %d",
		           WTERMSIG(how->status));
	else if (WEXITSTATUS(how->status))
		ws_err_set(err, WS_EMISMATCH, "the canary check failed: exit status %d",
		           WEXITSTATUS(how->status));
	else
		return 0;
	return ws_err_hint(err, "the canaries have the new weights; to go back, push the old ones "
	                        "to them with {allow_older}");
}

int canary_check(void *ctx, const char *const *urls, size_t n, const char *version,
                 ws_deadline until, struct ws_err *err)
{
	const struct canary *c = ctx;
	const int64_t limit = c->timeout_ns ? c->timeout_ns : 600 * WS_NS_PER_S;
	const ws_deadline own = ws_deadline_in(limit);
	struct child_end how = { 0 };
	return child_run_shell(c->command, urls, n, version, ws_deadline_min(own, until), &how,
	                       err) ?
	               -1 :
	               judge(&how, until < own, limit, err);
}
