/* SPDX-License-Identifier: Apache-2.0 */
/* The HTTP client against a server that is slow, dies, or talks nonsense. */
#include "http.h"
#include "test.h"
#include "tiny_http.h"

#include <fcntl.h>
#include <sys/eventfd.h>
#include <sys/stat.h>

static struct tiny tiny;
static struct ws_http *http;

static int set_up(void **state)
{
	(void)state;
	struct ws_err err;
	tiny_start(&tiny);
	const struct ws_http_opts opts = { .api_key = "sesame", .max_reply = 1 << 20 };
	return ws_http_open(&opts, &http, &err);
}

static int tear_down(void **state)
{
	(void)state;
	ws_http_close(http);
	tiny_stop(&tiny);
	return 0;
}

#define CASE(f) TEST_BETWEEN(f, set_up, tear_down)

struct one {
	struct ws_http_call call;
	char url[256];
};

static struct one *prepare(struct one *o, const char *method, const char *path, const char *body)
{
	tiny_url(&tiny, path, o->url, sizeof o->url);
	o->call.method = method;
	o->call.url = o->url;
	o->call.body = body;
	o->call.body_len = body ? strlen(body) : 0;
	o->call.until = ws_deadline_in(5 * WS_NS_PER_S);
	return o;
}

/* One request from start to end; the caller frees the reply. */
static struct ws_http_call *ask(struct one *o, const char *method, const char *path,
                                const char *body)
{
	struct ws_err err;
	struct ws_http_call *call = &prepare(o, method, path, body)->call;
	assert_int_equal(ws_http_run(http, &call, 1, NULL, &err), 0);
	assert_true(call->done);
	return call;
}

CASE(a_reply_arrives_with_its_status)
{
	struct one o = { 0 };
	struct ws_http_call *call = ask(&o, "GET", "/ok", NULL);
	assert_int_equal(call->err.code, WS_OK);
	assert_int_equal(call->status, 200);
	assert_string_equal(ws_buf_str(&call->reply), "hello");
	assert_true(call->sent && call->ns > 0);
	assert_non_null(strstr(tiny.last_head, "Authorization: Bearer sesame\r\n"));
	assert_non_null(strstr(tiny.last_head, "User-Agent: wsync/"));
	call = ask(&o, "GET", "/status/503", NULL);
	assert_int_equal(call->err.code, WS_OK);
	assert_int_equal(call->status, 503);
	ws_buf_free(&call->reply);
}

CASE(a_large_body_arrives_whole_and_at_once)
{
	enum { N = 1000 * 1000 };
	char *body = malloc(N + 1);
	memset(body, 'b', N);
	body[N] = '\0';
	struct one o = { 0 };
	const struct ws_http_call *call = ask(&o, "POST", "/echo", body);
	assert_int_equal(call->err.code, WS_OK);
	assert_int_equal(call->reply.len, N);
	assert_memory_equal(call->reply.data, body, N);
	assert_null(strstr(tiny.last_head, "Expect:"));
	assert_non_null(strstr(tiny.last_head, "Content-Type: application/json\r\n"));
	ws_buf_free(&o.call.reply);
	free(body);
}

CASE(a_post_without_a_body_is_a_post)
{
	struct one o = { 0 };
	const struct ws_http_call *call = ask(&o, "POST", "/ok", NULL);
	assert_int_equal(call->status, 200);
	assert_true(call->sent);
	assert_non_null(strstr(tiny.last_head, "Content-Length: 0\r\n"));
	ws_buf_free(&o.call.reply);
}

CASE(connections_are_kept_alive)
{
	struct one o = { 0 };
	for (int i = 0; i < 5; i++)
		assert_int_equal(ask(&o, "POST", "/ok", "{}")->status, 200);
	assert_int_equal(tiny.n_conns, 1);
	ws_buf_free(&o.call.reply);
}

CASE(a_post_is_never_sent_twice)
{
	struct one o = { 0 };
	assert_int_equal(ask(&o, "GET", "/mute", NULL)->status, 200);
	const struct ws_http_call *call = ask(&o, "POST", "/ok", "{\"act\":1}");
	assert_int_equal(call->err.code, WS_EREACH);
	assert_non_null(strstr(call->err.msg, "not sent again"));
	assert_true(call->sent);
	assert_int_equal(tiny.n_posts, 1);
	ws_buf_free(&o.call.reply);
}

