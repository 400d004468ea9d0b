/* SPDX-License-Identifier: Apache-2.0 */
/* Records of pushes: written, read back, and not believed where they should not be. */
#include "file.h"
#include "journal_core.h"
#include "process_id.h"
#include "wsync/tool/deeds.h"
#include "wsync/tool/staged.h"

#include "scratch.h"
#include "test.h"

#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <time.h>

static const char *const URLS[] = { "http://gpu7:30000", "http://gpu8:30000", "http://gpu9:30000" };
static const char *const SOURCE[] = { "ckpt/step 1", "synthetic:tiny:7" };
static const char *const ARGS[] = { "--quantize=fp8", "--no-stdin" };

static const uint64_t FILE_ID = UINT64_C(0x00000000deadbeef);
static const struct ws_journal_sent ALL = {
	.digest = 1, .tensors = 32, .bytes = 4096, .whole = true
};
static const struct ws_journal_sent PART = { .digest = 1, .tensors = 32, .bytes = 4096 };

static struct ws_journal *begin(void)
{
	struct ws_journal *l = NULL;
	assert_int_equal(ws_journal_open("state", URLS, 3, &l, NULL), 0);
	struct ws_journal_record *r = ws_journal_record(l);
	assert_int_equal(ws_journal_source(l, SOURCE, 2, "v7", NULL), 0);
	r->group = "wsync-01234567";
	r->master_host = "10.0.0.7";
	r->master_port = 30123;
	r->digest = UINT64_C(0x123456789abcdef0);
	r->tensors = 32;
	r->bytes = 4096;
	assert_int_equal(ws_journal_add_file(l, "ckpt/step 1/a.safetensors", &FILE_ID, NULL), 0);
	assert_int_equal(ws_journal_add_file(l, "cuda-ipc:w.json", NULL, NULL), 0);
	r->directory = "/work";
	r->args = ARGS;
	r->n_args = 2;
	r->endpoints[0] = (struct ws_journal_endpoint){ URLS[0],
		                                        WS_PHASE_TRANSFER,
		                                        WS_PARTIAL,
		                                        true,
		                                        true,
		                                        WS_UPDATE_SESSION,
		                                        "v6",
		                                        UINT64_C(0xfedcba9876543210),
		                                        true,
		                                        WS_MEMORY_KV_CACHE | WS_MEMORY_CUDA_GRAPH,
		                                        0, false, false, false };
	r->endpoints[1].paused = true;
	return l;
}

static void settle(const char *own, const char *const *urls, size_t n,
                   const struct ws_journal_sent *sent)
{
	struct ws_journal_list list;
	assert_int_equal(ws_journal_list("state", &list, NULL), 0);
	ws_journal_clear(&list, own, urls, n, sent);
	ws_journal_list_free(&list);
}

static size_t count_files(void)
{
	size_t n = 0;
	DIR *d = opendir("state/pushes");
	for (struct dirent *e; d && (e = readdir(d));)
		n += e->d_name[0] != '.';
	if (d)
		closedir(d);
	return n;
}

static struct ws_journal_entry *only(struct ws_journal_list *list)
{
	assert_int_equal(ws_journal_list("state", list, NULL), 0);
	assert_int_equal(list->n, 1);
	return &list->items[0];
}

SCRATCH_TEST(what_is_written_is_read)
{
	struct ws_journal_list list;
	struct ws_journal *l = begin();
	assert_int_equal(count_files(), 0);
	assert_int_equal(ws_journal_save(l, NULL), 0);
	const struct ws_journal_entry *e = only(&list);
	assert_int_equal(e->err.code, WS_OK);
	assert_int_equal(e->fate, WS_PROCESS_ALIVE);
	const struct ws_journal_record *r = &e->record;
	assert_int_equal(r->process.pid, getpid());
	assert_string_equal(r->group, "wsync-01234567");
	assert_string_equal(r->master_host, "10.0.0.7");
	assert_int_equal(r->master_port, 30123);
	assert_true(r->digest == UINT64_C(0x123456789abcdef0));
	assert_true(r->tensors == 32 && r->bytes == 4096);
	assert_string_equal(r->weight_version, "v7");
	assert_true(r->n_files == 2);
	assert_string_equal(r->files[0].path, "ckpt/step 1/a.safetensors");
	assert_true(!r->files[0].in_memory && r->files[0].id == FILE_ID && r->files[1].in_memory);
	assert_int_equal(r->n_sources, 2);
	assert_string_equal(r->sources[0], SOURCE[0]);
	assert_string_equal(r->directory, "/work");
	assert_int_equal(r->n_args, 2);
	assert_string_equal(r->args[1], ARGS[1]);
	assert_int_equal(r->n_endpoints, 3);
	assert_int_equal(r->endpoints[0].phase, WS_PHASE_TRANSFER);
	assert_int_equal(r->endpoints[0].state, WS_PARTIAL);
	assert_string_equal(r->endpoints[0].version, "v6");
	assert_true(r->endpoints[0].instance == UINT64_C(0xfedcba9876543210));
	assert_true(r->endpoints[1].paused && !r->endpoints[2].paused && !r->endpoints[1].instance);
	assert_int_equal(r->staged.stage, WS_STAGE_NONE);
	assert_true(r->endpoints[0].slept && !r->endpoints[1].slept);
	assert_int_equal(r->endpoints[0].asleep, WS_MEMORY_KV_CACHE | WS_MEMORY_CUDA_GRAPH);
	ws_journal_list_free(&list);
	ws_journal_abandon(l);
	assert_int_equal(count_files(), 0);
}

