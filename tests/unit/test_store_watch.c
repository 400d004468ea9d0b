/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_watch.c - what the store concludes from keys, and what it reports of peers. */
#include "store_feed.h"

static enum ws_store_key kind(const char *key, const char *group)
{
	return ws_store_classify(key, strlen(key), group);
}

TEST(keys_are_known_by_their_names)
{
	static const struct { const char *key, *group; enum ws_store_key kind; } cases[] = {
		{ "init/", "G", WS_KEY_INIT },
		{ "/init/", "G", WS_KEY_OTHER },
		{ "/G/G//cuda//0", "G", WS_KEY_NCCL_ID },
		{ "/G/G//cuda//17", "G", WS_KEY_NCCL_ID },
		{ "/G/G/0", "G", WS_KEY_NCCL_ID },
		{ "//worker/attempt_0/G/G/0", "G", WS_KEY_NCCL_ID },
		{ "/default_pg/0//cuda//0", "G", WS_KEY_NCCL_ID },
		{ "/default_pg/0/0", "G", WS_KEY_NCCL_ID },
		{ "/default_pg/0/0", NULL, WS_KEY_NCCL_ID },
		{ "/other/other/0", "G", WS_KEY_NCCL_ID },
		{ "/0/0/0", "0", WS_KEY_NCCL_ID },
		{ "/a/b/a/b/0", "a/b", WS_KEY_NCCL_ID },
		{ "/G/G//cuda//0:1", "G", WS_KEY_OTHER },
		{ "/G/G//cpu//0/3", "G", WS_KEY_GLOO_ADDRESS },
		{ "/G/G//cpu//1/3", "G", WS_KEY_GLOO_ADDRESS },
		{ "/G/G/0/3", "G", WS_KEY_GLOO_ADDRESS },
		{ "/default_pg/0/0/1", "G", WS_KEY_GLOO_ADDRESS },
		{ "/default_pg/0//cpu//0/1", NULL, WS_KEY_GLOO_ADDRESS },
		{ "/0/0/0/1", "0", WS_KEY_GLOO_ADDRESS },
		{ "/a/b/a/b/0/2", "a/b", WS_KEY_GLOO_ADDRESS },
		{ "/G/G/0/rank_3", "G", WS_KEY_GLOO_RANK },
		{ "/G/G//cpu//0/rank_12", "G", WS_KEY_GLOO_RANK },
		{ "/G/G//cpu//0/rank_", "G", WS_KEY_OTHER },
		{ "/G/G//cuda//pg_wrapper:G/0/1", "G", WS_KEY_PG_WRAPPER },
		{ "/G/G//cuda//UniqueNCCLID:0", "G", WS_KEY_SCALABLE_ID },
		{ "/G/G//cuda//G/nccl_storekey_0", "G", WS_KEY_NCCL2 },
		{ "/G/G/SEQ_NUM_STORE_KEY", "G", WS_KEY_SEQ_NUM },
		{ "/default_pg/store_based_barrier_key:1", "G", WS_KEY_BARRIER },
		{ "/broadcast_from/0/0", NULL, WS_KEY_PYNCCL },
		{ "/exception_dump", "G", WS_KEY_OTHER },
		{ "/G/G//cuda//12345678901234567890", "G", WS_KEY_OTHER },
		{ "", "G", WS_KEY_OTHER },
		{ "0", "G", WS_KEY_OTHER },
		{ "/", "G", WS_KEY_OTHER },
		{ "/0", "G", WS_KEY_OTHER },
		{ "//0/0/0", NULL, WS_KEY_NCCL_ID },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++)
		if (kind(cases[i].key, cases[i].group) != cases[i].kind)
			fail_msg("%s of %s: kind %d and not %d", cases[i].key, cases[i].group,
			         kind(cases[i].key, cases[i].group), cases[i].kind);
	assert_int_equal(ws_store_classify("\0/G/G//cuda//0", 14, "G"), WS_KEY_NCCL_ID);
}

static struct ws_store_core core;

static void trouble_says(const char *part)
{
	assert_int_equal(core.trouble.code, WS_EDATA);
	if (!strstr(core.trouble.msg, part))
		fail_msg("\"%s\" is not in \"%s\"", part, core.trouble.msg);
	assert_null(strchr(core.trouble.msg, '\n'));
}

