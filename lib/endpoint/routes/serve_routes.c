/* SPDX-License-Identifier: Apache-2.0 */
/* serve_routes.c - the steps common to all requests.
 *
 * Answers have the servers' forms: FastAPI's {"detail"} for unknown paths and methods, the
 * validation handler's {"object":"error"}, {"success","message"} from the scheduler. */
#include "http.h"
#include "serve_call.h"
#include "serve_lineage.h"
#include "serve_vllm.h"

#include "wsync/tool/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { GET = WS_SERVE_GET, POST = WS_SERVE_POST };

/* ---- answers ---- */

static void set_answer(struct ws_serve_reply *rp, unsigned status, const char *type)
{
	ws_buf_reset(&rp->body);
	rp->status = status;
	rp->type = type;
}

void ws_serve_answer(struct ws_serve_call *c, bool success, const char *fmt, ...)
{
	char text[3 * WS_SERVE_MAX_TEXT];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (!success && c->serve->vllm) {
		ws_serve_vllm_answer_error(c, 400, "Bad Request", text);
		return;
	}
	set_answer(c->rp, success ? 200 : 400, "application/json");
	struct ws_jw jw;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	if (c->tells_status)
		ws_jw_str(&jw, "status", success ? "ready" : "error");
	ws_jw_bool(&jw, "success", success);
	ws_jw_str(&jw, "message", text);
	if (c->counts_paused)
		ws_jw_int(&jw, "num_paused_requests", 0);
	ws_jw_end_object(&jw);
	ws_printable(c->note.message, sizeof c->note.message, text, strlen(text));
}

/* Answers 400 in the form of the servers' validation handler. */
static void answer_invalid(struct ws_serve_call *c, const char *message)
{
	char text[1024];
	if (c->serve->vllm) {
		ws_serve_vllm_answer_invalid(c, message);
		return;
	}
	snprintf(text, sizeof text, "1 validation error: %s", message);
	set_answer(c->rp, 400, "application/json");
	struct ws_jw jw;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_str(&jw, "object", "error");
	ws_jw_str(&jw, "message", text);
	ws_jw_str(&jw, "type", "Bad Request");
	ws_jw_null(&jw, "param");
	ws_jw_int(&jw, "code", 400);
	ws_jw_end_object(&jw);
	ws_printable(c->note.message, sizeof c->note.message, text, strlen(text));
}

void ws_serve_answer_error(struct ws_serve_call *c, unsigned status, const char *message)
{
	struct ws_jw jw;
	set_answer(c->rp, status, "application/json");
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_object(&jw, "error");
	ws_jw_str(&jw, "message", message);
	ws_jw_end_object(&jw);
	ws_jw_end_object(&jw);
}

size_t ws_serve_find_word(const char *const *words, size_t n, const char *word)
{
	size_t i = 0;
	while (i < n && strcmp(words[i], word) != 0)
		i++;
	return i;
}

const char *ws_serve_query(const struct ws_serve_call *c, const char *key)
{
	return c->rq->query ? c->rq->query(c->rq->query_ctx, key) : NULL;
}

const char ws_serve_stops[] = "the endpoint stops";

bool ws_serve_enter(struct ws_serve_call *c, bool receiving)
{
	const bool ok = ws_serve_acquire(c->serve, receiving);
	if (!ok)
		ws_serve_answer(c, false, "%s", ws_serve_stops);
	return ok;
}

bool ws_serve_begin_update(struct ws_serve_call *c, bool abort_all)
{
	if (!ws_serve_enter_update(c->serve, abort_all, &c->writer)) {
		ws_serve_answer(c, false, "%s", ws_serve_stops);
		return false;
	}
	if (ws_serve_enter(c, true))
		return true;
	ws_serve_leave_update(c->serve, c->writer);
	return false;
}

void ws_serve_end_update(struct ws_serve_call *c)
{
	ws_serve_release(c->serve);
	ws_serve_leave_update(c->serve, c->writer);
}

