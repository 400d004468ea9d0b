/* SPDX-License-Identifier: Apache-2.0 */
/* serve_core.h - the embedded endpoint. Its HTTP server is lib/httpd.
 *
 *   serve.c                start and stop
 *   routes/                the requests (serve_call.h)
 *     serve_routes.c         the steps common to all requests
 *     serve_route_table.c    the table of routes
 *     serve_state.c          the state machine: which request may run in which state
 *     serve_lineage.c        differences of server families, and how they die (serve_lineage.h)
 *     serve_control.c        routes that report or switch
 *     serve_openapi.c        the list of routes and fields
 *     serve_update.c         groups, and updates in one call
 *     serve_two_phase.c      updates that are received beside the scheduler and loaded later
 *     serve_receive.c        several buckets in one request
 *     serve_scatter*.c       shares of many trainers, point to point (serve_scatter.h)
 *     serve_direct.c         tensors that bypass the loader
 *     serve_tensor.c         weights in the request itself, in pickles (pickle/)
 *     serve_session.c        sessions around updates
 *     serve_memory.c         memory that is released and resumed
 *     serve_journal.c        the journal of requests (serve_journal.h)
 *   group/                 process groups
 *     serve_group.c          groups, and all of their ranks at once (serve_group.h)
 *     serve_ranks.c          tensor-parallel ranks: store client, gloo mesh, receiving
 *     serve_gpu.c, serve_nccl.c  ranks of an NCCL group and their GPUs (serve_gpu.h)
 *     serve_ipc.c            tensors in another process's GPU memory
 *     serve_fetch.c          from the tensors of a request to memory (serve_fetch.h)
 *     serve_buckets.c        several buckets, received before any is loaded
 *     serve_wire.c           faults on the wire
 *   weights/               memory
 *     serve_weights.c        tensors as received, where there is no model
 *     serve_model*.c         a model's parameters, and loading into them (serve_model.h)
 *     serve_decode.c         JSON bodies, with the servers' defaults and messages
 *     serve_disk.c           updates from a checkpoint on disk
 *     serve_listing.c, serve_checksums.c, serve_values.c  routes that show weights
 *     serve_checker.c        snapshot, reset and compare
 *   vllm/                  the routes of vLLM (serve_vllm.h)
 *   generate/              tokens and logprobs without a language model (serve_generate.h)
 *     serve_chat.c           names of open chats
 *   faults/                faults on request (serve_fault.h)
 *
 * Locks. `lock` guards every field of struct ws_serve but the weights, and is never held while
 * waiting for the network. The weights belong to the request that occupies the scheduler, as the
 * parameters of a real server belong to its scheduler loop. */
#ifndef WS_ENDPOINT_SERVE_CORE_H
#define WS_ENDPOINT_SERVE_CORE_H

#include "serve_fault.h"
#include "serve_journal.h"
#include "serve_weights.h"

#include "wsync/clock.h"
#include "wsync/endpoint.h"
#include "wsync/err.h"
#include "wsync/tool/serve.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_serve_http;           /* serve_http.h */
struct ws_serve_group;          /* serve_group.h */
struct ws_serve_model;          /* serve_model.h */
struct ws_serve_snapshot;       /* serve_checker.c */
struct ws_serve_prepared;       /* serve_two_phase.c */
struct ws_serve_gpus;           /* serve_gpu.h */
struct ws_serve_vllm;           /* serve_vllm.h */

enum { WS_SERVE_MAX_TP = 64, WS_SERVE_MAX_WORLD = 4096 };
enum { WS_SERVE_MAX_CHATS = 64, WS_SERVE_MAX_PROMPTS = 64 };

/* A prompt and its answer in the cache (serve_generate_cache.c). */
struct ws_serve_prompt {
	int32_t *ids;     /* owned */
	uint64_t *states; /* the state after each token; owned */
	size_t n;
};

struct ws_serve {
	/* its strings are NULL, replaced by the copies below */
	struct ws_serve_opts opts;
	char *tokenizer_path, *dtype, *quantization, *api_key, *admin_key;
	char url[320];
	char host[256];
	uint16_t port;
	struct ws_serve_fault *faults;
	size_t n_faults;
	uint64_t wire_calls[WS_WIRE_STEPS]; /* under the lock */
	int64_t started_ns;
	int64_t clock_ns;          /* of the start, since 1970 */
	uint32_t seed;             /* drawn at the start, for /server_info */
	struct ws_serve_http *http; /* NULL: tests call ws_serve_handle */
	struct ws_serve_gpus *gpus; /* NULL: the endpoint uses no GPU */

