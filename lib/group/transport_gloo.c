/* SPDX-License-Identifier: Apache-2.0 */
/* transport_gloo.c - the gloo data plane: struct ws_transport_ops over lib/net/gloo.
 *
 * The servers determine prefix and layout: their keys in the store show which torch they run. When
 * all servers have published, we publish in the same form. They always write before they read, so
 * waiting for them cannot deadlock. */
#include "transport.h"

#include "gloo.h"
#include "job.h"

#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static const int64_t FILE_SLOW_NS = 20 * WS_NS_PER_MS;

struct gloo {
	struct ws_transport base;
	struct ws_transport_opts opts;
	char *host;
	struct ws_gloo_kv kv;
	struct ws_store_gloo seen;
	struct ws_gloo_watch watch;
	struct ws_gloo *mesh;  /* written by the job `join`, read after its wait */
	bool joined;           /* the job `join` has succeeded and was waited for */
	struct ws_job job;
	struct ws_cancel stop; /* set by abort */
	ws_deadline until;
	const struct ws_payload *payloads;
	size_t n_payloads;
	struct ws_gloo_transfer *transfers;
	size_t n_transfers;
	uint64_t due;          /* bytes of the current broadcast; 0: the work is no broadcast */
};

static void gloo_close(struct ws_transport *t);

static int tell_senders(const struct gloo *g, struct ws_err *err)
{
	char text[sizeof g->seen.prefix + 1];
	const int n = snprintf(text, sizeof text, "%c%s", g->seen.epoch, g->seen.prefix);
	return ws_store_set(g->opts.store, WS_TRANSPORT_MEETING, text, (size_t)n, true, err);
}

static int join(void *arg, struct ws_err *err)
{
	struct gloo *g = arg;
	if (ws_store_wait_gloo(g->opts.store, g->until, &g->stop, &g->seen, err))
		return -1;
	ws_log(g->opts.log, 1, "gloo: the servers publish under \"%s\" (store epoch %c)",
	       g->seen.prefix, g->seen.epoch);
	if (g->opts.senders > 1 && tell_senders(g, err))
		return -1;
	const struct ws_gloo_opts opts = {
		.rank = 0,
		.size = g->opts.world_size,
		.layout = g->seen.epoch == 'A' ? WS_GLOO_G1 : WS_GLOO_G2B,
		.prefix = g->seen.prefix,
		.kv = &g->kv,
		.host = g->host,
		.log = g->opts.log,
		.watch = &g->watch,
		.trace = g->opts.trace,
	};
	return ws_gloo_open(&opts, g->until, &g->stop, &g->mesh, err);
}

/* The worker extension wsync_vllm asks for this key (torch puts the slash before it). Its value is
 * the prefix of the group's keys, as torch would choose it. Without the key the workers would join
 * by NCCL. */
static int tell_vllm(const struct gloo *g, struct ws_err *err)
{
	char prefix[512];
	const int n = snprintf(prefix, sizeof prefix, "%s/%s//cpu/", g->opts.group, g->opts.group);
	return ws_store_set(g->opts.store, "/wsync/gloo", prefix, (size_t)n, true, err);
}

static int gloo_open(const struct ws_transport_opts *opts, ws_deadline until,
                     struct ws_transport **out, struct ws_err *err)
{
	struct gloo *g = calloc(1, sizeof *g);
	if (!g)
		return ws_oom(err);
	g->base.ops = &ws_transport_gloo;
	g->opts = *opts;
	g->until = until;
	g->kv = ws_gloo_kv_store(opts->store);
	g->job.fd = -1;
	g->stop = (struct ws_cancel)WS_CANCEL_INIT;
	g->host = strdup(opts->host);
	g->watch.ranks = calloc(opts->world_size, sizeof *g->watch.ranks);
	if (!g->host || !g->watch.ranks) {
		ws_oom(err);
		goto fail;
	}
	if (ws_cancel_init(&g->stop, err) || ws_job_init(&g->job, err) ||
	    (opts->vllm && tell_vllm(g, err)) || ws_job_start(&g->job, join, g, err))
		goto fail;
	*out = &g->base;
	return 0;
fail:
	gloo_close(&g->base);
	return -1;
}

