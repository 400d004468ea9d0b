/* SPDX-License-Identifier: Apache-2.0 */
/* sha256.h - SHA-256 of bytes, by OpenSSL's libcrypto. */
#ifndef WS_PROOF_SHA256_H
#define WS_PROOF_SHA256_H

#include "wsync/err.h"

#include <stddef.h>
#include <stdint.h>

enum { WS_SHA256_SIZE = 32 };

struct ws_sha256; /* streaming state */
int ws_sha256_new(struct ws_sha256 **out, struct ws_err *err);
void ws_sha256_free(struct ws_sha256 *s); /* NULL is fine */
void ws_sha256_add(struct ws_sha256 *s, const void *bytes, size_t n);
/* Ends the stream and begins the next one. */
void ws_sha256_end(struct ws_sha256 *s, uint8_t out[WS_SHA256_SIZE]);

#endif
