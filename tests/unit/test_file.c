/* SPDX-License-Identifier: Apache-2.0 */
/* Files replaced whole and locked, cancellation, jobs, hashes. */
#include "file.h"
#include "hash.h"
#include "job.h"

#include "scratch.h"
#include "test.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <sys/wait.h>

static size_t count_entries(const char *dir)
{
	size_t n = 0;
	DIR *d = opendir(dir);
	for (struct dirent *e; d && (e = readdir(d));)
		n += e->d_name[0] != '.';
	closedir(d);
	return n;
}

SCRATCH_TEST(a_file_is_replaced_whole_with_its_mode)
{
	struct stat st;
	struct ws_buf b;
	assert_int_equal(ws_file_replace("f", "old", 3, 0600, NULL), 0);
	assert_int_equal(ws_file_replace("f", "newer", 5, 0600, NULL), 0);
	assert_int_equal(stat("f", &st), 0);
	assert_int_equal(st.st_mode & 0777, 0600);
	const mode_t before = umask(027);
	assert_int_equal(ws_file_replace("f", "newer", 5, 0666, NULL), 0);
	umask(before);
	assert_int_equal(stat("f", &st), 0);
	assert_int_equal(st.st_mode & 0777, 0640);
	ws_buf_init(&b, 5);
	assert_int_equal(ws_file_read("f", &b, NULL), 0);
	assert_string_equal(ws_buf_str(&b), "newer");
	ws_buf_free(&b);
	assert_int_equal(count_entries("."), 1); /* no temporary file stays */
}

SCRATCH_TEST(a_replacement_that_fails_leaves_the_old_file)
{
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(mkdir("d", 0700), 0);
	assert_int_equal(ws_file_replace("d/f", "old", 3, 0600, NULL), 0);
	/* a directory is in the way */
	assert_fails(ws_file_replace("d", "x", 1, 0600, &err), &err, WS_ESYSTEM, "");
	assert_int_equal(count_entries("."), 1);
	assert_int_equal(ws_file_replace("absent/f", "x", 1, 0600, &err), -1);
}

SCRATCH_TEST(a_pipe_or_a_device_is_not_replaced)
{
	struct ws_err err = WS_ERR_INIT;
	struct stat st;
	assert_int_equal(mkfifo("fifo", 0600), 0);
	assert_int_equal(symlink("/dev/null", "null"), 0);
	assert_fails(ws_file_replace("fifo", "x", 1, 0666, &err), &err, WS_ESYSTEM,
	             "write fifo: not a regular file");
	assert_fails(ws_file_replace("null", "x", 1, 0666, &err), &err, WS_ESYSTEM,
	             "write null: not a regular file");
	assert_true(stat("fifo", &st) == 0 && S_ISFIFO(st.st_mode));
	assert_true(stat("null", &st) == 0 && S_ISCHR(st.st_mode));
	assert_int_equal(count_entries("."), 2);
}

SCRATCH_TEST(what_is_no_regular_file_is_refused_without_waiting)
{
	struct ws_file_id id;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(mkfifo("fifo", 0600), 0);
	assert_fails(ws_file_open("fifo", &id, &err), &err, WS_EINPUT, "");
	assert_fails(ws_file_open(".", &id, &err), &err, WS_EINPUT, "");
	assert_fails(ws_file_open("absent", &id, &err), &err, WS_EINPUT, "");
	assert_int_equal(err.native, ENOENT);
}

SCRATCH_TEST(a_file_has_at_most_the_bytes_it_may_have)
{
	struct ws_buf b;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_file_replace("f", "123456", 6, 0600, NULL), 0);
	ws_buf_init(&b, 5);
	assert_fails(ws_file_read("f", &b, &err), &err, WS_EINPUT, "");
	ws_buf_free(&b);
}

SCRATCH_TEST(a_file_that_was_cut_short_is_an_error_not_a_signal)
{
	char bytes[8];
	struct ws_file_id id = { 0 };
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_file_replace("f", "12345678", 8, 0600, NULL), 0);
	const int fd = ws_file_open("f", &id, NULL);
	assert_int_equal(id.size, 8);
	assert_int_equal(ws_file_pread(fd, "f", 2, bytes, 6, NULL), 0);
	assert_memory_equal(bytes, "345678", 6);
	assert_int_equal(truncate("f", 5), 0);
	assert_fails(ws_file_pread(fd, "f", 2, bytes, 6, &err), &err, WS_EINPUT, "ends at byte 5");
	close(fd);
}

static void write_at_once(const char *path, const char *text)
{
	const int fd = open(path, O_WRONLY | O_CREAT, 0600);
	assert_int_equal(write(fd, text, strlen(text)), (ssize_t)strlen(text));
	close(fd);
}

