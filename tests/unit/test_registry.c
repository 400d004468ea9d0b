/* SPDX-License-Identifier: Apache-2.0 */
/* The registry: what is read, what is kept, and that many writers lose nothing. */
#include "file.h"
#include "registry_file.h"
#include "test.h"
#include "wsync/tool/str.h"

#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

static char dir[64], path[128];

static int set_up(void **state)
{
	(void)state;
	snprintf(dir, sizeof dir, "/tmp/wsync-registry-XXXXXX");
	if (!mkdtemp(dir))
		return -1;
	snprintf(path, sizeof path, "%s/state/wsync/registry.json", dir);
	return 0;
}

static int tear_down(void **state)
{
	(void)state;
	char command[128];
	snprintf(command, sizeof command, "rm -rf '%s'", dir);
	return system(command);
}

#define CASE(f) TEST_BETWEEN(f, set_up, tear_down)

static ws_deadline soon(void)
{
	return ws_deadline_in(5 * WS_NS_PER_S);
}

static struct ws_registry_entry entry(const char *url)
{
	struct ws_registry_entry e = { .pool = WS_POOL_DEFAULT, .world_size = 2, .tp_size = 2,
		                       .dtype = "bfloat16", .served_model = "qwen" };
	struct ws_err err;
	assert_int_equal(ws_endpoint_normalize(url, e.url, sizeof e.url, &err), 0);
	return e;
}

static bool add(const char *url)
{
	struct ws_registry_entry e = entry(url);
	bool updated = false;
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_registry_add(path, &e, soon(), NULL, &updated, &err), &err);
	return updated;
}

static void write_file(const char *text)
{
	struct ws_err err;
	char parent[128];
	snprintf(parent, sizeof parent, "%s/state/wsync", dir);
	assert_int_equal(ws_file_mkdirs(parent, &err), 0);
	assert_int_equal(ws_file_replace(path, text, strlen(text), 0600, &err), 0);
}

CASE(unknown_keys_are_kept)
{
	struct ws_registry r;
	struct ws_err err;
	struct ws_buf text;
	write_file("{\"version\":1,\"note\":{\"a\":[1,2.5,null,true]},\"endpoints\":["
	           "{\"url\":\"http://a:1\",\"rack\":\"r\\u00fc\\n9\"}]}");
	assert_true(add("a:1"));
	add("b:2");
	assert_int_equal(ws_registry_load(path, &r, &err), 0);
	assert_int_equal(r.n, 2);
	ws_buf_init(&text, 0);
	assert_int_equal(registry_print(path, &r, &text, &err), 0);
	assert_non_null(strstr(text.data, "\"note\":{\"a\":[1,2.5,null,true]}"));
	assert_non_null(strstr(text.data, "\"rack\":\"r\303\274\\n9\""));
	ws_buf_free(&text);
	ws_registry_free(&r);
}

