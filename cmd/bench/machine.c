/* SPDX-License-Identifier: Apache-2.0 */
/* machine.c - reports the machine, for readers of the figures. */
#include "bench_cmd.h"

#include "wsync/tool/str.h"
#include "wsync/version.h"

#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/utsname.h>
#include <unistd.h>

struct processors {
	char name[128], governor[32];
	double mhz;            /* of the first, just now; 0: unknown */
	long n, usable;        /* usable: this process may run there */
};

static void read_line(const char *path, char *text, size_t n)
{
	char line[128] = "";
	FILE *f = fopen(path, "re");
	if (f && fgets(line, sizeof line, f))
		ws_printable(text, n, line, strcspn(line, "\n"));
	if (f)
		fclose(f);
}

/* "model name	: AMD EPYC" */
static const char *value_of(const char *line, const char *key)
{
	const char *colon = strncmp(line, key, strlen(key)) == 0 ? strchr(line, ':') : NULL;
	return colon && colon[1] ? colon + 2 : NULL;
}

static void find_processors(struct processors *p)
{
	char line[256];
	cpu_set_t set;
	*p = (struct processors){ .name = "unknown processor", .n = sysconf(_SC_NPROCESSORS_ONLN) };
	p->usable = sched_getaffinity(0, sizeof set, &set) == 0 ? CPU_COUNT(&set) : p->n;
	FILE *f = fopen("/proc/cpuinfo", "re");
	while (f && fgets(line, sizeof line, f) && *line != '\n') {
		const char *name = value_of(line, "model name"), *mhz = value_of(line, "cpu MHz");
		if (name)
			ws_printable(p->name, sizeof p->name, name, strcspn(name, "\n"));
		if (mhz)
			p->mhz = strtod(mhz, NULL);
	}
	if (f)
		fclose(f);
	read_line("/sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", p->governor,
	          sizeof p->governor);
}

/* The version of the NVIDIA kernel driver; "" without a driver. */
static void find_driver(char *text, size_t n)
{
	char line[512] = "";
	FILE *f = fopen("/proc/driver/nvidia/version", "re");
	if (f && !fgets(line, sizeof line, f))
		line[0] = 0;
	if (f)
		fclose(f);
	/* "NVRM version: NVIDIA UNIX Open Kernel Module for x86_64  580.65.06 ..." */
	text[0] = 0;
	char *rest = NULL;
	for (char *word = strtok_r(line, " \t\n", &rest); word;
	     word = strtok_r(NULL, " \t\n", &rest))
		if (strchr("0123456789", *word) && strchr(word, '.')) {
			ws_printable(text, n, word, strlen(word));
			return;
		}
}

/* The smallest step of the clock. */
static int64_t clock_step(void)
{
	int64_t least = WS_NS_PER_S;
	for (int i = 0; i < 200; i++) {
		const int64_t since = ws_now_ns();
		int64_t now;
		while ((now = ws_now_ns()) == since)
			;
		least = now - since < least ? now - since : least;
	}
	return least;
}

static void put_gpu(struct ws_jw *w, const struct ws_bench_machine *m, const char *driver)
{
	char text[32];
	ws_jw_str(w, "gpu", m->gpu);
	ws_jw_uint(w, "gpus", m->gpus);
	snprintf(text, sizeof text, "%d.%d", m->major, m->minor);
	ws_jw_str(w, "compute_capability", text);
	ws_jw_int(w, "multiprocessors", m->multiprocessors);
	ws_jw_uint(w, "gpu_memory", m->memory);
	snprintf(text, sizeof text, "%d.%d", m->cuda / 1000, m->cuda % 1000 / 10);
	ws_jw_str(w, "cuda", text);
	ws_jw_str(w, "driver", *driver ? driver : NULL);
	ws_jw_str(w, "nccl", *m->nccl ? m->nccl : NULL);
	ws_jw_str(w, "nccl_path", *m->nccl ? m->nccl_path : NULL);
}

static void say_gpu(struct report *r, const struct ws_bench_machine *m, const char *driver)
{
	char size[32];
	ui_say(r->ui, "%s, sm_%d%d, %d multiprocessors, %s; %s%s%sCUDA %d.%d", m->gpu, m->major,
	       m->minor, m->multiprocessors, ws_format_size(size, sizeof size, m->memory),
	       *driver ? "driver " : "", driver, *driver ? ", " : "", m->cuda / 1000,
	       m->cuda % 1000 / 10);
	if (*m->nccl)
		ui_say(r->ui, ", NCCL %s (%s)", m->nccl, m->nccl_path);
	ui_say(r->ui, "\n");
}

static void put_machine(struct report *r, const struct processors *p, const struct utsname *u,
                        const char *driver)
{
	struct ws_jw *w = ui_line(r->ui, "machine");
	ws_jw_str(w, "version", ws_version());
	ws_jw_str(w, "build", ws_build());
	ws_jw_str(w, "processor", p->name);
	ws_jw_int(w, "processors", p->n);
	ws_jw_int(w, "usable", p->usable);
	ws_jw_double(w, "mhz", p->mhz);
	ui_json_text(w, "governor", p->governor);
	ws_jw_str(w, "system", u->sysname);
	ws_jw_str(w, "release", u->release);
	ws_jw_double(w, "load", r->load);
	ws_jw_int(w, "clock_ns", clock_step());
	if (r->has_gpu)
		put_gpu(w, &r->machine, driver);
	ui_line_end(r->ui);
}

static void say_machine(struct report *r, const struct processors *p, const struct utsname *u)
{
	ui_say(r->ui, "wsync %s (%s) on %ld x %s", ws_version(), ws_build(), p->n, p->name);
	if (p->usable < p->n)
		ui_say(r->ui, " (%ld usable)", p->usable);
	if (p->mhz > 0)
		ui_say(r->ui, " at %.1f GHz", p->mhz / 1000);
	if (*p->governor)
		ui_say(r->ui, ", governor %s", p->governor);
	ui_say(r->ui, ", %s %s, load %.1f\n", u->sysname, u->release, r->load);
}

void report_machine(struct report *r)
{
	struct utsname u = { 0 };
	struct processors p;
	char driver[64] = "";
	uname(&u);
	find_processors(&p);
	if (r->has_gpu)
		find_driver(driver, sizeof driver);
	put_machine(r, &p, &u, driver);
	if (r->cfg->csv)
		return;
	say_machine(r, &p, &u);
	if (r->has_gpu)
		say_gpu(r, &r->machine, driver);
}