	pthread_mutex_t lock;
	pthread_cond_t changed;    /* any of the following */
	bool stopping;
	bool dead;                 /* the emulated scheduler is dead; every connection drops */
	bool occupied;             /* the scheduler runs an init, a receive, a flush, a checksum */
	bool receiving;            /* the scheduler runs an init or a receive */
	bool session;              /* a session is open */
	char *chats[WS_SERVE_MAX_CHATS]; /* IDs of open chats; NULL: free */
	unsigned released;         /* tags of serve_memory.c */
	bool paused;
	enum ws_pause_mode mode;
	bool rejects;              /* and new prompts are refused instead of queued */
	bool writer;               /* an update holds the model-update lock */
	unsigned under_pause;      /* updates that run because generation is paused */
	unsigned running, waiting; /* emulated requests */
	char *weight_version;
	char *model_path, *served_model_name; /* replaced by a load from disk */
	bool dirty;                /* the weights may have changed since weights_hash */
	struct ws_serve_group *groups;
	struct ws_serve_prepared *prepared;  /* serve_two_phase.c; NULL: no update is prepared */
	struct ws_serve_prepared *abandoned; /* prepared updates that took too long to receive */
	/* counts pauses and groups; a tensor that comes twice within one count is a duplicate */
	uint64_t sync;
	struct ws_serve_journal journal;

	struct ws_serve_weights weights; /* this and all below: used in the scheduler only */
	struct ws_serve_model *model;    /* NULL: tensors keep the names they were sent with */
	struct ws_serve_snapshot *snapshot; /* serve_checker.c; NULL: no snapshot */
	struct ws_serve_vllm *vllm;      /* NULL: another family */
	uint64_t weights_hash;           /* valid unless dirty */
	struct ws_serve_prompt prompts[WS_SERVE_MAX_PROMPTS]; /* a ring */
	size_t next_prompt;
};

/* Creates the endpoint without the HTTP server. */
int ws_serve_new(const struct ws_serve_opts *opts, struct ws_serve **out, struct ws_err *err);

extern const char ws_serve_stops[]; /* "the endpoint stops" */
/* Waits for the scheduler, which runs one request at a time. False: the endpoint stops. */
bool ws_serve_acquire(struct ws_serve *s, bool receiving);
void ws_serve_release(struct ws_serve *s);
/* Unless paused: waits until no request runs, takes the model-update lock and sets *writer. */
bool ws_serve_enter_update(struct ws_serve *s, bool abort_all, bool *writer);
void ws_serve_leave_update(struct ws_serve *s, bool writer);
void ws_serve_abort_requests(struct ws_serve *s);
bool ws_serve_pause(struct ws_serve *s, enum ws_pause_mode mode);
extern const char *const ws_serve_pause_names[3]; /* names of the pause modes of servers */
/* Those of this server, in the same order. */
const char *const *ws_serve_pause_names_of(const struct ws_serve *s);
bool ws_serve_continue(struct ws_serve *s);
/* In the scheduler: notes that the weights may have changed, so their hash is computed again. */
void ws_serve_mark_dirty(struct ws_serve *s);
/* In the scheduler: hashes the names and bytes of all weights. The result does not depend on the
 * number of ranks. -1: out of memory. */
int ws_serve_hash_weights(const struct ws_serve *s, uint64_t *out);
void ws_serve_prompts_forget(struct ws_serve *s); /* empties the cache of prompts */
/* Waits up to wait_ns until the endpoint is idle. False: requests were running or waiting. */
bool ws_serve_flush(struct ws_serve *s, int64_t wait_ns);
bool ws_serve_is_idle(struct ws_serve *s);
/* Replaces a string of the endpoint, under the lock. */
int ws_serve_set_text(struct ws_serve *s, char **at, const char *text, struct ws_err *err);
void ws_serve_die(struct ws_serve *s); /* the fault "die" */
/* Ends every wait, now and later, so that all current requests end. Returns whether the emulated
 * scheduler was dead before. */
bool ws_serve_halt(struct ws_serve *s, bool dies, const char *why);
void ws_serve_wait_stop(struct ws_serve *s);
/* With the lock held: waits until something changes, or the deadline passes. */
void ws_serve_wait_changed(struct ws_serve *s, ws_deadline until);
/* Whether the ranks hash the bytes that they receive. */
bool ws_serve_hashes(const struct ws_serve *s);
/* Ends the threads that receive beside the scheduler. */
void ws_serve_two_phase_fini(struct ws_serve *s);
void ws_serve_snapshot_free(struct ws_serve_snapshot *s); /* NULL is fine */

#endif