SCRATCH_TEST(a_staged_update_is_written_and_found_and_stays)
{
	struct ws_journal_list list;
	struct ws_journal *l = begin();
	struct ws_journal_record *r = ws_journal_record(l);
	size_t k = 9;
	for (size_t i = 0; i < 3; i++)
		r->endpoints[i] = (struct ws_journal_endpoint){ .url = URLS[i], .version = "" };
	r->endpoints[1].open_update = WS_UPDATE_DISK;
	r->staged = (struct ws_journal_staged){ .stage = WS_STAGE_LAST, .whole = true,
		                                .model_path = "/there/w", .load_format = "auto",
		                                .written = "/w", .keep = 3 };
	assert_int_equal(ws_journal_save(l, NULL), 0);
	r->staged.stage = WS_STAGE_DONE;
	ws_journal_close(l, NULL);
	const struct ws_journal_entry *e = only(&list);
	assert_int_equal(e->err.code, WS_OK);
	assert_int_equal(e->record.n_endpoints, 1);
	assert_int_equal(e->record.endpoints[0].open_update, WS_UPDATE_DISK);
	assert_int_equal(e->record.staged.stage, WS_STAGE_DONE);
	assert_true(e->record.staged.whole && !e->record.staged.checked);
	assert_string_equal(e->record.staged.model_path, "/there/w");
	assert_string_equal(e->record.staged.load_format, "auto");
	assert_string_equal(e->record.staged.written, "/w");
	assert_true(!e->record.staged.used && e->record.staged.keep == 3);
	assert_true(ws_staged_waits(&e->record, &e->record.endpoints[0]));
	assert_ptr_equal(ws_staged_at(&list, URLS[1], &k), e);
	assert_int_equal(k, 0);
	assert_null(ws_staged_at(&list, URLS[0], &k));
	ws_journal_list_free(&list);
}

SCRATCH_TEST(a_push_that_leaves_nothing_leaves_no_file)
{
	struct ws_journal *l = begin();
	struct ws_journal_record *r = ws_journal_record(l);
	assert_int_equal(ws_journal_save(l, NULL), 0);
	r->endpoints[0].state = WS_COMMITTED;
	r->endpoints[0].paused = r->endpoints[0].grouped = r->endpoints[1].paused = false;
	r->endpoints[0].open_update = WS_UPDATE_NONE;
	r->endpoints[0].asleep = 0;
	ws_journal_close(l, NULL);
	assert_int_equal(count_files(), 0);
}

SCRATCH_TEST(what_is_left_stays_and_the_push_has_ended)
{
	struct ws_journal_list list;
	struct ws_journal *l = begin();
	assert_int_equal(ws_journal_save(l, NULL), 0);
	ws_journal_close(l, NULL);
	struct ws_journal_entry *e = only(&list);
	assert_int_equal(e->fate, WS_PROCESS_DEAD);
	assert_int_equal(e->record.n_endpoints, 2); /* the third owes nothing */
	const char *const second[] = { "http://gpu8:30000" };
	assert_int_equal(ws_journal_forget(e, second, 1, NULL), 0);
	ws_journal_list_free(&list);
	e = only(&list);
	assert_int_equal(e->record.n_endpoints, 1);
	assert_string_equal(e->record.endpoints[0].url, URLS[0]);
	assert_int_equal(ws_journal_forget(e, NULL, 0, NULL), 0);
	assert_int_equal(count_files(), 0);
	assert_int_equal(ws_journal_forget(e, NULL, 0, NULL), 0); /* it has gone: fine */
	ws_journal_list_free(&list);
}

