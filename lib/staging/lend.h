/* SPDX-License-Identifier: Apache-2.0 */
/* lend.h - buckets in memory of a GPU that other processes open and read: CUDA IPC.
 *
 * It is one allocation, so that whoever reads has one handle to open, and it has three
 * parts, used in turn: while readers have bucket b, bucket b+1 is brought into the next
 * part. That part had bucket b-2, which all are done with who have been given b-1 and have
 * answered for it; whether they copy on their GPU when they answer, or a little later, is
 * nothing that we could see.
 *
 * Readers are not known here. The caller sees to it that nobody reads any longer when it
 * reserves anew or closes. One thread at a time calls all of this; another fills. */
#ifndef WS_STAGING_LEND_H
#define WS_STAGING_LEND_H

#include "cuda_driver.h"
#include "payload.h"
#include "transport_gpu.h"

enum { WS_LEND_PARTS = 3 };

struct ws_lend; /* opaque */

struct ws_lend_opts {
	struct ws_transport_gpu gpu;
	struct ws_trace *trace; /* of what is read and copied; NULL: none */
	const struct ws_log *log;
};
int ws_lend_open(const struct ws_lend_opts *opts, struct ws_lend **out, struct ws_err *err);
void ws_lend_close(struct ws_lend *l); /* NULL is fine */
/* Could it be opened? */
int ws_lend_check(const struct ws_transport_gpu *gpu, struct ws_err *err);
/* As transport.h's memory. */
void ws_lend_memory(size_t buckets, uint64_t bytes, size_t payloads, uint64_t *gpu,
                    uint64_t *pinned);

/* Room for so many buckets of at most so many bytes. What was there stays, with its handle, when
 * it is enough; else it is another one. */
int ws_lend_reserve(struct ws_lend *l, size_t buckets, uint64_t bytes, struct ws_err *err);
const unsigned char *ws_lend_handle(const struct ws_lend *l); /* of what is reserved: 64 bytes */
uint64_t ws_lend_room(const struct ws_lend *l); /* bytes of each part */
/* Will this be made there, if it is part of a payload? */
bool ws_lend_makes(const struct ws_lend *l, const struct ws_formula_out *f);
const struct ws_cuda_device *ws_lend_device(const struct ws_lend *l);

/* These come after the next that are taken, and are brought meanwhile. They must
 * stay until they are taken, or until this is called with NULL, when none come and
 * what is being brought is let go. */
void ws_lend_next(struct ws_lend *l, const struct ws_payload *payloads, size_t n);
/* Brings them, or waits until they are here: then *at is their place behind the beginning of the
 * memory. Readers have been given what was taken before, and all of them have answered. */
int ws_lend_take(struct ws_lend *l, const struct ws_payload *payloads, size_t n, ws_deadline until,
                 const struct ws_cancel *cancel, uint64_t *at, struct ws_err *err);

#endif
