/* SPDX-License-Identifier: Apache-2.0 */
/* test_store.c - what the operations of a store do, through real sockets, in all three epochs. */
#include "sock.h"
#include "store.h"
#include "store_feed.h"

#include <poll.h>
#include <pthread.h>
#include <unistd.h>

static _Thread_local struct ws_err err; /* of the call before */

static const char epochs[] = "ABC";

static struct ws_store *store_for(unsigned world_size)
{
	const struct ws_store_opts opts = { .host = "127.0.0.1", .world_size = world_size };
	struct ws_store *s = NULL;
	assert_ok(ws_store_open(&opts, &s, &err), &err);
	return s;
}

static struct ws_store_client *client_of(struct ws_store *s, char epoch)
{
	const struct ws_store_client_opts opts = { .host = "127.0.0.1", .port = ws_store_port(s),
	                                           .epoch = epoch };
	struct ws_store_client *c = NULL;
	assert_ok(ws_store_connect(&opts, ws_deadline_in(5 * WS_NS_PER_S), NULL, &c, &err), &err);
	return c;
}

static ws_deadline soon(void)
{
	return ws_deadline_in(5 * WS_NS_PER_S);
}

#define ok(call) do { \
	if (call) \
		fail_msg("%s: %s", #call, err.msg); \
} while (0)

static void set(struct ws_store_client *c, const char *key, const char *value)
{
	ok(ws_store_client_set(c, key, value, strlen(value), soon(), &err));
}

static void value_is(struct ws_store_client *c, const char *key, const char *want)
{
	struct ws_buf b;
	ws_buf_init(&b, 0);
	ok(ws_store_client_get(c, key, soon(), NULL, &b, &err));
	assert_int_equal(b.len, strlen(want));
	assert_string_equal(ws_buf_str(&b), want);
	ws_buf_free(&b);
}

static int64_t add(struct ws_store_client *c, const char *key, int64_t delta)
{
	int64_t sum = -1;
	ok(ws_store_client_add(c, key, delta, soon(), &sum, &err));
	return sum;
}

static bool present(struct ws_store_client *c, const char *a, const char *b)
{
	const char *const keys[] = { a, b };
	bool all = false;
	ok(ws_store_client_check(c, keys, b ? 2 : 1, soon(), &all, &err));
	return all;
}

TEST(values_are_bytes_and_counters_are_text)
{
	for (const char *e = epochs; *e; e++) {
		struct ws_store *s = store_for(0);
		struct ws_store_client *c = client_of(s, *e);
		value_is(c, "init/", "1");
		set(c, "/k", "v");
		value_is(c, "/k", "v");
		set(c, "/k", "another");
		value_is(c, "/k", "another");
		set(c, "/empty", "");
		value_is(c, "/empty", "");
		assert_int_equal(add(c, "/n", 2), 2);
		value_is(c, "/n", "2");
		set(c, "/n", "5");
		assert_int_equal(add(c, "/n", 1), 6);
		assert_int_equal(add(c, "/n", -10), -4);
		value_is(c, "/n", "-4");
		const char nul[] = { 0, 1, 0, 2 };
		struct ws_buf b;
		ws_buf_init(&b, 0);
		ok(ws_store_client_set(c, "/bytes", nul, sizeof nul, soon(), &err));
		ok(ws_store_client_get(c, "/bytes", soon(), NULL, &b, &err));
		assert_int_equal(b.len, sizeof nul);
		assert_memory_equal(b.data, nul, sizeof nul);
		ws_buf_free(&b);
		ws_store_disconnect(c);
		ws_store_close(s);
	}
}

TEST(keys_are_checked_and_deleted)
{
	for (const char *e = epochs; *e; e++) {
		struct ws_store *s = store_for(0);
		struct ws_store_client *c = client_of(s, *e);
		bool deleted = false;
		set(c, "/a", "1");
		assert_true(present(c, "/a", NULL));
		assert_false(present(c, "/a", "/b"));
		set(c, "/b", "1");
		assert_true(present(c, "/a", "/b"));
		ok(ws_store_client_delete(c, "/b", soon(), &deleted, &err));
		assert_true(deleted);
		ok(ws_store_client_delete(c, "/b", soon(), &deleted, &err));
		assert_false(deleted);
		ws_store_disconnect(c);
		ws_store_close(s);
	}
}

