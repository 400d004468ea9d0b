/* SPDX-License-Identifier: Apache-2.0 */
/* serve_vllm_update.c - the group with the trainer, and updates.
 *
 *   0.20   an update is one call
 *   0.24   start, updates, finish: an update outside is an error. After a failed update the
 *          session is over, and the model needs another one that sends all of it
 *   0.27   finish can set the version of the weights
 *   0.33   an update without names sends those of the update before it
 *          (not with the engine "ipc") */
#include "serve_vllm.h"

#include "serve_lineage.h"

#include <stdio.h>
#include <string.h>

/* ---- the group ---- */

/* NULL, and answered: the body has no such object. */
static const struct ws_json *read_info(struct ws_serve_call *c, const char *key)
{
	char reason[96];
	const struct ws_json *info = ws_json_get(c->body, key);
	if (info && ws_json_type(info) == WS_JSON_OBJECT)
		return info;
	if (ws_serve_vllm_has(c, WS_IN_VLLM_0_33))
		snprintf(reason, sizeof reason, "body.%s: %s", key,
		         info ? "Input should be a valid dictionary" : "Field required");
	else
		snprintf(reason, sizeof reason, "Missing '%s' in request body", key);
	ws_serve_vllm_answer_invalid(c, reason);
	return NULL;
}

static int open_group(struct ws_serve *s, const struct ws_json *info, struct ws_err *err)
{
	if (s->opts.backend == WS_SERVE_IPC) /* it needs no group */
		return ws_serve_vllm_read_ipc_init(s, info, &s->vllm->packed, err);
	struct ws_serve_vllm_init in;
	struct ws_serve_group *old = ws_serve_find_group(s, ws_serve_vllm_group), *g = NULL;
	if (ws_serve_vllm_read_init(s, info, &in, err) || ws_serve_check_init(s, &in.group, err) ||
	    ws_serve_open_group(s, &in.group, &g, err))
		return -1;
	ws_serve_drop_group(s, old);
	s->vllm->packed = in.packed;
	s->vllm->limit = in.limit;
	ws_json_free(s->vllm->last);
	s->vllm->last = NULL;
	return 0;
}

void ws_serve_route_vllm_init(struct ws_serve_call *c)
{
	const struct ws_json *info = read_info(c, "init_info");
	struct ws_err err = WS_ERR_INIT;
	if (!info || !ws_serve_vllm_enter(c, true))
		return;
	snprintf(c->note.group, sizeof c->note.group, "%s", ws_serve_vllm_group);
	const int rc = open_group(c->serve, info, &err);
	if (ws_serve_vllm_worked(c, rc ? err.msg : NULL))
		ws_serve_vllm_say(c, "message", "Weight transfer initialized");
	ws_serve_release(c->serve);
}

void ws_serve_route_vllm_shutdown(struct ws_serve_call *c)
{
	struct ws_serve *s = c->serve;
	if (!ws_serve_vllm_enter(c, false))
		return;
	const bool active = s->vllm->active;
	if (!active)
		ws_serve_drop_group(s, ws_serve_find_group(s, ws_serve_vllm_group));
	if (ws_serve_vllm_worked(
		    c, active ? "Cannot release a trainer connection during a weight update" :
				NULL))
		ws_serve_vllm_say(c, "message", "Weight transfer shut down");
	ws_serve_release(s);
}

/* ---- sessions ---- */

void ws_serve_route_vllm_start(struct ws_serve_call *c)
{
	static const char again[] = "start_weight_update called while a weight update is already "
				    "active. Call finish_weight_update first.";
	const struct ws_json *format = ws_json_get(c->body, "is_checkpoint_format");
	if (format && !ws_json_bool(format, true)) {
		ws_serve_vllm_fail(c, "wsync-endpoint loads only the checkpoint format");
		return;
	}
	if (!ws_serve_vllm_enter(c, false))
		return;
	const bool twice = c->serve->vllm->active;
	if (!twice)
		ws_serve_vllm_begin(c->serve);
	if (ws_serve_vllm_worked(c, twice ? again : NULL))
		ws_serve_vllm_say(c, "message", "Weight update started");
	ws_serve_release(c->serve);
}

