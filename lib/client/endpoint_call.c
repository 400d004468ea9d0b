/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_call.c - sends one request and decides whether the server has done it.
 *
 * Failure: a status other than 2xx, a "success" other than true, an "error", a "status" of error.
 * Success: a 2xx reply in the form of that route, to a request that was sent completely. Each
 * route that changes a server has a form of its own (sentences[], answers[]). A proxy's page, {} or
 * another message does not confirm the request. Other routes return data, which their callers
 * check. */
#include "endpoint_call.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { WORDS_MAX = 256 };

/* ---- requests ---- */

int ws_endpoint_prepare(struct ws_endpoint_call *call, const char *url, const char *method,
                        const char *path, const struct ws_buf *body, ws_deadline until,
                        struct ws_err *err)
{
	ws_json_free(call->root);
	call->root = NULL;
	const int n = snprintf(call->url, sizeof call->url, "%s%s", url, path);
	if (n < 0 || (size_t)n >= sizeof call->url)
		return ws_err_set(err, WS_EUSAGE, "%s %.60s...: path is too long", method, path);
	call->base_len = strlen(url);
	snprintf(call->path, sizeof call->path, "%.*s", (int)strcspn(path, "?"), path);
	call->http.method = method;
	call->http.admin = ws_http_wants_admin(call->path);
	call->http.url = call->url;
	call->http.body = body && body->len ? body->data : NULL;
	call->http.body_len = body ? body->len : 0;
	call->http.until = until;
	call->http.done = false;
	return 0;
}

ws_deadline ws_endpoint_later(ws_deadline until)
{
	const ws_deadline least = ws_deadline_in(WS_NS_PER_S);
	return until > least ? until : least;
}

int ws_endpoint_start(struct ws_http *http, struct ws_endpoint_call *call, const char *url,
                      const char *method, const char *path, const struct ws_buf *body,
                      ws_deadline until, struct ws_err *err)
{
	if (ws_endpoint_prepare(call, url, method, path, body, until, err))
		return -1;
	return ws_http_start(http, &call->http, err);
}

int ws_endpoint_run(struct ws_http *http, struct ws_endpoint_call *calls, size_t n,
                    const struct ws_cancel *cancel, struct ws_err *err)
{
	struct ws_http_call **list = calloc(n ? n : 1, sizeof *list);
	size_t n_list = 0;
	if (!list)
		return ws_oom(err);
	for (size_t i = 0; i < n; i++)
		if (calls[i].http.url && !calls[i].http.done)
			list[n_list++] = &calls[i].http;
	const int rc = ws_http_run(http, list, n_list, cancel, err);
	free(list);
	return rc;
}

void ws_endpoint_call_free(struct ws_endpoint_call *call)
{
	if (!call)
		return;
	ws_json_free(call->root);
	call->root = NULL;
	ws_buf_free(&call->http.reply);
}

int ws_endpoint_take(struct ws_endpoint_call *calls, size_t n, const struct ws_err *why,
                     ws_endpoint_reader *read, void *ctx, struct ws_err *errs, struct ws_err *err)
{
	const struct ws_err *first = why->code ? why : NULL;
	for (size_t i = 0; i < n; i++) {
		errs[i] = *why;
		if (!why->code && read(ctx, calls, i, errs) && !first)
			first = &errs[i];
	}
	for (size_t i = 0; calls && i < n; i++)
		ws_endpoint_call_free(&calls[i]);
	free(calls);
	if (first && err)
		*err = *first;
	return first ? -1 : 0;
}

/* ---- the server's message ---- */

/* Foreign text on one line: runs of blanks and line ends become one blank. */
static void quote(char *dst, size_t n, const char *text, size_t len)
{
	char line[WORDS_MAX * 2];
	size_t used = 0;
	for (size_t i = 0; i < len && used < sizeof line; i++) {
		const bool blank = strchr(" \t\r\n", text[i]) && text[i];
		if (!blank)
			line[used++] = text[i];
		else if (used && line[used - 1] != ' ')
			line[used++] = ' ';
	}
	while (used && line[used - 1] == ' ')
		used--;
	ws_printable(dst, n, line, used);
}

