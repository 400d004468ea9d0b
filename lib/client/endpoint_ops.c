/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_ops.c - lifecycle calls to many endpoints at once, in the words of SGLang and vLLM. */
#include "endpoint_words.h"

#include "wsync/tool/json.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BODY_MAX = 64 * 1024 };

int ws_endpoint_health(const struct ws_call *to, struct ws_endpoint_answer *answers,
                       struct ws_err *err)
{
	const struct ws_lifecycle what = { .name = "health", .method = "GET", .path = "/health" };
	return ws_endpoint_tell(to, &what, answers, err);
}

/* Writes {key: value} into *body. */
static void write_pair(struct ws_buf *body, const char *key, const char *value, bool keep)
{
	struct ws_jw w;
	ws_buf_init(body, BODY_MAX);
	ws_jw_init(&w, body);
	ws_jw_object(&w, NULL);
	ws_jw_str(&w, key, value);
	if (keep)
		ws_jw_bool(&w, "abort_all_requests", false); /* servers default to true */
	ws_jw_end_object(&w);
}

/* The same body for all endpoints cannot be written. */
static int tell_none(const struct ws_call *to, const char *name, const struct ws_err *why,
                     struct ws_endpoint_answer *answers, struct ws_err *err)
{
	const struct ws_asking none = { .to = to, .name = name };
	ws_asking_cut_off(&none, why, answers);
	if (err)
		*err = *why;
	return -1;
}

/* vLLM's word for each mode. It has no retract and no none, which callers refuse first. */
static const char *const vllm_modes[] = {
	[WS_PAUSE_ABORT] = "abort", [WS_PAUSE_RETRACT] = "abort", [WS_PAUSE_IN_PLACE] = "keep",
	[WS_PAUSE_WAIT] = "wait",   [WS_PAUSE_NONE] = "abort",
};

int ws_endpoint_pause(const struct ws_call *to, enum ws_pause_mode mode, bool clear_cache,
                      struct ws_endpoint_answer *answers, struct ws_err *err)
{
	char body[64], path[64];
	snprintf(body, sizeof body, "{\"mode\":\"%s\"}", ws_pause_mode_name(mode));
	snprintf(path, sizeof path, "/pause?mode=%s&clear_cache=%s", vllm_modes[mode],
	         clear_cache ? "true" : "false");
	const struct ws_words sglang = { "POST", "/pause_generation", body };
	const struct ws_words vllm = { "POST", path, NULL };
	return ws_endpoint_tell_in_words(to, "pause", sglang, vllm, answers, err);
}

int ws_endpoint_resume(const struct ws_call *to, struct ws_endpoint_answer *answers,
                       struct ws_err *err)
{
	const struct ws_words sglang = { "POST", "/continue_generation", "{}" };
	const struct ws_words vllm = { "POST", "/resume", NULL };
	return ws_endpoint_tell_in_words(to, "resume", sglang, vllm, answers, err);
}

int ws_endpoint_check_version(const char *version, struct ws_err *err)
{
	if (version && strcmp(version, "default") == 0) {
		ws_err_set(err, WS_EUSAGE, "the weight version 'default' would say nothing: every "
		           "fresh SGLang reports it");
		return ws_err_hint(err, "give these weights another version");
	}
	if (!version || *version)
		return ws_check_label(version, "{weight_version}", WS_VERSION_MAX, err);
	ws_err_set(err, WS_EUSAGE, "the weight version is empty");
	return ws_err_hint(err, "is a variable of the shell not set?");
}

struct integer {
	bool negative;
	const char *digits; /* without zeros before them; none: 0 */
	size_t n;
};

/* Decimal digits, however many, perhaps after a sign; blanks around them do not count. */
static bool read_integer(const char *text, struct integer *out)
{
	text += strspn(text, " ");
	out->negative = *text == '-';
	text += *text == '-' || *text == '+';
	const size_t n = strspn(text, "0123456789"), zeros = strspn(text, "0");
	out->digits = text + zeros;
	out->n = n - zeros;
	out->negative = out->negative && out->n;
	return n && !text[n + strspn(text + n, " ")];
}

bool ws_endpoint_is_older(const char *version, const char *than)
{
	struct integer a, b;
	if (!read_integer(version, &a) || !read_integer(than, &b))
		return false;
	if (a.negative != b.negative)
		return a.negative;
	const int larger = a.n != b.n ? (a.n > b.n) - (a.n < b.n) : memcmp(a.digits, b.digits, a.n);
	return a.negative ? larger > 0 : larger < 0;
}

int ws_endpoint_set_version(const struct ws_call *to, const char *version,
                            struct ws_endpoint_answer *answers, struct ws_err *err)
{
	static const char path[] = "/update_weight_version";
	struct ws_buf bodies[2];
	struct ws_err why = WS_ERR_INIT;
	int rc;
	write_pair(&bodies[0], "new_version", version, true);
	write_pair(&bodies[1], "new_version", version, false);
	if (ws_buf_check(&bodies[0], "version", &why)) {
		rc = tell_none(to, "version", &why, answers, err);
	} else {
		const struct ws_words sglang = { "POST", path, ws_buf_str(&bodies[0]) };
		const struct ws_words vllm = { "POST", path, ws_buf_str(&bodies[1]) };
		rc = ws_endpoint_tell_in_words(to, "version", sglang, vllm, answers, err);
	}
	ws_buf_free(&bodies[0]);
	ws_buf_free(&bodies[1]);
	return rc;
}

