/* SPDX-License-Identifier: Apache-2.0 */
/* memory.h - sources that lie in the memory of another process's GPUs: cuda-ipc:MANIFEST.json.
 *
 * Whoever opens a source says whether such a path is good there, by naming in its options
 * what opens the memory. Where nothing is named it is refused, so that a path out of an
 * HTTP request opens nothing. */
#ifndef WSYNC_MEMORY_H
#define WSYNC_MEMORY_H

#ifdef __cplusplus
extern "C" {
#endif

/* The path of the manifest: the rest of path after "cuda-ipc:". NULL: path is of another kind. */
const char *ws_memory_path(const char *path);

struct ws_memory_ops; /* opaque: lib/model/exported/exported_memory.h */

/* Memory of GPUs of this machine, through CUDA IPC. The driver is loaded with the source, a GPU
 * is opened with the first byte that is read. */
extern const struct ws_memory_ops ws_memory_cuda;

#ifdef __cplusplus
}
#endif
#endif