/* Quotes the first of FastAPI's validation errors, as "body.names: field required". */
static void quote_validation(char *dst, size_t n, const struct ws_json *detail)
{
	const struct ws_json *first = ws_json_first(detail);
	const char *msg = ws_json_get_string(first, "msg", "");
	char text[WORDS_MAX * 2] = "";
	size_t used = 0;
	const struct ws_json *loc = ws_json_get(first, "loc");
	for (const struct ws_json *l = ws_json_first(loc); l; l = ws_json_next(l)) {
		const char *part = ws_json_string(l);
		if (part && used < sizeof text)
			used += (size_t)snprintf(text + used, sizeof text - used, "%s%s",
			                         used ? "." : "", part);
	}
	if (used < sizeof text)
		used += (size_t)snprintf(text + used, sizeof text - used, "%s%s", used ? ": " : "",
		                         msg);
	quote(dst, n, text, strlen(text));
}

static void find_words(const struct ws_endpoint_call *call, char *dst, size_t n)
{
	const struct ws_buf *reply = &call->http.reply;
	const struct ws_json *root = call->root;
	const struct ws_json *error = ws_json_get(root, "error");
	const struct ws_json *detail = ws_json_get(root, "detail");
	const char *words = ws_json_get_string(root, "message", NULL);
	dst[0] = '\0';
	if (!words || !*words)
		words = ws_json_get_string(error, "message", words);
	if (!words || !*words)
		words = ws_json_string(error) ? ws_json_string(error) : words;
	if (!words || !*words)
		words = ws_json_string(detail) ? ws_json_string(detail) : words;
	if (!words || !*words)
		words = ws_json_string(root) ? ws_json_string(root) : words;
	if (words && *words)
		quote(dst, n, words, strlen(words));
	else if (ws_json_type(detail) == WS_JSON_ARRAY)
		quote_validation(dst, n, detail);
	else if (!root && reply->len && reply->data[0] != '<') /* skip HTML pages */
		quote(dst, n, reply->data, reply->len);
}

/* ---- failures ---- */

/* An "error" of null, false or "" is not an error. */
static bool reports_error(const struct ws_json *root)
{
	const struct ws_json *error = ws_json_get(root, "error");
	const char *text = ws_json_string(error);
	return text ? *text : ws_json_type(error) == WS_JSON_BOOL ? ws_json_bool(error, true) :
	       ws_json_type(error) != WS_JSON_NULL;
}

static bool says_no(const struct ws_json *root)
{
	if (ws_json_type(root) != WS_JSON_OBJECT)
		return false;
	const struct ws_json *success = ws_json_get(root, "success");
	const char *status = ws_json_get_string(root, "status", "");
	return (success && !ws_json_bool(success, false)) || reports_error(root) ||
	       !strcmp(ws_json_get_string(root, "object", ""), "error") ||
	       !strcmp(status, "error") || !strcmp(status, "failed");
}

/* ---- confirmations ---- */

static bool has_success(const struct ws_endpoint_call *call, const char *words)
{
	(void)words;
	return ws_json_type(call->root) == WS_JSON_OBJECT &&
	       ws_json_get_bool(call->root, "success", false) && !ws_json_duplicate(call->root);
}

static bool has_status(const struct ws_endpoint_call *call, const char *word)
{
	return ws_json_type(call->root) == WS_JSON_OBJECT && !ws_json_duplicate(call->root) &&
	       !strcmp(ws_json_get_string(call->root, "status", ""), word);
}

/* SGLang: {"message":"Generation paused successfully.","status":"ok"}, without "success". */
static bool has_status_ok(const struct ws_endpoint_call *call, const char *words)
{
	return has_status(call, "ok") || has_success(call, words);
}

/* SGLang answers null. vLLM sends an empty body up to 0.27, later {"status":"sleeping"} or "awake"
 * (also when only a part is woken). */
static bool is_quiet(const struct ws_endpoint_call *call, const char *words)
{
	const struct ws_buf *reply = &call->http.reply;
	return !reply->len || (call->root && ws_json_type(call->root) == WS_JSON_NULL) ||
	       has_status(call, "sleeping") || has_status(call, "awake") ||
	       has_status_ok(call, words);
}

/* Plain text: "Cache flushed.\nPlease check backend logs ...". */
static bool has_flushed(const struct ws_endpoint_call *call, const char *words)
{
	return !strncmp(words, "Cache flushed", strlen("Cache flushed")) ||
	       has_success(call, words);
}

/* vLLM: an empty body, after the caches were emptied. */
static bool has_nothing(const struct ws_endpoint_call *call, const char *words)
{
	(void)words;
	return !call->http.reply.len;
}

/* Plain text, also with a failure's status. */
static bool has_cleared(const struct ws_endpoint_call *call, const char *words)
{
	(void)call;
	return !strncmp(words, "Hierarchical cache storage backend cleared",
	                strlen("Hierarchical cache storage backend cleared"));
}

