/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - sources in the GPU memory of another process: cuda-ipc:MANIFEST.json.
 *
 * A caller that opens a source allows such paths by passing functions that open the memory,
 * in its options. Without these functions the path is refused, so that a path from an HTTP
 * request opens nothing. */
#ifndef WSYNC_MEMORY_H
#define WSYNC_MEMORY_H

#ifdef __cplusplus
extern "C" {
#endif

/* The path of the manifest: the rest of path after "cuda-ipc:". NULL: path is of another kind. */
const char *ws_memory_path(const char *path);

struct ws_memory_ops; /* opaque: lib/model/exported/exported_memory.h */

/* Memory of GPUs of this machine, through CUDA IPC. The driver is loaded when the source is
 * opened, a GPU is opened when its first byte is read. */
extern const struct ws_memory_ops ws_memory_cuda;

#ifdef __cplusplus
}
#endif
#endif
