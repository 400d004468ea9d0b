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

/* Identifies such files, so that another file that is named by mistake is not overwritten. */
struct ws_output_kind {
	const char *name;   /* "a trace" */
	const char *begins; /* the beginning of all files of this kind */
};

/* Checks that the file can be written, without changing it. WS_EUSAGE: "", "-", or a file with
 * other content. WS_ESYSTEM: not a regular file, or its directory is missing or not writable. */
int ws_output_check(const char *path, const struct ws_output_kind *kind, struct ws_err *err);
/* Writes the file with the modes that the user's umask leaves. Follows a link. */
int ws_output_write(const char *path, const struct ws_buf *bytes, struct ws_err *err);
/* Reads the file, at most out->max bytes; -1: it cannot be read. */
int ws_output_read(const char *path, struct ws_buf *out);

#ifdef __cplusplus
}
#endif
#endif
