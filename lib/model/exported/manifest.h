/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.h - the list of tensors that a process has in its GPU memory (format: manifest.c and
 * wsync-manifest(5)). */
#ifndef WS_MODEL_MANIFEST_H
#define WS_MODEL_MANIFEST_H

#include "safetensors.h"
#include "wsync/tool/process.h"
#include "entry.h"

enum { WS_MANIFEST_HANDLE = 64, WS_MANIFEST_UUID = 16 };

struct ws_manifest_device {
	uint8_t uuid[WS_MANIFEST_UUID];
	char name[48];    /* "GPU-...", as written */
	uint64_t ordinal; /* in the writer's numbering; for messages */
};

struct ws_manifest_allocation {
	uint64_t device;  /* index of devices */
	uint8_t handle[WS_MANIFEST_HANDLE];
	uint64_t bytes;
	uint64_t base;    /* first byte, if all allocations are concatenated */
};

struct ws_manifest {
	struct ws_process process;
	struct ws_manifest_device *devices;
	size_t n_devices;
	struct ws_manifest_allocation *allocations;
	size_t n_allocations;
	/* tensors in order of their offsets, which count over all allocations */
	struct ws_safetensors list;
	const char *config;         /* as written, in list.text; NULL: not given */
};

#define WS_MANIFEST_INIT { .n_devices = 0 }

/* Accepts only lists in which every tensor is inside one allocation and no two tensors share a
 * part of their bytes. Tensors that share all bytes are one tensor under two names. An empty
 * tensor belongs to the first allocation. */
int ws_manifest_read(const char *path, struct ws_manifest *out, struct ws_err *err);
int ws_manifest_parse(const char *text, size_t len, const char *path, struct ws_manifest *out,
                      struct ws_err *err);
void ws_manifest_free(struct ws_manifest *m); /* NULL is fine */

/* Returns the index of the allocation that contains this tensor offset. */
size_t ws_manifest_find(const struct ws_manifest *m, uint64_t offset);

/* ---- manifest_fields.c reads the fields, manifest.c checks them ---- */

struct ws_manifest_reader {
	struct ws_scan scan;
	struct ws_manifest *m;
	uint64_t *of; /* allocation of each tensor; the caller frees it */
	size_t tensors_cap, of_cap;
};

/* Reads the whole text; offsets stay as written. */
int ws_manifest_fields(struct ws_manifest_reader *r);

#endif
