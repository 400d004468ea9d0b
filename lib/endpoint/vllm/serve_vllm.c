/* SPDX-License-Identifier: Apache-2.0 */
/* serve_vllm.c - opens and closes the state of a vLLM server, and writes its forms of answers.
 *
 * An exception in a worker is answered with 500 and its text. Failures of Python's json and of
 * pydantic are answered with 400. Paths in messages are replaced by <path>. */
#include "serve_vllm.h"

#include "serve_lineage.h"

#include "wsync/tool/str.h"

#include <ctype.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ws_serve_vllm_open(struct ws_serve *s, const struct ws_serve_opts *o, struct ws_err *err)
{
	const char *name = ws_serve_lineages[o->lineage].name;
	if (!ws_serve_in(o->lineage, WS_IN_VLLM))
		return 0;
	if (o->device)
		return ws_err_set(err, WS_EUSAGE, "{device} plays SGLang, not %s", name);
	if (o->torch == WS_TORCH_1_13)
		return ws_err_set(err, WS_EUSAGE, "%s does not run on torch 1.13", name);
	s->vllm = calloc(1, sizeof *s->vllm);
	return s->vllm ? 0 : ws_oom(err);
}

void ws_serve_vllm_close(struct ws_serve_vllm *v)
{
	for (size_t i = 0; v && i < v->n_unread; i++)
		free(v->unread[i]);
	if (v)
		ws_json_free(v->last);
	if (v)
		free(v->kept);
	free(v);
}

bool ws_serve_vllm_has(const struct ws_serve_call *c, unsigned lineages)
{
	return ws_serve_in(c->serve->opts.lineage, lineages);
}

/* ---- answers ---- */

/* Characters of the parts of a path in the servers' pattern. */
static size_t part_length(const char *at)
{
	size_t n = 0;
	while (isalnum((unsigned char)at[n]) || at[n] == '_' || at[n] == '.' || at[n] == '-')
		n++;
	return n;
}

/* Copies text, with <path> for paths below the usual roots. */
static void hide_paths(char *dst, size_t size, const char *text)
{
	static const char *const roots[] = { "home", "usr", "opt", "var", "tmp",
		                             "root", "lib", "mnt", "srv" };
	size_t used = 0;
	while (*text && used + 8 < size) {
		size_t n = 0;
		for (size_t i = 0; *text == '/' && i < sizeof roots / sizeof roots[0]; i++) {
			const size_t root = strlen(roots[i]);
			if (strncmp(text + 1, roots[i], root) != 0 || text[1 + root] != '/')
				continue;
			for (n = 1 + root; text[n] == '/' && part_length(text + n + 1);)
				n += 1 + part_length(text + n + 1);
		}
		if (n)
			used += (size_t)snprintf(dst + used, size - used, "<path>");
		else
			dst[used++] = *text;
		text += n ? n : 1;
	}
	dst[used] = 0;
}

void ws_serve_vllm_answer_error(struct ws_serve_call *c, unsigned status, const char *type,
                                const char *message)
{
	char text[2048];
	struct ws_jw jw;
	hide_paths(text, sizeof text, message);
	ws_buf_reset(&c->rp->body);
	c->rp->status = status;
	c->rp->type = "application/json";
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_object(&jw, "error");
	ws_jw_str(&jw, "message", text);
	ws_jw_str(&jw, "type", type);
	ws_jw_null(&jw, "param");
	ws_jw_uint(&jw, "code", status);
	ws_jw_end_object(&jw);
	ws_jw_end_object(&jw);
	ws_printable(c->note.message, sizeof c->note.message, text, strlen(text));
}

/* From 0.28 on FastAPI reads the bodies, before that the routes did. */
void ws_serve_vllm_answer_invalid(struct ws_serve_call *c, const char *reason)
{
	char text[1024];
	const bool not_json = strstr(reason, "not JSON") ||
	                      strcmp(reason, "body: Field required") == 0;
	if (ws_serve_vllm_has(c, WS_IN_VLLM_0_33))
		snprintf(text, sizeof text, "1 validation error:\n  %.900s", reason);
	else
		snprintf(text, sizeof text, "%.1000s", not_json ? "Invalid JSON format" : reason);
	ws_serve_vllm_answer_error(c, 400, "Bad Request", text);
}

void ws_serve_vllm_answer_paused(struct ws_serve_call *c)
{
	ws_serve_vllm_answer_error(c, 503, "ServiceUnavailableError",
	                           "Generation is paused. Please retry after it resumes.");
}

/* A single worker runs in the engine's process; several are wrapped by their executor. */
void ws_serve_vllm_fail(struct ws_serve_call *c, const char *exception)
{
	char text[1600];
	const bool several = c->serve->opts.tp > 1;
	snprintf(text, sizeof text, "Call to collective_rpc method failed: %s%.1200s%s",
	         several ? "Worker failed with error '" : "", exception,
	         several ? "', please check the stack trace above for the root cause" : "");
	ws_serve_vllm_answer_error(c, 500, "InternalServerError", text);
}

/* The engine reads the replies of its workers in order, each from a queue of its own, and stops at
 * the first exception (vLLM's issue 57846). So the reply of the second worker stays unread, and
 * from then on each call gets a reply of that worker to a call before it. */
bool ws_serve_vllm_worked(struct ws_serve_call *c, const char *exception)
{
	struct ws_serve_vllm *v = c->serve->vllm;
	char *reply = exception ? strdup(exception) : NULL, *old = NULL;
	v->result = NULL;
	const bool room = v->n_unread < sizeof v->unread / sizeof v->unread[0];
	if (exception)
		ws_serve_vllm_fail(c, exception);
	if (c->serve->opts.tp == 1 || (!exception && !v->n_unread) || !room) {
		free(reply);
		return !exception;
	}
	v->unread[v->n_unread++] = reply;
	if (exception)
		return false;
	old = v->unread[0];
	memmove(v->unread, v->unread + 1, --v->n_unread * sizeof *v->unread);
	if (old)
		ws_serve_vllm_fail(c, old);
	const bool worked = !old;
	free(old);
	return worked;
}

void ws_serve_vllm_say(struct ws_serve_call *c, const char *key, const char *text)
{
	struct ws_jw jw;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_str(&jw, key, text);
	ws_jw_end_object(&jw);
}

/* ---- requests ---- */

bool ws_serve_vllm_enter(struct ws_serve_call *c, bool receiving)
{
	const bool ok = ws_serve_acquire(c->serve, receiving);
	c->rp->drop |= !ok;
	return ok;
}

bool ws_serve_vllm_query_bool(struct ws_serve_call *c, const char *key, bool *out)
{
	static const char *const words[] = { "true", "1", "yes", "on", "t", "y",
		                             "false", "0", "no", "off", "f", "n" };
	char reason[160], word[8] = "";
	const char *text = ws_serve_query(c, key);
	if (!text)
		return true;
	for (size_t i = 0; i + 1 < sizeof word && text[i]; i++)
		word[i] = (char)tolower((unsigned char)text[i]);
	const size_t i = ws_serve_find_word(words, 12, word);
	*out = i < 6;
	if (i < 12)
		return true;
	snprintf(reason, sizeof reason,
	         "query.%s: Input should be a valid boolean, unable to interpret input", key);
	ws_serve_vllm_answer_invalid(c, reason);
	return false;
}
