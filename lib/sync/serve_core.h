/* SPDX-License-Identifier: Apache-2.0 */
/* serve_core.h - what the files of the embedded endpoint share.
 *
 *   serve.c          life and state machine: who may run while what is paused
 *   serve_http.[ch]  libmicrohttpd: bytes to (method, path, body) and back
 *   serve_routes.c   the table of routes, and what happens to every request
 *   serve_control.c  the routes that report or switch
 *   serve_update.c   the routes that form groups and receive weights in one call
 *   serve_buckets.c  several buckets in one request
 *   serve_two_phase.c  those that receive beside the scheduler, and load later
 *   serve_stage.c    tensors of several buckets, received before any is loaded
 *   serve_receive.c  the route that takes several buckets at once
 *   serve_tensor.c   the route whose requests hold the weights
 *   serve_disk.c     the route whose requests name a checkpoint
 *   serve_session.c  what stands around updates
 *   serve_memory.c   memory given away and taken back
 *   serve_openapi.c  routes and fields, as a server tells them
 *   serve_intake.c   what becomes of the tensors of a request
 *   serve_listing.c  the routes that tell what was received or loaded
 *   serve_checker.c  checksums, and the proof that an update writes every parameter
 *   serve_values.c   parameters as numbers
 *   serve_generate*.c, serve_prompts.c, serve_toy*.c  generating, with a toy model (serve_generate.h)
 *   serve_decode.c   JSON bodies to requests, with the servers' defaults and messages
 *   serve_direct.c   tensors that go past the loader
 *   serve_scatter*.c the route that takes shares from many trainers, point to point
 *   serve_group.c    groups, and all of their ranks at once
 *   serve_ranks.c    tensor-parallel ranks: store client, gloo mesh, receiving
 *   serve_weights.c  what was received, where there is no model
 *   serve_model*.c   the runtime parameters of a model, and loading into them (serve_model.h)
 *   serve_journal.c  what was asked
 *   serve_fault.c    misbehaviour by appointment
 *   serve_corrupt*.c weights that are not what came (serve_corrupt.h)
 *   serve_wire.c     and on the wire
 *   serve_lineage.c  how servers differ, and how they die (serve_lineage.h)
 *
 * Locks. `lock` guards every field of struct ws_serve but the weights, and is never held while
 * waiting for the network. The weights belong to whoever occupies the scheduler, as the parameters
 * of a real server belong to its scheduler loop. */
#ifndef WS_SYNC_SERVE_CORE_H
#define WS_SYNC_SERVE_CORE_H

#include "hash.h"
#include "json.h"
#include "serve_fields.h"
#include "serve_http.h"

#include "wsync/buf.h"
#include "wsync/cancel.h"
#include "wsync/clock.h"
#include "wsync/dtype.h"
#include "wsync/err.h"
#include "wsync/serve.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_serve_lineage_traits; /* serve_lineage.h */

enum {
	WS_SERVE_MAX_TP = 64,
	WS_SERVE_MAX_WORLD = 4096,
	WS_SERVE_MAX_ROUTES = 64
};

/* ---- requests ---- */

/* False, with a complete 401, when the request lacks the key. Needs no body. */
bool ws_serve_admit(struct ws_serve *s, const struct ws_serve_request *rq,
                    struct ws_serve_reply *rp);
/* Runs the request to its end, which may take as long as a group takes to form. */
void ws_serve_handle(struct ws_serve *s, const struct ws_serve_request *rq,
                     struct ws_serve_reply *rp);

/* ---- faults ---- */

enum ws_serve_fault_kind {
	WS_FAULT_NONE, WS_FAULT_REFUSE, WS_FAULT_HANG, WS_FAULT_DROP, WS_FAULT_DIE, WS_FAULT_FLIP,
	WS_FAULT_SLOW, WS_FAULT_GARBAGE, WS_FAULT_WRONG_LENGTH,
	WS_FAULT_BATCH_VARIANT, /* of /generate, at every call from K on */
	WS_FAULT_STALE,         /* of /flush_cache */
	WS_FAULT_CORRUPT        /* serve_corrupt.h */
};

