/* SPDX-License-Identifier: Apache-2.0 */
/* Checkpoints that are written for servers: whole under their name or not there, and nobody
 * else's. */
#include "disk.h"

#include "checkpoint.h"
#include "file.h"
#include "payloads.h"
#include "plan_files.h"
#include "scratch.h"
#include "tensor_file.h"
#include "test.h"

#include <errno.h>
#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static const char *const urls[] = { "http://a:1", "http://b:1" };

static void put(const char *path, const char *text)
{
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_file_make(path, text, strlen(text), &err), &err);
}

static bool there(const char *path)
{
	struct stat st;
	return lstat(path, &st) == 0;
}

/* How many entries out/ has, hidden ones too. */
static size_t count(void)
{
	FILE *f = popen("ls -A out | wc -l", "r");
	size_t n = 999;
	assert_non_null(f);
	assert_int_equal(fscanf(f, "%zu", &n), 1);
	pclose(f);
	return n;
}

/* One with a single file, for the first n of the urls. */
static char *publish(const char *version, size_t n)
{
	struct ws_disk d;
	struct ws_err err = WS_ERR_INIT;
	char path[4200], *name = NULL;
	const struct ws_disk_note note = {
		.digest = 7, .source = "s", .weight_version = version, .urls = urls, .n_urls = n
	};
	assert_int_equal(ws_disk_begin(&d, "out", &err), 0);
	snprintf(path, sizeof path, "%s/model.safetensors", d.tmp);
	put(path, "bytes");
	assert_ok(ws_disk_publish(&d, &note, &name, &err), &err);
	ws_disk_end(&d);
	return name;
}

static void publish_and_forget(const char *version, size_t n)
{
	free(publish(version, n));
}

SCRATCH_TEST(a_name_is_given_once)
{
	static const char *const names[] = { "wsync-1", "wsync-1-2", "wsync-1-3" };
	for (size_t i = 0; i < 3; i++) {
		char *name = publish("1", 1);
		assert_string_equal(name, names[i]);
		free(name);
	}
	char *name = publish("../../etc/x y\n", 1);
	assert_string_equal(name, "wsync-.._.._etc_x_y_");
	free(name);
	name = publish(NULL, 1);
	assert_string_equal(name, "wsync-0000000000000007");
	free(name);
	assert_int_equal(mkdir("out/wsync-9", 0700), 0);
	name = publish("9", 1);
	assert_string_equal(name, "wsync-9-2");
	free(name);
	assert_int_equal(count(), 7);
}

SCRATCH_TEST(what_the_dead_left_is_removed_and_the_living_are_not)
{
	struct ws_disk alive, other;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_disk_begin(&alive, "out", &err), 0);
	const pid_t child = fork();
	if (child == 0) {
		char path[4200];
		struct ws_disk d;
		if (ws_disk_begin(&d, "out", NULL))
			_exit(1);
		snprintf(path, sizeof path, "%s/half", d.tmp);
		_exit(ws_file_make(path, "x", 1, NULL) ? 1 : 0);
	}
	int status;
	assert_int_equal(waitpid(child, &status, 0), child);
	assert_int_equal(status, 0);
	/* nobody's: it has no lock */
	assert_int_equal(mkdir("out/.wsync-0123456789abcdef", 0700), 0);
	put("out/.wsync-mine.lock", "");
	assert_int_equal(count(), 6);
	assert_int_equal(ws_disk_begin(&other, "out", &err), 0);
	assert_int_equal(count(), 6);
	ws_disk_end(&other);
	assert_true(there(alive.tmp));
	ws_disk_end(&alive);
	assert_int_equal(count(), 2);
}

static void tell(void *told, const struct ws_err *why)
{
	(void)why;
	++*(size_t *)told;
}

SCRATCH_TEST(what_was_not_written_here_stays)
{
	size_t told = 0;
	publish_and_forget("1", 1);
	put("out/wsync-1/notes", "precious");
	assert_int_equal(mkdir("out/wsync-2", 0700), 0);
	put("out/wsync-2/wsync.json", "{\"schema\":1,\"endpoints\":[],\"files\":[\"../../x\"]}");
	assert_int_equal(mkdir("out/wsync-3", 0700), 0);
	put("out/wsync-3/wsync.json",
	    "{\"schema\":1,\"endpoints\":[\"http://a:1\"],\"files\":[\"sub\"]}");
	assert_int_equal(mkdir("out/wsync-3/sub", 0700), 0);
	put("out/wsync-3/sub/file", "precious");
	assert_int_equal(mkdir("elsewhere", 0700), 0);
	put("elsewhere/wsync.json", "{\"schema\":1,\"endpoints\":[\"http://a:1\"],\"files\":[]}");
	assert_int_equal(symlink("../elsewhere", "out/wsync-4"), 0);
	put("out/wsync-5", "a file");
	ws_disk_prune("out", NULL, 0, urls, 2, tell, &told);
	assert_true(there("out/wsync-1/notes") && there("out/wsync-1/model.safetensors"));
	assert_true(there("out/wsync-2/wsync.json") && there("elsewhere/wsync.json") &&
	            there("out/wsync-5"));
	assert_true(there("out/wsync-3/wsync.json") && there("out/wsync-3/sub/file"));
	assert_true(told >= 2);
	ws_disk_end(&(struct ws_disk)WS_DISK_INIT);
}

