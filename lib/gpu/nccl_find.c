/* SPDX-License-Identifier: Apache-2.0 */
/* nccl_find.c - runs a Python interpreter to find the NCCL of its torch.
 *
 * The script does not import torch, which would take seconds and a GPU: its wheels install NCCL
 * as the package nvidia.nccl, or as a file beside torch's. The output of the interpreter is not
 * trusted. */
#include "nccl_library.h"

#include "wsync/tool/str.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

/* -c makes the current directory the first place of modules, which may be somebody else's: it is
 * left out before the first module that is not built in. */
static const char program[] =
	"import sys\n"
	"sys.path[:] = [p for p in sys.path if p]\n"
	"import importlib.util, os\n"
	"for name in 'nvidia.nccl', 'torch':\n"
	"    try:\n"
	"        spec = importlib.util.find_spec(name)\n"
	"    except (ImportError, ValueError):\n"
	"        continue\n"
	"    for place in spec and spec.submodule_search_locations or ():\n"
	"        file = os.path.join(os.path.abspath(place), 'lib', 'libnccl.so.2')\n"
	"        if os.path.exists(file):\n"
	"            print(file)\n"
	"            raise SystemExit\n";

/* A directory counts as a virtual environment. */
static int interpreter_of(const char *python, char path[WS_NCCL_PATH_MAX], struct ws_err *err)
{
	struct stat st;
	const bool is_dir = stat(python, &st) == 0 && S_ISDIR(st.st_mode);
	const int n = snprintf(path, WS_NCCL_PATH_MAX, "%s%s", python, is_dir ? "/bin/python" : "");
	if (n <= 0 || n >= WS_NCCL_PATH_MAX)
		return ws_err_set(err, WS_EUSAGE, "the name of a Python is empty or too long");
	return 0;
}

static int start(const char *path, int out, pid_t *pid)
{
	char *const argv[] = { (char *)(uintptr_t)path, (char *)(uintptr_t)"-c",
		               (char *)(uintptr_t)program, NULL };
	posix_spawn_file_actions_t actions;
	posix_spawnattr_t attr;
	sigset_t none;
	sigemptyset(&none); /* this thread may block signals; the interpreter must not */
	if (posix_spawn_file_actions_init(&actions))
		return ENOMEM;
	posix_spawnattr_init(&attr);
	posix_spawnattr_setsigmask(&attr, &none);
	posix_spawnattr_setpgroup(&attr, 0); /* so that its children can be killed with it */
	posix_spawnattr_setflags(&attr, POSIX_SPAWN_SETSIGMASK | POSIX_SPAWN_SETPGROUP);
	posix_spawn_file_actions_addopen(&actions, 0, "/dev/null", O_RDONLY, 0);
	posix_spawn_file_actions_adddup2(&actions, out, 1);
	posix_spawn_file_actions_addopen(&actions, 2, "/dev/null", O_WRONLY, 0);
	const int rc = posix_spawnp(pid, path, &actions, &attr, argv, environ);
	posix_spawnattr_destroy(&attr);
	posix_spawn_file_actions_destroy(&actions);
	return rc;
}

/* Reads until the other end is closed; drops bytes beyond `room`. */
static int read_all(int fd, char *to, size_t room, size_t *n, ws_deadline until,
                    const struct ws_cancel *cancel, struct ws_err *err)
{
	for (*n = 0;;) {
		struct pollfd p[2] = { { .fd = fd, .events = POLLIN },
			               { .fd = ws_cancel_fd(cancel), .events = POLLIN } };
		if (ws_cancelled(cancel))
			return ws_err_set(err, WS_ECANCELLED, "it was cancelled");
		if (ws_deadline_passed(until))
			return ws_err_set(err, WS_ETIMEOUT, "it took too long");
		if (poll(p, 2, ws_deadline_poll_ms(until, 1000)) <= 0 || !p[0].revents)
			continue;
		char drop[256];
		const bool full = *n == room;
		const ssize_t got = read(fd, full ? drop : to + *n, full ? sizeof drop : room - *n);
		if (got == 0)
			return 0;
		if (got < 0 && errno != EINTR)
			return ws_err_errno(err, "reading what it says");
		*n += got > 0 && !full ? (size_t)got : 0;
	}
}

static int run(const char *path, char *said, size_t room, size_t *n, ws_deadline until,
               const struct ws_cancel *cancel, struct ws_err *err)
{
	int ends[2], status = 0;
	pid_t pid;
	if (pipe2(ends, O_CLOEXEC))
		return ws_err_errno(err, "pipe");
	const int failed = start(path, ends[1], &pid);
	close(ends[1]);
	if (failed) {
		close(ends[0]);
		errno = failed;
		ws_err_errno(err, "starting it");
		if (err)
			err->code = WS_EUSAGE;
		return -1;
	}
	const int rc = read_all(ends[0], said, room, n, until, cancel, err);
	close(ends[0]);
	kill(-pid, SIGKILL); /* its output is complete or no longer wanted */
	while (waitpid(pid, &status, 0) < 0 && errno == EINTR)
		continue;
	return rc;
}

int ws_nccl_find(const char *python, ws_deadline until, const struct ws_cancel *cancel,
                 char path[WS_NCCL_PATH_MAX], struct ws_err *err)
{
	char interpreter[WS_NCCL_PATH_MAX], name[256], said[WS_NCCL_PATH_MAX];
	size_t n = 0;
	if (interpreter_of(python, interpreter, err))
		return -1;
	ws_printable(name, sizeof name, interpreter, strlen(interpreter));
	if (run(interpreter, said, sizeof said - 1, &n, until, cancel, err))
		return ws_err_wrap(err, "asking %s for its NCCL", name);
	said[n] = '\0';
	said[strcspn(said, "\n")] = '\0';
	if (said[0] != '/' || strlen(said) == sizeof said - 1 || access(said, R_OK)) {
		ws_err_set(err, WS_EDEVICE,
		           "%s has no libnccl.so.2: neither nvidia.nccl nor torch brings one",
		           name);
		return ws_err_hint(
			err, "name the interpreter of the environment that the servers run in");
	}
	memcpy(path, said, strlen(said) + 1);
	return 0;
}
