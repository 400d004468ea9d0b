/* SPDX-License-Identifier: Apache-2.0 */
/* prover_compare.c - compares a server's checksums with the predictions, and says what is proven.
 *
 * With several ranks, a parameter is proven if it is proven at every rank. A parameter that the
 * server does not list is not proven, and not different either: some servers leave some out. */
#include "prover_core.h"

#include "endpoint_weights.h"
#include "hashes.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum { MAX_CAUSES = 4 };      /* looking for a cause may read the parameter again */

enum verdict { UNSEEN, PROVEN, OPAQUE, DIFFERENT };

struct comparing {
	const struct ws_prover *p;
	const struct prover_server *s;
	const struct ws_checksums *sums;
	struct ws_ev_proof *out;
	enum verdict *of;         /* of each param, over all ranks */
	const struct ws_checksum_rank *same_rank; /* of the first replica; NULL: this is it */
	bool *listed;             /* of each param and tensor-parallel rank, in one replica */
	bool *seen, *tried;       /* of each kind: it is certain; that was tried to find out */
	char first[1024];         /* the first that is opaque, and why; "": none */
	char worst[1024];         /* the first that differs */
	unsigned n_causes;        /* looked for */
	/* checksums that differ from another server's; the first one's name, and that server */
	size_t n_unlike;
	const char *unlike, *unlike_at;
	/* checksums since before the weights were sent, by "it is proven" and "it has changed"; the
	 * first name of each */
	size_t n_since[2][2];
	const char *since[2][2];
};

bool prover_gives(const char *checksum, const char *rewritten, const struct ws_checksum *found)
{
	return strcasecmp(checksum, found->text) == 0 ||
	       (*rewritten && strcasecmp(rewritten, found->text) == 0);
}

bool prover_same(const struct prover_cell *cell, const struct ws_checksum *found)
{
	return cell->state == WS_PREDICT_KNOWN &&
	       prover_gives(cell->checksum, cell->rewritten, found);
}

/* With pipeline stages, ranks of one stage follow each other. */
unsigned prover_tp_rank(const struct prover_table *t, const struct ws_checksum_rank *rank)
{
	return (unsigned)rank->rank % t->tp;
}

const struct ws_checksum *prover_find(const struct ws_checksum_rank *rank, const char *name)
{
	const struct ws_checksum key = { .name = name };
	return bsearch(&key, rank->items, rank->n, sizeof key, ws_checksum_by_name);
}

/* ---- one parameter at one rank ---- */

static void take(struct comparing *c, size_t param, enum verdict v)
{
	if (v > c->of[param])
		c->of[param] = v;
}

static void take_opaque(struct comparing *c, size_t param, int rank, const char *why)
{
	const struct ws_param *of = ws_layout_param(c->s->table->layout, param);
	take(c, param, OPAQUE);
	if (!c->first[0])
		snprintf(c->first, sizeof c->first, "%.600s at rank %d: %.256s", of->name, rank,
		         why);
}

static void report(struct comparing *c, const char *name, const struct ws_checksum_rank *at,
                   const char *expected, const char *found, const char *cause)
{
	const struct ws_event ev = {
		.type = WS_EV_MISMATCH,
		.mismatch = { .url = c->s->info->url, .rank = at->rank, .name = name,
		              .kind = "hash", .expected = expected, .found = found,
		              .cause = cause[0] ? cause : NULL },
	};
	if (!c->worst[0])
		snprintf(c->worst, sizeof c->worst, "%.600s at rank %d%s%.256s", name, at->rank,
		         cause[0] ? ": " : "", cause);
	if (c->p->opts.sink.event)
		c->p->opts.sink.event(c->p->opts.sink.ctx, &ev);
}

/* The same rank of the first replica must have the same bytes. Ranks are sorted by number. */
static bool replicas_differ(const struct comparing *c, const struct ws_checksum *found)
{
	const struct ws_checksum *its =
		c->same_rank ? prover_find(c->same_rank, found->name) : NULL;
	return its && strcasecmp(its->text, found->text) != 0;
}

