/* SPDX-License-Identifier: Apache-2.0 */
/* journal_open_update.c - ends the update that a push left open on a server. The server refuses all
 * other updates until then. Only the kind of the update is known:
 *
 *   session           POST /end_weight_update {}
 *   processing        POST /post_process_weights {"restore_weights_before_load":false,
 *                     "post_process_quantization":true}
 *   two-phase         POST /complete_weights_update {"group_name","flush_cache":false,
 *                     "run_post_process_weights":false,"transport":"nccl_broadcast"}
 *   two-phase-flat    the same with "load_format":"flattened_bucket"
 *   transfer          POST /finish_weight_update {}, if the workers say that one is open
 *   disk              none: the server was not asked to load the checkpoint yet
 *
 * wsync-endpoint drops a two-phase update without loading it: POST /discard_weights_update, with
 * the same body. Other servers have no such route.
 *
 * The server has left the group before, so the thread of a two-phase update has ended: usually
 * the server refuses the completion and accepts other updates again. The request sets no weight
 * version, because the loaded weights are unknown. */
#include "journal_core.h"

#include "endpoint_call.h"
#include "vllm_workers.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = { "",          "session",        "processing",
	                             "two-phase", "two-phase-flat", "transfer", "disk" };
static const char *const paths[] = { "",
	                             "/end_weight_update",
	                             "/post_process_weights",
	                             "/complete_weights_update",
	                             "/complete_weights_update",
	                             "", /* ws_vllm_end_updates */
	                             "" };

const char *ws_open_update_name(enum ws_open_update open_update)
{
	return (unsigned)open_update < WS_N_OPEN_UPDATES ? names[open_update] : "";
}

static void write_body(enum ws_open_update open_update, const char *group, struct ws_buf *body)
{
	struct ws_jw w;
	ws_jw_init(&w, body);
	ws_jw_object(&w, NULL);
	if (open_update == WS_UPDATE_PROCESSING) {
		ws_jw_bool(&w, "restore_weights_before_load", false);
		ws_jw_bool(&w, "post_process_quantization", true);
	} else if (open_update != WS_UPDATE_SESSION) {
		ws_jw_str(&w, "group_name", group);
		ws_jw_bool(&w, "flush_cache", false);
		ws_jw_bool(&w, "run_post_process_weights", false);
		ws_jw_str(&w, "transport", "nccl_broadcast");
		if (open_update == WS_UPDATE_TWO_PHASE_FLAT)
			ws_jw_str(&w, "load_format", "flattened_bucket");
	}
	ws_jw_end_object(&w);
}

static bool is_two_phase(enum ws_open_update open_update)
{
	return open_update == WS_UPDATE_TWO_PHASE || open_update == WS_UPDATE_TWO_PHASE_FLAT;
}

/* One request to each endpoint with an open update that its server knows of. */
struct ends {
	const struct ws_journal_endpoint *those;
	size_t n;
	const char *path;               /* of two-phase updates only; NULL: that of the update */
	struct ws_endpoint_call *calls; /* one for each endpoint, like the next */
	struct ws_buf *bodies;
};

static void free_ends(struct ends *e)
{
	for (size_t i = 0; e->calls && e->bodies && i < e->n; i++) {
		ws_endpoint_call_free(&e->calls[i]);
		ws_buf_free(&e->bodies[i]);
	}
	free(e->calls);
	free(e->bodies);
}

static int send_ends(struct ws_http *http, struct ends *e, const char *group, ws_deadline until,
                     const struct ws_cancel *cancel, struct ws_err *err)
{
	e->calls = calloc(e->n + 1, sizeof *e->calls);
	e->bodies = calloc(e->n + 1, sizeof *e->bodies);
	if (!e->calls || !e->bodies)
		return ws_oom(err);
	for (size_t i = 0; i < e->n; i++)
		ws_buf_init(&e->bodies[i], 4096);
	for (size_t i = 0; i < e->n; i++) {
		const enum ws_open_update open_update = e->those[i].open_update;
		if (!*paths[open_update] || (e->path && !is_two_phase(open_update)))
			continue;
		write_body(open_update, group, &e->bodies[i]);
		if (ws_buf_check(&e->bodies[i], "request", err) ||
		    ws_endpoint_prepare(&e->calls[i], e->those[i].url, "POST",
		                        e->path ? e->path : paths[open_update], &e->bodies[i],
		                        until, err))
			return -1;
	}
	return ws_endpoint_run(http, e->calls, e->n, cancel, err);
}

/* A server that refuses has ended the update already, or never began it. */
static bool has_ended(struct ws_endpoint_call *call, const struct ws_journal_endpoint *e,
                      bool *loaded)
{
	struct ws_err why = WS_ERR_INIT;
	const bool asked = *paths[e->open_update];
	const bool ok = asked && ws_endpoint_reply(call, NULL, NULL, 0, &why) == 0;
	if (loaded)
		*loaded = ok && is_two_phase(e->open_update);
	return !asked || ok || ws_endpoint_said_no(&why);
}

