/* SPDX-License-Identifier: Apache-2.0 */
/* manifest.h - the list of tensors that a process keeps in the memory of its GPUs (the format:
 * manifest.c and wsync-manifest(5)). */
#ifndef WS_MODEL_MANIFEST_H
#define WS_MODEL_MANIFEST_H

#include "safetensors.h"
#include "wsync/tool/process.h"
#include "entry.h"

enum { WS_MANIFEST_HANDLE = 64, WS_MANIFEST_UUID = 16 };

struct ws_manifest_device {
	uint8_t uuid[WS_MANIFEST_UUID];
	char name[48];    /* "GPU-...", as it stands there */
	uint64_t ordinal; /* as the writer counts them; for messages */
};

struct ws_manifest_allocation {
	uint64_t device;  /* index of devices */
	uint8_t handle[WS_MANIFEST_HANDLE];
	uint64_t bytes;
	uint64_t base;    /* where it begins when all are laid one behind the other */
};

struct ws_manifest {
	struct ws_process process;
	struct ws_manifest_device *devices;
	size_t n_devices;
	struct ws_manifest_allocation *allocations;
	size_t n_allocations;
	/* tensors by their places; offsets count over all allocations */
	struct ws_safetensors list;
	const char *config;         /* as it stands there, in the list's text; NULL: not said */
};

#define WS_MANIFEST_INIT { .n_devices = 0 }

/* What is accepted has every tensor inside one allocation, and no two that share a part
 * of their bytes; tensors that share them all are one under two names. An empty tensor
 * is of the first allocation. */
int ws_manifest_read(const char *path, struct ws_manifest *out, struct ws_err *err);
int ws_manifest_parse(const char *text, size_t len, const char *path, struct ws_manifest *out,
                      struct ws_err *err);
void ws_manifest_free(struct ws_manifest *m); /* NULL is fine */

/* The allocation that has this byte of all. offset: of a tensor. */
size_t ws_manifest_find(const struct ws_manifest *m, uint64_t offset);

/* ---- manifest_fields.c reads, manifest.c checks the whole ---- */

struct ws_manifest_reader {
	struct ws_scan scan;
	struct ws_manifest *m;
	uint64_t *of; /* of each tensor: its allocation; to free */
	size_t tensors_cap, of_cap;
};

/* The whole text, with offsets as they stand there. */
int ws_manifest_fields(struct ws_manifest_reader *r);

#endif
