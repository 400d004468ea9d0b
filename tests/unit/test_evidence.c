/* SPDX-License-Identifier: Apache-2.0 */
/* test_evidence.c - the words of success, over all combinations of the facts that decide them. */
#include "wsync/evidence.h"
#include "test.h"

#include <stdio.h>
#include <string.h>

/* The facts as bits of a number, so that all combinations can be counted through. */
enum {
	WHOLE = 1, CLOSED = 2, STAGED = 4, GROUP = 8, LABEL_SET = 16, LABEL_READ = 32,
	DIFFERENT = 64, NOT_SENT = 128, ASLEEP = 256, ALL = 512
};

static struct ws_evidence of(unsigned facts, enum ws_identity_end end,
                             enum ws_identity_strength strength)
{
	return (struct ws_evidence){
		.end = end, .identity = { .strength = strength },
		.whole = facts & WHOLE, .closed = facts & CLOSED, .staged = facts & STAGED,
		.group_alive = facts & GROUP, .label_set = facts & LABEL_SET,
		.label_read = facts & LABEL_READ, .proven = 10,
		.different = facts & DIFFERENT ? 1 : 0, .not_sent = facts & NOT_SENT ? 1 : 0,
		.asleep = facts & ASLEEP,
	};
}

/* The rules once more, as a list of what each word needs. */
static void check(unsigned facts, enum ws_identity_end end, enum ws_identity_strength strength)
{
	const struct ws_evidence e = of(facts, end, strength);
	const enum ws_evidence_word word = ws_evidence_word(&e);
	const bool answered = end != WS_END_OTHER && end != WS_END_UNANSWERED;
	const unsigned both = LABEL_SET | LABEL_READ;
	const bool stays = facts & GROUP || (facts & both) == both;
	if (word != WS_WORD_NONE)
		assert_true(answered);
	if (word == WS_WORD_ACKNOWLEDGED || word == WS_WORD_COMMITTED) {
		assert_true(facts & WHOLE && facts & CLOSED && !(facts & STAGED));
		assert_false(facts & DIFFERENT); /* what was not sent is no part of it */
	}
	if (word == WS_WORD_COMMITTED)
		assert_true((end == WS_END_SAME && strength == WS_IDENTITY_SURE) ||
		            ((end == WS_END_SAME || end == WS_END_UNTOLD) && stays));
	/* What is established is not withheld either. */
	if (answered && facts & STAGED)
		assert_int_equal(word, WS_WORD_STAGED);
	if ((facts & (WHOLE | CLOSED | STAGED | DIFFERENT)) == (WHOLE | CLOSED) &&
	    end == WS_END_SAME && (stays || strength == WS_IDENTITY_SURE))
		assert_int_equal(word, WS_WORD_COMMITTED);
}

TEST(no_word_is_said_without_its_facts)
{
	for (unsigned facts = 0; facts < ALL; facts++)
		for (int end = WS_END_UNKNOWN; end <= WS_END_UNTOLD; end++)
			for (int s = WS_IDENTITY_NONE; s <= WS_IDENTITY_SURE; s++)
				check(facts, (enum ws_identity_end)end,
				      (enum ws_identity_strength)s);
}

TEST(every_value_has_a_name)
{
	for (int i = 0; i < WS_N_WORDS; i++)
		assert_true(strcmp(ws_evidence_word_name((enum ws_evidence_word)i), "unknown"));
	assert_string_equal(ws_evidence_word_name((enum ws_evidence_word)99), "unknown");
	assert_string_equal(ws_identity_end_name(WS_END_UNTOLD), "untold");
	assert_string_equal(ws_identity_strength_name(WS_IDENTITY_SURE), "sure");
	assert_string_equal(ws_names_by_name(WS_NAMES_BY_OWN_CONFIG), "own-config");
}

RUN_TESTS(NULL, NULL)