CASE(what_a_server_that_is_gone_was_sent_is_known)
{
	struct one o = { 0 };
	assert_int_equal(ask(&o, "GET", "/mute", NULL)->status, 200);
	shutdown(tiny.listener, SHUT_RDWR);
	const struct ws_http_call *call = ask(&o, "POST", "/ok", "{\"act\":1}");
	assert_int_equal(call->err.code, WS_EREACH);
	assert_true(call->sent);
	assert_non_null(strstr(call->err.msg, "closed without an answer"));
	assert_int_equal(tiny.n_posts, 1);
	call = ask(&o, "POST", "/ok", "{\"act\":1}");
	assert_non_null(strstr(call->err.msg, "cannot connect"));
	assert_false(call->sent);
	ws_buf_free(&o.call.reply);
}

CASE(a_post_without_a_body_is_never_sent_twice)
{
	struct one o = { 0 };
	assert_int_equal(ask(&o, "GET", "/mute", NULL)->status, 200);
	assert_int_equal(ask(&o, "POST", "/close", NULL)->err.code, WS_EREACH);
	assert_int_equal(tiny.n_posts, 1);
	ws_buf_free(&o.call.reply);
}

CASE(a_get_is_repeated_when_an_idle_connection_had_died)
{
	struct one o = { 0 };
	assert_int_equal(ask(&o, "GET", "/mute", NULL)->status, 200);
	assert_int_equal(ask(&o, "GET", "/ok", NULL)->status, 200);
	assert_int_equal(tiny.n_conns, 2);
	ws_buf_free(&o.call.reply);
}