static int send_all(void *arg, struct ws_err *err)
{
	struct gloo *g = arg;
	return ws_gloo_send(g->mesh, g->payloads, g->n_payloads, g->until, &g->stop, err);
}

static int gloo_send_bucket(struct ws_transport *t, const struct ws_payload *payloads, size_t n,
                            ws_deadline until, struct ws_err *err)
{
	struct gloo *g = (struct gloo *)t;
	g->payloads = payloads;
	g->n_payloads = n;
	g->due = 0;
	for (size_t i = 0; i < n; i++)
		g->due += payloads[i].length;
	g->until = until;
	return ws_job_start(&g->job, send_all, g, err);
}

static int exchange(void *arg, struct ws_err *err)
{
	struct gloo *g = arg;
	return ws_gloo_exchange(g->mesh, g->transfers, g->n_transfers, g->until, &g->stop, err);
}

static int gloo_send_each(struct ws_transport *t, const struct ws_transport_send *sends, size_t n,
                          ws_deadline until, struct ws_err *err)
{
	struct gloo *g = (struct gloo *)t;
	free(g->transfers);
	g->transfers = calloc(n + 1, sizeof *g->transfers);
	if (!g->transfers)
		return ws_oom(err);
	for (size_t i = 0; i < n; i++)
		g->transfers[i] = (struct ws_gloo_transfer){ .peer = sends[i].rank,
			                                     .payload = sends[i].payload };
	g->n_transfers = n;
	g->due = 0;
	g->until = until;
	return ws_job_start(&g->job, exchange, g, err);
}

/* Starts reading the next bucket's file bytes into the page cache while this bucket is sent. */
static void gloo_stage(struct ws_transport *t, const struct ws_payload *payloads, size_t n)
{
	(void)t;
	for (size_t i = 0; payloads && i < n; i++) {
		for (size_t k = 0; k < payloads[i].n_spans; k++) {
			const struct ws_span *s = &payloads[i].spans[k];
			if (s->fd >= 0)
				posix_fadvise(s->fd, (off_t)s->offset, (off_t)s->length,
				              POSIX_FADV_WILLNEED);
		}
	}
}

static int gloo_fd(const struct ws_transport *t)
{
	return ((const struct gloo *)t)->job.fd;
}

static int gloo_wait(struct ws_transport *t, struct ws_err *err)
{
	struct gloo *g = (struct gloo *)t;
	const int rc = ws_job_wait(&g->job, err);
	g->joined = g->joined || (rc == 0 && g->mesh);
	/* Peers that wait for bytes must see closed sockets: until then their servers answer no
	 * request. Not earlier: the job first completes payloads that it began (gloo_send.c). */
	if (g->joined && (rc || ws_cancelled(&g->stop)))
		ws_gloo_abort(g->mesh);
	return rc;
}

static uint64_t gloo_progress(const struct ws_transport *t)
{
	const struct gloo *g = (const struct gloo *)t;
	return g->joined ? ws_gloo_progress(g->mesh) : 0;
}

static uint64_t gloo_sent(const struct ws_transport *t, int64_t *first_ns)
{
	const struct gloo *g = (const struct gloo *)t;
	if (first_ns)
		*first_ns = g->joined ? ws_gloo_first_byte(g->mesh) : 0;
	return g->joined ? ws_gloo_sent(g->mesh) : 0;
}

static uint64_t due_to(const struct gloo *g, unsigned rank)
{
	unsigned children[32];
	uint64_t due = 0;
	for (size_t i = 0; !g->due && i < g->n_transfers; i++)
		due += g->transfers[i].peer == rank ? g->transfers[i].payload.length : 0;
	for (unsigned n = ws_gloo_children(g->opts.world_size, 0, 0, children); g->due && n > 0;
	     n--)
		due += children[n - 1] == rank ? g->due : 0;
	return due;
}