SCRATCH_TEST(a_record_in_memory_goes_the_same_way)
{
	struct ws_journal_list left = { 0 };
	struct ws_journal *l = begin();
	assert_int_equal(ws_journal_save(l, NULL), 0);
	assert_int_equal(count_files(), 1);
	ws_journal_to_memory(l);
	assert_null(ws_journal_path(l));
	assert_int_equal(ws_journal_save(l, NULL), 0);
	assert_int_equal(count_files(), 0);
	ws_journal_close(l, &left);
	assert_int_equal(left.n, 1);
	assert_int_equal(left.items[0].fate, WS_PROCESS_DEAD);
	assert_int_equal(left.items[0].record.n_endpoints, 2);
	struct ws_journal_endpoint now = left.items[0].record.endpoints[0];
	now.grouped = false;
	now.open_update = WS_UPDATE_NONE;
	assert_int_equal(ws_journal_change(&left.items[0], &now, 1, NULL), 0);
	ws_journal_clear(&left, NULL, URLS, 3, &PART);
	assert_int_equal(left.items[0].record.n_endpoints, 2);
	assert_false(left.items[0].record.endpoints[0].grouped);
	assert_true(left.items[0].record.endpoints[0].slept); /* until a wake is answered */
	ws_journal_clear(&left, NULL, URLS, 3, &ALL);
	assert_int_equal(left.n, 0);
	ws_journal_list_free(&left);
}

SCRATCH_TEST(settling_leaves_groups_to_be_left)
{
	struct ws_journal_list list;
	struct ws_journal *l = begin();
	assert_int_equal(ws_journal_save(l, NULL), 0);
	ws_journal_close(l, NULL);
	settle("", URLS, 3, &PART);
	assert_int_equal(only(&list)->record.n_endpoints, 2);
	assert_int_equal(list.items[0].record.endpoints[0].state, WS_PARTIAL);
	assert_true(list.items[0].record.endpoints[0].slept); /* until a wake is answered */
	char *path = strdup(list.items[0].path);
	ws_journal_list_free(&list);
	settle(path, URLS, 3, &ALL); /* its own */
	assert_int_equal(only(&list)->record.n_endpoints, 2);
	ws_journal_list_free(&list);
	free(path);
	settle("", URLS, 3, &ALL);
	const struct ws_journal_record *r = &only(&list)->record;
	assert_int_equal(r->n_endpoints, 1);
	assert_true(r->endpoints[0].grouped && !r->endpoints[0].paused);
	assert_int_equal(r->endpoints[0].state, WS_UNTOUCHED);
	assert_int_equal(r->endpoints[0].phase, WS_PHASE_DESTROY);
	assert_true(!r->endpoints[0].slept && !r->endpoints[0].asleep);
	assert_string_equal(r->endpoints[0].version, "v6");
	ws_journal_list_free(&list);
}

/* A push that succeeds holds the locks of its endpoints, so no other is at work there. */
SCRATCH_TEST(records_are_settled_whatever_became_of_their_process)
{
	struct ws_journal_list list;
	struct ws_journal *l = begin();
	strcpy(ws_journal_record(l)->process.pid_namespace, "pid:[1]");
	assert_int_equal(ws_journal_save(l, NULL), 0);
	assert_int_equal(only(&list)->fate, WS_PROCESS_ELSEWHERE);
	ws_journal_list_free(&list);
	settle("", URLS, 1, &ALL);
	const struct ws_journal_record *r = &only(&list)->record;
	/* the first has its group to leave, the others are not ours */
	assert_int_equal(r->n_endpoints, 3);
	assert_int_equal(r->endpoints[0].state, WS_UNTOUCHED);
	assert_true(!r->endpoints[0].paused && r->endpoints[1].paused);
	ws_journal_list_free(&list);
	ws_journal_abandon(l);
}

/* The push goes on, and must not claim again what another has settled. */
SCRATCH_TEST(a_push_hears_that_its_record_was_settled)
{
	struct ws_journal *l = begin();
	struct ws_journal_record *r = ws_journal_record(l);
	ws_journal_reread(l); /* nothing is written yet */
	assert_int_equal(r->endpoints[0].state, WS_PARTIAL);
	assert_int_equal(ws_journal_save(l, NULL), 0);
	ws_journal_reread(l);
	assert_true(r->endpoints[0].state == WS_PARTIAL && r->endpoints[0].paused &&
	            r->endpoints[0].slept);
	settle("", URLS, 3, &ALL);
	ws_journal_reread(l);
	for (size_t i = 0; i < 3; i++)
		assert_true(r->endpoints[i].state == WS_UNTOUCHED && !r->endpoints[i].paused &&
		            !r->endpoints[i].slept && !r->endpoints[i].asleep);
	ws_journal_abandon(l);
}

