/* SPDX-License-Identifier: Apache-2.0 */
/* What is known of a server's memory and of pauses by hand: each deed, each outcome. */
#include "journal_core.h"
#include "lock.h"
#include "wsync/tool/deeds.h"

#include "scratch.h"
#include "test.h"

#include <dirent.h>
#include <stdio.h>
#include <sys/stat.h>

enum { W = WS_MEMORY_WEIGHTS, KV = WS_MEMORY_KV_CACHE, ALL = WS_MEMORY_ALL };

static const char URL[] = "http://gpu1:1";
static const struct ws_endpoint_info SGLANG = {
	.instance = 7, .info_path = "/server_info", .can = { .memory = true },
	.identity = { .strength = WS_IDENTITY_SURE }
};
static const struct ws_endpoint_info LATER = { .instance = 8, .info_path = "/server_info",
	                                       .can = { .memory = true } };

static struct ws_deeds *begin(const char *own, const struct ws_deed *deed)
{
	struct ws_deeds *deeds = NULL;
	assert_int_equal(ws_deeds_begin("state", own, deed, 1, &deeds, NULL), 0);
	return deeds;
}

static void by(const char *own, enum ws_deed_what what, unsigned memory,
               const struct ws_endpoint_info *info, enum ws_outcome outcome)
{
	const struct ws_deed deed = { .url = URL, .info = info, .what = what, .memory = memory };
	struct ws_deeds *deeds = begin(own, &deed);
	assert_int_equal(ws_deeds_answered(deeds, 0, outcome, NULL), 0);
	ws_deeds_end(deeds);
}

static void done(enum ws_deed_what what, unsigned memory)
{
	by(NULL, what, memory, &SGLANG, WS_DONE);
}

