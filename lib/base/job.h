/* SPDX-License-Identifier: Apache-2.0 */
/* job.h - threads of the library; blocking calls in such a thread, one at a time, with a descriptor
 * that says when a call is over; the same work on many items in several threads. */
#ifndef WS_BASE_JOB_H
#define WS_BASE_JOB_H

#include "wsync/cancel.h"
#include "wsync/err.h"

#include <pthread.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>

/* Starts run(arg) in a thread of its own, which the caller joins or detaches. On failure *thread is
 * undefined and nothing runs.
 *
 * The thread blocks all signals except those of a fault. The kernel hands a signal to any thread
 * that does not block it, and only the program knows which of its threads a signal must wake. A
 * fault always goes to the thread that caused it: if that blocked it, the process would die before
 * the handler that says why. */
int ws_thread_start(pthread_t *thread, void *(*run)(void *), void *arg, struct ws_err *err);

/* The first call starts the thread, which serves all later calls: a push has one for each bucket,
 * and a new thread for each costs more than a small bucket. */
struct ws_job {
	int fd;       /* eventfd: readable when the call has returned; -1: not initialised */
	bool running; /* a call was started and not waited for yet */
	bool has_thread, ending;
	pthread_t thread;
	sem_t go;     /* posted for a call, and for the end of the thread */
	atomic_bool over;
	int (*fn)(void *arg, struct ws_err *err);
	void *arg;
	int rc;
	struct ws_err err;
};

int ws_job_init(struct ws_job *j, struct ws_err *err);
void ws_job_fini(struct ws_job *j); /* waits for a running call, and ends the thread */
/* The last call must have been waited for. */
int ws_job_start(struct ws_job *j, int (*fn)(void *, struct ws_err *), void *arg,
                 struct ws_err *err);
bool ws_job_over(const struct ws_job *j); /* the call has returned, or none runs */
/* Waits for the call and returns its result; 0 if none was started. */
int ws_job_wait(struct ws_job *j, struct ws_err *err);

/* ---- many items ---- */

enum { WS_PARALLEL_THREADS = 16 };

/* Does the same to each of n items in a few threads, while the caller waits for `job`. The threads
 * share a counter, so a large item delays only one of them. All zero: not begun. */
struct ws_parallel {
	/* Called for each item once. A failure stops all threads. */
	int (*fn)(void *ctx, size_t item, struct ws_err *err);
	void *ctx;
	size_t n;
	size_t next;          /* atomic: the item to take next */
	unsigned threads;
	struct ws_cancel stop; /* of the remaining items; fn may look at it, too */
	struct ws_job job;
	bool begun;
};

/* threads 0: one for each processor, at most 8. */
int ws_parallel_begin(struct ws_parallel *p, size_t n, unsigned threads,
                      int (*fn)(void *, size_t, struct ws_err *), void *ctx, struct ws_err *err);
void ws_parallel_end(struct ws_parallel *p); /* cancels unfinished work; not begun is fine */

#endif
