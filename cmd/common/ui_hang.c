/* SPDX-License-Identifier: Apache-2.0 */
/* ui_hang.c - explains a wait that did not end. The paragraph belongs below its error, which is
 * printed later, so the paragraph is passed to run_explain_error. */
#include "ui.h"

#include "run.h"

#include "wsync/tool/hang.h"

#include <stdio.h>
#include <string.h>
#include <unistd.h>

enum { TEXT_MAX = 32 * 1024, INDENT = 2 };

/* ---- for people ---- */

/* Wraps words at the width, every line indented. A word longer than a line gets its own line. */
static void put_wrapped(struct ws_buf *out, const char *label, const char *text, int width)
{
	const size_t room = (size_t)width - INDENT - 1;
	size_t used = strlen(label);
	ws_buf_printf(out, "%*s%s", INDENT, "", label);
	for (bool first = true; *text; first = false) {
		const size_t n = strcspn(text, " ");
		if (!first && used + 1 + n > room) {
			ws_buf_printf(out, "\n%*s", INDENT, "");
			used = 0;
		} else if (!first) {
			ws_buf_putc(out, ' ');
			used++;
		}
		ws_buf_add(out, text, n);
		used += n;
		text += n + (text[n] == ' ');
	}
	ws_buf_putc(out, '\n');
}

static void put_paragraph(const struct ws_hang *h, struct ws_buf *out)
{
	const int width = ui_width(STDERR_FILENO);
	struct ws_buf facts;
	ws_buf_init(&facts, TEXT_MAX);
	if (h->end == WS_HANG_DEADLINE)
		ws_hang_tell(h, &facts);
	else
		ws_hang_tell_briefly(h, &facts);
	put_wrapped(out, h->end == WS_HANG_DEADLINE ? "facts: " : "was ",
	            ui_text(ui_words(ws_buf_str(&facts))), width);
	if (h->end == WS_HANG_DEADLINE) {
		put_wrapped(out, "likely: ", ui_text(ui_words(h->likely)), width);
		put_wrapped(out, "try: ", ui_text(ui_words(h->remedy)), width);
	}
	ws_buf_free(&facts);
}

void ui_hang(struct ui *ui, const struct ws_hang *h)
{
	struct ws_buf text;
	if (ui->quiet)
		return;
	ws_buf_init(&text, 2 * TEXT_MAX);
	put_paragraph(h, &text);
	if (!text.failed)
		run_explain_error(ws_buf_str(&text), h->remedy);
	ws_buf_free(&text);
}

/* ---- for programs ---- */

static void put_endpoint(struct ws_jw *w, const struct ws_hang_endpoint *e)
{
	ws_jw_object(w, NULL);
	ws_jw_str(w, "url", e->url);
	ws_jw_uint(w, "ranks", e->n_ranks);
	ui_json_text(w, "request", e->route);
	ws_jw_str(w, "state", ws_hang_request_names[e->request]);
	ws_jw_int(w, "status", e->status);
	ws_jw_int(w, "ns", e->request_ns);
	ws_jw_uint(w, "buckets", e->buckets);
	ws_jw_uint(w, "unnamed", e->unnamed);
	ws_jw_str(w, "model_info", ws_hang_probe_names[e->front]);
	ws_jw_str(w, "health", ws_hang_probe_names[e->health]);
	ws_jw_int(w, "health_status", e->health_status);
	ws_jw_end_object(w);
}

static void put_rank(struct ws_jw *w, const struct ws_hang *h, size_t i)
{
	const struct ws_hang_rank *r = &h->ranks[i];
	ws_jw_object(w, NULL);
	ws_jw_uint(w, "rank", i + 1);
	ws_jw_str(w, "url", h->endpoints[r->endpoint].url);
	ws_jw_uint(w, "endpoint_rank", i + 1 - h->endpoints[r->endpoint].rank_offset);
	ws_jw_str(w, "store", ws_hang_store_names[r->store]);
	ui_json_text(w, "address", r->address);
	ui_json_text(w, "waits_for", r->waits_for);
	ws_jw_str(w, "data_plane", ws_hang_link_names[r->link]);
	ws_jw_uint(w, "due_bytes", r->due);
	ws_jw_uint(w, "taken_bytes", r->taken);
	ws_jw_end_object(w);
}

static void put_peer(struct ws_jw *w, const struct ws_hang_peer *p)
{
	ws_jw_object(w, NULL);
	ws_jw_str(w, "address", p->address);
	ws_jw_bool(w, "joined", p->joined);
	ws_jw_bool(w, "connected", p->connected);
	ws_jw_bool(w, "foreign", p->foreign);
	ui_json_text(w, "waits_for", p->waits_for);
	ws_jw_end_object(w);
}

static void put_group(struct ws_jw *w, const struct ws_hang *h)
{
	ws_jw_str(w, "group", h->group);
	ws_jw_str(w, "backend", h->backend);
	ws_jw_str(w, "master_address", h->address);
	ws_jw_uint(w, "master_port", h->port);
	ws_jw_uint(w, "world_size", h->world_size);
	ws_jw_uint(w, "joined", h->joined);
	ws_jw_array(w, "ranks");
	for (size_t i = 0; i < h->n_ranks; i++)
		put_rank(w, h, i);
	ws_jw_end_array(w);
	ws_jw_array(w, "peers");
	for (size_t i = 0; i < h->n_peers; i++)
		put_peer(w, &h->peers[i]);
	ws_jw_end_array(w);
}

static void put_bucket(struct ws_jw *w, const struct ws_hang *h)
{
	ws_jw_uint(w, "bucket", h->bucket);
	ws_jw_uint(w, "buckets", h->buckets);
	ws_jw_uint(w, "bytes", h->bytes);
	ws_jw_int(w, "still_ns", h->still_ns);
	ws_jw_int(w, "starved_ns", h->starved_ns);
}

void ui_json_hang(struct ui *ui, const struct ws_hang *h)
{
	struct ws_jw *w = ui_line(ui, "hang");
	ws_jw_str(w, "phase", ws_phase_name(h->phase));
	ws_jw_bool(w, "cancelled", h->end == WS_HANG_CANCELLED);
	ui_json_text(w, "what", h->what);
	ws_jw_int(w, "ns", h->waited_ns);
	ws_jw_int(w, "limit_ns", h->limit_ns);
	ws_jw_str(w, "option", h->field ? ui_option(h->field, strlen(h->field)) : NULL);
	if (h->n_ranks)
		put_group(w, h);
	if (h->wait == WS_HANG_MOVING)
		put_bucket(w, h);
	ws_jw_array(w, "endpoints");
	for (size_t i = 0; i < h->n_endpoints; i++)
		put_endpoint(w, &h->endpoints[i]);
	ws_jw_end_array(w);
	ws_jw_str(w, "cause", h->cause);
	ws_jw_str(w, "likely", ui_words(h->likely));
	ws_jw_str(w, "remedy", ui_words(h->remedy));
	ui_line_end(ui);
}