TEST(what_cannot_work_is_said_at_once)
{
	static const struct { bool write; const char *key, *says; } cases[] = {
		{ true, "/G/G//cuda//pg_wrapper:G/0/1", "TORCH_DISTRIBUTED_DEBUG=DETAIL" },
		{ false, "/G/G//cpu//pg_wrapper:G/0/0", "TORCH_DISTRIBUTED_DEBUG=DETAIL" },
		{ false, "/G/G//cuda//UniqueNCCLID:1", "TORCH_NCCL_RANKS_PER_ROOT" },
		{ false, "/G/G//cuda//G/nccl_storekey_0", "nccl2" },
		{ false, "/default_pg/0//cuda//0", "default group and not 'G'" },
		{ false, "/G/G//cpu//1/0", "several interfaces" },
		{ true, "/exception_dump", "watchdog" },
		{ true, "/G/G//cuda//NCCLABORTEDCOMM:00ff", "watchdog" },
		{ true, "/G/G//cpu//0/0", "calls itself rank 0" },
		{ true, "/G/G//cpu//0/4", "calls itself rank 4 of 4" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		core_open(&core, 4, "G");
		struct ws_store_conn *c = peer_of(&core, 'C', "10.0.0.2:4711");
		send_wait(c, 'C', "/G/G//cuda//0"); /* it knows the group */
		assert_int_equal(core.trouble.code, WS_OK);
		if (cases[i].write)
			send_set(c, 'C', cases[i].key, "value", 5);
		else
			send_wait(c, 'C', cases[i].key);
		trouble_says(cases[i].says);
		assert_non_null(strstr(core.trouble.msg, "10.0.0.2:4711"));
		assert_false(c->doomed);
		ws_store_core_fini(&core);
	}
}

TEST(what_works_is_no_trouble)
{
	static const char *const keys[] = { "/G/G//cuda//0", "/G/G/0", "/exception_dump",
	                                    "/G/G//cpu//0/2", "/G/G/SEQ_NUM_STORE_KEY",
	                                    "/other/other//cuda//0", "/whatever" };
	core_open(&core, 4, "G");
	struct ws_store_conn *c = peer_of(&core, 'C', "10.0.0.2:4711");
	for (size_t i = 0; i < sizeof keys / sizeof keys[0]; i++)
		send_wait(c, 'C', keys[i]);
	assert_int_equal(core.trouble.code, WS_OK);
	ws_store_core_fini(&core);
}

TEST(one_peer_too_many_is_refused)
{
	static const char id[] = "/G/G//cuda//0";
	core_open(&core, 3, "G");
	send_wait(peer_of(&core, 'C', "10.0.0.2:1"), 'C', id);
	struct ws_store_conn *second = peer_of(&core, 'A', "10.0.0.3:1");
	struct ws_store_conn *clone = ws_store_conn_open(&core, "10.0.0.2:2");
	talk(clone, "00cef7853c 0d 01000000", "01000000");
	struct ws_store_conn *third = peer_of(&core, 'C', "10.0.0.9:1");
	assert_int_equal(core.joined, 3);
	send_wait(second, 'A', id);
	assert_int_equal(core.trouble.code, WS_OK);
	send_wait(third, 'C', id);
	assert_true(third->doomed);
	assert_false(second->doomed);
	assert_int_equal(core.refused, 1);
	trouble_says("10.0.0.9:1 is one too many: the group has world size 3");
	/* Who has joined may count again: that is no second join. */
	talk(second, "03 0500000000000000 \"init/\" 0000000000000000", "0300000000000000");
	ws_store_core_fini(&core);

	core_open(&core, 2, NULL);
	peer_of(&core, 'C', "10.0.0.2:1");
	assert_int_equal(core.trouble.code, WS_OK);
	assert_true(peer_of(&core, 'C', "10.0.0.9:1")->doomed);
	trouble_says("10.0.0.9:1 is one too many: the group has world size 2");
	ws_store_core_fini(&core);
}

TEST(a_peer_that_leaves_is_trouble_and_remembered)
{
	core_open(&core, 3, "G");
	struct ws_store_conn *c = peer_of(&core, 'C', "10.0.0.2:1");
	struct ws_store_conn *stranger = ws_store_conn_open(&core, "10.0.0.7:1");
	send_set(c, 'C', "/G/G//cpu//0/2", "blob", 4);
	ws_store_conn_close(stranger);
	assert_int_equal(core.trouble.code, WS_OK);
	ws_store_conn_close(c);
	trouble_says("rank 2 (10.0.0.2:1) left the rendezvous");
	struct ws_store_report r;
	assert_int_equal(ws_store_core_report(&core, &r, NULL), 0);
	assert_int_equal(r.n_peers, 1);
	assert_int_equal(r.peers[0].rank, 2);
	assert_int_equal(r.peers[0].epoch, 'C');
	assert_false(r.peers[0].connected);
	assert_true(r.peers[0].joined);
	ws_store_report_fini(&r);
	ws_store_core_fini(&core);
}

TEST(two_peers_of_one_rank_are_trouble)
{
	core_open(&core, 4, "G");
	struct ws_store_conn *a = peer_of(&core, 'C', "10.0.0.2:1");
	struct ws_store_conn *b = peer_of(&core, 'C', "10.0.0.3:1");
	send_set(a, 'C', "/G/G//cpu//0/1", "blob", 4);
	send_set(a, 'C', "/G/G//cpu//0/1", "blob", 4);
	assert_int_equal(core.trouble.code, WS_OK);
	send_set(b, 'C', "/G/G//cpu//0/1", "blob", 4);
	trouble_says("10.0.0.2:1 and 10.0.0.3:1 both call themselves rank 1");
	ws_store_core_fini(&core);
}

static void told(const char *address, const char *why)
{
	for (unsigned i = 0; i < core.n_strangers; i++)
		if (strcmp(core.strangers[i].address, address) == 0 &&
		    strstr(core.strangers[i].why, why))
			return;
	fail_msg("%s is not told: \"%s\"", address, why);
}

/* Two ranks in a group that is complete, then every request that a stranger can think of. */
TEST(a_stranger_changes_nothing_and_is_told)
{
	static const struct { const char *bytes, *why; } acts[] = {
		{ "01 0f00000000000000 \"/exception_dump\" 0100000000000000 01", "no rank" },
		{ "01 1100000000000000 \"/default_pg/0/0/1\" 0100000000000000 01",
		  "another name" },
		{ "01 0e00000000000000 \"/G/G//cpu//0/1\" 0000000000000000", "another rank" },
		{ "01 0500000000000000 \"init/\" 0100000000000000 \"9\"", "number of ranks" },
		{ "02 0200000000000000 \"/k\" 0000000000000000 0100000000000000 \"9\"", "no rank" },
		{ "04 0500000000000000 \"init/\" 0100000000000000", "all ranks had joined" },
		{ "04 0500000000000000 \"init/\" ffffffffffffffff", "number of ranks" },
		{ "04 0200000000000000 \"/k\" 0100000000000000", "no rank" },
		{ "08 0500000000000000 \"/mine\"", "another rank" },
		{ "08 0500000000000000 \"init/\"", "number of ranks" },
		{ "09 0500000000000000 \"/mine\" 0100000000000000 \"x\"", "another rank" },
		{ "0b 0100000000000000 0500000000000000 \"/mine\" 0100000000000000 \"x\"",
		  "another rank" },
		{ "0e 0200000000000000 \"/q\" 0100000000000000 \"x\"", "invalid request" },
		{ "0f 0200000000000000 \"/q\"", "invalid request" },
		{ "11", "all keys" },
		{ "12 0200000000000000 \"/b\" 0100000000000000", "no rank" },
		{ "01 0f00000000000000 \"wsync/sender/2/\" 0100000000000000 \"x\"", "no rank" },
		{ "06 0100000000000000 0d00000000000000 \"/default_pg/0\"", "default group" },
		{ "06 0100000000000000 0c00000000000000 \"pg_wrapper:x\"", NULL },
		{ "06 0100000000000000 0f00000000000000 \"UniqueNCCLID:xx\"", NULL },
		{ "06 0100000000000000 1100000000000000 \"SEQ_NUM_STORE_KEY\"", NULL },
		{ "03 0500000000000000 \"/mine\"", NULL },
		{ "05 0100000000000000 0f00000000000000 \"/exception_dump\"", NULL },
		{ "07", NULL },
		{ "0c", NULL },
	};
	for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
		struct ws_buf b;
		const bool knows_a_name = strstr(acts[i].bytes, "/G/G/") != NULL;
		core_open(&core, 3, "G");
		struct ws_store_conn *a = peer_of(&core, 'C', "10.0.0.2:1");
		send_set(a, 'C', "/G/G//cpu//0/1", "blob", 4);
		send_set(a, 'C', "/mine", "v", 1);
		send_set(peer_of(&core, 'C', "10.0.0.3:1"), 'C', "/G/G//cpu//0/2", "blob", 4);
		struct ws_store_conn *s = ws_store_conn_open(&core, "10.6.6.6:1");
		feed(s, "\x00\xce\xf7\x85\x3c", 5);
		bytes_of(&b, acts[i].bytes);
		feed(s, b.data, b.len);
		ws_buf_free(&b);
		if (s->doomed != (acts[i].why != NULL))
			fail_msg("%s: doomed %d", acts[i].bytes, s->doomed);
		if (acts[i].why)
			told("10.6.6.6:1", acts[i].why);
		ws_store_conn_close(s);
		/* A name is a secret: a second rank 1 that knows it is a rank. */
		if (knows_a_name)
			trouble_says("both call themselves rank 1");
		else if (core.trouble.code != WS_OK)
			fail_msg("%s: %s", acts[i].bytes, core.trouble.msg);
		const struct ws_bytes v = ws_store_entry_value(ws_store_keys_find(
			&core.keys, (struct ws_bytes){ "/mine", 5 }));
		assert_int_equal(v.n, 1);
		ws_store_conn_close(a);
		trouble_says(knows_a_name ? "both" : "rank 1 (10.0.0.2:1) left the rendezvous");
		ws_store_core_fini(&core);
	}
}

