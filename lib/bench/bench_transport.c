/* SPDX-License-Identifier: Apache-2.0 */
/* bench_transport.c - rank 0 of a measured broadcast of test data: hosts the store, numbers the
 * receivers, and measures the time until the last receiver has reported all bytes.
 *
 *   wsync-bench/config    by rank 0: "4 PLANE WORLD ROUNDS COUNT TOTAL CHECK SIZE SIZE ...", in
 *                         decimal; PLANE is gloo or nccl; ROUNDS are of each size
 *   .../rank              ADD 1 by each receiver: its rank
 *   .../done/K/R          by rank R after round K: its hash if the round is checked, else empty
 *   .../gloo/...          keys of the gloo mesh
 *   .../bare              nccl: id of the reference's communicator; the id of the measured one is
 *                         under the key that torch uses for a group named wsync-bench
 *
 * "..." is "/wsync-bench/wsync-bench". The store recognizes receivers by this prefix, and
 * disconnects a client that sets other keys.
 *
 * A round is COUNT broadcasts of one size, or, if TOTAL is not 0, enough for TOTAL bytes. Over nccl
 * the rounds of the reference count as rounds too, in the order of bench_is_turned. A round that is
 * checked is one broadcast.
 *
 * The bytes come from a file in memory, as those of checkpoints come from the page cache. So this
 * measures the data plane, and not the generation of data. */
#include "bench_transport.h"

#include "hash.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum { SIZES_MAX = 64, SLICE_NS = 200 * 1000 * 1000, PATTERN_LEAST = 4096,
       PATTERN_MOST = 64 << 20 };

/* ---- the bytes ------------------------------------------------------------------------------- */

static int make_pattern(struct bench_root *r, struct ws_err *err)
{
	r->pattern = PATTERN_LEAST;
	for (size_t i = 0; i < r->what->n_sizes; i++)
		while (r->pattern < r->what->sizes[i] && r->pattern < PATTERN_MOST)
			r->pattern *= 2;
	r->file = memfd_create("wsync-bench", MFD_CLOEXEC);
	if (r->file < 0 || ftruncate(r->file, (off_t)r->pattern))
		return ws_err_errno(err, "a file in memory");
	r->bytes = mmap(NULL, r->pattern, PROT_READ | PROT_WRITE, MAP_SHARED, r->file, 0);
	if (r->bytes == MAP_FAILED)
		return ws_err_errno(err, "a file in memory");
	uint64_t state = 1;
	for (size_t i = 0; i < r->pattern / sizeof *r->bytes; i++)
		r->bytes[i] = state = state * 6364136223846793005u + 1442695040888963407u;
	return 0;
}

/* Returns spans that repeat the pattern up to r->size bytes. The caller frees them. */
static struct ws_span *cut_spans(const struct bench_root *r, size_t *n, struct ws_err *err)
{
	*n = (size_t)((r->size + r->pattern - 1) / r->pattern);
	struct ws_span *spans = calloc(*n + 1, sizeof *spans);
	if (!spans)
		ws_oom(err);
	for (size_t i = 0; spans && i < *n; i++) {
		const uint64_t left = r->size - (uint64_t)i * r->pattern;
		spans[i] = (struct ws_span){ .length = left < r->pattern ? left : r->pattern,
			                     .fd = r->file };
	}
	return spans;
}

static int hash_pattern(const struct bench_root *r, char *text, size_t size, struct ws_err *err)
{
	struct ws_hash *h = ws_hash_new();
	if (!h)
		return ws_oom(err);
	for (uint64_t at = 0; at < r->size; at += r->pattern)
		ws_hash_add(h, r->bytes, (size_t)(r->size - at < r->pattern ? r->size - at :
		                                                              r->pattern));
	snprintf(text, size, "%016llx", (unsigned long long)ws_hash_digest(h));
	ws_hash_free(h);
	return 0;
}

/* ---- rounds ---------------------------------------------------------------------------------- */

/* A receiver's own error explains more than the loss of its connection. */
int bench_root_ask(struct bench_root *r, struct ws_err *err)
{
	return r->what->failed ? r->what->failed(r->what->ctx, err) : 0;
}