/* What becomes of weights that came whole. */
enum ws_serve_corruption {
	WS_CORRUPT_FLIP,          /* one bit of a tensor */
	WS_CORRUPT_TRUNCATE,      /* its last bytes stay what they were */
	WS_CORRUPT_PERMUTE,       /* its elements move by one */
	WS_CORRUPT_DROP,          /* it stays what it was */
	WS_CORRUPT_COPY,          /* it gets the bytes of another one of the request */
	WS_CORRUPT_SWAP,          /* ... which gets those of this one */
	WS_CORRUPT_RETYPE,        /* its bytes are taken for numbers of another type */
	WS_CORRUPT_DROP_BUCKET,   /* all tensors of the request stay what they were */
	WS_CORRUPT_STALE_BUCKET,  /* ... the bytes in their middle do */
	WS_CORRUPT_REPEAT_BUCKET, /* they get the bytes of the request before */
	WS_CORRUPT_SWAP_BUCKETS   /* ... whose tensors get those of this one */
};

enum ws_serve_spot { WS_AT_BYTE, WS_AT_MIDDLE, WS_AT_LAST, WS_AT_PADDING };

struct ws_serve_corrupt {
	enum ws_serve_corruption how;
	enum ws_serve_spot spot;
	uint64_t at, bytes;       /* bytes 0: one element */
	unsigned bit;
	int rank;                 /* only there; -1: at all ranks */
	enum ws_dtype as;
};

struct ws_serve_fault {
	enum ws_serve_fault_kind kind;
	const char *route; /* into the table of routes */
	uint64_t call;
	char tensor[256];  /* FLIP, CORRUPT: a glob, "*" where none was given */
	struct ws_serve_corrupt corrupt;
};

int ws_serve_fault_parse(const char *text, enum ws_serve_lineage lineage, struct ws_serve_fault *out,
                         struct ws_err *err);
/* Steps that are no route: the endpoint's own doings, counted over its life. */
enum ws_serve_wire {
	WS_WIRE_STORE,   /* a group's first rank turns to the store */
	WS_WIRE_CONNECT, /* ... joins the mesh */
	WS_WIRE_PAYLOAD, /* ... receives the tensors of one request, or of one bucket */
	WS_WIRE_STEPS
};
/* Counts the step. What is due now, or NONE. */
enum ws_serve_fault_kind ws_serve_wire_fault(struct ws_serve *s, enum ws_serve_wire step);
void ws_serve_linger(struct ws_serve *s); /* for what "slow" takes, or until the endpoint stops */
const char *ws_serve_fault_name(enum ws_serve_fault_kind kind);
/* Route i of the table, NULL where that lineage does not have it. i beyond the last: *end. */
const char *ws_serve_route_at(size_t i, enum ws_serve_lineage lineage, bool *get, bool *post, bool *end);
/* The route's canonical name (no slash), or NULL where that lineage has no such route. */
const char *ws_serve_route_name(const char *name, enum ws_serve_lineage lineage);

/* ---- the journal ---- */

enum ws_serve_tri { WS_TRI_NONE, WS_TRI_FALSE, WS_TRI_TRUE };

/* One request as remembered. Strings are copies, cut where they are too long. */
struct ws_serve_note {
	char method[8], path[64];
	unsigned status;          /* 0: not answered yet, or never */
	int64_t at_ns, ns;        /* since the endpoint started; duration */
	enum ws_serve_tri flush;  /* of an update: flush_cache as understood */
	char fault[16];
	char group[128];
	char mode[12];
	char load_format[24];
	char weight_version[64];
	char corrupted[160];      /* the first tensor that a fault changed */
	uint64_t tensors, bytes, duplicates;
	bool model;               /* of an update: the following were counted */
	uint64_t loaded, ignored;
	char *ignored_names;      /* of the first ones, each ended by a NUL; owned; NULL: none */
	size_t ignored_len;
	char message[192];
};

struct ws_serve_journal {
	struct ws_serve_note **blocks; /* of so many each that nothing has to move as they become more */
	size_t n;
	uint64_t omitted;         /* beyond the limit, or for want of memory */
	uint64_t calls[WS_SERVE_MAX_ROUTES];
	/* Totals over successful receives. */
	uint64_t updates, flushes, failed_flushes, tensors, bytes, duplicates, loaded, ignored;
	size_t distinct;
};

/* Both under the lock. begin returns the place for end; SIZE_MAX: not remembered. */
size_t ws_serve_journal_begin(struct ws_serve_journal *j, const struct ws_serve_note *note);
/* Takes ignored_names. */
void ws_serve_journal_end(struct ws_serve_journal *j, size_t place, const struct ws_serve_note *note);
void ws_serve_journal_fini(struct ws_serve_journal *j);
void ws_serve_journal_write(struct ws_serve *s, struct ws_buf *out); /* takes the lock */

