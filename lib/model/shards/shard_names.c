/* SPDX-License-Identifier: Apache-2.0 */
/* shard_names.c - finds the ranks in the file names of a directory.
 *
 * A name is words and numbers: "model-rank-2-part-0.safetensors" is model rank 2 part 0
 * safetensors. The word before a number shows whether it is a rank. If no name has such a word, the
 * ranks are the numbers at the only place with the values 0 .. tp-1. */
#include "shard_list.h"

#include "name_index.h"
#include "wsync/tool/buf.h"

#include <ctype.h>
#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>
#include <sys/stat.h>

enum { MAX_NUMBERS = 8, NAMES_SHOWN = 4 };

/* How certain it is that a number is a rank. */
enum clarity { PLACE, RANK, MODEL_PARALLEL, TENSOR_PARALLEL };

struct entry {
	const char *name;
	bool directory;
	struct {
		unsigned long value;
		enum clarity clarity;
	} numbers[MAX_NUMBERS];
	size_t n;
};

struct seen {
	struct entry *v;
	size_t n;
};

/* ---- words ----------------------------------------------------------------------------------- */

static enum clarity clarity_of(const char *last, size_t n_last, const char *before, size_t n_before)
{
	const bool rank = n_last == 4 && strncasecmp(last, "rank", 4) == 0;
	const char *word = rank ? before : last;
	const size_t n = rank ? n_before : n_last;
	if (n == 2 && strncasecmp(word, "tp", 2) == 0)
		return TENSOR_PARALLEL;
	if (n == 2 && strncasecmp(word, "mp", 2) == 0)
		return MODEL_PARALLEL;
	return rank ? RANK : PLACE;
}

static void read_numbers(struct entry *e)
{
	const char *last = "", *before = "", *p = e->name;
	size_t n_last = 0, n_before = 0;
	while (*p) {
		const char *start = p;
		while (isalpha((unsigned char)*p))
			p++;
		if (p > start) {
			before = last;
			n_before = n_last;
			last = start;
			n_last = (size_t)(p - start);
		} else if (isdigit((unsigned char)*p)) {
			char *end;
			const unsigned long value = strtoul(p, &end, 10);
			if (e->n < MAX_NUMBERS) {
				e->numbers[e->n].value = value;
				e->numbers[e->n++].clarity =
					clarity_of(last, n_last, before, n_before);
			}
			last = before = "";
			n_last = n_before = 0;
			p = end;
		} else {
			p++;
		}
	}
}

/* ---- directory entries ----------------------------------------------------------------------- */

static bool is_tensors(const char *name)
{
	const char *dot = strrchr(name, '.');
	return dot && strcmp(dot, ".safetensors") == 0;
}

static int add_entry(const char *dir, const char *name, struct ws_shard_list *list,
                     struct ws_list *seen)
{
	struct stat st;
	struct entry e = { .name = name };
	char *path = NULL;
	if (asprintf(&path, "%s/%s", dir, name) < 0)
		return -1;
	e.directory = stat(path, &st) == 0 && S_ISDIR(st.st_mode);
	free(path);
	read_numbers(&e);
	if (e.n == 0 || (!e.directory && !is_tensors(name)))
		return 0;
	e.name = ws_arena_text(&list->arena, name, strlen(name));
	struct entry *copy = e.name ? ws_list_add(&list->arena, seen, sizeof e) : NULL;
	if (!copy)
		return -1;
	*copy = e;
	return 0;
}

static int by_name(const struct dirent **a, const struct dirent **b)
{
	return strcmp((*a)->d_name, (*b)->d_name);
}

static int is_visible(const struct dirent *e)
{
	return e->d_name[0] != '.';
}

static int scan_shard_dir(const char *dir, struct ws_shard_list *list, struct ws_list *seen,
                struct ws_err *err)
{
	struct dirent **entries;
	const int n = scandir(dir, &entries, is_visible, by_name);
	int rc = 0;
	if (n < 0)
		return ws_err_errno(err, "list %s", dir);
	for (int i = 0; i < n; i++) {
		if (rc == 0)
			rc = add_entry(dir, entries[i]->d_name, list, seen);
		free(entries[i]);
	}
	free(entries);
	return rc ? ws_oom(err) : 0;
}

static int unclear(const char *dir, const struct seen *s, unsigned tp, const char *what,
                   struct ws_err *err)
{
	struct ws_buf names;
	static const char remedy[] =
		"give the paths of all ranks, rank 0 first, or write a manifest: "
		"{\"tp\": %u, \"shards\": [[\"FILE\", ...], ...]}";
	if (s->n == 0) {
		ws_err_set(err, WS_EINPUT, "%s: no name there has the number of one of %u ranks",
		           dir, tp);
		return ws_err_hint(err, remedy, tp);
	}
	ws_buf_init(&names, 4096);
	for (size_t i = 0; i < s->n && i < NAMES_SHOWN; i++)
		ws_buf_printf(&names, "%s%s", i ? ", " : "", ws_quote(s->v[i].name).text);
	if (s->n > NAMES_SHOWN)
		ws_buf_printf(&names, " and %zu more", s->n - NAMES_SHOWN);
	ws_err_set(err, WS_EINPUT, "%s: %s the %u ranks among %s", dir, what, tp,
	           ws_buf_str(&names));
	ws_buf_free(&names);
	return ws_err_hint(err, remedy, tp);
}