static void answer_fixed(struct ws_serve_reply *rp, unsigned status, const char *json)
{
	set_answer(rp, status, "application/json");
	ws_buf_puts(&rp->body, json);
}

/* ---- the key ---- */

bool ws_serve_admit(struct ws_serve *s, const struct ws_serve_request *rq,
                    struct ws_serve_reply *rp)
{
	const bool admin = s->admin_key && ws_http_wants_admin(rq->path);
	const char *key = admin ? s->admin_key : s->api_key;
	/* vLLM guards nothing but OpenAI's routes */
	if (!key || strncmp(rq->path, "/health", 7) == 0 ||
	    (s->vllm && strncmp(rq->path, "/v1", 3) != 0) ||
	    strcmp(rq->method, "OPTIONS") == 0 ||
	    ws_serve_has_key(rq, key, ws_serve_in(s->opts.lineage, WS_HAS_X_API_KEY)))
		return true;
	answer_fixed(rp, 401, "{\"error\":\"Unauthorized\"}");
	return false;
}

/* ---- one request ---- */

/* Counts the call. Returns the fault that is due, or NULL. */
static const struct ws_serve_fault *due_fault(struct ws_serve *s, const struct ws_serve_route *r)
{
	const uint64_t call = ++s->journal.calls[r - ws_serve_routes];
	for (size_t i = 0; i < s->n_faults; i++)
		if (strcmp(s->faults[i].route, r->name) == 0 &&
		    (s->faults[i].call == call ||
		     (s->faults[i].kind == WS_FAULT_BATCH_VARIANT && s->faults[i].call < call)))
			return &s->faults[i];
	return NULL;
}

/* Returns true if the fault replaces the answer. Faults midway in an update are left to routes. */
static bool misbehave(struct ws_serve_call *c, const struct ws_serve_route *r)
{
	struct ws_serve *s = c->serve;
	const bool later = r->run == ws_serve_route_update || r->run == ws_serve_route_receive ||
	                   r->run == ws_serve_route_scatter || r->run == ws_serve_route_disk ||
	                   r->run == ws_serve_route_vllm_update ||
	                   r->run == ws_serve_route_vllm_rpc;
	switch (c->fault) {
	case WS_FAULT_REFUSE:
		ws_serve_answer(c, false, "refused on request: fault refuse:%s", c->rq->path + 1);
		return true;
	case WS_FAULT_HANG:
		ws_serve_wait_stop(s);
		c->rp->drop = true;
		return true;
	case WS_FAULT_DIE:
	case WS_FAULT_DROP:
		if (!later && c->fault == WS_FAULT_DIE)
			ws_serve_die(s);
		c->rp->drop = !later;
		return !later;
	case WS_FAULT_SLOW:
		ws_serve_linger(s);
		return false;
	default:
		return false;
	}
}

/* Applies faults that make the answer unreadable, after the request is done. */
static void spoil_answer(struct ws_serve_call *c)
{
	static const char garbage[] = "\x16\x03\x01\xff{\"success\":tru\x80\xfe]]";
	c->rp->cut = c->fault == WS_FAULT_WRONG_LENGTH;
	if (c->fault == WS_FAULT_GARBAGE) {
		ws_buf_reset(&c->rp->body);
		ws_buf_add(&c->rp->body, garbage, sizeof garbage - 1);
	}
}

struct ws_json *ws_serve_take_body(struct ws_serve_call *c)
{
	struct ws_json *body = c->own_body;
	c->own_body = NULL;
	return body;
}

