/* SPDX-License-Identifier: Apache-2.0 */
/* URLs of endpoints: each has one form, and two of them may name the same endpoint. */
#include "test.h"
#include "wsync/endpoint.h"

TEST(addresses_have_one_form)
{
	static const struct { const char *text, *url; } good[] = {
		{ "gpu7:30000", "http://gpu7:30000" },
		{ "gpu7", "http://gpu7" },
		{ "http://gpu7:30000/", "http://gpu7:30000" },
		{ "HTTPS://GPU7.Example.com//", "https://gpu7.example.com" },
		{ "http://10.0.0.1:080", "http://10.0.0.1:80" },
		{ "[::1]:30000", "http://[::1]:30000" },
		{ "http://[FE80::1]/", "http://[fe80::1]" },
		{ "127.0.0.1.", "http://127.0.0.1" },
		{ "https://10.0.0.1.:30000/a/", "https://10.0.0.1:30000/a" },
		{ "127.1.:1", "http://127.1:1" },
		{ "http://0x7F000001.:1", "http://0x7f000001:1" },
		{ "2130706433.", "http://2130706433" },
		{ "localhost.:1", "http://localhost.:1" },
		{ "gpu7.example.com.", "http://gpu7.example.com." },
		{ "10.0.0.1.nip.io.:1", "http://10.0.0.1.nip.io.:1" },
		{ "http://gw/Engine/3/", "http://gw/Engine/3" },
		{ "http://gw:1/a%20b", "http://gw:1/a%20b" },
		{ "http://gw/$(a);b&c'd*[e]!~", "http://gw/%24%28a%29%3Bb%26c%27d%2A%5Be%5D%21~" },
	};
	for (size_t i = 0; i < sizeof good / sizeof *good; i++) {
		char url[WS_URL_MAX], again[WS_URL_MAX];
		struct ws_err err = WS_ERR_INIT;
		if (ws_endpoint_normalize(good[i].text, url, sizeof url, &err))
			fail_msg("%s: %s", good[i].text, err.msg);
		assert_string_equal(url, good[i].url);
		assert_int_equal(ws_endpoint_normalize(url, again, sizeof again, &err), 0);
		assert_string_equal(again, url);
	}
}

