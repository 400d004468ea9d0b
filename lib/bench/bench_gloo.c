/* SPDX-License-Identifier: Apache-2.0 */
/* bench_gloo.c - broadcasts over gloo, compared with one connection on the loopback interface. */
#include "bench_transport.h"

#include <stdlib.h>

struct gloo_root {
	struct ws_gloo *gloo;
	struct bench_wire wire;
};

static int kv_set(void *ctx, const char *key, const void *value, size_t n, ws_deadline until,
                  struct ws_err *err)
{
	(void)until; /* our own store answers at once */
	return ws_store_set(ctx, key, value, n, true, err);
}

static int kv_get(void *ctx, const char *key, ws_deadline until, const struct ws_cancel *cancel,
                  struct ws_buf *value, struct ws_err *err)
{
	return ws_store_get(ctx, key, until, cancel, value, err);
}

static int open_gloo(struct bench_root *r, ws_deadline until, struct ws_err *err)
{
	struct gloo_root *g = calloc(1, sizeof *g);
	if (!g)
		return ws_oom(err);
	r->of_plane = g;
	bench_wire_init(&g->wire);
	const struct ws_gloo_kv kv = { .ctx = r->store, .set = kv_set, .get = kv_get };
	const struct ws_gloo_opts gloo = { .rank = 0, .size = r->world, .layout = WS_GLOO_G2B,
		                           .prefix = BENCH_GLOO, .kv = &kv, .host = r->what->host,
		                           .log = r->opts->log };
	if (ws_gloo_open(&gloo, until, r->opts->cancel, &g->gloo, err))
		return -1;
	return r->what->remote ? 0 : bench_wire_open(&g->wire, until, err);
}

static int send_gloo(struct bench_root *r, const struct ws_payload *p, unsigned count,
                     ws_deadline until, struct ws_err *err)
{
	const struct gloo_root *g = r->of_plane;
	struct ws_payload *all = calloc(count, sizeof *all);
	if (!all)
		return ws_oom(err);
	for (unsigned i = 0; i < count; i++)
		all[i] = *p;
	const int rc = ws_gloo_send(g->gloo, all, count, until, r->opts->cancel, err);
	free(all);
	return rc;
}

static int send_plain(struct bench_root *r, unsigned count, int64_t *ns, ws_deadline until,
                      struct ws_err *err)
{
	struct gloo_root *g = r->of_plane;
	*ns = 0;
	for (unsigned i = 0; i < count; i++)
		if (bench_wire_send(&g->wire, r, until, ns, err))
			return -1;
	return 0;
}

static void close_gloo(struct bench_root *r)
{
	struct gloo_root *g = r->of_plane;
	bench_wire_close(&g->wire);
	ws_gloo_close(g->gloo);
	free(g);
}

const struct bench_plane bench_plane_gloo = {
	.name = "gloo",
	.against = "one connection",
	.open = open_gloo,
	.send = send_gloo,
	.plain = send_plain,
	.close = close_gloo,
};
