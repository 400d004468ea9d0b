/* SPDX-License-Identifier: Apache-2.0 */
/* push.h - the main job: tensors from a source into the weights of running inference servers.
 *
 * A ws_push keeps the endpoints, their process group and the HTTP connections; ws_push_run
 * sends one source and may be called again (the group is kept). The phases of a run: connect,
 * plan, the check of names, init (first run only), verify (the values of the source), pause,
 * flush, transfer, verify (what the servers have), resume; ws_push_close destroys the group. A
 * value that is not finite ends the run before an endpoint is paused. Whatever fails, every
 * endpoint that the push paused is resumed within seconds, unless it has some old and some new
 * weights (ws_push_opts.on_partial). */
#ifndef WSYNC_PUSH_H
#define WSYNC_PUSH_H

#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/endpoint.h"
#include "wsync/err.h"
#include "wsync/event.h"
#include "wsync/log.h"
#include "wsync/trace.h"
#include "wsync/transform.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* AUTO is gloo. NCCL needs a GPU on our side and a build that has CUDA: WS_EDEVICE where it has
 * not. TENSOR is none: the weights go in HTTP requests, at most 1 GiB of them, in buckets of at
 * most 16 MiB, and protocol is AUTO. IPC neither: the servers are on this machine and read the
 * weights from the memory of a GPU here, which is WS_EDEVICE without one. DISK is none either:
 * the servers load a checkpoint that they can read, the source itself, or with disk_dir one
 * that is written there first. */
enum ws_backend {
	WS_BACKEND_AUTO,
	WS_BACKEND_GLOO,
	WS_BACKEND_NCCL,
	WS_BACKEND_TENSOR,
	WS_BACKEND_DISK,
	WS_BACKEND_IPC
};
enum ws_protocol {
	WS_PROTOCOL_AUTO,      /* the first of the following that all endpoints take */
	WS_PROTOCOL_UPDATE,    /* a request for each bucket: /update_weights_from_distributed */
	WS_PROTOCOL_SESSION,   /* the same between /begin_weight_update and /end_weight_update */
	WS_PROTOCOL_TWO_PHASE, /* /prepare_weights_update, broadcasts, /complete_weights_update */
	WS_PROTOCOL_RECEIVE,   /* /receive_weights: one request for everything */
	/* /receive_weights_ep_scatter: each rank is sent its own parameters */
	WS_PROTOCOL_EP_SCATTER
};
enum ws_two_phase {
	WS_TWO_PHASE_BUCKET, /* each bucket is prepared and completed by itself */
	/* all of them at once: all weights change or none, and all are in memory */
	WS_TWO_PHASE_WHOLE
};
enum ws_push_format {
	WS_PUSH_FORMAT_AUTO, WS_PUSH_FORMAT_NONE, WS_PUSH_FORMAT_FLATTENED,
	WS_PUSH_FORMAT_SAFETENSORS /* of DISK only, which takes it and AUTO */
};
enum ws_push_flush { WS_FLUSH_LAST, WS_FLUSH_NEVER, WS_FLUSH_EVERY };
enum ws_push_verify {
	/* before the first byte: has each tensor a place, and each parameter a tensor? */
	WS_VERIFY_NAMES,
	WS_VERIFY_HASH,  /* and afterwards: are the bytes there those that were sent? */
	WS_VERIFY_NONE
};
enum ws_push_transform_on {
	WS_TRANSFORM_ON_AUTO, /* the GPU, where it is sent from one */
	WS_TRANSFORM_ON_CPU,
	WS_TRANSFORM_ON_GPU   /* or not at all; what no kernel does is made on the CPU there too */
};
/* A server that a failed push leaves with some old and some new weights: */
enum ws_push_partial {
	WS_PARTIAL_PAUSE, /* stays paused, and answers nobody until a push succeeds */
	WS_PARTIAL_RESUME
};

