/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_hostile.c - strangers at the port: floods, bombs, trickles, and writes to our keys. */
#include "store_feed.h"

#include "sock.h"

#include <poll.h>
#include <sys/socket.h>
#include <unistd.h>

static struct ws_store_core core;

static struct ws_bytes text(const char *s)
{
	return (struct ws_bytes){ s, strlen(s) };
}

static struct ws_store_conn *validated(void)
{
	struct ws_store_conn *c = ws_store_conn_open(&core, "10.6.6.6:666");
	assert_non_null(c);
	feed(c, "\x00\xce\xf7\x85\x3c", 5);
	return c;
}

TEST(our_keys_cannot_be_written_from_outside)
{
	static const char *const writes[] = {
		/* SET */
		"01 0300000000000000 \"/id\" 0100000000000000 \"x\"",
		/* CAS */
		"02 0300000000000000 \"/id\" 0300000000000000 \"our\" 0100000000000000 \"x\"",
		/* ADD */
		"04 0300000000000000 \"/id\" 0100000000000000",
		/* DELETE */
		"08 0300000000000000 \"/id\"",
		/* APPEND */
		"09 0300000000000000 \"/id\" 0100000000000000 \"x\"",
		/* MULTI_SET */
		"0b 0100000000000000 0300000000000000 \"/id\" 0100000000000000 \"x\"",
		/* BARRIER */
		"12 0300000000000000 \"/id\" 0100000000000000",
	};
	core_open(&core, 2, "G");
	assert_int_equal(ws_store_keys_set(&core.keys, text("/id"), text("our")), 0);
	ws_store_keys_find(&core.keys, text("/id"))->once = true;
	for (size_t i = 0; i < sizeof writes / sizeof writes[0]; i++) {
		struct ws_store_conn *c = validated();
		talk(c, "03 0300000000000000 \"/id\"", "0300000000000000 \"our\"");
		/* A comparison that fails changes nothing and is allowed. */
		talk(c, "02 0300000000000000 \"/id\" 0100000000000000 \"y\" 0100000000000000 \"x\"",
		     "0300000000000000 \"our\"");
		assert_false(c->doomed);
		talk(c, writes[i], "");
		assert_true(c->doomed);
		ws_store_conn_close(c);
		const struct ws_bytes v =
			ws_store_entry_value(ws_store_keys_find(&core.keys, text("/id")));
		assert_int_equal(v.n, 3);
		assert_memory_equal(v.data, "our", 3);
	}
	/* Nothing that follows in the same bytes is executed either. */
	struct ws_store_conn *c = validated();
	talk(c, "08 0300000000000000 \"/id\" 0d 01000000", "");
	ws_store_core_fini(&core);
}

TEST(counting_on_text_drops_and_overflow_wraps)
{
	static const char *const bad[] = { "", "x", "99999999999999999999",
	                                   "00000000000000000000000000000000000001" };
	core_open(&core, 0, NULL);
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		struct ws_store_conn *c = validated();
		send_set(c, 'C', "/n", bad[i], strlen(bad[i]));
		talk(c, "04 0200000000000000 2f6e 0100000000000000", "");
		assert_true(c->doomed);
		ws_store_conn_close(c);
	}
	struct ws_store_conn *c = validated();
	send_set(c, 'C', "/n", " 7up", 4); /* as std::stoll reads it */
	talk(c, "04 0200000000000000 2f6e 0100000000000000", "0800000000000000");
	send_set(c, 'C', "/n", "9223372036854775807", 19);
	talk(c, "04 0200000000000000 2f6e 0100000000000000", "0000000000000080");
	assert_false(c->doomed);
	ws_store_core_fini(&core);
}

