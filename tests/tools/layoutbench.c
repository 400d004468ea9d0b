/* SPDX-License-Identifier: Apache-2.0 */
/* layoutbench [MODEL|CONFIG] [TP] [EP]
 *
 * How long it takes to make the layout of a model (deepseek-v3 with its FP8 scales at tp 8), to
 * find every part of it by name and to place it at every rank, and how much memory that needs:
 * one line, median of nine. */
#include "checkpoint.h"
#include "wsync/tool/buf.h"
#include "wsync/clock.h"
#include "wsync/tool/layout.h"
#include "wsync/tool/source.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { ROUNDS = 9 };

struct times {
	int64_t make[ROUNDS], find[ROUNDS], place[ROUNDS];
};

static int open_config(const char *model, struct ws_config **out, struct ws_err *err)
{
	struct ws_buf text;
	ws_buf_init(&text, 1 << 20);
	int rc = strpbrk(model, "./") ? 1 : ws_synthetic_config(model, &text, err);
	if (rc > 0)
		rc = ws_config_open(model, out, err);
	else if (rc == 0)
		rc = ws_config_parse(text.data, text.len, model, out, err);
	ws_buf_free(&text);
	return rc;
}

static int64_t place_all(const struct ws_layout *l, unsigned tp)
{
	int64_t elements = 0;
	for (size_t i = 0; i < ws_layout_part_count(l); i++)
		for (unsigned r = 0; r < tp; r++) {
			struct ws_box from, to;
			ws_layout_place(l, ws_layout_part(l, i), r, &from, &to);
			elements += to.size[0];
		}
	return elements;
}

static int measure(const struct ws_family *f, const struct ws_config *c,
                   const struct ws_layout_opts *opts, struct times *t, struct ws_err *err)
{
	for (int i = 0; i < ROUNDS; i++) {
		struct ws_layout *l;
		const int64_t start = ws_now_ns();
		if (ws_layout_make(f, c, opts, &l, err) < 0)
			return -1;
		const int64_t made = ws_now_ns();
		size_t found = 0;
		for (size_t p = 0; p < ws_layout_part_count(l); p++)
			found += ws_layout_find_part(l, ws_layout_part(l, p)->name) != NULL;
		const int64_t looked = ws_now_ns();
		const int64_t elements = place_all(l, opts->tp);
		t->place[i] = ws_now_ns() - looked;
		t->find[i] = looked - made;
		t->make[i] = made - start;
		if (i == 0)
			printf("%s: %zu parts (%zu found) in %zu params%s", ws_layout_family(l),
			       ws_layout_part_count(l), found, ws_layout_param_count(l),
			       elements ? "" : ", empty");
		ws_layout_free(l);
	}
	return 0;
}

static int by_size(const void *a, const void *b)
{
	const int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
	return (x > y) - (x < y);
}

static const char *median(int64_t *ns, char *dst, size_t n)
{
	qsort(ns, ROUNDS, sizeof *ns, by_size);
	return ws_format_duration(dst, n, ns[ROUNDS / 2]);
}

int main(int argc, char **argv)
{
	const char *const model = argc > 1 ? argv[1] : "deepseek-v3";
	const struct ws_layout_opts opts = { .tp = argc > 2 ? (unsigned)atoi(argv[2]) : 8,
		                             .ep = argc > 3 ? (unsigned)atoi(argv[3]) : 1 };
	struct ws_err err = WS_ERR_INIT;
	struct ws_namemap *maps = NULL;
	struct ws_config *config = NULL;
	struct times t;
	struct rusage usage;
	char text[3][32], rss[32];
	const struct ws_family *f = NULL;
	int rc = ws_namemap_open(NULL, &maps, &err);
	if (rc == 0)
		rc = open_config(model, &config, &err);
	if (rc == 0 && !(f = ws_namemap_find(maps, config)))
		rc = ws_err_set(&err, WS_EINPUT, "%s: no family of ours", model);
	if (rc == 0)
		rc = measure(f, config, &opts, &t, &err);
	if (rc == 0) {
		getrusage(RUSAGE_SELF, &usage);
		printf(": made in %s, found in %s, placed at %u ranks in %s, peak %s\n",
		       median(t.make, text[0], sizeof text[0]),
		       median(t.find, text[1], sizeof text[1]), opts.tp,
		       median(t.place, text[2], sizeof text[2]),
		       ws_format_size(rss, sizeof rss, (uint64_t)usage.ru_maxrss * 1024));
	} else {
		fprintf(stderr, "layoutbench: %s\n", err.msg);
	}
	ws_config_free(config);
	ws_namemap_close(maps);
	return rc == 0 ? 0 : (int)err.code;
}
