/* SPDX-License-Identifier: Apache-2.0 */
/* foreign.h - recognizes checkpoints of other formats, and checkpoints in directories below. */
#ifndef WS_MODEL_FOREIGN_H
#define WS_MODEL_FOREIGN_H

#include "wsync/err.h"

#include <stdint.h>

/* Reports that a directory has no safetensors files: what it has instead, and what to do with it.
 * Returns -1. */
int ws_foreign_directory(const char *dir, struct ws_err *err);

/* Replaces the error about a file that is not in the safetensors format if its name, or its first 8
 * bytes, are those of another format. Returns -1. */
int ws_foreign_file(const char *path, const uint8_t first[8], struct ws_err *err);

/* The directory of an adapter below dir, for a hint; the caller frees it. NULL: none was found. */
char *ws_foreign_adapter(const char *dir);

#endif
