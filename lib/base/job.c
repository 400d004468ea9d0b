/* SPDX-License-Identifier: Apache-2.0 */
#include "job.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdint.h>
#include <sys/eventfd.h>
#include <unistd.h>

int ws_thread_start(pthread_t *thread, void *(*run)(void *), void *arg, struct ws_err *err)
{
	static const int faults[] = { SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGTRAP, SIGSYS };
	sigset_t mask, before;
	sigfillset(&mask);
	for (size_t i = 0; i < sizeof faults / sizeof faults[0]; i++)
		sigdelset(&mask, faults[i]);
	/* A thread begins with the mask of the one that makes it. */
	pthread_sigmask(SIG_BLOCK, &mask, &before);
	const int rc = pthread_create(thread, NULL, run, arg);
	pthread_sigmask(SIG_SETMASK, &before, NULL);
	if (!rc)
		return 0;
	errno = rc;
	return ws_err_errno(err, "start a thread");
}

int ws_job_init(struct ws_job *j, struct ws_err *err)
{
	*j = (struct ws_job){ .fd = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK) };
	if (j->fd < 0)
		return ws_err_errno(err, "eventfd");
	sem_init(&j->go, 0, 0); /* cannot fail with these arguments */
	return 0;
}

static void *run_calls(void *arg)
{
	struct ws_job *j = arg;
	const uint64_t one = 1;
	for (;;) {
		while (sem_wait(&j->go))
			continue;
		if (j->ending)
			return NULL;
		j->rc = j->fn(j->arg, &j->err);
		atomic_store(&j->over, true);
		while (write(j->fd, &one, sizeof one) < 0 && errno == EINTR)
			continue;
	}
}

int ws_job_start(struct ws_job *j, int (*fn)(void *, struct ws_err *), void *arg,
                 struct ws_err *err)
{
	j->fn = fn;
	j->arg = arg;
	j->rc = 0;
	j->err = (struct ws_err)WS_ERR_INIT;
	atomic_store(&j->over, false);
	if (!j->has_thread && ws_thread_start(&j->thread, run_calls, j, err))
		return -1;
	j->has_thread = j->running = true;
	sem_post(&j->go);
	return 0;
}

bool ws_job_over(const struct ws_job *j)
{
	return !j->running || atomic_load(&j->over);
}

int ws_job_wait(struct ws_job *j, struct ws_err *err)
{
	if (!j->running)
		return 0;
	/* Read the count also if the call is over: fd must not stay readable for the next call. */
	uint64_t count;
	while (read(j->fd, &count, sizeof count) < 0)
		poll(&(struct pollfd){ .fd = j->fd, .events = POLLIN }, 1, -1);
	j->running = false;
	if (j->rc && err)
		*err = j->err;
	return j->rc;
}

void ws_job_fini(struct ws_job *j)
{
	if (j->fd < 0)
		return;
	ws_job_wait(j, NULL);
	if (j->has_thread) {
		j->ending = true;
		sem_post(&j->go);
		pthread_join(j->thread, NULL);
	}
	sem_destroy(&j->go);
	close(j->fd);
	j->fd = -1;
}
