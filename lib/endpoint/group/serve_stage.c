/* SPDX-License-Identifier: Apache-2.0 */
/* serve_stage.c - tensors that are received whole, of all buckets, before any of them is loaded. */
#include "serve_intake.h"
#include "serve_model.h"

#include <stdlib.h>
#include <string.h>

/* All of it at once, where a server takes memory bucket by bucket and keeps it. */
int ws_serve_stage_allocate(struct ws_serve *s, struct ws_serve_stage *st, struct ws_err *err)
{
	struct ws_serve_update *all = &st->buckets.all;
	if (s->opts.keep != WS_KEEP_MEMORY)
		return 0;
	st->block = malloc(all->bytes ? (size_t)all->bytes : 1);
	if (!st->block)
		return ws_err_set(err, WS_ESYSTEM,
		                  "not enough memory: you tried to allocate %llu bytes",
		                  (unsigned long long)all->bytes);
	uint8_t *at = st->block;
	for (size_t i = 0; i < all->n; i++) {
		all->slots[i].data = at;
		at += all->slots[i].bytes;
	}
	return 0;
}

/* From the stage's memory to where tensors are kept. */
int ws_serve_stage_bring(struct ws_serve *s, void *stage, struct ws_serve_update *u, bool keep,
                         struct ws_err *err)
{
	const struct ws_serve_stage *st = stage;
	const uint8_t *from = st->block;
	(void)err;
	for (size_t i = 0; keep && from && i < u->n; i++) {
		const size_t n = (size_t)u->slots[i].bytes;
		for (unsigned r = 0; u->load && r < s->opts.tp; r++)
			ws_serve_load_put(u->load, r, i, 0, from, n);
		if (!u->load && n)
			memcpy(u->slots[i].data, from, n);
		from += n;
	}
	return 0;
}

void ws_serve_stage_fini(struct ws_serve_stage *st)
{
	ws_serve_buckets_fini(&st->buckets);
	free(st->block);
	*st = (struct ws_serve_stage){ 0 };
}