TEST(what_may_be_secret_is_not_quoted)
{
	static const struct { const char *text, *shown; } cases[] = {
		{ "http://user:SECRET@gpu7:1", "'http://***@gpu7:1'" },
		{ "https://SECRET@gpu7", "'https://***@gpu7'" },
		{ "user:SECRET@gpu7:1", "'***@gpu7:1'" },
		{ "http://user:SE@CRET@gpu7:1", "'http://***@gpu7:1'" },
		{ "http://user:SE/CRET@gpu7:1", "'http://***@gpu7:1'" },
		{ "http://us er:SECRET@gpu7:1", "'http://***@gpu7:1'" },
		{ "ftp://user:SECRET@gpu7:1", "'ftp://***@gpu7:1'" },
		{ "http://user:SECRET%40gpu7:1", "'http://***%40gpu7:1'" },
		{ "http://user:SE?CRET@gpu7:1", "'http://***'" },
		{ "http://gpu7:1/?mail=a@b&key=SECRET", "'http://***'" },
		{ "http://gpu7:1/?key=SECRET", "'http://gpu7:1/***'" },
		{ "http://gpu7:1/#SECRET", "'http://gpu7:1/***'" },
		{ "gpu7:1?key=SECRET", "'gpu7:1***'" },
		{ "http://gpu 7:1", "'http://gpu 7:1'" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		char url[WS_URL_MAX];
		struct ws_err err = WS_ERR_INIT;
		assert_int_equal(ws_endpoint_normalize(cases[i].text, url, sizeof url, &err), -1);
		if (!strstr(err.msg, cases[i].shown) || strstr(err.msg, "SECRET"))
			fail_msg("'%s': %s", cases[i].text, err.msg);
	}
}

TEST(what_is_no_address_is_refused_with_a_reason)
{
	static const struct { const char *text, *why; } bad[] = {
		{ "", "is empty" },
		{ "http://", "no host" },
		{ "http://:30000", "no host" },
		{ "ftp://gpu7", "neither http nor https" },
		{ "httpx://gpu7", "neither http nor https" },
		{ "gpu7:0", "no port between" },
		{ "gpu7:65536", "no port between" },
		{ "gpu7:", "no port between" },
		{ "gpu7:99999999999", "no port between" },
		{ "gpu7:http", "no port between" },
		{ "http://user:pw@gpu7:1", "user name" },
		{ "http://gpu7:1/?x=1", "query" },
		{ "http://gpu7:1/#x", "query" },
		{ "gpu 7:1", "blanks" },
		{ "gpu7:1\r\nX: y", "blanks or control" },
		{ "gp\303\274:1", "beyond ASCII" },
		{ "::1:30000", "in brackets" },
		{ "2001:db8::1", "in brackets" },
		{ "[::1", "not closed" },
		{ "[::1]30000", "other than a port" },
		{ "[::1].", "other than a port" },
		{ "[::1].:1", "other than a port" },
		{ "[::1.]:1", "no IPv6 address" },
		{ "127.0.0.1..", "empty label" },
		{ "gpu7..example.com", "empty label" },
		{ ".", "empty label" },
		{ ".gpu7:1", "empty label" },
		{ "[gpu7]:1", "no IPv6 address" },
		{ "[]:1", "no host" },
		{ "gpu%37:1", "no host name has" },
		{ "http://gpu7\\evil:1", "no URL has" },
	};
	for (size_t i = 0; i < sizeof bad / sizeof *bad; i++) {
		char url[WS_URL_MAX];
		struct ws_err err = WS_ERR_INIT;
		assert_int_equal(ws_endpoint_normalize(bad[i].text, url, sizeof url, &err), -1);
		assert_int_equal(err.code, WS_EUSAGE);
		if (!strstr(err.msg, bad[i].why))
			fail_msg("'%s': %s", bad[i].text, err.msg);
	}
	char url[WS_URL_MAX], longest[WS_URL_MAX + 1], host[300];
	struct ws_err err;
	memset(longest, 'a', sizeof longest - 1);
	longest[sizeof longest - 1] = '\0';
	assert_int_equal(ws_endpoint_normalize(longest, url, sizeof url, &err), -1);
	memset(host, 'a', sizeof host - 1);
	host[sizeof host - 1] = '\0';
	assert_int_equal(ws_endpoint_normalize(host, url, sizeof url, &err), -1);
	assert_int_equal(ws_endpoint_normalize("gpu7:30000", url, 10, &err), -1);
}

TEST(endpoints_are_told_apart_by_host_and_port)
{
	char host[256];
	uint16_t port;
	struct ws_err err;
	assert_int_equal(ws_endpoint_host_port("http://[::1]:30000", host, &port, &err), 0);
	assert_string_equal(host, "::1");
	assert_int_equal(port, 30000);
	assert_int_equal(ws_endpoint_host_port("https://gpu7/x", host, &port, &err), 0);
	assert_string_equal(host, "gpu7");
	assert_int_equal(port, 443);
	assert_int_equal(ws_endpoint_host_port("http://gpu7", host, &port, &err), 0);
	assert_int_equal(port, 80);
}

TEST(two_urls_of_one_endpoint_are_the_same)
{
	static const struct { const char *a, *b; bool same; } cases[] = {
		{ "http://localhost:1", "http://127.0.0.1:1", true },
		{ "http://localhost:1", "http://[::1]:1", true },
		{ "http://[::1]:1", "http://127.1:1", true },
		{ "http://[::ffff:127.0.0.1]:1", "http://[0:0::1]:1", true },
		{ "http://0.0.0.0:1", "http://127.0.0.1:1", true },
		{ "http://[::]:1", "http://localhost:1", true },
		{ "http://gpu7", "http://gpu7:80", true },
		{ "https://gpu7", "http://gpu7:443", true },
		{ "http://[::ffff:10.0.0.1]:1", "http://10.1:1", true },
		{ "http://gpu7:1/engine/3", "http://gpu7:1/engine/3", true },
		{ "http://localhost.:1", "http://127.0.0.1.:1", true },
		{ "http://10.0.0.1.:1", "http://10.0.0.1:1", true },
		{ "http://127.0.0.1:1", "http://127.0.0.2:1", false },
		{ "http://localhost:1", "http://127.0.0.2:1", false },
		{ "http://127.0.0.1:1", "http://127.0.0.1:2", false },
		{ "http://localhost:1", "http://localhost.example.com:1", false },
		{ "http://gpu7", "https://gpu7", false },
		{ "http://gpu7:1", "http://gpu8:1", false },
		{ "http://gpu7:1/engine/3", "http://gpu7:1/engine/4", false },
		{ "http://gpu7:1/engine/3", "http://gpu7:1", false },
		{ "http://", "http://", false },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++)
		if (ws_endpoint_same(cases[i].a, cases[i].b) != cases[i].same ||
		    ws_endpoint_same(cases[i].b, cases[i].a) != cases[i].same)
			fail_msg("%s and %s", cases[i].a, cases[i].b);
}

TEST(the_first_url_that_repeats_another_is_found)
{
	static const char *const urls[] = {
		"http://a:1",        "http://b:1", "http://a:2",         "http://127.0.0.1:3",
		"https://c",         "http://c",   "http://a:1/x",       "http://[::1]:3/x/y",
		"http://127.1:3/x/y", "http://a:1/x/",
	};
	struct ws_err err = WS_ERR_INIT;
	size_t first, again;
	(void)state;
	assert_int_equal(ws_endpoint_find_twice(urls, 0, &first, &again, &err), 0);
	assert_int_equal(ws_endpoint_find_twice(urls, 8, &first, &again, &err), 0);
	assert_int_equal(again, 8);
	assert_fails_with(ws_endpoint_find_twice(urls, 10, &first, &again, &err), &err, WS_EUSAGE,
	                  "endpoint http://127.1:3/x/y: given twice, also as http://[::1]:3/x/y");
	assert_int_equal(first, 7);
	assert_int_equal(again, 8);
}

RUN_TESTS(NULL, NULL)
