/* SPDX-License-Identifier: Apache-2.0 */
/* tests/data/census: both spellings of a model are of the same weights. */
#include "census.h"

static int by_name(const void *a, const void *b)
{
	return strcmp(*(const char *const *)a, *(const char *const *)b);
}

static void expect_unique(const struct census *c, const struct census_list *l)
{
	const char **names = calloc(l->n, sizeof *names);
	assert_non_null(names);
	for (size_t i = 0; i < l->n; i++)
		names[i] = l->t[i].name;
	qsort(names, l->n, sizeof *names, by_name);
	for (size_t i = 1; i < l->n; i++)
		if (strcmp(names[i - 1], names[i]) == 0)
			fail_msg("%s: %s is there twice", c->name, names[i]);
	free(names);
}

static void expect_names(const struct census *c)
{
	expect_unique(c, &c->checkpoint);
	expect_unique(c, &c->memory);
}

TEST(names_are_unique)
{
	assert_true(census_each(expect_names) >= 45);
}

/* lm_head.weight, below any prefix; deepseek_v4 calls it head.weight. */
static bool is_head(const char *name)
{
	static const char end[] = "head.weight";
	const size_t n = strlen(name);
	if (n < sizeof end - 1 || strcmp(name + n - (sizeof end - 1), end) != 0)
		return false;
	return n == sizeof end - 1 || strstr(name, "lm_head") != NULL;
}

/* The elements of all tensors but the heads. */
static int64_t body(const struct census_list *l, unsigned *heads)
{
	int64_t elements = 0;
	*heads = 0;
	for (size_t i = 0; i < l->n; i++)
		if (is_head(l->t[i].name))
			++*heads;
		else
			elements += census_elements(&l->t[i]);
	return elements;
}

static void expect_same_size(const struct census *c)
{
	unsigned saved, held;
	const int64_t checkpoint = body(&c->checkpoint, &saved), memory = body(&c->memory, &held);
	if (checkpoint != memory)
		fail_msg("%s: %" PRId64 " elements in the checkpoint, %" PRId64 " in memory",
		         c->name, checkpoint, memory);
	if (held != 1 || saved != !c->tied)
		fail_msg("%s: %u heads in the checkpoint, %u in memory", c->name, saved, held);
}

/* A tied head is in memory alone: save_pretrained leaves it out. */
TEST(both_spellings_have_as_many_elements)
{
	assert_true(census_each(expect_same_size) >= 45);
}

RUN_TESTS(NULL, NULL)
