/* SPDX-License-Identifier: Apache-2.0 */
/* push.h - the main job: tensors from a source into the weights of running inference servers.
 *
 * A ws_push keeps the endpoints, their process group and the HTTP connections; ws_push_run
 * sends one source and may be called again (the group is kept). The phases of a run: connect,
 * plan, the check of names, init (first run only), verify (the values of the source), pause,
 * flush, transfer, verify (the servers' weights), resume; ws_push_close destroys the group. A
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

/* AUTO is gloo. NCCL needs a GPU here and a build with CUDA, else WS_EDEVICE. The others form no
 * process group. TENSOR sends the weights in HTTP requests, at most 1 GiB in buckets of at most
 * 16 MiB; protocol must be AUTO. IPC: servers on this machine read the weights from the memory of
 * a GPU here; WS_EDEVICE without a GPU. DISK: the servers load a checkpoint that they can read:
 * the source itself, or with disk_dir a checkpoint that is first written there. */
enum ws_backend {
	WS_BACKEND_AUTO,
	WS_BACKEND_GLOO,
	WS_BACKEND_NCCL,
	WS_BACKEND_TENSOR,
	WS_BACKEND_DISK,
	WS_BACKEND_IPC
};
enum ws_protocol {
	WS_PROTOCOL_AUTO,      /* the first of the following that all endpoints support */
	WS_PROTOCOL_UPDATE,    /* a request for each bucket: /update_weights_from_distributed */
	WS_PROTOCOL_SESSION,   /* the same between /begin_weight_update and /end_weight_update */
	WS_PROTOCOL_TWO_PHASE, /* /prepare_weights_update, broadcasts, /complete_weights_update */
	WS_PROTOCOL_RECEIVE,   /* /receive_weights: one request for everything */
	WS_PROTOCOL_VLLM,      /* vLLM's: a request for each bucket, /update_weights */
	/* /receive_weights_ep_scatter: sends each rank its own parameters */
	WS_PROTOCOL_EP_SCATTER
};
enum ws_two_phase {
	WS_TWO_PHASE_BUCKET, /* prepares and completes each bucket separately */
	/* all buckets at once, and all in memory: either all weights change or none */
	WS_TWO_PHASE_WHOLE
};
enum ws_push_format {
	WS_PUSH_FORMAT_AUTO, WS_PUSH_FORMAT_NONE, WS_PUSH_FORMAT_FLATTENED,
	WS_PUSH_FORMAT_SAFETENSORS /* only for DISK, which accepts only this and AUTO */
};
enum ws_push_flush { WS_FLUSH_LAST, WS_FLUSH_NEVER, WS_FLUSH_EVERY };
enum ws_push_verify {
	/* before the first byte: every tensor has a parameter, every parameter its tensors */
	WS_VERIFY_NAMES,
	WS_VERIFY_HASH,  /* also afterwards: the servers have the bytes that were sent */
	WS_VERIFY_NONE
};
enum ws_push_transform_on {
	WS_TRANSFORM_ON_AUTO, /* the GPU that sends, else the CPU */
	WS_TRANSFORM_ON_CPU,
	WS_TRANSFORM_ON_GPU   /* fails if no GPU sends; the CPU does work that has no kernel */
};
enum ws_require {
	WS_REQUIRE_NAMES = 1,  /* names and shapes were compared with something of the server */
	WS_REQUIRE_FORMAT = 2, /* it is known, not assumed, that the server loads this */
	WS_REQUIRE_BYTES = 4,  /* WS_VERIFY_HASH, and all of its parameters were sent */
	WS_REQUIRE_CACHES = 8, /* no cache may hold results of the old weights */
	WS_REQUIRE_VALUES = 16 /* all values are read, and none is NaN or infinite */
};
/* A server that a failed push leaves with some old and some new weights: */
enum ws_push_partial {
	WS_PARTIAL_PAUSE, /* stays paused, and answers no request, until a push succeeds */
	WS_PARTIAL_RESUME
};

/* What a push refuses if it is not known, unless the caller allows it: */
enum ws_unknown {
	WS_UNKNOWN_FORMAT = 1, /* whether the server can load the format of these weights */
	WS_UNKNOWN_NAMES = 2,
	WS_UNKNOWN_DRAFT = 4,  /* a draft model keeps its old weights */
	WS_UNKNOWN_CACHE = 8
};

/* The reason to refuse a push with this pause and flush to a server with these capabilities; NULL:
 * none. can NULL: the server is not known yet. idle: the server is known to have no request,
 * running or waiting. no_cache: the server keeps no prefix cache, so nothing is flushed. *remedy
 * (remedy may be NULL) is the alternative. */
const char *ws_push_refuses(const struct ws_capabilities *can, enum ws_pause_mode pause,
                            enum ws_push_flush flush, bool idle, bool no_cache,
                            const char **remedy);