TEST(another_magic_number_or_a_second_one_that_is_wrong_drops)
{
	core_open(&core, 0, NULL);
	struct ws_store_conn *c = validated();
	talk(c, "00 cef7853c 0d 01000000", "01000000");
	talk(c, "00 cef7853d", "");
	assert_true(c->doomed);
	c = ws_store_conn_open(&core, "10.6.6.6:1");
	talk(c, "\"GET / HTTP/1.1\" 0d0a", "");
	assert_true(c->doomed);
	ws_store_core_fini(&core);
}

TEST(a_flood_of_keys_ends_at_the_limit)
{
	const struct ws_store_opts opts = { .max_bytes = 1 << 20 };
	assert_int_equal(ws_store_core_init(&core, &opts, NULL), 0);
	struct ws_store_conn *c = validated();
	char key[32], value[1000] = { 0 };
	int n = 0;
	while (!c->doomed) {
		snprintf(key, sizeof key, "/%d", n++);
		send_set(c, 'C', key, value, sizeof value);
	}
	assert_true(n > 800 && n < 1100);
	assert_true(core.keys.bytes <= 1 << 20);
	/* What is there can still be replaced, and others are served. */
	struct ws_store_conn *other = validated();
	send_set(other, 'C', "/0", value, sizeof value);
	send_set(other, 'C', "/1", "", 0);
	assert_false(other->doomed);
	ws_store_core_fini(&core);
}

/* WAIT for a whole list of keys that are not there, again and again. */
TEST(list_bombs_are_counted_and_replaced)
{
	core_open(&core, 0, NULL);
	struct ws_store_conn *c = validated();
	struct ws_buf b;
	ws_buf_init(&b, 0);
	ws_store_put_u8(&b, 6);
	ws_store_put_i64(&b, WS_STORE_LIST_MAX);
	char key[32];
	for (int i = 0; i < WS_STORE_LIST_MAX; i++) {
		snprintf(key, sizeof key, "/missing/%d", i);
		put_str(&b, key);
	}
	const int64_t start = ws_now_ns();
	size_t bytes = 0;
	for (int i = 0; i < 4; i++) {
		feed(c, b.data, b.len);
		assert_int_equal(c->waiter.n_missing, WS_STORE_LIST_MAX);
		assert_true(bytes == 0 || core.keys.bytes == bytes);
		bytes = core.keys.bytes;
	}
	print_message("# 4 waits for 128 Ki missing keys: %.0f ms\n",
	              (double)(ws_now_ns() - start) / 1e6);
	talk(c, "0c", "01");
	assert_int_equal(core.keys.bytes, 0);
	assert_int_equal(core.keys.n_entries, 0);
	ws_buf_free(&b);
	ws_store_core_fini(&core);
}

TEST(a_short_request_for_a_long_reply_ends_at_the_limit)
{
	core_open(&core, 0, NULL);
	struct ws_store_conn *c = validated();
	char *value = calloc(1, WS_STORE_VALUE_MAX);
	send_set(c, 'C', "/k", value, WS_STORE_VALUE_MAX);
	free(value);
	struct ws_buf b;
	ws_buf_init(&b, 0);
	ws_store_put_u8(&b, 10);
	ws_store_put_i64(&b, 10000);
	for (int i = 0; i < 10000; i++)
		put_str(&b, "/k");
	feed(c, b.data, b.len);
	assert_true(c->doomed);
	assert_true(c->tx.len <= 64 << 20);
	ws_buf_free(&b);
	ws_store_core_fini(&core);
}

TEST(half_requests_share_one_limit_of_memory)
{
	const struct ws_store_opts opts = { .max_bytes = 16 << 20 };
	assert_int_equal(ws_store_core_init(&core, &opts, NULL), 0);
	struct ws_buf b;
	ws_buf_init(&b, 0);
	ws_store_put_u8(&b, 1);
	put_str(&b, "/k");
	ws_store_put_i64(&b, WS_STORE_VALUE_MAX);
	char *zeros = calloc(1, 7 << 20);
	ws_buf_add(&b, zeros, 7 << 20);
	free(zeros);
	int n = 0;
	struct ws_store_conn *c;
	do {
		c = validated();
		feed(c, b.data, b.len);
	} while (++n < 10 && !c->doomed);
	assert_true(n > 1 && n < 4);
	while (core.first)
		ws_store_conn_close(core.first);
	assert_int_equal(core.n_buffered, 0);
	ws_buf_free(&b);
	ws_store_core_fini(&core);
}

