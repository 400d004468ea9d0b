/* SPDX-License-Identifier: Apache-2.0 */
#include "name_index.h"

#include "hash.h"
#include "wsync/tool/str.h"

#include <stdlib.h>
#include <string.h>

static const char *name_at(const struct ws_names *names, size_t i)
{
	const char *name;
	memcpy(&name, names->first + i * names->stride, sizeof name);
	return name;
}

static int by_hash(const void *a, const void *b, void *ctx)
{
	const struct ws_name_entry *x = a, *y = b;
	if (x->hash != y->hash)
		return x->hash < y->hash ? -1 : 1;
	const int order = strcmp(name_at(ctx, x->index), name_at(ctx, y->index));
	return order ? order : (x->index > y->index) - (x->index < y->index);
}

/* Finds a name that occurs twice; of several such names, the first in array order. */
static int find_twice(const struct ws_names *names, size_t twice[2])
{
	const struct ws_name_entry *e = names->entries;
	size_t first = SIZE_MAX;
	for (size_t i = 1; i < names->n; i++) {
		if (e[i - 1].hash != e[i].hash || e[i - 1].index >= first ||
		    strcmp(name_at(names, e[i - 1].index), name_at(names, e[i].index)) != 0)
			continue;
		first = e[i - 1].index;
		twice[0] = first;
		twice[1] = e[i].index;
	}
	return first != SIZE_MAX;
}

static size_t bucket_of(uint64_t hash, size_t n)
{
	return (size_t)((unsigned __int128)hash * n >> 64);
}

/* Hashes are spread evenly: as many buckets as entries leave few of them to be compared. */
static int sort(struct ws_names *names)
{
	const size_t n = names->n;
	size_t *end = calloc(n + 1, sizeof *end);
	struct ws_name_entry *sorted = calloc(n ? n : 1, sizeof *sorted);
	if (!end || !sorted) {
		free(end);
		free(sorted);
		return -1;
	}
	for (size_t i = 0; i < n; i++)
		end[bucket_of(names->entries[i].hash, n)]++;
	for (size_t b = 0, sum = 0; b <= n; b++) {
		sum += end[b];
		end[b] = sum - end[b]; /* its first entry, then behind those that were moved */
	}
	for (size_t i = 0; i < n; i++)
		sorted[end[bucket_of(names->entries[i].hash, n)]++] = names->entries[i];
	free(names->entries);
	names->entries = sorted;
	for (size_t b = 0, first = 0; b < n; first = end[b++])
		if (end[b] - first > 1)
			qsort_r(sorted + first, end[b] - first, sizeof *sorted, by_hash, names);
	free(end);
	return 0;
}

int ws_names_init(struct ws_names *names, const void *array, size_t stride, size_t n,
                  size_t twice[2], struct ws_err *err)
{
	struct ws_name_entry *e = calloc(n ? n : 1, sizeof *e);
	if (!e)
		return ws_oom(err);
	*names = (struct ws_names){ array, stride, e, n };
	for (size_t i = 0; i < n; i++) {
		const char *name = name_at(names, i);
		e[i] = (struct ws_name_entry){ ws_hash64(name, strlen(name)), i };
	}
	if (sort(names)) {
		ws_names_fini(names);
		return ws_oom(err);
	}
	return find_twice(names, twice);
}

void ws_names_fini(struct ws_names *names)
{
	if (!names)
		return;
	free(names->entries);
	*names = (struct ws_names){ 0 };
}

static bool is_before(const struct ws_names *names, size_t i, uint64_t hash, const char *name)
{
	const struct ws_name_entry *e = &names->entries[i];
	return e->hash < hash || (e->hash == hash && strcmp(name_at(names, e->index), name) < 0);
}

/* Finds the first entry that is not smaller. Hashes are spread evenly, so the search starts at the
 * expected place and doubles its steps. Names chosen to collide cost no more than a binary
 * search. */
static size_t lower_bound(const struct ws_names *names, uint64_t hash, const char *name)
{
	const size_t guess = bucket_of(hash, names->n);
	size_t lo = 0, hi = names->n, step = 1;
	if (guess < hi && is_before(names, guess, hash, name)) {
		for (lo = guess + 1; step < hi - lo && is_before(names, lo + step, hash, name);
		     step *= 2)
			lo += step + 1;
		hi = step < hi - lo ? lo + step : hi;
	} else {
		for (hi = guess; step < hi && !is_before(names, hi - step, hash, name); step *= 2)
			hi -= step;
		lo = step < hi ? hi - step + 1 : 0;
	}
	while (lo < hi) {
		const size_t mid = lo + (hi - lo) / 2;
		if (is_before(names, mid, hash, name))
			lo = mid + 1;
		else
			hi = mid;
	}
	return lo;
}

const void *ws_names_nth(const struct ws_names *names, const char *name, size_t i)
{
	const uint64_t hash = ws_hash64(name, strlen(name));
	const size_t at = lower_bound(names, hash, name);
	if (i >= names->n - at)
		return NULL;
	const struct ws_name_entry *e = &names->entries[at + i];
	if (e->hash != hash || strcmp(name_at(names, e->index), name) != 0)
		return NULL;
	return names->first + e->index * names->stride;
}

const void *ws_names_find(const struct ws_names *names, const char *name)
{
	return ws_names_nth(names, name, 0);
}

struct ws_quoted ws_quote(const char *name)
{
	struct ws_quoted q;
	const size_t len = strlen(name), most = sizeof q.text - 4;
	ws_printable(q.text, most, name, len);
	if (len >= most)
		strcat(q.text, "...");
	return q;
}
