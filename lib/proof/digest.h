/* SPDX-License-Identifier: Apache-2.0 */
/* digest.h - the checksums that servers report for the bytes of a parameter, as text.
 *
 *   sglang-cpu   SHA-256, its first 8 bytes: 16 hex digits
 *   sglang-cuda  gpu_hash.h: 16 hex digits; sglang-cuda-ue8m0 is the same function
 *   sha256       SHA-256: 64 hex digits (vLLM since 0.32) */
#ifndef WS_PROOF_DIGEST_H
#define WS_PROOF_DIGEST_H

#include "gpu_hash.h"
#include "sha256.h"
#include "wsync/tool/predict.h"

struct ws_digest {
	enum ws_checksum_fn fn;
	struct ws_sha256 *sha; /* not with sglang-cuda */
	struct ws_gpu_hash gpu;
};

bool ws_digest_is_gpu(enum ws_checksum_fn fn); /* sglang-cuda, and its -ue8m0 */
int ws_digest_open(struct ws_digest *d, enum ws_checksum_fn fn, struct ws_err *err);
void ws_digest_close(struct ws_digest *d);
/* Begins a tensor of so many bytes, which follow in order. */
void ws_digest_begin(struct ws_digest *d, uint64_t bytes);
void ws_digest_add(struct ws_digest *d, const void *bytes, size_t n);
void ws_digest_end(struct ws_digest *d, char hex[WS_CHECKSUM_TEXT]);

#endif