static void overwrite(void)
{
	write_at_once("f", "87654321");
}

/* As `rsync --inplace --times` of a file with the same mtime: ctime alone tells. */
static void overwrite_and_reset_mtime(void)
{
	struct stat st;
	assert_int_equal(stat("f", &st), 0);
	overwrite();
	assert_int_equal(utimensat(AT_FDCWD, "f", (struct timespec[2]){ st.st_atim, st.st_mtim },
	                           0),
	                 0);
}

static void grow(void)
{
	assert_int_equal(truncate("f", 9), 0);
}

static void replace(void)
{
	assert_int_equal(ws_file_replace("f", "87654321", 8, 0600, NULL), 0);
}

static void delete_file(void)
{
	assert_int_equal(unlink("f"), 0);
}

static void only_read(void)
{
	struct ws_buf b;
	ws_buf_init(&b, 8);
	assert_int_equal(ws_file_read("f", &b, NULL), 0);
	ws_buf_free(&b);
}

SCRATCH_TEST(a_file_that_changes_while_it_is_open_is_detected)
{
	static const struct {
		void (*change)(void);
		const char *words; /* NULL: it has not changed */
	} cases[] = {
		{ only_read, NULL },
		{ overwrite, "was overwritten" },
		{ overwrite_and_reset_mtime, "attributes changed" },
		{ grow, "changed from 8 to 9 bytes" },
		{ replace, "was replaced or removed" },
		{ delete_file, "was replaced or removed" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct ws_file_id id;
		struct ws_err err = WS_ERR_INIT, again = WS_ERR_INIT;
		unlink("f");
		/* Written, opened and changed at once: the times of files are no
		 * finer than the kernel's tick. */
		write_at_once("f", "12345678");
		const int fd = ws_file_open("f", &id, NULL);
		assert_true(fd >= 0);
		cases[i].change();
		const int expected = cases[i].words ? -1 : 0;
		assert_int_equal(ws_file_check(fd, "f", &id, &err), expected);
		assert_int_equal(ws_file_check_path("f", &id, &again), expected);
		close(fd);
		if (!cases[i].words)
			continue;
		assert_int_equal(err.code, WS_EINPUT);
		assert_int_equal(again.code, WS_EINPUT);
		assert_non_null(strstr(err.msg, cases[i].words));
		assert_non_null(strstr(again.msg, cases[i].words));
	}
}

SCRATCH_TEST(missing_directories_are_made_for_us_alone)
{
	struct stat st;
	assert_int_equal(ws_file_mkdirs("a/b/c", NULL), 0);
	assert_int_equal(ws_file_mkdirs("a/b/c/", NULL), 0);
	assert_int_equal(stat("a/b", &st), 0);
	assert_int_equal(st.st_mode & 0777, 0700);
	assert_int_equal(ws_file_replace("file", "", 0, 0600, NULL), 0);
	assert_int_equal(ws_file_mkdirs("file/x", NULL), -1);
}

/* Whoever can write a directory can put another file in the place of one. */
SCRATCH_TEST(a_file_is_trusted_only_where_others_cannot_replace_it)
{
	static const struct { mode_t mode; bool fine; } cases[] = {
		{ 0700, true }, { 0755, true }, { 0775, true }, { 01777, true },
		{ 0777, false }, { 0757, false }, { 0702, false },
	};
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(mkdir("d", 0700), 0);
	assert_int_equal(mkdir("d/in", 0700), 0);
	assert_int_equal(ws_file_make("d/file", "x", 1, NULL), 0);
	assert_int_equal(symlink("d/file", "link"), 0);
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		assert_int_equal(chmod("d", cases[i].mode), 0);
		for (int k = 0; k < 4; k++) {
			const int fd =
				k == 0 ? ws_file_open_owned("d/file", O_RDONLY, WS_FILE_OWN, &err) :
				k == 1 ? ws_file_open_owned("link", O_RDONLY, WS_FILE_OWN_OR_ROOTS,
				                            &err) :
				k == 2 ? ws_file_check_directory("d/in", &err) :
				         ws_file_check_place("d/new", &err);
			if ((fd >= 0) != cases[i].fine)
				fail_msg("%o, %d: %d", cases[i].mode, k, fd);
			if (k < 2 && fd >= 0)
				close(fd);
			if (!cases[i].fine) {
				assert_fails(-1, &err, WS_EINPUT,
				             "d: others can write there, so its files are not "
				             "trusted");
				assert_non_null(strstr(err.hint, "chmod o-w "));
			}
		}
	}
	if (geteuid() != 0)
		return;
	assert_int_equal(chmod("d", 0755), 0);
	assert_int_equal(chown("d", 4711, 4711), 0);
	assert_int_equal(ws_file_check_place("d/file", &err), 0); /* root works for that user */
	assert_int_equal(chmod(".", 0755), 0);
	assert_int_equal(seteuid(4712), 0);
	const int rc = ws_file_check_place("d/file", &err);
	assert_int_equal(seteuid(0), 0);
	assert_fails(rc, &err, WS_EINPUT, "d: belongs to another user, so");
}