static unsigned asleep_now(void)
{
	struct ws_journal_list list;
	const struct ws_journal_record *r = &only(&list)->record;
	const unsigned asleep = r->endpoints[0].slept ? r->endpoints[0].asleep : 99;
	ws_journal_list_free(&list);
	return asleep;
}

static void note_memory(const char *url, unsigned memory, bool released)
{
	const struct ws_deed deed = { .url = url, .memory = memory,
		                      .what = released ? WS_DEED_SLEEP : WS_DEED_WAKE };
	struct ws_deeds *deeds = NULL;
	assert_int_equal(ws_deeds_begin("state", NULL, &deed, 1, &deeds, NULL), 0);
	assert_int_equal(ws_deeds_answered(deeds, 0, WS_DONE, NULL), 0);
	ws_deeds_end(deeds);
}

SCRATCH_TEST(memory_that_others_release_or_take_back_is_noted)
{
	struct ws_journal *l = begin();
	/* no record: nothing to correct */
	note_memory(URLS[0], WS_MEMORY_KV_CACHE, false);
	assert_int_equal(count_files(), 0);
	assert_int_equal(ws_journal_save(l, NULL), 0);
	note_memory(URLS[0], WS_MEMORY_KV_CACHE, false);
	assert_int_equal(asleep_now(), WS_MEMORY_CUDA_GRAPH);
	note_memory(URLS[0], WS_MEMORY_WEIGHTS, true);
	assert_int_equal(asleep_now(), WS_MEMORY_CUDA_GRAPH | WS_MEMORY_WEIGHTS);
	/* another endpoint */
	note_memory("http://gpu9:1", WS_MEMORY_CUDA_GRAPH, false);
	assert_int_equal(asleep_now(), WS_MEMORY_CUDA_GRAPH | WS_MEMORY_WEIGHTS);
	ws_journal_reread(l);
	assert_int_equal(ws_journal_record(l)->endpoints[0].asleep,
	                 WS_MEMORY_CUDA_GRAPH | WS_MEMORY_WEIGHTS);
	ws_journal_abandon(l);
}

/* 127.0.0.1 and 127.0.0.2 share a lock, but may be two servers. localhost is 127.0.0.1. */
SCRATCH_TEST(another_loopback_address_is_another_endpoint)
{
	static const char *const local[] = { "http://localhost:30000" },
				 *const other[] = { "http://127.0.0.2:30000" },
				 *const address[] = { "http://127.0.0.1:30000" };
	struct ws_journal_list list;
	struct ws_journal *l = begin();
	struct ws_journal_endpoint *e = &ws_journal_record(l)->endpoints[0];
	e->url = local[0];
	e->grouped = false;
	e->open_update = WS_UPDATE_NONE;
	assert_int_equal(ws_journal_save(l, NULL), 0);
	note_memory(*other, WS_MEMORY_CUDA_GRAPH, false);
	assert_int_equal(asleep_now(), WS_MEMORY_KV_CACHE | WS_MEMORY_CUDA_GRAPH);
	note_memory(*address, WS_MEMORY_WEIGHTS, true);
	assert_int_equal(asleep_now(), WS_MEMORY_ALL);
	settle("", other, 1, &ALL);
	assert_int_equal(ws_journal_forget(only(&list), other, 1, NULL), 0);
	ws_journal_list_free(&list);
	assert_int_equal(only(&list)->record.endpoints[0].state, WS_PARTIAL);
	ws_journal_list_free(&list);
	settle("", address, 1, &ALL);
	assert_string_not_equal(only(&list)->record.endpoints[0].url, local[0]);
	ws_journal_list_free(&list);
	ws_journal_abandon(l);
}