/* Every known server reports this in its message only. */
bool ws_endpoint_knew_none(const struct ws_endpoint_answer *a)
{
	return strstr(a->message, "does not exist") != NULL;
}

/* vLLM's group has no name. Our worker extension always ends it. vLLM's own route came with 0.32,
 * and fails inside an update. */
static struct ws_words vllm_leave(const struct ws_call *to)
{
	static const struct ws_words rpc = { "POST", "/collective_rpc",
		                          "{\"method\":\"wsync_leave\"}" };
	static const struct ws_words shutdown = { "POST", "/shutdown_weight_transfer_engine",
		                                  NULL };
	bool can = true, gloo = to->infos, any = false;
	for (size_t i = 0; to->infos && i < to->n; i++) {
		if (ws_lineage_family(to->infos[i]->lineage) != WS_FAMILY_VLLM)
			continue;
		any = true;
		can &= to->infos[i]->can.shutdown;
		gloo &= to->infos[i]->gloo_worker;
	}
	return gloo && any ? rpc : can ? shutdown : (struct ws_words){ 0 };
}

int ws_endpoint_destroy_group(const struct ws_call *to, const char *group_name,
                              struct ws_endpoint_answer *answers, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	struct ws_buf body;
	write_pair(&body, "group_name", group_name, false);
	const struct ws_words sglang = { "POST", "/destroy_weights_update_group",
		                         ws_buf_str(&body) };
	const struct ws_words vllm = vllm_leave(to);
	int rc = ws_buf_check(&body, "destroy", &why) ?
	                 tell_none(to, "destroy", &why, answers, err) :
	                 ws_endpoint_tell_in_words(to, "destroy", sglang, vllm, answers, &why);
	ws_buf_free(&body);
	if (rc == 0)
		return 0;
	if (why.code == WS_ECANCELLED || why.code == WS_ESYSTEM) {
		if (err)
			*err = why;
		return -1;
	}
	for (size_t i = 0; i < to->n; i++)
		if (answers[i].err.code == WS_EREFUSED && ws_endpoint_knew_none(&answers[i]))
			answers[i].err = (struct ws_err)WS_ERR_INIT;
	return ws_endpoint_sum_up("destroy", to->n, answers, err);
}

int ws_endpoint_reset_weights(const struct ws_call *to, const struct ws_buf *bodies,
                              struct ws_endpoint_answer *answers, struct ws_err *err)
{
	const struct ws_lifecycle what = { .name = "reset_tensors", .method = "POST",
		                           .path = "/weights_checker", .bodies = bodies };
	return ws_endpoint_tell(to, &what, answers, err);
}

/* ---- flush: refused while requests are running ---- */

/* SGLang answers 400, vLLM 200 with "success": false. */
bool ws_endpoint_is_busy(const struct ws_err *said)
{
	return said->code == WS_EREFUSED &&
	       (said->native == 400 ||
	        (said->native == 200 && strstr(said->msg, "/reset_prefix_cache: refused")));
}

bool ws_endpoint_is_silent_reset(const struct ws_err *said)
{
	/* Only an empty reply has this hint: another may be that of a proxy. */
	return said->code == WS_EREFUSED && said->native == 200 &&
	       strstr(said->msg, "/reset_prefix_cache: the reply") &&
	       strstr(said->hint, ws_endpoint_silent_hint);
}

static bool any_busy(const struct ws_endpoint_answer *answers, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (ws_endpoint_is_busy(&answers[i].err))
			return true;
	return false;
}

/* Asks all endpoints, then the busy ones again until `last`. */
static int flush_all(struct ws_asking *a, ws_deadline last, struct ws_endpoint_answer *answers,
                     struct ws_err *err)
{
	const struct ws_call *to = a->to;
	const int64_t pause_ns = WS_NS_PER_S / 2;
	int rc = ws_asking_round(a, NULL, answers, err);
	while (!rc && any_busy(answers, to->n) && ws_deadline_left(last) >= pause_ns) {
		const ws_deadline again = ws_deadline_in(pause_ns);
		while (!rc && !ws_deadline_passed(again))
			rc = ws_http_wait(to->http, again, to->cancel, -1, err) < 0 ? -1 : 0;
		if (!rc)
			rc = ws_asking_round(a, ws_endpoint_is_busy, answers, err);
	}
	return rc;
}

int ws_endpoint_flush(const struct ws_call *to, ws_deadline patience,
                      struct ws_endpoint_answer *answers, struct ws_err *err)
{
	struct ws_err why = WS_ERR_INIT;
	struct ws_asking a = { .to = to, .name = "flush",
		               .words = { { "GET", "/flush_cache", NULL },
		                          { "POST", "/reset_prefix_cache?reset_external=true",
		                            NULL } } };
	int rc = ws_asking_open(&a, &why);
	if (rc == 0)
		rc = flush_all(&a, ws_deadline_min(patience, to->until), answers, &why);
	if (rc) {
		ws_asking_cut_off(&a, &why, answers);
		if (err)
			*err = why;
	} else {
		rc = ws_endpoint_sum_up("flush", to->n, answers, err);
		if (rc && any_busy(answers, to->n))
			ws_err_hint(err, "a server flushes only when nothing runs or waits: pause "
			                 "it in mode abort first, or wait longer");
	}
	ws_asking_close(&a);
	return rc;
}
