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
		                              " 7 host\n" };
	static const char *const words[] = { "", "4711 gpu7\n", "47", "47 " };
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
