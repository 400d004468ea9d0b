/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_ipc.c - GPU memory and events shared between processes of one machine.
 *
 * The driver shares only memory from cuMemAlloc: no virtual memory management, no pools. Both
 * processes must see each other: containers need a common PID namespace and IPC namespace. */
#include "cuda_core.h"

#include <string.h>

_Static_assert(sizeof(CUipcMemHandle) == WS_IPC_HANDLE_BYTES, "a handle is 64 bytes on the wire");
_Static_assert(sizeof(CUipcEventHandle) == WS_IPC_HANDLE_BYTES, "an event's handle, too");

int ws_gpu_ipc_export(struct ws_gpu *g, ws_devptr p, unsigned char handle[WS_IPC_HANDLE_BYTES],
                      struct ws_err *err)
{
	CUipcMemHandle made;
	if (ws_cuda_check(g, g->cuda->cu.ipc_export(&made, p),
	                  "sharing its memory with other processes", err))
		return -1;
	memcpy(handle, made.reserved, sizeof made.reserved);
	return 0;
}

static void hint_at(CUresult rc, struct ws_err *err)
{
	if (rc == CUDA_ERROR_INVALID_CONTEXT)
		ws_err_hint(err, "a process cannot open what it shares itself");
	else if (rc == CUDA_ERROR_TOO_MANY_PEERS || rc == CUDA_ERROR_PEER_ACCESS_UNSUPPORTED)
		ws_err_hint(err, "the memory is another GPU's, which this one cannot read");
	else if (err && !ws_err_gpu_broken(err))
		ws_err_hint(err, "the process that shares it must be alive and on this machine, "
		                 "and still have the "
		                 "memory; containers want --ipc=host and --pid=host");
}

int ws_gpu_ipc_open(struct ws_gpu *g, const unsigned char handle[WS_IPC_HANDLE_BYTES],
                    ws_devptr *out, struct ws_err *err)
{
	CUipcMemHandle theirs;
	CUdeviceptr p;
	memcpy(theirs.reserved, handle, sizeof theirs.reserved);
	const CUresult rc = g->cuda->cu.ipc_open(&p, theirs, CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS);
	if (ws_cuda_check(g, rc, "opening another process's memory", err)) {
		hint_at(rc, err);
		return -1;
	}
	*out = p;
	return 0;
}

void ws_gpu_ipc_close(struct ws_gpu *g, ws_devptr p)
{
	if (p)
		g->cuda->cu.ipc_close(p);
}

int ws_gpu_ipc_wait(struct ws_gpu *g, const unsigned char event[WS_IPC_HANDLE_BYTES],
                    ws_deadline until, const struct ws_cancel *cancel, struct ws_err *err)
{
	CUipcEventHandle theirs;
	CUevent e;
	memcpy(theirs.reserved, event, sizeof theirs.reserved);
	const CUresult rc = g->cuda->cu.event_open(&e, theirs);
	if (ws_cuda_check(g, rc, "opening another process's event", err)) {
		hint_at(rc, err);
		return -1;
	}
	struct ws_gpu_event *m = (struct ws_gpu_event *)(void *)e;
	const int waited = ws_gpu_event_wait(g, m, until, cancel, err);
	ws_gpu_event_free(g, m);
	return waited;
}

int ws_gpu_size(struct ws_gpu *g, ws_devptr p, uint64_t *bytes, struct ws_err *err)
{
	CUdeviceptr first;
	size_t n;
	if (ws_cuda_check(g, g->cuda->cu.range(&first, &n, p), "looking at its memory", err))
		return -1;
	*bytes = first + n - p;
	return 0;
}
