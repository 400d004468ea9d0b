/* SPDX-License-Identifier: Apache-2.0 */
/* ui_json.c - events as JSON lines. wsync-json(5) documents the keys; they are an interface. */
#include "ui.h"

#include <stdio.h>
#include <string.h>

/* ---- lines ---- */

static struct ws_jw *open_line(struct ui *ui, const char *type)
{
	ws_buf_reset(&ui->line);
	ws_jw_init(&ui->jw, &ui->line);
	ws_jw_object(&ui->jw, NULL);
	ui->muted = !ui->json;
	if (!ui->begun)
		ws_jw_int(&ui->jw, "schema", 1);
	ui->begun = true;
	ws_jw_str(&ui->jw, "type", type);
	return &ui->jw;
}

void ui_line_end(struct ui *ui)
{
	if (ui->muted)
		return;
	ws_jw_end_object(&ui->jw);
	ws_buf_putc(&ui->line, '\n');
	if (ws_buf_check(&ui->line, "a line", NULL) == 0)
		fwrite(ui->line.data, 1, ui->line.len, stdout);
}

/* "wsync-push" begins its stream as "push". */
static struct ws_jw *open_start(struct ui *ui)
{
	const char *dash = strchr(ui->program, '-');
	if (!ui->json || ui->begun)
		return NULL;
	struct ws_jw *w = open_line(ui, "start");
	ws_jw_str(w, "command", dash ? dash + 1 : ui->program);
	return w;
}

void ui_begin(struct ui *ui)
{
	if (open_start(ui))
		ui_line_end(ui);
}

struct ws_jw *ui_line(struct ui *ui, const char *type)
{
	ui_begin(ui);
	return open_line(ui, type);
}

static void put_error(struct ws_jw *w, const struct ws_err *err)
{
	if (!err || err->code == WS_OK)
		return;
	ws_jw_object(w, "error");
	ws_jw_str(w, "code", ws_code_name(err->code));
	ws_jw_str(w, "message", ui_words(err->msg));
	ui_json_words(w, "hint", err->hint);
	ws_jw_str(w, "endpoint", err->endpoint[0] ? err->endpoint : NULL);
	ws_jw_str(w, "phase", err->phase[0] ? err->phase : NULL);
	ws_jw_end_object(w);
}

struct ws_jw *ui_end_open(struct ui *ui, const struct ws_err *err)
{
	const enum ws_code code = err ? err->code : WS_OK;
	struct ws_jw *w = ui_line(ui, "end");
	ui->muted = ui->muted || ui->ended;
	ui->ended = true;
	ws_jw_bool(w, "ok", code == WS_OK);
	ws_jw_int(w, "exit", code);
	put_error(w, err);
	return w;
}

void ui_end(struct ui *ui, const struct ws_err *err)
{
	ui_end_open(ui, err);
	ui_line_end(ui);
}

/* ---- events ---- */

void ui_json_text(struct ws_jw *w, const char *key, const char *text)
{
	ws_jw_str(w, key, text && *text ? text : NULL);
}

void ui_json_shape(struct ws_jw *w, const char *key, unsigned n_dims, const int64_t *dims)
{
	ws_jw_array(w, key);
	for (unsigned i = 0; i < n_dims; i++)
		ws_jw_int(w, NULL, dims[i]);
	ws_jw_end_array(w);
}

static void put_plan(struct ws_jw *w, const struct ws_ev_plan *p)
{
	ws_jw_str(w, "source", p->source);
	ws_jw_hex64(w, "digest", p->digest);
	ws_jw_uint(w, "tensors", p->tensors);
	ws_jw_uint(w, "skipped", p->skipped);
	ws_jw_uint(w, "buckets", p->buckets);
	ws_jw_uint(w, "bytes", p->bytes);
	ws_jw_uint(w, "bucket_size", p->bucket_size);
	ws_jw_bool(w, "bucket_size_auto", p->bucket_size_auto);
	ws_jw_str(w, "load_format", p->load_format);
	ws_jw_str(w, "backend", p->backend);
	if (p->disk_path) {
		ws_jw_str(w, "disk_path", p->disk_path);
		ws_jw_uint(w, "disk_bytes", p->disk_bytes);
	}
	ws_jw_uint(w, "gpu_bytes", p->gpu_bytes);
	ws_jw_uint(w, "pinned_bytes", p->pinned_bytes);
	ws_jw_str(w, "protocol", p->protocol);
	if (p->world_size)
		ws_jw_uint(w, "world_size", p->world_size);
	else
		ws_jw_null(w, "world_size");
	if (p->senders > 1) {
		ws_jw_uint(w, "sender", p->sender);
		ws_jw_uint(w, "senders", p->senders);
	}
	ws_jw_bool(w, "dry_run", p->dry_run);
}

