/* SPDX-License-Identifier: Apache-2.0 */
/* local.c - starts local endpoints (the wsync-endpoint in the directory of this program, else the
 * one in $PATH) and receivers. They end with this process, also if it is killed. */
#include "bench_cmd.h"

#include "run.h"

#include "wsync/tool/str.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

extern char **environ;

const char *const local_keeps[] = { "none", "hash", "memory", NULL };

static const int64_t READY_NS = 20 * WS_NS_PER_S;

/* Our environment with this NCCL_HOSTID, made before the fork: after it, only functions that are
 * safe in signal handlers may run, because other threads may have held locks. NULL: no memory. */
static char **environment(char *host_id)
{
	static const char name[] = "NCCL_HOSTID=";
	size_t n = 0, kept = 0;
	while (environ[n])
		n++;
	char **all = calloc(n + 2, sizeof *all);
	for (size_t i = 0; all && i < n; i++)
		if (!host_id || strncmp(environ[i], name, sizeof name - 1) != 0)
			all[kept++] = environ[i];
	if (all && host_id)
		all[kept] = host_id;
	return all;
}

static _Noreturn void become(char *const *argv, char *const *env, int out, pid_t parent)
{
	prctl(PR_SET_PDEATHSIG, SIGTERM);
	if (getppid() != parent)
		_exit(1); /* the parent died before prctl took effect */
	signal(SIGINT, SIG_IGN); /* only the measuring process handles Ctrl-C and Ctrl-\ */
	signal(SIGQUIT, SIG_IGN);
	const int null = open("/dev/null", O_RDWR | O_CLOEXEC);
	dup2(out >= 0 ? out : null, STDOUT_FILENO);
	dup2(null, STDIN_FILENO);
	if (out >= 0)
		dup2(null, STDERR_FILENO);
	execvpe(argv[0], argv, env);
	_exit(127);
}

int local_spawn(struct local *l, char *const *argv, const char *host_id, int out,
                struct ws_err *err)
{
	const pid_t self = getpid();
	char id[96];
	if (l->n == LOCAL_MAX)
		return ws_err_set(err, WS_EUSAGE, "at most %d processes of our own", LOCAL_MAX);
	snprintf(id, sizeof id, "NCCL_HOSTID=%s", host_id ? host_id : "");
	char **env = environment(host_id ? id : NULL);
	if (!env)
		return ws_oom(err);
	const pid_t pid = fork();
	if (pid == 0)
		become(argv, env, out, self);
	free(env);
	if (pid < 0)
		return ws_err_errno(err, "fork");
	l->of[l->n++].pid = pid;
	return 0;
}

/* {"type":"ready","url":"http://127.0.0.1:41234"} */
static bool parse_ready(const char *text, char *url, size_t n)
{
	const char *at = strstr(text, "\"type\":\"ready\",\"url\":\"");
	if (!at)
		return false;
	at += strlen("\"type\":\"ready\",\"url\":\"");
	const size_t len = strcspn(at, "\"");
	if (at[len] != '"' || len >= n)
		return false;
	snprintf(url, n, "%.*s", (int)len, at);
	return true;
}

static int wait_ready(int fd, char *url, size_t n, struct ws_err *err)
{
	char text[1024] = "";
	size_t len = 0;
	const ws_deadline until = ws_deadline_in(READY_NS);
	while (!parse_ready(text, url, n)) {
		struct pollfd p = { .fd = fd, .events = POLLIN };
		if (ws_cancelled(&run_cancel))
			return ws_err_set(err, WS_ECANCELLED, "cancelled");
		if (ws_deadline_passed(until))
			return ws_err_set(err, WS_ETIMEOUT,
			                  "an endpoint of our own is not ready after 20 s");
		if (poll(&p, 1, 100) <= 0)
			continue;
		const ssize_t got = read(fd, text + len, sizeof text - 1 - len);
		if (got < 0 && errno == EINTR)
			continue;
		if (got <= 0) {
			ws_err_set(err, WS_ESYSTEM, "wsync-endpoint could not be started");
			return ws_err_hint(
				err,
				"it was built where libmicrohttpd is installed; or give endpoints "
				"with -e URL");
		}
		len += (size_t)got;
		text[len] = 0;
	}
	return 0;
}

static int start_one(struct local *l, const char *program, const struct bench_config *cfg,
                     struct ws_err *err)
{
	int ends[2];
	char tp[24], gpu[24];
	snprintf(tp, sizeof tp, "%llu", (unsigned long long)cfg->tp);
	snprintf(gpu, sizeof gpu, "%llu", (unsigned long long)cfg->pushing.gpu);
	const bool group = cfg->pushing.backend != WS_BACKEND_DISK;
	const char *argv[] = { program, "--listen", "127.0.0.1:0", "--json", "--tp", tp, "--keep",
		               local_keeps[cfg->keep], "--lineage",
		               cfg->stage && group ? "xorl" : "lenient", NULL, "ipc", "--gpu",
		               gpu, NULL };
	if (cfg->pushing.backend == WS_BACKEND_IPC) /* endpoints read the exporting GPU */
		argv[10] = "--backend";
	if (pipe2(ends, O_CLOEXEC))
		return ws_err_errno(err, "pipe");
	const size_t i = l->n;
	int rc = local_spawn(l, (char *const *)argv, NULL, ends[1], err);
	close(ends[1]);
	if (rc == 0) {
		l->urls[i] = l->of[i].url;
		rc = wait_ready(ends[0], l->of[i].url, sizeof l->of[i].url, err);
	}
	close(ends[0]);
	return rc;
}

int local_start(struct local *l, const struct bench_config *cfg, struct ws_err *err)
{
	char program[4096];
	if (run_beside("wsync-endpoint", program, sizeof program) || access(program, X_OK))
		snprintf(program, sizeof program, "wsync-endpoint");
	while (l->n < cfg->local)
		if (start_one(l, program, cfg, err))
			return -1;
	return 0;
}

int local_failed(struct local *l, struct ws_err *err)
{
	int status;
	for (size_t i = 0; i < l->n; i++) {
		if (l->of[i].pid == 0 || waitpid(l->of[i].pid, &status, WNOHANG) <= 0)
			continue;
		l->of[i].pid = 0; /* the process has ended */
		if (WIFEXITED(status) && WEXITSTATUS(status) == 0)
			continue;
		const int code = WIFEXITED(status) ? WEXITSTATUS(status) : 0;
		return ws_err_set(err,
		                  code >= WS_EUSAGE && code <= WS_ETIMEOUT ? (enum ws_code)code :
		                                                             WS_ESYSTEM,
		                  "receiver %zu ended with %s %d", i + 1,
		                  code ? "exit status" : "signal", code ? code : WTERMSIG(status));
	}
	return 0;
}

void local_stop(struct local *l)
{
	for (size_t i = 0; i < l->n; i++)
		if (l->of[i].pid)
			kill(l->of[i].pid, SIGTERM);
	for (size_t i = 0; i < l->n; i++) {
		int tries = 0;
		while (l->of[i].pid && waitpid(l->of[i].pid, NULL, WNOHANG) == 0) {
			poll(NULL, 0, 10);
			if (++tries == 300)
				kill(l->of[i].pid, SIGKILL);
		}
	}
	l->n = 0;
}