/* Requests that our client does not make, but torch's does. */
TEST(torch_compares_and_counts_in_all_epochs)
{
	static const struct { const char *values, *reply; } cases[] = {
		{ "0100000000000000 \"x\" 0100000000000000 \"n\"", "0100000000000000 \"x\"" },
		{ "0000000000000000 0100000000000000 \"f\"", "0100000000000000 \"f\"" },
		{ "0100000000000000 \"f\" 0100000000000000 \"s\"", "0100000000000000 \"s\"" },
		{ "0100000000000000 \"f\" 0100000000000000 \"t\"", "0100000000000000 \"s\"" },
	};
	static const char *const opcodes[][2] = { { "01", "06" }, { "01", "06" }, { "02", "07" } };
	char request[160];
	for (size_t e = 0; epochs[e]; e++) {
		struct ws_store_core core;
		core_open(&core, 0, NULL);
		struct ws_store_conn *c = peer_of(&core, epochs[e], "10.0.0.2:1");
		for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
			snprintf(request, sizeof request, "%s 0200000000000000 \"/k\" %s",
			         opcodes[e][0], cases[i].values);
			talk(c, request, cases[i].reply);
			talk(c, opcodes[e][1], i ? "0200000000000000" : "0100000000000000");
		}
		ws_store_core_fini(&core);
	}
}

TEST(torch_appends_and_wakes)
{
	struct ws_store_core core;
	core_open(&core, 0, NULL);
	struct ws_store_conn *c = peer_of(&core, 'C', "10.0.0.2:1");
	talk(c, "09 0200000000000000 \"/a\" 0100000000000000 \"x\"", "");
	talk(c, "09 0200000000000000 \"/a\" 0000000000000000", "");
	talk(c, "09 0200000000000000 \"/a\" 0200000000000000 \"yz\"", "");
	talk(c, "03 0200000000000000 \"/a\"", "0300000000000000 \"xyz\"");
	/* Each of them wakes. */
	send_wait(c, 'C', "/w");
	talk(c, "09 0200000000000000 \"/w\" 0100000000000000 \"x\"", "00");
	send_wait(c, 'C', "/v");
	talk(c, "02 0200000000000000 \"/v\" 0000000000000000 0100000000000000 \"x\"",
	     "00 0100000000000000 \"x\"");
	ws_store_core_fini(&core);
}

struct waiter {
	struct ws_store_client *c;
	const char *keys[2];
	ws_deadline until;
	int rc;
	enum ws_code code;
};

static void *wait_for_keys(void *arg)
{
	struct waiter *w = arg;
	err = (struct ws_err)WS_ERR_INIT;
	w->rc = ws_store_client_wait(w->c, w->keys, 2, w->until, NULL, &err);
	w->code = err.code;
	return NULL;
}

TEST(a_wait_ends_when_the_last_key_appears)
{
	for (const char *e = epochs; *e; e++) {
		struct ws_store *s = store_for(0);
		struct ws_store_client *setter = client_of(s, 'C');
		struct waiter w = { .c = client_of(s, *e), .keys = { "/x", "/y" },
			            .until = soon() };
		pthread_t t;
		set(setter, "/x", "1");
		pthread_create(&t, NULL, wait_for_keys, &w);
		usleep(20 * 1000);
		ok(ws_store_set(s, "/y", "2", 1, false, &err));
		pthread_join(t, NULL);
		assert_int_equal(w.rc, 0);
		assert_int_equal(ws_store_client_wait(w.c, w.keys, 0, soon(), NULL, NULL), 0);
		ws_store_disconnect(setter);
		ws_store_disconnect(w.c);
		ws_store_close(s);
	}
}

TEST(a_set_and_an_add_wake)
{
	struct ws_store *s = store_for(0);
	struct ws_store_client *setter = client_of(s, 'C');
	for (int way = 0; way < 2; way++) {
		char a[8], b[8];
		snprintf(a, sizeof a, "/a%d", way);
		snprintf(b, sizeof b, "/b%d", way);
		struct waiter w = { .c = client_of(s, 'C'), .keys = { a, b }, .until = soon() };
		pthread_t t;
		pthread_create(&t, NULL, wait_for_keys, &w);
		usleep(10 * 1000);
		set(setter, b, "1");
		if (way == 0)
			set(setter, a, "1");
		else
			add(setter, a, 1);
		pthread_join(t, NULL);
		assert_int_equal(w.rc, 0);
		ws_store_disconnect(w.c);
	}
	ws_store_disconnect(setter);
	ws_store_close(s);
}