/* Servers of one build are likely to arrange a parameter in one way. */
static bool are_alike(const struct ws_endpoint_info *a, const struct ws_endpoint_info *b)
{
	return a != b && strcmp(a->version, b->version) == 0 &&
	       strcmp(a->quantization, b->quantization) == 0;
}

/* Compares what cannot be proven with another server. A difference is only a warning: the two may
 * have different GPUs, and so other kernels. Without memory, nothing is compared. */
static void compare_servers(struct comparing *c, size_t param, unsigned rank,
                            const struct ws_checksum *found)
{
	struct prover_table *t = c->s->table;
	if (!t->unproven)
		t->unproven = calloc(t->n_params * t->tp, sizeof *t->unproven);
	struct prover_unproven *u = t->unproven ? &t->unproven[param * t->tp + rank] : NULL;
	if (u && !u->at) {
		*u = (struct prover_unproven){ found->value, c->s->info };
	} else if (u && are_alike(u->at, c->s->info) && u->value != found->value) {
		if (!c->n_unlike++) {
			c->unlike = found->name;
			c->unlike_at = u->at->url;
		}
	}
}

static void warn(const struct comparing *c, const char *text)
{
	const struct ws_event ev = { .type = WS_EV_WARNING,
		                     .warning = { .url = c->s->info->url, .message = text } };
	if (c->p->opts.sink.event)
		c->p->opts.sink.event(c->p->opts.sink.ctx, &ev);
}

static void warn_of_unlike(const struct comparing *c)
{
	char text[1024];
	if (!c->n_unlike)
		return;
	snprintf(text, sizeof text,
	         "%zu checksum%s cannot be proven and differ%s between servers, the first that of "
	         "%.500s from that of %s: one of the two may have other weights", c->n_unlike,
	         c->n_unlike > 1 ? "s" : "", c->n_unlike > 1 ? "" : "s", c->unlike, c->unlike_at);
	warn(c, text);
}

static void note_since(struct comparing *c, const struct ws_checksum_rank *at,
                       const struct ws_checksum *found, bool proven)
{
	const struct ws_checksums *all = &c->s->before;
	for (size_t r = 0; r < all->n_ranks; r++) {
		const struct ws_checksum_rank *its = &all->ranks[r];
		const struct ws_checksum *was = prover_find(its, found->name);
		if (!was || its->rank != at->rank || its->replica != at->replica)
			continue;
		const bool changed = strcasecmp(was->text, found->text) != 0;
		if (!c->n_since[proven][changed]++)
			c->since[proven][changed] = found->name;
	}
}

/* What cannot be proven should have changed if the weights did, and only then. */
static void warn_of_since(const struct comparing *c)
{
	const bool changed = c->n_since[true][true] != 0;
	const size_t n = c->n_since[false][!changed];
	char text[1024];
	if (!n || (!changed && !c->n_since[true][false]))
		return;
	if (changed)
		snprintf(text, sizeof text,
		         "%zu checksum%s cannot be proven and %s as before the push, the first "
		         "that of %.500s: if these weights are new, the server did not load them",
		         n, n > 1 ? "s" : "", n > 1 ? "are" : "is", c->since[false][false]);
	else
		snprintf(text, sizeof text,
		         "%zu checksum%s cannot be proven and changed, the first that of %.500s, "
		         "and nothing that is proven did: if the server had these weights before, "
		         "it does not load them as it does at its start",
		         n, n > 1 ? "s" : "", c->since[false][true]);
	warn(c, text);
}

static void judge_opaque(struct comparing *c, size_t param, const struct ws_checksum_rank *at,
                         const struct ws_checksum *found, const char *why)
{
	const char *name = ws_layout_param(c->s->table->layout, param)->name;
	if (!replicas_differ(c, found)) {
		note_since(c, at, found, false);
		compare_servers(c, param, prover_tp_rank(c->s->table, at), found);
		take_opaque(c, param, at->rank, why);
		return;
	}
	take(c, param, DIFFERENT);
	report(c, name, at, "", found->text, "another replica has other bytes");
}

