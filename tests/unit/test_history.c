/* SPDX-License-Identifier: Apache-2.0 */
/* The history of pushes: what was written is read, and what cannot be read is skipped. */
#include "scratch.h"
#include "test.h"
#include "wsync/tool/history.h"

#include <sys/stat.h>
#include <unistd.h>

static void add(const char *dir, const char *version, const char *url, double coverage)
{
	struct ws_history_endpoint e = { .url = url, .ok = true, .state = WS_COMMITTED,
		                         .coverage = coverage, .message = "" };
	const struct ws_history_push p = { .began = 1, .ended = 2, .source = "ckpt",
		                           .weight_version = version, .verify = "hash",
		                           .code = "ok", .message = "", .endpoints = &e,
		                           .n_endpoints = 1 };
	ws_history_add(dir, &p);
}

static const struct ws_history_push *last(const char *dir, const char *url, struct ws_history *h,
                                          const struct ws_history_endpoint **part)
{
	struct ws_err err;
	*part = NULL;
	assert_int_equal(ws_history_read(dir, h, &err), 0);
	return ws_history_last(h, url, part);
}

TEST(the_last_push_to_each_endpoint_is_found)
{
	struct ws_history h;
	const struct ws_history_endpoint *part;
	(void)state;
	assert_null(last("state", "http://a:1", &h, &part));
	ws_history_free(&h);
	add("state", "1", "http://a:1", 99.5);
	add("state", "2", "http://a:1", 100);
	add("state", "3", "http://b:1", -1);
	const struct ws_history_push *p = last("state", "http://a:1", &h, &part);
	assert_non_null(p);
	assert_string_equal(p->weight_version, "2");
	assert_string_equal(p->source, "ckpt");
	assert_int_equal(p->pid, getpid());
	assert_int_equal(p->uid, geteuid());
	assert_true(part->coverage == 100 && part->ok && part->state == WS_COMMITTED);
	assert_non_null(ws_history_last(&h, "http://b:1", &part));
	assert_true(part->coverage < 0);
	assert_null(ws_history_last(&h, "http://c:1", &part));
	ws_history_free(&h);
}

/* A link must lead no line elsewhere, and nobody else tells what was pushed. */
TEST(a_history_has_no_passwords)
{
	struct ws_history_endpoint e = { .url = "http://a:1", .coverage = -1,
		                         .message = "no s3://u:SE CRET@b/x" };
	const struct ws_history_push p = { .ended = 1, .source = "http://u:SECRET@h/ckpt",
		                           .verify = "hash",
		                           .weight_version = "u:SECRET@h", .code = "reach",
		                           .message = "GET http://u:SE(CRET@h", .endpoints = &e,
		                           .n_endpoints = 1 };
	const struct ws_history_endpoint *part;
	struct ws_history h;
	(void)state;
	ws_history_add("state", &p);
	const struct ws_history_push *found = last("state", "http://a:1", &h, &part);
	assert_non_null(found);
	assert_string_equal(found->source, "http://***@h/ckpt");
	assert_string_equal(found->weight_version, "u:***@h");
	assert_string_equal(found->message, "GET http://***@h");
	assert_string_equal(part->message, "no s3://***@b/x");
	ws_history_free(&h);
}

TEST(a_history_of_others_is_neither_written_nor_read)
{
	struct ws_history h;
	const struct ws_history_endpoint *part;
	(void)state;
	add("others", "1", "http://a:1", -1);
	assert_int_equal(rename("others/history.jsonl", "elsewhere"), 0);
	assert_int_equal(symlink("../elsewhere", "others/history.jsonl"), 0);
	assert_null(last("others", "http://a:1", &h, &part));
	ws_history_free(&h);
	add("others", "2", "http://z:1", -1);
	assert_int_equal(unlink("others/history.jsonl"), 0);
	assert_int_equal(rename("elsewhere", "others/history.jsonl"), 0);
	assert_null(last("others", "http://z:1", &h, &part));
	assert_non_null(ws_history_last(&h, "http://a:1", &part));
	ws_history_free(&h);
	assert_int_equal(chmod("others/history.jsonl", 0666), 0);
	assert_null(last("others", "http://a:1", &h, &part));
	ws_history_free(&h);
}

TEST(lines_that_are_no_push_are_skipped)
{
	struct ws_history h;
	const struct ws_history_endpoint *part;
	(void)state;
	add("state", "1", "http://a:1", -1);
	FILE *f = fopen("state/history.jsonl", "a");
	fputs("{\n[1]\n{\"endpoints\":7}\n{\"endpoints\":[7,{\"url\":3}]}\n\n", f);
	fclose(f);
	add("state", "2", "http://b:1", -1);
	f = fopen("state/history.jsonl", "a");
	fputs("{\"endpoints\":[{\"url\":\"http://a:1\"}]", f); /* cut short */
	fclose(f);
	assert_string_equal(last("state", "http://a:1", &h, &part)->weight_version, "1");
	assert_string_equal(ws_history_last(&h, "http://b:1", &part)->weight_version, "2");
	ws_history_free(&h);
}

TEST(a_large_file_makes_room_for_a_new_one)
{
	struct ws_history h;
	const struct ws_history_endpoint *part;
	struct stat st;
	(void)state;
	add("state", "1", "http://a:1", -1);
	assert_int_equal(truncate("state/history.jsonl", (1 << 20) + 1), 0);
	add("state", "2", "http://b:1", -1);
	assert_int_equal(stat("state/history.jsonl", &st), 0);
	assert_true(st.st_size < 4096);
	assert_non_null(last("state", "http://b:1", &h, &part));
	ws_history_free(&h);
}

RUN_TESTS(scratch_enter, scratch_leave)
