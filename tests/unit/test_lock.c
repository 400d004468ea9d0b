/* SPDX-License-Identifier: Apache-2.0 */
/* Locks of endpoints: who holds one is told, and the dead hold none. */
#include "lock.h"

#include "scratch.h"
#include "test.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>

static const char *const A[] = { "http://gpu7:30000" };
static const char *const AB[] = { "http://gpu7:30000", "http://gpu8:30000" };
static const char *const BA[] = { "http://gpu8:30000", "https://gpu7:30000/prefix" };

/* A child that holds the locks of these until it is killed. */
static pid_t hold(const char *const *urls, size_t n)
{
	int ready[2];
	char c = 0;
	assert_int_equal(pipe(ready), 0);
	const pid_t pid = fork();
	if (pid == 0) {
		struct ws_locks *l = NULL;
		if (ws_locks_take("locks", urls, n, 0, NULL, &l, NULL) == 0 &&
		    write(ready[1], "y", 1) == 1)
			pause();
		_exit(1);
	}
	close(ready[1]);
	assert_int_equal(read(ready[0], &c, 1), 1);
	close(ready[0]);
	return pid;
}

static void kill_holder(pid_t pid)
{
	kill(pid, SIGKILL);
	waitpid(pid, NULL, 0);
}

SCRATCH_TEST(a_second_one_is_refused_and_told_who_the_first_is)
{
	struct ws_locks *l = NULL;
	struct ws_err err = WS_ERR_INIT;
	char pid[32];
	const pid_t holder = hold(A, 1);
	snprintf(pid, sizeof pid, "process %ld on ", (long)holder);
	assert_fails(ws_locks_take("locks", BA, 2, 0, NULL, &l, &err), &err, WS_EREFUSED, pid);
	assert_string_equal(err.endpoint, "https://gpu7:30000/prefix");
	kill_holder(holder);
}

SCRATCH_TEST(none_is_kept_where_one_is_refused)
{
	struct ws_locks *l = NULL;
	const char *const b[] = { "http://gpu8:30000" };
	const pid_t holder = hold(b, 1);
	assert_int_equal(ws_locks_take("locks", AB, 2, 0, NULL, &l, NULL), -1);
	assert_int_equal(ws_locks_take("locks", A, 1, 0, NULL, &l, NULL), 0);
	ws_locks_drop(l);
	kill_holder(holder);
}

SCRATCH_TEST(what_is_no_lock_is_left_as_it_is)
{
	static const char *const others[] = { "precious\n", "{\"a\": 1}", "42: 1 2\n",
		                              " 7 host\n",  "12 monkeys\n", "4711\n", "47",
		                              "1 a\n2 b\n", "wsync\n" };
	static const char *const words[] = { "", "4711 gpu7 wsync\n", "4711  wsync\n" };
	struct ws_err err = WS_ERR_INIT;
	struct stat st;
	for (size_t i = 0; i < sizeof others / sizeof *others; i++) {
		put_text("file", others[i]);
		assert_fails_with(ws_lock_take("file", "turn", 0, NULL, &err), &err, WS_ESYSTEM,
		                  "turn: file is not a lock file");
		assert_int_equal(stat("file", &st), 0);
		assert_int_equal(st.st_size, strlen(others[i]));
	}
	for (size_t i = 0; i < sizeof words / sizeof *words; i++) {
		put_text("file", words[i]);
		const int fd = ws_lock_take("file", "turn", 0, NULL, &err);
		assert_true(fd >= 0);
		ws_lock_drop(fd);
	}
}

/* A lock is truncated and written, so it must be a file of ours, and reached by no link. */
SCRATCH_TEST(a_link_or_a_file_of_others_is_no_lock)
{
	struct ws_err err = WS_ERR_INIT;
	struct stat st;
	put_text("file", "");
	put_text("other", "4711 gpu7 wsync\n");
	assert_int_equal(symlink("other", "symbolic"), 0);
	assert_int_equal(symlink("missing", "dangling"), 0);
	assert_int_equal(link("other", "hard"), 0);
	assert_int_equal(mkfifo("fifo", 0600), 0);
	assert_int_equal(chmod("file", 0622), 0);
	static const char *const wrong[][2] = {
		{ "symbolic", "is a symbolic link" }, { "dangling", "is a symbolic link" },
		{ "hard", "has another name" },       { "fifo", "is not a plain file" },
		{ "file", "others can write it" },
	};
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		assert_fails(ws_lock_take(wrong[i][0], "turn", 0, NULL, &err), &err, WS_EINPUT,
		             wrong[i][1]);
	assert_int_equal(stat("other", &st), 0);
	assert_int_equal(st.st_size, strlen("4711 gpu7 wsync\n"));
	assert_int_equal(access("missing", F_OK), -1);
	if (geteuid() == 0) {
		assert_int_equal(chmod("file", 0600), 0);
		assert_int_equal(chown("file", 4711, 4711), 0);
		assert_fails(ws_lock_take("file", "turn", 0, NULL, &err), &err, WS_EINPUT,
		             "belongs to another user");
	}
}

