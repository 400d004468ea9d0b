/* SPDX-License-Identifier: Apache-2.0 */
/* bench_transport.h - shared by both ends of a measured broadcast: the keys (described in
 * bench_transport.c) and the data planes. */
#ifndef WS_BENCH_TRANSPORT_H
#define WS_BENCH_TRANSPORT_H

#include "gloo.h"
#include "bench_gpu.h"
#include "nccl_library.h"
#include "bench_samples.h"
#include "store.h"

#define BENCH_CONFIG "wsync-bench/config"
/* The group of the measured transport. The store takes keys with its name only, as torch's have it;
 * BENCH_GROUP_ID is what torch calls the NCCL id. */
#define BENCH_GROUP "wsync-bench"
#define BENCH_RANK "/wsync-bench/wsync-bench/rank"
#define BENCH_DONE "/wsync-bench/wsync-bench/done/%llu/%u"
#define BENCH_GLOO "/wsync-bench/wsync-bench/gloo/"
#define BENCH_BARE "/wsync-bench/wsync-bench/bare"
#define BENCH_GROUP_ID "/wsync-bench/wsync-bench//cuda//0"
#define BENCH_SIZE_MAX (UINT64_C(1) << 40)
enum { BENCH_COUNT_MAX = 4096, BENCH_WORLD_MAX = 4097 };

/* Returns the number of broadcasts in a round. Both ends compute it in this way. */
static inline uint64_t bench_count_of(uint64_t size, unsigned count, uint64_t total)
{
	return total ? total / size + (total % size != 0) : count;
}

/* ---- bench_transport.c: rank 0 ---- */

struct bench_root {
	const struct ws_bench_opts *opts;
	const struct ws_bench_transport *what;
	const struct bench_plane *plane;
	void *of_plane;       /* state of the plane; NULL: not opened */
	unsigned world;
	int file;             /* holds a pattern that is sent repeatedly */
	uint64_t pattern;     /* bytes of the pattern */
	uint64_t *bytes;      /* the pattern, mapped */
	struct ws_store *store;
	struct ws_buf answer;
	uint64_t size;        /* bytes of a broadcast in the current round */
	unsigned count;       /* broadcasts in the current round */
	uint64_t round;       /* number of the round, from 0 over all sizes */
};

/* A data plane that broadcasts bytes to all receivers. */
struct bench_plane {
	const char *name;
	const char *against;
	/* Called after the receivers are started. close follows even if open fails. */
	int (*open)(struct bench_root *r, ws_deadline until, struct ws_err *err);
	/* Broadcasts the payload `count` times in a row. */
	int (*send)(struct bench_root *r, const struct ws_payload *p, unsigned count,
	            ws_deadline until, struct ws_err *err);
	/* plain is the reference: sends r->size bytes `count` times in a row. rounds: all receivers
	 * take part in it, also those on other machines. */
	bool rounds;
	int (*plain)(struct bench_root *r, unsigned count, int64_t *ns, ws_deadline until,
	             struct ws_err *err);
	void (*close)(struct bench_root *r);
};
extern const struct bench_plane bench_plane_gloo, bench_plane_nccl;

/* Returns -1 with the error of a local receiver that has failed, else 0. */
int bench_root_ask(struct bench_root *r, struct ws_err *err);

/* ---- bench_comms.c: communicators on the measured GPU ---- */

struct bench_comms {
	struct bench_gpu g;
	struct ws_nccl *nccl;
	struct ws_gpu_event *done;
	unsigned rank, world;    /* set before a join */
	ws_devptr at;            /* the buffer of every round */
	struct ws_comm *pushed;  /* of the measured transport; receivers only */
	struct ws_comm *bare;    /* of the reference */
};
/* bytes: the largest size. The caller calls bench_comms_close even after a failure. */
int bench_comms_open(struct bench_comms *c, const struct ws_bench_gpu *which, uint64_t bytes,
                     const struct ws_cancel *cancel, struct ws_err *err);
/* Joins the communicator of this id as c->rank of c->world. */
int bench_comms_join(struct bench_comms *c, struct ws_comm **out, const void *id,
                     ws_deadline until, struct ws_err *err);
/* Broadcasts `bytes` bytes `count` times, and waits for the last. Aborts comm on failure. */
int bench_comms_broadcast(struct bench_comms *c, struct ws_comm *comm, uint64_t bytes,
                          unsigned count, ws_deadline until, struct ws_err *err);
void bench_comms_close(struct bench_comms *c, ws_deadline until);

#endif