static void put_endpoint(struct ws_jw *w, const struct ws_ev_endpoint *e)
{
	ws_jw_str(w, "url", e->url);
	ws_jw_str(w, "phase", ws_phase_name(e->phase));
	ws_jw_bool(w, "ok", e->ok);
	ws_jw_uint(w, "rank_offset", e->rank_offset);
	ws_jw_uint(w, "ranks", e->ranks);
	ui_json_text(w, "version", e->version);
	ui_json_text(w, "weight_version", e->weight_version);
	ui_json_words(w, "message", e->message);
	ws_jw_int(w, "ns", e->ns);
}

static void put_bucket(struct ws_jw *w, const struct ws_ev_bucket *b)
{
	ws_jw_uint(w, "index", b->index);
	ws_jw_uint(w, "count", b->count);
	ws_jw_uint(w, "tensors", b->tensors);
	ws_jw_uint(w, "bytes", b->bytes);
	ws_jw_uint(w, "bucket_size", b->bucket_size);
	ws_jw_bool(w, "flush", b->flush);
	ws_jw_bool(w, "planned", b->planned);
	ws_jw_int(w, "ns", b->ns);
	ws_jw_int(w, "wire_ns", b->wire_ns);
}

static void put_tensor(struct ws_jw *w, const struct ws_ev_tensor *t)
{
	ws_jw_str(w, "name", t->name);
	ws_jw_str(w, "dtype", ws_dtype_torch(t->dtype));
	ui_json_shape(w, "shape", t->n_dims, t->dims);
	ws_jw_uint(w, "bytes", t->bytes);
	ws_jw_uint(w, "bucket", t->bucket);
	ws_jw_str(w, "recipe", t->recipe);
}

static void put_mismatch(struct ws_jw *w, const struct ws_ev_mismatch *m)
{
	ui_json_text(w, "url", m->url);
	if (m->rank >= 0)
		ws_jw_int(w, "rank", m->rank);
	else
		ws_jw_null(w, "rank");
	ws_jw_str(w, "name", m->name);
	ws_jw_str(w, "kind", m->kind);
	ws_jw_str(w, "expected", m->expected);
	ws_jw_str(w, "found", m->found);
	ws_jw_str(w, "cause", m->cause);
}

void ui_json_proof(struct ws_jw *w, const struct ws_ev_proof *p)
{
	ws_jw_uint(w, "parameters", p->parameters);
	ws_jw_uint(w, "proven", p->proven);
	ws_jw_uint(w, "opaque", p->opaque);
	ws_jw_uint(w, "unknown", p->unknown);
	ws_jw_uint(w, "not_sent", p->not_sent);
	ws_jw_uint(w, "bytes", p->bytes);
	ws_jw_uint(w, "proven_bytes", p->proven_bytes);
	ws_jw_double(w, "coverage", p->percent);
}

static void put_proof(struct ws_jw *w, const struct ws_ev_proof *p)
{
	ui_json_text(w, "url", p->url);
	ws_jw_uint(w, "ranks", p->ranks);
	ui_json_proof(w, p);
	ws_jw_uint(w, "different", p->different);
	ws_jw_uint(w, "drafts", p->drafts);
}

static void put_identity(struct ws_jw *w, const struct ws_evidence *e)
{
	ws_jw_object(w, "instance");
	if (e->identity.n)
		ws_jw_hex64(w, "id", e->identity.seen[0].id);
	else
		ws_jw_null(w, "id");
	ws_jw_str(w, "strength", ws_identity_strength_name(e->identity.strength));
	ws_jw_str(w, "end", ws_identity_end_name(e->end));
	ws_jw_end_object(w);
}

