/* SPDX-License-Identifier: Apache-2.0 */
/* Any bytes are refused or are a bucket whose tensors lie one behind the other in what was read,
 * or on a GPU whose handle was. */
#include "pickle_bucket.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct ws_pickle_bucket b;
	struct ws_err err = WS_ERR_INIT;
	uint64_t at = 0;
	if (ws_pickle_read(data, size, &b, &err)) {
		if (err.code == WS_OK || b.tensors)
			abort();
		return 0;
	}
	const struct ws_pickle_memory *m = &b.memory;
	if (b.bytes && (m->handle || b.bytes < data || b.bytes + b.length > data + size))
		abort();
	if (!b.bytes &&
	    (!m->handle || m->handle < data || m->handle + 64 > data + size || m->at > INT64_MAX ||
	     (m->uuid[0] ? strlen(m->uuid) >= sizeof m->uuid : m->ordinal < 0)))
		abort();
	if (m->event && (!m->handle || m->event < data || m->event + 64 > data + size))
		abort();
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