static void run_with_body(struct ws_serve_call *c, const struct ws_serve_route *r)
{
	struct ws_err err = WS_ERR_INIT;
	if (!c->rq->body_len && r->body == WS_SERVE_BODY) {
		answer_invalid(c, "body: Field required");
		return;
	}
	struct ws_json *root = NULL;
	if (c->rq->body_len && r->body != WS_SERVE_NO_BODY) {
		root = ws_json_parse_most(c->rq->body, c->rq->body_len, WS_JSON_LARGE, "body",
		                          &err);
		if (!root || ws_json_type(root) != WS_JSON_OBJECT) {
			answer_invalid(
				c, root ? "body: Input should be a valid dictionary or "
					  "object to extract fields from" :
					  err.msg);
			ws_json_free(root);
			return;
		}
	}
	c->body = c->own_body = root;
	r->run(c);
	if (c->invalid.code)
		answer_invalid(c, c->invalid.msg);
	ws_json_free(c->own_body);
	c->body = c->own_body = NULL;
}

static size_t begin_note(struct ws_serve_call *c, const struct ws_serve_route *r)
{
	struct ws_serve *s = c->serve;
	struct ws_serve_note *n = &c->note;
	ws_printable(n->method, sizeof n->method, c->rq->method, strlen(c->rq->method));
	ws_printable(n->path, sizeof n->path, c->rq->path, strlen(c->rq->path));
	pthread_mutex_lock(&s->lock);
	n->at_ns = ws_now_ns() - s->started_ns;
	const struct ws_serve_fault *fault = r ? due_fault(s, r) : NULL;
	c->fault = fault ? fault->kind : WS_FAULT_NONE;
	c->corrupt = c->fault == WS_FAULT_CORRUPT ? fault : NULL;
	snprintf(n->fault, sizeof n->fault, "%s", ws_serve_fault_name(c->fault));
	const size_t place = ws_serve_journal_begin(&s->journal, n);
	pthread_mutex_unlock(&s->lock);
	return place;
}

static void end_note(struct ws_serve_call *c, size_t place)
{
	struct ws_serve *s = c->serve;
	pthread_mutex_lock(&s->lock);
	/* After the scheduler has died, no request is answered. */
	c->rp->drop |= s->dead;
	c->note.ns = ws_now_ns() - s->started_ns - c->note.at_ns;
	c->note.status = c->rp->drop ? 0 : c->rp->status;
	ws_serve_journal_end(&s->journal, place, &c->note);
	pthread_mutex_unlock(&s->lock);
	ws_log(s->opts.log, 1, "%s %s: %u %s", c->note.method, c->note.path, c->note.status,
	       c->note.message);
}

static const struct ws_serve_route *match(const struct ws_serve *s,
                                          const struct ws_serve_request *rq,
                                          struct ws_serve_reply *rp)
{
	const struct ws_serve_route *r =
		rq->path[0] == '/' ? ws_serve_find_route(rq->path + 1, s->opts.lineage) : NULL;
	const unsigned method = strcmp(rq->method, "GET") == 0    ? GET
	                        : strcmp(rq->method, "POST") == 0 ? POST : 0;
	if (!r)
		answer_fixed(rp, 404, "{\"detail\":\"Not Found\"}");
	else if (r->methods & method)
		return r;
	else
		answer_fixed(rp, 405, "{\"detail\":\"Method Not Allowed\"}");
	if (r)
		rp->allow = r->methods == GET ? "GET" : r->methods == POST ? "POST" : "GET, POST";
	return NULL;
}

void ws_serve_handle(struct ws_serve *s, const struct ws_serve_request *rq,
                     struct ws_serve_reply *rp)
{
	*rp = (struct ws_serve_reply){ .status = 200, .type = "application/json" };
	ws_buf_init(&rp->body, 0);
	if (!ws_serve_admit(s, rq, rp))
		return;
	struct ws_serve_call c = { .serve = s, .rq = rq, .rp = rp };
	const struct ws_serve_route *r = match(s, rq, rp);
	if (r && r->run == ws_serve_route_journal) {
		r->run(&c); /* the journal does not list requests for itself */
		return;
	}
	const size_t place = begin_note(&c, r);
	if (r && !misbehave(&c, r)) {
		run_with_body(&c, r);
		spoil_answer(&c);
	}
	if (rp->body.failed)
		answer_fixed(rp, 500, "{\"detail\":\"Internal Server Error\"}");
	end_note(&c, place);
}
