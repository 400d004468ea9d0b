/* SPDX-License-Identifier: Apache-2.0 */
/* replicas.c - compares replicas: tensors that several ranks saved, such as norms, routers, and key
 * and value heads if there are fewer heads than ranks.
 *
 * The first rank's bytes are sent. Trainers keep replicas equal bit for bit. A difference means
 * that the ranks were not saved at the same step, so their divided tensors do not fit together
 * either. Norms suffice to detect it: they are small and change at every step. Large replicas are
 * compared only at both ends: a push does not need their bytes, and a torn file is usually torn at
 * its end. */
#include "catalog_build.h"

#include "wsync/tool/str.h"

#include <stdlib.h>
#include <string.h>

enum { WHOLE = 1 << 20, END = 64 << 10, CHUNK = 256 << 10 }; /* bytes */

int ws_catalog_add_replica(struct ws_catalog *c, const struct ws_replica *r, struct ws_err *err)
{
	if (c->n_replicas == c->cap_replicas) {
		const size_t cap = c->cap_replicas ? c->cap_replicas * 2 : 256;
		struct ws_replica *replicas = reallocarray(c->replicas, cap, sizeof *replicas);
		if (!replicas)
			return ws_oom(err);
		c->replicas = replicas;
		c->cap_replicas = cap;
	}
	c->replicas[c->n_replicas++] = *r;
	return 0;
}

size_t ws_catalog_replicas(const struct ws_catalog *c)
{
	return c->n_replicas;
}

/* ---- comparing ---- */

struct comparison {
	const struct ws_catalog *c;
	const struct ws_replica_opts *opts;
	const struct ws_replica *r;
	const struct ws_item *item;
	/* run k of the replica, `run` bytes, is at offset + k * stride of the item */
	uint64_t run, stride, offset;
	unsigned char *own, *sent;    /* CHUNK each */
	struct ws_err *err;
};

static void find_runs(struct comparison *x)
{
	uint64_t inner = ws_dtype_bits(x->item->dtype) / 8;
	x->run = x->stride = x->item->bytes;
	x->offset = 0;
	if (x->item->n_dims == 0 || x->r->own.bytes == x->item->bytes)
		return;
	for (unsigned d = x->r->axis + 1; d < x->item->n_dims; d++)
		inner *= (uint64_t)x->item->dims[d];
	x->run = inner * (uint64_t)x->r->own.dims[x->r->axis];
	x->stride = inner * (uint64_t)x->item->dims[x->r->axis];
	x->offset = inner * (uint64_t)x->r->at;
}

static const char *file_of(const struct ws_source *s, const struct ws_tensor *t)
{
	const char *name = ws_source_file_name(s, t->file);
	return name ? name : "?";
}

static int differs(const struct comparison *x)
{
	const struct ws_replica *r = x->r;
	ws_err_set(x->err, WS_EINPUT,
	           "tensor '%s': rank %zu and rank %zu have different bytes of the same part "
	           "(%.200s, %.200s)",
	           ws_quote(x->item->name).text, r->rank, r->sent_rank,
	           file_of(r->own.source, r->own.from),
	           file_of(x->c->sources[r->sent_rank], r->sent));
	return ws_err_hint(
		x->err,
		"the ranks' files are from different steps, or one is incomplete: save the "
		"checkpoint again; {trust_values} sends the bytes of rank %zu",
		x->r->sent_rank);
}

static int compare_range(const struct comparison *x, uint64_t at, uint64_t end)
{
	while (at < end) {
		const uint64_t rest = x->run - at % x->run;
		uint64_t n = end - at < CHUNK ? end - at : CHUNK;
		n = n < rest ? n : rest;
		if (ws_cancelled(x->opts->cancel))
			return ws_err_set(x->err, WS_ECANCELLED, "interrupted");
		if (ws_item_read(&x->r->own, at, x->own, (size_t)n, x->err) ||
		    ws_item_read(x->item, at / x->run * x->stride + x->offset + at % x->run,
		                 x->sent, (size_t)n, x->err))
			return -1;
		if (memcmp(x->own, x->sent, (size_t)n) != 0)
			return differs(x);
		at += n;
	}
	return 0;
}

static int compare(struct comparison *x)
{
	const uint64_t bytes = x->r->own.bytes;
	find_runs(x);
	if (!x->run)
		return 0;
	if (x->opts->all || bytes <= WHOLE)
		return compare_range(x, 0, bytes);
	return compare_range(x, 0, END) || compare_range(x, bytes - END, bytes) ? -1 : 0;
}

int ws_catalog_check_replicas(const struct ws_catalog *c, const struct ws_replica_opts *o,
                              struct ws_err *err)
{
	struct comparison x = { .c = c, .opts = o, .err = err };
	int rc = 0;
	if (!c->n_replicas)
		return 0;
	x.own = malloc(CHUNK);
	x.sent = malloc(CHUNK);
	if (!x.own || !x.sent)
		rc = ws_oom(err);
	for (size_t i = 0; i < c->n_replicas && rc == 0; i++) {
		x.r = &c->replicas[i];
		x.item = &c->items[x.r->item];
		if (ws_glob_choose(o->include, o->n_include, o->exclude, o->n_exclude,
		                   x.item->name))
			rc = compare(&x);
	}
	free(x.own);
	free(x.sent);
	return rc;
}
