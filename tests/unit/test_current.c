/* SPDX-License-Identifier: Apache-2.0 */
/* Which weight version is believed: over the combinations of what the last push did. */
#include "current.h"
#include "scratch.h"
#include "test.h"

#include <string.h>

enum { START = 7, OTHER_START = 8 };
static const char URL[] = "http://a:1", ALIAS[] = "http://10.0.0.1:1";

static struct ws_identity start(uint64_t id, enum ws_identity_strength strength)
{
	struct ws_identity out = { .strength = strength };
	if (strength == WS_IDENTITY_NONE)
		return out;
	out.processes = out.n = 1;
	out.seen[0].id = id;
	return out;
}

static struct ws_endpoint_info server(uint64_t id, enum ws_identity_strength strength,
                                      const char *label)
{
	struct ws_endpoint_info info = { .identity = start(id, strength) };
	snprintf(info.weight_version, sizeof info.weight_version, "%s", label);
	return info;
}

/* Two lines of a push, at most. */
struct lines {
	struct ws_history_endpoint of[8];
	struct ws_history_push pushes[8];
	struct ws_history all;
};

static void add(struct lines *l, struct ws_history_push p, struct ws_history_endpoint e)
{
	const size_t n = l->all.n++;
	p.host = "h";
	e.message = e.message ? e.message : "";
	l->of[n] = e;
	p.endpoints = &l->of[n];
	p.n_endpoints = 1;
	l->pushes[n] = p;
	l->all.items = l->pushes;
}

static struct ws_history_endpoint whole(const char *label)
{
	return (struct ws_history_endpoint){ .url = URL, .ok = true, .state = WS_COMMITTED,
		                             .identity = start(START, WS_IDENTITY_SURE),
		                             .label = label, .established = WS_REQUIRE_NAMES };
}

static struct ws_history_push push(uint64_t id, const char *version)
{
	return (struct ws_history_push){ .id = id, .ended = 1, .weight_version = version,
		                         .digest = 100, .whole = true };
}

static struct fleet_current judge(const struct lines *l, const char *label)
{
	const struct ws_endpoint_info info = server(START, WS_IDENTITY_SURE, label);
	struct fleet_current out;
	fleet_current_judge(&l->all, URL, &info, NULL, NULL, &out);
	assert_int_equal(out.by == WS_CURRENT_NOT, *out.why != 0);
	return out;
}

TEST(a_push_is_believed_if_it_was_whole_succeeded_and_set_the_label)
{
	(void)state;
	for (unsigned bits = 0; bits < 16; bits++) {
		struct lines l = { 0 };
		struct ws_history_push p = push(1, bits & 1 ? "5" : "");
		struct ws_history_endpoint e = whole("5");
		p.whole = bits & 2;
		e.ok = bits & 4;
		e.state = bits & 8 ? WS_COMMITTED : WS_PARTIAL;
		add(&l, p, e);
		const struct fleet_current c = judge(&l, "5");
		assert_int_equal(c.by, bits == 15 ? WS_CURRENT_BY_RECORD : WS_CURRENT_NOT);
		assert_int_equal(c.established, bits == 15 ? WS_REQUIRE_NAMES : 0);
		assert_int_equal(c.push, 1);
	}
}

TEST(nothing_but_a_label_is_a_label)
{
	struct lines none = { 0 }, old = { 0 };
	(void)state;
	assert_int_equal(judge(&none, "5").by, WS_CURRENT_BY_LABEL);
	assert_int_equal(judge(&none, "").by, WS_CURRENT_UNTOLD);
	add(&old, push(0, "5"), whole("5")); /* a line without an id */
	assert_int_equal(judge(&old, "5").by, WS_CURRENT_BY_LABEL);
	assert_int_equal(judge(&old, "5").established, 0);
}

/* Somebody else has set 7 since, whatever we did before. */
TEST(a_label_of_somebody_else_is_a_label)
{
	(void)state;
	for (int part = 0; part < 2; part++) {
		struct lines l = { 0 };
		struct ws_history_push p = push(1, "5");
		p.whole = !part;
		add(&l, p, whole("5"));
		assert_int_equal(judge(&l, "7").by, WS_CURRENT_BY_LABEL);
	}
}

/* A push without a version leaves the label of the earlier weights. */
TEST(the_last_push_decides)
{
	struct lines l = { 0 };
	(void)state;
	add(&l, push(1, "5"), whole("5"));
	add(&l, push(2, ""), whole("5"));
	struct fleet_current c = judge(&l, "5");
	assert_int_equal(c.by, WS_CURRENT_NOT);
	assert_int_equal(c.push, 2);
	add(&l, push(3, "5"), whole("5"));
	c = judge(&l, "5");
	assert_int_equal(c.by, WS_CURRENT_BY_RECORD);
	assert_int_equal(c.push, 3);
}

TEST(a_push_that_was_killed_leaves_a_doubt)
{
	struct lines l = { 0 };
	struct ws_history_push begun = push(2, "6");
	(void)state;
	add(&l, push(1, "5"), whole("5"));
	begun.ended = 0;
	add(&l, begun, whole("5"));
	assert_int_equal(judge(&l, "5").by, WS_CURRENT_NOT);
	assert_int_equal(judge(&l, "6").by, WS_CURRENT_NOT); /* it may have set it */
	assert_int_equal(judge(&l, "7").by, WS_CURRENT_BY_LABEL);
	/* It ended after all, and had touched nothing. */
	struct ws_history_endpoint e = whole("5");
	e.ok = false;
	e.state = WS_UNTOUCHED;
	add(&l, push(2, "6"), e);
	const struct fleet_current c = judge(&l, "5");
	assert_int_equal(c.by, WS_CURRENT_BY_RECORD);
	assert_int_equal(c.push, 1);
}

