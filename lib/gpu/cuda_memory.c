/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_memory.c - device memory, pinned host memory, and copies between them. */
#include "cuda_core.h"

int ws_gpu_memory(struct ws_gpu *g, uint64_t *free_bytes, uint64_t *all_bytes, struct ws_err *err)
{
	size_t left, all;
	if (ws_cuda_check(g, g->cuda->cu.memory(&left, &all), "asking for its free memory", err))
		return -1;
	*free_bytes = left;
	*all_bytes = all;
	return 0;
}

int ws_gpu_alloc(struct ws_gpu *g, uint64_t bytes, ws_devptr *out, struct ws_err *err)
{
	CUdeviceptr p;
	if (ws_cuda_check_bytes(g, g->cuda->cu.alloc(&p, bytes), "allocating", bytes, err))
		return -1;
	*out = p;
	return 0;
}

void ws_gpu_free(struct ws_gpu *g, ws_devptr p)
{
	if (p)
		g->cuda->cu.free(p);
}

int ws_gpu_alloc_pinned(struct ws_gpu *g, uint64_t bytes, void **out, struct ws_err *err)
{
	void *p;
	/* Portable: for every context, because reader threads fill memory that another sends. */
	const CUresult rc = g->cuda->cu.alloc_pinned(&p, bytes, CU_MEMHOSTALLOC_PORTABLE);
	if (ws_cuda_check_bytes(g, rc, "pinning", bytes, err)) {
		if (rc == CUDA_ERROR_OUT_OF_MEMORY) /* host memory, not GPU memory */
			ws_err_hint(err, "pinned memory is the host's memory: use less of it, or "
			                 "raise the container's limit");
		return -1;
	}
	*out = p;
	return 0;
}

void ws_gpu_free_pinned(struct ws_gpu *g, void *p)
{
	if (p)
		g->cuda->cu.free_pinned(p);
}

/* ---- copies: the driver never gets copies of 0 bytes, as drivers treat them differently ---- */

int ws_gpu_copy_in(struct ws_gpu *g, ws_devptr dst, const void *src, uint64_t bytes,
                   struct ws_stream *s, struct ws_err *err)
{
	if (bytes == 0)
		return 0;
	const CUresult rc = g->cuda->cu.copy_in(dst, src, bytes, ws_cuda_stream(s));
	return ws_cuda_check_bytes(g, rc, "copying to it", bytes, err);
}

int ws_gpu_copy_out(struct ws_gpu *g, void *dst, ws_devptr src, uint64_t bytes, struct ws_stream *s,
                    struct ws_err *err)
{
	if (bytes == 0)
		return 0;
	const CUresult rc = g->cuda->cu.copy_out(dst, src, bytes, ws_cuda_stream(s));
	return ws_cuda_check_bytes(g, rc, "copying from it", bytes, err);
}

int ws_gpu_copy(struct ws_gpu *g, ws_devptr dst, ws_devptr src, uint64_t bytes, struct ws_stream *s,
                struct ws_err *err)
{
	if (bytes == 0)
		return 0;
	const CUresult rc = g->cuda->cu.copy(dst, src, bytes, ws_cuda_stream(s));
	return ws_cuda_check_bytes(g, rc, "copying within it", bytes, err);
}

int ws_gpu_fill(struct ws_gpu *g, ws_devptr dst, uint8_t byte, uint64_t bytes, struct ws_stream *s,
                struct ws_err *err)
{
	if (bytes == 0)
		return 0;
	const CUresult rc = g->cuda->cu.fill(dst, byte, bytes, ws_cuda_stream(s));
	return ws_cuda_check_bytes(g, rc, "filling", bytes, err);
}