/* ---- which number ---------------------------------------------------------------------------- */

static enum clarity clearest_of(const struct entry *e)
{
	enum clarity best = PLACE;
	for (size_t k = 0; k < e->n; k++)
		if (e->numbers[k].clarity > best)
			best = e->numbers[k].clarity;
	return best;
}

static enum clarity clearest(const struct seen *s)
{
	enum clarity best = PLACE;
	for (size_t i = 0; i < s->n; i++)
		if (clearest_of(&s->v[i]) > best)
			best = clearest_of(&s->v[i]);
	return best;
}

/* Keeps either the files or the directories: those with the more certain ranks. */
static int choose_kind(const char *dir, struct seen *s, unsigned tp, struct ws_err *err)
{
	enum clarity clarity[2] = { PLACE, PLACE };
	size_t n[2] = { 0, 0 };
	for (size_t i = 0; i < s->n; i++) {
		const bool directory = s->v[i].directory;
		n[directory]++;
		if (clearest_of(&s->v[i]) > clarity[directory])
			clarity[directory] = clearest_of(&s->v[i]);
	}
	if (n[0] == 0 || n[1] == 0)
		return 0;
	if (clarity[0] == clarity[1])
		return unclear(dir, s, tp, "both files and directories may be", err);
	const bool directories = clarity[1] > clarity[0];
	size_t kept = 0;
	for (size_t i = 0; i < s->n; i++)
		if (s->v[i].directory == directories)
			s->v[kept++] = s->v[i];
	s->n = kept;
	return 0;
}

/* Returns the only number of this clarity; -1: no number, or several. */
static int find_number(const struct entry *e, enum clarity clarity)
{
	int found = -1;
	for (size_t k = 0; k < e->n; k++) {
		if (e->numbers[k].clarity != clarity)
			continue;
		if (found >= 0)
			return -1;
		found = (int)k;
	}
	return found;
}

/* True if the numbers at that place are exactly 0..tp-1. */
static bool counts_at(const struct seen *s, size_t place, unsigned tp)
{
	bool *there = calloc(tp, sizeof *there);
	size_t ranks = 0;
	bool fits = there != NULL;
	for (size_t i = 0; i < s->n && fits; i++) {
		const struct entry *e = &s->v[i];
		fits = e->n > place && e->numbers[place].value < tp;
		if (fits && !there[e->numbers[place].value]) {
			there[e->numbers[place].value] = true;
			ranks++;
		}
	}
	free(there);
	return fits && ranks == tp;
}

/* Returns the only place of ranks in names without a helpful word; -1: no place, or several. */
static int find_place(const struct seen *s, unsigned tp)
{
	int found = -1;
	for (size_t place = 0; place < MAX_NUMBERS; place++) {
		if (!counts_at(s, place, tp))
			continue;
		if (found >= 0)
			return -1;
		found = (int)place;
	}
	return found;
}

/* ---- assigning ------------------------------------------------------------------------------- */

static int assign(const char *dir, const struct seen *s, struct ws_shard_list *list,
                  struct ws_err *err)
{
	const enum clarity clarity = clearest(s);
	const int place = clarity == PLACE ? find_place(s, list->tp) : 0;
	if (place < 0)
		return unclear(dir, s, list->tp, "cannot find", err);
	for (size_t i = 0; i < s->n; i++) {
		const struct entry *e = &s->v[i];
		const int k = clarity == PLACE ? place : find_number(e, clarity);
		if (e->directory && clearest_of(e) < clarity && clearest_of(e) == PLACE)
			continue; /* "step_100" beside "rank_0" */
		if (k < 0)
			return unclear(dir, s, list->tp, "cannot find", err);
		if (e->numbers[k].value >= list->tp)
			return unclear(dir, s, list->tp, "there are more than", err);
		if (ws_shard_add(list, e->numbers[k].value, dir, e->name, err))
			return -1;
	}
	for (size_t r = 0; r < list->tp; r++)
		if (list->ranks[r].n == 0)
			return unclear(dir, s, list->tp, "cannot find all of", err);
	return 0;
}

int ws_shard_names(const char *dir, struct ws_shard_list *list, struct ws_err *err)
{
	struct ws_list entries = { 0 };
	if (ws_shard_make_ranks(list, err) || scan_shard_dir(dir, list, &entries, err))
		return -1;
	struct seen s = { entries.items, entries.n };
	list->dir = ws_arena_text(&list->arena, dir, strlen(dir));
	if (!list->dir)
		return ws_oom(err);
	return choose_kind(dir, &s, list->tp, err) ? -1 : assign(dir, &s, list, err);
}
