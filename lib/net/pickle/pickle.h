/* SPDX-License-Identifier: Apache-2.0 */
/* pickle.h - a bucket of tensors as the Python pickle that /update_weights_from_tensor takes.
 *
 * The object, as Python would build it from tensors in host memory:
 *
 *   {"flattened_tensor": _rebuild_tensor_v2(_load_from_bytes(B), 0, (n,), (1,), False,
 * OrderedDict()), "metadata": [FlattenedTensorMetadata, ...]}
 *
 *   B         torch.save of a uint8 storage in its old format, five pickles and the bytes:
 *             0x1950a86a20f9469cfc6c, 1001, {"protocol_version", "little_endian", "type_sizes"},
 *             persistent id ("storage", ByteStorage, "0", "cpu", n, None), ["0"], then n as a
 *             little-endian int64 and n bytes
 *   metadata  NEWOBJ of the class and BUILD with {"name", "shape", "dtype", "start_idx", "end_idx",
 *             "numel"}; the last three count bytes
 *
 * Globals: torch._utils _rebuild_tensor_v2, torch.storage _load_from_bytes, torch ByteStorage,
 * Size and dtypes, collections OrderedDict, sglang.srt.weight_sync.tensor_bucket
 * FlattenedTensorMetadata, and those of tensors on a GPU, below. */
#ifndef WS_NET_PICKLE_H
#define WS_NET_PICKLE_H

#include "wsync/tool/buf.h"
#include "wsync/dtype.h"

struct ws_pickle_tensor {
	const char *name;
	enum ws_dtype dtype;
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];
	uint64_t bytes;
};

enum { WS_PICKLE_MOST = 1 << 30 }; /* limit of one bucket's tensors in bytes */

/* Bytes in GPU memory, which the unpickling process opens (CUDA IPC). The tensor then is
 *
 *   R(torch.Tensor, (n,), (1,), 0, torch.storage.TypedStorage, torch.uint8, device, handle, room,
 *     at, False, b"", 0, 64 zeros, False)
 *
 *   R       sglang.srt.utils.patch_torch _rebuild_cuda_tensor_modified if the device is a UUID (a
 *           str), else torch.multiprocessing.reductions rebuild_cuda_tensor (an int)
 *   handle  version 1, 'c' for cudaMalloc, and the driver's 64 bytes, which identify an allocation
 *   at      offset of the n bytes in it
 *   room    bytes from there on that are the tensor's storage. torch finds a storage again by
 *           handle and at, as long as something uses it, and does not make it larger: so room is
 *           the same for all buckets
 *   b"", 0  no reader counter, which torch accepts; the owner of the memory must find out in
 *           another way when reading has ended. torch's own senders name a counter
 *           (lib/endpoint/group/serve_counter.c)
 *   False   no event to wait for: the bytes are there */
struct ws_pickle_cuda {
	const unsigned char *handle; /* 64 bytes */
	uint64_t at, room;           /* room 0: as much as the tensor has */
	const char *uuid;            /* as torch writes it, without "GPU-"; NULL: use the ordinal */
	unsigned ordinal;            /* ordinal of the GPU in the reader's numbering */
};
void ws_pickle_cuda(struct ws_buf *out, const struct ws_pickle_cuda *where,
                    const struct ws_pickle_tensor *tensors, size_t n, uint64_t bytes);

/* The same memory for vLLM, as the object in "ipc_handles_pickled". A worker takes the entry of its
 * own GPU, by `uuid`, which must be given:
 *
 *   packed   {uuid: T} for all tensors of a request, since 0.22
 *   tensors  [{uuid: (rebuild_cuda_tensor, T)}, one per tensor], 0.18 to 0.20
 *
 * T is the tuple of the fifteen arguments above: of the uint8 buffer, or of each tensor. Their
 * device is an int that the worker replaces. */
void ws_pickle_vllm_packed(struct ws_buf *out, const struct ws_pickle_cuda *where, uint64_t bytes);
void ws_pickle_vllm_tensors(struct ws_buf *out, const struct ws_pickle_cuda *where,
                            const struct ws_pickle_tensor *tensors, size_t n);

/* Between these two calls the caller appends exactly that many bytes: the tensors in order.
 * Errors are collected in the buffer. */
void ws_pickle_begin(struct ws_buf *out, uint32_t bytes);
void ws_pickle_end(struct ws_buf *out, const struct ws_pickle_tensor *tensors, size_t n,
                   uint32_t bytes);

/* The 128 bytes of an ncclUniqueId as vLLM's workers read them from a store, up to 0.29 the only
 * way: _ctypes._unpickle(vllm.distributed.device_communicators.pynccl_wrapper.ncclUniqueId,
 * ({}, bytes)). */
void ws_pickle_nccl_id(struct ws_buf *out, const void *id);

#endif
