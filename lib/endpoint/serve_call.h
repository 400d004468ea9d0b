/* SPDX-License-Identifier: Apache-2.0 */
/* serve_call.h - the state of one request, and the routes that handle it. */
#ifndef WS_ENDPOINT_SERVE_CALL_H
#define WS_ENDPOINT_SERVE_CALL_H

#include "serve_core.h"
#include "serve_decode.h"
#include "serve_http.h"

enum { WS_SERVE_TAGS = 3 };
extern const char *const ws_serve_tags[WS_SERVE_TAGS]; /* memory tags, serve_memory.c */

struct ws_serve_call {
	struct ws_serve *serve;
	const struct ws_serve_request *rq;
	struct ws_serve_reply *rp;
	const struct ws_json *body;
	enum ws_serve_fault_kind fault; /* a kind that the route handles: drop, die */
	const struct ws_serve_fault *corrupt; /* NULL: no such fault is due */
	/* set by the route when it refuses the body or the query; answered in the form of the
	 * servers' validation handler */
	struct ws_err invalid;
	bool writer;                    /* holds the model-update lock */
	bool counts_paused;             /* the answer has num_paused_requests, always 0 */
	bool tells_status;              /* the answer begins with "ready" or "error" */
	struct ws_serve_note note;
	struct ws_json *own_body;   /* body, if the request owns it; NULL: the route took it */
};

/* Takes the body, for data that points into it and outlives the request. The caller frees it. */
struct ws_json *ws_serve_take_body(struct ws_serve_call *c);

/* Answers {"success","message"} with 200 or 400. */
void ws_serve_answer(struct ws_serve_call *c, bool success, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/* Answers {"error": {"message"}}. */
void ws_serve_answer_error(struct ws_serve_call *c, unsigned status, const char *message);

/* Emulates an exception that a real server's scheduler does not catch: the endpoint ends. */
void ws_serve_crash(struct ws_serve_call *c, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));

/* Occupies the scheduler until ws_serve_release. False, and answered: the endpoint stops. */
bool ws_serve_enter(struct ws_serve_call *c, bool receiving);
/* Takes the model-update lock and the scheduler. False, and answered: the endpoint stops. */
bool ws_serve_begin_update(struct ws_serve_call *c, bool abort_all);
void ws_serve_end_update(struct ws_serve_call *c);

/* In the scheduler. NULL, and answered: there is no group of that name. */
struct ws_serve_group *ws_serve_named_group(struct ws_serve_call *c, const char *name);
/* In the scheduler. False, and answered: the KV cache is to be freed, but requests use it. */
bool ws_serve_may_free_kv(struct ws_serve_call *c, bool free_kv_cache);
/* In the scheduler, after the load: flushes and sets the version if requested, and answers. */
void ws_serve_finish_update(struct ws_serve_call *c, const struct ws_serve_update *u,
                            const char *success);
/* False, and answered: this server accepts updates only in a session. */
bool ws_serve_may_update(struct ws_serve_call *c);
/* In the scheduler. False, and answered: the weights were released. */
bool ws_serve_has_weights(struct ws_serve_call *c);
void ws_serve_drop_weights(struct ws_serve *s); /* in the scheduler: they become zeros */
/* In the scheduler. Needs weights or hashes that are kept. */
void ws_serve_answer_checksums(struct ws_serve_call *c);
void ws_serve_write_parallelism(struct ws_jw *jw, const struct ws_serve *s, unsigned tp_rank);
/* serve_runtime_sums.c; the model must have memory */
void ws_serve_answer_runtime_sums(struct ws_serve_call *c);
/* Returns the index of word in words, or n if it is not there. */
size_t ws_serve_find_word(const char *const *words, size_t n, const char *word);
/* A parameter of the query, or NULL. */
const char *ws_serve_query(const struct ws_serve_call *c, const char *key);

/* ---- the routes, serve_routes.c and serve_route_table.c ---- */

/* Returns false, with a complete 401, if the request lacks the key. Reads only headers. */
bool ws_serve_admit(struct ws_serve *s, const struct ws_serve_request *rq,
                    struct ws_serve_reply *rp);
/* Runs the request to its end. It may wait until a group has formed. */
void ws_serve_handle(struct ws_serve *s, const struct ws_serve_request *rq,
                     struct ws_serve_reply *rp);

enum { WS_SERVE_GET = 1, WS_SERVE_POST = 2 }; /* methods */
enum { WS_SERVE_NO_BODY, WS_SERVE_BODY, WS_SERVE_OPTIONAL_BODY };
/* A name may appear twice, for different lineages. The last entry has no name. */
extern const struct ws_serve_route {
	const char *name;  /* the path without its first slash */
	unsigned methods;
	unsigned body;     /* required, optional, or not read */
	void (*run)(struct ws_serve_call *c);
	unsigned lineages; /* set of the lineages that have the route */
} ws_serve_routes[];
/* NULL: the lineage has no such route. */
const struct ws_serve_route *ws_serve_find_route(const char *name, enum ws_serve_lineage lineage);
/* Returns the route's canonical name (no slash), or NULL if the lineage has no such route. */
const char *ws_serve_route_name(const char *name, enum ws_serve_lineage lineage);

/* The routes. Before a route runs, the reply is set to 200, JSON, empty. */
void ws_serve_route_health(struct ws_serve_call *c);
void ws_serve_route_health_generate(struct ws_serve_call *c);
void ws_serve_route_ready(struct ws_serve_call *c);
void ws_serve_route_open_chat(struct ws_serve_call *c);
void ws_serve_route_close_chat(struct ws_serve_call *c);
void ws_serve_route_model_info(struct ws_serve_call *c);
void ws_serve_route_server_info(struct ws_serve_call *c);
void ws_serve_route_models(struct ws_serve_call *c);
void ws_serve_route_journal(struct ws_serve_call *c);
void ws_serve_route_pause(struct ws_serve_call *c);
void ws_serve_route_continue(struct ws_serve_call *c);
void ws_serve_route_version(struct ws_serve_call *c);
void ws_serve_route_flush(struct ws_serve_call *c);
void ws_serve_route_clear_storage(struct ws_serve_call *c);
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
void ws_serve_route_discard(struct ws_serve_call *c);
void ws_serve_route_checker(struct ws_serve_call *c);
void ws_serve_route_checksums(struct ws_serve_call *c);
void ws_serve_route_list(struct ws_serve_call *c);
void ws_serve_route_values(struct ws_serve_call *c);
void ws_serve_route_generate(struct ws_serve_call *c);

#endif