/* {"results": [one per worker]} */
static bool has_results(const struct ws_endpoint_call *call, const char *words)
{
	(void)words;
	const struct ws_json *results = ws_json_get(call->root, "results");
	return ws_json_type(results) == WS_JSON_ARRAY && ws_json_count(results) > 0 &&
	       !ws_json_duplicate(call->root);
}

/* vLLM's routes whose reply is {"message": text} or {"status": text}, by their whole path. */
static const struct {
	const char *path, *key, *text;
} sentences[] = {
	{ "/pause", "status", "paused" },
	{ "/resume", "status", "resumed" },
	{ "/init_weight_transfer_engine", "message", "Weight transfer initialized" },
	{ "/start_weight_update", "message", "Weight update started" },
	{ "/update_weights", "message", "Weights updated" },
	{ "/finish_weight_update", "message", "Weight update finished" },
	{ "/shutdown_weight_transfer_engine", "message", "Weight transfer shut down" },
};

/* How each route confirms a request; paths[] are prefixes. */
static const struct {
	bool (*agrees)(const struct ws_endpoint_call *call, const char *words);
	const char *paths[11];
} answers[] = {
	{ has_success,
	  { "/init_weights", "/destroy_weights", "/update_weight", "/prepare_weights",
	    "/complete_weights", "/receive_weights", "/begin_weight", "/end_weight",
	    "/post_process", "/weights_checker" } },
	{ has_status_ok, { "/pause_generation", "/continue_generation" } },
	{ is_quiet,
	  { "/release_memory_occupation", "/resume_memory_occupation", "/sleep", "/wake_up" } },
	{ has_flushed, { "/flush_cache" } },
	{ has_success, { "/reset_prefix_cache" } },
	{ has_nothing, { "/reset_mm_cache", "/reset_encoder_cache" } },
	{ has_cleared, { "/hicache/storage-backend/clear", "/clear_hicache_storage_backend" } },
	{ has_results, { "/collective_rpc" } },
};

/* True if the reply confirms the request, or if its route is in neither table. */
static bool is_expected(const struct ws_endpoint_call *call, const char *words)
{
	for (size_t i = 0; i < sizeof sentences / sizeof *sentences; i++)
		if (strcmp(call->path, sentences[i].path) == 0)
			return !ws_json_duplicate(call->root) &&
			       !strcmp(ws_json_get_string(call->root, sentences[i].key, ""),
			               sentences[i].text);
	for (size_t i = 0; i < sizeof answers / sizeof *answers; i++)
		for (const char *const *p = answers[i].paths; *p; p++)
			if (strncmp(call->path, *p, strlen(*p)) == 0)
				return answers[i].agrees(call, words);
	return true;
}

const char ws_endpoint_silent_hint[] =
	"this version of vLLM does not say whether it dropped the cache, but a pause does it: "
	"wsync-ctl pause, then wsync-ctl resume";

static int refuse_unexpected(const struct ws_endpoint_call *call, const char *words,
                             struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED,
	           "%s %s: the reply (HTTP %ld) does not say that it was done%s%s%s",
	           call->http.method, call->path, call->http.status, *words ? ": \"" : "", words,
	           *words ? "\"" : "");
	/* vLLM up to 0.25 answers so in any case. */
	if (strcmp(call->path, "/reset_prefix_cache") == 0 && !call->http.reply.len)
		ws_err_hint(err, "%s", ws_endpoint_silent_hint);
	else
		ws_err_hint(err, "perhaps a proxy answered: it is not known whether the server "
		                 "received the request");
	if (err)
		err->native = (int)call->http.status;
	return -1;
}

/* A server reads a whole request before it acts: a server that replies sooner has not acted. */
static int refuse_early(const struct ws_endpoint_call *call, struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED,
	           "%s %s: HTTP %ld arrived before the request was sent completely",
	           call->http.method, call->path, call->http.status);
	ws_err_hint(err, "perhaps a proxy answered: the server did not receive the whole request");
	if (err)
		err->native = (int)call->http.status;
	return -1;
}

