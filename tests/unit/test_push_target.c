/* SPDX-License-Identifier: Apache-2.0 */
/* Every event in every state of an endpoint's weights, against a written table. */
#include "push_target.h"
#include "test.h"

/* A state as eight letters:
 *   state       U untouched, P partial, C committed
 *   before      U or P
 *   gap         g or -
 *   scope_open  o or -
 *   fully_sent  s or -
 *   random      r or -
 *   touched     t or -
 *   values_lost v or -
 * In the first column of the table * is any letter; in the second = is the letter as it was. */
enum { LETTERS = 8, STATES = 3 * 2 * 64 };

static const struct rule {
	enum push_event event;
	const char *in, *out;
} rules[] = {
	{ PUSH_RUN_BEGINS, "********", "UU------" },
	{ PUSH_FOUND_PARTIAL, "********", "PP======" },
	{ PUSH_VALUES_LOST, "********", "PP=====v" },
	{ PUSH_SCOPE_OPENED, "********", "===o====" },
	{ PUSH_SCOPE_CLOSED, "****s***", "C=--====" },
	{ PUSH_SCOPE_CLOSED, "****-***", "===-====" },
	{ PUSH_SCOPE_DROPPED, "********", "===-====" },
	{ PUSH_BYTES_LEFT, "********", "P=====t=" },
	{ PUSH_REFUSED_UNSENT, "C*******", "P=====t=" },
	{ PUSH_REFUSED_UNSENT, "UU******", "U=-===-=" },
	{ PUSH_REFUSED_UNSENT, "PU******", "U=-===-=" },
	{ PUSH_REFUSED_UNSENT, "UP******", "P=====-=" },
	{ PUSH_REFUSED_UNSENT, "PP******", "P=====-=" },
	{ PUSH_ACKED_LAST, "***o****", "====s===" },
	{ PUSH_ACKED_LAST, "***-****", "C=-=s===" },
	{ PUSH_WITHDRAWN, "U*******", "U=-=-===" },
	{ PUSH_WITHDRAWN, "P*******", "P=-=-===" },
	{ PUSH_WITHDRAWN, "C*******", "P=-=-===" },
	{ PUSH_OTHERS_MISSING, "U*-*****", "========" },
	{ PUSH_OTHERS_MISSING, "P*-*****", "========" },
	{ PUSH_OTHERS_MISSING, "C*-*****", "P=g=====" },
	{ PUSH_OTHERS_MISSING, "**g*****", "P=g=====" },
	{ PUSH_RESET_ASKED, "********", "PP===rt=" },
	{ PUSH_RESET_REFUSED, "********", "UU-==--=" },
	{ PUSH_RESET_UNDONE, "********", "C=-==-==" },
};

static void spell(const struct push_weights *w, char text[LETTERS + 1])
{
	snprintf(text, LETTERS + 1, "%c%c%c%c%c%c%c%c", "UPC"[w->state], "UPC"[w->before],
	         w -> gap ? 'g' : '-', w->scope_open ? 'o' : '-', w->fully_sent ? 's' : '-',
	         w->random ? 'r' : '-', w->touched ? 't' : '-', w->values_lost ? 'v' : '-');
}

static bool matches(const char *pattern, const char *text)
{
	for (int i = 0; i < LETTERS; i++)
		if (pattern[i] != '*' && pattern[i] != text[i])
			return false;
	return true;
}

static const struct rule *find_rule(enum push_event event, const char *text)
{
	const struct rule *found = NULL;
	for (size_t i = 0; i < sizeof rules / sizeof *rules; i++) {
		if (rules[i].event != event || !matches(rules[i].in, text))
			continue;
		if (found)
			fail_msg("event %d in %s has two rules", (int)event, text);
		found = &rules[i];
	}
	if (!found)
		fail_msg("event %d in %s has no rule", (int)event, text);
	return found;
}

static void check(const struct push_weights *w, enum push_event event)
{
	char in[LETTERS + 1], want[LETTERS + 1], got[LETTERS + 1];
	spell(w, in);
	const struct rule *r = find_rule(event, in);
	for (int i = 0; i < LETTERS; i++)
		want[i] = r->out[i] == '=' ? in[i] : r->out[i];
	want[LETTERS] = 0;
	const struct push_weights after = push_weights_after(*w, event);
	spell(&after, got);
	if (strcmp(got, want) != 0)
		fail_msg("event %d in %s: %s instead of %s", (int)event, in, got, want);
}

TEST(every_event_in_every_state_follows_the_table)
{
	for (unsigned k = 0; k < STATES; k++) {
		const struct push_weights w = {
			.state = k / 128,
			.before = k / 64 % 2,
			.gap = k & 32,
			.scope_open = k & 16,
			.fully_sent = k & 8,
			.random = k & 4,
			.touched = k & 2,
			.values_lost = k & 1,
		};
		for (int event = 0; event < PUSH_EVENTS; event++)
			check(&w, (enum push_event)event);
	}
}

static unsigned number_of(const struct push_weights *w)
{
	return ((unsigned)w->state * 2 + (unsigned)w->before) * 64 + (w->gap ? 32 : 0) +
	       (w->scope_open ? 16 : 0) + (w->fully_sent ? 8 : 0) + (w->random ? 4 : 0) +
	       (w->touched ? 2 : 0) + (w->values_lost ? 1 : 0);
}

/* Calls check for every state that events can reach; acks: also those that commit.
 * Returns how many there are. */
static size_t explore(bool acks, void (*check_state)(const struct push_weights *w))
{
	struct push_weights found[STATES] = { { .state = WS_UNTOUCHED } };
	bool seen[STATES] = { [0] = true };
	size_t n = 1;
	for (size_t i = 0; i < n; i++) {
		check_state(&found[i]);
		for (int event = 0; event < PUSH_EVENTS; event++) {
			const struct push_weights w =
				push_weights_after(found[i], (enum push_event)event);
			if (seen[number_of(&w)] ||
			    (!acks && (event == PUSH_ACKED_LAST || event == PUSH_RESET_UNDONE)))
				continue;
			seen[number_of(&w)] = true;
			found[n++] = w;
		}
	}
	return n;
}

static void check_gap(const struct push_weights *w)
{
	assert_int_not_equal(w->before, WS_COMMITTED);
	if (w->gap)
		assert_int_equal(w->state, WS_PARTIAL);
	assert_int_equal(push_weights_arrived(w), w->state == WS_COMMITTED || w->gap);
}

TEST(only_a_partial_endpoint_has_a_gap)
{
	assert_int_equal(explore(true, check_gap), 144);
}

static void check_not_committed(const struct push_weights *w)
{
	assert_int_not_equal(w->state, WS_COMMITTED);
}

TEST(only_the_last_confirmation_or_an_undone_reset_commits)
{
	assert_int_equal(explore(false, check_not_committed), 24);
}

RUN_TESTS(NULL, NULL)
