/* SPDX-License-Identifier: Apache-2.0 */
/* flow.h - a ring buffer with one producer and several consumers, each at its own position.
 *
 * The producer may be another thread; the consumers share one thread. The slowest consumer
 * blocks the producer. The memory is mapped twice in a row, so every piece in the ring is
 * contiguous. */
#ifndef WS_NET_FLOW_H
#define WS_NET_FLOW_H

#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>

struct ws_flow; /* opaque */

/* Rounds bytes up to whole pages. Without consumers committed data is dropped at once. *f is NULL,
 * or the ring of an earlier use, whose producer has ended. A ring of the same size and number of
 * consumers is emptied and used again: to touch fresh memory costs as much as to fill it. After a
 * failure *f is NULL. */
int ws_flow_open(struct ws_flow **f, size_t bytes, unsigned n_consumers, struct ws_err *err);
void ws_flow_close(struct ws_flow *f); /* NULL is fine; the producer must have ended */

size_t ws_flow_room(struct ws_flow *f, void **at); /* 0: full */
/* Waits until n bytes (at most the size of the ring) are free. -1: stopped. */
int ws_flow_wait_room(struct ws_flow *f, size_t n, void **at);
void ws_flow_commit(struct ws_flow *f, size_t n);
/* Tells the consumers that the producer failed and commits no more. */
void ws_flow_fail(struct ws_flow *f, const struct ws_err *err);

size_t ws_flow_peek(struct ws_flow *f, unsigned consumer, const void **at);
void ws_flow_consume(struct ws_flow *f, unsigned consumer, size_t n);
void ws_flow_stop(struct ws_flow *f); /* wakes the producer, which then stops */
/* Returns -1 and the producer's error if it failed, else 0. */
int ws_flow_failed(struct ws_flow *f, struct ws_err *err);

/* Becomes readable when bytes are committed or the producer fails, until ws_flow_heard. */
int ws_flow_fd(const struct ws_flow *f);
void ws_flow_heard(struct ws_flow *f);

#endif