TEST(a_timed_out_wait_leaves_the_client_usable_but_in_epoch_a)
{
	struct ws_store *s = store_for(0);
	for (const char *e = epochs; *e; e++) {
		struct ws_store_client *c = client_of(s, *e);
		const char *const keys[] = { "/never" };
		for (int i = 0; i < 3; i++) {
			const ws_deadline until = ws_deadline_in(20 * WS_NS_PER_MS);
			assert_int_equal(ws_store_client_wait(c, keys, 1, until, NULL, &err), -1);
			assert_int_equal(err.code, i && *e == 'A' ? WS_EDATA : WS_ETIMEOUT);
			if (i == 0)
				assert_non_null(strstr(err.msg, "/never"));
		}
		if (*e == 'A')
			assert_int_equal(ws_store_client_set(c, "/k", "v", 1, soon(), &err), -1);
		else
			value_is(c, "init/", *e == 'B' ? "2" : "3");
		ws_store_disconnect(c);
	}
	ws_store_close(s);
}

/* The key appears around the moment of the time-out: whoever comes first, the stream stays in
 * step. */
TEST(a_wait_and_its_cancelling_may_cross)
{
	struct ws_store *s = store_for(0);
	struct ws_store_client *c = client_of(s, 'C');
	int woken = 0;
	for (int i = 0; i < 200; i++) {
		char key[16];
		snprintf(key, sizeof key, "/r%d", i);
		struct waiter w = { .c = c, .keys = { key, key },
		                    .until = ws_deadline_in(2 * WS_NS_PER_MS) };
		pthread_t t;
		pthread_create(&t, NULL, wait_for_keys, &w);
		usleep((unsigned)(1700 + i * 3));
		ok(ws_store_set(s, key, "v", 1, false, &err));
		pthread_join(t, NULL);
		woken += w.rc == 0;
		assert_int_equal(w.code, w.rc ? WS_ETIMEOUT : WS_OK);
		value_is(c, key, "v");
	}
	print_message("# %d of 200 were woken in time\n", woken);
	ws_store_disconnect(c);
	ws_store_close(s);
}

/* The key comes right after the cancelled wait: were the WAIT not cancelled at the store, its reply
 * would be taken for that of the next request. */
TEST(a_cancelled_wait_leaves_the_client_usable_but_in_epoch_a)
{
	struct ws_store *s = store_for(0);
	struct ws_cancel cancel = WS_CANCEL_INIT;
	ws_cancel_set(&cancel);
	for (const char *e = epochs; *e; e++) {
		struct ws_store_client *c = client_of(s, *e);
		const char late[] = { '/', *e, 0 };
		const char *const keys[] = { late };
		assert_fails(ws_store_client_wait(c, keys, 1, WS_FOREVER, &cancel, &err), &err,
		             WS_ECANCELLED, ": cancelled");
		assert_non_null(strstr(err.msg, late));
		ok(ws_store_set(s, late, "v", 1, false, &err));
		if (*e == 'A')
			assert_fails(ws_store_client_set(c, "/k", "v", 1, soon(), &err), &err,
			             WS_EDATA, "left without its reply");
		else
			value_is(c, "init/", *e == 'B' ? "2" : "3");
		ws_store_disconnect(c);
	}
	ws_store_close(s);
}

/* A store that answers nothing after the handshake, or the WAIT alone, early or late. */
struct mute {
	int listener;
	bool wakes, crosses;
	struct ws_cancel *cancel; /* set once the client waits for what never comes */
};

static void *be_mute(void *arg)
{
	struct mute *m = arg;
	unsigned char got[256];
	poll(&(struct pollfd){ .fd = m->listener, .events = POLLIN }, 1, -1);
	const int fd = accept(m->listener, NULL, NULL);
	/* VALIDATE and its number, PING and its nonce, which goes back */
	assert_int_equal(recv(fd, got, 10, MSG_WAITALL), 10);
	assert_int_equal(send(fd, got + 6, 4, 0), 4);
	/* WAIT with one key of two bytes; a CANCEL_WAIT may follow at once */
	assert_int_equal(recv(fd, got, 19, MSG_WAITALL), 19);
	const unsigned char replies[] = { WS_STORE_WOKEN, WS_STORE_WAIT_CANCELLED };
	if (m->wakes) {
		assert_int_equal(send(fd, replies, 1, 0), 1);
		assert_true(recv(fd, got, sizeof got, 0) > 0); /* GET */
	} else if (m->crosses) {
		assert_int_equal(recv(fd, got, 1, MSG_WAITALL), 1);
		assert_int_equal(send(fd, replies, 2, 0), 2);
	}
	ws_cancel_set(m->cancel);
	while (recv(fd, got, sizeof got, 0) > 0)
		continue;
	close(fd);
	return NULL;
}

