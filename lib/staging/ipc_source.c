/* SPDX-License-Identifier: Apache-2.0 */
/* ipc_source.c - sources in the GPU memory of another process: checks the process and its GPUs, and
 * reads through ipc_import.c.
 *
 * CUDA can read memory that its owner has freed, or whose owner has ended. So this file checks that
 * the process that wrote the manifest is alive, before it opens anything and while it reads. It
 * cannot detect changes of the weights meanwhile. */
#include "wsync/tool/memory.h"

#include "exported_memory.h"
#include "process_id.h"
#include "ipc_import.h"

#include <stdlib.h>
#include <string.h>

struct ws_ipc_source {
	const struct ws_manifest *manifest;
	char *path;
	struct ws_cuda *cuda;
	int *ordinals;
	struct ws_ipc_import *import;
};

/* ---- the process and its GPUs ---- */

static int check_process(struct ws_ipc_source *mem, struct ws_err *err)
{
	const struct ws_process *writer = &mem->manifest->process;
	struct ws_process here;
	ws_process_self(&here);
	if (strcmp(writer->boot_id, here.boot_id) != 0 && strcmp(writer->host, here.host) != 0) {
		ws_err_set(err, WS_EINPUT, "%s was written on %s, and this is %s", mem->path,
		           writer->host, here.host);
		return ws_err_hint(err, "memory of a GPU can be read on its own machine only");
	}
	/* A process in another container is invisible; then the driver reports failures. */
	if (ws_process_fate(writer) != WS_PROCESS_DEAD)
		return 0;
	ws_err_set(err, WS_EINPUT,
	           "the process that wrote %s (pid %lld) has ended: its memory is gone", mem->path,
	           (long long)writer->pid);
	return ws_err_hint(
		err,
		"keep the trainer running, and its exported memory, until the push has ended");
}

static int check_writer(void *ctx, struct ws_err *err)
{
	return check_process(ctx, err);
}

static int find_device(struct ws_ipc_source *mem, size_t i, struct ws_err *err)
{
	const struct ws_manifest_device *wanted = &mem->manifest->devices[i];
	struct ws_cuda_device d;
	for (int k = 0; k < ws_cuda_count(mem->cuda); k++) {
		if (ws_cuda_device(mem->cuda, k, &d, err))
			return -1;
		if (memcmp(d.uuid, wanted->uuid, sizeof d.uuid) == 0) {
			mem->ordinals[i] = k;
			return 0;
		}
	}
	ws_err_set(err, WS_EDEVICE,
	           "%s: its memory is on GPU %s, which is not among the %d that are here",
	           mem->path, wanted->name, ws_cuda_count(mem->cuda));
	return ws_err_hint(err, "nvidia-smi -L lists them; CUDA_VISIBLE_DEVICES may hide it");
}

static int find_devices(struct ws_ipc_source *mem, struct ws_err *err)
{
	if (ws_cuda_open(NULL, &mem->cuda, err))
		return ws_err_wrap(err, "%s", mem->path);
	for (size_t i = 0; i < mem->manifest->n_devices; i++)
		if (find_device(mem, i, err))
			return -1;
	return 0;
}

/* ---- the operations ---- */

static void memory_close(struct ws_ipc_source *mem)
{
	if (!mem)
		return;
	ws_ipc_import_close(mem->import);
	ws_cuda_close(mem->cuda);
	free(mem->ordinals);
	free(mem->path);
	free(mem);
}

static int memory_open(const struct ws_manifest *m, const char *path,
                       const struct ws_cancel *cancel, struct ws_ipc_source **out,
                       struct ws_err *err)
{
	struct ws_ipc_source *mem = calloc(1, sizeof *mem);
	if (mem) {
		mem->manifest = m;
		mem->path = strdup(path);
		mem->ordinals = calloc(m->n_devices + 1, sizeof *mem->ordinals);
	}
	if (!mem || !mem->path || !mem->ordinals) {
		memory_close(mem);
		return ws_oom(err);
	}
	int rc = check_process(mem, err) || find_devices(mem, err) ? -1 : 0;
	if (rc == 0) {
		const struct ws_ipc_import_opts opts = { .manifest = m,
			                                 .cuda = mem->cuda,
			                                 .ordinals = mem->ordinals,
			                                 .still_valid = check_writer,
			                                 .ctx = mem,
			                                 .cancel = cancel };
		rc = ws_ipc_import_open(&opts, &mem->import, err);
	}
	if (rc)
		memory_close(mem);
	else
		*out = mem;
	return rc;
}

static int memory_read(struct ws_ipc_source *mem, size_t allocation, uint64_t at, void *dst,
                       size_t n, struct ws_err *err)
{
	return ws_ipc_import_read(mem->import, allocation, at, dst, n, err);
}

static int memory_place(struct ws_ipc_source *mem, size_t allocation, uint64_t at,
                        struct ws_gpu_address *out, struct ws_err *err)
{
	const struct ws_manifest *m = mem->manifest;
	ws_devptr address;
	if (ws_ipc_import_address(mem->import, allocation, &address, err))
		return -1;
	memcpy(out->gpu, m->devices[m->allocations[allocation].device].uuid, sizeof out->gpu);
	out->at = address + at;
	return 0;
}

const struct ws_memory_ops ws_memory_cuda = {
	.open = memory_open,
	.read = memory_read,
	.gpu_address = memory_place,
	.check = check_process,
	.close = memory_close,
	.pinned_bytes = (uint64_t)WS_IPC_IMPORT_PIECES * WS_IPC_IMPORT_PIECE,
};