SCRATCH_TEST(woken_weights_are_none_until_a_push_brings_them)
{
	struct ws_journal_list list;
	struct ws_journal *l = begin();
	ws_journal_record(l)->endpoints[0].state = WS_UNTOUCHED;
	ws_journal_record(l)->endpoints[0].asleep = WS_MEMORY_WEIGHTS;
	assert_int_equal(ws_journal_save(l, NULL), 0);
	note_memory(URLS[0], WS_MEMORY_WEIGHTS, false);
	assert_int_equal(only(&list)->record.endpoints[0].state, WS_PARTIAL);
	ws_journal_list_free(&list);
	assert_int_equal(asleep_now(), 0);
	ws_journal_abandon(l);
}

SCRATCH_TEST(only_caches_that_a_push_left_released_are_owed)
{
	struct ws_journal_endpoint e = { .url = URLS[0], .slept = true,
		                         .asleep = WS_MEMORY_KV_CACHE };
	assert_false(ws_journal_owes(&e)); /* as the push found it */
	e.state = WS_COMMITTED;
	assert_true(ws_journal_owes(&e));
	e.asleep = 0;
	assert_false(ws_journal_owes(&e));
}

SCRATCH_TEST(a_killed_process_is_dead_and_its_id_is_not_enough)
{
	struct ws_process self, other;
	ws_process_self(&self);
	assert_true(self.start_ticks > 0);
	assert_int_equal(ws_process_fate(&self), WS_PROCESS_ALIVE);
	other = self;
	other.start_ticks++; /* the id was given to another */
	assert_int_equal(ws_process_fate(&other), WS_PROCESS_DEAD);
	other = self;
	strcpy(other.boot_id, "another"); /* the machine was started anew */
	assert_int_equal(ws_process_fate(&other), WS_PROCESS_DEAD);
	strcpy(other.host, "elsewhere");
	assert_int_equal(ws_process_fate(&other), WS_PROCESS_ELSEWHERE);
	other = self;
	strcpy(other.pid_namespace, "pid:[1]");
	assert_int_equal(ws_process_fate(&other), WS_PROCESS_ELSEWHERE);
	other = self;
	other.pid = fork();
	if (other.pid == 0)
		_exit(0);
	other.start_ticks = 0;
	siginfo_t info;
	waitid(P_PID, (id_t)other.pid, &info, WEXITED | WNOWAIT);
	assert_int_equal(ws_process_fate(&other), WS_PROCESS_DEAD); /* a zombie */
	waitpid((pid_t)other.pid, NULL, 0);
	assert_int_equal(ws_process_fate(&other), WS_PROCESS_DEAD);
}

SCRATCH_TEST(the_name_of_a_process_cannot_forge_its_start)
{
	char s;
	uint64_t ticks;
	assert_int_equal(
		ws_process_stat("7 (a) R) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 4242 20\n",
	                        &s, &ticks),
		0);
	assert_int_equal(s, 'S');
	assert_true(ticks == 4242);
	static const char *const bad[] = { "", "7", "7 (a", "7 (a)", "7 (a) S", "7 (a) S 1 2 3",
		"7 (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 x 20",
		"7 (a) S 1 2 3 4 5 6 7 8 9 10 11 12 13 14 15 16 17 18 99999999999999999999999 20" };
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++)
		assert_int_equal(ws_process_stat(bad[i], &s, &ticks), -1);
}

/* One file of this content; the sentence about it. */
static void expect_disbelief(const char *text, const char *part)
{
	struct ws_journal_list list;
	assert_int_equal(ws_file_mkdirs("state/pushes", NULL), 0);
	assert_int_equal(ws_file_replace("state/pushes/x.json", text, strlen(text), 0600, NULL), 0);
	const struct ws_journal_entry *e = only(&list);
	assert_int_equal(e->err.code, WS_EINPUT);
	assert_non_null(strstr(e->err.msg, "state/pushes/x.json: "));
	if (!strstr(e->err.msg, part))
		fail_msg("'%s' is not in: %s", part, e->err.msg);
	ws_journal_list_free(&list);
}

SCRATCH_TEST(a_file_that_is_no_record_is_said_and_left)
{
	expect_disbelief("", "not JSON");
	expect_disbelief("{\"schema\":1", "not JSON");
	expect_disbelief("[]", "no record");
	expect_disbelief("{\"schema\":1}", "'process'");
	expect_disbelief("{\"schema\":3}", "newer wsync");
	expect_disbelief("{\"schema\":1,\"schema\":1}", "no record");
	assert_int_equal(count_files(), 1);
}

