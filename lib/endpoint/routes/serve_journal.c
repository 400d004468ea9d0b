/* SPDX-License-Identifier: Apache-2.0 */
/* serve_journal.c - records the requests to the endpoint, in their order, for GET /wsync/journal.
 *
 * A request is in the journal from its start, with status 0 until it is answered. So a test can see
 * a request that hangs. Requests beyond the limit are only counted. */
#include "serve_journal.h"
#include "serve_call.h"
#include "serve_group.h"

#include <stdlib.h>
#include <string.h>

enum { BLOCK = 250, BLOCKS = 200, MAX_NOTES = BLOCK * BLOCKS };

static struct ws_serve_note *note_at(const struct ws_serve_journal *j, size_t place)
{
	return &j->blocks[place / BLOCK][place % BLOCK];
}

static int grow(struct ws_serve_journal *j)
{
	if (!j->blocks && !(j->blocks = calloc(BLOCKS, sizeof *j->blocks)))
		return -1;
	struct ws_serve_note **block = &j->blocks[j->n / BLOCK];
	if (!*block)
		*block = calloc(BLOCK, sizeof **block);
	return *block ? 0 : -1;
}

size_t ws_serve_journal_begin(struct ws_serve_journal *j, const struct ws_serve_note *note)
{
	if (j->n >= MAX_NOTES || (j->n % BLOCK == 0 && grow(j))) {
		j->omitted++;
		return SIZE_MAX;
	}
	*note_at(j, j->n) = *note;
	return j->n++;
}

void ws_serve_journal_end(struct ws_serve_journal *j, size_t place,
                          const struct ws_serve_note *note)
{
	if (place < j->n)
		*note_at(j, place) = *note;
	else
		free(note->ignored_names);
}

void ws_serve_journal_fini(struct ws_serve_journal *j)
{
	for (size_t i = 0; i < j->n; i++)
		free(note_at(j, i)->ignored_names);
	for (size_t i = 0; j->blocks && i < BLOCKS; i++)
		free(j->blocks[i]);
	free(j->blocks);
	*j = (struct ws_serve_journal){ 0 };
}

static void write_text(struct ws_jw *w, const char *key, const char *text)
{
	if (*text)
		ws_jw_str(w, key, text);
}

static void write_loading(struct ws_jw *w, const struct ws_serve_note *n)
{
	ws_jw_uint(w, "loaded", n->loaded);
	ws_jw_uint(w, "ignored", n->ignored);
	ws_jw_array(w, "ignored_names");
	for (size_t at = 0; at < n->ignored_len; at += strlen(n->ignored_names + at) + 1)
		ws_jw_str(w, NULL, n->ignored_names + at);
	ws_jw_end_array(w);
}

static void write_note(struct ws_jw *w, const struct ws_serve_note *n)
{
	ws_jw_object(w, NULL);
	ws_jw_int(w, "at_ns", n->at_ns);
	ws_jw_int(w, "ns", n->ns);
	ws_jw_str(w, "method", n->method);
	ws_jw_str(w, "path", n->path);
	ws_jw_uint(w, "status", n->status);
	write_text(w, "fault", n->fault);
	write_text(w, "corrupted", n->corrupted);
	write_text(w, "group", n->group);
	write_text(w, "mode", n->mode);
	if (n->flush != WS_TRI_NONE) {
		ws_jw_bool(w, "flush_cache", n->flush == WS_TRI_TRUE);
		ws_jw_str(w, "load_format", *n->load_format ? n->load_format : NULL);
		ws_jw_uint(w, "tensors", n->tensors);
		ws_jw_uint(w, "bytes", n->bytes);
		ws_jw_uint(w, "duplicates", n->duplicates);
	}
	if (n->model)
		write_loading(w, n);
	write_text(w, "weight_version", n->weight_version);
	write_text(w, "message", n->message);
	ws_jw_end_object(w);
}

static void write_totals(struct ws_jw *w, const struct ws_serve_journal *j, bool model)
{
	ws_jw_object(w, "totals");
	ws_jw_uint(w, "updates", j->updates);
	ws_jw_uint(w, "tensors", j->tensors);
	ws_jw_uint(w, "distinct", j->distinct);
	ws_jw_uint(w, "duplicates", j->duplicates);
	ws_jw_uint(w, "bytes", j->bytes);
	if (model) {
		ws_jw_uint(w, "loaded", j->loaded);
		ws_jw_uint(w, "ignored", j->ignored);
	}
	ws_jw_uint(w, "handles", j->handles);
	ws_jw_uint(w, "flushes", j->flushes);
	ws_jw_uint(w, "failed_flushes", j->failed_flushes);
	ws_jw_end_object(w);
}

static void write_state(struct ws_jw *w, const struct ws_serve *s)
{
	ws_jw_object(w, "state");
	ws_jw_bool(w, "paused", s->paused);
	ws_jw_str(w, "mode", s->paused ? ws_serve_pause_names_of(s)[s->mode] : NULL);
	ws_jw_bool(w, "busy", s->occupied);
	ws_jw_uint(w, "running", s->running);
	ws_jw_uint(w, "waiting", s->waiting);
	ws_jw_str(w, "weight_version", s->weight_version);
	ws_jw_array(w, "groups");
	for (const struct ws_serve_group *g = s->groups; g; g = g->next)
		ws_jw_str(w, NULL, g->name);
	ws_jw_end_array(w);
	ws_jw_bool(w, "prepared", s->prepared != NULL);
	ws_jw_bool(w, "session", s->session);
	ws_jw_array(w, "released");
	for (unsigned i = 0; i < WS_SERVE_TAGS; i++)
		if (s->released & 1u << i)
			ws_jw_str(w, NULL, ws_serve_tags[i]);
	ws_jw_end_array(w);
	ws_jw_end_object(w);
}

void ws_serve_journal_write(struct ws_serve *s, struct ws_buf *out)
{
	struct ws_jw w;
	ws_jw_init(&w, out);
	pthread_mutex_lock(&s->lock);
	ws_jw_object(&w, NULL);
	ws_jw_int(&w, "schema", 1);
	ws_jw_uint(&w, "omitted", s->journal.omitted);
	write_state(&w, s);
	write_totals(&w, &s->journal, s->model != NULL);
	ws_jw_array(&w, "requests");
	for (size_t i = 0; i < s->journal.n; i++)
		write_note(&w, note_at(&s->journal, i));
	ws_jw_end_array(&w);
	ws_jw_end_object(&w);
	pthread_mutex_unlock(&s->lock);
}
