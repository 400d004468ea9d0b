/* SPDX-License-Identifier: Apache-2.0 */
/* test.h - cmocka, and the list of a program's tests, which TEST() makes. */
#ifndef TESTS_TEST_H
#define TESTS_TEST_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

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

/* Begins a test, which runs between its set-up and its tear-down; tests run in the order of the file. */
#define TEST_BETWEEN(name, set_up, tear_down) \
	static void name(void **state); \
	__attribute__((constructor)) static void list_##name(void) \
	{ \
		list_test((struct CMUnitTest){ #name, name, set_up, tear_down, NULL }); \
	} \
	static void name(__attribute__((unused)) void **state)
#define TEST(name) TEST_BETWEEN(name, NULL, NULL)

/* The main of a program that does nothing else; both may be NULL. */
#define RUN_TESTS(set_up, tear_down) \
	int main(void) \
	{ \
		return run_listed(set_up, tear_down); \
	}

#endif
