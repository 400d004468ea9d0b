/* SPDX-License-Identifier: Apache-2.0 */
#include "region.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

const char *ws_memory_path(const char *path)
{
	static const char scheme[] = "cuda-ipc:";
	return strncmp(path, scheme, sizeof scheme - 1) == 0 ? path + sizeof scheme - 1 : NULL;
}

/* Resolves the config's path, which is relative to the manifest. *out NULL: no config. */
static int find_config(const char *path, const char *config, char **out, struct ws_err *err)
{
	const char *slash = strrchr(path, '/');
	*out = NULL;
	if (!config)
		return 0;
	if (*config == '/' || !slash)
		*out = strdup(config);
	else if (asprintf(out, "%.*s%s", (int)(slash + 1 - path), path, config) < 0)
		*out = NULL;
	return *out ? 0 : ws_oom(err);
}

static int find_regions(struct ws_exported *x, struct ws_err *err)
{
	const struct ws_manifest *m = &x->manifest;
	x->regions = calloc(m->list.n_tensors + 1, sizeof *x->regions);
	if (!x->regions)
		return ws_oom(err);
	for (size_t i = 0; i < m->list.n_tensors; i++) {
		const struct ws_tensor *t = &m->list.tensors[i];
		const size_t a = ws_manifest_find(m, t->offset);
		x->regions[i] = (struct ws_region){ .of = x, .allocation = a };
		if (t->bytes)
			x->regions[i].offset = t->offset - m->allocations[a].base;
	}
	return 0;
}

int ws_exported_open(const char *name, const struct ws_memory_ops *ops,
                     const struct ws_cancel *cancel, struct ws_exported **out,
                     struct ws_safetensors *list, char **config, struct ws_err *err)
{
	const char *path = ws_memory_path(name);
	if (!ops)
		return ws_err_set(err, WS_EUSAGE, "%s: memory of another process is not "
		                  "supported here", name);
	if (!*path)
		return ws_err_set(err, WS_EUSAGE, "%s names no manifest", name);
	struct ws_exported *x = calloc(1, sizeof *x);
	if (!x)
		return ws_oom(err);
	x->ops = ops;
	*config = NULL;
	if (ws_manifest_read(path, &x->manifest, err) || find_regions(x, err) ||
	    find_config(path, x->manifest.config, config, err) ||
	    ops->open(&x->manifest, path, cancel, &x->memory, err)) {
		ws_exported_close(x);
		free(*config);
		*config = NULL;
		return -1;
	}
	*list = x->manifest.list;
	x->manifest.list = (struct ws_safetensors)WS_SAFETENSORS_INIT;
	*out = x;
	return 0;
}

void ws_exported_close(struct ws_exported *x)
{
	if (!x)
		return;
	if (x->memory)
		x->ops->close(x->memory);
	ws_manifest_free(&x->manifest);
	free(x->regions);
	free(x);
}

int ws_exported_check(const struct ws_exported *x, struct ws_err *err)
{
	return x->ops->check(x->memory, err);
}

int ws_region_read(const struct ws_region *r, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	return r->of->ops->read(r->of->memory, r->allocation, r->offset + at, dst, n, err);
}

static int fill(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	return ws_region_read(ctx, at, dst, n, err);
}

static int place(void *ctx, struct ws_gpu_address *out, struct ws_err *err)
{
	const struct ws_region *r = ctx;
	return r->of->ops->gpu_address(r->of->memory, r->allocation, r->offset, out, err);
}

void ws_region_span(const struct ws_region *r, struct ws_span *span)
{
	span->fill = fill;
	span->gpu_address = place;
	span->ctx = (void *)(uintptr_t)r;
}
