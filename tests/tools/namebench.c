/* SPDX-License-Identifier: Apache-2.0 */
/* namebench.c - times the check of names, step by step: namebench CONFIG.json [TP [SOURCE]]
 *
 * SOURCE is synthetic:deepseek-v3 when it is left out, TP 8. Prints milliseconds of each step,
 * what was found, and the most memory that was in use. */
#include "wsync/clock.h"
#include "wsync/tool/namecheck.h"

#include <stdio.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

static int64_t last, last_busy;

/* Of the processor: what a machine with other work would take by itself. */
static int64_t busy_ns(void)
{
	struct timespec t;
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (int64_t)t.tv_sec * WS_NS_PER_S + t.tv_nsec;
}

static void lap(const char *what)
{
	const int64_t now = ws_now_ns(), busy = busy_ns();
	printf("%-8s %7.1f ms, %7.1f ms of processor\n", what, (double)(now - last) / 1e6,
	       (double)(busy - last_busy) / 1e6);
	last = now;
	last_busy = busy;
}

static _Noreturn void die(const struct ws_err *err)
{
	fprintf(stderr, "namebench: %s\n", err->msg);
	exit((int)err->code);
}

int main(int argc, char **argv)
{
	const char *const paths[] = { argc > 3 ? argv[3] : "synthetic:deepseek-v3" };
	const struct ws_layout_opts whole = { .tp = 1 };
	const struct ws_layout_opts sizes = { .tp = argc > 2 ? (unsigned)atoi(argv[2]) : 8 };
	struct ws_source *source;
	struct ws_config *config;
	struct ws_namemap *map;
	struct ws_layout *trainer, *server;
	struct ws_catalog *items;
	struct ws_findings found;
	struct ws_err err;
	struct rusage usage;
	if (argc < 2) {
		fputs("namebench CONFIG.json [TP [SOURCE]]\n", stderr);
		return 2;
	}
	const int64_t start = last = ws_now_ns();
	if (ws_source_open(paths, 1, &source, &err))
		die(&err);
	lap("source");
	if (ws_config_open(argv[1], &config, &err) || ws_namemap_open(NULL, &map, &err))
		die(&err);
	const struct ws_family *family = ws_namemap_find(map, config);
	if (!family)
		family = ws_namemap_generic(map);
	lap("rules");
	if (ws_layout_make(family, config, &whole, &trainer, &err) ||
	    ws_layout_make(family, config, &sizes, &server, &err))
		die(&err);
	lap("layouts");
	const struct ws_source *const sources[] = { source };
	const struct ws_catalog_opts how = { .family = family, .layout = trainer };
	if (ws_catalog_make(sources, 1, &how, &items, &err))
		die(&err);
	lap("catalog");
	const struct ws_namecheck_opts opts = { .items = items, .layout = server, .family = family,
		                                .config = config };
	if (ws_namecheck(&opts, &found, &err))
		die(&err);
	lap("check");
	getrusage(RUSAGE_SELF, &usage);
	printf("%-8s %7.1f ms, %7.1f ms of processor, %ld MiB: %zu tensors, %zu errors, %zu "
	       "warnings, %zu notes\n", "all", (double)(ws_now_ns() - start) / 1e6,
	       (double)busy_ns() / 1e6, usage.ru_maxrss / 1024, found.sent, found.errors,
	       found.warnings, found.notes);
	ws_findings_free(&found);
	ws_catalog_free(items);
	ws_layout_free(server);
	ws_layout_free(trainer);
	ws_namemap_close(map);
	ws_config_free(config);
	ws_source_close(source);
	return 0;
}
