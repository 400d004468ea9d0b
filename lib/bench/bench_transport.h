/* SPDX-License-Identifier: Apache-2.0 */
/* bench_transport.h - what the ends of a measured broadcast share: the keys (listed in
 * bench_transport.c) and the data planes. */
#ifndef WS_BENCH_TRANSPORT_H
#define WS_BENCH_TRANSPORT_H

#include "gloo.h"
#include "bench_gpu.h"
#include "nccl_library.h"
#include "bench_samples.h"
#include "store.h"

#define BENCH_CONFIG "wsync-bench/config"
#define BENCH_RANK "wsync-bench/rank"
#define BENCH_DONE "wsync-bench/done/%llu/%u"
#define BENCH_GLOO "wsync-bench/gloo/"
#define BENCH_BARE "wsync-bench/bare"
/* Of the transport that pushes use: its id is where torch looks for it. */
#define BENCH_GROUP "wsync-bench"
#define BENCH_GROUP_ID "/wsync-bench/wsync-bench//cuda//0"
#define BENCH_SIZE_MAX (UINT64_C(1) << 40)
enum { BENCH_COUNT_MAX = 4096, BENCH_WORLD_MAX = 4097 };

/* Broadcasts in a row of that size; both ends know by this rule. */
static inline uint64_t bench_count_of(uint64_t size, unsigned count, uint64_t total)
{
	return total ? total / size + (total % size != 0) : count;
}

/* ---- bench_transport.c: rank 0 ---- */

struct bench_root {
	const struct ws_bench_opts *opts;
	const struct ws_bench_transport *what;
	const struct bench_plane *plane;
	void *of_plane;       /* the plane's own; NULL: not opened */
	unsigned world;
	int file;             /* a pattern that is sent again and again, */
	uint64_t pattern;     /* of so many bytes, */
	uint64_t *bytes;      /* which are these */
	struct ws_store *store;
	struct ws_buf answer;
	uint64_t size;        /* of the round at hand */
	unsigned count;       /* broadcasts of it in a row */
	uint64_t round;       /* from 0, over all sizes */
};

/* One way for bytes to all receivers. */
struct bench_plane {
	const char *name;
	const char *against;
	/* All receivers are on their way. Close follows, whatever becomes of it. */
	int (*open)(struct bench_root *r, ws_deadline until, struct ws_err *err);
	/* The payload, so many times in a row, to all. */
	int (*send)(struct bench_root *r, const struct ws_payload *p, unsigned count,
	            ws_deadline until, struct ws_err *err);
	/* The reference: r->size bytes, so many times in a row. rounds: the receivers take part,
	 * also those of other machines. */
	bool rounds;
	int (*plain)(struct bench_root *r, unsigned count, int64_t *ns, ws_deadline until,
	             struct ws_err *err);
	void (*close)(struct bench_root *r);
};
extern const struct bench_plane bench_plane_gloo, bench_plane_nccl;

/* -1 and why, if one of our receivers has failed. */
int bench_root_ask(struct bench_root *r, struct ws_err *err);

/* ---- bench_comms.c: communicators on a GPU that is measured ---- */

struct bench_comms {
	struct bench_gpu g;
	struct ws_nccl *nccl;
	struct ws_gpu_event *done;
	unsigned rank, world;    /* set before a join */
	ws_devptr at;            /* the buffer of every round */
	struct ws_comm *pushed;  /* receivers: of the transport that is measured */
	struct ws_comm *bare;
};
/* To be closed in any case; bytes: of the largest round. */
int bench_comms_open(struct bench_comms *c, const struct ws_bench_gpu *which, uint64_t bytes,
                     const struct ws_cancel *cancel, struct ws_err *err);
/* Joins the communicator of this id as c->rank of c->world. */
int bench_comms_join(struct bench_comms *c, struct ws_comm **out, const void *id,
                     ws_deadline until, struct ws_err *err);
/* So many broadcasts of so many bytes, until the last is over. */
int bench_comms_broadcast(struct bench_comms *c, struct ws_comm *comm, uint64_t bytes,
                          unsigned count, ws_deadline until, struct ws_err *err);
void bench_comms_close(struct bench_comms *c, ws_deadline until);

#endif
