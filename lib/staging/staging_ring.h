/* SPDX-License-Identifier: Apache-2.0 */
/* staging_ring.h - a ring of slots of pinned memory. Several threads read into the slots, which are
 * copied to the GPU in the order of the requests.
 *
 * A read from the page cache is a copy by one processor, several times slower than the copy to a
 * GPU, so there are several readers. One thread at a time, in order, calls the fill of computed
 * spans, as payload.h requires. If several requests fail, the first in order is reported. */
#ifndef WS_STAGING_STAGING_RING_H
#define WS_STAGING_STAGING_RING_H

#include "cuda_driver.h"
#include "payload.h"
#include "wsync/trace.h"

enum { WS_RING_SLOTS = 16, WS_RING_SLOT = 4 << 20, WS_RING_READERS = 8 };

struct ws_ring; /* opaque */

int ws_ring_open(struct ws_gpu *gpu, struct ws_ring **out, struct ws_err *err);
/* Call it when the copies out of the ring are done, or were awaited long enough. NULL is fine. */
void ws_ring_close(struct ws_ring *r);

/* Requests a read of bytes [at, at+n) of a span, n at most a slot. *asked false: no slot is
 * free. */
int ws_ring_request(struct ws_ring *r, const struct ws_span *span, uint64_t at, size_t n,
                    bool *asked, struct ws_err *err);
/* Waits until the copy out of the next slot to request is done. */
int ws_ring_wait_free(struct ws_ring *r, ws_deadline until, const struct ws_cancel *cancel,
                      struct ws_err *err);
/* The number of requests whose copy is not queued yet. */
unsigned ws_ring_pending(const struct ws_ring *r);
/* Waits until the oldest request is read, and queues its copy to dst in the stream. */
int ws_ring_copy_next(struct ws_ring *r, ws_devptr dst, struct ws_stream *s, ws_deadline until,
                      const struct ws_cancel *cancel, struct ws_err *err);
/* Drops all pending requests; afterwards no reader uses the spans. It waits without a timeout for
 * reads in progress: the kernel writes into the slot, and the span's owner may free it next. So a
 * file system that does not answer (NFS whose server is gone) blocks this call like any other
 * reader. Then only the end of the process frees the memory: a second SIGINT or SIGTERM ends the
 * programs at once. */
void ws_ring_cancel(struct ws_ring *r);

void ws_ring_trace(struct ws_ring *r, struct ws_trace *trace); /* NULL: none */
/* Ends the trace's spans of finished copies. Any thread that has the GPU current. */
void ws_ring_poll_trace(struct ws_ring *r);

#endif
