/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, durations and foreign text; errors and buffers. */
#include "wsync/tool/buf.h"
#include "test.h"
#include "wsync/clock.h"
#include "wsync/tool/str.h"

#include <errno.h>
#include <limits.h>

TEST(sizes_are_read_as_people_write_them)
{
	static const struct { const char *text; uint64_t bytes; } good[] = {
		{ "0", 0 }, { "512", 512 }, { "1B", 1 }, { "64k", 65536 }, { "64KiB", 65536 },
		{ "64kB", 64000 }, { "1.5GiB", UINT64_C(1610612736) }, { "2T", UINT64_C(2) << 40 },
		{ "512MiB", UINT64_C(512) << 20 }, { "0.5k", 512 },
	};
	static const char *const bad[] = {
		"",         " 1",   "1 ",  "-1",  "+1",  "0x10",  "1e3",
		"3Q",       "1.5B", "nan", "inf", "MiB", "1..5k", "99999999999999999999999999",
		"9999999T", "1kib"
	};
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
		uint64_t bytes = 1;
		assert_int_equal(ws_parse_size(good[i].text, &bytes, NULL), 0);
		assert_int_equal(bytes, good[i].bytes);
	}
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		uint64_t bytes;
		struct ws_err err = WS_ERR_INIT;
		assert_fails(ws_parse_size(bad[i], &bytes, &err), &err, WS_EUSAGE, "invalid SIZE");
	}
}

TEST(durations_have_units_or_are_seconds)
{
	static const struct {
		const char *text;
		int64_t ns;
	} good[] = { { "10", 10000000000 }, { "1.5s", 1500000000 }, { "200ms", 200000000 },
		     { "5us", 5000 }, { "2m", 120000000000 }, { "1h", 3600000000000 },
		     { "none", INT64_MAX }, { "0", 0 } };
	static const char *const bad[] = { "", "s", "1d", "-1s", "1 s", "999999999999h" };
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
		int64_t ns = -1;
		assert_int_equal(ws_parse_duration(good[i].text, &ns, NULL), 0);
		assert_int_equal(ns, good[i].ns);
	}
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		int64_t ns;
		assert_int_equal(ws_parse_duration(bad[i], &ns, NULL), -1);
	}
}

TEST(numbers_stay_in_their_range)
{
	uint64_t n;
	assert_int_equal(ws_parse_uint("65535", 0, 65535, "PORT", &n, NULL), 0);
	assert_int_equal(n, 65535);
	assert_int_equal(ws_parse_uint("18446744073709551615", 0, UINT64_MAX, "N", &n, NULL), 0);
	static const char *const bad[] = { "", "65536", "-1", "+1", " 1", "1x", "0x1",
		                           "18446744073709551616" };
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++)
		assert_int_equal(ws_parse_uint(bad[i], 0, 65535, "PORT", &n, NULL), -1);
}

TEST(sizes_durations_and_rates_are_short)
{
	char text[32];
	assert_string_equal(ws_format_size(text, sizeof text, 0), "0 B");
	assert_string_equal(ws_format_size(text, sizeof text, 1023), "1023 B");
	assert_string_equal(ws_format_size(text, sizeof text, 1024), "1.00 KiB");
	assert_string_equal(ws_format_size(text, sizeof text, UINT64_C(1192099840)), "1.11 GiB");
	assert_string_equal(ws_format_size(text, sizeof text, UINT64_MAX), "16384.0 PiB");
	assert_string_equal(ws_format_duration(text, sizeof text, 85000), "85 us");
	assert_string_equal(ws_format_duration(text, sizeof text, 312000000), "312 ms");
	assert_string_equal(ws_format_duration(text, sizeof text, 1840000000), "1.84 s");
	assert_string_equal(ws_format_duration(text, sizeof text, 125 * WS_NS_PER_S), "2 m 05 s");
	assert_string_equal(ws_format_rate(text, sizeof text, 2410000000, WS_NS_PER_S),
	                    "2.41 GB/s");
	assert_string_equal(ws_format_rate(text, sizeof text, 1, 0), "0.00 B/s");
}

