/* SPDX-License-Identifier: Apache-2.0 */
/* serve_vllm.h - the routes of vLLM, written from its sources 0.20.2, 0.24.0, 0.27.1 and 0.33.0.
 *
 *   serve_vllm.c           open, close, and the forms of answers
 *   serve_vllm_control.c   routes that report or switch
 *   serve_vllm_sleep.c     memory that sleeps
 *   serve_vllm_info.c      init_info and update_info, with the errors of Python's dataclasses
 *   serve_vllm_update.c    groups and updates
 *   serve_vllm_receive.c   what a worker receives of an update, and in which broadcasts
 *   serve_vllm_ipc.c       what it reads of an update from another process's GPU memory
 *   serve_vllm_session.c   what becomes of the layers of the model
 *   serve_vllm_rpc.c       methods of the workers
 *   serve_vllm_checker.c   checksums of parameters
 *   serve_vllm_complete.c  /v1/completions
 *
 * The engine runs one request at a time, as the scheduler of other families (serve_state.c): while
 * an init or an update is blocked, only /health, /version, /get_world_size and /server_info
 * answer. */
#ifndef WS_ENDPOINT_SERVE_VLLM_H
#define WS_ENDPOINT_SERVE_VLLM_H

#include "serve_call.h"
#include "serve_group.h"

/* Writes what the worker of this rank returns. */
typedef void ws_serve_vllm_result(const struct ws_serve_call *c, struct ws_jw *jw, unsigned rank);

struct ws_serve_vllm {
	/* used in the scheduler: */
	bool active;        /* an update was started and not finished */
	bool broken;        /* an update failed: layers have no weights, and generating crashes */
	bool packed;        /* of init_info */
	uint64_t limit;     /* bytes of a packed broadcast, of init_info */
	uint64_t since;     /* sync in which the update was started */
	bool *kept;         /* by the first param of a module: it keeps parts of a failed update;
	                     * owned */
	struct ws_json *last; /* body of the last update with names; owned */
	/* replies of the second worker that the engine has not read: exceptions, or NULL for
	 * success; owned; see ws_serve_vllm_worked */
	char *unread[8];
	size_t n_unread;
	ws_serve_vllm_result *result; /* of the last call; NULL: null */
};

int ws_serve_vllm_open(struct ws_serve *s, const struct ws_serve_opts *opts, struct ws_err *err);
void ws_serve_vllm_close(struct ws_serve_vllm *v); /* NULL is fine */
bool ws_serve_vllm_has(const struct ws_serve_call *c, unsigned lineages);

/* ---- answers ---- */

/* {"error":{"message","type","param":null,"code"}} */
void ws_serve_vllm_answer_error(struct ws_serve_call *c, unsigned status, const char *type,
                                const char *message);
/* A body or a query of the wrong form: 400, in the words of this version. */
void ws_serve_vllm_answer_invalid(struct ws_serve_call *c, const char *reason);
void ws_serve_vllm_answer_paused(struct ws_serve_call *c); /* 503 */
/* The workers raised an exception: 500. */
void ws_serve_vllm_fail(struct ws_serve_call *c, const char *exception);
/* In the scheduler, after a call of the workers. exception: NULL if they succeeded. False, and
 * answered: the engine reports an exception, of this call or of one before it. */
bool ws_serve_vllm_worked(struct ws_serve_call *c, const char *exception);
/* {key:text} */
void ws_serve_vllm_say(struct ws_serve_call *c, const char *key, const char *text);
/* Occupies the scheduler until ws_serve_release. False: the endpoint stops, no answer. */
bool ws_serve_vllm_enter(struct ws_serve_call *c, bool receiving);
/* A boolean of the query, as FastAPI reads it. False: another text, and answered. */
bool ws_serve_vllm_query_bool(struct ws_serve_call *c, const char *key, bool *out);

/* ---- the info dicts ---- */

struct ws_serve_vllm_init {
	struct ws_serve_init group;
	bool packed;
	uint64_t limit;
	char id[128];       /* group.nccl_id points here, or is NULL */
};
/* Writes the text of the exception to err. Strings are borrowed from info. */
int ws_serve_vllm_read_init(const struct ws_serve *s, const struct ws_json *info,
                            struct ws_serve_vllm_init *out, struct ws_err *err);
