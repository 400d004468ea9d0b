/* SPDX-License-Identifier: Apache-2.0 */
/* equal_kinds.h - remembers, for a server, for which kinds of its parameters a checksum was
 * predicted right. Files STATE_DIR/equal/HASH, one for each server and model; the first line says
 * which, each other line is a kind: "model.layers.*.mlp.experts.w13_weight bfloat16".
 *
 * Who may write these files can make wsync call a parameter different that it would call not
 * proven. They never make anything proven. So errors are not reported: what cannot be read or
 * written is not remembered. */
#ifndef WS_STATE_EQUAL_KINDS_H
#define WS_STATE_EQUAL_KINDS_H

#include "wsync/tool/buf.h"

#include <stdbool.h>

enum { WS_EQUAL_KINDS_MAX = 1 << 20 }; /* bytes of a file */

/* Appends the lines of the kinds to *out, each with its newline. server: one line. */
void ws_equal_kinds_read(const char *state_dir, const char *server, struct ws_buf *out);
/* kinds: as of ws_equal_kinds_read. */
void ws_equal_kinds_write(const char *state_dir, const char *server, const char *kinds);
/* Is that kind one of the lines? */
bool ws_equal_kinds_has(const char *kinds, const char *kind);

#endif
