/* SPDX-License-Identifier: Apache-2.0 */
/* A checkpoint, a file of corrections, and what is to be done:
 *
 *   QUANTIZE ROWS COLUMNS WAYS     0 none, 1 blocks; bits: slime, ue8m0, two-step
 *   lines of the checkpoint (tensor_lines.h), "--", lines of the corrections; an empty line; bytes
 *
 * What a look at all values let pass must be readable, and the same however it is read. */
#include "fuzz/tensor_lines.h"

#include "transform_make.h"
#include "wsync/tool/catalog.h"

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void compare_ways(const struct ws_item *item, bool looked)
{
	struct ws_err err = WS_ERR_INIT;
	uint8_t *whole = malloc(item->bytes + 1), *parts = malloc(item->bytes + 1);
	uint64_t hash;
	require(whole && parts);
	const int rc = ws_item_read(item, 0, whole, (size_t)item->bytes, &err);
	require(rc == 0 || (!looked && err.code == WS_EINPUT && err.msg[0]));
	require(ws_item_hash(item, &hash, NULL) == rc);
	for (uint64_t at = 0, n = 1; rc == 0 && at < item->bytes; at += n, n = n * 2 + 1) {
		n = n < item->bytes - at ? n : item->bytes - at;
		require(ws_item_read(item, at, parts + at, (size_t)n, NULL) == 0);
	}
	require(rc || memcmp(whole, parts, (size_t)item->bytes) == 0);
	free(whole);
	free(parts);
}

static void transform(const char *path, const struct ws_transform_opts *o)
{
	struct ws_source *s = NULL;
	struct ws_catalog *c = NULL;
	struct ws_transform *t = NULL;
	struct ws_err err = WS_ERR_INIT;
	if (ws_source_open(&path, 1, &s, NULL) == 0 &&
	    ws_catalog_make((const struct ws_source *const *)&s, 1, &(struct ws_catalog_opts){ 0 },
	                    &c, NULL) == 0) {
		if (ws_transform_make(c, o, &t, &err) == 0) {
			const struct ws_catalog *out = ws_transform_catalog(t);
			const bool looked = ws_transform_check(t, NULL, NULL, &err) == 0;
			require(looked || (err.code == WS_EINPUT && err.msg[0]));
			for (size_t i = 0; i < ws_catalog_count(out); i++)
				compare_ways(ws_catalog_item(out, i), looked);
		} else {
			require((err.code == WS_EINPUT || err.code == WS_EUSAGE) && err.msg[0]);
		}
	}
	ws_transform_free(t);
	ws_catalog_free(c);
	ws_source_close(s);
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	char base[64], more[64], *text = malloc(size + 1);
	unsigned quantize, ways;
	long long rows, cols;
	int used = 0;
	if (!text)
		return 0;
	memcpy(text, data, size);
	text[size] = 0;
	if (sscanf(text, "%1u %6lld %6lld %1u%n", &quantize, &rows, &cols, &ways, &used) == 4 &&
	    quantize < 2 && text[used] == '\n') {
		const char *lines = text + used + 1, *end = strstr(lines, "\n\n"),
			   *second = strstr(lines, "--\n");
		const char *bytes = end ? end + 2 : text + size;
		const size_t n = size - (size_t)(bytes - text);
		struct ws_transform_opts o = { .quantize = quantize,
			                       .block = { rows, cols },
			                       .rule = ways & 1,
			                       .ue8m0 = ways & 2,
			                       .rounding = ways >> 2 & 1,
			                       .threads = 1,
			                       .scratch = 1 };
		const int fd = open_lines(lines, bytes, n, base);
		const int fd2 =
			second && second < bytes ? open_lines(second + 3, bytes, n, more) : -1;
		o.correction = fd2 >= 0 ? more : NULL;
		if (fd >= 0)
			transform(base, &o);
		if (fd >= 0)
			close(fd);
		if (fd2 >= 0)
			close(fd2);
	}
	free(text);
	return 0;
}
