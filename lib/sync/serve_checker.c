/* SPDX-License-Identifier: Apache-2.0 */
/* serve_checker.c - checksums, and the proof that an update writes every parameter: keep a copy, spoil
 * everything, update, compare with the copy.
 *
 * Checksums are XXH3-64 where upstream has a hash of its own and SHA-256; "algorithm" says so. They go
 * by the names of the checkpoint, of full tensors: a model's are put together again from the shares
 * of all ranks, in the type in which they were sent, so that they can be compared with what was sent.
 * What nothing was ever loaded into is left out. "tensors" tells the type and the shape that the bytes
 * were taken for: bfloat16 that was read as float16 has the same bytes. */
#include "hash.h"
#include "serve_call.h"
#include "serve_lineage.h"
#include "serve_model.h"

#include "number.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

static const char stops[] = "the endpoint stops";

/* ---- checksums ---- */

struct sum {
	const char *name;
	enum ws_dtype dtype;
	unsigned n_dims;
	const int64_t *dims;
	const uint64_t *hashes; /* of each rank */
};

struct sums {
	struct sum *items; /* by name */
	size_t n;
	uint64_t *hashes;
};

static int compare_sums(const void *a, const void *b)
{
	return strcmp(((const struct sum *)a)->name, ((const struct sum *)b)->name);
}

/* Returns the place for its hashes. */
static uint64_t *add_sum(struct sums *sums, struct sum sum, unsigned tp)
{
	uint64_t *hashes = sums->hashes + sums->n * tp;
	sum.hashes = hashes;
	sums->items[sums->n++] = sum;
	return hashes;
}

/* Rank 0's copy is read again: what counts is what is there now. */
static void sum_weights(const struct ws_serve *s, struct sums *sums)
{
	for (size_t i = 0; i < s->weights.n; i++) {
		const struct ws_serve_weight *w = &s->weights.items[i];
		const struct sum sum = { w->name, w->dtype, w->n_dims, w->dims, NULL };
		uint64_t *hashes = add_sum(sums, sum, s->opts.tp);
		for (unsigned r = 0; r < s->opts.tp; r++)
			hashes[r] = w->hash;
		if (s->opts.keep == WS_KEEP_MEMORY)
			hashes[0] = ws_hash64(w->data, w->data ? (size_t)w->bytes : 0);
	}
}

/* The part whose bytes a tied one has: that of the other parameter. */
static size_t source_of(const struct ws_serve_model *m, size_t i)
{
	const struct ws_part *part = ws_layout_part(m->layout, i);
	const char *tied = ws_layout_param(m->layout, part->param)->tied_to;
	const struct ws_param *other = tied ? ws_layout_find_param(m->layout, tied) : NULL;
	return other ? other->first : i;
}

static int sum_model(const struct ws_serve_model *m, struct sums *sums)
{
	struct ws_serve_gather g;
	for (size_t i = 0; i < ws_layout_part_count(m->layout); i++) {
		const struct ws_serve_part_state *state = &m->parts[source_of(m, i)];
		const struct ws_part *part = ws_layout_part(m->layout, i);
		if (!state->loaded)
			continue;
		const struct sum sum = { part->name, state->came_as, part->n_dims, part->dims, NULL };
		ws_serve_gather_begin(&g, m, part, state->came_as);
		if (ws_serve_gather_hash(&g, add_sum(sums, sum, m->tp)))
			return -1;
	}
	return 0;
}

static int make_sums(const struct ws_serve *s, struct sums *sums)
{
	const bool model = s->model && s->opts.keep == WS_KEEP_MEMORY;
	const size_t most = model ? ws_layout_part_count(s->model->layout) : s->weights.n;
	sums->items = calloc(most + 1, sizeof *sums->items);
	sums->hashes = calloc(most + 1, s->opts.tp * sizeof *sums->hashes);
	if (!sums->items || !sums->hashes)
		return -1;
	if (model && sum_model(s->model, sums))
		return -1;
	if (!model)
		sum_weights(s, sums);
	qsort(sums->items, sums->n, sizeof *sums->items, compare_sums);
	return 0;
}

/* The digest of one rank: over the names in order, each followed by its checksum. */
static uint64_t write_rank(struct ws_jw *jw, unsigned tp_rank, const struct sums *sums,
                           struct ws_hash *digest)
{
	ws_hash_reset(digest);
	ws_jw_object(jw, "checksums");
	for (size_t i = 0; i < sums->n; i++) {
		const struct sum *sum = &sums->items[i];
		char hex[17];
		snprintf(hex, sizeof hex, "%016" PRIx64, sum->hashes[tp_rank]);
		ws_jw_str(jw, sum->name, hex);
		ws_hash_add(digest, sum->name, strlen(sum->name));
		ws_hash_add(digest, hex, 16);
	}
	ws_jw_end_object(jw);
	return ws_hash_digest(digest);
}

static void write_tensors(struct ws_jw *jw, const struct sums *sums)
{
	ws_jw_object(jw, "tensors");
	for (size_t i = 0; i < sums->n; i++) {
		const struct sum *sum = &sums->items[i];
		ws_jw_object(jw, sum->name);
		ws_jw_str(jw, "dtype", ws_dtype_torch(sum->dtype));
		ws_jw_array(jw, "shape");
		for (unsigned d = 0; d < sum->n_dims; d++)
			ws_jw_int(jw, NULL, sum->dims[d]);
		ws_jw_end_array(jw);
		ws_jw_end_object(jw);
	}
	ws_jw_end_object(jw);
}