/* The same of an endpoint with {backend} ipc. */
int ws_serve_vllm_read_ipc_init(const struct ws_serve *s, const struct ws_json *info, bool *packed,
                                struct ws_err *err);
/* Fills in u's slots, without the numbers of their types and sizes. packed and limit keep their
 * values if the version has them in init_info. The caller calls ws_serve_update_fini. */
int ws_serve_vllm_read_update(const struct ws_serve *s, const struct ws_json *info,
                              struct ws_serve_update *u, bool *packed, uint64_t *limit,
                              struct ws_err *err);

/* ---- updates ---- */

extern const char ws_serve_vllm_group[]; /* the group's name in the journal */
/* Returns the end of the packed broadcast that begins with slot `first`: the slot that exceeds the
 * limit is in it. */
size_t ws_serve_vllm_cut(const struct ws_serve_slot *slots, size_t first, size_t n,
                         uint64_t limit);
/* In the scheduler: receives and loads. packed: in broadcasts of several tensors. */
int ws_serve_vllm_receive(struct ws_serve_call *c, struct ws_serve_update *u, bool packed,
                          uint64_t limit, struct ws_err *err);
/* In the scheduler: reads the tensors in the memory that update_info names, and loads them. */
int ws_serve_vllm_open_shared(struct ws_serve_call *c, const struct ws_json *info,
                              struct ws_serve_update *u, bool packed, struct ws_err *err);
/* Finds types and sizes, and forgets the tensors behind one that fails: *failure says why, if it is
 * not the model that refuses it. Of packed tensors, which are views of one buffer, all fail. */
void ws_serve_vllm_resolve(struct ws_serve *s, struct ws_serve_update *u, bool packed,
                           struct ws_err *failure);

/* ---- sessions, in the scheduler ---- */

void ws_serve_vllm_begin(struct ws_serve *s);
void ws_serve_vllm_abandon(struct ws_serve *s); /* an update failed */
/* Ends the session: modules that got a part of their weights get garbage for the rest. */
void ws_serve_vllm_end(struct ws_serve *s);
/* False: the engine crashed, because a prompt met layers without weights. Always true for other
 * families. */
bool ws_serve_vllm_can_generate(struct ws_serve_call *c);

/* ---- the routes ---- */

void ws_serve_route_vllm_version(struct ws_serve_call *c);
void ws_serve_route_vllm_world_size(struct ws_serve_call *c);
void ws_serve_route_vllm_info(struct ws_serve_call *c);
void ws_serve_route_vllm_is_paused(struct ws_serve_call *c);
void ws_serve_route_vllm_pause(struct ws_serve_call *c);
void ws_serve_route_vllm_resume(struct ws_serve_call *c);
void ws_serve_route_vllm_abort(struct ws_serve_call *c);
void ws_serve_route_vllm_reset_cache(struct ws_serve_call *c);
void ws_serve_route_vllm_reset_images(struct ws_serve_call *c);
void ws_serve_route_vllm_sleep(struct ws_serve_call *c);
void ws_serve_route_vllm_metrics(struct ws_serve_call *c);
void ws_serve_route_vllm_wake(struct ws_serve_call *c);
void ws_serve_route_vllm_init(struct ws_serve_call *c);
void ws_serve_route_vllm_start(struct ws_serve_call *c);
void ws_serve_route_vllm_update(struct ws_serve_call *c);
void ws_serve_route_vllm_finish(struct ws_serve_call *c);
void ws_serve_route_vllm_shutdown(struct ws_serve_call *c);
void ws_serve_route_vllm_set_version(struct ws_serve_call *c);
void ws_serve_route_vllm_weights(struct ws_serve_call *c);
void ws_serve_route_vllm_checker(struct ws_serve_call *c);
void ws_serve_route_vllm_rpc(struct ws_serve_call *c);
void ws_serve_route_vllm_complete(struct ws_serve_call *c);

#endif
