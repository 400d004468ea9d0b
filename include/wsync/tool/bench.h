/* SPDX-License-Identifier: Apache-2.0 */
/* bench.h - measures each stage of a push, and whole pushes.
 *
 * A measurement is a row: the time of every sample in order, and that of a reference, which runs
 * in turns with it, so that a machine that becomes slower is slower for both. ws_bench_sum and
 * ws_bench_ratio compute all figures (median, p99, ratio) from these. Warm-ups are not samples.
 * Checks of results lie outside the timed part of a sample. Units: bytes and ns; a rate is bytes
 * divided by time, GB is 10^9 bytes. */
#ifndef WSYNC_BENCH_H
#define WSYNC_BENCH_H

#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/endpoint.h"
#include "wsync/err.h"
#include "wsync/log.h"
#include "wsync/push.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Valid during the call that delivers it. */
struct ws_bench_row {
	const char *stage;         /* "kernels", "load", "control", "transport", "push", "sweep" */
	const char *name;          /* the work: "fp8 128x128 xorl" */
	const char *detail;        /* how, if that varies; "" */
	uint64_t bytes;            /* of one sample; 0: only its time counts */
	const int64_t *ns;         /* [n] */
	size_t n;
	unsigned count;            /* repetitions in a row, ns is their mean; 0 is 1 */
	const char *against;       /* the reference; NULL: none, and against_ is not set */
	uint64_t against_bytes;
	const int64_t *against_ns; /* [n]: sample i was taken beside ns[i] */
	int64_t errors;            /* wrong bytes; -1: not checked */
};

struct ws_bench_sum {
	size_t n;
	/* p99 by nearest rank: of fewer than 100 samples it is the max */
	int64_t min, median, p99, max;
	double spread; /* width of the middle half (of fewer than 4: of all), over the median */
};
/* n > 0 */
void ws_bench_sum(const int64_t *ns, size_t n, struct ws_bench_sum *out);
/* With a greater spread the median is not reliable. */
#define WS_BENCH_NOISY 0.25

struct ws_bench_ratio { double median, min, max; };
/* Rate of the row over rate of its reference in each pair: above 1 the row is faster. Rows without
 * bytes compare times. Returns false without a reference. */
bool ws_bench_ratio(const struct ws_bench_row *row, struct ws_bench_ratio *out);

struct ws_bench_sink {
	/* After the first sample, warm-ups counted: rows will follow. May be called more than
	 * once; may be NULL. */
	void (*begin)(void *ctx);
	void (*row)(void *ctx, const struct ws_bench_row *row);
	/* Before each turn, warm-ups counted; may be NULL. */
	void (*turn)(void *ctx, const char *name, unsigned done, unsigned of);
	void *ctx;
};

/* A measurement that is cancelled or fails delivers rows of the samples it has. */
struct ws_bench_opts {
	unsigned samples, warmups; /* samples > 0 */
	/* start no more samples of a row after this time, but take at least one; 0: no limit. Not
	 * for broadcasts, whose receivers know the number of samples in advance. */
	int64_t most_ns;
	bool check; /* check results */
	struct ws_bench_sink sink;
	const struct ws_log *log;
	const struct ws_cancel *cancel;
};

enum { WS_BENCH_SAMPLES_MAX = 100000 };

/* ---- GPUs ---- */

/* Zeroed: the first GPU, and the libraries that the loader finds. */
struct ws_bench_gpu {
	unsigned device;
	const char *driver; /* libcuda */
	const char *nccl;   /* libnccl; NULL: where it usually is */
};
struct ws_bench_machine {
	char gpu[128];             /* its name, printable */
	unsigned gpus;             /* of the machine */
	int major, minor;          /* compute capability */
	int multiprocessors;
	uint64_t memory;           /* bytes */
	int cuda;                  /* CUDA version of the driver: 13000 is 13.0 */
	char nccl[32], nccl_path[4096]; /* "2.28.9", and its file */
};
/* WS_EDEVICE without a GPU. nccl: load NCCL too. */
int ws_bench_machine(const struct ws_bench_gpu *which, bool nccl, struct ws_bench_machine *out,
                     struct ws_err *err);
/* The libnccl.so.2 that the torch of this Python loads. */
enum { WS_BENCH_NCCL_PATH = 4096 };
int ws_bench_find_nccl(const char *python, int64_t timeout_ns, const struct ws_cancel *cancel,
                       char path[WS_BENCH_NCCL_PATH], struct ws_err *err);