/* ---- weights ---- */

struct ws_serve_weight {
	char *name;
	enum ws_dtype dtype;
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];
	uint64_t bytes;
	uint8_t *data;      /* inside a block; NULL: only the hash is known */
	uint64_t room;      /* bytes at data, of the largest type that came */
	uint64_t hash;      /* as received, where the endpoint hashes */
	uint64_t sync;      /* the sync it last came in */
};

struct ws_serve_weights {
	struct ws_serve_weight *items; /* in order of first arrival */
	size_t n, cap;
	size_t *index;      /* open addressing over items: 0 empty, else place + 1 */
	size_t n_index;     /* a power of two, or 0 */
	uint8_t **blocks;   /* the memory behind data */
	size_t n_blocks;
};

/* One tensor of an update request. */
struct ws_serve_slot {
	const char *name, *dtype_name; /* borrowed from the request */
	enum ws_dtype dtype;
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];
	uint64_t bytes;
	uint8_t *data;      /* where rank 0 puts it; NULL: nowhere */
	uint64_t hash;
};

struct ws_serve_weight *ws_serve_weights_find(const struct ws_serve_weights *w, const char *name);
/* Gives every slot its data: that of the tensor it replaces, or a piece of one new block, in order
 * and without gaps. *block (NULL when nothing is new) is passed on to commit, or freed. */
int ws_serve_weights_reserve(struct ws_serve_weights *w, struct ws_serve_slot *slots, size_t n,
                             uint8_t **block, struct ws_err *err);
/* Takes the block. *duplicates: how many came before in this sync. */
int ws_serve_weights_commit(struct ws_serve_weights *w, const struct ws_serve_slot *slots, size_t n,
                            uint8_t *block, uint64_t sync, uint64_t *duplicates,
                            struct ws_err *err);
void ws_serve_weights_fini(struct ws_serve_weights *w);

/* ---- decoded requests ---- */

struct ws_serve_init {
	const char *address, *group, *backend; /* borrowed from the JSON, as below */
	uint16_t port;
	unsigned rank_offset, world_size;
};

struct ws_serve_update {
	const char *group, *version, *load_format; /* the latter two may be NULL */
	bool flush, abort_all, flattened, free_kv_cache;
	bool from_files;            /* no broadcast limits the types, and each lies by itself */
	bool staged;                /* every rank's bytes are compared, whatever is kept of them */
	struct ws_serve_slot *slots;
	size_t n;
	uint64_t bytes;
	enum ws_serve_fault_kind fault;
	const char *spoils;         /* FLIP: of the tensors like this the last one */
	const struct ws_serve_fault *corrupt; /* due when they are loaded; NULL: nothing is */
	struct ws_serve_load *load; /* where the bytes go instead of the slots' data; NULL: there */
};

/* WS_EUSAGE: a validation error, answered in FastAPI's shape. */
int ws_serve_decode_init(const struct ws_json *body, struct ws_serve_init *out, struct ws_err *err);
int ws_serve_decode_update(const struct ws_json *body, const struct ws_serve_lineage_traits *traits,
                           struct ws_serve_update *out, struct ws_err *err);
void ws_serve_update_fini(struct ws_serve_update *u);

/* Several buckets, received one after the other and loaded together. */
struct ws_serve_buckets {
	struct ws_serve_update all;      /* owns the slots */
	struct ws_serve_update *buckets; /* pieces of them */
	size_t n;
	int64_t announced;               /* num_buckets */
};
/* "buckets" and "num_buckets", or names, dtypes and shapes for exactly one. None is no error. */
int ws_serve_decode_buckets(const struct ws_json *body, struct ws_serve_buckets *out,
                            struct ws_err *err);
int ws_serve_check_buckets(const struct ws_serve *s, struct ws_serve_buckets *b, struct ws_err *err);
void ws_serve_buckets_fini(struct ws_serve_buckets *b);
/* Of a request for shares: decodes and plans it, and says how many pieces that makes. Needs a model. */
int ws_serve_plan_scatter(const struct ws_serve *s, const struct ws_json *body, size_t *pieces,
                          struct ws_err *err);

/* Received into memory of its own, and from there to where it belongs. */
struct ws_serve_stage {
	struct ws_serve_buckets buckets;
	uint8_t *block;                  /* NULL: only hashes are kept */
};
int ws_serve_stage_allocate(struct ws_serve *s, struct ws_serve_stage *st, struct ws_err *err);
/* A struct ws_serve_intake's. */
int ws_serve_stage_bring(struct ws_serve *s, void *stage, struct ws_serve_update *u, bool keep,
                         struct ws_err *err);
