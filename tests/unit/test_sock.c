/* SPDX-License-Identifier: Apache-2.0 */
/* test_sock.c - real sockets on loopback: deadlines pass, cancelling wakes, names print. */
#include "sock.h"
#include "test.h"

#include <arpa/inet.h>
#include <dlfcn.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <pthread.h>
#include <semaphore.h>
#include <unistd.h>

static sem_t answers; /* of the silent name server: one for each question that may end */

/* The system's, but for a name server that is silent and for a name with two addresses, ::1
 * first. */
int getaddrinfo(const char *name, const char *service, const struct addrinfo *hints,
                struct addrinfo **out)
{
	int (*real)(const char *, const char *, const struct addrinfo *, struct addrinfo **);
	*(void **)&real = dlsym(RTLD_NEXT, "getaddrinfo");
	if (name && strcmp(name, "silent.invalid") == 0 && !(hints->ai_flags & AI_NUMERICHOST)) {
		sem_wait(&answers);
		return EAI_AGAIN;
	}
	if (name && strcmp(name, "both.invalid") == 0 && !(hints->ai_flags & AI_NUMERICHOST)) {
		const int rc = real("::1", service, hints, out);
		return rc ? rc : real("127.0.0.1", service, hints, &(*out)->ai_next);
	}
	return real(name, service, hints, out);
}

/* All that look a name up, by number. */
enum { LOOKS = 5 };

static int look(int which, const char *host, ws_deadline until, const struct ws_cancel *cancel,
                struct ws_err *err)
{
	uint16_t port;
	char literal[64];
	bool yes;
	switch (which) {
	case 0:
		return ws_sock_connect(host, 1, until, cancel, err);
	case 1:
		return ws_sock_listen(host, 0, until, cancel, &port, err);
	case 2:
		return ws_host_is_loopback(host, until, cancel, &yes, err);
	case 3:
		return ws_host_is_local(host, until, cancel, &yes, err);
	default:
		return ws_host_local_toward(host, until, cancel, literal, sizeof literal, err);
	}
}

TEST(a_silent_name_server_is_not_waited_for)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_cancel cancel = WS_CANCEL_INIT;
	assert_int_equal(sem_init(&answers, 0, 0), 0);
	assert_int_equal(ws_cancel_init(&cancel, &err), 0);
	ws_cancel_set(&cancel);
	for (int i = 0; i < LOOKS; i++) {
		assert_fails_with(look(i, "silent.invalid", ws_deadline_in(50 * WS_NS_PER_MS),
		                       NULL, &err), &err, WS_ETIMEOUT,
		                  "resolve host 'silent.invalid': the deadline passed");
		assert_int_equal(look(i, "silent.invalid", WS_FOREVER, &cancel, &err), -1);
		assert_int_equal(err.code, WS_ECANCELLED);
	}
	ws_cancel_fini(&cancel);
	for (int i = 0; i < 2 * LOOKS + 1; i++)
		sem_post(&answers);
	assert_fails(ws_sock_connect("silent.invalid", 1, WS_FOREVER, NULL, &err), &err, WS_EREACH,
	             "");
	poll(NULL, 0, 100); /* those that were left behind are through */
}

static ws_deadline soon(void)
{
	return ws_deadline_in(10 * WS_NS_PER_S);
}

static int accepted(int listener)
{
	struct ws_err err;
	assert_int_equal(ws_sock_wait(listener, POLLIN, ws_deadline_in(WS_NS_PER_S), NULL, "accept",
	                              &err), 0);
	const int fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	assert_true(fd >= 0);
	return fd;
}

struct pair {
	int listener, a, b;
	uint16_t port;
};

static struct pair connected(const char *host)
{
	struct ws_err err = WS_ERR_INIT;
	struct pair p = { -1, -1, -1, 0 };
	p.listener = ws_sock_listen(host, 0, soon(), NULL, &p.port, &err);
	assert_true(p.listener >= 0);
	assert_int_not_equal(p.port, 0);
	p.a = ws_sock_connect("127.0.0.1", p.port, ws_deadline_in(WS_NS_PER_S), NULL, &err);
	assert_true(p.a >= 0);
	p.b = accepted(p.listener);
	return p;
}