static struct ws_store_client *client_of_mute(struct mute *m, pthread_t *t)
{
	struct ws_store_client *c = NULL;
	uint16_t port;
	ok(ws_cancel_init(m->cancel, &err));
	m->listener = ws_sock_listen("127.0.0.1", 0, 0, NULL, &port, &err);
	assert_true(m->listener >= 0);
	pthread_create(t, NULL, be_mute, m);
	const struct ws_store_client_opts opts = { .host = "127.0.0.1", .port = port,
	                                           .no_join = true };
	ok(ws_store_connect(&opts, WS_FOREVER, NULL, &c, &err));
	return c;
}

static void end_mute(struct mute *m, struct ws_store_client *c, pthread_t t)
{
	ws_store_disconnect(c);
	pthread_join(t, NULL);
	close(m->listener);
	ws_cancel_fini(m->cancel);
}

TEST(a_wait_that_is_answered_after_its_deadline_succeeds_without_an_error)
{
	struct ws_cancel cancel;
	struct mute m = { .crosses = true, .cancel = &cancel };
	const char *const keys[] = { "/k" };
	pthread_t t;
	struct ws_store_client *c = client_of_mute(&m, &t);
	assert_int_equal(ws_store_client_wait(c, keys, 1, ws_deadline_in(1), NULL, &err), 0);
	assert_int_equal(err.code, WS_OK);
	end_mute(&m, c, t);
}

/* The deadline is far away: a call that it ends fails with another code. */
TEST(a_store_that_answers_no_more_does_not_hide_the_cancel)
{
	for (int wakes = 0; wakes < 2; wakes++) {
		struct ws_cancel cancel;
		struct mute m = { .wakes = wakes, .cancel = &cancel };
		struct ws_buf value;
		pthread_t t;
		struct ws_store_client *c = client_of_mute(&m, &t);
		ws_buf_init(&value, 100);
		assert_fails(ws_store_client_get(c, "/k", ws_deadline_in(300 * WS_NS_PER_S),
		                                 &cancel, &value, &err), &err,
		             WS_ECANCELLED, "cancelled");
		end_mute(&m, c, t);
	}
}

static void *stop_soon(void *arg)
{
	usleep(20 * 1000);
	ws_cancel_set(arg);
	return NULL;
}

TEST(its_stop_flag_ends_a_client_for_good)
{
	struct ws_store *s = store_for(0);
	struct ws_cancel stop;
	struct ws_store_client *c = NULL;
	const char *const keys[] = { "/never" };
	pthread_t t;
	ok(ws_cancel_init(&stop, &err));
	const struct ws_store_client_opts opts = { .host = "127.0.0.1", .port = ws_store_port(s),
	                                           .stop = &stop };
	ok(ws_store_connect(&opts, soon(), NULL, &c, &err));
	pthread_create(&t, NULL, stop_soon, &stop);
	assert_fails(ws_store_client_wait(c, keys, 1, WS_FOREVER, NULL, &err), &err, WS_ECANCELLED,
	             "");
	pthread_join(t, NULL);
	assert_fails(ws_store_client_set(c, "/k", "v", 1, soon(), &err), &err, WS_ECANCELLED, "");
	ws_store_disconnect(c);
	ws_cancel_fini(&stop);
	ws_store_close(s);
}

static void *close_soon(void *arg)
{
	usleep(30 * 1000);
	ws_store_close(arg);
	return NULL;
}

static void *get_inside(void *arg)
{
	struct ws_buf b;
	ws_buf_init(&b, 0);
	assert_int_equal(ws_store_get(arg, "/never", WS_FOREVER, NULL, &b, &err), -1);
	assert_int_equal(err.code, WS_ECANCELLED);
	ws_buf_free(&b);
	return NULL;
}

TEST(closing_the_store_fails_everybody_at_once)
{
	struct ws_store *s = store_for(0);
	struct ws_store_client *c = client_of(s, 'C');
	const char *const keys[] = { "/never" };
	pthread_t closer, inside;
	pthread_create(&inside, NULL, get_inside, s);
	pthread_create(&closer, NULL, close_soon, s);
	const int64_t start = ws_now_ns();
	assert_fails(ws_store_client_wait(c, keys, 1, WS_FOREVER, NULL, &err), &err, WS_EDATA, "");
	assert_true(ws_now_ns() - start < 20 * WS_NS_PER_S);
	pthread_join(closer, NULL);
	pthread_join(inside, NULL);
	ws_store_disconnect(c);
}

