/* SPDX-License-Identifier: Apache-2.0 */
/* region.h - the tensors of a source that are in another process's memory. */
#ifndef WS_MODEL_REGION_H
#define WS_MODEL_REGION_H

#include "exported_memory.h"

struct ws_region {
	const struct ws_exported *of;
	size_t allocation;
	uint64_t offset;
};

struct ws_exported {
	const struct ws_memory_ops *ops;
	struct ws_ipc_source *memory;
	struct ws_manifest manifest;
	struct ws_region *regions; /* one for each listed tensor */
};

/* name: "cuda-ipc:MANIFEST". Fails if ops is NULL. cancel cancels reads. Moves the manifest's
 * tensors to *list, in the order of the regions. *config: path of the model's config, which the
 * caller frees, or NULL. */
int ws_exported_open(const char *name, const struct ws_memory_ops *ops,
                     const struct ws_cancel *cancel, struct ws_exported **out,
                     struct ws_safetensors *list, char **config, struct ws_err *err);
void ws_exported_close(struct ws_exported *x); /* NULL is fine */
int ws_exported_check(const struct ws_exported *x, struct ws_err *err);

int ws_region_read(const struct ws_region *r, uint64_t at, void *dst, size_t n, struct ws_err *err);
/* Sets the span's fill function and GPU address, which borrow the region. */
void ws_region_span(const struct ws_region *r, struct ws_span *span);

#endif