/* Whatever is done, in whatever order: when all is undone nothing is left on the account. */
TEST(the_account_of_bytes_balances)
{
	enum { KEYS = 8, CONNS = 4 };
	core_open(&core, 0, NULL);
	struct ws_store_conn *c[CONNS];
	for (int i = 0; i < CONNS; i++)
		c[i] = validated();
	srand(7);
	for (int i = 0; i < 20000; i++) {
		struct ws_store_conn *who = c[rand() % CONNS];
		char key[16];
		struct ws_buf b;
		ws_buf_init(&b, 0);
		snprintf(key, sizeof key, "/%d", rand() % KEYS);
		static const unsigned char ops[] = { 1, 2, 6, 8, 9, 12, 18, 6 };
		const unsigned op = ops[rand() % (int)sizeof ops];
		ws_store_put_u8(&b, op);
		if (op == 6)
			ws_store_put_i64(&b, 3);
		if (op != 12)
			put_str(&b, key);
		if (op == 6) {
			put_str(&b, "/0");
			put_str(&b, "/1");
		}
		if (op == 1 || op == 2 || op == 9)
			ws_store_put_bytes(&b, "12345", (size_t)(rand() % 6));
		if (op == 2)
			ws_store_put_bytes(&b, "12345", 5);
		if (op == 18)
			ws_store_put_i64(&b, 3);
		feed(who, b.data, b.len);
		ws_store_conn_sent(who, who->tx.len);
		ws_buf_free(&b);
		if (!who->doomed && rand() % 50)
			continue;
		for (int k = 0; k < CONNS; k++) {
			if (c[k] != who)
				continue;
			ws_store_conn_close(who);
			c[k] = validated();
		}
	}
	while (core.first)
		ws_store_conn_close(core.first);
	for (int k = 0; k < KEYS; k++) {
		char key[16];
		snprintf(key, sizeof key, "/%d", k);
		ws_store_keys_delete(&core.keys, text(key));
	}
	assert_int_equal(core.keys.bytes, 0);
	assert_int_equal(core.keys.n_entries, 0);
	assert_int_equal(core.keys.n_values, 0);
	assert_int_equal(core.n_buffered, 0);
	assert_int_equal(core.n_partial, 0);
	ws_store_core_fini(&core);
}

/* ---- through sockets ---- */

static int dial(struct ws_store *s)
{
	struct ws_err err;
	const int fd = ws_sock_connect("127.0.0.1", ws_store_port(s), ws_deadline_in(WS_NS_PER_S),
	                               NULL, &err);
	assert_true(fd >= 0);
	return fd;
}

static struct ws_store_client *join(struct ws_store *s, char epoch)
{
	const struct ws_store_client_opts opts = { .host = "127.0.0.1", .port = ws_store_port(s),
		                                   .epoch = epoch };
	struct ws_store_client *c = NULL;
	assert_false(ws_store_connect(&opts, ws_deadline_in(5 * WS_NS_PER_S), NULL, &c, NULL));
	return c;
}

static bool closed_within(int fd, int64_t ns)
{
	char byte;
	struct ws_err err;
	return ws_sock_read(fd, &byte, 1, ws_deadline_in(ns), NULL, "r", &err) &&
	       err.code == WS_EDATA;
}

static void write_all(int fd, const void *data, size_t n)
{
	struct ws_err err = WS_ERR_INIT;
	if (ws_sock_write(fd, data, n, ws_deadline_in(5 * WS_NS_PER_S), NULL, "w", &err))
		fail_msg("%s", err.msg);
}

