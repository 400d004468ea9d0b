/* SPDX-License-Identifier: Apache-2.0 */
/* transport.c - the sending side of a broadcast that carries nothing: rank 0, which hosts the store,
 * numbers whoever joins, and takes the time until the last of them has told that all of it came.
 *
 *   wsync-bench/config      "1 WORLD ROUNDS-OF-EACH CHECK SIZE SIZE ..." (decimal), by rank 0
 *   wsync-bench/rank        ADD 1 by each receiver: its rank
 *   wsync-bench/done/K/R    by rank R after round K: its hash of a round that is checked, or nothing
 *   wsync-bench/gloo/...    the mesh's own
 *
 * The bytes come from a file in memory by sendfile, as those of checkpoints do, so that what is measured
 * is the data plane and not the making of numbers. */
#include "transport_bench.h"

#include "hash.h"
#include "store.h"

#include <pthread.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { PATTERN = 64 << 20, RECEIVERS_MAX = 4096, SIZES_MAX = 64 };

struct root {
	const struct ws_bench_opts *opts;
	const struct ws_bench_transport *what;
	unsigned world;
	int file;             /* the pattern */
	struct ws_store *store;
	struct ws_gloo *gloo;
	struct ws_gloo_kv kv;
	struct ws_buf answer;
	struct bench_wire wire; /* the plain connection */
	uint64_t size;        /* of the round at hand */
	uint64_t round;       /* from 0, over all sizes */
	struct bench_receiver *receivers;
	unsigned n_started;
};

/* ---- the bytes ----------------------------------------------------------------------------------- */

static int make_pattern(struct root *r, struct ws_err *err)
{
	r->file = memfd_create("wsync-bench", MFD_CLOEXEC);
	if (r->file < 0 || ftruncate(r->file, PATTERN))
		return ws_err_errno(err, "a file in memory");
	uint64_t *p = mmap(NULL, PATTERN, PROT_READ | PROT_WRITE, MAP_SHARED, r->file, 0);
	if (p == MAP_FAILED)
		return ws_err_errno(err, "a file in memory");
	uint64_t state = 1;
	for (size_t i = 0; i < PATTERN / sizeof *p; i++)
		p[i] = state = state * 6364136223846793005u + 1442695040888963407u;
	munmap(p, PATTERN);
	return 0;
}

/* The pattern again and again. The caller frees the spans. */
static struct ws_span *cut_spans(const struct root *r, size_t *n, struct ws_err *err)
{
	*n = (size_t)((r->size + PATTERN - 1) / PATTERN);
	struct ws_span *spans = calloc(*n + 1, sizeof *spans);
	if (!spans)
		ws_err_set(err, WS_ESYSTEM, "out of memory");
	for (size_t i = 0; spans && i < *n; i++) {
		const uint64_t left = r->size - (uint64_t)i * PATTERN;
		spans[i] = (struct ws_span){ .length = left < PATTERN ? left : PATTERN, .fd = r->file };
	}
	return spans;
}

static int hash_pattern(const struct root *r, char *text, size_t size, struct ws_err *err)
{
	struct ws_hash *h = ws_hash_new();
	void *p = mmap(NULL, PATTERN, PROT_READ, MAP_SHARED, r->file, 0);
	if (h && p != MAP_FAILED) {
		for (uint64_t at = 0; at < r->size; at += PATTERN)
			ws_hash_add(h, p, r->size - at < PATTERN ? (size_t)(r->size - at) : PATTERN);
		snprintf(text, size, "%016llx", (unsigned long long)ws_hash_digest(h));
	}
	const bool ok = h && p != MAP_FAILED;
	if (p != MAP_FAILED)
		munmap(p, PATTERN);
	ws_hash_free(h);
	return ok ? 0 : ws_err_set(err, WS_ESYSTEM, "out of memory");
}

/* ---- rounds -------------------------------------------------------------------------------------- */

static int send_round(struct root *r, ws_deadline until, struct ws_err *err)
{
	size_t n;
	struct ws_span *spans = cut_spans(r, &n, err);
	if (!spans)
		return -1;
	const struct ws_payload payload = { .length = r->size, .spans = spans, .n_spans = n };
	const int rc = ws_gloo_send(r->gloo, &payload, 1, until, r->opts->cancel, err);
	free(spans);
	return rc;
}

/* What rank k said of the round; the answer is in r->answer. */
static int wait_for(struct root *r, unsigned k, ws_deadline until, struct ws_err *err)
{
	char key[96];
	snprintf(key, sizeof key, BENCH_DONE, (unsigned long long)r->round, k);
	ws_buf_reset(&r->answer);
	return ws_store_get(r->store, key, until, r->opts->cancel, &r->answer, err);
}

static int broadcast(void *ctx, int64_t *ns, struct ws_err *err)
{
	struct root *r = ctx;
	const ws_deadline until = ws_deadline_in(r->what->timeout_ns);
	const int64_t since = ws_now_ns();
	if (send_round(r, until, err))
		return -1;
	for (unsigned k = 1; k < r->world; k++)
		if (wait_for(r, k, until, err))
			return -1;
	*ns = ws_now_ns() - since;
	r->round++;
	return 0;
}

/* One more round, in which everybody hashes. */
static int check(void *ctx, int64_t *errors, struct ws_err *err)
{
	struct root *r = ctx;
	char expected[32];
	const ws_deadline until = ws_deadline_in(r->what->timeout_ns);
	if (hash_pattern(r, expected, sizeof expected, err) || send_round(r, until, err))
		return -1;
	*errors = 0;
	for (unsigned k = 1; k < r->world; k++) {
		if (wait_for(r, k, until, err))
			return -1;
		if (strcmp(ws_buf_str(&r->answer), expected) != 0)
			*errors += (int64_t)r->size;
	}
	r->round++;
	return 0;
}

