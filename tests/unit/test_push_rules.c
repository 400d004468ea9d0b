/* SPDX-License-Identifier: Apache-2.0 */
/* test_push_rules.c - every pause with every flush at every lineage, idle or not, with a cache or
 * without, against a table that somebody thought about. */
#include "lineage_probe.h"

#include "wsync/push.h"
#include "test.h"

/* What stands at the beginning of each sentence, by a letter. '.': it may be done. */
static const struct { char letter; const char *words; } sentences[] = {
	{ 'p', "it cannot pause" },
	{ 'm', "it knows one way to pause" },
	{ 's', "between the begin and the end" },
	{ 'i', "{pause} in_place keeps" },
	{ 't', "it cannot send running requests back" },
	{ 'w', "its pause does not wait" },
	{ 'd', "it holds requests, and a flush after an update that finds any ends" },
	{ 'l', "it holds requests, and a flush that finds any is refused after" },
	{ 'r', "it holds requests, and a flush that finds any is refused" },
	{ 'f', "it holds requests, flushes after every update whatever" },
};

/* Three letters for --flush last, never, every; four of them for an idle server with a cache, a
 * busy one with a cache, an idle one without a cache, a busy one without. */
static const struct {
	enum ws_lineage lineage;
	const char *abort, *retract, *in_place, *none;
} table[] = {
	{ WS_LINEAGE_UNKNOWN,
	  "... d.d ... ...", "mmm mmm mmm mmm", "imi imi imi imi", "... d.d ... ..." },
	{ WS_LINEAGE_SGLANG_04,
	  "ppp ppp ppp ppp", "ppp ppp ppp ppp", "ipi ipi ipi ipi", "... ... ... ..." },
	{ WS_LINEAGE_SGLANG_05,
	  "... d.d ... ...", "mmm mmm mmm mmm", "imi imi imi imi", "... d.d ... ..." },
	{ WS_LINEAGE_SGLANG_2026,
	  "... d.d ... ...", "... d.d ... ...", "i.i i.i i.i i.i", "... d.d ... ..." },
	{ WS_LINEAGE_XORL_LEGACY,
	  "... l.l ... ...", "... l.l ... ...", "i.i i.i i.i i.i", "... l.l ... ..." },
	{ WS_LINEAGE_XORL,
	  "... d.d ... ...", "... d.d ... ...", "i.i i.i i.i i.i", "... d.d ... ..." },
	{ WS_LINEAGE_SESSION,
	  "... d.d ... ...", "... d.d ... ...", "i.i i.i i.i i.i", "sss sss sss sss" },
	{ WS_LINEAGE_SLIME,
	  "... d.d ... ...", "... d.d ... ...", "i.i i.i i.i i.i", "... d.d ... ..." },
	{ WS_LINEAGE_VLLM_20, "... r.r ... ...", "ttt ttt ttt ttt", "i.i i.i i.i i.i",
	  "sss sss sss sss" },
	{ WS_LINEAGE_VLLM_24, "... r.r ... ...", "ttt ttt ttt ttt", "i.i i.i i.i i.i",
	  "sss sss sss sss" },
	{ WS_LINEAGE_VLLM_27, "... r.r ... ...", "ttt ttt ttt ttt", "i.i i.i i.i i.i",
	  "sss sss sss sss" },
	{ WS_LINEAGE_VLLM_33, "... r.r ... ...", "ttt ttt ttt ttt", "i.i i.i i.i i.i",
	  "sss sss sss sss" },
};
_Static_assert(sizeof table / sizeof *table == WS_N_LINEAGES, "every lineage");

static char letter_of(const char *why)
{
	for (size_t i = 0; why && i < sizeof sentences / sizeof *sentences; i++)
		if (!strncmp(why, sentences[i].words, strlen(sentences[i].words)))
			return sentences[i].letter;
	return why ? '?' : '.';
}

static void check(const struct ws_capabilities *can, enum ws_pause_mode pause, const char *row)
{
	char found[] = "??? ??? ??? ???";
	for (int server = 0; server < 4; server++)
		for (int flush = WS_FLUSH_LAST; flush <= WS_FLUSH_EVERY; flush++) {
			const char *remedy = NULL;
			const char *why = ws_push_refuses(can, pause, (enum ws_push_flush)flush,
			                                  !(server & 1), server & 2, &remedy);
			found[4 * server + flush] = letter_of(why);
			assert_int_equal(why != NULL, remedy != NULL);
		}
	assert_string_equal(found, row);
}

TEST(every_combination_is_as_the_table_says)
{
	for (size_t i = 0; i < WS_N_LINEAGES; i++) {
		struct ws_capabilities can;
		ws_lineage_capabilities(table[i].lineage, &can);
		check(&can, WS_PAUSE_ABORT, table[i].abort);
		check(&can, WS_PAUSE_RETRACT, table[i].retract);
		check(&can, WS_PAUSE_IN_PLACE, table[i].in_place);
		check(&can, WS_PAUSE_NONE, table[i].none);
		check(&can, WS_PAUSE_WAIT, can.pause_wait ? "... r.r ... ..." :
		                           can.pause      ? "www www www www" :
		                                            "ppp ppp ppp ppp");
	}
}

TEST(a_server_that_flushes_by_itself_must_be_idle_whatever_is_asked)
{
	struct ws_capabilities can;
	ws_lineage_capabilities(WS_LINEAGE_XORL, &can);
	can.forces_flush = true;
	check(&can, WS_PAUSE_ABORT, "... dfd ... fff");
	check(&can, WS_PAUSE_RETRACT, "... dfd ... fff");
	check(&can, WS_PAUSE_IN_PLACE, "i.i ifi i.i ifi");
}

TEST(a_server_without_a_flush_is_told_of_none)
{
	struct ws_capabilities can;
	ws_lineage_capabilities(WS_LINEAGE_SGLANG_2026, &can);
	can.flush = false;
	const char *why = ws_push_refuses(&can, WS_PAUSE_ABORT, WS_FLUSH_LAST, true, false, NULL);
	assert_string_equal(why, "it has no /flush_cache");
	assert_null(ws_push_refuses(&can, WS_PAUSE_ABORT, WS_FLUSH_NEVER, true, false, NULL));
	assert_null(ws_push_refuses(&can, WS_PAUSE_ABORT, WS_FLUSH_LAST, true, true, NULL));
}

TEST(some_things_no_server_allows)
{
	check(NULL, WS_PAUSE_ABORT, "... ... ... ...");
	check(NULL, WS_PAUSE_RETRACT, "... ... ... ...");
	check(NULL, WS_PAUSE_IN_PLACE, "i.i i.i i.i i.i");
	check(NULL, WS_PAUSE_NONE, "... ... ... ...");
}

RUN_TESTS(NULL, NULL)