TEST(a_trickle_is_dropped_and_silence_is_not)
{
	const struct ws_store_opts opts = { .host = "127.0.0.1", .request_ns = 200 * WS_NS_PER_MS };
	struct ws_store *s;
	assert_int_equal(ws_store_open(&opts, &s, NULL), 0);
	const int silent = dial(s), slow = dial(s);
	write_all(slow, "\x00\xce\xf7\x85\x3c\x0d\x01\x02\x03\x04\x01", 11);
	char echo[4];
	struct ws_err err;
	assert_ok(ws_sock_read(slow, echo, 4, ws_deadline_in(WS_NS_PER_S), NULL, "r", &err), &err);
	bool dropped = false;
	for (int i = 0; i < 20 && !dropped; i++) {
		if (i < 8)
			assert_true(send(slow, "", 1, MSG_NOSIGNAL) == 1 || i > 1);
		dropped = closed_within(slow, 50 * WS_NS_PER_MS);
	}
	assert_true(dropped);
	assert_false(closed_within(silent, 300 * WS_NS_PER_MS));
	close(silent);
	close(slow);
	ws_store_close(s);
}

static struct ws_store *open_for_five(void)
{
	const struct ws_store_opts opts = { .host = "127.0.0.1", .max_connections = 5 };
	struct ws_store *s;
	assert_int_equal(ws_store_open(&opts, &s, NULL), 0);
	return s;
}

static void expect_refused(struct ws_store *s, unsigned refused)
{
	struct ws_store_report r;
	assert_int_equal(ws_store_report(s, &r, NULL), 0);
	assert_int_equal(r.n_peers, 5);
	assert_int_equal(r.refused, refused);
	ws_store_report_fini(&r);
}

TEST(those_who_say_nothing_give_way_to_others)
{
	struct ws_store *s = open_for_five();
	struct ws_store_client *peers[5];
	int fd[8];
	for (int i = 0; i < 8; i++)
		fd[i] = dial(s);
	for (int i = 0; i < 8; i++)
		assert_int_equal(closed_within(fd[i], i < 3 ? 2 * WS_NS_PER_S : 30 * WS_NS_PER_MS),
		                 i < 3);
	expect_refused(s, 3);
	for (int i = 0; i < 5; i++)
		peers[i] = join(s, 'C');
	for (int i = 3; i < 8; i++)
		assert_true(closed_within(fd[i], 2 * WS_NS_PER_S));
	for (int i = 0; i < 8; i++)
		close(fd[i]);
	expect_refused(s, 8);
	const int late = dial(s); /* nobody is silent any more */
	assert_true(closed_within(late, 2 * WS_NS_PER_S));
	close(late);
	for (int i = 0; i < 5; i++)
		ws_store_disconnect(peers[i]);
	ws_store_close(s);
}

TEST(the_silent_connection_of_an_old_torch_stays)
{
	struct ws_store *s = open_for_five();
	struct ws_store_client *old = join(s, 'A'); /* two connections */
	int fd[5], n_closed = 0;
	for (int i = 0; i < 5; i++)
		fd[i] = dial(s);
	for (int i = 0; i < 5; i++)
		n_closed += closed_within(fd[i], i < 3 ? 30 * WS_NS_PER_MS : 2 * WS_NS_PER_S);
	assert_int_equal(n_closed, 2);
	expect_refused(s, 2);
	int64_t n;
	assert_false(ws_store_client_add(old, "k", 1, ws_deadline_in(WS_NS_PER_S), &n, NULL));
	for (int i = 0; i < 5; i++)
		close(fd[i]);
	ws_store_disconnect(old);
	ws_store_close(s);
}

static void drop_doomed(void)
{
	for (struct ws_store_conn *c = core.first, *next; c; c = next) {
		next = c->next;
		if (c->doomed)
			ws_store_conn_close(c);
	}
}

