/* SPDX-License-Identifier: Apache-2.0 */
/* Parallel sizes (two bytes), a config.json up to the end of the line, and families of rules
 * behind it; without any, those that are built in. What a layout accepts must have boxes that
 * lie in their tensors and are of one size. */
#include "wsync/tool/layout.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size);

static void require(int true_here)
{
	if (!true_here)
		abort();
}

static struct ws_namemap *open_maps(const void *text, size_t n)
{
	struct ws_namemap *maps = NULL;
	struct ws_err err = WS_ERR_INIT;
	char path[64];
	if (!n)
		return ws_namemap_open(NULL, &maps, &err) == 0 ? maps : NULL;
	const int fd = memfd_create("map", MFD_CLOEXEC);
	require(fd >= 0 && write(fd, text, n) == (ssize_t)n);
	snprintf(path, sizeof path, "/proc/self/fd/%d", fd);
	if (ws_namemap_open(path, &maps, &err) < 0)
		require(err.code == WS_EINPUT && err.msg[0]);
	close(fd);
	return maps;
}

static int64_t check_box(const struct ws_box *b, unsigned n_dims, const int64_t *dims)
{
	int64_t volume = 1;
	require(b->n_dims == n_dims);
	for (unsigned d = 0; d < n_dims; d++) {
		require(b->at[d] >= 0 && b->size[d] >= 0 && b->at[d] + b->size[d] <= dims[d]);
		volume *= b->size[d];
	}
	return volume;
}

static void check_layout(const struct ws_layout *l)
{
	const unsigned tp = ws_layout_options(l)->tp;
	for (size_t i = 0; i < ws_layout_part_count(l) && i < 200; i++) {
		const struct ws_part *p = ws_layout_part(l, i);
		const struct ws_param *q = ws_layout_param(l, p->param);
		require(ws_layout_find_part(l, p->name) == p &&
		        ws_layout_find_param(l, q->name) == q);
		require(*ws_layout_rule(l, p->rule));
		for (unsigned rank = 0; rank < tp; rank++) {
			struct ws_box from, to;
			ws_layout_place(l, p, rank, &from, &to);
			require(check_box(&from, p->n_dims, p->dims) ==
			        check_box(&to, q->n_dims, q->dims));
		}
		ws_layout_skips(l, p->name);
	}
}

int LLVMFuzzerTestOneInput(const unsigned char *data, size_t size)
{
	const unsigned char *line = size > 2 ? memchr(data + 2, '\n', size - 2) : NULL;
	if (!line)
		return 0;
	const struct ws_layout_opts opts = {
		.tp = 1 + data[0] % 16, .ep = 1 + data[1] % 8, .fuse_shared = data[0] & 16,
		.unquantized = data[0] & 32, .nextn = data[0] & 64, .attention_tp = data[1] / 8 % 9
	};
	struct ws_config *config = NULL;
	struct ws_err err = WS_ERR_INIT;
	if (ws_config_parse((const char *)data + 2, (size_t)(line - data) - 2, "fuzz", &config,
	                    &err) < 0)
		return 0;
	struct ws_namemap *maps = open_maps(line + 1, size - (size_t)(line + 1 - data));
	const struct ws_family *f = maps ? ws_namemap_find(maps, config) : NULL;
	struct ws_layout *l = NULL;
	if (f && ws_layout_make(f, config, &opts, &l, &err) == 0)
		check_layout(l);
	else if (f)
		require((err.code == WS_EINPUT || err.code == WS_EUSAGE) && err.msg[0]);
	ws_layout_free(l);
	ws_config_free(config);
	ws_namemap_close(maps);
	return 0;
}
