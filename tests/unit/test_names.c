/* SPDX-License-Identifier: Apache-2.0 */
/* The index of names against looking at every name in turn: sizes from nothing to thousands,
 * names that occur several times, names that are not there. */
#include "name_index.h"
#include "test.h"

struct thing {
	const char *name;
	int number;
};

static uint32_t dice(uint32_t *seed)
{
	*seed = *seed * 1664525 + 1013904223;
	return *seed >> 8;
}

static const struct thing *nth(const struct thing *things, size_t n, const char *name, size_t i)
{
	for (size_t k = 0; k < n; k++)
		if (strcmp(things[k].name, name) == 0 && i-- == 0)
			return &things[k];
	return NULL;
}

static void expect_same(const struct ws_names *names, const struct thing *things, size_t n,
                        const char *name)
{
	for (size_t i = 0; i < 4; i++)
		if (ws_names_nth(names, name, i) != nth(things, n, name, i))
			fail_msg("number %zu of '%s' among %zu names", i, name, n);
	assert_ptr_equal(ws_names_find(names, name), nth(things, n, name, 0));
}

TEST(every_name_is_found_and_no_other)
{
	enum { MOST = 600 };
	static char texts[MOST][16];
	struct thing things[MOST];
	uint32_t seed = 5;
	for (size_t n = 0; n <= MOST; n += n < 20 ? 1 : 83) {
		/* few names, or many */
		const uint32_t range = n % 2 ? (uint32_t)n : 1 + (uint32_t)n * 4;
		for (size_t i = 0; i < n; i++) {
			snprintf(texts[i], sizeof texts[i], "w%u", dice(&seed) % range);
			things[i] = (struct thing){ texts[i], (int)i };
		}
		struct ws_names names;
		struct ws_err err = WS_ERR_INIT;
		size_t twice[2];
		const int some = ws_names_init(&names, things, sizeof *things, n, twice, &err);
		assert_true(some >= 0);
		if (some)
			assert_string_equal(things[twice[0]].name, things[twice[1]].name);
		for (uint32_t i = 0; i < range + 10; i++) {
			char name[16];
			snprintf(name, sizeof name, "w%u", i);
			expect_same(&names, things, n, name);
		}
		expect_same(&names, things, n, "");
		ws_names_fini(&names);
	}
}

RUN_TESTS(NULL, NULL)
