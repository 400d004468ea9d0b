/* SPDX-License-Identifier: Apache-2.0 */
/* merge_shards.c - merges the shards that ranks saved into the checkpoint that they form.
 *
 * First it identifies each tensor of each rank: a part of the checkpoint, or a fused parameter of
 * that rank. Then the layout gives the box of each rank for each part. If several ranks have the
 * same box, the first rank's is read, and replicas.c compares the others. A part that every rank
 * has whole is not divided, whatever the layout says. */
#include "merge_shards.h"

#include <stdlib.h>
#include <string.h>

/* A rank's share of a part. */
struct share {
	size_t rank;
	struct ws_box from, to;
	const struct ws_tensor *tensor;       /* saved under the part's own name; NULL: see fused */
	const struct ws_layout_match *fused;
	bool replica;                         /* the shares before it cover it */
};

/* ---- shares ---------------------------------------------------------------------------------- */

static bool is_empty(const struct ws_box *b)
{
	for (unsigned d = 0; d < b->n_dims; d++)
		if (b->size[d] == 0)
			return true;
	return false;
}

static bool same_dims(unsigned n, const int64_t *a, const int64_t *b)
{
	return memcmp(a, b, n * sizeof *a) == 0;
}

static struct share share_of(const struct ws_shard_merge *j, const struct ws_part *p, size_t i,
                             size_t rank)
{
	struct share s = { .rank = rank, .tensor = j->ranks[rank].parts[i],
		           .fused = j->ranks[rank].params[p->param] };
	ws_layout_place(j->layout, p, (unsigned)rank, &s.from, &s.to);
	return s;
}

static int both_ways(const struct ws_shard_merge *j, const struct share *s, const struct ws_part *p)
{
	return ws_err_set(j->err, WS_EINPUT,
	                  "rank %zu: tensor '%s' is there twice: as '%s' and within '%s'", s->rank,
	                  p->name, ws_quote(s->tensor->name).text,
	                  ws_quote(s->fused->tensor->name).text);
}

static int missing(const struct ws_shard_merge *j, const struct share *s, const struct ws_part *p)
{
	return ws_err_set(j->err, WS_EINPUT,
	                  "rank %zu: tensor '%s' of shape %s, its share of %s, is missing", s->rank,
	                  p->name, ws_shape_text(p->n_dims, s->from.size).text,
	                  ws_shape_text(p->n_dims, p->dims).text);
}

static int wrong_shape(const struct ws_shard_merge *j, const struct share *s,
                       const struct ws_part *p)
{
	return ws_err_set(j->err, WS_EINPUT,
	                  "rank %zu: tensor '%s' is %s, and its share of %s at tp %u is %s",
	                  s->rank, ws_quote(s->tensor->name).text,
	                  ws_shape_text(s->tensor->n_dims, s->tensor->dims).text,
	                  ws_shape_text(p->n_dims, p->dims).text, j->tp,
	                  ws_shape_text(p->n_dims, s->from.size).text);
}

static int not_its_own(const struct ws_shard_merge *j, const struct share *s,
                       const struct ws_part *p)
{
	ws_err_set(j->err, WS_EINPUT,
	           "rank %zu: tensor '%s' %s is of an expert of another rank at tp %u, ep %u",
	           s->rank, p->name, ws_shape_text(s->tensor->n_dims, s->tensor->dims).text, j->tp,
	           ws_layout_options(j->layout)->ep);
	return ws_err_hint(j->err, "give the number of ranks that share the experts: {sharded_tp} "
	                   "tp=%u,ep=M", j->tp);
}

static const struct ws_tensor *tensor_of(const struct share *s)
{
	return s->tensor || !s->fused ? s->tensor : s->fused->tensor;
}

/* Trainers pad vocabularies to their own multiples, so the next shard begins after the rows of this
 * shard. The last ranks may have only padding. */
static void move_vocab(const struct ws_part *p, struct share *s, int64_t *next)
{
	const int64_t rows = s->tensor->dims[0], left = p->dims[0] - *next;
	s->from.at[0] = *next;
	s->from.size[0] = rows < left ? rows : left;
	*next += s->from.size[0];
}

