/* SPDX-License-Identifier: Apache-2.0 */
/* A manifest of GPU memory. What is accepted lies inside its allocations
 * and nowhere over each other. */
#include "manifest.h"
#include "name_index.h"

#include <stdlib.h>
#include <string.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void require(int true_here)
{
	if (!true_here)
		abort();
}

static void require_place(const struct ws_manifest *m, const struct ws_tensor *t)
{
	const struct ws_manifest_allocation *a = &m->allocations[ws_manifest_find(m, t->offset)];
	uint64_t bytes;
	require(ws_dtype_bytes(t->dtype, t->n_dims, t->dims, &bytes) && bytes == t->bytes);
	require(m->n_allocations > 0 && t->offset >= a->base);
	require(t->bytes <= a->bytes && t->offset - a->base <= a->bytes - t->bytes);
}

static void require_sound(const struct ws_manifest *m, size_t size)
{
	const struct ws_tensor *last = NULL;
	for (size_t i = 0; i < m->n_allocations; i++)
		require(m->allocations[i].device < m->n_devices && m->allocations[i].bytes > 0);
	for (size_t i = 0; i < m->list.n_tensors; i++) {
		const struct ws_tensor *t = &m->list.tensors[i];
		require(*t->name && strlen(t->name) < size);
		if (!t->bytes)
			continue;
		require_place(m, t);
		require(!last || t->offset >= last->offset + last->bytes ||
		        (t->offset == last->offset && t->bytes == last->bytes));
		last = t;
	}
	require(m->process.pid > 0 && m->process.start_ticks > 0);
	require(!m->config || strlen(m->config) < size);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	struct ws_manifest m;
	struct ws_names names;
	struct ws_err err = WS_ERR_INIT;
	size_t twice[2];
	if (ws_manifest_parse((const char *)data, size, "fuzz", &m, &err)) {
		require(err.code == WS_EINPUT && err.msg[0]);
		return 0;
	}
	require_sound(&m, size);
	require(ws_names_init(&names, m.list.tensors, sizeof *m.list.tensors, m.list.n_tensors,
	                      twice, &err) == 0);
	ws_names_fini(&names);
	ws_manifest_free(&m);
	return 0;
}
