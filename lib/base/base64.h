/* SPDX-License-Identifier: Apache-2.0 */
/* base64.h - RFC 4648's standard alphabet, padded, without line breaks. */
#ifndef WS_BASE_BASE64_H
#define WS_BASE_BASE64_H

#include "wsync/tool/buf.h"
#include "wsync/err.h"

/* Appends; errors are collected in the buffer. */
void ws_base64_encode(struct ws_buf *out, const void *bytes, size_t n);
/* Appends. Strict: other characters, padding inside the text and a cut end are WS_EINPUT. The bytes
 * decoded before the error stay in out. */
int ws_base64_decode(struct ws_buf *out, const char *text, size_t n, struct ws_err *err);

#endif
