/* SPDX-License-Identifier: Apache-2.0 */
#include "digest.h"

#include <inttypes.h>
#include <stdio.h>

const char *const ws_checksum_fn_names[] = {
	[WS_CHECKSUM_SGLANG_CPU] = "sglang-cpu", [WS_CHECKSUM_SGLANG_CUDA] = "sglang-cuda",
	[WS_CHECKSUM_SGLANG_CUDA_UE8M0] = "sglang-cuda-ue8m0",
	[WS_CHECKSUM_SHA256] = "sha256", NULL,
};

bool ws_digest_is_gpu(enum ws_checksum_fn fn)
{
	return fn == WS_CHECKSUM_SGLANG_CUDA || fn == WS_CHECKSUM_SGLANG_CUDA_UE8M0;
}

int ws_digest_open(struct ws_digest *d, enum ws_checksum_fn fn, struct ws_err *err)
{
	*d = (struct ws_digest){ .fn = fn };
	return ws_digest_is_gpu(fn) ? 0 : ws_sha256_new(&d->sha, err);
}

void ws_digest_close(struct ws_digest *d)
{
	ws_sha256_free(d->sha);
	d->sha = NULL;
}

void ws_digest_begin(struct ws_digest *d, uint64_t bytes)
{
	ws_gpu_hash_begin(&d->gpu, bytes);
}

void ws_digest_add(struct ws_digest *d, const void *bytes, size_t n)
{
	if (d->sha)
		ws_sha256_add(d->sha, bytes, n);
	else
		ws_gpu_hash_add(&d->gpu, bytes, n);
}

void ws_digest_end(struct ws_digest *d, char hex[WS_CHECKSUM_TEXT])
{
	uint8_t sum[WS_SHA256_SIZE];
	const size_t n = d->fn == WS_CHECKSUM_SGLANG_CPU ? 8 : sizeof sum;
	if (!d->sha) {
		snprintf(hex, WS_CHECKSUM_TEXT, "%016" PRIx64, ws_gpu_hash_end(&d->gpu));
		return;
	}
	ws_sha256_end(d->sha, sum);
	for (size_t i = 0; i < n; i++)
		snprintf(hex + 2 * i, 3, "%02x", sum[i]);
}