TEST(foreign_text_cannot_move_a_terminal)
{
	char text[64];
	const char evil[] = "a\033[2Jb\nc\x7f\xc2\x9b" "d\xff\xe2\x82";
	assert_string_equal(ws_printable(text, sizeof text, evil, sizeof evil - 1),
	                    "a?[2Jb?c??d???");
	const char good[] = "gr\xc3\xbc\xc3\x9f \xe6\x9d\x83\xe9\x87\x8d \xf0\x9f\x98\x80";
	assert_string_equal(ws_printable(text, sizeof text, good, sizeof good - 1), good);
	/* Cut between characters, never inside one. */
	assert_string_equal(ws_printable(text, 5, good, sizeof good - 1), "gr\xc3\xbc");
	assert_string_equal(ws_printable(text, 4, good, sizeof good - 1), "gr");
	assert_int_equal(ws_utf8_step("\xed\xa0\x80", 3), 0); /* a surrogate */
	assert_int_equal(ws_utf8_step("\xc0\x80", 2), 0);     /* overlong */
	assert_int_equal(ws_utf8_step("\xf4\x90\x80\x80", 4), 0);
}

/* One character of each kind in "a_b": what Python's unicodedata calls Cf, Zl and Zp, and others
 * that no terminal shows. */
TEST(a_character_that_is_not_seen_is_replaced)
{
	static const char *const hidden[] = {
		"\xc2\xad",         "\xd8\x9c",         "\xe2\x80\x8b",     "\xe2\x80\x8d",
		"\xe2\x80\x8e",     "\xe2\x80\x8f",     "\xe2\x80\xa8",     "\xe2\x80\xa9",
		"\xe2\x80\xaa",     "\xe2\x80\xae",     "\xe2\x81\xa0",     "\xe2\x81\xa6",
		"\xe2\x81\xa9",     "\xef\xbb\xbf",     "\xef\xb8\x8f",     "\xe3\x85\xa4",
		"\xf3\xa0\x81\x81", "\xf0\x9d\x85\xb3", "\xef\xbf\xb9",     "\xe1\xa0\x8e",
	};
	/* Their neighbors, and text that is written from right to left. */
	static const char *const shown[] = {
		"\xc2\xac", "\xe2\x80\x8a", "\xe2\x80\x90", "\xe2\x80\xa7", "\xe2\x80\xaf",
		"\xe2\x81\x9f", "\xe2\x81\xb0", "\xef\xbf\xbc", "\xd7\xa9", "\xf0\x9d\x85\xb2",
	};
	char text[32], all[32];
	for (size_t i = 0; i < sizeof hidden / sizeof *hidden; i++) {
		snprintf(all, sizeof all, "a%sb", hidden[i]);
		assert_string_equal(ws_printable(text, sizeof text, all, strlen(all)), "a?b");
	}
	for (size_t i = 0; i < sizeof shown / sizeof *shown; i++) {
		snprintf(all, sizeof all, "a%sb", shown[i]);
		assert_string_equal(ws_printable(text, sizeof text, all, strlen(all)), all);
	}
}

TEST(a_label_is_what_servers_report_as_it_is)
{
	static const char *const wrong[][2] = {
		{ "a\xff", "x 'a?': it is not UTF-8" },
		{ "caf\xe9", "x 'caf?': it is not UTF-8" },
		{ "\xed\xa0\x80", "x '?" "?" "?': it is not UTF-8" },
		{ "a\nb", "x 'a?b': it has a control or hidden character" },
		{ "a\xe2\x80\xae", "x 'a?': it has a control or hidden character" },
		{ "123456789", "x '123456789': it is longer than 8 bytes" },
	};
	struct ws_err err = WS_ERR_INIT;
	for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
		assert_fails_with(ws_check_label(wrong[i][0], "x", 8, &err), &err, WS_EUSAGE,
		                  wrong[i][1]);
	assert_int_equal(ws_check_label("12345678", "x", 8, &err), 0);
	assert_int_equal(ws_check_label("caf\xc3\xa9", "x", 8, &err), 0);
	assert_int_equal(ws_check_label(NULL, "x", 8, &err), 0);
	assert_int_equal(ws_check_utf8("a\nb, as long as it wants to be", "x", &err), 0);
}

TEST(globs_match_whole_names)
{
	assert_true(
		ws_glob_match("model.layers.*.weight", "model.layers.0.self_attn.q_proj.weight"));
	assert_true(ws_glob_match("*.[qk]_proj.*", "a.q_proj.weight"));
	assert_false(ws_glob_match("q_proj", "a.q_proj.weight"));
	assert_false(ws_glob_match("Model*", "model.norm.weight"));
}

