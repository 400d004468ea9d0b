/* SPDX-License-Identifier: Apache-2.0 */
/* serve_checker.c - POST /weights_checker: checksums, and a check that an update writes every
 * parameter: snapshot, overwrite all with random numbers, update, compare with the snapshot. */
#include "serve_call.h"
#include "serve_lineage.h"
#include "serve_model.h"

#include "number.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* ---- snapshot, reset, compare ---- */

/* One tensor in memory: a parameter of one rank, or a received tensor. */
struct cell {
	const char *name;
	unsigned tp_rank;
	enum ws_dtype dtype;
	uint8_t *data;
	uint64_t bytes;
};

struct ws_serve_snapshot {
	size_t n;
	uint64_t bytes;
	uint8_t *copy; /* bytes of all cells, one after the other */
};

static size_t count_cells(const struct ws_serve *s)
{
	return s->model ? ws_layout_param_count(s->model->layout) * s->opts.tp : s->weights.n;
}

static struct cell cell_at(const struct ws_serve *s, size_t i)
{
	const struct ws_serve_model *m = s->model;
	if (!m) {
		const struct ws_serve_weight *w = &s->weights.items[i];
		return (struct cell){ w->name, 0, w->dtype, w->data, w->data ? w->bytes : 0 };
	}
	const size_t param = i / m->tp;
	const unsigned rank = (unsigned)(i % m->tp);
	const struct ws_param *p = ws_layout_param(m->layout, param);
	return (struct cell){ p->name, rank, m->dtypes[param], ws_serve_model_at(m, param, rank),
		              p->tied_to ? 0 : ws_serve_model_bytes(m, param, rank) };
}

static uint64_t count_bytes(const struct ws_serve *s)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < count_cells(s); i++)
		bytes += cell_at(s, i).bytes;
	return bytes;
}

void ws_serve_snapshot_free(struct ws_serve_snapshot *s)
{
	if (s && s->copy)
		munmap(s->copy, (size_t)s->bytes);
	free(s);
}

static void answer_snapshot(struct ws_serve_call *c)
{
	struct ws_serve *s = c->serve;
	struct ws_serve_snapshot *shot = calloc(1, sizeof *shot);
	ws_serve_snapshot_free(s->snapshot);
	s->snapshot = shot;
	if (shot) {
		shot->n = count_cells(s);
		shot->bytes = count_bytes(s);
	}
	void *copy = shot && shot->bytes ? mmap(NULL, (size_t)shot->bytes, PROT_READ | PROT_WRITE,
	                                        MAP_PRIVATE | MAP_ANONYMOUS, -1, 0) : NULL;
	if (!shot || copy == MAP_FAILED) {
		free(shot);
		s->snapshot = NULL;
		ws_serve_answer(c, false, "not enough memory");
		return;
	}
	shot->copy = copy;
	uint8_t *at = copy;
	for (size_t i = 0; i < shot->n; i++) {
		const struct cell cell = cell_at(s, i);
		if (cell.bytes)
			memcpy(at, cell.data, (size_t)cell.bytes);
		at += cell.bytes;
	}
	ws_serve_answer(c, true, "Success.");
}

/* xorshift64*: random bytes, different at every call. */
static uint64_t draw(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * UINT64_C(0x2545f4914f6cdd1d);
}

/* Writes random numbers. Floats are below 2 in magnitude, so none is NaN or infinite. */
static void spoil(const struct cell *cell, uint64_t *state)
{
	const uint64_t size = ws_dtype_bits(cell->dtype) / 8;
	for (uint64_t i = 0; i < cell->bytes; i += 8) {
		const uint64_t word = draw(state);
		memcpy(cell->data + i, &word, (size_t)(cell->bytes - i < 8 ? cell->bytes - i : 8));
	}
	for (uint64_t i = size - 1; i < cell->bytes; i += size)
		cell->data[i] &= 0xbf; /* the highest bit of the exponent */
}

/* SGLang since 0.5.21: names that contain one of these texts stay. */
static bool is_skipped(const struct ws_serve_call *c, const char *name)
{
	const struct ws_json *list = ws_json_get(c->body, "skip_tensor_list");
	for (const struct ws_json *s = ws_json_first(list); s; s = ws_json_next(s))
		if (ws_json_string(s) && strstr(name, ws_json_string(s)))
			return ws_serve_in(c->serve->opts.lineage, WS_IN_SESSION);
	return false;
}

