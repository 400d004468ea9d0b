/* SPDX-License-Identifier: Apache-2.0 */
/* transport_bench.h - what the ends of a measured broadcast share: the keys (transport.c has the list),
 * the receiver, and the plain connection that a broadcast is held against. */
#ifndef WS_BENCH_TRANSPORT_BENCH_H
#define WS_BENCH_TRANSPORT_BENCH_H

#include "gloo.h"
#include "samples.h"

#include <pthread.h>

#define BENCH_CONFIG "wsync-bench/config"
#define BENCH_RANK "wsync-bench/rank"
#define BENCH_DONE "wsync-bench/done/%llu/%u"
#define BENCH_GLOO "wsync-bench/gloo/"
#define BENCH_SIZE_MAX (UINT64_C(1) << 40)

/* ---- receiver.c ---- */

struct bench_receiver {
	const char *master; /* host of the store */
	uint16_t port;
	const char *host;   /* our own address */
	int64_t timeout_ns;
	const struct ws_log *log;
	const struct ws_cancel *cancel;

	/* private */
	pthread_t thread;
	bool over, failed;  /* atomic */
	struct ws_err err;
};

int bench_receiver_run(struct bench_receiver *r, struct ws_err *err); /* here */
int bench_receiver_start(struct bench_receiver *r, struct ws_err *err); /* in a thread */
int bench_receiver_join(struct bench_receiver *r, struct ws_err *err);
/* Has it failed by now? Then *err says why. */
bool bench_receiver_failed(struct bench_receiver *r, struct ws_err *err);

/* ---- wire.c: one connection on the loopback interface into a thread that throws it away ---- */

struct bench_wire {
	int listener, from, to; /* -1: none */
	bool running;
	pthread_t thread;
	char *buffer;           /* the thread's */
};

void bench_wire_init(struct bench_wire *w);
int bench_wire_open(struct bench_wire *w, ws_deadline until, struct ws_err *err);
/* size bytes, a file of `pattern` bytes again and again, by sendfile; until the other end has told that
 * it has all of them. */
int bench_wire_send(struct bench_wire *w, int file, uint64_t pattern, uint64_t size, ws_deadline until,
                    const struct ws_cancel *cancel, int64_t *ns, struct ws_err *err);
void bench_wire_close(struct bench_wire *w);

#endif