static void gloo_look(const struct ws_transport *t, unsigned rank, struct ws_rank_status *out,
                      int64_t *starved_ns)
{
	static const enum ws_hang_link links[] = {
		[WS_GLOO_UNSEEN] = WS_HANG_APART, [WS_GLOO_PUBLISHED] = WS_HANG_APART,
		[WS_GLOO_CONNECTED] = WS_HANG_LINKED, [WS_GLOO_LOST] = WS_HANG_LINK_LOST,
	};
	const struct gloo *g = (const struct gloo *)t;
	out->link = links[atomic_load(&g->watch.ranks[rank].stage)];
	out->due = due_to(g, rank);
	out->sent = atomic_load(&g->watch.ranks[rank].sent);
	const int64_t since = atomic_load(&g->watch.serving_since), now = ws_now_ns();
	*starved_ns = atomic_load(&g->watch.starved_ns);
	if (since && now - since > FILE_SLOW_NS)
		*starved_ns += now - since;
}

static bool is_one_of(const char *name, const char *const *names)
{
	while (*names && strcmp(name, *names))
		names++;
	return *names != NULL;
}

/* torch dispatches its gloo collectives by dtype although gloo only moves bytes. Tested: 1.13
 * accepts float32, float64, float16, int8, uint8, int32, int64; 2.6 adds bfloat16 and bool; int16
 * and the float8 types raise "Invalid scalar type". Debian's 2.14 raises this for float16 and
 * bfloat16 too, before it receives. A peer shows no difference between 2.6 and Debian's 2.14. A
 * flattened bucket is sent as uint8, but torch before 2.1 has no float8 types to view it as. */
static const char *gloo_refuses(const struct ws_transport *t, const char *torch_dtype,
                                bool flattened)
{
	static const char *const always[] = { "float32", "float64", "float16", "int8",
		                              "uint8",   "int32",   "int64",   NULL };
	static const char *const later[] = { "bfloat16", "bool", NULL };
	const bool old = t && ((const struct gloo *)t)->seen.epoch == 'A';
	if (flattened)
		return old && strncmp(torch_dtype, "float8", 6) == 0 ?
		               "torch before 2.1, which these servers run, has no such dtype" :
		               NULL;
	if (is_one_of(torch_dtype, always) || (!old && is_one_of(torch_dtype, later)))
		return NULL;
	if (is_one_of(torch_dtype, later))
		return "the gloo of torch before 2.1, which these servers run, broadcasts no "
		       "tensor of this dtype (\"Invalid scalar type\")";
	return "torch's gloo broadcasts no tensor of this dtype (\"Invalid scalar type\")";
}

static void gloo_cut(struct ws_transport *t)
{
	struct gloo *g = (struct gloo *)t;
	ws_cancel_set(&g->stop);
	if (g->joined)
		ws_gloo_abort(g->mesh);
}

static void gloo_abort(struct ws_transport *t)
{
	struct gloo *g = (struct gloo *)t;
	ws_cancel_set(&g->stop);
	if (g->joined && !g->job.running)
		ws_gloo_abort(g->mesh);
}

static void gloo_close(struct ws_transport *t)
{
	if (!t)
		return;
	struct gloo *g = (struct gloo *)t;
	if (g->job.running)
		ws_cancel_set(&g->stop);
	ws_job_fini(&g->job);
	ws_gloo_close(g->mesh);
	ws_cancel_fini(&g->stop);
	free(g->transfers);
	free(g->watch.ranks);
	free(g->host);
	free(g);
}

const struct ws_transport_ops ws_transport_gloo = {
	.name = "gloo",
	.settle_ns = 50 * WS_NS_PER_MS,
	.open = gloo_open,
	.stage = gloo_stage,
	.send_bucket = gloo_send_bucket,
	.send_each = gloo_send_each,
	.fd = gloo_fd,
	.wait = gloo_wait,
	.progress = gloo_progress,
	.sent = gloo_sent,
	.look = gloo_look,
	.refuses = gloo_refuses,
	.cut = gloo_cut,
	.abort = gloo_abort,
	.close = gloo_close,
};