static void closed(struct pair *p)
{
	close(p->listener);
	if (p->a >= 0)
		close(p->a);
	if (p->b >= 0)
		close(p->b);
}

TEST(bytes_arrive_on_every_kind_of_listener)
{
	static const char *const hosts[] = { NULL,        "",          "::",          "0.0.0.0",
		                             "127.0.0.1", "localhost", "both.invalid" };
	for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
		struct pair p = connected(hosts[i]);
		struct ws_err err;
		char got[6];
		assert_int_equal(ws_sock_write(p.a, "hello", 6, WS_FOREVER, NULL, "w", &err), 0);
		assert_int_equal(ws_sock_read(p.b, got, 6, WS_FOREVER, NULL, "r", &err), 0);
		assert_string_equal(got, "hello");
		closed(&p);
	}
}

TEST(a_refused_connection_fails_at_once)
{
	struct ws_err err;
	uint16_t port;
	const int fd = ws_sock_listen("127.0.0.1", 0, 0, NULL, &port, &err);
	close(fd);
	const int64_t start = ws_now_ns();
	assert_fails(ws_sock_connect("127.0.0.1", port, WS_FOREVER, NULL, &err), &err, WS_EREACH,
	             "connect to 127.0.0.1:");
	assert_true(ws_now_ns() - start < 20 * WS_NS_PER_S);
}

TEST(a_name_that_does_not_exist_is_not_reached)
{
	struct ws_err err;
	assert_fails(ws_sock_connect("no-such-host.invalid", 80, ws_deadline_in(WS_NS_PER_S), NULL,
	                             &err), &err, WS_EREACH, "no-such-host.invalid");
	assert_fails(ws_sock_connect("", 80, ws_deadline_in(0), NULL, &err), &err, WS_EUSAGE, "");
	char name[400];
	memset(name, 'x', sizeof name - 1);
	name[sizeof name - 1] = 0;
	assert_fails(ws_sock_listen(name, 0, 0, NULL, NULL, &err), &err, WS_EUSAGE, "");
}

TEST(a_silent_peer_costs_the_deadline_and_no_more)
{
	struct pair p = connected("127.0.0.1");
	struct ws_err err;
	char got[8];
	assert_int_equal(ws_sock_write(p.b, "abc", 3, WS_FOREVER, NULL, "w", &err), 0);
	const int64_t start = ws_now_ns();
	assert_fails(ws_sock_read(p.a, got, sizeof got, ws_deadline_in(50 * WS_NS_PER_MS), NULL,
	                          "reply of the store", &err), &err, WS_ETIMEOUT,
	             "reply of the store");
	const int64_t took = ws_now_ns() - start;
	assert_true(took >= 50 * WS_NS_PER_MS && took < 20 * WS_NS_PER_S);
	closed(&p);
}

TEST(a_peer_that_does_not_read_costs_the_deadline)
{
	struct pair p = connected("127.0.0.1");
	struct ws_err err;
	static char much[64 << 20];
	assert_fails(ws_sock_write(p.a, much, sizeof much, ws_deadline_in(50 * WS_NS_PER_MS), NULL,
	                           "w", &err), &err, WS_ETIMEOUT, "");
	closed(&p);
}

TEST(a_closed_peer_is_a_data_error_and_no_signal)
{
	struct pair p = connected("127.0.0.1");
	struct ws_err err;
	char got[8];
	close(p.b);
	p.b = -1;
	assert_fails_with(ws_sock_read(p.a, got, 1, WS_FOREVER, NULL, "header", &err), &err,
	                  WS_EDATA, "header: closed by the peer");
	int rc = 0;
	for (int i = 0; i < 100 && rc == 0; i++)
		rc = ws_sock_write(p.a, got, 1, WS_FOREVER, NULL, "header", &err);
	assert_int_equal(rc, -1);
	assert_int_equal(err.code, WS_EDATA);
	closed(&p);
}