/* wsync-verify weights --twice pushes what the server has. */
TEST(a_push_of_the_same_weights_changes_nothing)
{
	(void)state;
	for (int ok = 0; ok < 2; ok++) {
		struct lines l = { 0 };
		struct ws_history_push same = push(2, "");
		struct ws_history_endpoint e = whole("5");
		add(&l, push(1, "5"), whole("5"));
		same.ended = 0;
		add(&l, same, whole("5"));
		same.ended = 1;
		same.same = true;
		e.ok = ok;
		add(&l, same, e);
		assert_int_equal(judge(&l, "5").by,
		                 ok ? WS_CURRENT_BY_RECORD : WS_CURRENT_NOT);
	}
}

TEST(a_record_is_about_one_start)
{
	struct lines l = { 0 };
	struct fleet_current c;
	struct ws_history_push part = push(1, "5");
	(void)state;
	part.whole = false;
	add(&l, part, whole("5"));
	struct ws_endpoint_info info = server(OTHER_START, WS_IDENTITY_SURE, "5");
	fleet_current_judge(&l.all, URL, &info, NULL, NULL, &c);
	assert_int_equal(c.by, WS_CURRENT_BY_LABEL); /* restarted since */
	info = server(START, WS_IDENTITY_SURE, "5");
	fleet_current_judge(&l.all, ALIAS, &info, NULL, NULL, &c);
	assert_int_equal(c.by, WS_CURRENT_NOT); /* the same by another name */
	info = server(START, WS_IDENTITY_NONE, "5");
	fleet_current_judge(&l.all, "http://b:1", &info, NULL, NULL, &c);
	assert_int_equal(c.by, WS_CURRENT_BY_LABEL); /* another server */
}

/* Where starts cannot be told apart, a record may deny, and never confirm. */
TEST(a_weak_identity_confirms_nothing)
{
	static const enum ws_identity_strength weak[] = { WS_IDENTITY_NONE, WS_IDENTITY_WEAK };
	(void)state;
	for (unsigned bits = 0; bits < 4; bits++) {
		const enum ws_identity_strength strength = weak[bits & 1];
		const bool is_part = bits & 2;
		struct lines l = { 0 };
		struct fleet_current c;
		struct ws_history_push p = push(1, "5");
		struct ws_history_endpoint e = whole("5");
		p.whole = !is_part;
		e.identity = start(START, strength);
		add(&l, p, e);
		const struct ws_endpoint_info info = server(START, strength, "5");
		fleet_current_judge(&l.all, URL, &info, NULL, NULL, &c);
		assert_int_equal(c.by, is_part ? WS_CURRENT_NOT : WS_CURRENT_BY_LABEL);
		assert_int_equal(c.established, is_part ? 0 : WS_REQUIRE_NAMES);
	}
}

static int plan(void *ctx, const struct ws_endpoint_info *info, uint64_t digest)
{
	(void)info;
	assert_int_equal(digest, 100);
	return *(int *)ctx;
}

/* The same plan is enough, also of a part. A source that cannot be opened decides nothing. */
TEST(the_plan_decides_where_it_is_known)
{
	const struct ws_endpoint_info info = server(START, WS_IDENTITY_SURE, "5");
	(void)state;
	for (int same = -1; same <= 1; same++)
		for (int is_whole = 0; is_whole < 2; is_whole++) {
			struct lines l = { 0 };
			struct fleet_current c;
			struct ws_history_push p = push(1, "5");
			p.whole = is_whole;
			add(&l, p, whole("5"));
			fleet_current_judge(&l.all, URL, &info, plan, &same, &c);
			const bool yes = same == 1 || (same == -1 && is_whole);
			assert_int_equal(c.by, yes ? WS_CURRENT_BY_RECORD : WS_CURRENT_NOT);
		}
}

/* ---- through the file ---- */

TEST(lines_are_read_as_they_were_written)
{
	struct ws_history h;
	struct ws_err err;
	struct fleet_current c;
	struct ws_endpoint_info info = server(START, WS_IDENTITY_SURE, "5");
	struct ws_history_endpoint e = whole("5");
	struct ws_history_push p = push(ws_history_id(), "5");
	(void)state;
	p.verify = p.code = p.message = p.source = "";
	p.endpoints = &e;
	p.n_endpoints = 1;
	e.identity.since = INT64_C(1700000000) * WS_NS_PER_S;
	e.message = "";
	assert_true(ws_history_add("state", &p));
	assert_int_equal(ws_history_read("state", &h, &err), 0);
	assert_int_equal(h.items[0].endpoints[0].identity.since, e.identity.since);
	fleet_current_judge(&h, URL, &info, NULL, NULL, &c);
	assert_int_equal(c.by, WS_CURRENT_BY_RECORD);
	assert_int_equal(c.established, WS_REQUIRE_NAMES);
	assert_int_equal(c.push, p.id);
	ws_history_free(&h);
	ws_history_spoil("state", URL, &info, "it was asleep");
	assert_int_equal(ws_history_read("state", &h, &err), 0);
	fleet_current_judge(&h, URL, &info, NULL, NULL, &c);
	assert_int_equal(c.by, WS_CURRENT_NOT);
	assert_string_equal(c.why, "it was asleep");
	const struct ws_history_endpoint *part;
	assert_int_equal(ws_history_last(&h, URL, &part)->id, p.id); /* the last that ended */
	ws_history_free(&h);
}

RUN_TESTS(scratch_enter, scratch_leave)