/* A lazy server's ranks use no key before the first bucket. */
TEST(ranks_without_a_key_are_known_by_their_number)
{
	for (int before = 0; before < 2; before++) {
		core_open(&core, 3, "G");
		struct ws_store_conn *s = NULL, *a = peer_of(&core, 'C', "10.0.0.2:1");
		if (before)
			s = peer_of(&core, 'C', "10.6.6.6:1");
		peer_of(&core, 'C', "10.0.0.3:1");
		ws_store_watch_agreed(&core);
		if (!before)
			s = peer_of(&core, 'C', "10.6.6.6:1");
		assert_int_equal(s->doomed, !before);
		ws_store_conn_close(s);
		told("10.6.6.6:1", before ? "before it took part" : "all ranks had joined");
		assert_int_equal(core.trouble.code, WS_OK);
		ws_store_conn_close(a);
		trouble_says("the peer at 10.0.0.2:1 left the rendezvous");
		ws_store_core_fini(&core);
	}
}

TEST(a_sender_is_who_came_first_with_its_number)
{
	const struct ws_store_opts opts = { .world_size = 3, .senders = 2, .group = "G" };
	assert_int_equal(ws_store_core_init(&core, &opts, NULL), 0);
	core.now = 1;
	struct ws_store_conn *a = peer_of(&core, 'C', "10.0.0.2:1");
	struct ws_store_conn *s = peer_of(&core, 'C', "10.6.6.6:1");
	send_set(a, 'C', WS_STORE_SENDER "2/list", "x", 1);
	send_set(s, 'C', WS_STORE_SENDER "2/fail", "x", 1);
	assert_true(s->doomed);
	told("10.6.6.6:1", "no rank");
	ws_store_conn_close(s);
	send_set(a, 'C', WS_STORE_SENDER "2/sent", "x", 1);
	assert_int_equal(core.trouble.code, WS_OK);
	ws_store_conn_close(a);
	trouble_says("sender 2 (10.0.0.2:1) left");
	ws_store_core_fini(&core);
}

