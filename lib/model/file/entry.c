/* SPDX-License-Identifier: Apache-2.0 */
#include "entry.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

int ws_entry_name(const struct ws_scan *s, const char *name, unsigned long long at)
{
	char clean[WS_MAX_NAME + 1];
	const size_t len = strlen(name);
	if (len == 0)
		return ws_scan_refuse(s, "the name at byte %llu is empty", at);
	if (len > WS_MAX_NAME)
		return ws_scan_refuse(s, "the name at byte %llu is longer than %d bytes", at,
		                      WS_MAX_NAME);
	if (strcmp(ws_printable(clean, sizeof clean, name, len), name) != 0)
		return ws_scan_refuse(s, "the name at byte %llu has a control or hidden character",
		                      at);
	return 0;
}

int ws_entry_shape(struct ws_scan *s, struct ws_tensor *t)
{
	size_t n = 0;
	int more;
	if (ws_scan_open(s, '[', "shape"))
		return -1;
	while ((more = ws_scan_next(s, ']', &n)) > 0) {
		uint64_t dim;
		if (n > WS_MAX_DIMS)
			return ws_scan_refuse(s, "more than %d dimensions", WS_MAX_DIMS);
		if (ws_scan_uint(s, "shape", &dim))
			return -1;
		t->dims[n - 1] = (int64_t)dim;
	}
	t->n_dims = (unsigned)n;
	return more;
}

int ws_entry_texts(struct ws_scan *s, const char *what)
{
	char value_of[64];
	size_t items = 0;
	int more;
	snprintf(value_of, sizeof value_of, "value in %s", what);
	if (ws_scan_open(s, '{', what))
		return -1;
	while ((more = ws_scan_next(s, '}', &items)) > 0) {
		char *key, *value;
		if (ws_scan_key(s, &key) || ws_scan_string(s, value_of, &value))
			return -1;
	}
	return more;
}

void *ws_entry_grow(void *old, size_t n, size_t *cap, size_t element)
{
	if (n < *cap)
		return old;
	const size_t more = *cap ? *cap * 2 : 64;
	void *p = reallocarray(old, more, element);
	if (p)
		*cap = more;
	return p;
}
