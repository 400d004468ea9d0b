/* SPDX-License-Identifier: Apache-2.0 */
/* test_job.c - which signals a thread of the library takes. */
#include "job.h"
#include "test.h"

#include <signal.h>

static void *look_at_mask(void *mask)
{
	pthread_sigmask(SIG_SETMASK, NULL, mask);
	return mask;
}

TEST(a_thread_takes_no_signal_but_its_own_faults)
{
	pthread_t thread;
	sigset_t mask;
	void *ended;
	assert_int_equal(ws_thread_start(&thread, look_at_mask, &mask, NULL), 0);
	assert_int_equal(pthread_join(thread, &ended), 0);
	assert_ptr_equal(ended, &mask);
	assert_true(sigismember(&mask, SIGINT) && sigismember(&mask, SIGTERM) &&
	            sigismember(&mask, SIGPIPE) && sigismember(&mask, SIGCHLD) &&
	            sigismember(&mask, SIGWINCH));
	assert_false(sigismember(&mask, SIGSEGV) || sigismember(&mask, SIGBUS) ||
	             sigismember(&mask, SIGFPE) || sigismember(&mask, SIGILL));
}

TEST(the_starter_keeps_its_mask)
{
	pthread_t thread;
	sigset_t usr1, before, mask;
	sigemptyset(&usr1);
	sigaddset(&usr1, SIGUSR1);
	pthread_sigmask(SIG_BLOCK, &usr1, &before);
	assert_int_equal(ws_thread_start(&thread, look_at_mask, &mask, NULL), 0);
	assert_int_equal(pthread_join(thread, NULL), 0);
	look_at_mask(&mask);
	assert_true(sigismember(&mask, SIGUSR1));
	assert_false(sigismember(&mask, SIGINT));
	pthread_sigmask(SIG_SETMASK, &before, NULL);
}

RUN_TESTS(NULL, NULL)
