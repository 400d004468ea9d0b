/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_ranks.c - checks which ranks a /weights_checker reply comes from.
 *
 * SGLang 0.5.12 and later give each entry of "ranks" a "parallelism_info" with "rank", the rank
 * in the torch world of one server process group, and "dp_rank". Data-parallel replicas have a
 * world each, so their ranks repeat and only dp_rank tells them apart. With data-parallel
 * attention there is one world and no rank repeats. Since 0.5.21 "parallelism_info" is a list
 * with one such object per role (target, draft); all of them have the same rank. SGLang 0.5.12
 * reports rank 0 of each replica and no other rank, so a missing rank is an error only for those
 * callers that need all ranks. */
#include "endpoint_call.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ws_endpoint_checker_route(enum ws_server_family family)
{
	return family == WS_FAMILY_VLLM ? "/weight_checker" : "/weights_checker";
}

enum { MAX_RANKS = 65536, MAX_NAMED = 8, UNNUMBERED = -1 };

static int refuse_ranks(struct ws_checksums *c, struct ws_err *err)
{
	c->contradicts = true;
	return ws_err_wrap(err, "/weights_checker");
}

/* ---- one entry ---- */

/* Keeps *out if the number is absent. False: it is not a rank number. */
static bool take_number(const struct ws_json *object, const char *key, int *out)
{
	const struct ws_json *node = ws_json_get(object, key);
	int64_t value;
	if (ws_json_type(node) == WS_JSON_NULL)
		return true;
	if (!ws_json_int(node, &value) || value < 0 || value >= MAX_RANKS)
		return false;
	*out = (int)value;
	return true;
}

int ws_endpoint_decode_rank(const struct ws_json *entry, struct ws_checksums *c, size_t i,
                            struct ws_err *err)
{
	const struct ws_json *where = ws_json_get(entry, "parallelism_info");
	struct ws_checksum_rank *rank = &c->ranks[i];
	rank->rank = UNNUMBERED;
	if (ws_json_type(where) == WS_JSON_ARRAY)
		where = ws_json_first(where);
	if (take_number(where, "rank", &rank->rank) &&
	    take_number(where, "dp_rank", &rank->replica))
		return 0;
	ws_err_set(err, WS_EREFUSED, "ranks[%zu] has a rank number that is out of range", i);
	return refuse_ranks(c, err);
}

/* ---- all entries ---- */

static int by_rank(const void *a, const void *b)
{
	const struct ws_checksum_rank *x = a, *y = b;
	if (x->rank != y->rank)
		return x->rank < y->rank ? -1 : 1;
	return (x->replica > y->replica) - (x->replica < y->replica);
}

/* A server that numbers no ranks reports them in rank order: their positions become the numbers. A
 * reply that numbers only some of its ranks is refused. */
static int number_ranks(struct ws_checksums *c, struct ws_err *err)
{
	size_t n = 0;
	for (size_t i = 0; i < c->n_ranks; i++)
		n += c->ranks[i].rank != UNNUMBERED;
	c->numbered = n > 0;
	for (size_t i = 0; !n && i < c->n_ranks; i++)
		c->ranks[i].rank = (int)i;
	if (n == 0 || n == c->n_ranks)
		return 0;
	ws_err_set(err, WS_EREFUSED, "only %zu of the %zu ranks have a number", n, c->n_ranks);
	return refuse_ranks(c, err);
}

int ws_endpoint_check_ranks(struct ws_checksums *c, struct ws_err *err)
{
	if (number_ranks(c, err))
		return -1;
	qsort(c->ranks, c->n_ranks, sizeof *c->ranks, by_rank);
	for (size_t i = 1; i < c->n_ranks; i++) {
		const struct ws_checksum_rank *r = &c->ranks[i];
		if (by_rank(r - 1, r) != 0)
			continue;
		ws_err_set(err, WS_EREFUSED, "rank %d is reported twice", r->rank);
		return refuse_ranks(c, err);
	}
	return 0;
}

/* ---- is every rank there? ---- */

/* Lists the ranks that are missing, or that occur too often: "1, 2, 5 and more". Returns their
 * number. */
static size_t list_ranks(const struct ws_checksums *c, uint64_t ranks, unsigned replicas,
                         bool missing, char *dst, size_t size)
{
	size_t n = 0, used = 0, i = 0;
	dst[0] = '\0';
	for (int r = 0; r < MAX_RANKS && ((uint64_t)r < ranks || i < c->n_ranks); r++) {
		size_t there = 0;
		for (; i < c->n_ranks && c->ranks[i].rank == r; i++)
			there++;
		const size_t wanted = (uint64_t)r < ranks ? replicas : 0;
		if (missing ? there >= wanted : there <= wanted)
			continue;
		if (n < MAX_NAMED)
			used += (size_t)snprintf(dst + used, size - used, "%s%d", n ? ", " : "", r);
		else if (n == MAX_NAMED)
			snprintf(dst + used, size - used, " and more");
		n++;
	}
	return n;
}

bool ws_endpoint_is_ours(const struct ws_endpoint_info *info)
{
	return strstr(info->version, "+wsync.") != NULL;
}

/* Since before 0.4 every SGLang that accepts weights reports its arguments in /server_info, tp_size
 * among them. Other sizes came later: if one is missing, it is 1. Without tp_size, a router, a
 * proxy or a server of another kind has answered. Assuming one rank would be a guess. If it is
 * wrong, the group never forms, or ranks are neither written nor compared. */
int ws_endpoint_check_tp(const struct ws_endpoint_info *info, struct ws_err *err)
{
	if (info->tp_size)
		return 0;
	ws_err_set(err, WS_EREFUSED, "%s does not report how many ranks it has: %s has no tp_size",
	           info->url, info->info_path ? info->info_path : "/server_info");
	ws_err_hint(err, "is it a router or a proxy? use the address of the server itself");
	return ws_err_where(err, NULL, info->url);
}

/* With data-parallel attention all ranks share one world; otherwise each replica has its own. */
int ws_checksums_whole(const struct ws_checksums *c, const struct ws_endpoint_info *info,
                       struct ws_err *err)
{
	char missing[96], extra[96];
	if (ws_endpoint_check_tp(info, err))
		return -1;
	const uint64_t ranks = (uint64_t)info->tp_size * (info->pp_size ? info->pp_size : 1);
	const unsigned replicas = info->dp_attention || !info->dp_size ? 1 : info->dp_size;
	if (c->n_ranks == ranks * replicas && !c->numbered)
		return 0;
	const size_t n_missing = list_ranks(c, ranks, replicas, true, missing, sizeof missing);
	const size_t n_extra = list_ranks(c, ranks, replicas, false, extra, sizeof extra);
	if (!n_missing && !n_extra)
		return 0;
	ws_err_set(err, WS_EREFUSED,
	           "%s: %s reports %zu of its %" PRIu64 " ranks: %s%s%s%s%s", info->url,
	           ws_endpoint_checker_route(ws_lineage_family(info->lineage)), c->n_ranks,
	           ranks * replicas, n_missing ? "missing: rank " : "", missing,
	           n_missing && n_extra ? "; " : "", n_extra ? "too many: rank " : "", extra);
	return ws_err_where(err, NULL, info->url);
}
