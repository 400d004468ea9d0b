/* SPDX-License-Identifier: Apache-2.0 */
/* ask_body.c - writes requests, and saves answers unchanged. */
#include "ask_body.h"

#include "answer.h"
#include "file.h"
#include "wsync/endpoint.h"
#include "wsync/tool/json.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { BODY_MAX = 512 << 20, USUAL_NEW = 16 };

/* ---- requests ---- */

static void write_prompt(struct ws_jw *w, const char *key, const struct ws_prompt *x)
{
	if (x->text) {
		ws_jw_str(w, key, x->text);
		return;
	}
	ws_jw_array(w, key);
	for (size_t i = 0; i < x->n_ids; i++)
		ws_jw_int(w, NULL, x->ids[i]);
	ws_jw_end_array(w);
}

unsigned ws_ask_most(const struct ws_ask *ask, const struct ws_prompt *x)
{
	const unsigned usual = ask->opts->max_new_tokens ? ask->opts->max_new_tokens : USUAL_NEW;
	return x->most ? x->most : usual;
}

static void write_sampling(struct ws_jw *w, const char *key, const struct ws_ask *ask,
                           const struct ws_prompt *x)
{
	ws_jw_object(w, key);
	ws_jw_uint(w, "max_new_tokens", ws_ask_most(ask, x));
	ws_jw_int(w, "temperature", 0);
	ws_jw_end_object(w);
}

static void write_batch(struct ws_jw *w, const struct ws_ask *ask, size_t n)
{
	const struct ws_prompt *items = ask->prompts->items;
	bool alike = true;
	ws_jw_array(w, items[0].text ? "text" : "input_ids");
	for (size_t i = 0; i < n; i++) {
		write_prompt(w, NULL, &items[i]);
		alike &= items[i].most == items[0].most;
	}
	ws_jw_end_array(w);
	if (alike) {
		write_sampling(w, "sampling_params", ask, &items[0]);
		return;
	}
	ws_jw_array(w, "sampling_params");
	for (size_t i = 0; i < n; i++)
		write_sampling(w, NULL, ask, &items[i]);
	ws_jw_end_array(w);
}

int ws_ask_write_body(struct ws_buf *body, const struct ws_ask *ask, size_t from, size_t n,
                      struct ws_err *err)
{
	const struct ws_prompt *x = &ask->prompts->items[from];
	struct ws_jw w;
	for (size_t i = 1; i < n; i++)
		if (!x[i].text != !x[0].text)
			return ws_err_set(
				err, WS_EUSAGE,
				"prompts as text and as input_ids do not go into one batch");
	ws_buf_init(body, BODY_MAX);
	ws_jw_init(&w, body);
	ws_jw_object(&w, NULL);
	if (ask->as == WS_ASKED_BATCH) {
		write_batch(&w, ask, n);
	} else {
		write_prompt(&w, x->text ? "text" : "input_ids", x);
		write_sampling(&w, "sampling_params", ask, x);
	}
	if (ask->logprobs)
		ws_jw_bool(&w, "return_logprob", true);
	if (ask->logprobs && ask->as != WS_ASKED_CACHED)
		ws_jw_int(&w, "logprob_start_len", 0);
	if (ask->experts)
		ws_jw_bool(&w, "return_routed_experts", true);
	ws_jw_end_object(&w);
	return ws_buf_check(body, "the prompt", err);
}

/* ---- connections and warnings ---- */

int ws_ask_open(const struct ws_ask_opts *opts, struct ws_http **http, struct ws_err *err)
{
	const struct ws_client_opts client = { .api_key = opts->api_key, .ca_file = opts->ca_file,
		                               .connect_ns = opts->connect_ns,
		                               .log = opts->log };
	return ws_client_open(&client, http, err);
}

void ws_ask_warn(const struct ws_ask_opts *opts, const char *url, const char *fmt, ...)
{
	char text[512];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	if (opts->sink.event)
		opts->sink.event(opts->sink.ctx, &(struct ws_event){ .type = WS_EV_WARNING,
		                 .warning = { .url = url, .message = text } });
}

/* ---- answers that are kept ---- */

int ws_ask_keep(struct ws_ask_saved *saved, size_t prompt, size_t n_prompts,
                const struct ws_buf *text, struct ws_err *err)
{
	if (!saved->texts && (saved->texts = calloc(n_prompts, sizeof *saved->texts)))
		saved->n = n_prompts;
	saved->bytes += text->len + 2;
	if (saved->bytes > WS_ANSWERS_MAX)
		return ws_err_set(
			err, WS_EREFUSED,
			"POST /generate: the answers have more than %d MiB, too much to save",
			WS_ANSWERS_MAX >> 20);
	if (saved->texts && (saved->texts[prompt] = strndup(ws_buf_str(text), text->len)))
		return 0;
	return ws_oom(err);
}

int ws_ask_write(const struct ws_ask_saved *saved, const char *path, struct ws_err *err)
{
	struct ws_buf out;
	ws_buf_init(&out, WS_ANSWERS_MAX);
	for (size_t i = 0; i < saved->n; i++) {
		ws_buf_puts(&out, i ? ",\n" : "[");
		ws_buf_puts(&out, saved->texts[i]);
	}
	ws_buf_puts(&out, "]\n");
	int rc = ws_buf_check(&out, path, err);
	if (!rc)
		rc = ws_file_replace(path, out.data, out.len, 0666, err);
	ws_buf_free(&out);
	return rc;
}

void ws_ask_forget(struct ws_ask_saved *saved)
{
	for (size_t i = 0; i < saved->n; i++)
		free(saved->texts[i]);
	free(saved->texts);
	*saved = (struct ws_ask_saved){ 0 };
}
