/* SPDX-License-Identifier: Apache-2.0 */
/* serve_checksums.c - computes a checksum of the current bytes of every tensor.
 *
 * Checksums are XXH3-64, which "algorithm" reports; upstream uses its own hash and SHA-256. They
 * are of full tensors, under the checkpoint's names. With a model, tensors are assembled from the
 * shares of all ranks, in the type in which they were sent, so that they can be compared with the
 * sent tensors. Parameters that were never loaded are left out. "tensors" reports the type and
 * shape of each tensor, because the same bytes may be read as another type: bfloat16 that was read
 * as float16 has the same bytes. */
#include "hash.h"
#include "serve_call.h"
#include "serve_model.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct sum {
	const char *name;
	enum ws_dtype dtype;
	unsigned n_dims;
	const int64_t *dims;
	const uint64_t *hashes; /* one for each rank */
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

/* Returns the array for the hashes of sum. */
static uint64_t *add_sum(struct sums *sums, struct sum sum, unsigned tp)
{
	uint64_t *hashes = sums->hashes + sums->n * tp;
	sum.hashes = hashes;
	sums->items[sums->n++] = sum;
	return hashes;
}

/* Hashes rank 0's copy again, because a fault may have changed it. */
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

/* Returns the part whose memory part i uses: for a tied parameter, the part of the other one. */
static size_t source_of(const struct ws_serve_model *m, size_t i)
{
	const struct ws_part *part = ws_layout_part(m->layout, i);
	const char *tied = ws_layout_param(m->layout, part->param)->tied_to;
	const struct ws_param *other = tied ? ws_layout_find_param(m->layout, tied) : NULL;
	return other ? other->first : i;
}

/* as_sent: hashes tensors in the type in which they were sent, not in the parameter's type. */
static int sum_model(const struct ws_serve_model *m, bool as_sent, struct sums *sums)
{
	struct ws_serve_gather g;
	for (size_t i = 0; i < ws_layout_part_count(m->layout); i++) {
		const struct ws_serve_part_state *state = &m->parts[source_of(m, i)];
		const struct ws_part *part = ws_layout_part(m->layout, i);
		if (!state->loaded)
			continue;
		const enum ws_dtype dtype = as_sent ? state->came_as : m->dtypes[part->param];
		const struct sum sum = { part->name, dtype, part->n_dims, part->dims, NULL };
		ws_serve_gather_begin(&g, m, part, dtype);
		if (ws_serve_gather_hash(&g, add_sum(sums, sum, m->tp)))
			return -1;
	}
	return 0;
}

static int make_sums(const struct ws_serve *s, bool as_sent, struct sums *sums)
{
	const bool model = s->model && s->opts.keep == WS_KEEP_MEMORY;
	const size_t most = model ? ws_layout_part_count(s->model->layout) : s->weights.n;
	sums->items = calloc(most + 1, sizeof *sums->items);
	sums->hashes = calloc(most + 1, s->opts.tp * sizeof *sums->hashes);
	if (!sums->items || !sums->hashes)
		return -1;
	if (model && sum_model(s->model, as_sent, sums))
		return -1;
	if (!model)
		sum_weights(s, sums);
	qsort(sums->items, sums->n, sizeof *sums->items, compare_sums);
	return 0;
}

/* Returns the digest of one rank: over the names in order, each followed by its checksum. */
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

void ws_serve_write_parallelism(struct ws_jw *jw, const struct ws_serve *s, unsigned tp_rank)
{
	const bool roles = s->opts.lineage == WS_SERVE_SESSION; /* 0.5.21 and later */
	if (roles)
		ws_jw_array(jw, "parallelism_info");
	ws_jw_object(jw, roles ? NULL : "parallelism_info");
	if (roles)
		ws_jw_str(jw, "role", "target");
	ws_jw_uint(jw, "tp_rank", tp_rank);
	ws_jw_uint(jw, "tp_size", s->opts.tp);
	ws_jw_uint(jw, "dp_rank", 0);
	ws_jw_uint(jw, "dp_size", 1);
	ws_jw_uint(jw, "pp_rank", 0);
	ws_jw_uint(jw, "pp_size", 1);
	ws_jw_uint(jw, "rank", tp_rank);
	ws_jw_uint(jw, "size", s->opts.tp);
	ws_jw_end_object(jw);
	if (roles)
		ws_jw_end_array(jw);
}

static void write_checksums(struct ws_serve_call *c, const struct sums *sums,
                            struct ws_hash *digest)
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
		ws_serve_write_parallelism(&jw, s, i);
		ws_jw_end_object(&jw);
	}
	ws_jw_end_array(&jw);
	ws_jw_hex64(&jw, "per_engine_checksum", ws_hash64(ranks, s->opts.tp * sizeof ranks[0]));
	ws_jw_end_object(&jw);
}

void ws_serve_answer_checksums(struct ws_serve_call *c)
{
	struct sums sums = { 0 };
	struct ws_hash *digest = ws_hash_new();
	if (digest && make_sums(c->serve, true, &sums) == 0)
		write_checksums(c, &sums, digest);
	else
		ws_serve_answer(c, false, "not enough memory");
	ws_hash_free(digest);
	free(sums.items);
	free(sums.hashes);
}

/* If ranks hold different copies of a tensor, each different copy counts too. */
int ws_serve_hash_weights(const struct ws_serve *s, uint64_t *out)
{
	struct sums sums = { 0 };
	const int rc = make_sums(s, false, &sums);
	*out = 0;
	for (size_t i = 0; i < sums.n && rc == 0; i++) {
		const struct sum *sum = &sums.items[i];
		for (unsigned r = 0; r < s->opts.tp; r++) {
			const uint64_t of[] = { *out, ws_hash64(sum->name, strlen(sum->name)), r,
				                sum->hashes[r] };
			if (r == 0 || sum->hashes[r] != sum->hashes[0])
				*out = ws_hash64(of, sizeof of);
		}
	}
	free(sums.items);
	free(sums.hashes);
	return rc;
}