/* Clears `open_update` of vLLMs that are in no update now. */
static int end_transfers(struct ws_http *http, struct ws_journal_endpoint *those, size_t n,
                         ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err)
{
	struct ws_endpoint_answer *answers = calloc(n + 1, sizeof *answers);
	const char **urls = calloc(n + 1, sizeof *urls);
	struct ws_err why = WS_ERR_INIT;
	size_t k = 0;
	int rc = answers && urls ? 0 : ws_oom(err);
	for (size_t i = 0; rc == 0 && i < n; i++)
		if (those[i].open_update == WS_UPDATE_TRANSFER)
			urls[k++] = those[i].url;
	const struct ws_call to = { http, urls, k, until, cancel, NULL };
	if (k && ws_vllm_end_updates(&to, answers, &why) && why.code == WS_ECANCELLED) {
		if (err)
			*err = why;
		rc = -1;
	}
	for (size_t i = n; rc == 0 && k && i-- > 0;)
		if (those[i].open_update == WS_UPDATE_TRANSFER) {
			const struct ws_err *said = &answers[--k].err;
			/* One that refuses is still inside: 500. */
			if (said->code == WS_OK || said->native == 404 || said->native == 405)
				those[i].open_update = WS_UPDATE_NONE;
		}
	free(answers);
	free(urls);
	return rc;
}

int ws_journal_end_updates(struct ws_http *http, struct ws_journal_endpoint *those, size_t n,
                           const char *group, ws_deadline until, const struct ws_cancel *cancel,
                           bool *loaded, struct ws_err *err)
{
	struct ends e = { .those = those, .n = n };
	const int rc = end_transfers(http, those, n, until, cancel, err) ||
	                               send_ends(http, &e, group, until, cancel, err) ?
	                       -1 :
	                       0;
	for (size_t i = 0; rc == 0 && i < n; i++)
		if (those[i].open_update && those[i].open_update != WS_UPDATE_TRANSFER &&
		    has_ended(&e.calls[i], &those[i], loaded ? &loaded[i] : NULL))
			those[i].open_update = WS_UPDATE_NONE;
	free_ends(&e);
	return rc;
}

static void hear_drop(struct ws_endpoint_call *call, struct ws_journal_endpoint *e,
                      struct ws_err *why)
{
	const int rc = ws_endpoint_reply(call, NULL, NULL, 0, why);
	const bool lacks = rc && (why->native == 404 || why->native == 405);
	if (lacks) {
		ws_err_set(why, WS_EREFUSED, "%s: its server cannot drop a prepared update",
		           e->url);
		ws_err_hint(why, "complete it, or restart the server");
		ws_err_where(why, NULL, e->url);
	} else if (rc == 0 ||
	           (ws_endpoint_said_no(why) && strcasestr(why->msg, "no weight update"))) {
		e->open_update = WS_UPDATE_NONE;
		*why = (struct ws_err)WS_ERR_INIT;
	}
}

int ws_journal_drop_updates(struct ws_http *http, struct ws_journal_endpoint *those, size_t n,
                            const char *group, ws_deadline until, const struct ws_cancel *cancel,
                            struct ws_err *errs, struct ws_err *err)
{
	struct ends e = { .those = those, .n = n, .path = "/discard_weights_update" };
	const int rc = send_ends(http, &e, group, until, cancel, err);
	for (size_t i = 0; rc == 0 && i < n; i++) {
		errs[i] = (struct ws_err)WS_ERR_INIT;
		if (is_two_phase(those[i].open_update))
			hear_drop(&e.calls[i], &those[i], &errs[i]);
	}
	free_ends(&e);
	return rc;
}

void ws_journal_leave_group(struct ws_http *http, struct ws_journal_endpoint *those, size_t n,
                            const char *group, ws_deadline until, const struct ws_cancel *cancel)
{
	struct ws_endpoint_answer *answers = calloc(n + 1, sizeof *answers);
	const char **urls = calloc(n + 1, sizeof *urls);
	size_t k = 0;
	/* A vLLM cannot leave inside an update. Its next join replaces the group. */
	for (size_t i = 0; i < n; i++)
		if (those[i].open_update == WS_UPDATE_TRANSFER)
			those[i].grouped = false;
	for (size_t i = 0; answers && urls && *group && i < n; i++)
		if (those[i].grouped)
			urls[k++] = those[i].url;
	const struct ws_call to = { http, urls, k, until, cancel, NULL };
	if (k)
		ws_endpoint_destroy_group(&to, group, answers, NULL);
	for (size_t i = n; k && i-- > 0;)
		if (those[i].grouped) {
			const struct ws_err *said = &answers[--k].err;
			those[i].grouped = said->code != WS_OK && !ws_endpoint_said_no(said);
		}
	free(answers);
	free(urls);
}
