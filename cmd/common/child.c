/* SPDX-License-Identifier: Apache-2.0 */
#include "child.h"

#include "outlet.h"
#include "run.h"

#include "wsync/tool/buf.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

static int start(const struct child *c, pid_t *pid, struct ws_err *err)
{
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	posix_spawn_file_actions_init(&actions);
	posix_spawnattr_init(&attr);
	if (c->directory)
		posix_spawn_file_actions_addchdir_np(&actions, c->directory);
	posix_spawn_file_actions_addopen(&actions, STDIN_FILENO, "/dev/null", O_RDONLY, 0);
	if (c->mute)
		posix_spawn_file_actions_addopen(&actions, STDOUT_FILENO, "/dev/null", O_WRONLY, 0);
	if (c->to_stderr)
		posix_spawn_file_actions_adddup2(&actions, STDERR_FILENO, STDOUT_FILENO);
	/* We ignore these two (run.c). What our caller ignores, as nohup does, stays so. */
	sigset_t none, ours;
	sigemptyset(&none);
	sigemptyset(&ours);
	sigaddset(&ours, SIGPIPE);
	sigaddset(&ours, SIGXFSZ);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setsigdefault(&attr, &ours);
	posix_spawnattr_setflags(&attr, (short)(POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETSIGDEF |
	                                        (c->group ? POSIX_SPAWN_SETPGROUP : 0)));
	errno = posix_spawn(pid, c->program, &actions, &attr, c->words,
	                    c->environment ? c->environment : environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	return errno ? ws_err_errno(err, "run %s%s%s", c->program, c->directory ? " in " : "",
	                            c->directory ? c->directory : "") :
	               0;
}

static bool tell(const struct child *c, pid_t pid, int signal)
{
	return kill(c->group ? -pid : pid, signal) == 0;
}

/* Waits until the group of a child that got SIGTERM has ended, and kills it at the deadline `end`.
 * A zombie counts as a member, and may stay for ever where no process reaps it. So the wait ends a
 * second after SIGKILL. Once kill(2) fails, the group is gone, and its number may be reused. */
static void end_group(pid_t pid, ws_deadline end)
{
	bool killed = false;
	while (kill(-pid, 0) == 0 && !(killed && ws_deadline_passed(end))) {
		if (!killed && ws_deadline_passed(end)) {
			killed = kill(-pid, SIGKILL) == 0;
			end = ws_deadline_in(WS_NS_PER_S);
		}
		poll(NULL, 0, 20);
	}
}

static int wait_for(const struct child *c, pid_t pid, struct child_end *how)
{
	struct pollfd p = { .fd = ws_cancel_fd(&run_cancel), .events = POLLIN };
	ws_deadline end = c->until == WS_FOREVER ? WS_FOREVER : c->until + c->grace_ns;
	bool told = false;
	pid_t got;
	how->late = false;
	while ((got = waitpid(pid, &how->status, WNOHANG)) == 0 || (got < 0 && errno == EINTR)) {
		if (ws_cancelled(&run_cancel) && !told) {
			told = tell(c, pid, SIGTERM);
			if (c->group)
				end = ws_deadline_min(end, ws_deadline_in(c->grace_ns));
		}
		if (c->group && !how->late && ws_deadline_passed(c->until))
			how->late = tell(c, pid, SIGTERM);
		if (ws_deadline_passed(end))
			tell(c, pid, SIGKILL);
		poll(&p, told ? 0 : 1, 20);
	}
	if (c->group && (told || how->late))
		end_group(pid, end);
	return got == pid ? 0 : -1;
}

int child_run(const struct child *c, struct child_end *how, struct ws_err *err)
{
	pid_t pid = 0;
	outlet_settle(1000); /* it may print to the same terminal */
	if (start(c, &pid, err))
		return -1;
	return wait_for(c, pid, how) ? ws_err_errno(err, "wait for %s", c->program) : 0;
}

/* ---- a command of the user ---- */

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

int child_run_shell(const char *command, const char *const *urls, size_t n, const char *version,
                    ws_deadline until, struct child_end *how, struct ws_err *err)
{
	struct ws_buf endpoints, label;
	char *words[] = { (char[]){ "sh" }, (char[]){ "-c" }, (char *)(uintptr_t)command, NULL };
	ws_buf_init(&endpoints, 0);
	ws_buf_init(&label, 0);
	ws_buf_puts(&endpoints, "WSYNC_ENDPOINTS=");
	for (size_t i = 0; i < n; i++)
		ws_buf_printf(&endpoints, "%s%s", i ? " " : "", urls[i]);
	ws_buf_printf(&label, "WSYNC_VERSION=%s", version ? version : "");
	char **env = environment(endpoints.data, label.data);
	const struct child child = { .program = "/bin/sh", .words = words, .environment = env,
		                     .to_stderr = true, .group = true, .until = until,
		                     .grace_ns = 5 * WS_NS_PER_S };
	int rc = ws_buf_check(&endpoints, "the environment", err) ||
	                         ws_buf_check(&label, "the environment", err) ?
	                 -1 :
	                 0;
	if (!rc && !env)
		rc = ws_oom(err);
	if (!rc)
		rc = child_run(&child, how, err);
	if (!rc && ws_cancelled(&run_cancel))
		rc = ws_err_set(err, WS_ECANCELLED, "cancelled");
	free(env);
	ws_buf_free(&endpoints);
	ws_buf_free(&label);
	return rc;
}
