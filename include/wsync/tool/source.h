/* SPDX-License-Identifier: Apache-2.0 */
/* source.h - where tensors come from: safetensors files, checkpoints,
 * synthetic models, memory of GPUs.
 *
 * Opening reads only headers; tensor bytes are read on request. A source is read-only after it
 * was opened and may be used from several threads. */
#ifndef WSYNC_SOURCE_H
#define WSYNC_SOURCE_H

#include "wsync/cancel.h"
#include "wsync/dtype.h"
#include "wsync/err.h"
#include "wsync/tool/memory.h"
#include "wsync/trace.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

struct ws_source; /* opaque */

struct ws_tensor {
	const char *name;  /* owned by the source; valid UTF-8 without control characters */
	enum ws_dtype dtype;
	unsigned n_dims;   /* <= WS_MAX_DIMS */
	int64_t dims[WS_MAX_DIMS];
	uint64_t bytes;    /* raw size; 0 for a tensor with a zero dimension */
	uint32_t file;     /* index of ws_source_file_name; 0 for synthetic ones */
	uint64_t offset; /* of the first byte in that file; for synthetic ones the stream position,
	                  * for those in memory their place when all allocations are laid one behind
	                  * the other */
};

/* Each path is a .safetensors file, a model.safetensors.index.json, a directory with one of them (a
 * directory without an index but with several *.safetensors files takes all of them, sorted),
 * hf:ORG/NAME[@REVISION] (hub.h), or synthetic:MODEL[:SEED]. A name that occurs twice is WS_EINPUT
 * and names both files. Every malformed file is WS_EINPUT with a sentence naming the file, the
 * tensor and the byte. */
int ws_source_open(const char *const *paths, size_t n_paths, struct ws_source **out,
                   struct ws_err *err);

struct ws_source_opts {
	/* Opens paths like cuda-ipc:MANIFEST.json (memory.h); NULL: such a path is
	 * refused. */
	const struct ws_memory_ops *memory;
	/* Ends every wait for the source with WS_ECANCELLED; borrowed until close; NULL: none. */
	const struct ws_cancel *cancel;
};
int ws_source_open_with(const struct ws_source_opts *opts, const char *const *paths, size_t n_paths,
                        struct ws_source **out, struct ws_err *err);
void ws_source_close(struct ws_source *s); /* NULL is fine */
/* From now on, records reads of 64 KiB and more as spans, until the source is closed. */
void ws_source_trace(struct ws_source *s, struct ws_trace *trace);

/* Tensors in the order of their bytes: file by file, by offset inside a file. */
size_t ws_source_count(const struct ws_source *s);
const struct ws_tensor *ws_source_tensor(const struct ws_source *s, size_t i);
/* NULL: none */
const struct ws_tensor *ws_source_find(const struct ws_source *s, const char *name);
uint64_t ws_source_bytes(const struct ws_source *s); /* sum over tensors */

size_t ws_source_file_count(const struct ws_source *s);
const char *ws_source_file_name(const struct ws_source *s, size_t i);
/* Identifies file i as it was when it was opened: a hash of its inode, size, mtime and ctime.
 * false: memory, or a synthetic model. */
bool ws_source_file_id(const struct ws_source *s, size_t i, uint64_t *id);
/* The newest ctime of its files, in ns since 1970; 0: memory, or a synthetic model. */
uint64_t ws_source_changed(const struct ws_source *s);
/* Directory holding config.json for this source, or the file that a manifest names, or NULL. */
const char *ws_source_config_dir(const struct ws_source *s);
/* Sentences for the user about directories that other programs read differently; NULL past the
 * end. */
const char *ws_source_warning(const struct ws_source *s, size_t i);

/* Copies bytes [at, at+n) of a tensor to dst. A file that shrank since is WS_EINPUT, never
 * SIGBUS. */
int ws_source_read(const struct ws_source *s, const struct ws_tensor *t, uint64_t at, void *dst,
                   size_t n, struct ws_err *err);
/* Are all bytes that were read since open those of one unchanged source? Files: the same file at
 * the same path, of the same size, mtime and ctime. Memory: its process still exports it.
 * Synthetic models: always. WS_EINPUT names the file or process, and how it changed. */
int ws_source_check(const struct ws_source *s, struct ws_err *err);
/* Likewise for one file, by its open descriptor alone: cheap also on a network file system. */
int ws_source_check_file(const struct ws_source *s, size_t file, struct ws_err *err);
/* XXH3-64 of the raw bytes. */
int ws_source_hash(const struct ws_source *s, const struct ws_tensor *t, uint64_t *hash,
                   struct ws_err *err);

/* Bytes of pinned memory that reading needs; 0 unless the source is in GPU memory. */
uint64_t ws_source_pinned(const struct ws_source *s);

/* Names of the synthetic models, NULL past the end. */
const char *ws_synthetic_name(size_t i);

#ifdef __cplusplus
}
#endif
#endif