void ws_serve_stage_fini(struct ws_serve_stage *st);
int ws_serve_decode_lists(const struct ws_json *body, struct ws_serve_update *u, struct ws_err *err);
/* What torch and the loader would refuse about the request alone, before a byte is received. */
int ws_serve_check_init(const struct ws_serve *s, const struct ws_serve_init *in, struct ws_err *err);
int ws_serve_check_update(const struct ws_serve *s, struct ws_serve_update *u, struct ws_err *err);
/* What they find when the bytes have come: views that cannot be made, shapes that changed. */
int ws_serve_check_views(const struct ws_serve_update *u, struct ws_err *err); /* of those flattened */
int ws_serve_check_load(const struct ws_serve *s, const struct ws_serve_update *u,
                        struct ws_err *err);

/* ---- groups and ranks ---- */

struct ws_serve_rank;  /* serve_rank.h */
struct ws_serve_model; /* serve_model.h */
struct ws_serve_load;
struct ws_serve_snapshot;
struct ws_serve_prepared;

struct ws_serve_group {
	struct ws_serve_group *next;
	struct ws_serve *serve;
	char *name, *address;
	uint16_t port;
	unsigned rank_offset, world_size, tp;
	struct ws_cancel cancel;  /* set: the group is of no more use */
	unsigned holders;         /* like busy under the lock */
	bool busy;
	char trouble[512];        /* why; under the lock */
	struct ws_serve_rank *ranks;
	void *job;                /* of the work in work, serve_rank.h */
};

struct ws_serve_group *ws_serve_group_new(struct ws_serve *s, const struct ws_serve_init *in,
                                          struct ws_err *err);
void ws_serve_group_free(struct ws_serve_group *g); /* NULL is fine; must not be listed any more */
/* All ranks join: returns when every rank of the world has published its address. */
int ws_serve_group_join(struct ws_serve_group *g, ws_deadline until, struct ws_err *err);
/* All ranks receive. keep false: the bytes are received and forgotten. */
int ws_serve_group_receive(struct ws_serve_group *g, struct ws_serve_update *u, bool keep,
                           ws_deadline until, struct ws_err *err);
/* Any thread: running and later operations fail, sockets close. The caller holds the lock. */
void ws_serve_group_abort(struct ws_serve_group *g, const char *why);

/* One at a time uses a group; the others wait. Who holds it keeps it from being freed. */
void ws_serve_group_hold(struct ws_serve_group *g);
void ws_serve_group_release(struct ws_serve_group *g);
/* In the scheduler. NULL: there is none of that name. */
int ws_serve_form_group(struct ws_serve *s, const struct ws_serve_init *in, struct ws_err *err);
struct ws_serve_group *ws_serve_find_group(struct ws_serve *s, const char *name);

/* ---- tensors of a request ---- */

/* How their bytes arrive: into u->load, or else slots[i].data where that is not NULL. keep false:
 * nowhere. */
struct ws_serve_intake {
	int (*bring)(struct ws_serve *s, void *ctx, struct ws_serve_update *u, bool keep,
	             struct ws_err *err);
	void *ctx;
};
/* In the scheduler: brings them and keeps them, or loads them into the model. */
int ws_serve_take_in(struct ws_serve *s, const struct ws_serve_intake *in, struct ws_serve_update *u,
                     struct ws_serve_note *note, struct ws_err *err);
/* Likewise, into parameters of exactly these names, from the slots' data. Needs a model's memory. */
int ws_serve_copy_direct(struct ws_serve *s, const struct ws_serve_update *u, struct ws_serve_note *note,
                         struct ws_err *err);
void ws_serve_count_update(struct ws_serve *s, const struct ws_serve_update *u,
                           const struct ws_serve_note *note);
void ws_serve_note_update(struct ws_serve_note *note, const struct ws_serve_update *u);

/* ---- the endpoint ---- */

enum ws_serve_pause { WS_PAUSE_ABORT, WS_PAUSE_RETRACT, WS_PAUSE_IN_PLACE };