/* ---- kernels: checksums and transforms, in memory, on one thread ---- */

/* size: bytes of a kernel's input. Every kernel is compared with a memcpy of as many. The bytes of
 * a row are the minimum traffic: each byte read or written counts once; memcpy counts twice its
 * size. check compares SIMD with plain C. */
int ws_bench_kernels(const struct ws_bench_opts *opts, uint64_t size, struct ws_err *err);
/* The same on a GPU, in its memory and by its clock, compared with a device copy of as many bytes.
 * check is not supported. */
int ws_bench_kernels_gpu(const struct ws_bench_opts *opts, const struct ws_bench_gpu *on,
                         uint64_t size, struct ws_err *err);

/* ---- load: a source into this process ---- */

struct ws_bench_load {
	const char *const *paths; /* a checkpoint, as for a push */
	size_t n_paths;
	const struct ws_transform_opts *transform; /* NULL: tensors as they are */
	uint64_t bucket_size;     /* 0: 64 MiB */
	bool cold;                /* the files are dropped from the page cache before each sample */
	/* read on into this GPU's memory; NULL: into host memory */
	const struct ws_bench_gpu *to;
	enum ws_push_transform_on transform_on; /* with `to`: on that GPU, or on the CPU */
	uint64_t most;            /* read at most this many bytes, from the first tensor; 0: all */
};
/* Reads every tensor once, in the order of a push, through a buffer; compared with read(2)
 * of the same files, if there are files. With a GPU also: copies as many bytes of pinned
 * memory to it; and loads every tensor into its memory, as a push that sends from it does,
 * compared with that copy. */
int ws_bench_load(const struct ws_bench_opts *opts, const struct ws_bench_load *load,
                  struct ws_err *err);

/* ---- control: requests ---- */

struct ws_bench_control {
	const char *const *urls;
	size_t n;
	const char *api_key, *ca_file; /* NULL: none; the system's */
	int64_t timeout_ns;            /* of one request */
};
/* A request that changes nothing, to the first endpoint and to all of them at once: on kept
 * connections, to the first on new ones too. */
int ws_bench_control(const struct ws_bench_opts *opts, const struct ws_bench_control *what,
                     struct ws_err *err);

/* ---- transport: broadcasts between processes that do nothing else ---- */

struct ws_bench_transport {
	enum ws_backend backend;   /* AUTO: GLOO; or NCCL, which broadcasts from and to GPUs */
	struct ws_bench_gpu gpu;   /* of NCCL: ours */
	unsigned receivers;        /* local ones, which `start` starts */
	unsigned remote;           /* receivers on other machines that call ws_bench_receive */
	/* starts `receivers` processes that call ws_bench_receive with this address */
	int (*start)(void *ctx, const char *host, uint16_t port, struct ws_err *err);
	/* -1 if one of them has failed; may be NULL */
	int (*failed)(void *ctx, struct ws_err *err);
	void *ctx;
	const char *host;          /* our address; NULL: 127.0.0.1 */
	uint16_t port;             /* of the store; 0: any */
	const uint64_t *sizes;     /* bytes of a bucket, each a row of its own */
	size_t n_sizes;
	/* broadcasts in a row; a sample is their mean time; 0: 1 */
	unsigned count;
	/* broadcast this many bytes in a row, instead of count; 0: count */
	uint64_t total;
	int64_t timeout_ns;        /* for each row of broadcasts, and to form the group */
};
/* Measures from the first byte until every receiver has reported the last byte. check:
 * compares their hashes. Gloo is compared with one plain TCP connection on the loopback
 * interface, if all receivers are local; NCCL with a bare loop of ncclBroadcast from GPU
 * memory to the same receivers. */
int ws_bench_transport(const struct ws_bench_opts *opts, const struct ws_bench_transport *t,
                       struct ws_err *err);
struct ws_bench_receive {
	const char *master;
	uint16_t port;
	/* our own address; NULL: the one that this machine uses toward the master */
	const char *host;
	struct ws_bench_gpu gpu;   /* where NCCL is measured */
	int64_t timeout_ns;
	const struct ws_log *log;
	const struct ws_cancel *cancel;
};
/* Runs a receiver of another process's ws_bench_transport, until that ends. */
int ws_bench_receive(const struct ws_bench_receive *what, struct ws_err *err);

