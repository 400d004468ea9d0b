/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes are refused or are a bucket whose tensors lie one behind the other in what was read,
 * or on a GPU whose handle was; or are handles for a vLLM. */
#include "pickle_bucket.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void check_place(const struct ws_pickle_bucket *b, const unsigned char *data, size_t size)
{
	const struct ws_pickle_memory *m = &b->memory;
	if (!b->bytes && (!m->handle || m->handle < data || m->handle + 64 > data + size ||
	                  m->at > INT64_MAX ||
	                  (m->uuid[0] ? strlen(m->uuid) >= sizeof m->uuid : m->ordinal < 0)))
		abort();
	if (m->event && (!m->handle || m->event < data || m->event + 64 > data + size))
		abort();
}

/* The same bytes as handles for a vLLM, of one tensor if they are a list. */
static void read_shared(const unsigned char *data, size_t size, bool with_function)
{
	struct ws_pickle_shared s;
	struct ws_err err = WS_ERR_INIT;
	if (ws_pickle_read_shared(data, size, "8d2f0c1a-4c7e-0b11-a0f3-5e0d6c7b8a99", 1,
	                          with_function, &s, &err)) {
		if (err.code == WS_OK || s.items)
			abort();
		return;
	}
	if (s.n != 1)
		abort();
	check_place(s.items, data, size);
	if (!s.packed && s.items->length != s.items->tensors->bytes)
		abort();
	ws_pickle_free_shared(&s);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct ws_pickle_bucket b;
	struct ws_err err = WS_ERR_INIT;
	uint64_t at = 0;
	read_shared(data, size, false);
	read_shared(data, size, true);
	if (ws_pickle_read(data, size, &b, &err)) {
		if (err.code == WS_OK || b.tensors)
			abort();
		return 0;
	}
	const struct ws_pickle_memory *m = &b.memory;
	if (b.bytes && (m->handle || b.bytes < data || b.bytes + b.length > data + size))
		abort();
	check_place(&b, data, size);
	for (size_t i = 0; i < b.n; i++) {
		if (strlen(b.tensors[i].name) > size)
			abort();
		at += b.tensors[i].bytes;
	}
	if (at != b.length)
		abort();
	ws_pickle_free(&b);
	return 0;
}