static void arrive_at(const char *bytes, const char *address)
{
	struct ws_buf b;
	struct ws_store_conn *c = ws_store_conn_open(&core, address);
	assert_non_null(c);
	bytes_of(&b, bytes);
	feed(c, b.data, b.len);
	ws_buf_free(&b);
	drop_doomed();
}

/* Between a rank's connection and its address come as many strangers as there is room for. */
TEST(strangers_cannot_keep_ranks_out)
{
	static const char *const acts[] = {
		"", "00cef7853c", "00", "00cef7853c 0d 01000000",
		"04 0500000000000000 \"init/\" 0100000000000000",
		"00cef7853c 04 0500000000000000 \"init/\" 0100000000000000",
		"03 0500000000000000 \"init/\" 0100000000000000",
		"00cef7853c 06 0100000000000000 0200000000000000 \"/x\"",
		"00cef7853c 01 0200000000000000 \"/x\" ffff000000000000",
	};
	const struct ws_store_opts opts = { .world_size = 4, .group = "G", .max_connections = 8 };
	for (size_t i = 0; i < sizeof acts / sizeof acts[0]; i++) {
		struct ws_store_conn *rank[3];
		assert_int_equal(ws_store_core_init(&core, &opts, NULL), 0);
		core.now = 1;
		rank[0] = peer_of(&core, 'C', "10.0.0.2:1");
		send_set(rank[0], 'C', "/G/G//cpu//0/1", "blob", 4);
		for (int n = 0; n < 80; n++, core.now += 500 * WS_NS_PER_MS)
			arrive_at(acts[i], "10.6.6.6:1");
		for (int k = 1; k < 3; k++) {
			for (int n = 0; n < 80; n++)
				arrive_at(acts[i], "10.6.6.6:1");
			/* Others come before its first bytes are read. */
			rank[k] = ws_store_conn_open(&core, "10.0.0.2:2");
			drop_doomed();
			for (int n = 0; n < 3; n++)
				arrive_at(acts[i], "10.6.6.6:1");
			feed(rank[k], "\x00\xce\xf7\x85\x3c", 5);
			send_add(rank[k], 'C', "init/", 1);
			for (int n = 0; n < 2; n++)
				arrive_at(acts[i], "10.6.6.6:1");
			send_set(rank[k], 'C', k == 1 ? "/G/G//cpu//0/2" : "/G/G//cpu//0/3", "", 0);
		}
		for (int n = 0; n < 80; n++)
			arrive_at(acts[i], "10.0.0.2:3");
		for (int k = 0; k < 3; k++) {
			assert_false(rank[k]->doomed);
			assert_int_equal(rank[k]->rank, k + 1);
		}
		assert_int_equal(core.trouble.code, WS_OK);
		assert_true(core.complete && core.n_strangers >= 1 && core.n_strangers < 8);
		ws_store_core_fini(&core);
	}
}

/* The second connections of torch 2.0 are silent for life. */
TEST(twins_of_ranks_stay_when_strangers_come)
{
	const struct ws_store_opts opts = { .world_size = 3, .group = "G", .max_connections = 8 };
	assert_int_equal(ws_store_core_init(&core, &opts, NULL), 0);
	core.now = 1;
	struct ws_store_conn *old = peer_of(&core, 'A', "10.0.0.2:1");
	struct ws_store_conn *twin = core.last;
	for (int n = 0; n < 80; n++)
		arrive_at("", n % 2 ? "10.0.0.2:7" : "10.6.6.6:1");
	send_set(old, 'A', "/G/G/0/rank_1", "vm", 2);
	assert_true(old->member);
	for (int n = 0; n < 80; n++)
		arrive_at("04 0500000000000000 \"init/\" 0100000000000000", "10.0.0.2:7");
	assert_false(twin->doomed);
	assert_true(ws_store_conn_has_twin(old));
	assert_int_equal(core.gloo.epoch, 'A');
	assert_int_equal(core.trouble.code, WS_OK);
	ws_store_core_fini(&core);
}

