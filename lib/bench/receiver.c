/* SPDX-License-Identifier: Apache-2.0 */
/* receiver.c - the receiving side of a measured broadcast: joins, takes every round, says when it has. */
#include "transport_bench.h"

#include "hash.h"
#include "sock.h"
#include "store.h"

#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 1000000, CONFIG_MAX = 4096 };

struct config {
	unsigned world, rounds; /* of each size */
	bool check;
	uint64_t sizes[64];
	size_t n_sizes;
};

struct joined {
	struct ws_store_client *client;
	struct ws_gloo *gloo;
	struct ws_hash *hash;
	struct config config;
	unsigned rank;
	uint64_t round;
};

/* Somebody else's store may hold anything under this name. */
static int parse_config(const char *text, struct config *c, struct ws_err *err)
{
	unsigned long long head[4];
	char *end;
	for (int i = 0; i < 4; i++, text = end) {
		head[i] = strtoull(text, &end, 10);
		if (end == text)
			return ws_err_set(err, WS_EDATA, "what is measured there is not said as we say it");
	}
	if (head[0] != 1)
		return ws_err_set(err, WS_EDATA, "the other side measures in another way (version %llu)", head[0]);
	if (head[1] < 2 || head[1] > 4097 || head[2] < 1 || head[2] > ROUNDS_MAX || head[3] > 1)
		return ws_err_set(err, WS_EDATA, "what is measured there makes no sense");
	*c = (struct config){ .world = (unsigned)head[1], .rounds = (unsigned)head[2], .check = head[3] };
	for (; c->n_sizes < sizeof c->sizes / sizeof *c->sizes; text = end) {
		const unsigned long long size = strtoull(text, &end, 10);
		if (end == text)
			break;
		if (size < 1 || size > BENCH_SIZE_MAX)
			return ws_err_set(err, WS_EDATA, "what is measured there makes no sense");
		c->sizes[c->n_sizes++] = size;
	}
	return 0;
}

static int kv_set(void *ctx, const char *key, const void *value, size_t n, ws_deadline until,
                  struct ws_err *err)
{
	return ws_store_client_set(ctx, key, value, n, until, err);
}

static int kv_get(void *ctx, const char *key, ws_deadline until, const struct ws_cancel *cancel,
                  struct ws_buf *value, struct ws_err *err)
{
	(void)cancel; /* the connection is closed by whoever cancels */
	return ws_store_client_get(ctx, key, until, value, err);
}

static int join(struct bench_receiver *r, struct joined *j, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_in(r->timeout_ns);
	const struct ws_store_client_opts client = { .host = r->master, .port = r->port, .no_join = true };
	struct ws_buf text;
	int64_t rank = 0;
	ws_buf_init(&text, CONFIG_MAX);
	int rc = ws_store_connect(&client, until, r->cancel, &j->client, err) ||
	         ws_store_client_get(j->client, BENCH_CONFIG, until, &text, err) ||
	         parse_config(ws_buf_str(&text), &j->config, err) ||
	         ws_store_client_add(j->client, BENCH_RANK, 1, until, &rank, err) ? -1 : 0;
	ws_buf_free(&text);
	if (rc)
		return -1;
	if (rank < 1 || rank >= j->config.world)
		return ws_err_set(err, WS_EREFUSED, "%s: all %u receivers are there already", r->master,
		                  j->config.world - 1);
	j->rank = (unsigned)rank;
	const struct ws_gloo_kv kv = { .ctx = j->client, .set = kv_set, .get = kv_get };
	const struct ws_gloo_opts gloo = { .rank = j->rank, .size = j->config.world, .layout = WS_GLOO_G2B,
		                           .prefix = BENCH_GLOO, .kv = &kv, .host = r->host, .log = r->log };
	return ws_gloo_open(&gloo, until, r->cancel, &j->gloo, err);
}

static int take(void *ctx, const void *bytes, size_t n, struct ws_err *err)
{
	(void)err;
	ws_hash_add(ctx, bytes, n);
	return 0;
}

