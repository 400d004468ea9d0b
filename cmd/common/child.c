/* SPDX-License-Identifier: Apache-2.0 */
#include "child.h"

#include "outlet.h"
#include "run.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
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
