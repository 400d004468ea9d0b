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
 *
 * The server has left the group before, so the thread of a two-phase update has ended: usually
 * the server refuses the completion and accepts other updates again. The request sets no weight
 * version, because the loaded weights are unknown. */
#include "journal_core.h"

#include "endpoint_call.h"

#include <stdlib.h>
#include <string.h>

static const char *const names[] = { "", "session", "processing", "two-phase", "two-phase-flat" };
static const char *const paths[] = { "", "/end_weight_update", "/post_process_weights",
	                             "/complete_weights_update", "/complete_weights_update" };

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

static int send_ends(struct ws_http *http, const struct ws_journal_endpoint *those, size_t n,
                     const char *group, ws_deadline until, const struct ws_cancel *cancel,
                     struct ws_endpoint_call *calls, struct ws_buf *bodies, struct ws_err *err)
{
	for (size_t i = 0; i < n; i++) {
		ws_buf_init(&bodies[i], 4096);
		if (!those[i].open_update)
			continue;
		write_body(those[i].open_update, group, &bodies[i]);
		if (ws_buf_check(&bodies[i], "request", err) ||
		    ws_endpoint_prepare(&calls[i], those[i].url, "POST",
		                        paths[those[i].open_update], &bodies[i], until, err))
			return -1;
	}
	return ws_endpoint_run(http, calls, n, cancel, err);
}

/* A server that refuses has ended the update already, or never began it. */
static bool has_ended(struct ws_endpoint_call *call)
{
	struct ws_err e = WS_ERR_INIT;
	return ws_endpoint_reply(call, NULL, NULL, 0, &e) == 0 || ws_endpoint_said_no(&e);
}

int ws_journal_end_updates(struct ws_http *http, struct ws_journal_endpoint *those, size_t n,
                           const char *group, ws_deadline until, const struct ws_cancel *cancel,
                           struct ws_err *err)
{
	struct ws_endpoint_call *calls = calloc(n + 1, sizeof *calls);
	struct ws_buf *bodies = calloc(n + 1, sizeof *bodies);
	int rc = calls && bodies ? 0 : ws_oom(err);
	if (rc == 0)
		rc = send_ends(http, those, n, group, until, cancel, calls, bodies, err);
	for (size_t i = 0; calls && bodies && i < n; i++) {
		if (rc == 0 && those[i].open_update && has_ended(&calls[i]))
			those[i].open_update = WS_UPDATE_NONE;
		ws_endpoint_call_free(&calls[i]);
		ws_buf_free(&bodies[i]);
	}
	free(calls);
	free(bodies);
	return rc;
}

void ws_journal_leave_group(struct ws_http *http, struct ws_journal_endpoint *those, size_t n,
                            const char *group, ws_deadline until, const struct ws_cancel *cancel)
{
	struct ws_endpoint_answer *answers = calloc(n + 1, sizeof *answers);
	const char **urls = calloc(n + 1, sizeof *urls);
	size_t k = 0;
	for (size_t i = 0; answers && urls && *group && i < n; i++)
		if (those[i].grouped)
			urls[k++] = those[i].url;
	const struct ws_call to = { http, urls, k, until, cancel };
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