static int send_round(struct bench_root *r, unsigned count, ws_deadline until, struct ws_err *err)
{
	size_t n;
	struct ws_span *spans = cut_spans(r, &n, err);
	if (!spans)
		return -1;
	const struct ws_payload payload = { .length = r->size, .spans = spans, .n_spans = n };
	const int rc = r->plane->send(r, &payload, count, until, err);
	free(spans);
	return rc;
}

/* Waits until rank k has reported the round, and stores its report in r->answer. */
static int wait_for(struct bench_root *r, unsigned k, ws_deadline until, struct ws_err *err)
{
	char key[96];
	snprintf(key, sizeof key, BENCH_DONE, (unsigned long long)r->round, k);
	for (;;) {
		struct ws_err why = WS_ERR_INIT;
		const ws_deadline slice = ws_deadline_min(until, ws_deadline_in(SLICE_NS));
		ws_buf_reset(&r->answer);
		if (ws_store_get(r->store, key, slice, r->opts->cancel, &r->answer, &why) == 0)
			return 0;
		if (why.code != WS_ETIMEOUT || ws_deadline_passed(until)) {
			if (err)
				*err = why;
			return -1;
		}
		if (bench_root_ask(r, err))
			return -1;
	}
}

static int wait_for_all(struct bench_root *r, ws_deadline until, struct ws_err *err)
{
	for (unsigned k = 1; k < r->world; k++)
		if (wait_for(r, k, until, err))
			return -1;
	r->round++;
	return 0;
}

static int time_broadcast(void *ctx, int64_t *ns, struct ws_err *err)
{
	struct bench_root *r = ctx;
	const ws_deadline until = ws_deadline_in(r->what->timeout_ns);
	const int64_t since = ws_now_ns();
	if (send_round(r, r->count, until, err) || wait_for_all(r, until, err))
		return -1;
	*ns = (ws_now_ns() - since) / r->count;
	return 0;
}

static int time_plain(void *ctx, int64_t *ns, struct ws_err *err)
{
	struct bench_root *r = ctx;
	const ws_deadline until = ws_deadline_in(r->what->timeout_ns);
	const int64_t since = ws_now_ns();
	if (r->plane->plain(r, r->count, ns, until, err))
		return -1;
	if (r->plane->rounds && wait_for_all(r, until, err))
		return -1;
	*ns = (r->plane->rounds ? ws_now_ns() - since : *ns) / r->count;
	return 0;
}