static void put_evidence(struct ws_jw *w, const struct ws_evidence *e)
{
	ws_jw_object(w, "evidence");
	ws_jw_str(w, "word", ws_evidence_word_name(ws_evidence_word(e)));
	put_identity(w, e);
	ws_jw_bool(w, "group_alive", e->group_alive);
	ws_jw_str(w, "names", ws_names_by_name(e->names));
	ui_json_text(w, "against", *e->against ? e->against : NULL);
	ws_jw_bool(w, "names_ok", e->names_ok);
	ws_jw_bool(w, "values_read", e->values_read);
	ws_jw_object(w, "proof");
	ws_jw_uint(w, "proven", e->proven);
	ws_jw_uint(w, "different", e->different);
	ws_jw_uint(w, "opaque", e->opaque);
	ws_jw_uint(w, "not_sent", e->not_sent);
	ws_jw_bool(w, "readback", e->proven_by_readback);
	ws_jw_end_object(w);
	ws_jw_bool(w, "label_read", e->label_read);
	ws_jw_object(w, "format");
	ws_jw_str(w, "keeps", e->format.keeps);
	ws_jw_str(w, "sends", e->format.sends);
	ws_jw_str(w, "verdict", e->format.verdict);
	ws_jw_str(w, "by", e->format.by);
	ws_jw_end_object(w);
	ws_jw_str(w, "draft", e->draft);
	ws_jw_str(w, "adapters", e->adapters);
	ws_jw_object(w, "caches");
	for (int i = 0; i < WS_N_CACHES; i++)
		ws_jw_str(w, ws_cache_name((enum ws_cache)i),
		          ws_cache_fact_name(e->caches.of[i].fact));
	ws_jw_end_object(w);
	ws_jw_bool(w, "asleep", e->asleep);
	ws_jw_end_object(w);
}

static void put_endpoint_result(struct ws_jw *w, const struct ws_ev_endpoint_result *e)
{
	ws_jw_object(w, NULL);
	ws_jw_str(w, "url", e->url);
	ws_jw_bool(w, "ok", e->ok);
	ws_jw_bool(w, "current", e->current);
	ws_jw_str(w, "current_by", e->current_by);
	ws_jw_bool(w, "left_out", e->left_out);
	ws_jw_str(w, "state", ws_endpoint_state_name(e->state));
	ws_jw_bool(w, "paused", e->paused);
	ws_jw_bool(w, "unflushed", e->unflushed);
	ws_jw_bool(w, "staged", e->staged);
	ws_jw_int(w, "paused_ns", e->paused_ns);
	ui_json_words(w, "message", e->message);
	put_evidence(w, &e->evidence);
	ws_jw_end_object(w);
}

static void put_stale(struct ws_jw *w, const struct ws_ev_stale *s)
{
	ws_jw_str(w, "url", s->url);
	ws_jw_bool(w, "stale", s->stale);
	ws_jw_str(w, "current_by", s->current_by);
	ui_json_words(w, "message", s->why);
}

static void put_canary(struct ws_jw *w, const struct ws_ev_canary *c)
{
	ws_jw_strs(w, "endpoints", c->urls, c->n_urls);
	ws_jw_bool(w, "ok", c->ok);
	ui_json_words(w, "message", c->why);
	ws_jw_int(w, "ns", c->ns);
}

static void put_transform(struct ws_jw *w, const struct ws_transform_report *t)
{
	ws_jw_object(w, "transform");
	ws_jw_uint(w, "quantized", t->quantized);
	ws_jw_uint(w, "already", t->already);
	ws_jw_uint(w, "unpacked", t->unpacked);
	ws_jw_uint(w, "bound", t->bound);
	ws_jw_uint(w, "replaced", t->replaced);
	ws_jw_uint(w, "left_over", t->left_over);
	ws_jw_uint(w, "lacking", t->lacking);
	ws_jw_double(w, "largest_change", t->largest_change);
	ui_json_text(w, "largest_name", t->largest_name);
	ws_jw_uint(w, "scratch_bytes", t->peak);
	ws_jw_end_object(w);
}

static void put_round(struct ws_jw *w, const struct ws_ev_round *r)
{
	ws_jw_object(w, "round");
	ui_json_text(w, "id", r->id);
	ws_jw_uint(w, "senders", r->senders);
	ws_jw_uint(w, "had", r->had);
	ws_jw_bool(w, "ended", r->ended);
	ws_jw_int(w, "begun", r->begun);
	ws_jw_int(w, "pid", r->pid);
	ui_json_text(w, "host", r->host);
	ws_jw_end_object(w);
}

