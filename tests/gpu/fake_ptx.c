/* SPDX-License-Identifier: Apache-2.0 */
/* fake_ptx.c - kernels of the double as nvcc made them: with FAKE_CUDA_PTX=DIR it runs the PTX
 * files of that directory (ptx.h), in place of the same sources compiled for the CPU. */
#include "fake_core.h"

#include "host_run.h"
#include "ptx.h"

#include <dirent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_MODULES = 16, MOST_SPANS = 4096 };
static struct ptx_module *modules[MOST_MODULES];
static size_t n_modules;

__attribute__((destructor)) static void free_modules(void)
{
	while (n_modules)
		ptx_free(modules[--n_modules]);
}

const char *fake_ptx_dir(void)
{
	const char *dir = getenv("FAKE_CUDA_PTX");
	return dir && *dir ? dir : NULL;
}

/* NULL: it cannot be read. The caller frees it. */
static char *read_text(const char *dir, const char *name)
{
	char path[4096];
	FILE *f = snprintf(path, sizeof path, "%s/%s", dir, name) < (int)sizeof path ?
	                  fopen(path, "r") :
	                  NULL;
	char *text = NULL;
	long n = 0;
	if (!f)
		return NULL;
	if (fseek(f, 0, SEEK_END) == 0 && (n = ftell(f)) >= 0 &&
	    (text = calloc(1, (size_t)n + 1))) {
		rewind(f);
		if (fread(text, 1, (size_t)n, f) != (size_t)n)
			*text = '\0';
	}
	fclose(f);
	return text;
}

static bool is_ptx(const char *name)
{
	const size_t n = strlen(name);
	return n > 4 && strcmp(name + n - 4, ".ptx") == 0;
}

static void load_one(const char *dir, const char *name, struct ptx_trouble *why)
{
	char *text = n_modules < MOST_MODULES ? read_text(dir, name) : NULL;
	struct ptx_module *m = text ? ptx_parse(name, text, why) : NULL;
	if (m)
		modules[n_modules++] = m;
	else
		ptx_complain(why, "%s cannot be read", name);
	free(text);
}

static void load_all(struct ptx_trouble *why)
{
	static bool tried;
	if (tried)
		return;
	DIR *dir = opendir(fake_ptx_dir());
	if (!dir) {
		ptx_complain(why, "FAKE_CUDA_PTX=%s cannot be opened", fake_ptx_dir());
		return;
	}
	tried = true;
	for (const struct dirent *e = readdir(dir); e; e = readdir(dir))
		if (is_ptx(e->d_name))
			load_one(fake_ptx_dir(), e->d_name, why);
	closedir(dir);
}

static const struct ptx_kernel *find(const struct host_kernel *k, struct ptx_trouble *why)
{
	load_all(why);
	for (size_t i = 0; i < n_modules; i++) {
		const struct ptx_kernel *found = ptx_find(modules[i], k->name);
		if (found && found->param_bytes == k->bytes)
			return found;
		if (found)
			ptx_complain(why, "%s: its argument is %u bytes on a GPU and %zu here",
			             k->name, found->param_bytes, k->bytes);
	}
	ptx_complain(why, "%s is in none of the files of FAKE_CUDA_PTX", k->name);
	return NULL;
}

static size_t list_memory(struct ptx_span *spans)
{
	size_t n = 0;
	for (const struct fake_thing *t = fake_next(NULL); t && n < MOST_SPANS; t = t->next)
		if (t->kind == FAKE_DEVICE_MEMORY || t->kind == FAKE_OPENED_MEMORY)
			spans[n++] = (struct ptx_span){ t->handle, t->bytes };
	return n;
}

void fake_ptx_run(const struct fake_work *w)
{
	static struct ptx_span spans[MOST_SPANS];
	struct ptx_trouble why = { "" };
	const struct ptx_launch l = { .kernel = find(w->kernel, &why), .blocks = w->blocks,
		                      .threads = w->threads, .args = w->args, .spans = spans,
		                      .n_spans = list_memory(spans) };
	if (!l.kernel || !ptx_run(&l, &why))
		fake_mistake("%s", why.text);
}