static void *cancel_soon(void *arg)
{
	usleep(30 * 1000);
	ws_cancel_set(arg);
	return NULL;
}

TEST(cancelling_wakes_a_wait_with_and_without_a_descriptor)
{
	struct pair p = connected("127.0.0.1");
	for (int i = 0; i < 2; i++) {
		struct ws_cancel cancel = WS_CANCEL_INIT;
		struct ws_err err;
		char got;
		pthread_t t;
		if (i == 0)
			assert_int_equal(ws_cancel_init(&cancel, &err), 0);
		pthread_create(&t, NULL, cancel_soon, &cancel);
		const int64_t start = ws_now_ns();
		assert_int_equal(ws_sock_read(p.a, &got, 1, WS_FOREVER, &cancel, "r", &err), -1);
		assert_int_equal(err.code, WS_ECANCELLED);
		assert_true(ws_now_ns() - start < 20 * WS_NS_PER_S);
		pthread_join(t, NULL);
		ws_cancel_fini(&cancel);
	}
	closed(&p);
}

TEST(a_retry_loop_never_connects_to_itself)
{
	struct ws_err err;
	uint16_t port;
	/* Binding the source port to the port that is called makes the kernel's coincidence
	 * certain; ws_sock_connect cannot bind, so many tries on one ephemeral port have to do. */
	const int fd = ws_sock_listen("127.0.0.1", 0, 0, NULL, &port, &err);
	close(fd);
	for (int i = 0; i < 3000; i++)
		assert_int_equal(ws_sock_connect("127.0.0.1", port, WS_FOREVER, NULL, &err), -1);
}

static void name_is(const char *literal, uint16_t port, const char *want)
{
	char got[80];
	struct sockaddr_in in = { .sin_family = AF_INET, .sin_port = htons(port) };
	struct sockaddr_in6 in6 = { .sin6_family = AF_INET6, .sin6_port = htons(port) };
	if (inet_pton(AF_INET, literal, &in.sin_addr) == 1)
		ws_sock_name((const struct sockaddr *)&in, got, sizeof got);
	else if (inet_pton(AF_INET6, literal, &in6.sin6_addr) == 1)
		ws_sock_name((const struct sockaddr *)&in6, got, sizeof got);
	assert_string_equal(got, want);
}

TEST(addresses_print_as_people_write_them)
{
	name_is("10.0.0.1", 29600, "10.0.0.1:29600");
	name_is("::1", 80, "[::1]:80");
	name_is("::ffff:10.0.0.2", 7, "10.0.0.2:7");
	char tiny[4];
	const struct sockaddr sa = { .sa_family = AF_UNIX };
	ws_sock_name(&sa, tiny, sizeof tiny);
	assert_string_equal(tiny, "(ad");
}

static void loopback_is(const char *host, bool want)
{
	bool got = !want;
	struct ws_err err;
	assert_int_equal(ws_host_is_loopback(host, soon(), NULL, &got, &err), 0);
	assert_int_equal(got, want);
}

TEST(loopback_and_wildcard_hosts_are_recognised)
{
	loopback_is("127.0.0.1", true);
	loopback_is("127.3.2.1", true);
	loopback_is("localhost", true);
	loopback_is("::1", true);
	loopback_is("[::1]", true);
	loopback_is("::ffff:127.0.0.1", true);
	loopback_is("10.0.0.1", false);
	loopback_is("2001:db8::1", false);
	loopback_is("128.0.0.1", false);
	assert_true(ws_host_is_wildcard(NULL));
	assert_true(ws_host_is_wildcard(""));
	assert_true(ws_host_is_wildcard("0.0.0.0"));
	assert_true(ws_host_is_wildcard("[::]"));
	static const char *const any[] = { "::", "*", "0", "0x0", "0.0", "[::0]", "0:0:0:0:0:0:0:0",
		                           "::ffff:0.0.0.0" };
	for (size_t i = 0; i < sizeof any / sizeof any[0]; i++)
		assert_true(ws_host_is_wildcard(any[i]));
	assert_false(ws_host_is_wildcard("127.0.0.1"));
	assert_false(ws_host_is_wildcard("gpu7"));
}