/* The size of the first buckets with bucket_size 0; wsync-endpoints alone get the largest. Where
 * the size is adapted, larger tensors share buckets of at most WS_PUSH_BUCKET_LARGEST. */
#define WS_PUSH_BUCKET_LARGEST (UINT64_C(512) << 20)
uint64_t ws_push_bucket_size(enum ws_backend backend);

/* Defaults: ws_push_opts_init sets them, and 0 means the same. */
#define WS_PUSH_CONNECT_NS WS_ENDPOINT_CONNECT_NS
#define WS_PUSH_INIT_NS (600 * WS_NS_PER_S)
#define WS_PUSH_BUCKET_NS (600 * WS_NS_PER_S)
/* Set by ws_push_opts_init; 0 keeps no checkpoint. */
#define WS_PUSH_DISK_KEEP 1

/* ws_push_opts_init sets all fields; callers then change some. Until 1.0 a release may add and
 * move fields: compile again with the headers of the library. */
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
	/* WS_VERIFY_HASH: percent of the bytes that a server's own checksums must prove; 0: 100 */
	unsigned min_coverage;
	enum ws_lineage lineage;    /* of the endpoints; unknown: detect it */
	enum ws_push_partial on_partial; /* stay paused, or resume */
	/* libnccl.so.2: a path, or a name for the loader; NULL: where it usually is */
	const char *nccl_library;
	/* or the NCCL of this Python, a program or a virtual environment; NULL: none */
	const char *nccl_from;
	/* Called before NCCL starts: sets NCCL's environment, which the library never changes. -1:
	 * the group is not formed. NULL: the caller has set it */
	int (*nccl_settings)(const struct ws_nccl_settings *settings, struct ws_err *err);
	unsigned gpu;               /* NCCL sends from its memory; IPC exports it */
	const char *gpu_uuid;       /* or its UUID: "GPU-8d2f..."; NULL: `gpu` */
	/* IPC: name the GPU to the servers by ipc_ordinal, not by its UUID */
	bool ipc_by_ordinal;
	unsigned ipc_ordinal;       /* the GPU's number on the servers */
	const char *master_address; /* NULL: the address this machine uses toward the endpoints */
	uint16_t master_port;       /* 0: any */
	const char *group_name;     /* NULL: wsync-<8 hex>, fresh for each group */
	/* bytes; 0: chosen for the data plane, and adapted while buckets are sent */
	uint64_t bucket_size;
	const char *const *include, *const *exclude; /* globs over tensor names */
	size_t n_include, n_exclude;
	/* write what would be sent as a checkpoint into this new directory, and send nothing;
	 * NULL: send. Without endpoints, and with backend AUTO */
	const char *write_dir;
	/* send everything and load nothing: the servers go on with their old weights, until a run
	 * with `complete`. TWO_PHASE (the whole update), or DISK, whose checkpoint is written.
	 * Needs state_dir, where the staged update is recorded */
	bool stage;
	/* load what was staged at these endpoints; they must have it from one push. The run needs
	 * no source. With WS_VERIFY_HASH it needs the source that was staged, to compare. The
	 * weight version is that of the record, unless another is given */
	bool complete;
	/* DISK: directory to write a checkpoint to; NULL: servers load the source */
	const char *disk_dir;
	/* path of that directory, or of the source, on the servers; NULL: the same */
	const char *disk_path;
	/* checkpoints in disk_dir that stay after a success; see push_disk.c */
	unsigned disk_keep;
	/* rules in front of the built-in ones (namemap.h); NULL: none */
	const char *map;
	/* a checkpoint that the servers can be started from (reference.h); NULL: the one that is
	 * found for the first of them */
	const char *like;
	const char *config;         /* config.json or its directory; NULL: the source's own */
	unsigned sharded_tp, sharded_ep; /* sizes of the ranks that saved the source; 0: whole */
	const struct ws_transform_opts *transform; /* of the tensors; NULL: none */
	enum ws_push_transform_on transform_on;    /* the result is the same everywhere */
	const char *weight_version; /* NULL: unchanged */
	/* An integer version may be lower than that of an endpoint; false: WS_EREFUSED */
	bool allow_older;
	/* what need not be known: enum ws_unknown */
	unsigned allow_unknown;
	/* What must be established, as bits of enum ws_require; else WS_EREFUSED before the pause,
	 * or afterwards no success */
	unsigned require;
	/* do not warn that endpoints keep their old weight version */
	bool label_stays;
	bool dry_run;               /* make the plan, detect the endpoints, stop */
	bool list_tensors;          /* emit WS_EV_TENSOR for each planned tensor */
	const char *api_key;        /* NULL: none */
	const char *ca_file;        /* as ws_client_opts */
	/* Directory of endpoint locks and push records (journal.h); NULL: neither is kept. If the
	 * push cannot be recorded, it fails with state_required, else it warns. */
	const char *state_dir;
	bool state_required;
	/* Number of this sender and of all senders, which push a part each; 0 and 1: the only one.
	 * With a lock they take turns; only the last of a round flushes (WS_FLUSH_LAST) and sets
	 * the weight version. Without a lock, with WS_PROTOCOL_EP_SCATTER, they send at once, as
	 * ranks of the group that the first sender forms. */
	unsigned sender, senders;
	const char *sender_lock;    /* path of the lock file; NULL: none */
	/* Name of the round, the same for all senders of one step; NULL: the weight version. If
	 * senders of one group name different rounds, that is WS_EUSAGE, before an endpoint is
	 * paused. */
	const char *round;
	/* how long to wait for another push to the same endpoints; 0: WS_EREFUSED at once */
	int64_t lock_wait_ns;
	/* For the record: to repeat this push, run wsync-push in that directory with these options,
	 * which begin with "--", without endpoints and sources. NULL: it cannot be repeated. */
	const char *again_directory;
	const char *const *again_args;
	size_t n_again_args;
	int64_t connect_ns, init_ns, bucket_ns; /* 0: the defaults */
	int64_t timeout_ns;         /* of one run; 0: none */
	struct ws_sink sink;
	const struct ws_log *log;
	struct ws_trace *trace;     /* records spans of the push; NULL: none */
	const struct ws_cancel *cancel;
	/* Called by a helper thread when the thread that runs the push hangs in a file system,
	 * three seconds after a deadline has passed or the push was cancelled. By then the group is
	 * destroyed, and endpoints without partial updates are resumed. *end is the result of the
	 * run and *err its error. The function must end the process, because the thread of the push
	 * returns late or never. NULL: the push waits. */
	void (*hung)(void *ctx, const struct ws_ev_end *end, const struct ws_err *err);
	void *hung_ctx;
};

