/* SPDX-License-Identifier: Apache-2.0 */
/* census.h - reads tests/data/census: the tensors of tiny models of many families, in the spelling
 * of published checkpoints and in that of transformers' models in memory.
 *
 * The head of a file has lines "arch", "type", "tied" and "config"; then come the two lists, in the
 * notation of golden_names.h. The second is the word "same" where it equals the first.
 * tests/tools/census.py writes them. Tests run in the root of the tree. */
#ifndef WS_TESTS_CENSUS_H
#define WS_TESTS_CENSUS_H

#include "golden_names.h"
#include "test.h"

#include <dirent.h>

#define CENSUS_DIR "tests/data/census/"

struct census_tensor {
	char *name;
	enum ws_dtype dtype;
	unsigned n_dims;
	int64_t dims[WS_MAX_DIMS];
};

struct census_list {
	struct census_tensor *t;
	size_t n, cap;
};

struct census {
	char name[256];           /* of the file, without .txt */
	char arch[64], type[64];  /* architectures[0] and model_type of the config */
	char *config;             /* JSON */
	bool tied;                /* the head is the embedding */
	struct census_list checkpoint, memory;
	struct census_list *into; /* while it is read */
};

static inline bool census_add(void *ctx, const struct golden_name *g)
{
	struct census_list *l = ctx;
	if (l->n == l->cap) {
		l->cap = l->cap ? 2 * l->cap : 64;
		l->t = realloc(l->t, l->cap * sizeof *l->t);
		assert_non_null(l->t);
	}
	struct census_tensor *t = &l->t[l->n++];
	*t = (struct census_tensor){ .name = strdup(g->name), .n_dims = g->n_dims };
	assert_non_null(t->name);
	assert_true(ws_dtype_from_safetensors(g->dtype, &t->dtype));
	memcpy(t->dims, g->dims, sizeof t->dims);
	return true;
}

static inline void census_repeat(const struct census_list *from, struct census_list *to)
{
	for (size_t i = 0; i < from->n; i++) {
		const struct census_tensor *t = &from->t[i];
		struct golden_name g = { .name = t->name, .n_dims = t->n_dims };
		snprintf(g.dtype, sizeof g.dtype, "%s", ws_dtype_safetensors(t->dtype));
		memcpy(g.dims, t->dims, sizeof g.dims);
		census_add(to, &g);
	}
}

/* A line of the head; false: it is none. */
static inline bool census_head(struct census *c, const char *line)
{
	if (sscanf(line, "arch %63s", c->arch) == 1 || sscanf(line, "type %63s", c->type) == 1)
		return true;
	if (strncmp(line, "tied ", 5) == 0) {
		c->tied = strcmp(line + 5, "yes") == 0;
		return c->tied || strcmp(line + 5, "no") == 0;
	}
	if (strncmp(line, "config ", 7) != 0 || c->config)
		return false;
	c->config = strdup(line + 7);
	return c->config != NULL;
}

static inline bool census_line(char *line, void *ctx)
{
	struct census *c = ctx;
	line[strcspn(line, "\n")] = '\0';
	if (strcmp(line, "checkpoint") == 0)
		c->into = &c->checkpoint;
	else if (strcmp(line, "memory") == 0)
		c->into = &c->memory;
	else if (!c->into)
		return census_head(c, line);
	else if (strcmp(line, "same") == 0)
		census_repeat(&c->checkpoint, c->into);
	else
		return golden_line(line, census_add, c->into);
	return true;
}

/* Fails the test if the file is not as it should be. */
static inline void census_read(const char *name, struct census *c)
{
	char path[512];
	*c = (struct census){ 0 };
	snprintf(c->name, sizeof c->name, "%s", name);
	snprintf(path, sizeof path, CENSUS_DIR "%s.txt", name);
	if (!golden_lines(path, census_line, c))
		fail_msg("%s cannot be read", path);
	if (!*c->arch || !*c->type || !c->config || !c->checkpoint.n || !c->memory.n)
		fail_msg("%s lacks a part", path);
}

static inline void census_list_free(struct census_list *l)
{
	for (size_t i = 0; i < l->n; i++)
		free(l->t[i].name);
	free(l->t);
}

static inline void census_free(struct census *c)
{
	census_list_free(&c->checkpoint);
	census_list_free(&c->memory);
	free(c->config);
	*c = (struct census){ 0 };
}

static inline int64_t census_elements(const struct census_tensor *t)
{
	int64_t n = 1;
	for (unsigned d = 0; d < t->n_dims; d++)
		n *= t->dims[d];
	return n;
}

/* Calls each() for every file, in the order of their names; returns how many there are. */
static inline size_t census_each(void (*each)(const struct census *c))
{
	struct dirent **files;
	const int n = scandir(CENSUS_DIR, &files, NULL, alphasort);
	size_t read = 0;
	assert_true(n > 0);
	for (int i = 0; i < n; i++) {
		char *end = strstr(files[i]->d_name, ".txt");
		if (end && strcmp(end, ".txt") == 0) {
			struct census c;
			*end = '\0';
			census_read(files[i]->d_name, &c);
			each(&c);
			census_free(&c);
			read++;
		}
		free(files[i]);
	}
	free(files);
	return read;
}

#endif
