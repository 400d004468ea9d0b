/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints on disk: files, directories, indices; and what is said about broken ones. */
#include "checkpoint.h"
#include "hash.h"
#include "scratch.h"
#include "tensor_file.h"
#include "test.h"
#include "wsync/tool/source.h"

#include <sys/stat.h>
#include <unistd.h>

/* A file with tensors of four bytes each, which hold the tensor's name. */
static void write_tensors(const char *path, const char *const *names)
{
	struct tensor_file out = tensor_file_begin(path);
	for (size_t i = 0; names[i]; i++)
		tensor_file_entry(&out, names[i], "U8", "[2,2]", 4);
	tensor_file_data(&out);
	for (size_t i = 0; names[i]; i++)
		fseek(out.f, 4 - fprintf(out.f, "%.4s", names[i]), SEEK_CUR);
	tensor_file_end(&out);
}

#define TENSORS(path, ...) write_tensors(path, (const char *const[]){ __VA_ARGS__, NULL })

static struct ws_source *open_one(const char *path)
{
	struct ws_source *s = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_source_open(&path, 1, &s, &err), &err);
	return s;
}

static void expect(const char *path, const char *sentence)
{
	struct ws_source *s = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_source_open(&path, 1, &s, &err), -1);
	assert_null(s);
	assert_string_equal(err.msg, sentence);
	assert_int_equal(err.code, WS_EINPUT);
}

SCRATCH_TEST(one_file_is_a_source)
{
	TENSORS("a.safetensors", "x1", "x2");
	struct ws_source *s = open_one("a.safetensors");
	assert_int_equal(ws_source_count(s), 2);
	assert_int_equal(ws_source_bytes(s), 8);
	assert_int_equal(ws_source_file_count(s), 1);
	assert_string_equal(ws_source_file_name(s, 0), "a.safetensors");
	assert_null(ws_source_file_name(s, 1));
	assert_null(ws_source_config_dir(s));
	assert_null(ws_source_find(s, "x3"));
	assert_null(ws_source_tensor(s, 2));
	const struct ws_tensor *t = ws_source_find(s, "x2");
	assert_ptr_equal(t, ws_source_tensor(s, 1));
	char bytes[4];
	uint64_t hash;
	assert_int_equal(ws_source_read(s, t, 1, bytes, 2, NULL), 0);
	assert_memory_equal(bytes, "2\0", 2);
	assert_int_equal(ws_source_hash(s, t, &hash, NULL), 0);
	assert_true(hash == ws_hash64("x2\0\0", 4));
	struct ws_span span;
	ws_source_span(s, t, &span);
	assert_int_equal(span.length, 4);
	assert_int_equal(pread(span.fd, bytes, 4, (off_t)span.offset), 4);
	assert_string_equal(bytes, "x2");
	ws_source_close(s);
	ws_source_close(NULL);
}

SCRATCH_TEST(a_directory_is_read_by_its_index_first)
{
	assert_int_equal(mkdir("ckpt", 0700), 0);
	TENSORS("ckpt/model-2.safetensors", "b");
	TENSORS("ckpt/model-1.safetensors", "c", "a");
	TENSORS("ckpt/model.safetensors", "other");
	put_text("ckpt/config.json", "{}");
	put_text("ckpt/model.safetensors.index.json",
	           "{\"metadata\":{\"total_size\":12,\"deep\":[{\"x\":null}]},\"weight_map\":{"
	           "\"a\":\"model-1.safetensors\",\"b\":\"model-2.safetensors\","
	           "\"c\":\"model-1.safetensors\"}}");
	static const char *const ways[] = { "ckpt", "ckpt/", "ckpt/model.safetensors.index.json" };
	for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
		struct ws_source *s = open_one(ways[i]);
		assert_int_equal(ws_source_count(s), 3);
		assert_string_equal(ws_source_tensor(s, 0)->name, "c");
		assert_string_equal(ws_source_tensor(s, 1)->name, "a");
		assert_string_equal(ws_source_tensor(s, 2)->name, "b");
		assert_int_equal(ws_source_tensor(s, 2)->file, 1);
		assert_string_equal(ws_source_file_name(s, 1), "ckpt/model-2.safetensors");
		assert_memory_equal(ws_source_config_dir(s), "ckpt", 4);
		ws_source_close(s);
	}
}

SCRATCH_TEST(a_directory_without_an_index_is_read_whole)
{
	expect(".",
	       ".: no checkpoint there: looked for model.safetensors.index.json, model.safetensors "
	       "and *.safetensors");
	TENSORS("b.safetensors", "b");
	TENSORS("a.safetensors", "a");
	TENSORS(".hidden.safetensors", "a");
	struct ws_source *s = open_one(".");
	assert_int_equal(ws_source_count(s), 2);
	assert_string_equal(ws_source_tensor(s, 0)->name, "a");
	ws_source_close(s);
	TENSORS("model.safetensors", "m");
	s = open_one(".");
	assert_int_equal(ws_source_count(s), 1);
	assert_string_equal(ws_source_file_name(s, 0), "./model.safetensors");
	ws_source_close(s);
}

SCRATCH_TEST(half_a_download_is_refused)
{
	TENSORS("model-00001-of-00003.safetensors", "a");
	TENSORS("model-00003-of-00003.safetensors", "c");
	expect(".", ".: holds 2 of 3 shards and no model.safetensors.index.json");
}

