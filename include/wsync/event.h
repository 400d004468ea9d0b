/* SPDX-License-Identifier: Apache-2.0 */
/* event.h - events of a running operation, which cmd/ prints as text or as JSON lines.
 *
 * wsync-json(5) documents the lines. Events are delivered one at a time, from the
 * thread that called the operation; everything they point to is valid during the call
 * only. Units: bytes and ns. */
#ifndef WSYNC_EVENT_H
#define WSYNC_EVENT_H

#include "wsync/dtype.h"
#include "wsync/err.h"
#include "wsync/evidence.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ws_phase {
	WS_PHASE_PLAN, WS_PHASE_CONNECT, WS_PHASE_INIT, WS_PHASE_PAUSE, WS_PHASE_FLUSH,
	WS_PHASE_TRANSFER, WS_PHASE_APPLY, WS_PHASE_VERIFY, WS_PHASE_RESUME, WS_PHASE_DESTROY,
	WS_PHASE_COUNT
};
const char *ws_phase_name(enum ws_phase phase); /* "plan", "connect", ... */

enum ws_endpoint_state { WS_UNTOUCHED, WS_PARTIAL, WS_COMMITTED };
const char *ws_endpoint_state_name(enum ws_endpoint_state state);

enum ws_event_type {
	WS_EV_START,
	WS_EV_PLAN,
	WS_EV_ENDPOINT,
	WS_EV_BUCKET,
	WS_EV_TENSOR,
	WS_EV_NAMES,
	WS_EV_MISMATCH,
	WS_EV_PROOF,
	WS_EV_WARNING,
	WS_EV_PROGRESS,
	WS_EV_WAITING,
	WS_EV_HANG,
	WS_EV_STALE,
	WS_EV_CANARY,
	WS_EV_RESULT,
	WS_EV_END
};

struct ws_ev_start {
	const char *command;        /* "push" */
	size_t n_endpoints;
};

struct ws_ev_plan {
	const char *source;         /* as given; several joined by spaces */
	uint64_t digest;
	size_t tensors, skipped, buckets;
	uint64_t bytes;             /* payload of one copy */
	uint64_t bucket_size;       /* 0: none */
	bool bucket_size_auto;      /* later buckets may be cut for another size */
	const char *load_format;    /* "none", "flattened_bucket"; disk: "auto", "safetensors" */
	const char *backend;        /* "gloo", "nccl", "tensor", "ipc", "disk" */
	/* disk: this machine's path of the directory that servers load; else NULL */
	const char *disk_path;
	/* about how many are written into disk_path; 0: servers load the source itself */
	uint64_t disk_bytes;
	uint64_t gpu_bytes, pinned_bytes; /* most that the backend allocates here; 0: none */
	const char *protocol;       /* "update" */
	unsigned world_size;        /* 0: not known yet (a dry run without endpoints) */
	/* number of this sender, and of all senders, which send a part each; 0: the only one */
	unsigned sender, senders;
	bool dry_run;
};

struct ws_ev_endpoint {
	const char *url;
	enum ws_phase phase;        /* that has just ended at this endpoint */
	bool ok;
	unsigned rank_offset, ranks;
	const char *version;        /* the server's, "" unknown */
	const char *weight_version; /* "" unknown */
	const char *message;        /* the server's message; "": none */
	int64_t ns;                 /* duration of this phase at this endpoint */
};

struct ws_ev_bucket {
	size_t index, count;        /* index from 0 */
	size_t tensors;
	uint64_t bytes;
	uint64_t bucket_size;       /* that it was cut for; 0: none */
	bool flush;
	bool planned;               /* dry run: nothing was sent */
	int64_t ns;                 /* start to last endpoint's answer */
	int64_t wire_ns;            /* start to last byte taken */
};

struct ws_ev_tensor {           /* dry run and -v */
	size_t bucket;
	const char *name;
	enum ws_dtype dtype;
	unsigned n_dims;
	const int64_t *dims;
	uint64_t bytes;
	const char *recipe;         /* "copy", "view" */
};

struct ws_name_check_run; /* name_check_run.h */
struct ws_findings;       /* namecheck.h */

/* the names were compared with one endpoint, or with the description of a server */
struct ws_ev_names {
	const char *url;            /* "" none */
	size_t alike;               /* how many further endpoints have the same answer */
	const struct ws_name_check_run *run;
};

struct ws_ev_mismatch {
	const char *url;
	int rank;                   /* the endpoint's rank; -1: none */
	const char *name;           /* tensor */
	const char *kind;           /* "missing", "unexpected", "hash", "dtype", "shape" */
	const char *expected, *found;
	const char *cause;          /* what `found` is, if that is known; NULL */
};

/* What a server's own checksums prove. Counts are of parameters, of all ranks together; bytes are
 * of all ranks. */
struct ws_ev_proof {
	const char *url;
	unsigned ranks;
	size_t parameters, proven, different;
	size_t opaque;              /* neither proven nor different */
	size_t unknown;             /* the server has more, of which nothing was sent */
	size_t drafts;              /* of a draft model: not compared, not counted */
	/* the server needs them, and nothing was sent: not compared, not among the parameters */
	size_t not_sent;
	uint64_t not_sent_bytes;    /* by the config; in `bytes` */
	uint64_t bytes, proven_bytes;
	double percent;             /* of the bytes; rounded down to one decimal place */
};