SCRATCH_TEST(locks_of_endpoints_are_in_a_directory_of_ours)
{
	struct ws_locks *l = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(mkdir("shared", 0777), 0);
	assert_int_equal(chmod("shared", 0777), 0);
	assert_int_equal(mkdir("ours", 0700), 0);
	assert_int_equal(symlink("ours", "link"), 0);
	assert_fails(ws_locks_take("shared", A, 1, 0, NULL, &l, &err), &err, WS_EINPUT,
	             "others can write there");
	assert_fails(ws_locks_take("link", A, 1, 0, NULL, &l, &err), &err, WS_EINPUT,
	             "is a symbolic link");
	put_text("precious", "precious");
	assert_int_equal(symlink("../precious", "ours/gpu7:30000.lock"), 0);
	assert_fails(ws_locks_take("ours", A, 1, 0, NULL, &l, &err), &err, WS_EINPUT,
	             "is a symbolic link");
	assert_int_equal(unlink("ours/gpu7:30000.lock"), 0);
	put_text("ours/gpu7:30000.lock", "4711 gpu7\n"); /* of a killed wsync, an older one too */
	assert_ok(ws_locks_take("ours", A, 1, 0, NULL, &l, &err), &err);
	ws_locks_drop(l);
}

SCRATCH_TEST(waiting_ends_when_the_holder_does)
{
	struct ws_locks *l = NULL;
	struct ws_err err = WS_ERR_INIT;
	const pid_t holder = hold(A, 1), killer = fork();
	if (killer == 0) {
		usleep(100000);
		kill(holder, SIGKILL);
		_exit(0);
	}
	assert_int_equal(ws_locks_take("locks", A, 1, 10 * WS_NS_PER_S, NULL, &l, &err), 0);
	ws_locks_drop(l);
	waitpid(killer, NULL, 0);
	waitpid(holder, NULL, 0);
}

SCRATCH_TEST(waiting_has_an_end_of_its_own)
{
	struct ws_locks *l = NULL;
	struct ws_err err = WS_ERR_INIT;
	const pid_t holder = hold(A, 1);
	assert_int_equal(ws_locks_take("locks", A, 1, 50 * WS_NS_PER_MS, NULL, &l, &err), -1);
	assert_int_equal(err.code, WS_ETIMEOUT);
	kill_holder(holder);
}

SCRATCH_TEST(two_names_of_one_machine_have_one_lock)
{
	static const char *const same[][2] = {
		{ "http://127.0.0.1:1", "http://localhost:1" },
		{ "http://[::1]:1", "http://127.3.2.1:1" },
		{ "http://gpu7", "http://gpu7:80" },
		{ "http://127.1:1", "http://127.0.0.1:1" },
		{ "http://10.1:1", "http://10.0.0.1:1" },
		{ "http://[::ffff:10.0.0.1]:1", "http://10.0.0.1:1" },
		{ "http://[fe80:0::1]:1", "http://[fe80::1]:1" },
	};
	char a[WS_LOCK_NAME], b[WS_LOCK_NAME];
	for (size_t i = 0; i < sizeof same / sizeof *same; i++) {
		assert_int_equal(ws_lock_name(same[i][0], a, NULL), 0);
		assert_int_equal(ws_lock_name(same[i][1], b, NULL), 0);
		assert_string_equal(a, b);
	}
	struct ws_locks *l = NULL;
	struct ws_err err = WS_ERR_INIT;
	/* They may be two servers: whoever pushes to both has that lock once. */
	assert_int_equal(ws_locks_take("locks", same[0], 2, 0, NULL, &l, &err), 0);
	ws_locks_drop(l);
}

/* Whoever has unlocked for a while learns whether somebody else has had the lock meanwhile. */
SCRATCH_TEST(locks_that_are_taken_again_tell_whether_others_had_them)
{
	enum { NOBODY, ANOTHER_DROPPED, ANOTHER_DIED, THE_SAME_PROCESS, N };
	for (int who = 0; who < N; who++) {
		struct ws_locks *l = NULL, *other = NULL;
		assert_ok(ws_locks_take("locks", AB, 2, 0, NULL, &l, NULL), NULL);
		const unsigned mark = ws_locks_keep(l);
		assert_int_not_equal(mark, 0);
		if (who == ANOTHER_DIED) {
			kill_holder(hold(A, 1));
		} else if (who != NOBODY) {
			assert_ok(ws_locks_take("locks", A, 1, 0, NULL, &other, NULL), NULL);
			if (who == THE_SAME_PROCESS)
				(void)ws_locks_keep(other);
			else
				ws_locks_drop(other);
		}
		assert_ok(ws_locks_take("locks", BA, 2, 0, NULL, &l, NULL), NULL);
		assert_int_equal(ws_locks_kept(l, A[0], mark), who == NOBODY);
		assert_true(ws_locks_kept(l, BA[0], mark));
		assert_false(ws_locks_kept(l, BA[0], 0));
		assert_false(ws_locks_again("locks", A[0], mark, &other)); /* it is in use */
		ws_locks_drop(other);
		ws_locks_drop(l);
		assert_false(ws_locks_again("locks", A[0], mark, &other));
		ws_locks_drop(other);
	}
}

SCRATCH_TEST(a_name_is_a_plain_file_name_however_the_host_is_called)
{
	char name[WS_LOCK_NAME], url[300] = "http://";
	assert_int_equal(ws_lock_name("http://[fe80::1]:9", name, NULL), 0);
	assert_null(strchr(name, '/'));
	memset(url + 7, 'a', 250);
	assert_int_equal(ws_lock_name(url, name, NULL), 0);
	assert_true(strlen(name) < WS_LOCK_NAME);
	assert_int_equal(ws_lock_name("http://a:65535", name, NULL), 0);
	assert_string_equal(name, "a:65535.lock");
}

SCRATCH_TEST(a_place_that_cannot_be_written_is_a_system_error)
{
	struct ws_locks *l = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_locks_take("/proc/none/locks", A, 1, 0, NULL, &l, &err), -1);
	assert_int_equal(err.code, WS_ESYSTEM);
}

RUN_TESTS(NULL, NULL)