static void *set_soon(void *arg)
{
	usleep(20 * 1000);
	set(arg, "/late", "value");
	return NULL;
}

TEST(our_own_process_waits_without_a_socket)
{
	struct ws_store *s = store_for(0);
	struct ws_store_client *c = client_of(s, 'C');
	struct ws_buf b;
	pthread_t t;
	ws_buf_init(&b, 0);
	pthread_create(&t, NULL, set_soon, c);
	ok(ws_store_get(s, "/late", soon(), NULL, &b, &err));
	assert_string_equal(ws_buf_str(&b), "value");
	pthread_join(t, NULL);
	assert_fails(ws_store_get(s, "/never", ws_deadline_in(10 * WS_NS_PER_MS), NULL, &b, &err),
	             &err, WS_ETIMEOUT, "/never");
	struct ws_cancel cancel = WS_CANCEL_INIT;
	ok(ws_cancel_init(&cancel, &err));
	ws_cancel_set(&cancel);
	assert_int_equal(ws_store_get(s, "/never", WS_FOREVER, &cancel, &b, &err), -1);
	assert_int_equal(err.code, WS_ECANCELLED);
	ws_cancel_fini(&cancel);
	ws_buf_free(&b);
	ws_store_disconnect(c);
	ws_store_close(s);
}

static void *connect_early(void *arg)
{
	const struct ws_store_client_opts opts = { .host = "127.0.0.1", .port = *(uint16_t *)arg };
	struct ws_store_client *c = NULL;
	ok(ws_store_connect(&opts, soon(), NULL, &c, &err));
	ws_store_disconnect(c);
	return NULL;
}

TEST(a_client_may_come_before_the_store)
{
	struct ws_store *s = store_for(0);
	uint16_t port = ws_store_port(s);
	ws_store_close(s);
	pthread_t t;
	pthread_create(&t, NULL, connect_early, &port);
	usleep(100 * 1000);
	const struct ws_store_opts opts = { .host = "127.0.0.1", .port = port };
	ok(ws_store_open(&opts, &s, &err));
	pthread_join(t, NULL);
	ws_store_close(s);
	const struct ws_store_client_opts none = { .host = "127.0.0.1", .port = port };
	struct ws_store_client *c;
	assert_fails(ws_store_connect(&none, ws_deadline_in(50 * WS_NS_PER_MS), NULL, &c, &err),
	             &err, WS_EREACH, "");
}

enum { PEERS = 200, KEYS = 20 };

struct peer {
	struct ws_store *s;
	int rank;
	pthread_t thread;
};

/* As in a full mesh: everybody publishes, and reads everybody else. */
static void *mesh(void *arg)
{
	const struct peer *p = arg;
	struct ws_store_client *c = client_of(p->s, epochs[p->rank % 3]);
	char key[32], value[32];
	snprintf(key, sizeof key, "/mesh/%d", p->rank);
	set(c, key, key);
	for (int i = 0; i < KEYS; i++) {
		snprintf(key, sizeof key, "/mesh/%d", (p->rank + i * 7) % PEERS);
		value_is(c, key, key);
	}
	snprintf(value, sizeof value, "%d", PEERS);
	add(c, "/done", 1);
	ws_store_disconnect(c);
	return NULL;
}

TEST(hundreds_of_peers_wait_for_each_other)
{
	struct ws_store *s = store_for(PEERS + 1);
	static struct peer peers[PEERS];
	const int64_t start = ws_now_ns();
	for (int i = 0; i < PEERS; i++) {
		peers[i] = (struct peer){ .s = s, .rank = i };
		assert_int_equal(pthread_create(&peers[i].thread, NULL, mesh, &peers[i]), 0);
	}
	for (int i = 0; i < PEERS; i++)
		pthread_join(peers[i].thread, NULL);
	print_message("# %d peers, %d gets each: %.0f ms\n", PEERS, KEYS,
	              (double)(ws_now_ns() - start) / 1e6);
	struct ws_store_report r;
	ok(ws_store_report(s, &r, &err));
	assert_int_equal(r.joined, PEERS);
	ws_store_report_fini(&r);
	struct ws_buf b;
	ws_buf_init(&b, 0);
	ok(ws_store_get(s, "/done", soon(), NULL, &b, &err));
	assert_string_equal(ws_buf_str(&b), "200");
	ws_buf_free(&b);
	ws_store_close(s);
}

RUN_TESTS(NULL, NULL)