/* What the cache of prefixes knows, serve_prompts.c. */
struct ws_toy; /* serve_toy.h */
enum { WS_SERVE_MAX_PROMPTS = 64 };
enum { WS_SERVE_CONTEXT = 32768, WS_SERVE_POOL = 65536 }; /* tokens of a prompt and its answer; of all */
struct ws_serve_prompt {
	int32_t *ids;                  /* owned, as the following */
	const struct ws_toy **made_by; /* with what each token was computed */
	size_t n;
};
struct ws_serve_prompts {
	struct ws_serve_prompt items[WS_SERVE_MAX_PROMPTS]; /* a ring */
	size_t next;
};
/* How many of the first n tokens are there, and who made them. */
size_t ws_serve_prompts_find(const struct ws_serve_prompts *p, const int32_t *ids, size_t n,
                             const struct ws_toy **made_by);
void ws_serve_prompts_add(struct ws_serve_prompts *p, const int32_t *ids, size_t n,
                          const struct ws_toy *const *made_by);
bool ws_serve_prompts_use(const struct ws_serve_prompts *p, const struct ws_toy *toy);
void ws_serve_prompts_forget(struct ws_serve_prompts *p);

struct ws_serve {
	const struct ws_serve_lineage_traits *traits;
	struct ws_serve_opts opts; /* strings replaced by copies below; those of the caller are gone */
	char *tokenizer_path, *dtype, *quantization, *api_key;
	char url[320];
	char host[256];
	uint16_t port;
	struct ws_serve_fault *faults;
	size_t n_faults;
	struct ws_serve_victims *bucket_before; /* serve_corrupt.c, of the scheduler */
	uint64_t wire_calls[WS_WIRE_STEPS]; /* under the lock */
	int64_t started_ns;
	int64_t created;           /* seconds since 1970, for /v1/models */
	struct ws_serve_http *http; /* NULL: driven through ws_serve_handle */

	pthread_mutex_t lock;
	pthread_cond_t changed;    /* any of the following */
	bool stopping;
	bool dead;                 /* the emulated scheduler is; every connection drops */
	bool occupied;             /* the scheduler runs an init, a receive, a flush, a checksum */
	bool receiving;            /* ... of the first two kinds */
	bool session;              /* is open */
	unsigned released;         /* tags of serve_memory.c */
	bool paused;
	enum ws_serve_pause mode;
	bool writer;               /* an update holds the model-update lock */
	unsigned under_pause;      /* updates that run because generation is paused */
	unsigned running, waiting; /* emulated requests */
	char *weight_version;
	char *model_path, *served_model_name; /* of what was loaded from disk last */
	bool stirred;              /* whoever occupied the scheduler may have changed weights */
	struct ws_serve_group *groups;
	struct ws_serve_prepared *prepared;  /* serve_two_phase.c; NULL: none is */
	struct ws_serve_prepared *abandoned; /* they received too long */
	uint64_t sync;             /* counts pauses and groups: what comes twice in one is a duplicate */
	struct ws_serve_journal journal;

	struct ws_serve_weights weights; /* of whoever occupies the scheduler, like the following */
	struct ws_serve_model *model;    /* NULL: what comes is kept under the name it came by */
	struct ws_serve_snapshot *snapshot; /* serve_checker.c; NULL: none was made */
	struct ws_toy *toys;             /* the newest first; NULL: nothing was generated yet */
	struct ws_serve_prompts prompts;
};

/* Everything but the listener. */
int ws_serve_new(const struct ws_serve_opts *opts, struct ws_serve **out, struct ws_err *err);

/* The scheduler runs one thing at a time. False: the endpoint stops. */
bool ws_serve_occupy(struct ws_serve *s, bool receiving);
void ws_serve_vacate(struct ws_serve *s);
/* The model-update lock, or none while paused. Waits for running requests, as long as it takes. */
bool ws_serve_enter_update(struct ws_serve *s, bool abort_all, bool *writer);
void ws_serve_leave_update(struct ws_serve *s, bool writer);
void ws_serve_abort_requests(struct ws_serve *s);
bool ws_serve_pause(struct ws_serve *s, enum ws_serve_pause mode);
bool ws_serve_continue(struct ws_serve *s);
/* In the scheduler: what was computed with the weights is computed anew. */
void ws_serve_stir(struct ws_serve *s);
/* Waits up to wait_ns for idleness. False: requests were running or waiting. */
bool ws_serve_flush(struct ws_serve *s, int64_t wait_ns);
bool ws_serve_is_idle(struct ws_serve *s);
int ws_serve_set_version(struct ws_serve *s, const char *version, struct ws_err *err);
void ws_serve_wait_stop(struct ws_serve *s);
/* With the lock held: until something changes, or that. */
void ws_serve_wait_changed(struct ws_serve *s, ws_deadline until);
/* Hash the endpoint's ranks while receiving? */
bool ws_serve_hashes(const struct ws_serve *s);