TEST(an_error_keeps_its_first_cause_and_place)
{
	struct ws_err err = WS_ERR_INIT;
	errno = ENOENT;
	assert_int_equal(ws_err_errno(&err, "open %s", "x"), -1);
	assert_int_equal(err.native, ENOENT);
	assert_string_equal(err.msg, "open x: No such file or directory");
	ws_err_wrap(&err, "bucket %d", 3);
	assert_string_equal(err.msg, "bucket 3: open x: No such file or directory");
	ws_err_where(&err, "transfer", "http://a");
	ws_err_where(&err, "resume", "http://b");
	assert_string_equal(err.phase, "transfer");
	assert_string_equal(err.endpoint, "http://a");
	assert_int_equal(ws_err_set(NULL, WS_EINPUT, "nobody hears"), -1);
	ws_err_set(&err, WS_EDATA, "afresh");
	assert_string_equal(err.endpoint, "");
	for (int code = 0; code <= WS_ECANCELLED; code++)
		for (int other = 0; other < code; other++)
			assert_string_not_equal(ws_code_name((enum ws_code)code),
			                        ws_code_name((enum ws_code)other));
	/* Scripts compare these numbers and words. */
	assert_int_equal(WS_EUNKNOWN, 11);
	assert_string_equal(ws_code_name(11), "unknown");
	assert_string_equal(ws_code_name(WS_ECANCELLED), "cancelled");
}

TEST(a_long_message_is_cut_not_overrun)
{
	struct ws_err err = WS_ERR_INIT;
	char text[3000];
	memset(text, 'x', sizeof text - 1);
	text[sizeof text - 1] = '\0';
	ws_err_set(&err, WS_EINPUT, "%s", text);
	for (int i = 0; i < 5; i++)
		ws_err_wrap(&err, "%s", text);
	assert_int_equal(strlen(err.msg), sizeof err.msg - 1);
}

TEST(a_buffer_refuses_what_passes_its_limit_and_remembers)
{
	struct ws_buf b;
	struct ws_err err = WS_ERR_INIT;
	ws_buf_init(&b, 10);
	assert_string_equal(ws_buf_str(&b), "");
	assert_int_equal(ws_buf_add(&b, "0123456789", 10), 0);
	assert_int_equal(ws_buf_putc(&b, 'x'), -1);
	assert_int_equal(ws_buf_puts(&b, ""), -1); /* a hole in the text would be worse than none */
	assert_fails(ws_buf_check(&b, "reply", &err), &err, WS_ESYSTEM, "reply");
	ws_buf_reset(&b);
	assert_int_equal(ws_buf_printf(&b, "%d", 42), 0);
	assert_string_equal(ws_buf_str(&b), "42");
	assert_int_equal(ws_buf_reserve(&b, SIZE_MAX), -1);
	ws_buf_free(&b);
	assert_int_equal(ws_buf_add(&b, "abc", 3), 0);
	ws_buf_consume(&b, 1);
	assert_string_equal(ws_buf_str(&b), "bc");
	ws_buf_consume(&b, 9);
	assert_int_equal(b.len, 0);
	ws_buf_free(&b);
}

/* What a shell makes of the word. */
static void expand(const char *word, char *got, size_t n)
{
	char command[1024];
	snprintf(command, sizeof command, "printf %%s %s", word);
	FILE *f = popen(command, "r");
	assert_non_null(f);
	got[fread(got, 1, n - 1, f)] = 0;
	assert_int_equal(pclose(f), 0);
}

TEST(words_of_commands_are_quoted_for_a_shell)
{
	static const char *const words[] = {
		"/srv/registry.json", "a b", "x;touch y", "$(touch y)", "`touch y`", "it's", "''''",
		"~", "*", "a\nb", "$HOME", "a\\b", "\"", "{a,b}", "#", "!x", "h\xc3\xa9",
		"a&b|c>d<e",
	};
	char got[256];
	for (size_t i = 0; i < sizeof words / sizeof words[0]; i++) {
		expand(ws_shell_word(words[i]).text, got, sizeof got);
		assert_string_equal(got, words[i]);
	}
	assert_string_equal(ws_shell_word("/srv/a-b_c.json").text, "/srv/a-b_c.json");
	assert_string_equal(ws_shell_word("").text, "''");
	assert_string_equal(ws_shell_word("-x").text, "./-x");
	char longest[2000] = "";
	for (size_t n = 1; n < sizeof longest; n++) {
		memset(longest, n % 2 ? '\'' : 'a', n);
		longest[n] = 0;
		const struct ws_shell_word word = ws_shell_word(longest);
		assert_true(strlen(word.text) < sizeof word.text);
		assert_true(strcmp(word.text, "FILE") == 0 || strlen(word.text) >= n);
	}
}