/* ---- push: the whole job ---- */

struct ws_bench_push {
	const struct ws_push_opts *push; /* its sink is not used */
	const char *const *paths;
	size_t n_paths;
	bool alone; /* in turns with the pushes, measure the source alone too */
	bool keep;  /* one group for all samples, as wsync-push --stdin keeps it */
};
struct ws_bench_bound {
	int64_t total_ns;    /* medians: of whole pushes, */
	int64_t supply_ns;   /* of reading and making the tensors alone; 0: not measured */
	int64_t together_ns; /* and of transfer and apply of whole pushes */
	uint64_t bytes, wire_bytes;
	size_t buckets;
	/* The phase that takes longest: "source", "wire", "apply", "verify" or "control"; NULL:
	 * nothing was measured. */
	const char *bound;
	double overlap;      /* supply_ns over together_ns; 0: unknown */
};
/* Rows: total, each phase, and the source alone. */
int ws_bench_push(const struct ws_bench_opts *opts, const struct ws_bench_push *b,
                  struct ws_bench_bound *out, struct ws_err *err);

/* How long the slowest server stands still: in a push, and while it loads what was staged before
 * (ws_push_opts.stage). The pushes need a state_dir. Rows: update, stage (its duration; no
 * server is paused), and complete, compared with update. Of b: push, paths, n_paths. */
int ws_bench_staged(const struct ws_bench_opts *opts, const struct ws_bench_push *b,
                    struct ws_err *err);

/* ---- sweep: one push in several ways ---- */

struct ws_bench_way {
	const char *name, *detail;       /* of its row */
	const struct ws_push_opts *push; /* its sink is not used */
	/* filled in: */
	int64_t total_ns; /* median; 0: not measured */
	bool fastest;     /* its median is the least */
	bool alike;       /* in at least one of four turns it was no slower than the fastest */
};
struct ws_bench_sweep {
	struct ws_bench_way *ways;
	size_t n_ways;
	const char *const *paths;
	size_t n_paths;
	/* All pushes of a way share a group: one way after the other, without ratios. */
	bool keep;
};
/* Runs the ways in turns; then delivers a row for each way, compared with the fastest. */
int ws_bench_sweep(const struct ws_bench_opts *opts, const struct ws_bench_sweep *s,
                   struct ws_err *err);

/* ---- plan: estimates without a push ---- */

/* Rates in bytes per second; 0: no limit. Counts of 0 are 1. */
struct ws_bench_topology {
	uint64_t senders;   /* processes that send a share each, on links of their own, */
	bool at_once;       /* all at once, and not in turns (wsync-push --lock) */
	uint64_t endpoints; /* servers, */
	uint64_t ranks;     /* ranks of each, */
	uint64_t nics;      /* and links of each, which share its received bytes */
	double link;        /* one-way rate of each link of a sender or endpoint */
	double source;      /* read rate of one sender */
	double make;        /* transform rate of one sender, in bytes read */
	double apply;       /* load rate of a rank, in bytes received */
	int64_t bucket_ns;  /* fixed time of each bucket */
	int64_t fixed_ns;   /* fixed time of the push or each turn: connect, pause, flush, resume */
	bool tree;          /* rank 0 sends once to each child (gloo), not once (NCCL's ring) */
	bool scatter;       /* each rank is sent only its own part */
	bool serial;        /* stages follow each other */
};
struct ws_bench_estimate {
	uint64_t read_bytes, wire_bytes; /* of one copy: read, and as sent */
	unsigned copies;                 /* that leave one sender's link */
	size_t buckets;
	bool turns;                      /* senders take turns */
	int64_t read_ns, make_ns, send_ns, receive_ns, apply_ns, control_ns;
	int64_t floor_ns;    /* every byte once out of a sender and once into each endpoint */
	int64_t expected_ns; /* the longest stage, one bucket's share of the others, and control;
	                      * or the sum */
	const char *bound;   /* "source", "making tensors", "the senders' links", "the receivers'
	                      * links", "loading" or "requests" */
};
/* Estimates a push that reads `in` bytes and sends `out` bytes. */
void ws_bench_estimate(const struct ws_bench_topology *t, uint64_t in, uint64_t out, size_t buckets,
                       struct ws_bench_estimate *e);

#ifdef __cplusplus
}
#endif
#endif