SCRATCH_TEST(a_lock_is_waited_for_until_the_deadline)
{
	struct ws_err err = WS_ERR_INIT;
	const int held = ws_file_lock("lock", WS_FILE_OWN, ws_deadline_in(WS_NS_PER_S), NULL, NULL);
	assert_true(held >= 0);
	const int64_t start = ws_now_ns();
	assert_int_equal(ws_file_lock("lock", WS_FILE_OWN, ws_deadline_in(50 * WS_NS_PER_MS), NULL,
	                              &err),
	                 -1);
	assert_int_equal(err.code, WS_ETIMEOUT);
	assert_true(ws_now_ns() - start >= 50 * WS_NS_PER_MS);
	struct ws_cancel cancel = WS_CANCEL_INIT;
	assert_int_equal(ws_cancel_init(&cancel, NULL), 0);
	ws_cancel_set(&cancel);
	assert_fails(ws_file_lock("lock", WS_FILE_OWN, WS_FOREVER, &cancel, &err), &err,
	             WS_ECANCELLED, "");
	ws_cancel_fini(&cancel);
	ws_file_unlock(held);
	const int again = ws_file_lock("lock", WS_FILE_OWN, ws_deadline_in(0), NULL, NULL);
	assert_true(again >= 0);
	ws_file_unlock(again);
}

TEST(a_cancel_wakes_poll_for_ever)
{
	struct ws_cancel c = WS_CANCEL_INIT;
	assert_int_equal(ws_cancel_init(&c, NULL), 0);
	struct pollfd p = { .fd = ws_cancel_fd(&c), .events = POLLIN };
	assert_int_equal(poll(&p, 1, 0), 0);
	assert_false(ws_cancelled(&c));
	ws_cancel_set(&c);
	ws_cancel_set(&c);
	assert_true(ws_cancelled(&c));
	assert_int_equal(poll(&p, 1, 0), 1);
	assert_int_equal(poll(&p, 1, 0), 1);
	ws_cancel_fini(&c);
	assert_false(ws_cancelled(NULL));
	assert_int_equal(ws_cancel_fd(NULL), -1);
}

static int answer(void *arg, struct ws_err *err)
{
	return *(int *)arg ? ws_err_set(err, WS_EDATA, "job %d", *(int *)arg) : 0;
}

TEST(a_job_hands_over_how_it_ended_and_can_run_again)
{
	struct ws_job j;
	struct ws_err err = WS_ERR_INIT;
	int arg = 7;
	assert_int_equal(ws_job_init(&j, NULL), 0);
	assert_int_equal(ws_job_wait(&j, &err), 0); /* nothing ran */
	for (int i = 0; i < 100; i++) {
		arg = i % 2 ? 7 : 0;
		assert_int_equal(ws_job_start(&j, answer, &arg, NULL), 0);
		struct pollfd p = { .fd = j.fd, .events = POLLIN };
		assert_int_equal(poll(&p, 1, 5000), 1);
		assert_int_equal(ws_job_wait(&j, &err), arg ? -1 : 0);
		assert_int_equal(poll(&p, 1, 0), 0);
	}
	assert_string_equal(err.msg, "job 7");
	assert_int_equal(ws_job_start(&j, answer, &arg, NULL), 0);
	ws_job_fini(&j);
	ws_job_fini(&j);
}

TEST(hashes_are_xxh3_whole_or_in_pieces)
{
	/* The published value of XXH3-64 with seed 0 of no bytes. */
	assert_true(ws_hash64("", 0) == UINT64_C(0x2d06800538d394c2));
	uint8_t bytes[5000];
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)(i * 131);
	struct ws_hash *h = ws_hash_new();
	for (size_t step = 1; step < 700; step += 97) {
		ws_hash_reset(h);
		for (size_t at = 0; at < sizeof bytes; at += step)
			ws_hash_add(h, bytes + at,
			            at + step < sizeof bytes ? step : sizeof bytes - at);
		assert_true(ws_hash_digest(h) == ws_hash64(bytes, sizeof bytes));
	}
	ws_hash_free(h);
	ws_hash_free(NULL);
}

RUN_TESTS(NULL, NULL)
