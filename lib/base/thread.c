/* SPDX-License-Identifier: Apache-2.0 */
#include "thread.h"

#include <errno.h>
#include <signal.h>

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
