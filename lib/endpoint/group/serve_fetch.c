/* SPDX-License-Identifier: Apache-2.0 */
/* serve_fetch.c - stores or loads the tensors of a request, by any route.
 *
 * As in the servers, a tensor of the wrong shape is refused only after its bytes are received, and
 * weights are live before the flush, which may fail. */
#include "serve_fetch.h"
#include "hash.h"
#include "serve_call.h"
#include "serve_lineage.h"
#include "serve_model.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

void ws_serve_count_update(struct ws_serve *s, const struct ws_serve_update *u,
                           const struct ws_serve_note *note)
{
	pthread_mutex_lock(&s->lock);
	s->journal.updates++;
	s->journal.tensors += u->n;
	s->journal.bytes += u->bytes;
	s->journal.duplicates += note->duplicates;
	s->journal.loaded += note->loaded;
	s->journal.ignored += note->ignored;
	s->journal.distinct = s->model ? s->model->n_loaded : s->weights.n;
	pthread_mutex_unlock(&s->lock);
}

void ws_serve_put(struct ws_serve *s, struct ws_serve_update *u, size_t i, uint64_t at,
                  const uint8_t *bytes, size_t n)
{
	for (unsigned r = 0; u->load && r < s->opts.tp; r++)
		ws_serve_load_put(u->load, r, i, at, bytes, n);
	if (!u->load && u->slots[i].data && n)
		memcpy(u->slots[i].data + at, bytes, n);
}

int ws_serve_fetch_bytes(struct ws_serve *s, void *bytes, struct ws_serve_update *u, bool keep,
                         struct ws_err *err)
{
	const uint8_t *from = bytes;
	(void)err;
	for (size_t i = 0; keep && from && i < u->n; i++) {
		const size_t n = (size_t)u->slots[i].bytes;
		ws_serve_put(s, u, i, 0, from, n);
		if (ws_serve_hashes(s))
			u->slots[i].hash = ws_hash64(from, n);
		from += n;
	}
	return 0;
}

static uint64_t current_sync(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	const uint64_t sync = s->sync;
	pthread_mutex_unlock(&s->lock);
	return sync;
}

/* Keeps every tensor under its name. */
static int keep(struct ws_serve *s, const struct ws_serve_fetch *in, struct ws_serve_update *u,
                struct ws_serve_note *note, struct ws_err *err)
{
	uint8_t *block = NULL;
	if (s->opts.keep == WS_KEEP_MEMORY &&
	    ws_serve_weights_reserve(&s->weights, u->slots, u->n, &block, err))
		return -1;
	if (in->fetch(s, in->ctx, u, true, err)) {
		free(block);
		return -1;
	}
	return ws_serve_weights_commit(&s->weights, u->slots, u->n, block, current_sync(s),
	                               &note->duplicates, err);
}

/* Keeps hashes only of tensors that a loader would load. */
static int commit_hashes(struct ws_serve *s, const struct ws_serve_update *u,
                         const struct ws_serve_load *load, struct ws_err *err)
{
	uint64_t duplicates = 0;
	size_t n = 0;
	struct ws_serve_slot *slots = malloc((u->n + 1) * sizeof *slots);
	if (!slots)
		return ws_oom(err);
	for (size_t i = 0; i < u->n; i++)
		if (load->dest[i].loads)
			slots[n++] = u->slots[i];
	const int rc = ws_serve_weights_commit(&s->weights, slots, n, NULL, current_sync(s),
	                                       &duplicates, err);
	free(slots);
	return rc;
}

/* Loads into the parameters of the model. */
static int load_into_model(struct ws_serve *s, const struct ws_serve_fetch *in,
                           struct ws_serve_update *u, struct ws_serve_note *note,
                           struct ws_err *err)
{
	struct ws_serve_load load;
	if (ws_serve_load_begin(&load, s->model, u, s->opts.log, err))
		return -1;
	note->model = true;
	note->ignored = load.ignored;
	note->ignored_names = load.ignored_names;
	note->ignored_len = load.ignored_len;
	load.ignored_names = NULL;
	u->load = s->opts.keep == WS_KEEP_MEMORY ? &load : NULL;
	int rc = in->fetch(s, in->ctx, u, true, err);
	u->load = NULL;
	if (rc == 0) {
		note->loaded = load.loaded;
		ws_serve_load_commit(&load, current_sync(s), &note->duplicates);
		rc = s->opts.keep == WS_KEEP_MEMORY ? 0 : commit_hashes(s, u, &load, err);
	}
	if (rc == 0 && load.why.code) {
		*err = load.why;
		rc = -1;
	}
	ws_serve_load_fini(&load);
	return rc;
}

int ws_serve_fetch_all(struct ws_serve_call *c, const struct ws_serve_fetch *in,
                       struct ws_serve_update *u, struct ws_err *err)
{
	struct ws_serve *s = c->serve;
	struct ws_serve_note *note = &c->note;
	struct ws_err refusal = WS_ERR_INIT;
	struct ws_serve_corrupted *corrupted = NULL;
	int rc = 0;
	if (ws_serve_check_load(s, u, &refusal)) {
		/* The loader would detect this after the bytes have arrived, so receive them. */
		rc = in->fetch(s, in->ctx, u, false, err);
		if (rc == 0)
			*err = refusal;
		return -1;
	}
	if (ws_serve_corrupt_begin(s, c->corrupt, u->slots, u->n, &corrupted, err))
		return -1;
	rc = s->model ? load_into_model(s, in, u, note, err) : keep(s, in, u, note, err);
	if (rc) {
		ws_serve_corrupt_free(corrupted);
		return -1;
	}
	ws_serve_corrupt_end(s, corrupted, note);
	ws_serve_count_update(s, u, note);
	return 0;
}

void ws_serve_note_update(struct ws_serve_note *note, const struct ws_serve_update *u)
{
	snprintf(note->group, sizeof note->group, "%s", u->group);
	if (u->load_format)
		snprintf(note->load_format, sizeof note->load_format, "%s", u->load_format);
	if (u->version)
		snprintf(note->weight_version, sizeof note->weight_version, "%s", u->version);
	note->flush = u->flush ? WS_TRI_TRUE : WS_TRI_FALSE;
	note->tensors = u->n;
	note->bytes = u->bytes;
}

bool ws_serve_is_idle(struct ws_serve *s)
{
	pthread_mutex_lock(&s->lock);
	const bool idle = !s->running && !s->waiting;
	pthread_mutex_unlock(&s->lock);
	return idle;
}

/* The weights are live before the flush that may fail. */
void ws_serve_finish_update(struct ws_serve_call *c, const struct ws_serve_update *u,
                            const char *success)
{
	struct ws_serve *s = c->serve;
	struct ws_err err = WS_ERR_INIT;
	if (u->flush && !ws_serve_flush(s, 0)) {
		if (s->opts.lineage == WS_SERVE_SESSION) /* 0.5.22 and later */
			ws_serve_answer(c, false, "Weights were updated, but the cache was not "
			                "flushed because requests are still running or queued.");
		else if (ws_serve_in(s->opts.lineage, WS_SURVIVES))
			ws_serve_answer(c, false, "Cache flush failed after updating weights");
		else
			ws_serve_crash(c,
			               "AssertionError: Cache flush failed after updating weights");
	} else if (u->version &&
	           ws_serve_set_text(s, &s->weight_version, u->version, &err)) {
		ws_serve_answer(c, false, "%s", err.msg);
	} else if (u->version) {
		ws_serve_answer(c, true, "%s Weight version updated to %s.", success, u->version);
	} else {
		ws_serve_answer(c, true, "%s", success);
	}
}