SCRATCH_TEST(a_name_that_occurs_twice_names_both_files)
{
	TENSORS("one.safetensors", "a", "b");
	TENSORS("two.safetensors", "c", "b");
	const char *const paths[] = { "one.safetensors", "two.safetensors" };
	struct ws_source *s = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_source_open(paths, 2, &s, &err), -1);
	assert_string_equal(err.msg, "tensor 'b' is in both one.safetensors and two.safetensors");
}

SCRATCH_TEST(what_is_not_there_is_said)
{
	expect("nowhere.safetensors", "open nowhere.safetensors: No such file or directory");
	assert_int_equal(mkfifo("fifo", 0600), 0);
	expect("fifo", "fifo: not a regular file");
	struct ws_source *s = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_fails(ws_source_open(NULL, 0, &s, &err), &err, WS_EUSAGE, "");
}

#define INDEX(map) "{\"weight_map\":{" map "}}"
#define P "i.json: "

SCRATCH_TEST(an_index_is_judged)
{
	static const struct { const char *text, *sentence; } cases[] = {
		{ "", P "not JSON at byte 0: the text ends early" },
		{ "[]", P "index at byte 0 is no object" },
		{ "{}", P "no weight_map in this index" },
		{ INDEX(""), P "weight_map is empty" },
		{ "{\"weight_map\":[]}", P "weight_map at byte 14 is no object" },
		{ "{\"weight_map\":{\"a\":\"s\"},\"weight_map\":{}}", P "weight_map twice" },
		{ INDEX("\"a\":1"), P "shard in weight_map at byte 19 is no string" },
		{ INDEX("\"a\":\"\""), P "weight_map: the shard '' of tensor 'a' is empty" },
		{ INDEX("\"a\":\"../s\""),
		  P "weight_map: the shard '../s' of tensor 'a' is not the name of a "
		    "file beside the index" },
		{ INDEX("\"a\":\"/etc/passwd\""),
		  P "weight_map: the shard '/etc/passwd' of tensor 'a' is not "
		    "the name of a file beside the index" },
		{ INDEX("\"a\":\"..\""),
		  P "weight_map: the shard '..' of tensor 'a' is not the name of a file "
		    "beside the index" },
		{ INDEX("\"a\":\"s\\u0007\""),
		  P "weight_map: the shard 's?' of tensor 'a' has a control or hidden "
		    "character" },
		{ INDEX("\"a\":\"gone\""), P "1 of 1 shards are missing, the first is gone" },
		{ INDEX("\"a\":\"s\""), P "tensor 'b' of s is not in the index" },
		{ INDEX("\"a\":\"s\",\"b\":\"s\",\"c\":\"s\""),
		  P "tensor 'c' is not in s, where the index has it" },
		{ INDEX("\"a\":\"s\",\"b\":\"t\""),
		  P "tensor 'b' is not in t, where the index has it" },
		{ INDEX("\"a\":\"s\",\"b\":\"s\",\"a\":\"s\""),
		  P "tensor 'a' is in weight_map twice" },
		{ "{\"x\":[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[",
		  P "not JSON at byte 69: nested deeper than 64 levels" },
	};
	TENSORS("s", "a", "b");
	TENSORS("t", "z");
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		put_text("i.json", cases[i].text);
		expect("i.json", cases[i].sentence);
	}
}

SCRATCH_TEST(a_file_cut_short_while_in_use_is_an_error)
{
	TENSORS("a.safetensors", "x1", "x2");
	struct ws_source *s = open_one("a.safetensors");
	const struct ws_tensor *t = ws_source_find(s, "x2");
	struct ws_err err = WS_ERR_INIT;
	char bytes[4], sentence[200];
	uint64_t hash;
	assert_int_equal(truncate("a.safetensors", (off_t)t->offset + 1), 0);
	assert_int_equal(ws_source_read(s, t, 0, bytes, 4, &err), -1);
	snprintf(sentence, sizeof sentence,
	         "tensor 'x2': a.safetensors: ends at byte %d, 3 bytes early: "
	         "it was cut short while in use",
	         (int)t->offset + 1);
	assert_string_equal(err.msg, sentence);
	assert_int_equal(err.code, WS_EINPUT);
	assert_int_equal(ws_source_hash(s, t, &hash, &err), -1);
	ws_source_close(s);
}

SCRATCH_TEST(one_shard_of_forty_that_changes_is_detected)
{
	char name[64];
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(mkdir("d", 0700), 0);
	for (int i = 1; i <= 40; i++) {
		char tensor[8];
		sprintf(name, "d/model-%05d-of-00040.safetensors", i);
		sprintf(tensor, "t%02d", i);
		TENSORS(name, tensor);
	}
	struct ws_source *s = open_one("d");
	assert_int_equal(ws_source_file_count(s), 40);
	assert_int_equal(ws_source_check(s, &err), 0);
	TENSORS("d/model-00033-of-00040.safetensors", "t33");
	assert_int_equal(ws_source_check_file(s, 31, &err), 0);
	assert_int_equal(ws_source_check_file(s, 32, &err), -1);
	assert_fails(ws_source_check(s, &err), &err, WS_EINPUT,
	             "d/model-00033-of-00040.safetensors");
	ws_source_close(s);
}

RUN_TESTS(NULL, NULL)
