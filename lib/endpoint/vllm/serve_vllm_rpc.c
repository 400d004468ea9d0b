/* SPDX-License-Identifier: Apache-2.0 */
/* serve_vllm_rpc.c - POST /collective_rpc: methods of the workers, {"results":[one of each rank]}.
 *
 *   reload_weights   loads the checkpoint in kwargs.weights_path, as the server sees it
 *   get_supported_tasks, check_health   ["generate"] and null
 *   __getattr__      of _weight_update_active, since 0.21: an update was started and not finished
 *   __dir__          the names of a worker, some of them
 *   wsync_leave      of wsync's worker extension: leaves the group with the trainer
 *
 * Other methods of vLLM's workers do not exist here. */
#include "serve_vllm.h"

#include "serve_fetch.h"
#include "serve_lineage.h"

#include "wsync/tool/source.h"

#include <stdio.h>
#include <string.h>

static void write_null(const struct ws_serve_call *c, struct ws_jw *jw, unsigned rank)
{
	(void)c;
	(void)rank;
	ws_jw_null(jw, NULL);
}

/* Workers after the first that answer late give their results of the call before. */
static void write_results(struct ws_serve_call *c, ws_serve_vllm_result *write)
{
	struct ws_serve_vllm *v = c->serve->vllm;
	ws_serve_vllm_result *late = v->n_unread ? v->result : write;
	struct ws_jw jw;
	const bool worked = ws_serve_vllm_worked(c, NULL);
	v->result = write;
	if (!worked)
		return;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_array(&jw, "results");
	for (unsigned r = 0; r < c->serve->opts.tp; r++)
		(r && late ? late : r ? write_null : write)(c, &jw, r);
	ws_jw_end_array(&jw);
	ws_jw_end_object(&jw);
}

static void write_active(const struct ws_serve_call *c, struct ws_jw *jw, unsigned rank)
{
	(void)rank;
	ws_jw_str(jw, NULL, c->serve->vllm->active ? "True" : "False"); /* str() of Python's bool */
}

static void write_tasks(const struct ws_serve_call *c, struct ws_jw *jw, unsigned rank)
{
	(void)c;
	(void)rank;
	ws_jw_array(jw, NULL);
	ws_jw_str(jw, NULL, "generate");
	ws_jw_end_array(jw);
}

/* With wsync's worker extension, which tells that it packs weights again. */
static void write_names(const struct ws_serve_call *c, struct ws_jw *jw, unsigned rank)
{
	(void)rank;
	ws_jw_array(jw, NULL);
	ws_jw_str(jw, NULL, "worker");
	ws_jw_str(jw, NULL, "check_health");
	if (c->serve->opts.backend == WS_SERVE_GLOO)
		ws_jw_str(jw, NULL, "wsync_packs");
	ws_jw_end_array(jw);
}

/* ---- the methods, in the scheduler ---- */

static void list_tasks(struct ws_serve_call *c)
{
	write_results(c, write_tasks);
}

static void get_attribute(struct ws_serve_call *c)
{
	const char *name = ws_json_string(ws_json_first(ws_json_get(c->body, "args")));
	char text[160];
	if (!ws_serve_vllm_has(c, WS_IN_VLLM_0_20) &&
	    name && strcmp(name, "_weight_update_active") == 0) {
		write_results(c, write_active);
		return;
	}
	snprintf(text, sizeof text, "'Worker' object has no attribute '%.80s'",
	         name ? name : "");
	ws_serve_vllm_worked(c, text);
}

static void list_names(struct ws_serve_call *c)
{
	write_results(c, write_names);
}

static void check_health(struct ws_serve_call *c)
{
	write_results(c, write_null);
}

static void leave(struct ws_serve_call *c)
{
	ws_serve_drop_group(c->serve, ws_serve_find_group(c->serve, ws_serve_vllm_group));
	write_results(c, write_null);
}

/* A start, all tensors and a finish in one, also between those of an update. The version and the
 * cache of prompts stay. */
static int load(struct ws_serve_call *c, const struct ws_source *source, struct ws_err *err)
{
	struct ws_serve_update u = { .group = "", .fault = c->fault };
	const bool active = c->serve->vllm->active;
	ws_serve_vllm_begin(c->serve);
	const int rc = ws_serve_load_checkpoint(c, &u, source, err);
	c->rp->drop |= rc && ws_serve_fault_ends(u.fault);
	ws_serve_update_fini(&u);
	if (rc)
		ws_serve_vllm_abandon(c->serve);
	else
		ws_serve_vllm_end(c->serve);
	c->serve->vllm->active = active;
	return rc;
}

static void reload(struct ws_serve_call *c)
{
	const struct ws_json *kwargs = ws_json_get(c->body, "kwargs");
	const char *path = ws_json_get_string(kwargs, "weights_path", c->serve->model_path);
	struct ws_source *source = NULL;
	struct ws_err err = WS_ERR_INIT;
	char text[512];
	if (!ws_serve_has_weights(c))
		return;
	if (ws_source_open(&path, 1, &source, &err)) {
		snprintf(text, sizeof text, "Cannot find any model weights with `%.400s`", path);
		ws_serve_vllm_worked(c, text);
		return;
	}
	if (load(c, source, &err))
		ws_serve_vllm_worked(c, err.msg);
	else
		write_results(c, write_null);
	ws_source_close(source);
}

/* ---- the route ---- */

static const struct method {
	const char *name;
	bool extension, receives;
	void (*run)(struct ws_serve_call *c);
} methods[] = {
	{ "reload_weights", false, true, reload },
	{ "get_supported_tasks", false, false, list_tasks },
	{ "check_health", false, false, check_health },
	{ "__getattr__", false, false, get_attribute },
	{ "__dir__", false, false, list_names },
	{ "wsync_leave", true, false, leave },
};

static const struct method *find_method(const struct ws_serve *s, const char *name)
{
	for (size_t i = 0; i < sizeof methods / sizeof methods[0]; i++)
		if (strcmp(methods[i].name, name) == 0 &&
		    (!methods[i].extension || s->opts.backend == WS_SERVE_GLOO))
			return &methods[i];
	return NULL;
}

/* Loading ends midway; other methods do before they begin. */
static void end_by_fault(struct ws_serve_call *c)
{
	if (c->fault == WS_FAULT_DIE)
		ws_serve_die(c->serve);
	c->rp->drop = true;
}

void ws_serve_route_vllm_rpc(struct ws_serve_call *c)
{
	const char *name = ws_json_get_string(c->body, "method", NULL);
	const struct method *m = name ? find_method(c->serve, name) : NULL;
	char text[160];
	if (!name) {
		ws_serve_vllm_answer_error(c, 400, "Bad Request",
		                           "Missing 'method' in request body");
		return;
	}
	if (!ws_serve_vllm_enter(c, m && m->receives))
		return;
	/* vLLM's words for a method that its workers do not have. */
	snprintf(text, sizeof text, "Method '%.100s' is not implemented.", name);
	if (ws_serve_fault_ends(c->fault) && !(m && m->receives))
		end_by_fault(c);
	else if (m)
		m->run(c);
	else
		ws_serve_vllm_worked(c, text);
	ws_serve_release(c->serve);
}
