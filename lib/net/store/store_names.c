/* SPDX-License-Identifier: Apache-2.0 */
/* store_names.c - the purpose of a key, derived from its name.
 *
 * With G the group, P is the prefix of a process group of torch >= 2.0 (1.13):
 *
 *   NCCL id        P = /G/G//cuda//    (/G/G/)     P<n>, one per communicator
 *   gloo           P = /G/G//cpu//0/   (/G/G/0/)   P<rank>, P "rank_" <rank>
 *
 * Without a group, or with another one, a name that occurs twice counts as the group, and so does
 * "default_pg/0", torch 1.13's default group. */
#include "store_core.h"

#include <string.h>

/* Ranks, devices and communicators have small numbers. */
enum { MAX_DIGITS = 6 };

bool ws_store_key_has(struct ws_bytes key, const char *part)
{
	return memmem(key.data, key.n, part, strlen(part)) != NULL;
}

static bool ends_with(struct ws_bytes s, const char *suffix)
{
	const size_t n = strlen(suffix);
	return s.n >= n && memcmp(s.data + s.n - n, suffix, n) == 0;
}

static bool begins_with(struct ws_bytes s, const char *prefix)
{
	const size_t n = strlen(prefix);
	return s.n >= n && memcmp(s.data, prefix, n) == 0;
}

/* Removes the digits at the end of *s and returns the number; -1: none, or too many. */
static int cut_number(struct ws_bytes *s)
{
	size_t n = 0;
	while (n < s->n && s->data[s->n - n - 1] >= '0' && s->data[s->n - n - 1] <= '9')
		n++;
	if (n == 0 || n > MAX_DIGITS)
		return -1;
	int value = 0;
	for (size_t i = s->n - n; i < s->n; i++)
		value = value * 10 + (s->data[i] - '0');
	s->n -= n;
	return value;
}

static bool cut(struct ws_bytes *s, const char *suffix)
{
	if (!ends_with(*s, suffix))
		return false;
	s->n -= strlen(suffix);
	return true;
}

/* True if it ends in "/G/G" or, for other groups, in one name twice. */
static bool is_group(struct ws_bytes s, const char *group)
{
	if (ends_with(s, "/default_pg/0"))
		return true;
	if (group) {
		struct ws_bytes rest = s;
		if (cut(&rest, group) && cut(&rest, "/") && cut(&rest, group) && cut(&rest, "/"))
			return true;
	}
	const char *slash = memrchr(s.data, '/', s.n);
	if (!slash)
		return false;
	const size_t n = s.n - (size_t)(slash - s.data);
	return n > 1 && s.n >= 2 * n && memcmp(slash - n, slash, n) == 0;
}

/* torch 1.13 under torchrun puts "//worker/attempt_0" in front. */
bool ws_store_key_ours(struct ws_bytes key, const char *group)
{
	const size_t n = strlen(group);
	const char *end = key.data + key.n;
	for (const char *at = key.data; (at = memmem(at, (size_t)(end - at), group, n)); at++) {
		if (at > key.data && at[-1] == '/' && (size_t)(end - at) >= 2 * n + 2 &&
		    at[n] == '/' && memcmp(at + n + 1, group, n) == 0 && at[2 * n + 1] == '/')
			return true;
	}
	return false;
}

/* True if the rest of a key without its last number names a NCCL group. */
static bool is_nccl_prefix(struct ws_bytes s, const char *group)
{
	if (cut(&s, "/cuda//"))
		return true;
	return cut(&s, "/") && is_group(s, group);
}

bool ws_store_gloo_key(struct ws_bytes key, const char *group, struct ws_store_gloo_key *out)
{
	struct ws_bytes s = key;
	out->rank = cut_number(&s);
	if (out->rank < 0)
		return false;
	cut(&s, "rank_");
	out->n_prefix = s.n;
	if (!cut(&s, "/"))
		return false;
	out->device = cut_number(&s);
	if (out->device < 0 || !(cut(&s, "/cpu//") || (cut(&s, "/") && is_group(s, group))))
		return false;
	out->ours = !group || ws_store_key_ours(key, group);
	return true;
}

enum ws_store_key ws_store_classify(const char *key, size_t n, const char *group)
{
	const struct ws_bytes k = { key, n };
	struct ws_bytes s = k;
	struct ws_store_gloo_key gloo;

	if (n == 5 && begins_with(k, "init/"))
		return WS_KEY_INIT;
	if (ws_store_key_has(k, "pg_wrapper:"))
		return WS_KEY_PG_WRAPPER;
	if (ws_store_key_has(k, "UniqueNCCLID:"))
		return WS_KEY_SCALABLE_ID;
	if (ws_store_key_has(k, "nccl_storekey_"))
		return WS_KEY_NCCL2;
	if (ends_with(k, "SEQ_NUM_STORE_KEY"))
		return WS_KEY_SEQ_NUM;
	if (ws_store_key_has(k, "store_based_barrier_key:"))
		return WS_KEY_BARRIER;
	if (begins_with(k, "/broadcast_from/"))
		return WS_KEY_PYNCCL;
	if (cut_number(&s) < 0)
		return WS_KEY_OTHER;
	/* The order matters: gloo's /x/x/0/0 also looks like a NCCL id of a group "0". */
	if (ws_store_gloo_key(k, group, &gloo))
		return ends_with(s, "/rank_") ? WS_KEY_GLOO_RANK : WS_KEY_GLOO_ADDRESS;
	return is_nccl_prefix(s, group) ? WS_KEY_NCCL_ID : WS_KEY_OTHER;
}
