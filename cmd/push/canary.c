/* SPDX-License-Identifier: Apache-2.0 */
#include "canary.h"

#include "child.h"
#include "run.h"

#include "wsync/tool/buf.h"
#include "wsync/tool/str.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>

extern char **environ;

static const int64_t GRACE_NS = 5 * WS_NS_PER_S;

/* Our environment, with these two variables replaced. To be freed; NULL: out of memory. */
static char **environment(char *endpoints, char *version)
{
	size_t n = 0, kept = 0;
	while (environ[n])
		n++;
	char **all = calloc(n + 3, sizeof *all);
	for (size_t i = 0; all && i < n; i++)
		if (strncmp(environ[i], "WSYNC_ENDPOINTS=", 16) &&
		    strncmp(environ[i], "WSYNC_VERSION=", 14))
			all[kept++] = environ[i];
	if (all) {
		all[kept++] = endpoints;
		all[kept] = version;
	}
	return all;
}

static int judge(const struct child_end *how, bool by_timeout, int64_t limit, struct ws_err *err)
{
	char time[32];
	ws_format_duration(time, sizeof time, limit);
	if (ws_cancelled(&run_cancel))
		return ws_err_set(err, WS_ECANCELLED, "cancelled");
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
	struct ws_buf endpoints, label;
	char *words[] = { (char[]){ "sh" }, (char[]){ "-c" }, (char *)(uintptr_t)c->command, NULL };
	const int64_t limit = c->timeout_ns ? c->timeout_ns : 600 * WS_NS_PER_S;
	const ws_deadline own = ws_deadline_in(limit);
	struct child_end how = { 0 };
	ws_buf_init(&endpoints, 0);
	ws_buf_init(&label, 0);
	ws_buf_puts(&endpoints, "WSYNC_ENDPOINTS=");
	for (size_t i = 0; i < n; i++)
		ws_buf_printf(&endpoints, "%s%s", i ? " " : "", urls[i]);
	ws_buf_printf(&label, "WSYNC_VERSION=%s", version ? version : "");
	char **env = environment(endpoints.data, label.data);
	int rc = env && !ws_buf_check(&endpoints, "the environment", err) &&
	                         !ws_buf_check(&label, "the environment", err) ?
	                 0 :
	                 ws_oom(err);
	const struct child child = { .program = "/bin/sh", .words = words, .environment = env,
		                     .to_stderr = true, .group = true,
		                     .until = ws_deadline_min(own, until), .grace_ns = GRACE_NS };
	if (!rc)
		rc = child_run(&child, &how, err);
	if (!rc)
		rc = judge(&how, until < own, limit, err);
	free(env);
	ws_buf_free(&endpoints);
	ws_buf_free(&label);
	return rc;
}