CASE(malformed_files_name_the_file_and_the_entry)
{
	static const struct { const char *text, *why; } bad[] = {
		{ "", "not JSON" },
		{ "{", "not JSON" },
		{ "[]", "is no registry" },
		{ "{\"version\":1,\"endpoints\":[],\"note\xe9\":1,\"note\xe8\":2}",
		  "not JSON at byte 33: not UTF-8" },
		{ "{}", "\"version\" is not 1" },
		{ "{\"version\":\"1\"}", "\"version\" is not 1" },
		{ "{\"version\":2,\"endpoints\":[]}", "version 2 is newer" },
		{ "{\"version\":1}", "has no \"endpoints\"" },
		{ "{\"version\":1,\"endpoints\":{}}", "has no \"endpoints\"" },
		{ "{\"version\":1,\"version\":1,\"endpoints\":[]}", "a key twice" },
		{ "{\"version\":1,\"endpoints\":[7]}", "endpoints[0]: is no object" },
		{ "{\"version\":1,\"endpoints\":[{}]}", "endpoints[0]: has no \"url\"" },
		{ "{\"version\":1,\"endpoints\":[{\"url\":\"ftp://x\"}]}",
		  "endpoints[0]: endpoint 'ftp://x'" },
		{ "{\"version\":1,\"endpoints\":[{\"url\":\"a:1\"},{\"url\":\"http://A:1\"}]}",
		  "endpoints[1]: http://a:1 is there twice" },
		{ "{\"version\":1,\"endpoints\":[{\"url\":\"a:1\",\"host\":\"b\"}]}",
		  "\"host\" is not" },
		{ "{\"version\":1,\"endpoints\":[{\"url\":\"a:1\",\"port\":2}]}",
		  "\"port\" is not" },
		{ "{\"version\":1,\"endpoints\":[{\"url\":\"a:1\",\"tp_size\":-1}]}",
		  "\"tp_size\" is no" },
		{ "{\"version\":1,\"endpoints\":[{\"url\":\"a:1\",\"world_size\":\"2\"}]}",
		  "\"world_size\"" },
		{ "{\"version\":1,\"endpoints\":[{\"url\":\"a:1\",\"pool\":\"a b\"}]}",
		  "pool 'a b'" },
		{ "{\"version\":1,\"endpoints\":[{\"url\":\"a:1\",\"dtype\":1}]}",
		  "\"dtype\" is no string" },
		{ "{\"version\":1,\"endpoints\":[{\"url\":\"a:1\",\"url\":\"a:1\"}]}",
		  "a key twice" },
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		struct ws_registry r;
		struct ws_err err = WS_ERR_INIT;
		struct ws_registry_entry e = entry("new:1");
		bool updated;
		write_file(bad[i].text);
		assert_fails(ws_registry_load(path, &r, &err), &err, WS_EINPUT, "");
		if (!strstr(err.msg, bad[i].why) || strncmp(err.msg, path, strlen(path)))
			fail_msg("%s: %s", bad[i].text, err.msg);
		/* A file that cannot be read is not overwritten. */
		assert_int_equal(ws_registry_add(path, &e, soon(), NULL, &updated, &err), -1);
		struct ws_buf text;
		ws_buf_init(&text, 0);
		assert_int_equal(ws_file_read(path, &text, &err), 0);
		assert_string_equal(ws_buf_str(&text), bad[i].text);
		ws_buf_free(&text);
	}
}

CASE(notes_nested_too_deeply_are_refused_not_lost)
{
	struct ws_err err;
	struct ws_registry_entry e = entry("a:1");
	bool updated;
	char text[256] = "{\"version\":1,\"endpoints\":[],\"note\":";
	for (int i = 0; i < 20; i++)
		strcat(text, "[");
	for (int i = 0; i < 20; i++)
		strcat(text, "]");
	strcat(text, "}");
	write_file(text);
	assert_fails(ws_registry_add(path, &e, soon(), NULL, &updated, &err), &err, WS_EINPUT,
	             "\"note\" is nested too deeply");
}

CASE(a_killed_writer_leaves_a_whole_file)
{
	add("first:1");
	for (int round = 0; round < 20; round++) {
		const pid_t pid = fork();
		if (!pid)
			for (int i = 0;; i++) {
				struct ws_registry_entry e = { .pool = "p" };
				bool updated;
				snprintf(e.url, sizeof e.url, "http://h%d:1", i % 50);
				ws_registry_add(path, &e, soon(), NULL, &updated, NULL);
			}
		usleep((useconds_t)(1000 * (round % 7 + 1)));
		kill(pid, SIGKILL);
		waitpid(pid, NULL, 0);
		struct ws_registry r;
		struct ws_err err = WS_ERR_INIT;
		assert_ok(ws_registry_load(path, &r, &err), &err);
		assert_true(r.n >= 1);
		ws_registry_free(&r);
	}
	assert_true(add("first:1"));
}

CASE(a_lock_that_is_held_is_waited_for_until_the_deadline)
{
	struct ws_err err = WS_ERR_INIT;
	char name[160];
	struct ws_registry_entry e = entry("b:1");
	bool updated;
	add("a:1");
	snprintf(name, sizeof name, "%s.lock", path);
	const int fd = ws_file_lock(name, WS_FILE_OWN, soon(), NULL, &err);
	assert_true(fd >= 0);
	assert_fails(ws_registry_add(path, &e, ws_deadline_in(50 * WS_NS_PER_MS), NULL, &updated,
	                             &err), &err, WS_ETIMEOUT, "");
	ws_file_unlock(fd);
}

