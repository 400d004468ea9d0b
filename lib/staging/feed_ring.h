/* SPDX-License-Identifier: Apache-2.0 */
/* feed_ring.h - slots of pinned memory: several threads read into them, and they are copied to
 * the GPU in the order in which they were asked for.
 *
 * Reading a file that is in the page cache is a copy by a processor, several times slower
 * than the one to a GPU; so several of them read. Spans that are made are filled by one
 * thread at a time and in order, as payload.h has it. The first piece in that order that
 * cannot be had is the one that is told of. */
#ifndef WS_STAGING_FEED_RING_H
#define WS_STAGING_FEED_RING_H

#include "cuda_driver.h"
#include "payload.h"
#include "wsync/trace.h"

enum { WS_RING_SLOTS = 16, WS_RING_SLOT = 4 << 20, WS_RING_READERS = 8 };

struct ws_ring; /* opaque */

int ws_ring_open(struct ws_gpu *gpu, struct ws_ring **out, struct ws_err *err);
/* What was copied out of it is over, or will be soon. NULL is fine. */
void ws_ring_close(struct ws_ring *r);

/* Bytes [at, at+n) of a span, n at most a slot: read by and by. *asked false: no slot is free. */
int ws_ring_ask(struct ws_ring *r, const struct ws_span *span, uint64_t at, size_t n, bool *asked,
                struct ws_err *err);
/* Waits for a slot that is free, where all are being copied. */
int ws_ring_room(struct ws_ring *r, ws_deadline until, const struct ws_cancel *cancel,
                 struct ws_err *err);
/* How many were asked for and not taken. */
unsigned ws_ring_waiting(const struct ws_ring *r);
/* Waits until the oldest of these is read, and has it copied to dst in the stream's turn. */
int ws_ring_take(struct ws_ring *r, ws_devptr dst, struct ws_stream *s, ws_deadline until,
                 const struct ws_cancel *cancel, struct ws_err *err);
/* Forgets what was asked for and not taken; afterwards nobody reads the spans any more. What is
 * being read is waited for without an end: the kernel writes into the slot and the span's owner
 * may go, so a file system that does not answer (NFS whose server is gone) holds this up as it
 * does whoever else reads from it. Only the end of the process takes its memory from it: a
 * second SIGINT or SIGTERM ends the programs at once. */
void ws_ring_forget(struct ws_ring *r);

void ws_ring_trace(struct ws_ring *r, struct ws_trace *trace); /* NULL: none */
/* For the trace: which copies are over. Any thread with the GPU current. */
void ws_ring_notice(struct ws_ring *r);

#endif