/* SHA-256 of nothing: vLLM lists parameters that it keeps in another place and form. */
static bool is_of_nothing(const struct ws_checksum *found)
{
	static const char sum[] = "e3b0c44298fc1c149afbf4c8996fb924"
	                          "27ae41e4649b934ca495991b7852b855";
	return strcmp(found->text, sum) == 0;
}

static void judge(struct comparing *c, size_t param, const struct ws_checksum_rank *at,
                  const struct ws_checksum *found)
{
	const struct prover_table *t = c->s->table;
	const unsigned rank = prover_tp_rank(t, at);
	const struct prover_cell *cell = prover_cell(t, param, rank);
	char cause[160] = "";
	if (prover_same(cell, found)) {
		take(c, param, PROVEN);
		note_since(c, at, found, true);
		c->out->proven_bytes += cell->bytes;
	} else if (c->s->info->moves_experts &&
	           prover_has_experts(t->layout, ws_layout_param(t->layout, param))) {
		take_opaque(c, param, at->rank, "this server moves experts (EPLB)");
	} else if (is_of_nothing(found)) {
		judge_opaque(c, param, at, found, "the server keeps it in another form, and "
		             "reports the checksum of no bytes");
	} else if (cell->state != WS_PREDICT_KNOWN) {
		judge_opaque(c, param, at, found, cell->why ? cell->why : "it has no checksum");
	} else if (!prover_accuses(c->p, c->s, param, rank, found, c->seen, c->tried)) {
		judge_opaque(c, param, at, found, "it is not as expected, which means nothing: "
		             "no parameter of its kind was ever equal at this server");
	} else {
		if (c->n_causes++ < MAX_CAUSES)
			prover_cause(c->s, param, at, found, cause, sizeof cause);
		take(c, param, DIFFERENT);
		report(c, ws_layout_param(t->layout, param)->name, at, cell->checksum,
		       found->text, cause);
	}
}

/* ---- one rank, one replica ---- */

/* A tied parameter that is not compared by itself is the other one. *param: its index. False: no
 * parameter of the layout. */
static bool find_param(const struct prover_table *t, const char *name, size_t *param)
{
	const struct ws_param *const first = ws_layout_param(t->layout, 0);
	const struct ws_param *of = ws_layout_find_shown(t->layout, name);
	if (of && of->tied_to && !t->scope[of - first])
		of = ws_layout_find_param(t->layout, of->tied_to);
	if (of)
		*param = (size_t)(of - first);
	return of;
}

static void judge_once(struct comparing *c, size_t param, const struct ws_checksum_rank *at,
                       const struct ws_checksum *found)
{
	const struct prover_table *t = c->s->table;
	bool *listed = &c->listed[param * t->tp + prover_tp_rank(t, at)];
	const uint64_t before = c->out->proven_bytes;
	if (!t->scope[param])
		return;
	judge(c, param, at, found);
	if (*listed) /* under two names: its bytes count once */
		c->out->proven_bytes = before;
	*listed = true;
}

/* A head that was sent although it is tied must be the embedding. */
static void judge_tied(struct comparing *c, const struct ws_checksum_rank *at,
                       const struct ws_checksum *found)
{
	const struct prover_table *t = c->s->table;
	for (size_t i = 0; i < t->n_tied; i++)
		if (strcmp(ws_layout_param(t->layout, t->tied[i])->tied_to, found->name) == 0)
			judge_once(c, t->tied[i], at, found);
}

static void compare_rank(struct comparing *c, const struct ws_checksum_rank *at)
{
	size_t unknown = 0, drafts = 0, param;
	for (size_t i = 0; i < at->n; i++) {
		const struct ws_checksum *found = &at->items[i];
		if (ws_checksum_is_draft(found)) {
			drafts++;
		} else if (find_param(c->s->table, found->name, &param)) {
			judge_once(c, param, at, found);
			judge_tied(c, at, found);
		} else {
			unknown++;
		}
	}
	if (unknown > c->out->unknown)
		c->out->unknown = unknown;
	c->out->drafts += drafts;
}

