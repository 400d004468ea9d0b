/* SPDX-License-Identifier: Apache-2.0 */
/* flow.h - a ring of bytes made once and read by several consumers, each at its own place.
 *
 * One producer, which may be another thread, and any number of consumers in one thread. The slowest
 * consumer holds the producer back. The memory is mapped twice in a row, so what the ring offers is
 * always one contiguous piece. */
#ifndef WS_NET_FLOW_H
#define WS_NET_FLOW_H

#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>

struct ws_flow; /* opaque */

/* bytes is rounded up to whole pages. Without consumers what is committed is gone at once. */
int ws_flow_open(size_t bytes, unsigned n_consumers, struct ws_flow **out, struct ws_err *err);
void ws_flow_close(struct ws_flow *f); /* NULL is fine; the producer must have ended */

size_t ws_flow_room(struct ws_flow *f, void **at); /* 0: full */
/* Waits until n bytes (at most the size of the ring) have room. -1: stopped. */
int ws_flow_wait_room(struct ws_flow *f, size_t n, void **at);
void ws_flow_commit(struct ws_flow *f, size_t n);
/* The producer has failed and will commit no more. */
void ws_flow_fail(struct ws_flow *f, const struct ws_err *err);

size_t ws_flow_peek(struct ws_flow *f, unsigned consumer, const void **at);
void ws_flow_consume(struct ws_flow *f, unsigned consumer, size_t n);
void ws_flow_stop(struct ws_flow *f); /* wakes a waiting producer, which gives up */
/* What the producer failed with: -1; else 0. */
int ws_flow_failed(struct ws_flow *f, struct ws_err *err);

/* Readable after bytes were committed or the producer failed, until ws_flow_heard. */
int ws_flow_fd(const struct ws_flow *f);
void ws_flow_heard(struct ws_flow *f);

#endif
