/* SPDX-License-Identifier: Apache-2.0 */
/* job.h - one blocking call in a thread of its own, with a descriptor that says when it is over. */
#ifndef WS_BASE_JOB_H
#define WS_BASE_JOB_H

#include "wsync/err.h"

#include <pthread.h>
#include <stdbool.h>

struct ws_job {
	int fd; /* eventfd: readable when the call has returned; -1: not initialised */
	bool running;
	pthread_t thread;
	int (*fn)(void *arg, struct ws_err *err);
	void *arg;
	int rc;
	struct ws_err err;
};

int ws_job_init(struct ws_job *j, struct ws_err *err);
void ws_job_fini(struct ws_job *j); /* waits for a running call */
int ws_job_start(struct ws_job *j, int (*fn)(void *, struct ws_err *), void *arg,
                 struct ws_err *err);
bool ws_job_over(const struct ws_job *j); /* the call has returned, or none runs */
/* Joins and hands over the outcome; 0 when nothing ran. */
int ws_job_wait(struct ws_job *j, struct ws_err *err);

#endif