/* Writes the common keys of result and end, after ok, exit and error. */
static void put_totals(struct ws_jw *w, const struct ws_ev_end *e)
{
	ws_jw_uint(w, "bytes", e->bytes);
	ws_jw_uint(w, "wire_bytes", e->wire_bytes);
	ws_jw_uint(w, "tensors", e->tensors);
	ws_jw_uint(w, "buckets", e->buckets);
	ws_jw_uint(w, "bucket_size", e->bucket_size);
	ws_jw_array(w, "endpoints");
	for (size_t i = 0; i < e->n_endpoints; i++)
		put_endpoint_result(w, &e->endpoints[i]);
	ws_jw_end_array(w);
	ws_jw_object(w, "ns");
	for (int i = 0; i < WS_PHASE_COUNT; i++)
		ws_jw_int(w, ws_phase_name((enum ws_phase)i), e->ns[i]);
	ws_jw_int(w, "total", e->total_ns);
	ws_jw_end_object(w);
	ws_jw_int(w, "first_byte_ns", e->first_byte_ns);
	ws_jw_hex64(w, "digest", e->digest);
	ws_jw_str(w, "weight_version", e->weight_version);
	ws_jw_str(w, "verify", e->verify);
	ws_jw_bool(w, "dry_run", e->dry_run);
	if (e->staged || e->completed)
		ws_jw_bool(w, e->staged ? "staged" : "completed", e->ok && !e->dry_run);
	if (e->written && e->ok && !e->dry_run)
		ui_json_text(w, "written", e->written);
	if (e->round && e->ok)
		put_round(w, e->round);
	if (e->transform)
		put_transform(w, e->transform);
	ui_json_left_out(w, e->left_out);
	if (e->names)
		ui_json_name_check(w, e->names);
}

static void json_start(struct ui *ui, const struct ws_ev_start *s)
{
	struct ws_jw *w = open_start(ui);
	if (!w)
		return;
	ws_jw_uint(w, "endpoints", s->n_endpoints);
	ui_line_end(ui);
}

static void json_result(struct ui *ui, const struct ws_ev_end *e)
{
	struct ws_jw *w = ui_line(ui, "result");
	ws_jw_str(w, "source", e->source);
	ws_jw_bool(w, "ok", e->ok);
	ws_jw_int(w, "exit", e->err ? e->err->code : WS_OK);
	put_error(w, e->err);
	put_totals(w, e);
	ui_line_end(ui);
}

static void json_end(struct ui *ui, const struct ws_ev_end *e)
{
	struct ws_jw *w = ui_end_open(ui, e->err);
	put_totals(w, e);
	if (e->n_results)
		ws_jw_uint(w, "results", e->n_results);
	ui_line_end(ui);
}

void ui_json_event(struct ui *ui, const struct ws_event *ev)
{
	switch (ev->type) {
	case WS_EV_START:
		json_start(ui, &ev->start);
		return;
	case WS_EV_PLAN:
		put_plan(ui_line(ui, "plan"), &ev->plan);
		break;
	case WS_EV_ENDPOINT:
		put_endpoint(ui_line(ui, "endpoint"), &ev->endpoint);
		break;
	case WS_EV_BUCKET:
		put_bucket(ui_line(ui, "bucket"), &ev->bucket);
		break;
	case WS_EV_TENSOR:
		put_tensor(ui_line(ui, "tensor"), &ev->tensor);
		break;
	case WS_EV_NAMES:
		ui_json_names(ui, &ev->names);
		return;
	case WS_EV_MISMATCH:
		put_mismatch(ui_line(ui, "mismatch"), &ev->mismatch);
		break;
	case WS_EV_PROOF:
		put_proof(ui_line(ui, "proof"), &ev->proof);
		break;
	case WS_EV_WARNING: {
		struct ws_jw *w = ui_line(ui, "warning");
		ui_json_text(w, "url", ev->warning.url);
		ws_jw_str(w, "message", ui_words(ev->warning.message));
		break;
	}
	case WS_EV_PROGRESS:
		return;
	case WS_EV_WAITING: {
		struct ws_jw *w = ui_line(ui, "waiting");
		ws_jw_str(w, "phase", ws_phase_name(ev->waiting.phase));
		ws_jw_int(w, "ns", ev->waiting.ns);
		ws_jw_str(w, "message", ui_words(ev->waiting.message));
		break;
	}
	case WS_EV_HANG:
		ui_json_hang(ui, ev->hang);
		return;
	case WS_EV_STALE:
		put_stale(ui_line(ui, "stale"), &ev->stale);
		break;
	case WS_EV_CANARY:
		put_canary(ui_line(ui, "canary"), &ev->canary);
		break;
	case WS_EV_RESULT:
		json_result(ui, &ev->end);
		return;
	case WS_EV_END:
		json_end(ui, &ev->end);
		return;
	}
	ui_line_end(ui);
}
