/* SPDX-License-Identifier: Apache-2.0 */
/* test.h - cmocka, and TEST(), which adds a test to the program's list. */
#ifndef TESTS_TEST_H
#define TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include <cmocka.h>

#include "wsync/err.h"

static struct CMUnitTest test_list[64];
static size_t tests_listed;

static inline void list_test(struct CMUnitTest t)
{
	if (tests_listed == sizeof test_list / sizeof *test_list)
		abort();
	test_list[tests_listed++] = t;
}

static inline int run_listed(CMFixtureFunction set_up, CMFixtureFunction tear_down)
{
	return _cmocka_run_group_tests("tests", test_list, tests_listed, set_up, tear_down);
}

/* Begins a test, which runs between its set-up and its tear-down, in the order of the file. */
#define TEST_BETWEEN(name, set_up, tear_down) \
	static void name(void **state); \
	__attribute__((constructor)) static void list_##name(void) \
	{ \
		list_test((struct CMUnitTest){ #name, name, set_up, tear_down, NULL }); \
	} \
	static void name(__attribute__((unused)) void **state)
#define TEST(name) TEST_BETWEEN(name, NULL, NULL)

/* CPU time of this process: other processes do not influence it. */
static inline int64_t cpu_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (int64_t)t.tv_sec * 1000000000 + t.tv_nsec;
}

/* Defines main, which runs the tests; set_up and tear_down may be NULL. */
#define RUN_TESTS(set_up, tear_down) \
	int main(void) \
	{ \
		return run_listed(set_up, tear_down); \
	}

static inline void check_ok(int rc, const struct ws_err *err, const char *file, int line)
{
	if (!rc)
		return;
	print_error("error: %s\n", err->msg);
	_fail(file, line);
}

static inline void check_fails(int rc, const struct ws_err *err, enum ws_code code,
                               const char *words, bool whole, const char *file, int line)
{
	const bool said = whole ? !strcmp(err->msg, words) : strstr(err->msg, words) != NULL;
	if (rc == -1 && err->code == code && said)
		return;
	print_error("returned %d, error %d: %s\nnot %d: %s\n", rc, (int)err->code, err->msg,
	               (int)code, words);
	_fail(file, line);
}

/* A call returns 0; otherwise its error is printed. */
#define assert_ok(call, err) check_ok(call, err, __FILE__, __LINE__)
/* A call returns -1 with this code and these words in its message, or exactly this message. */
#define assert_fails(call, err, code, words) \
	check_fails(call, err, code, words, false, __FILE__, __LINE__)
#define assert_fails_with(call, err, code, message) \
	check_fails(call, err, code, message, true, __FILE__, __LINE__)

#endif