static void hint_at(const struct ws_http_call *http, struct ws_err *err)
{
	const long status = http->status;
	if (status == 401 && http->as_admin)
		ws_err_hint(err,
		            "the server refused the admin key. A server without an admin key wants "
		            "its API key: leave out {admin_api_key}. If only some of the servers "
		            "have an admin key, run this once for those and once for the others");
	else if (status == 401 || status == 403)
		ws_err_hint(err,
		            "the server wants its API key: give it with {api_key}, and its admin "
		            "key, where it has one, with {admin_api_key}");
	else if (status == 404)
		ws_err_hint(err, "this server, or its version, cannot do that");
	else if (status == 502 || status == 504)
		ws_err_hint(err, "a proxy answered, which does not reach the server");
	else if (status == 503)
		ws_err_hint(err,
		            "the server is starting or overloaded, or a proxy does not reach it");
	else if (status >= 300 && status < 400)
		ws_err_hint(err, "redirects are not followed: name the server itself");
}

static int refuse_words(const struct ws_endpoint_call *call, const char *words, struct ws_err *err)
{
	const struct ws_http_call *http = &call->http;
	const char *what = http->status == 404   ? "the server has no such route"
	                   : http->status == 405 ? "the server does not take this method"
	                                         : "refused";
	ws_err_set(err, WS_EREFUSED, "%s %s: %s (HTTP %ld)%s%s%s", http->method, call->path, what,
	           http->status, *words ? ": \"" : "", words, *words ? "\"" : "");
	hint_at(http, err);
	if (err)
		err->native = (int)http->status;
	return -1;
}

static bool begins(const char *text, const char *with)
{
	return with && strncmp(text, with, strlen(with)) == 0;
}

/* Do all parts of the text begin with one of the two, and at least one of them with `with`? With
 * several schedulers, SGLang joins their messages with " | ". */
static bool all_begin(const char *text, const char *with, const char *also)
{
	static const char joint[] = " | ";
	bool found = false;
	for (;;) {
		if (!begins(text, with) && !begins(text, also))
			return false;
		found = found || begins(text, with);
		const char *next = strstr(text, joint);
		if (!next)
			return found;
		text = next + strlen(joint);
	}
}

static bool refuses_update(const struct ws_endpoint_call *call, const char *with, const char *also)
{
	return begins(call->path, "/update_weights_from_") && call->http.status == 400 &&
	       call->http.sent && ws_json_type(call->root) == WS_JSON_OBJECT &&
	       !ws_json_duplicate(call->root) && !ws_json_get_bool(call->root, "success", true) &&
	       all_begin(ws_json_get_string(call->root, "message", ""), with, also);
}

/* SGLang since 0.5.22 loads, then finds requests when it is to flush. Since 0.5.23 it refuses all
 * updates if it has copies of weights that an update would not change. */
static void read_refusal(struct ws_endpoint_call *call)
{
	call->unflushed = refuses_update(
		call, "Weights were updated, but the cache was not flushed", "Succe");
	call->unloaded = refuses_update(call, "Online weight updates ", NULL);
}

static int read_status(struct ws_endpoint_call *call, const char *words, struct ws_err *err)
{
	const long status = call->http.status;
	read_refusal(call);
	if (call->http.err.code) {
		if (err)
			*err = call->http.err;
		return -1;
	}
	if (call->unflushed)
		return 0;
	if (status < 200 || status > 299 || says_no(call->root))
		return refuse_words(call, words, err);
	if (call->http.body_len && !call->http.sent)
		return refuse_early(call, err);
	return is_expected(call, words) ? 0 : refuse_unexpected(call, words, err);
}

/* Proxies send these statuses when a server is slow or busy. The server may have received the
 * request and may still execute it. */
static bool is_of_a_proxy(int status)
{
	return status == 408 || status == 425 || status == 429 || (status >= 502 && status <= 504);
}

bool ws_endpoint_said_no(const struct ws_err *err)
{
	return err->code == WS_EREFUSED && (err->native < 200 || err->native > 299) &&
	       !is_of_a_proxy(err->native);
}

int ws_endpoint_reply(struct ws_endpoint_call *call, const struct ws_json **root, char *message,
                      size_t n, struct ws_err *err)
{
	const struct ws_buf *reply = &call->http.reply;
	char words[WORDS_MAX] = "", base[WS_URL_MAX];
	if (!call->root && reply->len && !call->http.err.code)
		call->root = ws_json_parse_most(reply->data, reply->len, WS_JSON_LARGE, "reply",
		                                NULL);
	if (!call->http.err.code)
		find_words(call, words, sizeof words);
	const int rc = read_status(call, words, err);
	if (rc) {
		snprintf(base, sizeof base, "%.*s", (int)call->base_len, call->url);
		ws_err_where(err, NULL, base);
	}
	if (message && n)
		snprintf(message, n, "%s", words);
	if (root)
		*root = call->root;
	return rc;
}