void ws_push_opts_init(struct ws_push_opts *opts);

struct ws_push; /* opaque; one thread */

/* Everything that opts points to must outlive the push. Sends no request yet. */
int ws_push_open(const struct ws_push_opts *opts, struct ws_push **out, struct ws_err *err);

struct ws_push_source {
	const char *const *paths;   /* several paths are one checkpoint (ws_source_open) */
	size_t n_paths;
	const char *weight_version; /* NULL: that of the options */
	/* enum ws_memory: memory that the endpoints have released. Weights are woken after the
	 * pause, the rest after all weights have arrived. WS_MEMORY_RECORDED: at each endpoint the
	 * memory that earlier runs, or the records of earlier pushes, left released. Any other
	 * value must agree with these records, else the push does nothing. */
	unsigned asleep;
};

/* Emits WS_EV_PLAN, _ENDPOINT, _BUCKET ...; the outcome is in *result, whose strings and
 * arrays live until the next run or close. -1 if an endpoint did not get the new weights:
 * *err is the first cause, and its code is the exit code: WS_EPARTIAL if other endpoints
 * got them. */
int ws_push_run(struct ws_push *p, const struct ws_push_source *source, struct ws_ev_end *result,
                struct ws_err *err);

/* Later runs end at this time, instead of after timeout_ns. */
void ws_push_set_deadline(struct ws_push *p, ws_deadline until);

/* How the last run handled source->asleep, and the value for the next source:
 *   WS_ASLEEP_RECORDED  WS_MEMORY_RECORDED
 *   WS_ASLEEP_REFUSED   the released memory; this needs another push
 *   WS_ASLEEP_PENDING   the same: the run failed before it was recorded
 *   WS_ASLEEP_CONTRADICTED  the released memory, or WS_MEMORY_RECORDED if the record is right
 *                           that contradicts it */
enum ws_asleep { WS_ASLEEP_PENDING, WS_ASLEEP_REFUSED, WS_ASLEEP_RECORDED, WS_ASLEEP_CONTRADICTED };
enum ws_asleep ws_push_asleep(const struct ws_push *p);

/* Destroys the group at the endpoints and here; adds the time to result->ns and total_ns. */
void ws_push_finish(struct ws_push *p, struct ws_ev_end *result);
/* Opens a push for other endpoints in the place of `old` (NULL: of none), and closes `old`, unless
 * it fails. The new push knows the bucket size that `old` has found, and what `old` left at
 * endpoints and could not record in a file. */
int ws_push_reopen(struct ws_push *old, const struct ws_push_opts *opts, struct ws_push **out,
                   struct ws_err *err);
void ws_push_close(struct ws_push *p); /* NULL is fine; calls ws_push_finish if necessary */

#ifdef __cplusplus
}
#endif
#endif