/* Text with the first `from` replaced; parsed. */
static int parse_twisted(const char *text, const char *from, const char *to,
                         struct ws_journal_record *out, void **priv)
{
	struct ws_buf bad;
	const char *at = strstr(text, from);
	assert_non_null(at);
	ws_buf_init(&bad, 1 << 16);
	ws_buf_add(&bad, text, (size_t)(at - text));
	ws_buf_puts(&bad, to);
	ws_buf_puts(&bad, at + strlen(from));
	const int rc = ws_journal_parse("f", bad.data, bad.len, out, priv, NULL);
	ws_buf_free(&bad);
	return rc;
}

/* Which push completes what another has left. */
SCRATCH_TEST(only_the_same_plan_or_a_whole_one_completes_a_push)
{
	struct ws_journal_endpoint e = { .url = URLS[0], .state = WS_PARTIAL };
	struct ws_journal_record r = { .digest = 7, .tensors = 32, .bytes = 4096 };
#define SENT(d, t, b, w, c) \
	{ .digest = d, .tensors = t, .bytes = b, .whole = w, .checked = c }
	static const struct {
		struct ws_journal_sent sent;
		bool completes;
	} cases[] = {
		{ SENT(7, 32, 4096, false, false), true },
		{ SENT(7, 32, 4096, true, false), true },
		{ SENT(7, 31, 4095, false, false), false }, /* fewer senders of one group */
		{ SENT(8, 32, 4096, false, false), false },
		{ SENT(8, 99, 9999, false, true), false },
		{ SENT(8, 32, 4096, true, false), true },
		{ SENT(8, 31, 9999, true, false), false },
		{ SENT(8, 99, 4095, true, false), false },
		{ SENT(8, 3, 12, true, true), true },
	};
#undef SENT
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		assert_int_equal(ws_journal_completes(&cases[i].sent, &r, &e), cases[i].completes);
	e.inherited = true; /* another record says what is missing */
	assert_true(ws_journal_completes(&PART, &r, &e));
	e.state = WS_UNTOUCHED;
	assert_false(ws_journal_completes(&PART, &r, &e));
	assert_true(ws_journal_completes(&ALL, &r, &e));
}

SCRATCH_TEST(a_smaller_push_leaves_the_record_of_a_mixture)
{
	struct ws_journal_list list;
	struct ws_journal_sent few = ALL;
	struct ws_journal *l = begin();
	assert_int_equal(ws_journal_save(l, NULL), 0);
	ws_journal_close(l, NULL);
	few.tensors = 3;
	settle("", URLS, 3, &few);
	const struct ws_journal_record *r = &only(&list)->record;
	assert_int_equal(r->n_endpoints, 1); /* the other one was only paused */
	assert_true(r->endpoints[0].state == WS_PARTIAL && r->endpoints[0].paused);
	assert_true(r->tensors == 32 && r->bytes == 4096 && r->n_files == 2);
	ws_journal_list_free(&list);
}

/* A record of a push of this file, as version 7; the sentence where it is not repeated. */
static int check_source(const struct ws_journal_file *f, const char *directory, struct ws_err *err)
{
	struct ws_journal_endpoint e = { .url = URLS[0], .state = WS_PARTIAL };
	const struct ws_journal_record r = { .process.pid = 4711, .weight_version = "7",
		                             .directory = directory, .files = f,
		                             .n_files = f ? 1 : 0, .endpoints = &e,
		                             .n_endpoints = 1 };
	*err = (struct ws_err)WS_ERR_INIT;
	return ws_journal_check_source(&r, err);
}

SCRATCH_TEST(a_source_that_changed_is_not_pushed_again)
{
	struct ws_journal_file f = { .path = "a" };
	struct ws_file_id id;
	struct ws_err err;
	char cwd[4096];
	assert_non_null(getcwd(cwd, sizeof cwd));
	put_text("a", "first");
	const int fd = ws_file_open("a", &id, NULL);
	assert_true(fd >= 0);
	close(fd);
	f.id = ws_file_id_hash(&id);
	assert_int_equal(check_source(NULL, "/", &err), 0); /* a synthetic model */
	assert_int_equal(check_source(&f, cwd, &err), 0);
	put_text("b", "first");
	assert_int_equal(rename("b", "a"), 0);
	assert_fails(check_source(&f, cwd, &err), &err, WS_EINPUT,
	             "/a: the file changed after process 4711 pushed it as version 7");
	assert_string_equal(
		err.hint, "push the version that you mean: wsync-push SOURCE -e http://gpu7:30000 "
			  "--weight-version VERSION");
	assert_int_equal(unlink("a"), 0);
	assert_fails(check_source(&f, cwd, &err), &err, WS_EINPUT, "");
	assert_non_null(strstr(err.hint, "wsync-push SOURCE"));
	f = (struct ws_journal_file){ .path = "cuda-ipc:w.json", .in_memory = true };
	assert_fails(check_source(&f, cwd, &err), &err, WS_EINPUT,
	             "cuda-ipc:w.json: the memory may hold other weights than when process 4711");
}