/* The entries that it points to are gone: only whether they are there counts. */
static struct ws_known known(const struct ws_endpoint_info *info)
{
	struct ws_journal_list list;
	assert_int_equal(ws_journal_list("state", &list, NULL), 0);
	const struct ws_known k = ws_known(&list, URL, info);
	ws_journal_list_free(&list);
	return k;
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

static void expect(unsigned asleep, unsigned unsure)
{
	const struct ws_known k = known(&SGLANG);
	assert_int_equal(k.asleep, asleep);
	assert_int_equal(k.unsure, unsure);
	assert_int_equal(ws_known_readable(&k, &SGLANG), !((asleep | unsure) & W));
	assert_int_equal(ws_known_memory(&k, &SGLANG) != NULL, (asleep | unsure) != 0);
}

/* From each state, each deed with each outcome: what is known while it is asked, and then. */
SCRATCH_TEST(every_deed_is_unsure_until_its_answer)
{
	static const unsigned states[] = { 0, W, KV, W | KV, ALL },
			      masks[] = { W, KV, W | KV, ALL };
	for (unsigned s = 0; s < 5; s++)
		for (unsigned m = 0; m < 4; m++)
			for (unsigned c = 0; c < 6; c++) {
				const enum ws_outcome end = c % 3;
				const bool sleeps = c < 3;
				const unsigned mask = masks[m], was = states[s],
					       asked = sleeps ? mask & ~was : mask,
					       rest = sleeps ? was : was & ~mask;
				const struct ws_deed deed = {
					.url = URL, .info = &SGLANG, .memory = mask,
					.what = sleeps ? WS_DEED_SLEEP : WS_DEED_WAKE };
				if (was)
					done(WS_DEED_SLEEP, was);
				struct ws_deeds *deeds = begin(NULL, &deed);
				expect(rest, asked);
				assert_int_equal(ws_deeds_answered(deeds, 0, end, NULL), 0);
				ws_deeds_end(deeds);
				if (end == WS_UNANSWERED)
					expect(rest, asked);
				else if (end == WS_REFUSED)
					expect(was, 0);
				else
					expect(sleeps ? was | mask : was & ~mask, 0);
				by(NULL, WS_DEED_PAUSE, 0, &LATER, WS_REFUSED); /* a restart */
				assert_int_equal(count_files(), 0);
			}
}

SCRATCH_TEST(a_pause_is_possible_until_it_is_refused_or_a_resume_is_answered)
{
	by(NULL, WS_DEED_PAUSE, 0, &SGLANG, WS_REFUSED);
	assert_null(known(&SGLANG).paused);
	by(NULL, WS_DEED_PAUSE, 0, &SGLANG, WS_UNANSWERED);
	assert_non_null(known(&SGLANG).paused);
	done(WS_DEED_PAUSE, 0);
	by(NULL, WS_DEED_RESUME, 0, &SGLANG, WS_UNANSWERED);
	by(NULL, WS_DEED_RESUME, 0, &SGLANG, WS_REFUSED);
	assert_non_null(known(&SGLANG).paused);
	assert_false(known(&SGLANG).told); /* it says nothing about memory */
	done(WS_DEED_RESUME, 0);
	assert_int_equal(count_files(), 0);
}

/* Pause and sleep, in any order, make one record, which ends with the last of them. */
SCRATCH_TEST(a_release_is_recorded_alike_with_and_without_a_pause)
{
	for (unsigned order = 0; order < 4; order++) {
		if (order & 1)
			done(WS_DEED_PAUSE, 0);
		done(WS_DEED_SLEEP, KV);
		if (order & 2)
			done(WS_DEED_PAUSE, 0);
		assert_int_equal(count_files(), 1);
		assert_int_equal(known(&SGLANG).paused != NULL, order != 0);
		expect(KV, 0);
		done(WS_DEED_WAKE, KV);
		assert_int_equal(count_files(), order ? 1 : 0);
		done(WS_DEED_RESUME, 0);
		assert_int_equal(count_files(), 0);
	}
}

SCRATCH_TEST(a_record_is_about_one_start)
{
	done(WS_DEED_SLEEP, KV);
	struct ws_known k = known(&SGLANG);
	assert_true(k.told && !k.restarted && k.kept_caches);
	k = known(NULL);
	assert_true(k.told && k.asleep == KV);
	k = known(&LATER);
	assert_true(!k.told && k.restarted && !k.asleep && ws_known_readable(&k, &LATER));
	by(NULL, WS_DEED_SLEEP, W, &LATER, WS_DONE);
	assert_int_equal(count_files(), 1);
	assert_int_equal(known(&LATER).asleep, W);
}

/* A vLLM says whether it sleeps, keeps its weights, and runs again with the last wake. */
SCRATCH_TEST(the_word_of_the_server_counts_more)
{
	struct ws_endpoint_info vllm = { .instance = 7, .info_path = "/x", .can = { .sleep = true },
		                         .lineage = WS_LINEAGE_VLLM_33, .sleeping = true };
	by(NULL, WS_DEED_PAUSE, 0, &vllm, WS_DONE);
	by(NULL, WS_DEED_SLEEP, W | KV, &vllm, WS_UNANSWERED);
	struct ws_known k = known(&vllm);
	assert_true(k.asleep == (W | KV) && !k.unsure && k.paused);
	vllm.sleeping = false;
	k = known(&vllm);
	assert_true(!k.asleep && !k.unsure && ws_known_readable(&k, &vllm));
	vllm.runs = true;
	assert_null(known(&vllm).paused);
	vllm.runs = false;
	vllm.sleeping = true;
	by(NULL, WS_DEED_WAKE, W, &vllm, WS_DONE);
	assert_non_null(known(&vllm).paused);
	by(NULL, WS_DEED_WAKE, KV, &vllm, WS_DONE);
	assert_int_equal(count_files(), 0);
	k = known(&vllm); /* others have released it */
	assert_false(ws_known_readable(&k, &vllm));
}

/* A push has its own record. What it has woken or resumed is no matter of the others. */
SCRATCH_TEST(what_a_push_has_woken_is_in_its_own_record_alone)
{
	done(WS_DEED_PAUSE, 0);
	done(WS_DEED_SLEEP, ALL);
	by("state/pushes/own.json", WS_DEED_WAKE, W, &SGLANG, WS_REFUSED);
	expect(ALL, 0);
	by("state/pushes/own.json", WS_DEED_WAKE, W, &SGLANG, WS_UNANSWERED);
	expect(KV | WS_MEMORY_CUDA_GRAPH, W);
	by("state/pushes/own.json", WS_DEED_WAKE, W, &SGLANG, WS_DONE);
	expect(KV | WS_MEMORY_CUDA_GRAPH, 0);
	assert_null(known(&SGLANG).mixed);
	by("state/pushes/own.json", WS_DEED_WAKE, ALL & ~W, &SGLANG, WS_DONE);
	assert_false(known(&SGLANG).told);
	by("state/pushes/own.json", WS_DEED_RESUME, 0, &SGLANG, WS_DONE);
	assert_int_equal(count_files(), 0);
	by("state/pushes/own.json", WS_DEED_WAKE, W, &SGLANG, WS_DONE); /* makes none */
	assert_int_equal(count_files(), 0);
}

/* The end of a push forgets nothing that is released. */
SCRATCH_TEST(only_a_wake_forgets_memory)
{
	static const char *const url[] = { URL };
	for (unsigned c = 0; c < 4; c++) {
		const struct ws_journal_sent sent = { .digest = 1, .whole = true, .ok = c & 1,
			                              .refused = c & 2 };
		struct ws_journal_list list;
		done(WS_DEED_SLEEP, ALL);
		assert_int_equal(ws_journal_list("state", &list, NULL), 0);
		ws_journal_clear(&list, NULL, url, 1, &sent);
		ws_journal_list_free(&list);
		expect(ALL, 0);
	}
}

/* Weights that came back without values are no weights until a whole push, or --force. */
SCRATCH_TEST(weights_that_were_woken_by_hand_wait_for_a_whole_push)
{
	static const char *const url[] = { URL };
	for (unsigned c = 0; c < 4; c++) {
		const struct ws_journal_sent sent = { .digest = 1, .whole = c & 1, .ok = c & 2 };
		struct ws_journal_list list;
		done(WS_DEED_SLEEP, ALL);
		done(WS_DEED_WAKE, ALL);
		assert_non_null(known(&SGLANG).mixed);
		assert_int_equal(ws_journal_list("state", &list, NULL), 0);
		ws_journal_clear(&list, NULL, url, 1, &sent);
		ws_journal_list_free(&list);
		assert_int_equal(count_files(), c == 3 ? 0 : 1);
	}
	done(WS_DEED_RESUME, 0);
	assert_int_equal(count_files(), 0);
	done(WS_DEED_WAKE, W); /* others had released it */
	assert_non_null(known(&SGLANG).mixed);
}

static bool is_refused(enum ws_deed_what what)
{
	const struct ws_deed deed = { .url = URL, .what = what, .memory = W };
	struct ws_deeds *deeds = NULL;
	struct ws_err err = WS_ERR_INIT;
	const bool refused = ws_deeds_begin("state", NULL, &deed, 1, &deeds, &err) != 0;
	assert_true(!refused || err.code == WS_EREFUSED);
	if (!refused)
		assert_int_equal(ws_deeds_answered(deeds, 0, WS_REFUSED, NULL), 0);
	ws_deeds_end(deeds);
	return refused;
}

/* Locks of one process exclude each other, too. */
SCRATCH_TEST(only_a_pause_is_allowed_while_a_push_is_at_work)
{
	static const char *const url[] = { URL };
	static const enum ws_deed_what all[] = { WS_DEED_NONE, WS_DEED_PAUSE, WS_DEED_RESUME,
		                                 WS_DEED_SLEEP, WS_DEED_WAKE };
	struct ws_locks *locks = NULL;
	assert_int_equal(ws_locks_take("state/locks", url, 1, 0, NULL, &locks, NULL), 0);
	for (size_t i = 0; i < 5; i++)
		assert_int_equal(is_refused(all[i]), all[i] != WS_DEED_PAUSE);
	assert_int_equal(count_files(), 0);
	ws_locks_drop(locks);
	for (size_t i = 0; i < 5; i++)
		assert_false(is_refused(all[i]));
}

SCRATCH_TEST(what_cannot_be_recorded_is_not_sent)
{
	const struct ws_deed deed = { .url = URL, .info = &SGLANG, .what = WS_DEED_SLEEP,
		                      .memory = W };
	struct ws_deeds *deeds = NULL;
	done(WS_DEED_PAUSE, 0);
	done(WS_DEED_PAUSE, 0); /* the lock is made by the first change */
	assert_int_equal(remove("state/pushes/.lock"), 0);
	assert_int_equal(mkdir("state/pushes/.lock", 0700), 0); /* no record can be changed */
	assert_int_equal(ws_deeds_begin("state", NULL, &deed, 1, &deeds, NULL), -1);
	assert_null(deeds);
	assert_false(known(&SGLANG).told);
}

RUN_TESTS(NULL, NULL)