static void gloo_is(const char *prefix, char epoch)
{
	assert_string_equal(core.gloo.prefix, prefix);
	assert_int_equal(core.gloo.epoch, epoch);
}

TEST(the_first_gloo_peer_tells_prefix_and_layout)
{
	core_open(&core, 4, "G");
	struct ws_store_conn *c = peer_of(&core, 'C', "10.0.0.2:1");
	send_set(peer_of(&core, 'C', "10.0.0.7:1"), 'C', "/H/H//cpu//0/1", "blob", 4);
	gloo_is("", 0);
	send_set(c, 'C', "/G/G//cpu//0/1", "blob", 4);
	gloo_is("/G/G//cpu//0/", 'C');
	assert_int_equal(c->rank, 1);
	ws_store_core_fini(&core);

	core_open(&core, 4, "G");
	c = peer_of(&core, 'A', "10.0.0.2:1");
	send_set(c, 'A', "/G/G/0/rank_3", "vm", 2);
	gloo_is("/G/G/0/", 'A');
	assert_int_equal(c->rank, 3);
	assert_int_equal(core.trouble.code, WS_OK);
	ws_store_core_fini(&core);
}

TEST(torch_2_1_is_told_from_2_0_by_its_twin_or_its_addresses)
{
	char address[2 * 136] = { 2 };
	/* No second connection comes: after a while it is torch 2.1. */
	core_open(&core, 4, "G");
	struct ws_store_conn *c = peer_of(&core, 'B', "10.0.0.2:1");
	send_set(c, 'B', "/G/G//cpu//0/rank_1", "vm", 2);
	gloo_is("/G/G//cpu//0/", 0);
	assert_int_equal(core.n_undecided, 1);
	ws_store_core_tick(&core, core.now + 100 * WS_NS_PER_MS);
	gloo_is("/G/G//cpu//0/", 0);
	ws_store_core_tick(&core, core.now + WS_NS_PER_S);
	gloo_is("/G/G//cpu//0/", 'B');
	assert_int_equal(core.n_undecided, 0);
	trouble_says("rank 1 (10.0.0.2:1) runs torch 2.1");
	ws_store_core_fini(&core);

	/* It numbers its pairs: 2.1 at once, twin or not. */
	core_open(&core, 4, "G");
	c = peer_of(&core, 'A', "10.0.0.2:1");
	send_set(c, 'A', "/G/G//cpu//0/1", address, sizeof address);
	gloo_is("/G/G//cpu//0/", 'B');
	ws_store_core_fini(&core);

	/* The twin arrives a little late. */
	core_open(&core, 4, "G");
	c = peer_of(&core, 'B', "10.0.0.2:1");
	memset(address + 128, 0xff, 8);
	send_set(c, 'B', "/G/G//cpu//0/1", address, sizeof address);
	assert_non_null(ws_store_conn_open(&core, "10.0.0.2:2"));
	ws_store_core_tick(&core, core.now + 100 * WS_NS_PER_MS);
	gloo_is("/G/G//cpu//0/", 'A');
	assert_int_equal(core.trouble.code, WS_OK);
	ws_store_core_fini(&core);
}