/* Weights and keys go where it says. */
CASE(a_registry_that_others_can_write_is_not_used)
{
	static const char text[] = "{\"version\":1,\"endpoints\":[{\"url\":\"http://a:1\"}]}";
	struct ws_registry r;
	struct ws_err err;
	char link[192];
	(void)state;
	write_file(text);
	for (mode_t mode = 0602; mode <= 0620; mode += 016) {
		assert_int_equal(chmod(path, mode), 0);
		assert_fails(ws_registry_load(path, &r, &err), &err, WS_EINPUT,
		             "others can write it");
		assert_non_null(strstr(err.hint, "chmod go-w "));
	}
	assert_int_equal(chmod(path, 0644), 0);
	assert_ok(ws_registry_load(path, &r, &err), &err);
	ws_registry_free(&r);
	snprintf(link, sizeof link, "%s/link", dir);
	assert_int_equal(symlink(path, link), 0); /* of this user */
	assert_ok(ws_registry_load(link, &r, &err), &err);
	ws_registry_free(&r);
	if (geteuid() != 0)
		return;
	assert_int_equal(lchown(link, 4711, 4711), 0);
	assert_fails(ws_registry_load(link, &r, &err), &err, WS_EINPUT, "is a symbolic link");
	assert_int_equal(chown(path, 4711, 4711), 0);
	assert_fails(ws_registry_load(path, &r, &err), &err, WS_EINPUT, "belongs to another user");
	assert_non_null(strstr(err.hint, "chown 0 "));
	/* Root runs for the user whose directory it is. */
	char home[192];
	snprintf(home, sizeof home, "%s/state/wsync", dir);
	assert_int_equal(chown(home, 4711, 4711), 0);
	assert_ok(ws_registry_load(path, &r, &err), &err);
	ws_registry_free(&r);
	assert_int_equal(chmod(path, 0664), 0);
	assert_fails(ws_registry_load(path, &r, &err), &err, WS_EINPUT, "others can write it");
	assert_int_equal(chmod(path, 0644), 0);
	assert_int_equal(chmod(home, 01777), 0);
	assert_fails(ws_registry_load(path, &r, &err), &err, WS_EINPUT, "belongs to another user");
	assert_int_equal(chmod(home, 0755), 0);
	assert_int_equal(chown(home, 65534, 65534) || chown(path, 65534, 65534), 0);
	assert_ok(ws_registry_load(path, &r, &err), &err); /* as NFS shows root's */
	ws_registry_free(&r);
}

CASE(a_lock_that_the_group_can_write_says_how_to_mend_it)
{
	struct ws_registry_entry e = entry("a:1");
	struct ws_err err;
	char lock[192], wanted[256];
	bool updated;
	(void)state;
	assert_false(add("b:1"));
	snprintf(lock, sizeof lock, "%s.lock", path);
	snprintf(wanted, sizeof wanted, "run: chmod go-w %s", lock);
	assert_int_equal(chmod(lock, 0664), 0);
	assert_fails(ws_registry_add(path, &e, soon(), NULL, &updated, &err), &err, WS_EINPUT,
	             "others can write it");
	assert_non_null(strstr(err.hint, wanted));
	if (geteuid() != 0)
		return;
	assert_int_equal(chmod(lock, 0600) || chown(lock, 65534, 65534), 0);
	assert_false(add("a:1"));
}