TEST(this_machine_is_known_without_a_look_up)
{
	static const char *const here[] = {
		"127.0.0.1", "127.1", "127.3.2.1", "0x7f000001", "2130706433", "017700000001", "0",
		"0.0.0.0", "::", "[::]", "::1", "[::1]", "0:0:0:0:0:0:0:1", "::ffff:127.0.0.1",
		"[::ffff:7f00:1]", "localhost", "LOCALHOST", "localhost.", "a.LocalHost."
	};
	static const char *const elsewhere[] = {
		"", ".", "192.0.2.1", "128.1", "2001:db8::1", "::ffff:10.0.0.1",
		"localhost.example", "notlocalhost", "silent.invalid", "localhost..",
		"127.0.0.1.example"
	};
	char own[256], toward[64];
	struct ws_err err;
	for (size_t i = 0; i < sizeof here / sizeof here[0]; i++)
		if (!ws_host_is_here(here[i]))
			fail_msg("'%s' is not here", here[i]);
	for (size_t i = 0; i < sizeof elsewhere / sizeof elsewhere[0]; i++)
		if (ws_host_is_here(elsewhere[i]))
			fail_msg("'%s' is here", elsewhere[i]);
	assert_int_equal(gethostname(own, sizeof own), 0);
	assert_true(ws_host_is_here(own));
	if (ws_host_local_toward("192.0.2.1", soon(), NULL, toward, sizeof toward, &err) == 0)
		assert_true(ws_host_is_here(toward));
}

TEST(addresses_of_this_machine_are_recognised)
{
	static const struct {
		const char *host;
		bool local;
	} cases[] = { { "127.0.0.1", true },        { "127.9.9.9", true },
		      { "localhost", true },        { "[::1]", true },
		      { "::ffff:127.0.0.1", true }, { "192.0.2.1", false },
		      { "2001:db8::1", false },     { "0.0.0.1", false } };
	struct ws_err err;
	bool local;
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		local = !cases[i].local;
		assert_int_equal(ws_host_is_local(cases[i].host, soon(), NULL, &local, &err), 0);
		assert_int_equal(local, cases[i].local);
	}
	char toward[64]; /* an interface's, where there is a way out */
	char interface[16] = "?";
	if (ws_host_local_toward("192.0.2.1", soon(), NULL, toward, sizeof toward, &err) == 0) {
		assert_int_equal(ws_host_is_local(toward, soon(), NULL, &local, &err), 0);
		assert_true(local);
		ws_host_interface(toward, interface, sizeof interface);
		assert_true(if_nametoindex(interface) > 0);
	}
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		ws_host_interface(cases[i].host, interface, sizeof interface);
		assert_string_equal(interface, ""); /* loopback, or nobody's */
	}
	assert_int_equal(ws_host_is_local("no-such-host.invalid", soon(), NULL, &local, &err), -1);
}

TEST(the_address_toward_loopback_is_loopback)
{
	char got[64], tiny[4];
	struct ws_err err;
	assert_int_equal(ws_host_local_toward("127.0.0.1", soon(), NULL, got, sizeof got, &err), 0);
	assert_string_equal(got, "127.0.0.1");
	assert_int_equal(ws_host_local_toward("127.0.0.1", soon(), NULL, tiny, sizeof tiny, &err),
	                 -1);
	assert_int_equal(ws_host_local_toward("no-such-host.invalid", soon(), NULL, got, sizeof got,
	                                      &err), -1);
	assert_int_equal(err.code, WS_EREACH);
}

RUN_TESTS(NULL, NULL)
