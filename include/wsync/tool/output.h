/* SPDX-License-Identifier: Apache-2.0 */
/* output.h - small files for others to read while they are being replaced: a trace, metrics.
 *
 * Either the old or the new file is there at any time: a temporary file beside
 * it (FILE.PID.tmp), renamed. */
#ifndef WSYNC_OUTPUT_H
#define WSYNC_OUTPUT_H

#include "wsync/tool/buf.h"
#include "wsync/err.h"

#ifdef __cplusplus
extern "C" {
#endif

/* What such a file holds: who names another by mistake must not lose that. */
struct ws_output_kind {
	const char *name;   /* "a trace" */
	const char *begins; /* as all of them do */
};

/* Can it be written? Tries it, and leaves what is there. "", "-" and a file with anything else
 * in it are WS_EUSAGE; what is there and no regular file, a directory that is missing or may not
 * be written to: WS_ESYSTEM. */
int ws_output_check(const char *path, const struct ws_output_kind *kind, struct ws_err *err);
/* With the modes that the user's umask leaves. A link is followed. */
int ws_output_write(const char *path, const struct ws_buf *bytes, struct ws_err *err);
/* What is there, at most out->max bytes of it; -1: nothing that could be read. */
int ws_output_read(const char *path, struct ws_buf *out);

#ifdef __cplusplus
}
#endif
#endif