/* Every prefix of a record, and a record with each of its values replaced in turn. */
SCRATCH_TEST(a_cut_or_twisted_record_is_refused_or_whole)
{
	struct ws_buf text;
	struct ws_journal *l = begin();
	ws_buf_init(&text, 1 << 16);
	ws_journal_print(ws_journal_record(l), &text);
	for (size_t n = 0; n + 1 < text.len; n++) {
		struct ws_journal_record r;
		void *priv;
		assert_int_equal(ws_journal_parse("f", text.data, n, &r, &priv, NULL), -1);
	}
	static const char *const twists[][2] = {
		{ "\"transfer\"", "\"dance\"" },
		{ "\"partial\"", "\"perfect\"" },
		{ "http://gpu7", "file:///x" },
		{ "http://gpu8:30000", "HTTP://gpu8:30000/" },
		{ "\"--quantize=fp8\"", "\"/etc/passwd\"" },
		{ "\"--no-stdin\"", "\"--\"" },
		{ "\"/work\"", "\"work\"" },
		{ "\"/work\"", "17" },
		{ "123456789abcdef0", "123456789abcdefg" },
		{ "\"ended\":false", "\"ended\":0" },
		{ "\"paused\":true", "\"paused\":1" },
		{ "\"pid\":", "\"pid\":-" },
		{ "\"pid\":", "\"pid\":1.5e" },
		{ "\"boot_id\":\"", "\"boot_id\":\"0123456789012345678901234567890123456789" },
		{ "30123", "0" },
		{ "30123", "70000" },
		{ "\"10.0.0.7\"", "17" },
		{ "\"port\"", "\"prot\"" },
		{ "\"sources\":[", "\"sources\":[null," },
		{ "\"kv_cache,cuda_graph\"", "\"cuda_graph,kv_cache\"" },
		{ "\"kv_cache,cuda_graph\"", "\"kv\"" },
		{ "\"kv_cache,cuda_graph\"", "6" },
		{ "\"kv_cache,cuda_graph\"", "[]" },
		{ "\"tensors\":32", "\"tensors\":-1" },
		{ "\"bytes\":4096", "\"bytes\":\"4096\"" },
		{ "\"files\":[", "\"files\":[17," },
		{ "\"id\":null", "\"id\":\"\"" },
		{ "00000000deadbeef", "deadbeef" },
		{ "\"ckpt/step 1/a.safetensors\"", "\"\"" },
		{ "\"inherited\":false", "\"inherited\":0" },
		{ "\"instance\":\"fedcba9876543210\"", "\"instance\":7" },
		{ "\"weight_version\"", "\"staged\":{},\"weight_version\"" },
		{ ",\"inherited\":false", "" },
		{ ",\"asleep\":\"kv_cache,cuda_graph\"", "" },
		{ ",\"tensors\":32", "" },
		{ ",\"bytes\":4096", "" },
		{ "\"files\"", "\"fires\"" },
	};
	for (size_t i = 0; i < sizeof twists / sizeof *twists; i++) {
		struct ws_journal_record r;
		void *priv;
		assert_int_equal(parse_twisted(text.data, twists[i][0], twists[i][1], &r, &priv),
		                 -1);
	}
	ws_buf_free(&text);
	ws_journal_abandon(l);
}

SCRATCH_TEST(what_others_can_write_is_not_believed)
{
	struct ws_journal_list list;
	struct ws_err err = WS_ERR_INIT;
	struct ws_journal *l = begin();
	assert_int_equal(ws_journal_save(l, NULL), 0);
	char *path = strdup(only(&list)->path);
	ws_journal_list_free(&list);
	assert_int_equal(chmod(path, 0620), 0);
	const struct ws_journal_entry *e = only(&list);
	assert_int_equal(e->err.code, WS_EINPUT);
	assert_non_null(strstr(e->err.msg, "others can write it"));
	ws_journal_list_free(&list);
	assert_int_equal(chmod(path, 0600), 0);
	if (geteuid() == 0) { /* only root can give a file away */
		assert_int_equal(chown(path, 65534, 65534), 0);
		e = only(&list);
		assert_non_null(strstr(e->err.msg, "belongs to another user"));
		ws_journal_list_free(&list);
		assert_int_equal(chown(path, 0, 0), 0);
	}
	assert_int_equal(rename(path, "elsewhere.json"), 0);
	assert_int_equal(symlink("../../elsewhere.json", path), 0);
	e = only(&list);
	assert_non_null(strstr(e->err.msg, "is a symbolic link"));
	ws_journal_list_free(&list);
	assert_int_equal(chmod("state/pushes", 0777), 0);
	assert_fails(ws_journal_list("state", &list, &err), &err, WS_EINPUT, "");
	struct ws_journal *second = NULL;
	assert_int_equal(ws_journal_open("state", URLS, 1, &second, &err), -1);
	free(path);
	ws_journal_abandon(l);
}