CASE(broken_answers_say_what_broke)
{
	static const struct { const char *path, *words;
	} cases[] = {
		{ "/close", "closed without an answer" },
		{ "/reset", "connection lost" },
		{ "/cut", "closed before the answer was complete" },
		{ "/garbage", "is not HTTP" },
		{ "/garbage", "begins with \"SSH-2.0-OpenSSH_9.2" },
		{ "/tls", "is not HTTP, but TLS" },
		{ "/huge", "longer than 1.00 MiB" },
		{ "/endless", "longer than 1.00 MiB" },
		{ "/headers", "headers are longer than 256.0 KiB" },
		{ "/trailers", "headers are longer than 256.0 KiB" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct one o = { 0 };
		const struct ws_http_call *call = ask(&o, "POST", cases[i].path, "{}");
		assert_int_equal(call->err.code, WS_EREACH);
		if (!strstr(call->err.msg, cases[i].words))
			fail_msg("%s: %s", cases[i].path, call->err.msg);
		/* it has begun to answer: who would speak TLS? */
		if (strcmp(cases[i].path, "/cut") == 0)
			assert_null(strstr(call->err.hint, "https://"));
		assert_true(call->reply.len <= 1 << 20);
		ws_buf_free(&o.call.reply);
	}
}

CASE(who_speaks_tls_is_named_by_https)
{
	struct one o = { 0 };
	char url[64];
	snprintf(url, sizeof url, "https://127.0.0.1:%u", (unsigned)tiny.port);
	const struct ws_http_call *call = ask(&o, "POST", "/tls", "{}");
	assert_string_equal(strstr(call->err.hint, "https://"), url);
	/* OpenSSL closes without a word, as a server does that dies; one that has answered does not
	 * speak TLS. */
	call = ask(&o, "POST", "/close", "{}");
	assert_string_equal(strstr(call->err.hint, "https://"), url);
	assert_int_equal(ask(&o, "POST", "/ok", "{}")->status, 200);
	for (int i = 0; i < 2; i++) { /* on the same connection, and on another */
		call = ask(&o, "POST", "/close", "{}");
		assert_null(strstr(call->err.hint, "https://"));
		assert_non_null(strstr(call->err.hint, "may have died"));
	}
	ws_buf_free(&o.call.reply);
}

CASE(a_refused_connection_is_not_reached)
{
	struct tiny gone;
	tiny_start(&gone);
	tiny_stop(&gone);
	struct one o = { 0 };
	struct ws_err err;
	struct ws_http_call *call = &prepare(&o, "GET", "/ok", NULL)->call;
	tiny_url(&gone, "/ok", o.url, sizeof o.url);
	assert_int_equal(ws_http_run(http, &call, 1, NULL, &err), 0);
	assert_int_equal(call->err.code, WS_EREACH);
	assert_non_null(strstr(call->err.msg, "cannot connect: Connection refused"));
	assert_false(call->sent);
	assert_int_equal(call->status, 0);
}

TEST(the_port_of_a_url_without_one_is_known)
{
	assert_int_equal(ws_http_assumed_port("http://gpu7/server_info"), 80);
	assert_int_equal(ws_http_assumed_port("https://[::1]"), 443);
	assert_int_equal(ws_http_assumed_port("http://gpu7:80/"), 0);
	assert_int_equal(ws_http_assumed_port("http://[::1]:30000/x"), 0);
	assert_int_equal(ws_http_assumed_port("http://"), 0);
}

CASE(other_schemes_and_user_names_are_refused)
{
	static const char *const urls[] = {
		"file:///etc/passwd", "ftp://127.0.0.1/", "gopher://127.0.0.1/",
		"http://user:pw@127.0.0.1:1/", "http://[::1/", "",
	};
	for (size_t i = 0; i < sizeof urls / sizeof *urls; i++) {
		struct one o = { 0 };
		struct ws_err err;
		struct ws_http_call *call = &prepare(&o, "GET", "/ok", NULL)->call;
		call->url = urls[i];
		assert_int_equal(ws_http_run(http, &call, 1, NULL, &err), 0);
		assert_int_equal(call->err.code, WS_EREACH);
		ws_buf_free(&call->reply);
	}
}

CASE(a_call_ends_at_its_deadline)
{
	struct one o = { 0 };
	struct ws_err err;
	struct ws_http_call *call = &prepare(&o, "POST", "/never", "{}")->call;
	const int64_t start = ws_now_ns();
	call->until = ws_deadline_in(100 * WS_NS_PER_MS);
	assert_int_equal(ws_http_run(http, &call, 1, NULL, &err), 0);
	assert_int_equal(call->err.code, WS_ETIMEOUT);
	assert_non_null(strstr(call->err.msg, "no complete answer after"));
	assert_true(call->sent);
	assert_true(ws_now_ns() - start < 20 * WS_NS_PER_S);
	call->until = ws_now_ns() - 1;
	assert_int_equal(ws_http_run(http, &call, 1, NULL, &err), 0);
	assert_int_equal(call->err.code, WS_ETIMEOUT);
}

CASE(redirects_are_not_followed)
{
	struct one o = { 0 };
	assert_int_equal(ask(&o, "POST", "/status/307", "{}")->status, 307);
	ws_buf_free(&o.call.reply);
}

CASE(many_calls_run_at_once)
{
	enum { N = 100 };
	static struct one many[N];
	struct ws_http_call *calls[N];
	struct ws_err err;
	memset(many, 0, sizeof many);
	for (int i = 0; i < N; i++)
		calls[i] = &prepare(&many[i], "POST", i % 2 ? "/slow" : "/echo", "{\"n\":1}")->call;
	const int64_t start = ws_now_ns();
	assert_int_equal(ws_http_run(http, calls, N, NULL, &err), 0);
	assert_true(ws_now_ns() - start < 12 * WS_NS_PER_S); /* one after the other: 15 s */
	for (int i = 0; i < N; i++) {
		assert_int_equal(calls[i]->status, 200);
		assert_string_equal(ws_buf_str(&calls[i]->reply), i % 2 ? "hello" : "{\"n\":1}");
		ws_buf_free(&calls[i]->reply);
	}
}

/* By itself libcurl closes some of them as the last answers come in. */
CASE(the_connections_of_many_calls_are_kept_alive)
{
	enum { N = 40 };
	static struct one many[N];
	struct ws_http_call *calls[N];
	memset(many, 0, sizeof many);
	for (int round = 0; round < 3; round++) {
		for (int i = 0; i < N; i++)
			calls[i] = &prepare(&many[i], "POST", "/slow", "{}")->call;
		assert_int_equal(ws_http_run(http, calls, N, NULL, NULL), 0);
	}
	assert_int_equal(tiny.n_conns, N);
	for (int i = 0; i < N; i++)
		ws_buf_free(&many[i].call.reply);
}

CASE(wait_returns_when_one_is_done_or_the_deadline_passes)
{
	struct one slow = { 0 }, never = { 0 };
	struct ws_err err;
	assert_int_equal(ws_http_wait(http, WS_FOREVER, NULL, -1, &err), 0);
	assert_int_equal(ws_http_start(http, &prepare(&slow, "GET", "/slow", NULL)->call, &err), 0);
	assert_ok(ws_http_start(http, &prepare(&never, "GET", "/never", NULL)->call, &err), &err);
	assert_int_equal(ws_http_wait(http, ws_deadline_in(20 * WS_NS_PER_MS), NULL, -1, &err), 0);
	assert_int_equal(ws_http_wait(http, ws_deadline_in(5 * WS_NS_PER_S), NULL, -1, &err), 1);
	assert_true(slow.call.done && !never.call.done);
	ws_http_drop(http, &never.call);
	ws_http_drop(http, &never.call);
	ws_http_drop(http, &slow.call);
	assert_int_equal(never.call.err.code, WS_ECANCELLED);
	assert_true(never.call.sent);
	assert_int_equal(slow.call.err.code, WS_OK);
	ws_buf_free(&slow.call.reply);
}

CASE(wait_can_be_woken)
{
	/* in flight until the teardown, also when an assertion jumps out */
	static struct one never;
	struct ws_err err;
	const int wake = eventfd(1, EFD_CLOEXEC);
	assert_ok(ws_http_start(http, &prepare(&never, "GET", "/never", NULL)->call, &err), &err);
	const int64_t start = ws_now_ns();
	assert_int_equal(ws_http_wait(http, ws_deadline_in(30 * WS_NS_PER_S), NULL, wake, &err), 0);
	assert_true(ws_now_ns() - start < 20 * WS_NS_PER_S);
	close(wake);
}

static void *cancel_soon(void *cancel)
{
	usleep(50 * 1000);
	ws_cancel_set(cancel);
	return NULL;
}

CASE(cancel_drops_what_is_in_flight)
{
	struct ws_cancel cancel;
	struct ws_err err;
	static struct one never; /* in flight until the teardown, see above */
	struct ws_http_call *call = &prepare(&never, "POST", "/never", "{}")->call;
	pthread_t thread;
	assert_int_equal(ws_cancel_init(&cancel, &err), 0);
	assert_int_equal(pthread_create(&thread, NULL, cancel_soon, &cancel), 0);
	const int64_t start = ws_now_ns();
	assert_fails(ws_http_run(http, &call, 1, &cancel, &err), &err, WS_ECANCELLED, "");
	assert_int_equal(call->err.code, WS_ECANCELLED);
	assert_false(call->done);
	assert_true(ws_now_ns() - start < 20 * WS_NS_PER_S);
	pthread_join(thread, NULL);
	ws_cancel_fini(&cancel);
}

/* Commands that a program runs, such as that of --canary-check. */
CASE(a_connection_is_not_inherited)
{
	struct one o = { 0 };
	struct ws_http_call *call = ask(&o, "GET", "/ok", NULL);
	unsigned seen = 0;
	ws_buf_free(&call->reply);
	for (int fd = 3; fd < 100; fd++) {
		struct sockaddr_in to;
		socklen_t n = sizeof to;
		if (getpeername(fd, (struct sockaddr *)&to, &n) || to.sin_family != AF_INET ||
		    ntohs(to.sin_port) != tiny.port)
			continue;
		assert_true(fcntl(fd, F_GETFD) & FD_CLOEXEC);
		seen++;
	}
	assert_int_equal(seen, 1);
}

CASE(close_drops_what_is_in_flight)
{
	static struct one never;
	struct ws_err err;
	assert_ok(ws_http_start(http, &prepare(&never, "GET", "/never", NULL)->call, &err), &err);
}

TEST(a_key_with_a_newline_is_refused)
{
	struct ws_http *h = NULL;
	struct ws_err err;
	assert_fails(ws_http_open(&(struct ws_http_opts){ .api_key = "a\r\nX: y" }, &h, &err), &err,
	             WS_EUSAGE, "");
}

/* What the server's reply has become; a key is keys' first or second line. */
static const char *hidden(const char *keys, const char *path, const char *body)
{
	static char shown[1000];
	struct ws_http *before = http;
	struct ws_err err;
	struct one o = { 0 };
	assert_ok(ws_http_open(&(struct ws_http_opts){ .api_key = keys }, &http, &err), &err);
	struct ws_http_call *call = ask(&o, "POST", path, body);
	snprintf(shown, sizeof shown, "%s", ws_buf_str(&call->reply));
	assert_int_equal(strlen(ws_buf_str(&call->reply)), call->reply.len);
	ws_buf_free(&call->reply);
	ws_http_close(http);
	http = before;
	return shown;
}

CASE(a_reply_has_no_key_of_ours)
{
	static const char keys[] = "a+/\"b\\\xc3\xa9 long key\nk1";
	static const struct { const char *reply, *hidden; } same[] = {
		{ "Bearer a+/\"b\\\xc3\xa9 long key", "Bearer ***" },
		{ "xa+/\"b\\\xc3\xa9 long keyx", "x***x" },
		{ "{\"k\":\"a+\\/\\\"b\\\\\\u00c3\\u00a9 long key\"}", "{\"k\":\"***\"}" },
		{ "a+/\\\"b\\\\\xc3\x83\xc2\xa9 long key", "***" },
		{ "?k=a%2B%2f%22b%5C%c3%a9%20long%20key&", "?k=***&" },
		{ "{\"t\":\"YSsvImJcw6kgbG9uZyBrZXk=\"}", "{\"t\":\"***k=\"}" },
		{ "QmVhcmVyIGErLyJiXMOpIGxvbmcga2V5", "QmVhcmVyIG***" },
		{ "a+/\"b\\ long", "a+/\"b\\ long" }, { "", "" }, { "***", "***" },
		{ "{'Authorization': 'bearer k1'}", "{'Authorization': 'bearer **'}" },
		{ "Bearer%20k1", "Bearer%20**" },
		{ "{\"layers.k1\": \"k1\"}", "{\"layers.k1\": \"k1\"}" },
	};
	for (size_t i = 0; i < sizeof same / sizeof *same; i++)
		assert_string_equal(hidden(keys, "/echo", same[i].reply), same[i].hidden);
	assert_string_equal(hidden("\nsaid", "/status/400", ""), "*** no");
	assert_string_equal(hidden("sai", "/status/400", ""), "said no");
	assert_string_equal(hidden(NULL, "/echo", "Bearer k1"), "Bearer k1");
}

static char logged[4000];

static void keep_log(void *ctx, int level, const char *line)
{
	(void)ctx, (void)level;
	snprintf(logged + strlen(logged), sizeof logged - strlen(logged), "%s\n", line);
}

CASE(the_log_has_no_key_of_ours)
{
	const struct ws_log log = { .level = 2, .fn = keep_log };
	struct ws_http *before = http;
	struct ws_err err;
	struct one o = { 0 };
	assert_ok(ws_http_open(&(struct ws_http_opts){ .api_key = "sesame", .log = &log }, &http,
	                       &err), &err);
	struct ws_http_call *call = ask(&o, "POST", "/echo", "{\"api_key\": \"sesame\"}");
	assert_string_equal(ws_buf_str(&call->reply), "{\"api_key\": \"sesame\"}");
	assert_non_null(strstr(logged, "{\"api_key\": \"***\"}"));
	assert_null(strstr(logged, "sesame"));
	ws_buf_free(&call->reply);
	ws_http_close(http);
	http = before;
}

static int read_key(const char *text, size_t n, mode_t mode, char **key, bool *loose,
                    struct ws_err *err)
{
	char path[] = "/tmp/wsync-key-XXXXXX";
	const int fd = mkstemp(path);
	assert_true(fd >= 0 && write(fd, text, n) == (ssize_t)n && !fchmod(fd, mode));
	close(fd);
	const int rc = ws_http_read_key(path, key, loose, err);
	unlink(path);
	return rc;
}

TEST(a_key_is_the_first_line_of_its_file)
{
	char *key = NULL, big[5000];
	bool loose;
	struct ws_err err;
	assert_int_equal(read_key(" \tsesame \r\nmore\n", 16, 0600, &key, &loose, &err), 0);
	assert_string_equal(key, "sesame");
	assert_false(loose);
	free(key);
	assert_int_equal(read_key("k", 1, 0644, &key, &loose, &err), 0);
	assert_true(loose);
	free(key);
	assert_fails(read_key("", 0, 0600, &key, &loose, &err), &err, WS_EINPUT, "");
	assert_int_equal(read_key("\nkey\n", 5, 0600, &key, &loose, &err), -1);
	assert_fails(read_key("a\0b\n", 4, 0600, &key, &loose, &err), &err, WS_EINPUT, "");
	memset(big, 'k', sizeof big);
	assert_int_equal(read_key(big, sizeof big, 0600, &key, &loose, &err), -1);
	assert_int_equal(read_key(big, 4096, 0600, &key, &loose, &err), 0);
	assert_int_equal(strlen(key), 4096);
	free(key);
	assert_fails(ws_http_read_key("/nonexistent/key", &key, &loose, &err), &err, WS_EINPUT, "");
}

RUN_TESTS(NULL, NULL)
