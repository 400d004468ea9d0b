/* SPDX-License-Identifier: Apache-2.0 */
#include "run.h"

#include "nccl.h"
#include "outlet.h"
#include "ui.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

struct ws_cancel run_cancel = WS_CANCEL_INIT;

static const char *program = "wsync";
static volatile sig_atomic_t received;

/* timeout(1) signals its child and then its whole group, so the child gets one request
 * twice. So do programs whose terminal closes (SIGHUP and SIGTERM). Only a later signal
 * is a second request. */
enum { SAME_WISH_MS = 300 };

static long long now_ms(void)
{
	struct timespec t = { 0, 0 };
	clock_gettime(CLOCK_MONOTONIC, &t); /* async-signal-safe, says signal-safety(7) */
	return t.tv_sec * 1000LL + t.tv_nsec / 1000000;
}

/* Timers and limits of CPU time repeat their signals by themselves: a second
 * one is not a user's request. */
static bool repeats_itself(int sig)
{
	return sig == SIGALRM || sig == SIGVTALRM || sig == SIGPROF || sig == SIGXCPU;
}

/* All signals that it handles are blocked while it runs. */
static void on_signal(int sig)
{
	static long long first_ms;
	const int saved = errno;
	if (!received) {
		first_ms = now_ms();
		received = sig;
		outlet_interrupt();
		ws_cancel_set(&run_cancel);
	} else if (!repeats_itself(sig) && now_ms() - first_ms >= SAME_WISH_MS) {
		signal(sig, SIG_DFL);
		raise(sig); /* blocked until this handler returns, then it kills */
	}
	errno = saved;
}

/* assert(3) has printed its message to our stderr, which is a queue: write that first. */
static void on_abort(int sig)
{
	outlet_settle(200);
	signal(sig, SIG_DFL);
	raise(sig);
}

/* Opens them in the wrong direction on purpose: a program started with >&- must detect that its
 * output is lost, and must not write its results into the first socket it opens. */
static void open_missing_descriptors(void)
{
	for (int fd = 0; fd <= 2; fd++) {
		if (fcntl(fd, F_GETFD) >= 0 || errno != EBADF)
			continue;
		if (open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd)
			_exit(WS_ESYSTEM);
	}
}

/* False if the signal is ignored (nohup) or has a handler (a profiler, a sanitizer). */
static bool has_default(int sig)
{
	struct sigaction now;
	return sigaction(sig, NULL, &now) == 0 && !(now.sa_flags & SA_SIGINFO) &&
	       now.sa_handler == SIG_DFL;
}

/* True for signals that end a process by default, also real-time signals, with which some
 * supervisors stop services. False for program faults, after which no cleanup is possible. */
static bool ends_us(int sig)
{
	static const int others[] = {
		SIGKILL, SIGSEGV, SIGBUS, SIGFPE,   SIGILL,  SIGABRT, SIGTRAP, SIGSYS,  SIGPIPE,
		SIGXFSZ, SIGCHLD, SIGURG, SIGWINCH, SIGCONT, SIGSTOP, SIGTSTP, SIGTTIN, SIGTTOU,
	};
	for (size_t i = 0; i < sizeof others / sizeof others[0]; i++)
		if (sig == others[i])
			return false;
	return has_default(sig);
}

static void install_handlers(void)
{
	struct sigaction sa = { .sa_handler = on_signal };
	sigemptyset(&sa.sa_mask);
	for (int sig = 1; sig <= SIGRTMAX; sig++)
		if (ends_us(sig))
			sigaddset(&sa.sa_mask, sig);
	for (int sig = 1; sig <= SIGRTMAX; sig++)
		if (sigismember(&sa.sa_mask, sig) == 1)
			sigaction(sig, &sa, NULL);
	/* write(2) then fails with EPIPE or EFBIG, which is reported; the signals
	 * would leave servers paused. */
	signal(SIGPIPE, SIG_IGN);
	signal(SIGXFSZ, SIG_IGN);
	if (has_default(SIGABRT))
		signal(SIGABRT, on_abort);
}

/* The usual soft limit is for programs that use select(2), and too low for connections to a
 * few hundred endpoints. The hard limit is the administrator's choice. */
static void raise_file_limit(void)
{
	enum { PLENTY = 65536 };
	struct rlimit limit;
	if (getrlimit(RLIMIT_NOFILE, &limit) || limit.rlim_cur >= PLENTY)
		return;
	limit.rlim_cur = limit.rlim_max < PLENTY ? limit.rlim_max : PLENTY;
	setrlimit(RLIMIT_NOFILE, &limit);
}

