/* SPDX-License-Identifier: Apache-2.0 */
/* vllm_checksums.c - reads the reply of vLLM's /weight_checker (since 0.32):
 *
 *   {"checksums": {"dp0:pp0:pcp0:tp1:model.norm.weight": SHA-256 in hex, ...}}
 *
 * Tensor-parallel ranks of one pipeline stage follow each other, as in SGLang's numbers. Ranks of
 * prefill context parallelism have the same weights: several of them are refused, because they
 * would be one rank here. */
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

/* Reads `word`, a number as Python writes it, and ":". NULL: it is not there. */
static const char *read_part(const char *text, const char *word, unsigned *out)
{
	const size_t n = strlen(word);
	if (!text || strncmp(text, word, n) != 0)
		return NULL;
	const char *digits = text + n, *end = digits;
	for (*out = 0; *end >= '0' && *end <= '9' && *out < MOST; end++)
		*out = *out * 10 + (unsigned)(*end - '0');
	const bool is_number = end > digits && (*digits != '0' || end == digits + 1);
	return is_number && *out < MOST && *end == ':' ? end + 1 : NULL;
}

/* Returns the name behind the place; NULL: the key has another form. */
static const char *read_key(const char *key, struct place *at)
{
	const char *name = read_part(key, "dp", &at->dp);
	name = read_part(name, "pp", &at->pp);
	name = read_part(name, "pcp", &at->pcp);
	name = read_part(name, "tp", &at->tp);
	return name && ws_weight_name_ok(name) ? name : NULL;
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

static bool is_digest(const char *text)
{
	return text && strlen(text) == SHA256_DIGITS &&
	       strspn(text, "0123456789abcdef") == SHA256_DIGITS;
}

/* Checks all entries, and counts those of each rank in its n. */
static int count_all(const struct ws_json *sums, unsigned tp_size, struct ws_checksums *out,
                     struct ws_err *err)
{
	struct place at;
	for (const struct ws_json *s = ws_json_first(sums); s; s = ws_json_next(s)) {
		if (!read_key(ws_json_key(s), &at) || !is_digest(ws_json_string(s)))
			return refuse("an entry that is no checksum of a rank", err);
		if (at.pcp)
			return refuse("several ranks of prefill context parallelism", err);
		struct ws_checksum_rank *rank =
			find_rank(out, (int)(at.pp * tp_size + at.tp), (int)at.dp);
		if (!rank)
			return refuse("too many ranks", err);
		rank->n++;
	}
	return 0;
}

static int read_all(const struct ws_json *sums, unsigned tp_size, struct ws_checksums *out,
                    struct ws_err *err)
{
	struct place at;
	if (count_all(sums, tp_size, out, err))
		return -1;
	for (size_t i = 0; i < out->n_ranks; i++) {
		struct ws_checksum_rank *rank = &out->ranks[i];
		rank->items = calloc(rank->n, sizeof *rank->items);
		if (!rank->items)
			return ws_oom(err);
		rank->n = 0;
	}
	for (const struct ws_json *s = ws_json_first(sums); s; s = ws_json_next(s)) {
		const char *text = ws_json_string(s), *name = read_key(ws_json_key(s), &at);
		struct ws_checksum_rank *rank =
			find_rank(out, (int)(at.pp * tp_size + at.tp), (int)at.dp);
		rank->items[rank->n++] = (struct ws_checksum){
			.name = name, .text = text, .value = ws_hash64(text, strlen(text))
		};
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