/* Of the tp ranks of a replica. A type that the config does not fix has 16 bits. */
static uint64_t bytes_of(const struct prover_table *t, size_t i)
{
	const struct ws_param *p = ws_layout_param(t->layout, i);
	const struct ws_part *part = p->n_parts ? ws_layout_part(t->layout, p->first) : NULL;
	const enum ws_dtype dtype = part && part->exact          ? part->dtype :
	                            t->dtype != WS_DTYPE_COUNT ? t->dtype :
	                                                         WS_DTYPE_BF16;
	uint64_t bytes = 0;
	return ws_dtype_bytes(dtype, p->n_dims, p->dims, &bytes) ? bytes * t->tp : 0;
}

/* Parameters that were left out, or are in the part of another sender. A tied one has no memory. */
static void count_not_sent(struct comparing *c)
{
	const struct prover_table *t = c->s->table;
	size_t n = 0;
	for (size_t i = 0; i < t->n_params; i++) {
		if (t->scope[i] || ws_layout_param(t->layout, i)->tied_to)
			continue;
		n++;
		c->out->not_sent_bytes += bytes_of(t, i);
	}
	c->out->not_sent = n;
}

/* Parameters of the layout that no rank of this replica listed, and all bytes. */
static void count_replica(struct comparing *c)
{
	const struct prover_table *t = c->s->table;
	for (size_t i = 0; i < t->n_params; i++) {
		for (unsigned r = 0; t->scope[i] && r < t->tp; r++) {
			const struct prover_cell *cell = prover_cell(t, i, r);
			if (cell->state == WS_PREDICT_UNLISTED)
				continue;
			c->out->bytes += cell->bytes;
			if (!c->listed[i * t->tp + r])
				take_opaque(c, i, (int)r, "the server does not list it");
		}
	}
	c->out->bytes += t->strange;
	count_not_sent(c);
	memset(c->listed, 0, t->n_params * t->tp * sizeof *c->listed);
}

/* With data-parallel attention, all ranks are of one world. */
static int replica_of(const struct comparing *c, const struct ws_checksum_rank *rank)
{
	return c->s->info->dp_attention ? 0 : rank->replica;
}

static int by_replica(const void *a, const void *b, void *ctx)
{
	const struct ws_checksum_rank *x = *(const struct ws_checksum_rank *const *)a;
	const struct ws_checksum_rank *y = *(const struct ws_checksum_rank *const *)b;
	const int p = replica_of(ctx, x), q = replica_of(ctx, y);
	return p != q ? (p > q) - (p < q) : (x > y) - (x < y);
}

static const struct ws_checksum_rank *first_with_number(const struct comparing *c,
                                                        const struct ws_checksum_rank *rank)
{
	const struct ws_checksum_rank *first = rank;
	while (first > c->sums->ranks && first[-1].rank == rank->rank)
		first--;
	return first == rank || c->s->info->dp_attention ? NULL : first;
}

static int compare_all(struct comparing *c, struct ws_err *err)
{
	const size_t n = c->sums->n_ranks;
	const struct ws_checksum_rank **sorted = calloc(n + 1, sizeof *sorted);
	if (!sorted)
		return ws_oom(err);
	for (size_t r = 0; r < n; r++)
		sorted[r] = &c->sums->ranks[r];
	qsort_r(sorted, n, sizeof *sorted, by_replica, c);
	for (size_t r = 0; r < n; r++) {
		c->same_rank = first_with_number(c, sorted[r]);
		compare_rank(c, sorted[r]);
		if (r + 1 == n || replica_of(c, sorted[r]) != replica_of(c, sorted[r + 1]))
			count_replica(c);
	}
	free(sorted);
	return 0;
}

/* Before anything is compared: more ranks than the server has, other ranks, or ranks of several
 * replicas that cannot be told apart. */
