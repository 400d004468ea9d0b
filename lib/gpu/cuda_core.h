/* SPDX-License-Identifier: Apache-2.0 */
/* cuda_core.h - the driver API as a table of functions. Only this header includes the toolkit's
 * cuda.h, and only cuda_*.c include this header.
 *
 * Symbols have the driver's versioned names. A newer cuda.h renames functions to versions that
 * older drivers lack (cuEventElapsedTime_v2), and the symbols that we look up must not depend on
 * the toolkit of the build. CUDA 11.4 and later have all of them. */
#ifndef WS_GPU_CUDA_CORE_H
#define WS_GPU_CUDA_CORE_H

#include "cuda_driver.h"

#include <cuda.h>

/* member of the table, symbol, arguments */
#define FUNCTIONS(F) \
	F(init, "cuInit", (unsigned)) \
	F(version, "cuDriverGetVersion", (int *)) \
	F(error_name, "cuGetErrorName", (CUresult, const char **)) \
	F(error_string, "cuGetErrorString", (CUresult, const char **)) \
	F(count, "cuDeviceGetCount", (int *)) \
	F(get, "cuDeviceGet", (CUdevice *, int)) \
	F(name, "cuDeviceGetName", (char *, int, CUdevice)) \
	F(uuid, "cuDeviceGetUuid_v2", (CUuuid *, CUdevice)) \
	F(bus, "cuDeviceGetPCIBusId", (char *, int, CUdevice)) \
	F(attribute, "cuDeviceGetAttribute", (int *, CUdevice_attribute, CUdevice)) \
	F(total, "cuDeviceTotalMem_v2", (size_t *, CUdevice)) \
	F(retain, "cuDevicePrimaryCtxRetain", (CUcontext *, CUdevice)) \
	F(release, "cuDevicePrimaryCtxRelease_v2", (CUdevice)) \
	F(use, "cuCtxSetCurrent", (CUcontext)) \
	F(used, "cuCtxGetCurrent", (CUcontext *)) \
	F(memory, "cuMemGetInfo_v2", (size_t *, size_t *)) \
	F(alloc, "cuMemAlloc_v2", (CUdeviceptr *, size_t)) \
	F(free, "cuMemFree_v2", (CUdeviceptr)) \
	F(alloc_pinned, "cuMemHostAlloc", (void **, size_t, unsigned)) \
	F(free_pinned, "cuMemFreeHost", (void *)) \
	F(ipc_export, "cuIpcGetMemHandle", (CUipcMemHandle *, CUdeviceptr)) \
	F(ipc_open, "cuIpcOpenMemHandle_v2", (CUdeviceptr *, CUipcMemHandle, unsigned)) \
	F(ipc_close, "cuIpcCloseMemHandle", (CUdeviceptr)) \
	F(range, "cuMemGetAddressRange_v2", (CUdeviceptr *, size_t *, CUdeviceptr)) \
	F(copy_in, "cuMemcpyHtoDAsync_v2", (CUdeviceptr, const void *, size_t, CUstream)) \
	F(copy_out, "cuMemcpyDtoHAsync_v2", (void *, CUdeviceptr, size_t, CUstream)) \
	F(copy, "cuMemcpyDtoDAsync_v2", (CUdeviceptr, CUdeviceptr, size_t, CUstream)) \
	F(fill, "cuMemsetD8Async", (CUdeviceptr, unsigned char, size_t, CUstream)) \
	F(stream_new, "cuStreamCreate", (CUstream *, unsigned)) \
	F(stream_free, "cuStreamDestroy_v2", (CUstream)) \
	F(stream_query, "cuStreamQuery", (CUstream)) \
	F(stream_wait_event, "cuStreamWaitEvent", (CUstream, CUevent, unsigned)) \
	F(event_new, "cuEventCreate", (CUevent *, unsigned)) \
	F(event_free, "cuEventDestroy_v2", (CUevent)) \
	F(event_record, "cuEventRecord", (CUevent, CUstream)) \
	F(event_query, "cuEventQuery", (CUevent)) \
	F(event_open, "cuIpcOpenEventHandle", (CUevent *, CUipcEventHandle)) \
	F(event_elapsed, "cuEventElapsedTime", (float *, CUevent, CUevent)) \
	F(module_load, "cuModuleLoadData", (CUmodule *, const void *)) \
	F(module_free, "cuModuleUnload", (CUmodule)) \
	F(module_kernel, "cuModuleGetFunction", (CUfunction *, CUmodule, const char *)) \
	F(launch, "cuLaunchKernel", \
	  (CUfunction, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, \
	   CUstream, void **, void **))

struct functions {
#define MEMBER(member, symbol, args) CUresult(CUDAAPI *member) args;
	FUNCTIONS(MEMBER)
#undef MEMBER
};

struct ws_cuda {
	void *library;
	struct functions cu;
	int version, count;
};

struct ws_gpu {
	struct ws_cuda *cuda;
	CUdevice handle;
	CUcontext context, before; /* before: the opening thread's context */
	int ordinal;
	struct ws_cuda_device device;
};

static inline CUstream ws_cuda_stream(struct ws_stream *s)
{
	return (CUstream)(void *)s;
}

/* 0, or -1 with "GPU 0 (its name): what: CUDA_ERROR_X (n): the driver's message". */
int ws_cuda_check(const struct ws_gpu *g, CUresult rc, const char *what, struct ws_err *err);
/* The same with "what 1.50 GiB". */
int ws_cuda_check_bytes(const struct ws_gpu *g, CUresult rc, const char *what, uint64_t bytes,
                        struct ws_err *err);

#endif
