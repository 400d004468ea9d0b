/* SPDX-License-Identifier: Apache-2.0 */
/* vllm_checksums.c - reads the reply of vLLM's /weight_checker (since 0.32):
 *
 *   {"checksums": {"dp0:pp0:pcp0:tp1:model.norm.weight": SHA-256 in hex, ...}}
 *
 * Tensor-parallel ranks of one pipeline stage follow each other, as in SGLang's numbers. Ranks of
 * prefill context parallelism have the same weights: with several of them the reply is refused,
 * because their ranks cannot be told apart. */
#include "endpoint_call.h"

#include "hash.h"
#include "listing_read.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 4096, SHA256_DIGITS = 64 };

struct place {
	unsigned dp, pp, pcp, tp;
};

/* Returns the name behind the place; NULL: the key has another form. */
static const char *read_key(const char *key, struct place *at)
{
	int n = 0;
	if (sscanf(key, "dp%4u:pp%4u:pcp%4u:tp%4u:%n", &at->dp, &at->pp, &at->pcp, &at->tp, &n) !=
	            4 || n == 0)
		return NULL;
	const bool small = at->dp < MOST && at->pp < MOST && at->tp < MOST && at->pcp == 0;
	return small && ws_weight_name_ok(key + n) ? key + n : NULL;
}

static int refuse(const char *what, struct ws_err *err)
{
	ws_err_set(err, WS_EREFUSED, "/weight_checker: the answer has %s", what);
	return -1;
}

/* The rank of this place, which is added if it is new. NULL: too many. */
static struct ws_checksum_rank *find_rank(struct ws_checksums *c, int rank, int replica)
{
	for (size_t i = 0; i < c->n_ranks; i++)
		if (c->ranks[i].rank == rank && c->ranks[i].replica == replica)
			return &c->ranks[i];
	if (c->n_ranks == MOST)
		return NULL;
	c->ranks[c->n_ranks] = (struct ws_checksum_rank){ .rank = rank, .replica = replica };
	return &c->ranks[c->n_ranks++];
}

static int add(struct ws_checksum_rank *rank, size_t room, const char *name, const char *text,
               struct ws_err *err)
{
	if (!rank->items) {
		rank->items = calloc(room, sizeof *rank->items);
		if (!rank->items)
			return ws_oom(err);
	}
	rank->items[rank->n++] = (struct ws_checksum){ .name = name, .text = text,
		                                       .value = ws_hash64(text, strlen(text)) };
	return 0;
}

static bool is_digest(const char *text)
{
	return text && strlen(text) == SHA256_DIGITS &&
	       strspn(text, "0123456789abcdef") == SHA256_DIGITS;
}

static int read_all(const struct ws_json *sums, unsigned tp_size, struct ws_checksums *out,
                    struct ws_err *err)
{
	const size_t n = ws_json_count(sums);
	struct place at;
	for (const struct ws_json *s = ws_json_first(sums); s; s = ws_json_next(s)) {
		const char *text = ws_json_string(s), *name = read_key(ws_json_key(s), &at);
		if (!name || !is_digest(text))
			return refuse("an entry that is no checksum of a rank", err);
		struct ws_checksum_rank *rank =
			find_rank(out, (int)(at.pp * tp_size + at.tp), (int)at.dp);
		if (!rank)
			return refuse("too many ranks", err);
		if (add(rank, n, name, text, err))
			return -1;
	}
	return 0;
}

/* One more than the highest tensor-parallel rank. */
static unsigned count_tp(const struct ws_json *sums)
{
	unsigned size = 1;
	struct place at;
	for (const struct ws_json *s = ws_json_first(sums); s; s = ws_json_next(s))
		if (read_key(ws_json_key(s), &at) && at.tp >= size)
			size = at.tp + 1;
	return size;
}

int ws_vllm_decode_checksums(const struct ws_json *root, struct ws_checksums *out,
                             struct ws_err *err)
{
	const struct ws_json *sums = ws_json_get(root, "checksums");
	*out = (struct ws_checksums){ .numbered = true };
	if (ws_json_type(sums) != WS_JSON_OBJECT || !ws_json_count(sums))
		return refuse("no checksums", err);
	if (ws_json_duplicate(sums))
		return refuse("one name twice", err);
	out->ranks = calloc(MOST, sizeof *out->ranks);
	if (!out->ranks)
		return ws_oom(err);
	if (read_all(sums, count_tp(sums), out, err) == 0 && ws_endpoint_check_ranks(out, err) == 0)
		return 0;
	ws_checksums_free(out);
	return -1;
}