static bool is_whole(const struct ws_part *p, const struct share *s)
{
	return s->tensor && s->tensor->n_dims == p->n_dims &&
	       same_dims(p->n_dims, s->tensor->dims, p->dims);
}

/* True if a shard under the part's own name has the shape of its box. Padding after the box is
 * ignored. */
static bool fits(const struct ws_part *p, const struct share *s)
{
	const bool padded = p->split == WS_SPLIT_VOCAB || p->split == WS_SPLIT_STEPS;
	if (s->tensor->n_dims != p->n_dims || ws_dtype_bits(s->tensor->dtype) % 8)
		return false;
	for (unsigned d = 0; d < p->n_dims; d++)
		if (padded && (int)d == p->axis ? s->tensor->dims[d] < s->from.size[d] :
		                                  s->tensor->dims[d] != s->from.size[d])
			return false;
	return true;
}

/* Adds the pieces of one share, in the size of its box. > 0: the fused tensor cannot be split. */
static int append_pieces(struct ws_shard_merge *j, const struct ws_part *p, const struct share *s)
{
	const size_t before = j->pieces.n;
	if (s->fused)
		return ws_match_pieces(s->fused, p, &s->from, &s->to, &j->pieces);
	const int rc = ws_pieces_add_whole(&j->pieces, j->c->sources[s->rank], s->tensor);
	if (rc == 0)
		memcpy(j->pieces.v[before].dims, s->from.size, sizeof s->from.size);
	return rc;
}

static int add_share(struct ws_shard_merge *j, const struct ws_part *p, const struct share *s)
{
	const int rc = append_pieces(j, p, s);
	if (rc > 0)
		return ws_err_set(
			j->err, WS_EINPUT,
			"rank %zu: tensor '%s' of shape %s cannot be split", s->rank,
			ws_quote(s->fused->tensor->name).text,
			ws_shape_text(s->fused->tensor->n_dims, s->fused->tensor->dims).text);
	return rc ? ws_oom(j->err) : 0;
}

/* Collects the nonempty shares of all ranks, missing ones too. *n is 0 if no rank saved a share. */
static int collect(struct ws_shard_merge *j, const struct ws_part *p, size_t i,
                   struct share *shares, size_t *n)
{
	size_t given = 0;
	int64_t next = 0;
	*n = 0;
	for (size_t r = 0; r < j->tp; r++) {
		struct share s = share_of(j, p, i, r);
		given += s.tensor || s.fused;
		if (s.tensor && s.fused)
			return both_ways(j, &s, p);
		if (is_whole(p, &s)) {
			s.from = (struct ws_box){ .n_dims = p->n_dims };
			memcpy(s.from.size, p->dims, sizeof p->dims);
		} else if (s.tensor && s.tensor->n_dims == p->n_dims &&
		           p->split == WS_SPLIT_VOCAB) {
			move_vocab(p, &s, &next);
		} else if (s.tensor && is_empty(&s.from) && p->split == WS_SPLIT_EXPERT) {
			return not_its_own(j, &s, p);
		}
		if (!is_empty(&s.from))
			shares[(*n)++] = s;
	}
	if (given == 0)
		*n = 0;
	return 0;
}

/* ---- merging --------------------------------------------------------------------------------- */

static int by_place(const void *a, const void *b)
{
	const struct share *x = a, *y = b;
	for (unsigned d = 0; d < x->from.n_dims; d++)
		if (x->from.at[d] != y->from.at[d])
			return x->from.at[d] < y->from.at[d] ? -1 : 1;
	if (!tensor_of(x) != !tensor_of(y)) /* a missing replica is no error */
		return tensor_of(x) ? -1 : 1;
	return (x->rank > y->rank) - (x->rank < y->rank);
}

/* Returns the only axis along which ranks have different boxes; -1: several axes. */
static int find_axis(const struct ws_part *p, const struct share *s, size_t n)
{
	int axis = 0, found = 0;
	for (unsigned d = 0; d < p->n_dims; d++) {
		size_t i = 0;
		while (i < n && s[i].from.at[d] == 0 && s[i].from.size[d] == p->dims[d])
			i++;
		if (i == n)
			continue;
		axis = (int)d;
		found++;
	}
	return found > 1 ? -1 : axis;
}

