/* SPDX-License-Identifier: Apache-2.0 */
#include "names.h"

#include "hash.h"
#include "wsync/str.h"

#include <stdlib.h>
#include <string.h>

static int by_hash(const void *a, const void *b, void *ctx)
{
	const struct ws_name_entry *x = a, *y = b;
	const struct ws_tensor *tensors = ctx;
	if (x->hash != y->hash)
		return x->hash < y->hash ? -1 : 1;
	const int order = strcmp(tensors[x->tensor].name, tensors[y->tensor].name);
	return order ? order : (x->tensor > y->tensor) - (x->tensor < y->tensor);
}

int ws_names_init(struct ws_names *names, const struct ws_tensor *tensors, size_t n,
                  size_t twice[2], struct ws_err *err)
{
	struct ws_name_entry *e = calloc(n ? n : 1, sizeof *e);
	if (!e)
		return ws_err_set(err, WS_ESYSTEM, "index of %zu tensor names: out of memory", n);
	for (size_t i = 0; i < n; i++) {
		const char *name = tensors[i].name;
		e[i] = (struct ws_name_entry){ ws_hash64(name, strlen(name)), i };
	}
	qsort_r(e, n, sizeof *e, by_hash, (void *)(uintptr_t)tensors);
	*names = (struct ws_names){ tensors, e, n };
	/* Of several names that occur twice, the first in the source's order is reported. */
	size_t first = SIZE_MAX;
	for (size_t i = 1; i < n; i++) {
		if (e[i - 1].hash != e[i].hash || e[i - 1].tensor >= first ||
		    strcmp(tensors[e[i - 1].tensor].name, tensors[e[i].tensor].name) != 0)
			continue;
		first = e[i - 1].tensor;
		twice[0] = first;
		twice[1] = e[i].tensor;
	}
	return first != SIZE_MAX;
}

void ws_names_fini(struct ws_names *names)
{
	if (!names)
		return;
	free(names->entries);
	*names = (struct ws_names){ 0 };
}

const struct ws_tensor *ws_names_find(const struct ws_names *names, const char *name)
{
	const uint64_t hash = ws_hash64(name, strlen(name));
	size_t lo = 0, hi = names->n;
	while (lo < hi) {
		const size_t mid = lo + (hi - lo) / 2;
		const struct ws_name_entry *e = &names->entries[mid];
		const int order = hash != e->hash ? (hash < e->hash ? -1 : 1) :
		                  strcmp(name, names->tensors[e->tensor].name);
		if (order == 0)
			return &names->tensors[e->tensor];
		if (order < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return NULL;
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