/* Why a push that pauses and flushes like this must not be made at a server that can that; NULL: it
 * may. can NULL: nothing is known of the server yet. idle: it is known to run no request and to
 * have none waiting. no_cache: it keeps no computed prefixes, so nothing is flushed. *remedy
 * (remedy may be NULL) is what to do instead. */
const char *ws_push_refuses(const struct ws_capabilities *can, enum ws_pause_mode pause,
                            enum ws_push_flush flush, bool idle, bool no_cache,
                            const char **remedy);

/* Set by ws_push_opts_init, and what 0 stands for. */
#define WS_PUSH_BUCKET_SIZE (UINT64_C(512) << 20)
#define WS_PUSH_CONNECT_NS (10 * WS_NS_PER_S)
#define WS_PUSH_INIT_NS (600 * WS_NS_PER_S)
#define WS_PUSH_BUCKET_NS (600 * WS_NS_PER_S)
/* Set by ws_push_opts_init; 0 keeps none. */
#define WS_PUSH_DISK_KEEP 1

/* ws_push_opts_init sets all of it; callers then change what they want otherwise. Until 1.0 a
 * release may add fields and move them: compile again with the headers of the library. */
struct ws_push_opts {
	/* URLs as ws_endpoint_normalize leaves them; none: dry run only */
	const char *const *endpoints;
	size_t n_endpoints;
	enum ws_backend backend;
	enum ws_protocol protocol;
	enum ws_two_phase two_phase;
	enum ws_push_format format;
	enum ws_push_flush flush;
	enum ws_pause_mode pause;
	enum ws_push_verify verify;
	enum ws_lineage lineage;    /* of the endpoints; unknown: they are asked */
	enum ws_push_partial on_partial; /* stay paused, or resume */
	/* libnccl.so.2: a path, or a name for the loader; NULL: where it usually is */
	const char *nccl_library;
	/* or that of this Python, a program or a virtual environment; NULL: none */
	const char *nccl_from;
	unsigned gpu;               /* whose memory NCCL sends from, and IPC exports */
	/* of IPC: tell the servers the GPU's number, as they count, not its UUID, */
	bool ipc_by_ordinal;
	unsigned ipc_ordinal;       /* which is this */
	const char *master_address; /* NULL: the address this machine uses toward the endpoints */
	uint16_t master_port;       /* 0: any */
	const char *group_name;     /* NULL: wsync-<8 hex>, fresh for each group */
	uint64_t bucket_size;       /* bytes; 0: the default */
	const char *const *include, *const *exclude; /* globs over tensor names */
	size_t n_include, n_exclude;
	/* of DISK: where a checkpoint is written; NULL: the source is loaded */
	const char *disk_dir;
	/* what the servers call that directory, or the source; NULL: as we do */
	const char *disk_path;
	/* checkpoints in disk_dir that stay after a success; see push_disk.c */
	unsigned disk_keep;
	/* rules in front of the built-in ones (namemap.h); NULL: none */
	const char *map;
	const char *config;         /* config.json or its directory; NULL: the source's own */
	unsigned sharded_tp, sharded_ep; /* the source was saved by so many ranks; 0: it is whole */
	const struct ws_transform_opts *transform; /* what is done to the tensors; NULL: nothing */
	enum ws_push_transform_on transform_on;    /* and where; the same bits */
	const char *weight_version; /* NULL: not touched */
	/* no warning where endpoints have a weight version and get no other */
	bool label_stays;
	bool dry_run;               /* plan, ask the endpoints who they are, stop */
	bool list_tensors;          /* emit WS_EV_TENSOR for each planned tensor */
	const char *api_key;        /* NULL: none */
	const char *ca_file;        /* as ws_client_opts */
	/* Where locks of endpoints and records of pushes are kept (journal.h); NULL: neither.
	 * Required: what cannot be recorded is not begun; else it is warned about. */
	const char *state_dir;
	bool state_required;
	/* One of several processes that push a part each; 0 and 1: the only one. They take turns
	 * by the lock, and the last of a round alone says flush (WS_FLUSH_LAST) and weight
	 * version. Without a lock and by WS_PROTOCOL_EP_SCATTER they send at once, as ranks of
	 * the group that the first makes. */
	unsigned sender, senders;
	const char *sender_lock;    /* path of the lock file; NULL: none */
	/* Which round a sender belongs to, the same for all senders of one step; NULL: the
	 * weight version. Senders of one group that name different rounds are WS_EUSAGE,
	 * before an endpoint is paused. */
	const char *round;
	/* for another push at the same endpoints to end; 0: WS_EREFUSED at once */
	int64_t lock_wait_ns;
	/* How this push is repeated, for the record: wsync-push in that directory with these
	 * options, which begin with "--" and leave out endpoints and sources. NULL: not at all. */
	const char *again_directory;
	const char *const *again_args;
	size_t n_again_args;
	int64_t connect_ns, init_ns, bucket_ns; /* 0: the defaults */
	int64_t timeout_ns;         /* of one run; 0: none */
	struct ws_sink sink;
	const struct ws_log *log;
	struct ws_trace *trace;     /* what ran when is recorded there; NULL: nowhere */
	const struct ws_cancel *cancel;
	/* Called by a thread of the push when the one that runs it hangs in a file system, three
	 * seconds after a deadline has passed or the push was cancelled. By then the group is
	 * destroyed and the endpoints that are whole are resumed. *end is the result of the run
	 * and *err its error. The function must end the process, because the thread of the push
	 * comes back late or never. NULL: such a push waits. */
	void (*hung)(void *ctx, const struct ws_ev_end *end, const struct ws_err *err);
	void *hung_ctx;
};