/* Sends one more round, whose bytes each receiver hashes. */
static int check_hashes(void *ctx, int64_t *errors, struct ws_err *err)
{
	struct bench_root *r = ctx;
	char expected[32];
	const ws_deadline until = ws_deadline_in(r->what->timeout_ns);
	if (hash_pattern(r, expected, sizeof expected, err) || send_round(r, 1, until, err))
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

/* ---- the group ------------------------------------------------------------------------------- */

static int publish(struct bench_root *r, struct ws_err *err)
{
	char text[2048];
	int n = snprintf(text, sizeof text, "4 %s %u %u %u %llu %d", r->plane->name, r->world,
	                 r->opts->warmups + r->opts->samples, r->what->count,
	                 (unsigned long long)r->what->total, r->opts->check);
	for (size_t i = 0; i < r->what->n_sizes; i++)
		n += snprintf(text + n, sizeof text - (size_t)n, " %llu",
		              (unsigned long long)r->what->sizes[i]);
	return ws_store_set(r->store, BENCH_CONFIG, text, (size_t)n, true, err);
}

static int open_root(struct bench_root *r, struct ws_err *err)
{
	const struct ws_bench_transport *w = r->what;
	const ws_deadline until = ws_deadline_in(w->timeout_ns);
	const struct ws_store_opts store = { .host = w->host, .port = w->port, .until = until,
		                             .group = BENCH_GROUP,
		                             .cancel = r->opts->cancel, .log = r->opts->log,
		                             .max_connections = 2 * r->world + 16 };
	if (make_pattern(r, err) || ws_store_open(&store, &r->store, err) || publish(r, err) ||
	    (w->receivers && w->start(w->ctx, w->host, ws_store_port(r->store), err)))
		return -1;
	if (r->plane->open(r, until, err) == 0)
		return 0;
	if (bench_root_ask(r, err) || (err && err->code != WS_ETIMEOUT))
		return -1;
	return ws_err_wrap(err, "%u receiver%s", r->world - 1, r->world == 2 ? "" : "s");
}

static void close_root(struct bench_root *r)
{
	if (r->of_plane)
		r->plane->close(r);
	ws_store_close(r->store);
	ws_buf_free(&r->answer);
	if (r->bytes != MAP_FAILED)
		munmap(r->bytes, r->pattern);
	if (r->file >= 0)
		close(r->file);
}

static int check_request(const struct ws_bench_transport *t, struct ws_err *err)
{
	if (t->backend != WS_BACKEND_AUTO && t->backend != WS_BACKEND_GLOO &&
	    t->backend != WS_BACKEND_NCCL)
		return ws_err_set(err, WS_EUSAGE, "only gloo and nccl broadcast");
	if (t->receivers + t->remote < 1 || t->receivers + t->remote >= BENCH_WORLD_MAX)
		return ws_err_set(err, WS_EUSAGE, "a broadcast has 1 to %d receivers",
		                  BENCH_WORLD_MAX - 1);
	if (t->n_sizes < 1 || t->n_sizes > SIZES_MAX)
		return ws_err_set(err, WS_EUSAGE, "1 to %d sizes can be measured at once",
		                  SIZES_MAX);
	if (t->count > BENCH_COUNT_MAX)
		return ws_err_set(err, WS_EUSAGE, "at most %d broadcasts in a row",
		                  BENCH_COUNT_MAX);
	for (size_t i = 0; i < t->n_sizes; i++)
		if (t->sizes[i] < 1 || t->sizes[i] > BENCH_SIZE_MAX)
			return ws_err_set(err, WS_EUSAGE, "a broadcast has 1 byte to 1 TiB");
		else if (bench_count_of(t->sizes[i], 1, t->total) > BENCH_COUNT_MAX)
			return ws_err_set(err, WS_EUSAGE,
			                  "that total is more than %d broadcasts of %llu bytes",
			                  BENCH_COUNT_MAX, (unsigned long long)t->sizes[i]);
	return 0;
}

static int measure_size(struct bench_root *r, struct ws_err *err)
{
	const bool has_plain = r->plane->rounds || !r->what->remote;
	char detail[64];
	snprintf(detail, sizeof detail, "%s, %u receiver%s", r->plane->name, r->world - 1,
	         r->world == 2 ? "" : "s");
	struct ws_bench_row row = { .stage = "transport",
		                    .name = "broadcast",
		                    .detail = detail,
		                    .bytes = r->size,
		                    .count = r->count,
		                    .against_bytes = r->size,
		                    .against = has_plain ? r->plane->against : NULL };
	const struct bench_timed it = { .run = time_broadcast, .check = check_hashes, .ctx = r };
	const struct bench_timed other = { .run = time_plain, .ctx = r };
	return bench_measure(r->opts, &row, &it, has_plain ? &other : NULL, err);
}

int ws_bench_transport(const struct ws_bench_opts *opts, const struct ws_bench_transport *t,
                       struct ws_err *err)
{
	struct ws_bench_transport what = *t;
	struct ws_bench_opts until_all = *opts;
	until_all.most_ns = 0;
	if (check_request(t, err))
		return -1;
	what.host = t->host ? t->host : "127.0.0.1";
	what.count = t->count ? t->count : 1;
	struct bench_root r = { .opts = &until_all,
		                .what = &what,
		                .world = 1 + t->receivers + t->remote,
		                .file = -1,
		                .bytes = MAP_FAILED,
		                .plane = t->backend == WS_BACKEND_NCCL ? &bench_plane_nccl :
		                                                         &bench_plane_gloo };
	ws_buf_init(&r.answer, 4096);
	int rc = open_root(&r, err);
	for (size_t i = 0; i < t->n_sizes && !rc; i++) {
		r.size = t->sizes[i];
		r.count = (unsigned)bench_count_of(r.size, what.count, what.total);
		rc = measure_size(&r, err);
	}
	if (rc && ws_cancelled(opts->cancel))
		ws_err_set(err, WS_ECANCELLED, "cancelled");
	else if (rc && err)
		(void)bench_root_ask(&r, err);
	close_root(&r);
	return rc;
}
