/* SPDX-License-Identifier: Apache-2.0 */
/* pickletool.c - converts buckets of tensors to and from pickles, for tests with torch.
 *
 *   pickletool write < LINES > PICKLE   lines "NAME DTYPE DIM,DIM..." ("-": none); byte i of all
 *                                       tensors is (i * 131 + i / 251) modulo 256
 *   pickletool cuda DEVICE AT < LINES > PICKLE   the same with bytes on a GPU (DEVICE: its UUID or
 *                                       number); byte i of the handle is i
 *   pickletool vllm packed|tensors AT < LINES > PICKLE   the handles that a vLLM gets
 *   pickletool read < PICKLE            the lines, each with the XXH3 of its bytes (0: on a GPU) */
#include "hash.h"
#include "pickle_bucket.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST = 1000, NAME = 128 };

static struct ws_pickle_tensor tensors[MOST];
static char names[MOST][NAME];

static size_t read_lines(void)
{
	char dtype[32], dims[128];
	size_t n = 0;
	while (n < MOST && scanf("%127s %31s %127s", names[n], dtype, dims) == 3) {
		struct ws_pickle_tensor *t = &tensors[n];
		t->name = names[n++];
		if (!ws_dtype_from_torch(dtype, &t->dtype))
			exit(2);
		for (char *d = strtok(dims, ","); d && strcmp(d, "-") != 0; d = strtok(NULL, ","))
			t->dims[t->n_dims++] = strtoll(d, NULL, 10);
		if (!ws_dtype_bytes(t->dtype, t->n_dims, t->dims, &t->bytes))
			exit(2);
	}
	return n;
}

static uint64_t bytes_of(size_t n)
{
	uint64_t bytes = 0;
	for (size_t i = 0; i < n; i++)
		bytes += tensors[i].bytes;
	return bytes;
}

static int print(struct ws_buf *out)
{
	const int rc = out->failed || fwrite(out->data, 1, out->len, stdout) != out->len;
	ws_buf_free(out);
	return rc;
}

static struct ws_pickle_cuda place(const char *uuid, const char *at)
{
	static unsigned char handle[64];
	for (unsigned i = 0; i < sizeof handle; i++)
		handle[i] = (unsigned char)i;
	return (struct ws_pickle_cuda){ .handle = handle, .at = strtoull(at, NULL, 10),
		                        .room = 1 << 20, .uuid = uuid };
}

static int write_cuda(const char *device, const char *at)
{
	const size_t n = read_lines();
	const bool is_number = strlen(device) < 4;
	struct ws_pickle_cuda where = place(is_number ? NULL : device, at);
	struct ws_buf out;
	where.ordinal = (unsigned)strtoul(device, NULL, 10);
	ws_buf_init(&out, 0);
	ws_pickle_cuda(&out, &where, tensors, n, bytes_of(n));
	return print(&out);
}

static int write_vllm(const char *form, const char *at)
{
	const size_t n = read_lines();
	const struct ws_pickle_cuda where = place("8d2f0c1a-4c7e-0b11-a0f3-5e0d6c7b8a99", at);
	struct ws_buf out;
	ws_buf_init(&out, 0);
	if (strcmp(form, "packed") == 0)
		ws_pickle_vllm_packed(&out, &where, bytes_of(n));
	else
		ws_pickle_vllm_tensors(&out, &where, tensors, n);
	return print(&out);
}

static int write_pickle(void)
{
	const size_t n = read_lines();
	const uint64_t bytes = bytes_of(n);
	struct ws_buf out;
	ws_buf_init(&out, 0);
	ws_pickle_begin(&out, (uint32_t)bytes);
	for (uint64_t i = 0; i < bytes; i++)
		ws_buf_putc(&out, (char)(i * 131 + i / 251));
	ws_pickle_end(&out, tensors, n, (uint32_t)bytes);
	return print(&out);
}

static int read_pickle(void)
{
	static char chunk[1 << 16];
	struct ws_buf in;
	struct ws_err err = WS_ERR_INIT;
	struct ws_pickle_bucket b;
	uint64_t at = 0;
	ws_buf_init(&in, 0);
	for (size_t n = 0; (n = fread(chunk, 1, sizeof chunk, stdin)) > 0; )
		ws_buf_add(&in, chunk, n);
	if (ws_pickle_read(in.data, in.len, &b, &err)) {
		printf("refused: %s\n", err.msg);
		ws_buf_free(&in);
		return 0;
	}
	for (size_t i = 0; i < b.n; i++) {
		const struct ws_pickle_tensor *t = &b.tensors[i];
		printf("%s %s ", t->name, ws_dtype_torch(t->dtype));
		for (unsigned d = 0; d < t->n_dims; d++)
			printf(d ? ",%" PRId64 : "%" PRId64, t->dims[d]);
		printf(t->n_dims ? " %016" PRIx64 "\n" : "- %016" PRIx64 "\n",
		       b.bytes ? ws_hash64(b.bytes + at, (size_t)t->bytes) : 0);
		at += t->bytes;
	}
	ws_pickle_free(&b);
	ws_buf_free(&in);
	return 0;
}

int main(int argc, char **argv)
{
	if (argc == 4 && strcmp(argv[1], "cuda") == 0)
		return write_cuda(argv[2], argv[3]);
	if (argc == 4 && strcmp(argv[1], "vllm") == 0)
		return write_vllm(argv[2], argv[3]);
	return argc > 1 && strcmp(argv[1], "read") == 0 ? read_pickle() : write_pickle();
}