TEST(deadlines_saturate)
{
	assert_int_equal(ws_deadline_in(INT64_MAX), WS_FOREVER);
	assert_true(ws_deadline_passed(ws_deadline_in(-5)));
	assert_false(ws_deadline_passed(WS_FOREVER));
	assert_int_equal(ws_deadline_left(WS_FOREVER), INT64_MAX);
	assert_int_equal(ws_deadline_poll_ms(WS_FOREVER, 50), 50);
	assert_int_equal(ws_deadline_poll_ms(ws_deadline_in(0), 50), 0);
	const int ms = ws_deadline_poll_ms(ws_deadline_in(WS_NS_PER_S), INT_MAX);
	assert_true(ms > 1 && ms <= 1000);
}

TEST(passwords_are_hidden_in_messages)
{
	static const struct { const char *text, *shown; } cases[] = {
		{ "open http://user:SECRET@h:1: no file", "open http://***@h:1: no file" },
		{ "'https://TOKEN@h' and 'u:pw@h'", "'https://***@h'" },
		{ "'u:pw@h' is no URL", "'u:**@h' is no URL" },
		{ "http://a:b@c@h", "http://***@h" },
		{ "http://a:b%40h", "http://***%40h" },
		{ "http://u@h", "http://*@h" },
		{ "http://u:p(w@h: x", "http://***@h: x" },
		{ "'http://u:p'w@h': x", "'http://***@h': x" },
		{ "http://u:p<w>@h/x", "http://***@h/x" },
		{ "http://u:p\"w@h?x", "http://***@h?x" },
		{ "http://u:p w\t'(x@h#x y", "http://***@h#x y" },
		{ "http://u:p/w@h/x", "http://***@h/x" },
		{ "http://u:p?w@h", "http://***@h" },
		{ "GET http://a:1/x, https://u:p w@b:2/y", "GET http://a:1/x, https://***@b:2/y" },
		{ "http://u:p w@a/ http://v:(@b/", "http://***@a/ http://***@b/" },
		{ "bad 'u:p w(x@h:1'", "bad 'u:***@h:1'" },
		{ "bad u:p(w'<x@h:1 here", "bad u:***@h:1 here" },
		{ "mail a@b, at 10.0.0.1:80", "mail a@b, at 10.0.0.1:80" },
		{ "GET http://gpu7:30000/x: said a@b", "GET http://gpu7:30000/x: said a@b" },
		{ "http://gpu7:http: no port", "http://gpu7:http: no port" },
		{ "u:@h @ :", "u:@h @ :" },
		{ "://@h", "://@h" },
		{ "", "" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ws_err err = WS_ERR_INIT;
		ws_err_set(&err, WS_EUSAGE, "%s", cases[i].text);
		assert_string_equal(err.msg, cases[i].shown);
	}
}

/* The URL crosses the limit of the message, so that its '@' may be lost. */
TEST(passwords_are_hidden_where_a_message_is_cut)
{
	static const char *const urls[] = { "http://user:SECRET@h/", "http://user:SE CRET@h/",
		                            "http://SECRET@h/", "user:SECRET@h", "'user:SE'C@h'" };
	struct ws_err err = WS_ERR_INIT;
	char text[sizeof err.msg + 64];
	for (size_t k = 0; k < sizeof urls / sizeof *urls; k++)
		for (size_t n = sizeof err.hint - 40; n < sizeof err.msg + 10; n++) {
			memset(text, '.', n);
			snprintf(text + n, sizeof text - n, " %s", urls[k]);
			ws_err_set(&err, WS_EUSAGE, "%s", text);
			ws_err_hint(&err, "%s", text);
			if (strstr(err.msg, ":S") || strstr(err.msg, "/S") ||
			    strstr(err.hint, ":S") || strstr(err.hint, "/S"))
				fail_msg("%s at %zu: %s, %s", urls[k], n, err.msg, err.hint);
		}
	snprintf(text, sizeof text, "GET http://gpu7:30000 %*s", (int)sizeof err.msg, "x");
	ws_err_set(&err, WS_EUSAGE, "%s", text);
	assert_non_null(strstr(err.msg, "http://gpu7:30000 "));
}

RUN_TESTS(NULL, NULL)