static int gap(const struct ws_shard_merge *j, const struct ws_part *p, int axis, int64_t from,
               int64_t to)
{
	return ws_err_set(j->err, WS_EINPUT,
	                  "tensor '%s' of shape %s: no rank has %lld..%lld of axis %d", p->name,
	                  ws_shape_text(p->n_dims, p->dims).text, (long long)from,
	                  (long long)to - 1, axis);
}

static int check_share(const struct ws_shard_merge *j, const struct ws_part *p,
                       const struct share *s, const struct ws_tensor *first)
{
	const struct ws_tensor *t = tensor_of(s);
	if (s->tensor && !fits(p, s))
		return wrong_shape(j, s, p);
	if (!t || t->dtype == first->dtype)
		return 0;
	return ws_err_set(j->err, WS_EINPUT, "rank %zu: tensor '%s' is %s, that of other ranks %s",
	                  s->rank, ws_quote(t->name).text, ws_dtype_torch(t->dtype),
	                  ws_dtype_torch(first->dtype));
}

static const char *describe_share(struct ws_shard_merge *j, const struct share *s, size_t used,
                                  int axis)
{
	const struct ws_quoted name = ws_quote(tensor_of(s)->name);
	if (used > 1)
		return ws_catalog_text(j->c, "joined of %zu ranks' %s along axis %d", used,
		                      name.text, axis);
	return ws_catalog_text(j->c, "%s of rank %zu", name.text, s->rank);
}

/* Adds the pieces of the shares that form the part; *used: their number. */
static int add_shares(struct ws_shard_merge *j, const struct ws_part *p, struct share *s, size_t n,
                      int axis, size_t *used)
{
	int64_t next = 0;
	for (size_t i = 0; i < n; i++) {
		const int64_t at = p->n_dims ? s[i].from.at[axis] : 0;
		const int64_t end = p->n_dims ? at + s[i].from.size[axis] : 1;
		if (check_share(j, p, &s[i], tensor_of(s)))
			return -1;
		s[i].replica = end <= next;
		if (s[i].replica)
			continue;
		if (!tensor_of(&s[i]))
			return missing(j, &s[i], p);
		if (at != next)
			return gap(j, p, axis, next, at);
		if (add_share(j, p, &s[i]))
			return -1;
		next = end;
		++*used;
	}
	return p->n_dims && next != p->dims[axis] ? gap(j, p, axis, next, p->dims[axis]) : 0;
}

static int add_replica(struct ws_shard_merge *j, const struct ws_part *p, const struct share *s,
                       int axis, const struct share *sent)
{
	struct ws_replica r = {
		.item = j->c->n_items - 1,
		.axis = (unsigned)axis,
		.rank = s->rank,
		.sent_rank = sent->rank,
		.sent = tensor_of(sent),
		.at = p->n_dims ? s->from.at[axis] : 0,
		.own = { .name = p->name, .dtype = tensor_of(s)->dtype, .n_dims = p->n_dims }
	};
	j->pieces.n = 0;
	memcpy(r.own.dims, s->from.size, sizeof r.own.dims);
	const int rc = append_pieces(j, p, s);
	if (rc)
		return rc > 0 ? 0 : ws_oom(j->err);
	return ws_catalog_view(j->c, &r.own, (unsigned)axis, &j->pieces, j->err) ||
	       ws_catalog_add_replica(j->c, &r, j->err) ? -1 : 0;
}

/* Records the replicas of the last item. The share that is sent precedes its replicas. */
static int add_replicas(struct ws_shard_merge *j, const struct ws_part *p, const struct share *s,
                        size_t n, int axis)
{
	const struct share *sent = s;
	for (size_t i = 0; i < n; i++) {
		if (!s[i].replica)
			sent = &s[i];
		else if (tensor_of(&s[i]) && add_replica(j, p, &s[i], axis, sent))
			return -1;
	}
	return 0;
}