void run_start(const char *name)
{
	program = name;
	open_missing_descriptors();
	raise_file_limit();
	outlet_start(name);
	/* Without an eventfd the flag still works; waits then notice it at their next turn. */
	ws_cancel_init(&run_cancel, NULL);
	install_handlers();
}

int run_exit(int status)
{
	nccl_finish();
	if (outlet_finish() && status == 0)
		status = WS_ESYSTEM;
	if (received) {
		signal(received, SIG_DFL);
		raise(received);
	}
	return status;
}

/* For the next error. */
static char *explanation, *explained_hint;

void run_explain_error(const char *paragraph, const char *hint)
{
	free(explanation);
	free(explained_hint);
	explanation = strdup(paragraph);
	explained_hint = strdup(hint);
}

static void print_hint(const struct ws_err *err)
{
	if (explanation)
		fputs(explanation, stderr);
	if (err->hint[0] &&
	    !(explanation && explained_hint && strcmp(err->hint, explained_hint) == 0))
		fprintf(stderr, "hint: %s\n", ui_text(ui_words(err->hint)));
	free(explanation);
	free(explained_hint);
	explanation = explained_hint = NULL;
}

void run_print_error(const struct ws_err *err)
{
	/* Most messages name their endpoint; those of the data plane may not know it. */
	const bool add = err->endpoint[0] && !strstr(err->msg, err->endpoint);
	fprintf(stderr, "%s: %s%s%s\n", program, add ? ui_text(err->endpoint) : "", add ? ": " : "",
	        ui_text(ui_words(err->msg)));
	print_hint(err);
}

int run_finish(const struct ws_err *err)
{
	if (!err || err->code == WS_OK)
		return run_exit(0);
	if (err->msg[0])
		run_print_error(err);
	return run_exit((int)err->code);
}

void run_quit(const struct ws_err *err)
{
	sigset_t none;
	sigemptyset(&none);
	/* so that this thread can die by a received signal */
	pthread_sigmask(SIG_SETMASK, &none, NULL);
	_exit(run_finish(err));
}

int run_beside(const char *name, char *path, size_t n)
{
	const ssize_t len = readlink("/proc/self/exe", path, n);
	errno = len < 0 ? errno : ENAMETOOLONG;
	if (len < 0 || (size_t)len >= n)
		return -1;
	path[len] = 0;
	char *slash = strrchr(path, '/');
	const size_t at = slash ? (size_t)(slash + 1 - path) : 0;
	return snprintf(path + at, n - at, "%s", name) < (int)(n - at) ? 0 : -1;
}

/* Writes wsync's directory under $XDG_STATE_HOME or ~/.local/state; nothing if
 * neither variable is usable. */
static void put_state_dir(struct ws_buf *path)
{
	const char *state = getenv("XDG_STATE_HOME");
	const char *home = getenv("HOME");
	if (state && *state == '/')
		ws_buf_printf(path, "%s/wsync", state);
	else if (home && *home == '/')
		ws_buf_printf(path, "%s/.local/state/wsync", home);
}

int run_state_dir(const char *given, struct ws_buf *path, struct ws_err *err)
{
	if (given && !*given)
		return ws_err_set(err, WS_EUSAGE, "--state-dir: an empty name");
	if (given)
		ws_buf_puts(path, given);
	else
		put_state_dir(path);
	if (!path->failed && !path->len) {
		ws_err_set(err, WS_EUSAGE, "no place for the state directory: HOME is not set");
		return ws_err_hint(err, "name it with --state-dir DIR");
	}
	return ws_buf_check(path, "the state directory's path", err);
}

int run_registry_path(const char *given, struct ws_buf *path, struct ws_err *err)
{
	const char *registry = given ? given : getenv("WSYNC_REGISTRY");
	if (registry && *registry) {
		ws_buf_puts(path, registry);
	} else {
		put_state_dir(path);
		if (path->len)
			ws_buf_puts(path, "/registry.json");
	}
	if (!path->failed && !path->len) {
		ws_err_set(err, WS_EUSAGE, "no place for the registry: HOME is not set");
		return ws_err_hint(err, "name the file with --registry FILE or WSYNC_REGISTRY");
	}
	return ws_buf_check(path, "the registry's path", err);
}

static const char *given_or(const char *given, const char *variable)
{
	const char *file = given ? given : getenv(variable);
	return file && *file ? file : NULL;
}

const char *run_api_key_file(const char *given)
{
	return given_or(given, "WSYNC_API_KEY_FILE");
}

const char *run_admin_api_key_file(const char *given)
{
	return given_or(given, "WSYNC_ADMIN_API_KEY_FILE");
}

const char *run_ca_file(const char *given)
{
	return given_or(given, "WSYNC_CA_FILE");
}