static int check_ranks(const struct prover_server *s, const struct ws_checksums *sums,
                       struct ws_err *err)
{
	const struct ws_endpoint_info *info = s->info;
	const uint64_t world = (uint64_t)info->tp_size * (info->pp_size ? info->pp_size : 1);
	const uint64_t replicas = info->dp_attention || !info->dp_size ? 1 : info->dp_size;
	bool strange = sums->n_ranks > world * replicas;
	for (size_t r = 0; r < sums->n_ranks; r++)
		strange |= sums->numbered && (uint64_t)sums->ranks[r].rank >= world;
	if (strange)
		return ws_checksums_whole(sums, info, err);
	if (sums->numbered || replicas == 1)
		return 0;
	ws_err_set(err, WS_EREFUSED, "%s: %s does not number its ranks", info->url,
	           ws_endpoint_checker_route(ws_lineage_family(info->lineage)));
	return ws_err_where(err, NULL, info->url);
}

/* ---- the result ---- */

static void count(struct comparing *c)
{
	struct ws_ev_proof *o = c->out;
	for (size_t i = 0; i < c->s->table->n_params; i++) {
		o->parameters += c->of[i] != UNSEEN;
		o->proven += c->of[i] == PROVEN;
		o->different += c->of[i] == DIFFERENT;
		o->opaque += c->of[i] == OPAQUE;
	}
	o->bytes += o->not_sent_bytes;
	o->percent = prover_percent(o->proven_bytes, o->bytes);
}

static int answer(struct comparing *c, struct ws_err *err)
{
	const struct ws_ev_proof *o = c->out;
	const bool all = !c->p->opts.min_coverage || c->p->opts.min_coverage == 100;
	if (o->different) {
		ws_err_set(err, WS_EMISMATCH,
		           "%s: it does not hold these weights: %zu of %zu parameters differ, "
		           "the first %s",
		           o->url, o->different, o->parameters, c->worst);
	} else if (ws_checksums_whole(c->sums, c->s->info, err)) {
		return -1;
	} else if (!o->proven || (o->opaque && all) ||
	           !prover_suffices(c->p, o->proven_bytes, o->bytes - o->not_sent_bytes)) {
		ws_err_set(err, WS_EREFUSED,
		           "%s: only %zu of %zu parameters are proven, %.1f %% of the bytes, the "
		           "first that is not: %s",
		           o->url, o->proven, o->parameters, o->percent,
		           c->first[0] ? c->first : "tensors that go to no known parameter");
		ws_err_hint(err, "{min_coverage} sets how much must be proven (100)");
	} else {
		return 0;
	}
	return ws_err_where(err, NULL, o->url);
}

static void sort(const struct ws_checksums *sums)
{
	for (size_t r = 0; r < sums->n_ranks; r++)
		qsort(sums->ranks[r].items, sums->ranks[r].n, sizeof *sums->ranks[r].items,
		      ws_checksum_by_name);
}

int ws_prover_compare(struct ws_prover *p, size_t i, const struct ws_checksums *sums,
                      struct ws_ev_proof *out, struct ws_err *err)
{
	const struct prover_server *s = &p->servers[i];
	const struct prover_table *t = s->table;
	struct comparing c = { .p = p, .s = s, .sums = sums, .out = out };
	*out = (struct ws_ev_proof){ .url = s->info->url, .ranks = (unsigned)sums->n_ranks };
	c.of = calloc(t->n_params + 1, sizeof *c.of);
	c.listed = calloc(t->n_params * t->tp + 1, sizeof *c.listed);
	c.seen = calloc(2 * t->n_kinds + 1, sizeof *c.seen);
	c.tried = c.seen ? c.seen + t->n_kinds : NULL;
	int rc = c.of && c.listed && c.seen ? check_ranks(s, sums, err) : ws_oom(err);
	if (rc == 0) {
		sort(sums);
		prover_certain(p, s, sums, c.seen);
		rc = compare_all(&c, err);
	}
	if (rc == 0) {
		count(&c);
		prover_remember(p, s, c.seen);
		warn_of_unlike(&c);
		warn_of_since(&c);
		const struct ws_event ev = { .type = WS_EV_PROOF, .proof = *out };
		if (p->opts.sink.event)
			p->opts.sink.event(p->opts.sink.ctx, &ev);
		rc = answer(&c, err);
	}
	free(c.of);
	free(c.listed);
	free(c.seen);
	return rc;
}