static int merge_shares(struct ws_shard_merge *j, const struct ws_part *p, struct share *s,
                        size_t n)
{
	struct ws_item item = { .name = p->name, .n_dims = p->n_dims };
	qsort(s, n, sizeof *s, by_place);
	const int axis = find_axis(p, s, n);
	size_t used = 0;
	memcpy(item.dims, p->dims, sizeof item.dims);
	if (!tensor_of(s))
		return missing(j, s, p);
	if (axis < 0)
		return ws_err_set(j->err, WS_EINPUT,
		                  "tensor '%s' is divided along two axes at tp %u: such "
		                  "shards cannot be merged",
		                  p->name, j->tp);
	j->pieces.n = 0;
	if (add_shares(j, p, s, n, axis, &used))
		return -1;
	item.dtype = tensor_of(s)->dtype;
	item.derivation = describe_share(j, s, used, axis);
	if (!item.derivation)
		return ws_oom(j->err);
	return ws_catalog_add_view(j->c, item, (unsigned)axis, &j->pieces, j->err) ||
	       add_replicas(j, p, s, n, axis) ? -1 : 0;
}

/* True if every rank has the part whole. A server cannot have divided this part either. */
static bool all_whole(const struct ws_part *p, const struct share *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if (tensor_of(&s[i]) && !is_whole(p, &s[i]))
			return false;
	return true;
}

static int join_part(struct ws_shard_merge *j, size_t i, struct share *shares)
{
	const struct ws_part *p = ws_layout_part(j->layout, i);
	const struct ws_param *q = ws_layout_param(j->layout, p->param);
	size_t n;
	if (collect(j, p, i, shares, &n))
		return -1;
	if (n == 0)
		return 0;
	if (q->trouble && j->tp > 1 && !all_whole(p, shares, n))
		return ws_err_set(j->err, WS_EINPUT,
		                  "tensor '%s' cannot have been divided by tp %u: %s", p->name,
		                  j->tp, q->trouble);
	return merge_shares(j, p, shares, n);
}

/* ---- the checkpoint -------------------------------------------------------------------------- */

static int prepare(struct ws_shard_merge *j)
{
	j->ranks = calloc(j->tp, sizeof *j->ranks);
	for (size_t r = 0; j->ranks && r < j->tp; r++) {
		j->ranks[r].parts = calloc(j->n_parts + 1, sizeof *j->ranks[r].parts);
		j->ranks[r].params = calloc(j->n_params + 1, sizeof *j->ranks[r].params);
		if (!j->ranks[r].parts || !j->ranks[r].params)
			return ws_oom(j->err);
	}
	return j->ranks ? 0 : ws_oom(j->err);
}

static void drop(struct ws_shard_merge *j)
{
	for (size_t r = 0; j->ranks && r < j->tp; r++) {
		free(j->ranks[r].parts);
		free(j->ranks[r].params);
	}
	free(j->ranks);
	free(j->pieces.v);
}

int ws_catalog_merge_shards(struct ws_catalog *c, const struct ws_catalog_opts *opts,
                            struct ws_err *err)
{
	const struct ws_layout *l = opts->sharded;
	struct ws_shard_merge j = { .c = c, .family = opts->family, .layout = l, .err = err,
		             .tp = ws_layout_options(l)->tp, .n_parts = ws_layout_part_count(l),
		             .n_params = ws_layout_param_count(l) };
	if (c->n_sources != j.tp)
		return ws_err_set(err, WS_EUSAGE,
		                  "a checkpoint sharded by tp %u has %u shards, not %zu", j.tp,
		                  j.tp, c->n_sources);
	struct share *shares = calloc(j.tp, sizeof *shares);
	int rc = shares ? prepare(&j) : ws_oom(err);
	for (size_t r = 0; r < j.tp && rc == 0; r++)
		for (size_t i = 0; i < ws_source_count(c->sources[r]) && rc == 0; i++)
			rc = ws_shard_merge_place(&j, r, ws_source_tensor(c->sources[r], i));
	for (size_t i = 0; i < j.n_parts && rc == 0; i++)
		rc = join_part(&j, i, shares);
	drop(&j);
	free(shares);
	return rc;
}
