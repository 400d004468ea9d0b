/* SPDX-License-Identifier: Apache-2.0 */
/* What ws_checkpoint_write writes, read back;
 * tests/peers/test_checkpoint.py reads it independently. */
#include "checkpoint.h"

#include "scratch.h"
#include "test.h"

#include <sys/stat.h>
#include <unistd.h>

/* Odd sizes before larger elements, an empty tensor, a scalar, a name that JSON must escape. */
static void write_sample(const char *path)
{
	static const char header[] =
		"{\"a\":{\"dtype\":\"U8\",\"shape\":[3],\"data_offsets\":[0,3]},"
		"\"b\":{\"dtype\":\"F32\",\"shape\":[],\"data_offsets\":[3,7]},"
		"\"none\":{\"dtype\":\"F64\",\"shape\":[0,9],\"data_offsets\":[7,7]},"
		"\"q\\\"\\\\\xc3\xa9\":{\"dtype\":\"BF16\",\"shape\":[1,2],\"data_offsets\":[7,11]}"
	        "}";
	const size_t len = sizeof header - 1;
	const uint8_t length[8] = { (uint8_t)(len & 0xff), (uint8_t)(len >> 8) };
	FILE *f = fopen(path, "wb");
	assert_non_null(f);
	assert_int_equal(fwrite(length, 1, 8, f), 8);
	assert_int_equal(fwrite(header, 1, len, f), len);
	assert_int_equal(fwrite("abc1234BBCC", 1, 11, f), 11);
	assert_int_equal(fclose(f), 0);
}

static struct ws_source *open_path(const char *path)
{
	struct ws_source *s = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_source_open(&path, 1, &s, &err), &err);
	return s;
}

static void assert_same(const struct ws_source *a, const struct ws_source *b)
{
	assert_int_equal(ws_source_count(a), ws_source_count(b));
	for (size_t i = 0; i < ws_source_count(a); i++) {
		const struct ws_tensor *x = ws_source_tensor(a, i), *y = ws_source_find(b, x->name);
		uint64_t p, q;
		assert_non_null(y);
		assert_int_equal(x->dtype, y->dtype);
		assert_int_equal(x->n_dims, y->n_dims);
		assert_memory_equal(x->dims, y->dims, sizeof x->dims);
		assert_int_equal(ws_source_hash(a, x, &p, NULL), 0);
		assert_int_equal(ws_source_hash(b, y, &q, NULL), 0);
		assert_true(p == q);
		if (y->bytes)
			assert_int_equal(y->offset % (ws_dtype_bits(y->dtype) / 8), 0);
	}
}

SCRATCH_TEST(what_is_written_is_read_back)
{
	static const uint64_t shard_sizes[] = { 0, 1, 7, 8, 11, UINT64_MAX };
	static const size_t files[] = { 1, 4, 2, 2, 1, 1 };
	write_sample("x.safetensors");
	struct ws_source *s = open_path("x.safetensors");
	for (size_t i = 0; i < sizeof files / sizeof files[0]; i++) {
		struct ws_err err = WS_ERR_INIT;
		assert_ok(ws_checkpoint_write(s, "deep/out", shard_sizes[i], &err), &err);
		struct ws_source *back = open_path("deep/out");
		assert_int_equal(ws_source_file_count(back), files[i]);
		assert_same(s, back);
		const char *value;
		assert_string_equal(ws_source_metadata(back, 0, 0, &value), "format");
		assert_string_equal(value, "pt");
		ws_source_close(back);
	}
	ws_source_close(s);
}

SCRATCH_TEST(an_index_that_would_hide_the_file_is_removed)
{
	write_sample("x.safetensors");
	struct ws_source *s = open_path("x.safetensors");
	assert_int_equal(ws_checkpoint_write(s, "out", 4, NULL), 0);
	assert_int_equal(access("out/model.safetensors.index.json", F_OK), 0);
	assert_int_equal(ws_checkpoint_write(s, "out", 0, NULL), 0);
	assert_int_equal(access("out/model.safetensors.index.json", F_OK), -1);
	ws_source_close(s);
}

SCRATCH_TEST(a_failed_write_leaves_nothing_behind)
{
	write_sample("x.safetensors");
	struct ws_source *s = open_path("x.safetensors");
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(truncate("x.safetensors", 100), 0);
	assert_int_equal(mkdir("out", 0700), 0);
	assert_fails(ws_checkpoint_write(s, "out", 0, &err), &err, WS_EINPUT, "");
	assert_int_equal(rmdir("out"), 0); /* empty */
	assert_int_equal(ws_checkpoint_write(s, "x.safetensors/out", 0, &err), -1);
	ws_source_close(s);
}

RUN_TESTS(NULL, NULL)