SCRATCH_TEST(halves_of_files_go_when_they_are_old)
{
	struct ws_journal_list list;
	const pid_t dead = fork();
	if (dead == 0)
		_exit(0);
	assert_int_equal(waitpid(dead, NULL, 0), dead);
	const struct {
		pid_t pid;
		int age;
		bool stays;
	} files[] = { { getpid(), 0, true },      { getpid(), 80000, true },
		      { getpid(), 90000, false }, { dead, 60, true },
		      { dead, 1000, false },      { dead, 90000, false } };
	char names[6][80];
	assert_int_equal(ws_file_mkdirs("state/pushes", NULL), 0);
	for (size_t i = 0; i < 6; i++) {
		const struct timespec at = { .tv_sec = time(NULL) - files[i].age };
		const struct timespec both[2] = { at, at };
		snprintf(names[i], sizeof names[i], "state/pushes/%d-%zu.json.AbCd12",
		         (int)files[i].pid, i);
		assert_int_equal(ws_file_replace(names[i], "{", 1, 0600, NULL), 0);
		assert_int_equal(utimensat(AT_FDCWD, names[i], both, 0), 0);
	}
	assert_int_equal(ws_journal_list("state", &list, NULL), 0);
	assert_int_equal(list.n, 0);
	for (size_t i = 0; i < 6; i++)
		if ((access(names[i], F_OK) == 0) != files[i].stays)
			fail_msg("%s, %d s old", names[i], files[i].age);
	ws_journal_list_free(&list);
}

SCRATCH_TEST(bytes_that_are_no_text_make_it_unrepeatable)
{
	static const char *const odd[] = { "ckpt/\xff" };
	struct ws_journal_list list;
	struct ws_journal *l = begin();
	assert_int_equal(ws_journal_source(l, odd, 1, NULL, NULL), 0);
	assert_int_equal(ws_journal_save(l, NULL), 0);
	const struct ws_journal_entry *e = only(&list);
	assert_int_equal(e->err.code, WS_OK);
	assert_null(e->record.directory);
	ws_journal_list_free(&list);
	ws_journal_abandon(l);
}

SCRATCH_TEST(no_directory_is_no_records)
{
	struct ws_journal_list list;
	assert_int_equal(ws_journal_list("absent", &list, NULL), 0);
	assert_int_equal(list.n, 0);
	ws_journal_list_free(&list);
}

/* New weights with the old weight version: that is owed, also once the push has ended. */
SCRATCH_TEST(a_weight_version_that_was_not_set_is_owed_by_new_weights_only)
{
	static const char *const url[] = { "http://a:1" };
	for (int is = WS_UNTOUCHED; is <= WS_COMMITTED; is++)
		for (int lacks = 0; lacks < 2; lacks++) {
			struct ws_journal *l = NULL;
			struct ws_journal_list list;
			assert_int_equal(ws_journal_open("state", url, 1, &l, NULL), 0);
			struct ws_journal_endpoint *e = ws_journal_record(l)->endpoints;
			e->state = (enum ws_endpoint_state)is;
			e->unlabelled = lacks;
			assert_int_equal(ws_journal_save(l, NULL), 0);
			ws_journal_close(l, NULL);
			assert_int_equal(ws_journal_list("state", &list, NULL), 0);
			const bool owed = is == WS_PARTIAL || (is == WS_COMMITTED && lacks);
			assert_int_equal(list.n, owed);
			for (size_t i = 0; i < list.n; i++) {
				assert_int_equal(list.items[i].record.endpoints[0].unlabelled,
				                 lacks);
				assert_ok(ws_journal_forget(&list.items[i], NULL, 0, NULL), NULL);
			}
			ws_journal_list_free(&list);
		}
}

RUN_TESTS(NULL, NULL)