CASE(each_path_behind_a_host_is_an_endpoint)
{
	static const char *const urls[] = { "http://gw:1/a", "http://gw:1", "http://gw:1/b",
		                            "http://gw:1/a/1", "http://localhost:1/a" };
	struct ws_registry r;
	struct ws_registry_entry e = entry("http://127.0.0.1:1/a");
	struct ws_err err;
	bool updated;
	(void)state;
	for (size_t i = 0; i < sizeof urls / sizeof *urls; i++)
		assert_false(add(urls[i]));
	assert_true(add("http://gw:1/b/"));
	assert_fails(ws_registry_add(path, &e, soon(), NULL, &updated, &err), &err, WS_EUSAGE,
	             "registered already, as http://localhost:1/a");
	assert_int_equal(ws_registry_remove(path, "http://gw:1/a", soon(), NULL, &err), 0);
	assert_ok(ws_registry_load(path, &r, &err), &err);
	assert_int_equal(r.n, 4);
	assert_null(ws_registry_find(&r, urls[0]));
	for (size_t i = 1; i < sizeof urls / sizeof *urls; i++)
		assert_string_equal(ws_registry_find(&r, urls[i])->url, urls[i]);
	ws_registry_free(&r);
}

CASE(one_endpoint_has_one_name)
{
	static const char *const names[] = { "localhost", "127.0.0.1", "[::1]" };
	struct ws_err err;
	bool updated;
	char url[64], words[1024];
	(void)state;
	add("http://gpu7:30000");
	for (size_t i = 0; i < 3; i++) {
		snprintf(url, sizeof url, "http://%s:30000", names[i]);
		struct ws_registry_entry first = entry(url);
		add(url);
		snprintf(words, sizeof words, "wsync-register remove %s --registry ",
			         ws_shell_word(url).text);
		for (size_t k = 0; k < 3; k++) {
			snprintf(url, sizeof url, "http://%s:30000/", names[k]);
			struct ws_registry_entry e = entry(url);
			const int rc = ws_registry_add(path, &e, soon(), NULL, &updated, &err);
			assert_int_equal(rc, i == k ? 0 : -1);
			if (i == k)
				continue;
			assert_int_equal(err.code, WS_EUSAGE);
			assert_non_null(strstr(err.msg, "it is registered already, as "));
			if (k < i)
				assert_non_null(strstr(err.hint, words));
		}
		assert_ok(ws_registry_remove(path, first.url, soon(), NULL, &err), &err);
	}
	add("http://127.0.0.1:30000");
	add("http://localhost:30001");
	assert_true(add("http://127.1:30000"));
}

/* Parses n endpoints, finds each of them, and returns the CPU time. */
static int64_t cost_of(size_t n)
{
	struct ws_registry r;
	struct ws_err err = WS_ERR_INIT;
	struct ws_buf text;
	char host[32], url[64];
	ws_buf_init(&text, 0);
	ws_buf_puts(&text, "{\"version\":1,\"endpoints\":[");
	for (size_t i = 0; i < n; i++)
		ws_buf_printf(&text, "%s{\"url\":\"http://h%zu:30000\"}", i ? "," : "",
		              i * 7919 % n);
	ws_buf_puts(&text, "]}");
	const int64_t since = cpu_ns();
	assert_ok(registry_parse("r", ws_buf_str(&text), text.len, &r, &err), &err);
	for (size_t i = 0; i < n; i++) {
		snprintf(host, sizeof host, "h%zu", i);
		snprintf(url, sizeof url, "http://%s:30000", host);
		const struct ws_registry_entry *e = ws_registry_find(&r, url);
		assert_non_null(e);
		assert_string_equal(e->host, host);
	}
	assert_null(ws_registry_find(&r, "http://h0:30001"));
	const int64_t cost = cpu_ns() - since;
	ws_registry_free(&r);
	ws_buf_free(&text);
	return cost;
}

/* Sixteen times the endpoints would cost 256 times as much if all pairs were compared. */
CASE(many_endpoints_are_not_compared_pair_by_pair)
{
	int64_t few = INT64_MAX, many = INT64_MAX;
	(void)state;
	for (int i = 0; i < 3; i++) {
		const int64_t one = cost_of(2000), other = cost_of(32000);
		few = one < few ? one : few;
		many = other < many ? other : many;
	}
	if (many > 80 * few)
		fail_msg("%lld ns and %lld ns", (long long)few, (long long)many);
}

RUN_TESTS(NULL, NULL)
