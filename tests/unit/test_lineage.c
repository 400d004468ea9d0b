/* SPDX-License-Identifier: Apache-2.0 */
/* test_lineage.c - names, the table, and who decides when version and routes disagree. */
#include "lineage_probe.h"
#include "wsync/tool/capabilities.h"
#include "test.h"

TEST(names_and_numbers_agree)
{
	for (unsigned i = 0; i < WS_N_LINEAGES; i++) {
		enum ws_lineage back = WS_N_LINEAGES;
		assert_int_equal(ws_lineage_parse(ws_lineage_name((enum ws_lineage)i), &back), 0);
		assert_int_equal(back, i);
	}
	enum ws_lineage kept = WS_LINEAGE_XORL;
	assert_int_equal(ws_lineage_parse("sglang", &kept), -1);
	assert_int_equal(ws_lineage_parse("", &kept), -1);
	assert_int_equal(ws_lineage_parse(NULL, &kept), -1);
	assert_int_equal(kept, WS_LINEAGE_XORL);
	assert_string_equal(ws_lineage_name(WS_N_LINEAGES), "unknown");
}

TEST(every_field_has_a_name_of_its_own)
{
	for (size_t i = 0; i < ws_capability_count(); i++) {
		struct ws_capabilities can = { 0 };
		for (size_t k = 0; k < i; k++)
			assert_string_not_equal(ws_capability_name(i), ws_capability_name(k));
		ws_capability_set(&can, i, true);
		for (size_t k = 0; k < ws_capability_count(); k++)
			assert_int_equal(ws_capability_get(&can, k), k == i);
	}
	assert_string_equal(ws_capability_name(ws_capability_count()), "");
	assert_false(ws_capability_get(&(struct ws_capabilities){ .stuck_prepare = true },
	                               ws_capability_count()));
}

/* 0.4.9 and 0.4.10, which are not yet what came after them. */
TEST(a_server_that_only_learned_to_pause_is_of_its_version)
{
	struct ws_capabilities can;
	struct ws_lineage_signs s = { .version = "0.4.10.post2" };
	s.asked.update = s.seen.update = s.asked.pause = s.seen.pause = true;
	s.asked.checker = s.asked.set_version = s.asked.destroy = s.asked.from_ipc = true;
	assert_int_equal(ws_lineage_detect(&s, &can), WS_LINEAGE_SGLANG_04);
	assert_true(can.pause && can.update);
	s.seen.destroy = true;
	assert_int_equal(ws_lineage_detect(&s, &can), WS_LINEAGE_SGLANG_05);
}

/* What was not asked comes from the table; what was asked does not, whatever the version claims. */
TEST(routes_decide)
{
	struct ws_capabilities can;
	struct ws_lineage_signs s = { .version = "0.4.6" };
	assert_int_equal(ws_lineage_detect(&s, &can), WS_LINEAGE_SGLANG_04);
	assert_false(can.pause);
	s.asked.checker = s.seen.checker = s.asked.pause = s.seen.pause = true;
	assert_int_equal(ws_lineage_detect(&s, &can), WS_LINEAGE_SGLANG_2026);
	assert_true(can.pause && can.load_format);
	s.asked.pause_modes = true;
	ws_lineage_detect(&s, &can);
	assert_true(can.pause);
	assert_false(can.pause_modes);
	s.asked.two_phase = s.seen.two_phase = true;
	assert_int_equal(ws_lineage_detect(&s, &can), WS_LINEAGE_XORL);
	assert_true(can.stuck_prepare && can.eager_comm);
	s.asked.receive = s.seen.receive = true;
	assert_int_equal(ws_lineage_detect(&s, &can), WS_LINEAGE_XORL_LEGACY);
	assert_true(can.late_refusal);
	assert_false(can.dies_of_flush);
}

TEST(a_version_speaks_where_routes_are_silent)
{
	static const struct { const char *version; enum ws_lineage lineage; } cases[] = {
		{ "0.4.6.post5", WS_LINEAGE_SGLANG_04 }, { "0.4", WS_LINEAGE_SGLANG_04 },
		{ "0.5.0rc1", WS_LINEAGE_SGLANG_05 },    { "0.5.4.post1", WS_LINEAGE_SGLANG_05 },
		{ "0.5.6", WS_LINEAGE_SGLANG_05 },       { "0.5.7", WS_LINEAGE_SGLANG_2026 },
		{ "0.5.15.post1", WS_LINEAGE_SGLANG_2026 }, { "0.5.20", WS_LINEAGE_SGLANG_2026 },
		{ "0.5.21", WS_LINEAGE_SESSION },        { "0.5.23+cpu", WS_LINEAGE_SESSION },
		{ "0.40", WS_LINEAGE_UNKNOWN },
		{ "0.1.0", WS_LINEAGE_UNKNOWN },         { "", WS_LINEAGE_UNKNOWN },
		{ "0.5.99999999999999999999", WS_LINEAGE_SESSION },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		const struct ws_lineage_signs s = { .version = cases[i].version };
		struct ws_capabilities can;
		assert_int_equal(ws_lineage_detect(&s, &can), cases[i].lineage);
	}
}

/* An unknown server gets what its routes show, and no field that it does not show. */
TEST(an_unknown_server_has_what_it_shows)
{
	struct ws_capabilities can;
	struct ws_lineage_signs s = { .version = "7.1" };
	assert_int_equal(ws_lineage_detect(&s, &can), WS_LINEAGE_UNKNOWN);
	assert_true(can.update && can.pause && can.dies_of_flush);
	assert_false(can.load_format || can.pause_modes || can.weight_version);
	s.asked.update = s.asked.from_disk = s.seen.from_disk = s.asked.pause = true;
	assert_int_equal(ws_lineage_detect(&s, &can), WS_LINEAGE_UNKNOWN);
	assert_true(can.from_disk);
	assert_false(can.update || can.pause);
}

TEST(no_field_without_its_route)
{
	struct ws_capabilities can;
	struct ws_lineage_signs s = { .version = "0.5.15" };
	s.asked.pause = s.asked.checker = s.asked.flush = s.asked.update = s.asked.generate = true;
	s.seen.destroy = s.asked.destroy = true;
	assert_int_equal(ws_lineage_detect(&s, &can), WS_LINEAGE_UNKNOWN);
	s.seen.update = true;
	ws_lineage_detect(&s, &can);
	assert_false(can.pause_modes || can.two_phase_whole || can.stuck_prepare || can.checksums);
	assert_false(can.flush_waits || can.routed_experts);
	assert_true(can.from_disk && can.destroy);
}

/* The field came some releases before the bucket did. */
TEST(a_load_format_of_early_0_5_is_not_believed)
{
	struct ws_capabilities can;
	struct ws_lineage_signs s = { .version = "0.5.4" };
	s.asked.load_format = s.seen.load_format = s.asked.pause = s.seen.pause = true;
	s.asked.checker = true;
	assert_int_equal(ws_lineage_detect(&s, &can), WS_LINEAGE_SGLANG_05);
	assert_false(can.load_format);
	s.version = "0.5.6";
	assert_int_equal(ws_lineage_detect(&s, &can), WS_LINEAGE_SGLANG_05);
	assert_true(can.load_format);
	assert_false(can.mixed_bucket);
}

RUN_TESTS(NULL, NULL)
