/* SPDX-License-Identifier: Apache-2.0 */
/* registry_file.h - parses and prints the text of the registry. */
#ifndef WS_STATE_REGISTRY_FILE_H
#define WS_STATE_REGISTRY_FILE_H

#include "wsync/tool/buf.h"
#include "wsync/registry.h"
#include "wsync/tool/json_read.h"

enum { REGISTRY_VERSION = 1 };

/* What ws_registry.priv points to. */
struct registry_own {
	struct ws_json *root;
	const struct ws_registry_entry **sorted; /* by port, host and path */
	size_t n; /* 0: the entries have changed since */
};

/* path is for messages. */
int registry_parse(const char *path, const char *text, size_t len, struct ws_registry *out,
                   struct ws_err *err);
/* Appends the whole file, unknown keys included. */
int registry_print(const char *path, const struct ws_registry *r, struct ws_buf *text,
                   struct ws_err *err);

#endif
