/* SPDX-License-Identifier: Apache-2.0 */
/* sha256.c - the only file that includes OpenSSL's headers. */
#include "sha256.h"

#include <openssl/evp.h>
#include <stdlib.h>
#include <string.h>

struct ws_sha256 {
	EVP_MD_CTX *ctx;
};

int ws_sha256_new(struct ws_sha256 **out, struct ws_err *err)
{
	struct ws_sha256 *s = calloc(1, sizeof *s);
	if (!s || !(s->ctx = EVP_MD_CTX_new())) {
		free(s);
		return ws_oom(err);
	}
	if (!EVP_DigestInit_ex(s->ctx, EVP_sha256(), NULL)) {
		ws_sha256_free(s);
		return ws_err_set(err, WS_ESYSTEM, "OpenSSL has no SHA-256");
	}
	*out = s;
	return 0;
}

void ws_sha256_free(struct ws_sha256 *s)
{
	if (!s)
		return;
	EVP_MD_CTX_free(s->ctx);
	free(s);
}

/* Neither of these calls fails for a context that was initialised. */
void ws_sha256_add(struct ws_sha256 *s, const void *bytes, size_t n)
{
	(void)EVP_DigestUpdate(s->ctx, bytes, n);
}

void ws_sha256_end(struct ws_sha256 *s, uint8_t out[WS_SHA256_SIZE])
{
	memset(out, 0, WS_SHA256_SIZE);
	(void)EVP_DigestFinal_ex(s->ctx, out, NULL);
	(void)EVP_DigestInit_ex(s->ctx, NULL, NULL);
}