static void answer_reset(struct ws_serve_call *c)
{
	uint64_t state = (uint64_t)ws_now_ns() | 1;
	for (size_t i = 0; i < count_cells(c->serve); i++) {
		const struct cell cell = cell_at(c->serve, i);
		if (!is_skipped(c, cell.name))
			spoil(&cell, &state);
	}
	ws_serve_mark_dirty(c->serve);
	ws_serve_answer(c, true, "Success.");
}

/* Reports the first element that differs, with both values. */
static void describe(struct ws_buf *out, const struct cell *cell, const uint8_t *expected)
{
	const uint64_t size = ws_dtype_bits(cell->dtype) / 8;
	double want = 0, have = 0;
	uint64_t i = 0;
	while (memcmp(cell->data + i * size, expected + i * size, (size_t)size) == 0)
		i++;
	if (ws_number_readable(cell->dtype)) {
		ws_number_read(cell->dtype, expected + i * size, 1, &want);
		ws_number_read(cell->dtype, cell->data + i * size, 1, &have);
	}
	ws_buf_printf(out, "\nname=%s tp_rank=%u element=%" PRIu64 " expect=%g actual=%g",
	              cell->name, cell->tp_rank, i, want, have);
}

static void answer_compare(struct ws_serve_call *c)
{
	enum { MOST = 20 };
	struct ws_serve *s = c->serve;
	const struct ws_serve_snapshot *shot = s->snapshot;
	if (!shot || shot->n != count_cells(s) || shot->bytes != count_bytes(s)) {
		ws_serve_answer(c, false,
		                shot ? "tensors or types have changed since the snapshot" :
		                       "no snapshot was made");
		return;
	}
	struct ws_buf text;
	ws_buf_init(&text, 1 << 16);
	const uint8_t *at = shot->copy;
	size_t bad = 0;
	for (size_t i = 0; i < shot->n; i++) {
		const struct cell cell = cell_at(s, i);
		const bool same = !cell.bytes || memcmp(cell.data, at, (size_t)cell.bytes) == 0;
		if (!same && bad++ < MOST)
			describe(&text, &cell, at);
		at += cell.bytes;
	}
	if (bad > MOST)
		ws_buf_printf(&text, "\n... and %zu more", bad - MOST);
	if (bad)
		ws_serve_answer(c, false, "check tensor equality failed:%s", ws_buf_str(&text));
	else
		ws_serve_answer(c, true, "Success.");
	ws_buf_free(&text);
}

/* ---- the route ---- */

static const struct action {
	const char *name;
	bool bytes; /* needs the weights' bytes, not only their hashes */
	void (*run)(struct ws_serve_call *c);
} actions[] = {
	{ "checksum", false, ws_serve_answer_checksums },
	{ "snapshot", true, answer_snapshot },
	{ "reset_tensors", true, answer_reset },
	{ "compare", true, answer_compare },
};
enum { N_ACTIONS = sizeof actions / sizeof actions[0] };

static void check(struct ws_serve_call *c, const char *name)
{
	const enum ws_serve_keep keep = c->serve->opts.keep;
	const struct action *action = actions;
	while (action < actions + N_ACTIONS && strcmp(action->name, name) != 0)
		action++;
	if (action == actions + N_ACTIONS) {
		ws_serve_answer(c, false, "Unsupported action='%.40s'", name);
	} else if (keep == WS_KEEP_NONE || (keep == WS_KEEP_HASH && action->bytes)) {
		ws_serve_answer(c, false, "this endpoint keeps %s of its weights",
		                keep == WS_KEEP_HASH ? "only hashes" : "nothing");
	} else if (ws_serve_enter(c, false)) {
		if (action == actions && c->serve->opts.device)
			ws_serve_answer_runtime_sums(c);
		else
			action->run(c);
		ws_serve_release(c->serve);
	}
}

void ws_serve_route_checker(struct ws_serve_call *c)
{
	const bool checksums = ws_serve_in(c->serve->opts.lineage, WS_HAS_CHECKSUMS) ||
	                       c->serve->opts.checksums || c->serve->opts.device;
	const char *name = checksums ? "checksum" : NULL;
	if (ws_serve_field_str(c->body, "action", !checksums, &name, &c->invalid))
		return;
	if (!checksums && strcmp(name, "checksum") == 0)
		ws_serve_answer(c, false, "Unsupported action='checksum'");
	else
		check(c, name);
}

/* Only wsync-endpoint has this route: it gives checksums for every lineage. */
void ws_serve_route_checksums(struct ws_serve_call *c)
{
	check(c, "checksum");
}