TEST(what_strangers_send_is_dropped_before_a_member_is)
{
	static char piece[64 << 10];
	const struct ws_store_opts opts = { .world_size = 3, .group = "G", .max_bytes = 1 << 20 };
	assert_int_equal(ws_store_core_init(&core, &opts, NULL), 0);
	core.now = 1;
	struct ws_store_conn *rank = peer_of(&core, 'C', "10.0.0.2:1");
	send_set(rank, 'C', "/G/G//cpu//0/1", "blob", 4);
	for (int i = 0; i < 100; i++) {
		struct ws_store_conn *c = validated();
		feed(c, "\x01\x01\0\0\0\0\0\0\0x\0\0\x10\0\0\0\0\0", 18);
		for (int k = 0; k < 3 && !c->doomed; k++)
			feed(c, piece, sizeof piece);
		send_set(rank, 'C', "/mine", piece, sizeof piece);
		assert_false(rank->doomed);
		assert_true(core.n_buffered <= core.keys.max_bytes);
	}
	assert_int_equal(core.trouble.code, WS_OK);
	/* A list of keys to wait for costs memory too. */
	struct ws_store_conn *c = validated();
	struct ws_buf b;
	ws_buf_init(&b, 0);
	ws_store_put_u8(&b, 6);
	ws_store_put_i64(&b, 1000);
	for (int i = 0; i < 1000; i++)
		put_str(&b, "/x");
	feed(c, b.data, b.len);
	assert_true(c->doomed);
	ws_buf_free(&b);
	ws_store_core_fini(&core);
}

TEST(trouble_stays_until_the_store_closes)
{
	const struct ws_store_opts opts = { .host = "127.0.0.1", .world_size = 2 };
	struct ws_store *s;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_store_open(&opts, &s, NULL), 0);
	assert_int_equal(ws_store_trouble(s, &err), 0);
	const int fd = dial(s);
	write_all(fd, "\x03\x05\0\0\0\0\0\0\0init/\x01\0\0\0\0\0\0\0", 22);
	char reply[8];
	assert_ok(ws_sock_read(fd, reply, 8, ws_deadline_in(WS_NS_PER_S), NULL, "r", &err), &err);
	close(fd);
	ws_store_settle(s);
	for (int i = 0; i < 2; i++)
		assert_fails(ws_store_trouble(s, &err), &err, WS_EDATA, "left the rendezvous");
	ws_store_close(s);
}

TEST(a_long_pipeline_of_requests_is_answered_in_order)
{
	enum { N = 100000 };
	const struct ws_store_opts opts = { .host = "127.0.0.1" };
	struct ws_store *s;
	assert_int_equal(ws_store_open(&opts, &s, NULL), 0);
	const int fd = dial(s);
	write_all(fd, "\x00\xce\xf7\x85\x3c", 5);
	struct ws_buf b;
	ws_buf_init(&b, 0);
	for (uint32_t i = 0; i < N; i++) {
		ws_store_put_u8(&b, 13);
		ws_store_put_u32(&b, i);
	}
	const int64_t start = ws_now_ns();
	write_all(fd, b.data, b.len);
	uint32_t *echo = malloc(N * sizeof *echo);
	struct ws_err err;
	assert_ok(ws_sock_read(fd, echo, N * sizeof *echo, ws_deadline_in(5 * WS_NS_PER_S), NULL,
	                       "r", &err), &err);
	for (uint32_t i = 0; i < N; i++)
		assert_int_equal(echo[i], i);
	print_message("# %d pipelined requests: %.0f ms\n", N, (double)(ws_now_ns() - start) / 1e6);
	free(echo);
	ws_buf_free(&b);
	close(fd);
	ws_store_close(s);
}

RUN_TESTS(NULL, NULL)