void ws_push_opts_init(struct ws_push_opts *opts);

struct ws_push; /* opaque; one thread */

/* What opts points to must outlive the push. No endpoint is spoken to yet. */
int ws_push_open(const struct ws_push_opts *opts, struct ws_push **out, struct ws_err *err);

struct ws_push_source {
	const char *const *paths;   /* several paths are one checkpoint (ws_source_open) */
	size_t n_paths;
	const char *weight_version; /* NULL: the one of the options */
	/* enum ws_memory: what the endpoints have released. Their weights are woken after the
	 * pause, the rest when all weights are there. WS_MEMORY_RECORDED: at each endpoint what
	 * earlier runs, or the records of earlier pushes, have left released. Anything else must
	 * agree with these, else nothing is done. */
	unsigned asleep;
};

/* Emits WS_EV_PLAN, _ENDPOINT, _BUCKET ...; the outcome is in *result, whose strings and
 * arrays live until the next run or close. -1 when any endpoint was not brought to the
 * new weights; *err then says the first cause, and its code is the exit code: WS_EPARTIAL
 * when some endpoints were. */
int ws_push_run(struct ws_push *p, const struct ws_push_source *source, struct ws_ev_end *result,
                struct ws_err *err);

/* What the last run made of source->asleep. The next source then says:
 *   WS_ASLEEP_RECORDED  WS_MEMORY_RECORDED
 *   WS_ASLEEP_REFUSED   what is released; this needs another push
 *   WS_ASLEEP_PENDING   the same: the run failed before it was recorded
 *   WS_ASLEEP_CONTRADICTED  what is released, or WS_MEMORY_RECORDED if the record is right
 *                           that contradicts it */
enum ws_asleep { WS_ASLEEP_PENDING, WS_ASLEEP_REFUSED, WS_ASLEEP_RECORDED, WS_ASLEEP_CONTRADICTED };
enum ws_asleep ws_push_asleep(const struct ws_push *p);

/* Destroys the group at the endpoints and here; what that took is added to result->ns and
 * total_ns. */
void ws_push_finish(struct ws_push *p, struct ws_ev_end *result);
void ws_push_close(struct ws_push *p); /* NULL is fine; finishes first where that was not done */

#ifdef __cplusplus
}
#endif
#endif