struct ws_ev_warning {
	const char *url;            /* "" none */
	const char *message;
};

struct ws_ev_progress {         /* human progress line only, at most some per second */
	enum ws_phase phase;
	uint64_t done, total;       /* bytes */
	size_t bucket, buckets;
	uint64_t bucket_bytes;      /* of the current one; 0: not known */
	int64_t ns;                 /* since the transfer began */
};

struct ws_ev_waiting {          /* no progress for a while; repeated now and then */
	enum ws_phase phase;
	int64_t ns;                 /* how long the current wait has lasted */
	const char *message;        /* one sentence */
};

struct ws_hang;                 /* hang.h; WS_EV_HANG precedes the event that ends the run */

/* Does an endpoint lack the weights? */
struct ws_ev_stale {
	const char *url;
	bool stale;
	const char *why;            /* why it is stale, or not ready; "": it has the weights */
	const char *current_by;     /* not stale: "label", "record" or "proof" (fleet.h), or NULL */
};

/* The check of the canaries has ended. */
struct ws_ev_canary {
	const char *const *urls;
	size_t n_urls;
	bool ok;
	const char *why;            /* why not; "": ok */
	int64_t ns;
};

struct ws_ev_endpoint_result {
	const char *url;
	bool ok;
	/* it had the weights before; it was left out because it could not be reached */
	bool current, left_out;
	const char *current_by;     /* current: what shows it, as of ws_ev_stale; else NULL */
	enum ws_endpoint_state state;
	bool paused;                /* left paused */
	bool unflushed;             /* it still has the cache of the old weights */
	bool staged;                /* it has a whole update that it has not loaded */
	int64_t paused_ns;          /* from the request to pause to the answer to the resume;
	                             * 0: this run did not pause and resume it */
	const char *message;
	struct ws_evidence evidence; /* what was established of it */
};

/* The turn of one of several senders. It counts only if the run succeeded. */
struct ws_ev_round {
	const char *id;
	unsigned senders, had;      /* had: senders that have had a turn, this one included */
	bool ended;                 /* this turn ended the round: flush and weight version */
	/* start of the round in seconds since 1970, and its first process; 0: unknown */
	int64_t begun, pid;
	const char *host;           /* of that process; "": unknown */
	const char *text;           /* the round in words */
};

/* WS_EV_RESULT: one line of --stdin; WS_EV_END: the last of a run. */
struct ws_ev_end {
	const char *source;         /* RESULT: the line; END: NULL */
	bool ok;
	const struct ws_err *err;   /* NULL when ok */
	uint64_t bytes, wire_bytes; /* payload of one copy; payload sent by this process */
	size_t tensors, buckets;
	uint64_t digest;
	uint64_t bucket_size;       /* that the last bucket was cut for; 0: none */
	size_t n_endpoints;
	const struct ws_ev_endpoint_result *endpoints;
	int64_t ns[WS_PHASE_COUNT];
	int64_t total_ns;
	int64_t first_byte_ns;      /* start to first payload byte on the wire; 0: none */
	size_t n_results;           /* END of --stdin: lines done */
	const char *weight_version; /* NULL: none, or an endpoint did not take it */
	const struct ws_ev_round *round; /* NULL: no senders take turns */
	const char *verify;         /* "names", "hash", "none" */
	size_t not_covered;         /* with verify "hash": parameters of a server not compared,
	                             * because nothing was sent for them; the most of all servers */
	/* tensors that {include} and {exclude} left out, also where names were not checked; NULL:
	 * none were chosen */
	const struct ws_findings *left_out;
	const char *format_note;    /* "format not told by the server, 16 bits assumed"; NULL */
	/* the sum over all endpoints; NULL: names were not checked */
	const struct ws_name_check_run *names;
	const struct ws_transform_report *transform; /* NULL: tensors were sent as they are */
	const char *written;        /* the directory of a checkpoint that was written; NULL: sent */
	bool staged, completed;     /* it was sent and not loaded; it was loaded and not sent */
	bool dry_run;
};

/* What this success has verified, for the end of its last line: ", names verified"; "": nothing. */
const char *ws_ev_end_words(const struct ws_ev_end *e);

struct ws_event {
	enum ws_event_type type;
	union {
		struct ws_ev_start start;
		struct ws_ev_plan plan;
		struct ws_ev_endpoint endpoint;
		struct ws_ev_bucket bucket;
		struct ws_ev_tensor tensor;
		struct ws_ev_names names;
		struct ws_ev_mismatch mismatch;
		struct ws_ev_proof proof;
		struct ws_ev_warning warning;
		struct ws_ev_progress progress;
		struct ws_ev_waiting waiting;
		const struct ws_hang *hang;
		struct ws_ev_stale stale;
		struct ws_ev_canary canary;
		struct ws_ev_end end;
	};
};

struct ws_sink {
	void (*event)(void *ctx, const struct ws_event *ev); /* may be NULL */
	void *ctx;
};

#ifdef __cplusplus
}
#endif
#endif