/* ---- one request in work ---- */

struct ws_serve_call {
	struct ws_serve *serve;
	const struct ws_serve_request *rq;
	struct ws_serve_reply *rp;
	const struct ws_json *body;
	enum ws_serve_fault_kind fault; /* those left to the route: drop, die, flip of an update */
	const char *spoils;             /* flip */
	const struct ws_serve_fault *corrupt; /* NULL: none is due */
	bool counts_paused;             /* the answer says how many requests were paused: none */
	struct ws_serve_note note;
	struct ws_json *own_body;   /* the same, to be freed; NULL: the route has taken it */
};

/* What borrowed from the body outlives the request: the caller frees it. */
struct ws_json *ws_serve_take_body(struct ws_serve_call *c);

/* {"success","message"} with 200 or 400. */
void ws_serve_answer(struct ws_serve_call *c, bool success, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));
/* 400 in the shape of the servers' validation handler. */
void ws_serve_answer_invalid(struct ws_serve_call *c, const char *message);

/* What nobody catches in a real server's scheduler: the end of this endpoint. */
void ws_serve_crash(struct ws_serve_call *c, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
void ws_serve_die(struct ws_serve *s); /* the fault */
bool ws_serve_is_dead(struct ws_serve *s);

/* An assertion: some servers catch it, most do not. */
void ws_serve_fail_without_group(struct ws_serve_call *c, const char *name);
/* In the scheduler, after the tensors: flush and version as asked, and the answer. */
void ws_serve_finish_update(struct ws_serve_call *c, const struct ws_serve_update *u,
                            const char *success);
/* False, and answered: the server wants a session around this. */
bool ws_serve_may_update(struct ws_serve_call *c);
/* In the scheduler. False, and answered: they were released. */
bool ws_serve_has_weights(struct ws_serve_call *c);
unsigned ws_serve_tag_count(void);
const char *ws_serve_tag_name(unsigned i);
/* Ends the threads that receive beside the scheduler. */
void ws_serve_two_phase_fini(struct ws_serve *s);

/* The routes. The reply is an empty 200 of JSON when they begin. */
void ws_serve_route_health(struct ws_serve_call *c);
void ws_serve_route_health_generate(struct ws_serve_call *c);
void ws_serve_route_model_info(struct ws_serve_call *c);
void ws_serve_route_server_info(struct ws_serve_call *c);
void ws_serve_route_models(struct ws_serve_call *c);
void ws_serve_route_journal(struct ws_serve_call *c);
void ws_serve_route_pause(struct ws_serve_call *c);
void ws_serve_route_continue(struct ws_serve_call *c);
void ws_serve_route_version(struct ws_serve_call *c);
void ws_serve_route_flush(struct ws_serve_call *c);
void ws_serve_route_openapi(struct ws_serve_call *c);
void ws_serve_route_init(struct ws_serve_call *c);
void ws_serve_route_destroy(struct ws_serve_call *c);
void ws_serve_route_update(struct ws_serve_call *c);
void ws_serve_route_weight_version(struct ws_serve_call *c);
void ws_serve_route_receive(struct ws_serve_call *c);
void ws_serve_route_scatter(struct ws_serve_call *c);
void ws_serve_route_tensor(struct ws_serve_call *c);
void ws_serve_route_disk(struct ws_serve_call *c);
void ws_serve_route_begin(struct ws_serve_call *c);
void ws_serve_route_end(struct ws_serve_call *c);
void ws_serve_route_post_process(struct ws_serve_call *c);
void ws_serve_route_release(struct ws_serve_call *c);
void ws_serve_route_resume(struct ws_serve_call *c);
void ws_serve_route_sleep(struct ws_serve_call *c);
void ws_serve_route_wake(struct ws_serve_call *c);
void ws_serve_route_prepare(struct ws_serve_call *c);
void ws_serve_route_complete(struct ws_serve_call *c);
void ws_serve_route_checker(struct ws_serve_call *c);
void ws_serve_route_checksums(struct ws_serve_call *c);
void ws_serve_route_list(struct ws_serve_call *c);
void ws_serve_route_values(struct ws_serve_call *c);
void ws_serve_route_generate(struct ws_serve_call *c);

void ws_serve_snapshot_free(struct ws_serve_snapshot *s); /* NULL is fine */

#endif