TEST(peers_of_different_torch_cannot_share_a_gloo_group)
{
	core_open(&core, 4, "G");
	send_set(peer_of(&core, 'C', "10.0.0.2:1"), 'C', "/G/G//cpu//0/1", "blob", 4);
	send_set(peer_of(&core, 'A', "10.0.0.3:1"), 'A', "/G/G//cpu//0/rank_2", "vm", 2);
	trouble_says("rank 2 (10.0.0.3:1) speaks another version of gloo");
	ws_store_core_fini(&core);
}

TEST(rank_0_is_emulated_where_torch_needs_it)
{
	core_open(&core, 3, "G");
	struct ws_store_conn *a = peer_of(&core, 'A', "10.0.0.2:1");
	struct ws_store_conn *b = peer_of(&core, 'A', "10.0.0.3:1");
	talk(a, "05 0100000000000000 1500000000000000 \"/G/G/SEQ_NUM_STORE_KE\"", "");
	talk(a, "05 0100000000000000 1600000000000000 \"/G/G/SEQ_NUM_STORE_KEY\"", "00");
	talk(a, "02 1600000000000000 \"/G/G/SEQ_NUM_STORE_KEY\"",
	     "0800000000000000 0000000000000000");
	send_wait(b, 'A', "/G/G/SEQ_NUM_STORE_KEY");
	ws_store_conn_sent(b, b->tx.len);
	/* The barrier counts us with the first who arrives, and overshoots for nobody. */
	const char add_1[] = "03 1a00000000000000 \"/store_based_barrier_key:1\" 0100000000000000";
	const char add_0[] = "03 1a00000000000000 \"/store_based_barrier_key:1\" 0000000000000000";
	talk(a, add_0, "0000000000000000");
	talk(a, "08 1a00000000000000 \"/store_based_barrier_key:1\"", "0100000000000000");
	talk(a, add_1, "0200000000000000");
	talk(a, add_0, "0200000000000000");
	talk(b, add_1, "0300000000000000");
	talk(a, add_0, "0300000000000000");
	talk(a, "04 0100000000000000 2600000000000000 \"/store_based_barrier_key:1:last_worker\"",
	     "00");
	ws_store_core_fini(&core);
}

TEST(the_report_shows_each_wait)
{
	static const struct { const char *key, *shown; bool foreign; } cases[] = {
		{ "/G/G//cuda//0", "/G/G//cuda//0", false },
		{ "/G2/G2/7", "/G2/G2/7", true },
		{ "/G/x\033[2Jy", "/G/x?[2Jy", false },
	};
	core_open(&core, 3, "G");
	struct ws_store_conn *c = peer_of(&core, 'C', "10.0.0.2:1");
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct ws_store_report r;
		send_wait(c, 'C', cases[i].key);
		assert_int_equal(ws_store_core_report(&core, &r, NULL), 0);
		assert_int_equal(r.joined, 1);
		assert_int_equal(r.n_peers, 1);
		assert_string_equal(r.peers[0].waits_for, cases[i].shown);
		assert_int_equal(r.peers[0].foreign, cases[i].foreign);
		assert_true(r.peers[0].connected);
		ws_store_report_fini(&r);
	}
	ws_store_core_fini(&core);
}

RUN_TESTS(NULL, NULL)