static int plain(void *ctx, int64_t *ns, struct ws_err *err)
{
	struct root *r = ctx;
	return bench_wire_send(&r->wire, r->file, PATTERN, r->size, ws_deadline_in(r->what->timeout_ns),
	                       r->opts->cancel, ns, err);
}

/* ---- the group ----------------------------------------------------------------------------------- */

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

static int publish(struct root *r, struct ws_err *err)
{
	char text[2048];
	int n = snprintf(text, sizeof text, "1 %u %u %d", r->world, r->opts->warmups + r->opts->samples,
	                 r->opts->check);
	for (size_t i = 0; i < r->what->n_sizes; i++)
		n += snprintf(text + n, sizeof text - (size_t)n, " %llu",
		              (unsigned long long)r->what->sizes[i]);
	return ws_store_set(r->store, BENCH_CONFIG, text, (size_t)n, true, err);
}

static int start_receivers(struct root *r, struct ws_err *err)
{
	r->receivers = calloc(r->what->receivers + 1, sizeof *r->receivers);
	if (!r->receivers)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	for (unsigned i = 0; i < r->what->receivers; i++) {
		r->receivers[i] = (struct bench_receiver){
			.master = r->what->host, .port = ws_store_port(r->store), .host = r->what->host,
			.timeout_ns = r->what->timeout_ns, .log = r->opts->log, .cancel = r->opts->cancel,
		};
		if (bench_receiver_start(&r->receivers[i], err))
			return -1;
		r->n_started++;
	}
	return 0;
}

static int open_root(struct root *r, struct ws_err *err)
{
	const struct ws_bench_transport *w = r->what;
	const struct ws_store_opts store = { .host = w->host, .port = w->port, .log = r->opts->log,
		                             .max_connections = 2 * r->world + 16 };
	const ws_deadline until = ws_deadline_in(w->timeout_ns);
	if (make_pattern(r, err) || ws_store_open(&store, &r->store, err) || publish(r, err) ||
	    start_receivers(r, err))
		return -1;
	r->kv = (struct ws_gloo_kv){ .ctx = r->store, .set = kv_set, .get = kv_get };
	const struct ws_gloo_opts gloo = { .rank = 0, .size = r->world, .layout = WS_GLOO_G2B,
		                           .prefix = BENCH_GLOO, .kv = &r->kv, .host = w->host,
		                           .log = r->opts->log };
	if (ws_gloo_open(&gloo, until, r->opts->cancel, &r->gloo, err))
		return ws_err_wrap(err, "%u receiver%s", r->world - 1, r->world == 2 ? "" : "s");
	return w->remote ? 0 : bench_wire_open(&r->wire, until, err);
}

static void close_root(struct root *r)
{
	bench_wire_close(&r->wire);
	ws_gloo_close(r->gloo);
	ws_store_close(r->store);
	for (unsigned i = 0; i < r->n_started; i++)
		bench_receiver_join(&r->receivers[i], NULL);
	free(r->receivers);
	ws_buf_free(&r->answer);
	if (r->file >= 0)
		close(r->file);
}

/* A receiver of ours that failed knows better why than we do who lost it. */
static void ask_receivers(struct root *r, struct ws_err *err)
{
	for (unsigned i = 0; i < r->n_started && err; i++) {
		struct ws_err why = WS_ERR_INIT;
		if (err->code != WS_ECANCELLED && bench_receiver_failed(&r->receivers[i], &why)) {
			*err = why;
			return;
		}
	}
}

static int check_request(const struct ws_bench_transport *t, struct ws_err *err)
{
	if (t->receivers + t->remote < 1 || t->receivers + t->remote > RECEIVERS_MAX)
		return ws_err_set(err, WS_EUSAGE, "a broadcast has 1 to %d receivers", RECEIVERS_MAX);
	if (t->n_sizes < 1 || t->n_sizes > SIZES_MAX)
		return ws_err_set(err, WS_EUSAGE, "1 to %d sizes can be measured at once", SIZES_MAX);
	for (size_t i = 0; i < t->n_sizes; i++)
		if (t->sizes[i] < 1 || t->sizes[i] > BENCH_SIZE_MAX)
			return ws_err_set(err, WS_EUSAGE, "a broadcast has 1 byte to 1 TiB");
	return 0;
}

int ws_bench_transport(const struct ws_bench_opts *opts, const struct ws_bench_transport *t,
                       struct ws_err *err)
{
	struct ws_bench_transport what = *t;
	char detail[64];
	if (check_request(t, err))
		return -1;
	what.host = t->host ? t->host : "127.0.0.1";
	struct root r = { .opts = opts, .what = &what, .world = 1 + t->receivers + t->remote, .file = -1 };
	ws_buf_init(&r.answer, 4096);
	bench_wire_init(&r.wire);
	snprintf(detail, sizeof detail, "gloo, %u receiver%s", r.world - 1, r.world == 2 ? "" : "s");
	int rc = open_root(&r, err);
	for (size_t i = 0; i < t->n_sizes && !rc; i++) {
		r.size = t->sizes[i];
		struct ws_bench_row row = { .stage = "transport", .name = "broadcast", .detail = detail,
			                    .bytes = r.size, .against_bytes = r.size,
			                    .against = t->remote ? NULL : "one connection" };
		const struct bench_timed it = { .run = broadcast, .check = check, .ctx = &r };
		const struct bench_timed wire = { .run = plain, .ctx = &r };
		rc = bench_measure(opts, &row, &it, t->remote ? NULL : &wire, err);
	}
	if (rc)
		ask_receivers(&r, err);
	close_root(&r);
	return rc;
}