/* Clocks go back, and those of a file server are its own. */
SCRATCH_TEST(what_was_just_loaded_is_the_newest)
{
	const struct timespec later[2] = { { .tv_sec = 1LL << 32 }, { .tv_sec = 1LL << 32 } };
	publish_and_forget("1", 1);
	assert_int_equal(utimensat(AT_FDCWD, "out/wsync-1/wsync.json", later, 0), 0);
	publish_and_forget("2", 1);
	ws_disk_prune("out", "wsync-2", 1, urls, 1, NULL, NULL);
	assert_true(!there("out/wsync-1") && there("out/wsync-2"));
	ws_disk_prune("out", "wsync-2", 0, urls, 1, NULL, NULL);
	assert_int_equal(count(), 0);
}

/* A file that somebody has open on NFS stays as another. */
SCRATCH_TEST(what_could_not_be_removed_is_removed_later)
{
	struct ws_disk d;
	struct ws_err err = WS_ERR_INIT;
	char path[4200];
	assert_int_equal(ws_disk_begin(&d, "out", &err), 0);
	snprintf(path, sizeof path, "%s/stays", d.tmp);
	assert_int_equal(mkdir(path, 0700), 0);
	ws_disk_end(&d);
	assert_int_equal(count(), 2);
	assert_int_equal(rmdir(path), 0);
	assert_int_equal(ws_disk_begin(&d, "out", &err), 0);
	ws_disk_end(&d);
	assert_int_equal(count(), 0);
}

/* ---- a plan as files ---- */

static int count_bytes(void *ctx, uint64_t bytes, struct ws_err *err)
{
	uint64_t *left = ctx;
	if (bytes > *left)
		return ws_err_set(err, WS_ECANCELLED, "enough");
	*left -= bytes;
	return 0;
}

static void write_plan(const struct ws_plan *p, const char *dir)
{
	struct ws_err err = WS_ERR_INIT;
	uint64_t left = p->bytes;
	for (size_t b = 0; b < p->n_buckets; b++) {
		struct ws_payload *payloads;
		size_t n;
		assert_int_equal(ws_plan_payloads(p, b, &payloads, &n, &err), 0);
		if (ws_plan_file_write(p, b, payloads, n, dir, count_bytes, &left, &err))
			fail_msg("%s", err.msg);
		ws_plan_payloads_free(payloads, n);
	}
	assert_int_equal(left, 0);
	assert_int_equal(ws_plan_index_write(p, dir, &err), 0);
}

static void write_source(void)
{
	struct tensor_file out = tensor_file_begin("s.safetensors");
	tensor_file_entry(&out, "a", "U8", "[3]", 3);
	tensor_file_entry(&out, "b", "F32", "[2]", 8);
	tensor_file_entry(&out, "c", "BF16", "[5,1]", 10);
	tensor_file_data(&out);
	for (int i = 1; i <= 21; i++)
		fputc(i, out.f);
	tensor_file_end(&out);
}

static struct ws_source *open_source(const char *path)
{
	struct ws_source *s = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_source_open(&path, 1, &s, &err), &err);
	return s;
}

SCRATCH_TEST(a_plan_as_files_is_the_same_checkpoint)
{
	static const uint64_t sizes[] = { 1 << 20, 12, 1 };
	struct ws_err err = WS_ERR_INIT;
	write_source();
	struct opened_file f = open_file("s.safetensors");
	for (size_t i = 0; i < 3; i++) {
		char dir[16];
		struct ws_plan *p = NULL;
		snprintf(dir, sizeof dir, "d%zu", i);
		assert_int_equal(mkdir(dir, 0700), 0);
		const struct ws_plan_opts opts = { .bucket_size = sizes[i],
			                           .format = WS_FORMAT_FLATTENED };
		assert_int_equal(ws_plan_make(f.catalog, &opts, &p, &err), 0);
		write_plan(p, dir);
		struct ws_source *back = open_source(dir);
		assert_int_equal(ws_source_count(back), 3);
		for (size_t k = 0; k < 3; k++) {
			const struct ws_tensor *t = ws_source_tensor(f.source, k),
					       *u = ws_source_find(back, t->name);
			uint64_t was, is;
			assert_non_null(u);
			assert_ok(ws_source_hash(f.source, t, &was, &err), &err);
			assert_ok(ws_source_hash(back, u, &is, &err), &err);
			assert_true(was == is && t->dtype == u->dtype && t->n_dims == u->n_dims);
		}
		ws_source_close(back);
		ws_plan_free(p);
	}
	assert_true(there("d0/model.safetensors") && !there("d0/model.safetensors.index.json"));
	assert_true(there("d2/model-00003-of-00003.safetensors"));
	close_file(&f);
}

RUN_TESTS(NULL, NULL)