static int say_done(struct joined *j, bool hashed, ws_deadline until, struct ws_err *err)
{
	char key[96], text[32] = "";
	if (hashed)
		snprintf(text, sizeof text, "%016llx", (unsigned long long)ws_hash_digest(j->hash));
	snprintf(key, sizeof key, BENCH_DONE, (unsigned long long)j->round, j->rank);
	if (ws_store_client_set(j->client, key, text, strlen(text), until, err))
		return -1;
	if (j->round == 0)
		return 0;
	/* Rank 0 has begun this round, so it has read what was said of the one before. When this was the
	 * last, it may have gone already. */
	bool gone;
	snprintf(key, sizeof key, BENCH_DONE, (unsigned long long)(j->round - 1), j->rank);
	(void)ws_store_client_delete(j->client, key, until, &gone, NULL);
	return 0;
}

static int take_round(struct bench_receiver *r, struct joined *j, uint64_t size, bool hashed,
                      struct ws_err *err)
{
	const ws_deadline until = ws_deadline_in(r->timeout_ns);
	const struct ws_gloo_sink sink = { .length = size, .take = hashed ? take : NULL, .ctx = j->hash };
	ws_hash_reset(j->hash);
	if (ws_gloo_recv(j->gloo, 0, &sink, 1, until, r->cancel, err) || say_done(j, hashed, until, err))
		return -1;
	j->round++;
	return 0;
}

static int take_all(struct bench_receiver *r, struct joined *j, struct ws_err *err)
{
	for (size_t i = 0; i < j->config.n_sizes; i++) {
		for (unsigned k = 0; k < j->config.rounds; k++)
			if (take_round(r, j, j->config.sizes[i], false, err))
				return -1;
		if (j->config.check && take_round(r, j, j->config.sizes[i], true, err))
			return -1;
	}
	return 0;
}

int bench_receiver_run(struct bench_receiver *r, struct ws_err *err)
{
	struct joined j = { .hash = ws_hash_new() };
	int rc = j.hash ? 0 : ws_err_set(err, WS_ESYSTEM, "out of memory");
	if (!rc)
		rc = join(r, &j, err) || take_all(r, &j, err) ? -1 : 0;
	ws_gloo_close(j.gloo);
	ws_store_disconnect(j.client);
	ws_hash_free(j.hash);
	return rc;
}

int ws_bench_receive(const char *master, uint16_t port, const char *host, int64_t timeout_ns,
                     const struct ws_log *log, const struct ws_cancel *cancel, struct ws_err *err)
{
	char own[WS_HOST_MAX];
	if (!host && ws_host_local_toward(master, own, sizeof own, err))
		return -1;
	struct bench_receiver r = { .master = master, .port = port, .host = host ? host : own,
		                    .timeout_ns = timeout_ns, .log = log, .cancel = cancel };
	return bench_receiver_run(&r, err);
}

/* ---- in a thread --------------------------------------------------------------------------------- */

static void *run(void *arg)
{
	struct bench_receiver *r = arg;
	const bool failed = bench_receiver_run(r, &r->err) != 0;
	__atomic_store_n(&r->failed, failed, __ATOMIC_RELEASE);
	__atomic_store_n(&r->over, true, __ATOMIC_RELEASE);
	return NULL;
}

int bench_receiver_start(struct bench_receiver *r, struct ws_err *err)
{
	sigset_t all, old;
	r->err = (struct ws_err)WS_ERR_INIT;
	sigfillset(&all); /* signals belong to the thread that knows what to do about them */
	pthread_sigmask(SIG_BLOCK, &all, &old);
	const int rc = pthread_create(&r->thread, NULL, run, r);
	pthread_sigmask(SIG_SETMASK, &old, NULL);
	return rc ? ws_err_set(err, WS_ESYSTEM, "start a thread: %s", strerror(rc)) : 0;
}

int bench_receiver_join(struct bench_receiver *r, struct ws_err *err)
{
	pthread_join(r->thread, NULL);
	if (r->failed && err)
		*err = r->err;
	return r->failed ? -1 : 0;
}

bool bench_receiver_failed(struct bench_receiver *r, struct ws_err *err)
{
	if (!__atomic_load_n(&r->failed, __ATOMIC_ACQUIRE))
		return false;
	*err = r->err;
	return true;
}
