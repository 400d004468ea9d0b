/* SPDX-License-Identifier: Apache-2.0 */
/* test_job.c - which signals a thread of the library takes; the calls of a job. */
#include "job.h"
#include "test.h"

#include <poll.h>
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

/* ---- a job ----------------------------------------------------------------------------------- */

struct call {
	int rc;
	pthread_t ran_in;
};

static int fail_or_succeed(void *arg, struct ws_err *err)
{
	struct call *c = arg;
	c->ran_in = pthread_self();
	return c->rc ? ws_err_set(err, WS_EREFUSED, "no") : 0;
}

static bool is_readable(int fd)
{
	return poll(&(struct pollfd){ .fd = fd, .events = POLLIN }, 1, 0) > 0;
}

TEST(calls_of_a_job_share_a_thread_and_have_outcomes_of_their_own)
{
	struct ws_job job;
	struct ws_err err = WS_ERR_INIT;
	struct call calls[] = { { .rc = 0 }, { .rc = -1 }, { .rc = 0 }, { .rc = -1 } };
	assert_int_equal(ws_job_init(&job, &err), 0);
	assert_true(ws_job_over(&job));
	assert_int_equal(ws_job_wait(&job, &err), 0);
	for (size_t i = 0; i < sizeof calls / sizeof calls[0]; i++) {
		err = (struct ws_err)WS_ERR_INIT;
		assert_int_equal(ws_job_start(&job, fail_or_succeed, &calls[i], &err), 0);
		assert_true(poll(&(struct pollfd){ .fd = job.fd, .events = POLLIN }, 1, -1) > 0);
		assert_true(ws_job_over(&job));
		assert_int_equal(ws_job_wait(&job, &err), calls[i].rc);
		assert_int_equal(err.code, calls[i].rc ? WS_EREFUSED : WS_OK);
		assert_false(is_readable(job.fd));
		assert_true(pthread_equal(calls[i].ran_in, calls[0].ran_in));
		assert_false(pthread_equal(calls[i].ran_in, pthread_self()));
	}
	ws_job_fini(&job);
	ws_job_fini(&job);
}

static int wait_for_go(void *go, struct ws_err *err)
{
	(void)err;
	return sem_wait(go);
}

TEST(a_job_is_not_over_while_its_call_runs_and_fini_waits_for_it)
{
	struct ws_job job;
	struct call second = { .rc = 0 };
	sem_t go;
	sem_init(&go, 0, 0);
	assert_int_equal(ws_job_init(&job, NULL), 0);
	assert_int_equal(ws_job_start(&job, wait_for_go, &go, NULL), 0);
	assert_false(ws_job_over(&job));
	assert_false(is_readable(job.fd));
	sem_post(&go);
	assert_int_equal(ws_job_wait(&job, NULL), 0);
	assert_int_equal(ws_job_start(&job, fail_or_succeed, &second, NULL), 0);
	ws_job_fini(&job);
	assert_false(pthread_equal(second.ran_in, (pthread_t){ 0 }));
	sem_destroy(&go);
}

RUN_TESTS(NULL, NULL)