static void write_parallelism(struct ws_jw *jw, const struct ws_serve *s, unsigned tp_rank)
{
	ws_jw_object(jw, "parallelism_info");
	ws_jw_uint(jw, "tp_rank", tp_rank);
	ws_jw_uint(jw, "tp_size", s->opts.tp);
	ws_jw_uint(jw, "dp_rank", 0);
	ws_jw_uint(jw, "dp_size", 1);
	ws_jw_uint(jw, "pp_rank", 0);
	ws_jw_uint(jw, "pp_size", 1);
	ws_jw_uint(jw, "rank", tp_rank);
	ws_jw_uint(jw, "size", s->opts.tp);
	ws_jw_end_object(jw);
}

static void write_checksums(struct ws_serve_call *c, const struct sums *sums, struct ws_hash *digest)
{
	const struct ws_serve *s = c->serve;
	uint64_t ranks[WS_SERVE_MAX_TP];
	struct ws_jw jw;
	ws_jw_init(&jw, &c->rp->body);
	ws_jw_object(&jw, NULL);
	ws_jw_bool(&jw, "success", true);
	ws_jw_str(&jw, "message", "Success.");
	ws_jw_str(&jw, "algorithm", "xxh3-64");
	write_tensors(&jw, sums);
	ws_jw_array(&jw, "ranks");
	for (unsigned i = 0; i < s->opts.tp; i++) {
		ws_jw_object(&jw, NULL);
		ranks[i] = write_rank(&jw, i, sums, digest);
		ws_jw_hex64(&jw, "per_gpu_checksum", ranks[i]);
		write_parallelism(&jw, s, i);
		ws_jw_end_object(&jw);
	}
	ws_jw_end_array(&jw);
	ws_jw_hex64(&jw, "per_engine_checksum", ws_hash64(ranks, s->opts.tp * sizeof ranks[0]));
	ws_jw_end_object(&jw);
}

static void answer_checksums(struct ws_serve_call *c)
{
	struct sums sums = { 0 };
	struct ws_hash *digest = ws_hash_new();
	if (digest && make_sums(c->serve, &sums) == 0)
		write_checksums(c, &sums, digest);
	else
		ws_serve_answer(c, false, "not enough memory");
	ws_hash_free(digest);
	free(sums.items);
	free(sums.hashes);
}

/* ---- the proof ---- */

/* One tensor in memory: a parameter of one rank, or what was received under a name. */
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
	uint8_t *copy; /* of all cells, one after the other */
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

/* xorshift64*: other bytes at each time, and never all the same. */
static uint64_t draw(uint64_t *state)
{
	*state ^= *state >> 12;
	*state ^= *state << 25;
	*state ^= *state >> 27;
	return *state * UINT64_C(0x2545f4914f6cdd1d);
}

/* Random numbers below 2 in magnitude where they are floats: none is NaN or infinite. */
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

static void answer_reset(struct ws_serve_call *c)
{
	uint64_t state = (uint64_t)ws_now_ns() | 1;
	for (size_t i = 0; i < count_cells(c->serve); i++) {
		const struct cell cell = cell_at(c->serve, i);
		spoil(&cell, &state);
	}
	ws_serve_stir(c->serve);
	ws_serve_answer(c, true, "Success.");
}

/* The first element that differs, and both numbers. */
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
	ws_buf_printf(out, "\nname=%s tp_rank=%u element=%" PRIu64 " expect=%g actual=%g", cell->name,
	              cell->tp_rank, i, want, have);
}

static void answer_compare(struct ws_serve_call *c)
{
	enum { MOST = 20 };
	struct ws_serve *s = c->serve;
	const struct ws_serve_snapshot *shot = s->snapshot;
	if (!shot || shot->n != count_cells(s) || shot->bytes != count_bytes(s)) {
		ws_serve_answer(c, false, shot ? "tensors have come since the snapshot, or other types" :
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
	bool bytes; /* needs them, not only their hashes */
	void (*run)(struct ws_serve_call *c);
} actions[] = {
	{ "checksum", false, answer_checksums },
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
		ws_serve_answer(c, false, "this endpoint keeps %s (--keep %s)",
		                keep == WS_KEEP_HASH ? "hashes only" : "nothing",
		                keep == WS_KEEP_HASH ? "hash" : "none");
	} else if (!ws_serve_occupy(c->serve, false)) {
		ws_serve_answer(c, false, stops);
	} else {
		action->run(c);
		ws_serve_vacate(c->serve);
	}
}

void ws_serve_route_checker(struct ws_serve_call *c)
{
	const bool checksums = c->serve->traits->checksums || c->serve->opts.checksums;
	const char *name = checksums ? "checksum" : NULL;
	struct ws_err err = WS_ERR_INIT;
	if (ws_serve_field_str(c->body, "action", !checksums, &name, &err))
		ws_serve_answer_invalid(c, err.msg);
	else if (!checksums && strcmp(name, "checksum") == 0)
		ws_serve_answer(c, false, "Unsupported action='checksum'");
	else
		check(c, name);
}

/* Ours: so that every lineage can be looked into. */
void ws_serve_route_checksums(struct ws_serve_call *c)
{
	check(c, "checksum");
}