/* The version is set only after a finish that worked. */
void ws_serve_route_vllm_finish(struct ws_serve_call *c)
{
	static const char early[] = "finish_weight_update called without a matching "
				    "start_weight_update.";
	struct ws_serve *s = c->serve;
	const char *version = NULL;
	struct ws_err err = WS_ERR_INIT;
	if (ws_serve_field_str(c->body, "weight_version", false, &version, &c->invalid) ||
	    !ws_serve_vllm_enter(c, false))
		return;
	const bool active = s->vllm->active;
	if (active)
		ws_serve_vllm_end(s);
	const bool worked = ws_serve_vllm_worked(c, active ? NULL : early);
	if (worked && version) {
		ws_serve_set_text(s, &s->weight_version, version, &err);
		snprintf(c->note.weight_version, sizeof c->note.weight_version, "%s", version);
	}
	if (worked)
		ws_serve_vllm_say(c, "message", "Weight update finished");
	ws_serve_release(s);
}

/* ---- updates ---- */

/* Returns the info of the last update if this one has no lists. */
static const struct ws_json *recall(const struct ws_serve_call *c, const struct ws_json *info)
{
	static const char *const keys[] = { "names", "dtype_names", "shapes" };
	bool empty = c->serve->vllm->last && c->serve->opts.backend != WS_SERVE_IPC;
	for (size_t i = 0; i < 3; i++)
		empty &= ws_json_count(ws_json_get(info, keys[i])) == 0;
	return empty ? ws_json_get(c->serve->vllm->last, "update_info") : info;
}

/* Keeps the body of an update with names, for a later one without. */
static void remember(struct ws_serve_call *c, const struct ws_serve_update *u)
{
	struct ws_serve_vllm *v = c->serve->vllm;
	if (!ws_serve_vllm_has(c, WS_IN_VLLM_0_33) || c->serve->opts.backend == WS_SERVE_IPC ||
	    !u->n || !c->own_body)
		return;
	ws_json_free(v->last);
	v->last = ws_serve_take_body(c);
}

/* In the scheduler. *begun: the model has lost its weights. */
static int update(struct ws_serve_call *c, const struct ws_json *info, bool *begun,
                  struct ws_err *err)
{
	struct ws_serve *s = c->serve;
	struct ws_serve_vllm *v = s->vllm;
	const bool one_call = ws_serve_vllm_has(c, WS_IN_VLLM_0_20);
	struct ws_serve_update u = { 0 };
	bool packed = v->packed;
	uint64_t limit = v->limit;
	if (!one_call && !v->active)
		return ws_err_set(err, WS_EINPUT,
		                  "start_weight_update must be called before update_weights.");
	*begun = !one_call;
	const struct ws_json *recalled = recall(c, info);
	int rc = ws_serve_vllm_read_update(s, recalled, &u, &packed, &limit, err);
	if (rc == 0 && one_call) {
		ws_serve_vllm_begin(s);
		*begun = true;
	}
	u.fault = c->fault;
	if (rc == 0 && recalled == info)
		remember(c, &u);
	if (rc == 0)
		rc = s->opts.backend == WS_SERVE_IPC ?
		             ws_serve_vllm_open_shared(c, info, &u, packed, err) :
		             ws_serve_vllm_receive(c, &u, packed, limit, err);
	if (rc == 0 && one_call)
		ws_serve_vllm_end(s);
	ws_serve_update_fini(&u);
	return rc;
}

void ws_serve_route_vllm_update(struct ws_serve_call *c)
{
	const struct ws_json *info = read_info(c, "update_info");
	struct ws_err err = WS_ERR_INIT;
	bool begun = false;
	if (!info || !ws_serve_vllm_enter(c, true))
		return;
	const bool awake = ws_serve_has_weights(c);
	const int rc = awake ? update(c, info, &begun, &err) : 0;
	if (rc && begun)
		ws_serve_vllm_abandon(c->serve);
	if (awake && ws_serve_vllm_worked(c, rc ? err.msg : NULL))
		ws_serve_vllm_say(c, "message", "Weights updated");
	ws_serve_release(c->serve);
}
