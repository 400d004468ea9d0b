/* SPDX-License-Identifier: Apache-2.0 */
/* bench_receiver.c - the receiving side of a measured broadcast: joins, receives every round, and
 * reports the end of each. */
#include "bench_transport.h"

#include "hash.h"
#include "sock.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { ROUNDS_MAX = 1000000, CONFIG_MAX = 4096 };
static const int64_t LEAVE_NS = 2 * WS_NS_PER_S;

struct config {
	bool nccl;
	unsigned world, rounds; /* of each size */
	unsigned count;         /* broadcasts in a round, if total is 0 */
	uint64_t total;         /* bytes in a round, or 0 */
	bool check;
	uint64_t sizes[64];
	size_t n_sizes;
};

struct joined {
	const struct ws_bench_receive *what;
	struct ws_store_client *client;
	struct ws_gloo *gloo;
	struct bench_comms comms;
	struct ws_hash *hash;
	struct config config;
	unsigned rank;
	uint64_t round;
};

/* The text is untrusted: any program may run the store. */
static int parse_config(const char *text, struct config *c, struct ws_err *err)
{
	enum { WORLD, ROUNDS, COUNT, TOTAL, CHECK, SIZES };
	unsigned long long v[SIZES + sizeof c->sizes / sizeof *c->sizes];
	size_t n = 0;
	*c = (struct config){ .nccl = strncmp(text, "4 nccl ", 7) == 0 };
	if (!c->nccl && strncmp(text, "4 gloo ", 7) != 0)
		return ws_err_set(err, WS_EDATA,
		                  "the remote wsync-bench describes its measurement in another "
		                  "format (different version?)");
	text += 7;
	for (char *end; n < sizeof v / sizeof *v; text = end, n++) {
		v[n] = strtoull(text, &end, 10);
		if (end == text)
			break;
	}
	bool ok = n > SIZES && v[WORLD] >= 2 && v[WORLD] <= BENCH_WORLD_MAX && v[ROUNDS] >= 1 &&
	          v[ROUNDS] <= ROUNDS_MAX && v[COUNT] >= 1 && v[COUNT] <= BENCH_COUNT_MAX &&
	          v[CHECK] <= 1;
	for (size_t i = SIZES; ok && i < n; i++) {
		ok = v[i] >= 1 && v[i] <= BENCH_SIZE_MAX &&
		     bench_count_of(v[i], 1, v[TOTAL]) <= BENCH_COUNT_MAX;
		c->sizes[c->n_sizes++] = v[i];
	}
	if (!ok)
		return ws_err_set(err, WS_EDATA,
		                  "the remote wsync-bench asks for an impossible measurement");
	c->world = (unsigned)v[WORLD];
	c->rounds = (unsigned)v[ROUNDS];
	c->count = (unsigned)v[COUNT];
	c->total = v[TOTAL];
	c->check = v[CHECK];
	return 0;
}

static int join_gloo(struct joined *j, ws_deadline until, struct ws_err *err)
{
	const struct ws_gloo_kv kv = ws_gloo_kv_client(j->client);
	const struct ws_gloo_opts gloo = { .rank = j->rank,
		                           .size = j->config.world,
		                           .layout = WS_GLOO_G2B,
		                           .prefix = BENCH_GLOO,
		                           .kv = &kv,
		                           .host = j->what->host,
		                           .log = j->what->log };
	return ws_gloo_open(&gloo, until, j->what->cancel, &j->gloo, err);
}

/* Joins the communicator whose id is at this key of the store. */
static int join_comm(struct joined *j, const char *key, struct ws_comm **out, ws_deadline until,
                     struct ws_err *err)
{
	struct ws_buf id;
	ws_buf_init(&id, CONFIG_MAX);
	int rc = ws_store_client_get(j->client, key, until, j->what->cancel, &id, err);
	if (!rc && id.len != sizeof(struct ws_nccl_id))
		rc = ws_err_set(err, WS_EDATA, "an NCCL id has %zu bytes, but this id has %zu",
		                sizeof(struct ws_nccl_id), id.len);
	if (!rc)
		rc = bench_comms_join(&j->comms, out, id.data, until, err);
	ws_buf_free(&id);
	return rc;
}

static int join_nccl(struct joined *j, ws_deadline until, struct ws_err *err)
{
	uint64_t most = 1;
	for (size_t i = 0; i < j->config.n_sizes; i++)
		most = j->config.sizes[i] > most ? j->config.sizes[i] : most;
	if (bench_comms_open(&j->comms, &j->what->gpu, most, j->what->cancel, err))
		return -1;
	j->comms.rank = j->rank;
	j->comms.world = j->config.world;
	return join_comm(j, BENCH_GROUP_ID, &j->comms.pushed, until, err) ||
	       join_comm(j, BENCH_BARE, &j->comms.bare, until, err) ? -1 : 0;
}

static int join_group(struct joined *j, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_in(j->what->timeout_ns);
	const struct ws_store_client_opts client = { .host = j->what->master,
		                                     .port = j->what->port,
		                                     .no_join = true };
	struct ws_buf text;
	int64_t rank = 0;
	ws_buf_init(&text, CONFIG_MAX);
	int rc = ws_store_connect(&client, until, j->what->cancel, &j->client, err) ||
	         ws_store_client_get(j->client, BENCH_CONFIG, until, j->what->cancel, &text, err) ||
	         parse_config(ws_buf_str(&text), &j->config, err) ||
	         ws_store_client_add(j->client, BENCH_RANK, 1, until, &rank, err) ? -1 : 0;
	ws_buf_free(&text);
	if (rc)
		return -1;
	if (rank < 1 || rank >= j->config.world)
		return ws_err_set(err, WS_EREFUSED, "%s: all %u receivers are there already",
		                  j->what->master, j->config.world - 1);
	j->rank = (unsigned)rank;
	return j->config.nccl ? join_nccl(j, until, err) : join_gloo(j, until, err);
}

static int hash_bytes(void *ctx, const void *bytes, size_t n, struct ws_err *err)
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
	/* Rank 0 began this round, so it has read the report of the round before. After the last
	 * round rank 0 may have ended, so errors are ignored. */
	bool gone;
	snprintf(key, sizeof key, BENCH_DONE, (unsigned long long)(j->round - 1), j->rank);
	(void)ws_store_client_delete(j->client, key, until, &gone, NULL);
	return 0;
}

enum round { PUSHED, BARE, HASHED };

static unsigned count_of(const struct joined *j, uint64_t size, enum round what)
{
	return what == HASHED ? 1 :
	                        (unsigned)bench_count_of(size, j->config.count, j->config.total);
}

static int take_gloo(struct joined *j, uint64_t size, enum round what,
                     ws_deadline until, struct ws_err *err)
{
	const unsigned count = count_of(j, size, what);
	struct ws_gloo_sink *sinks = calloc(count, sizeof *sinks);
	if (!sinks)
		return ws_oom(err);
	for (unsigned i = 0; i < count; i++)
		sinks[i] = (struct ws_gloo_sink){ .length = size,
			                          .take = what == HASHED ? hash_bytes : NULL,
			                          .ctx = j->hash };
	const int rc = ws_gloo_recv(j->gloo, 0, sinks, count, until, j->what->cancel, err);
	free(sinks);
	return rc;
}

/* Hashes the received bytes in GPU memory, through a buffer. */
static int hash_memory(struct joined *j, uint64_t size, struct ws_err *err)
{
	enum { PIECE = 1 << 20 };
	struct bench_comms *c = &j->comms;
	char *buffer = malloc(PIECE);
	int rc = buffer ? 0 : ws_oom(err);
	for (uint64_t at = 0; at < size && !rc; at += PIECE) {
		const uint64_t n = size - at < PIECE ? size - at : PIECE;
		rc = ws_gpu_copy_out(c->g.gpu, buffer, c->at + at, n, c->g.stream, err) ||
		                     bench_gpu_wait(&c->g, err) ?
		             -1 :
		             0;
		if (!rc)
			ws_hash_add(j->hash, buffer, (size_t)n);
	}
	free(buffer);
	return rc;
}

static int take_nccl(struct joined *j, uint64_t size, enum round what, ws_deadline until,
                     struct ws_err *err)
{
	struct bench_comms *c = &j->comms;
	if (what == HASHED && ws_gpu_fill(c->g.gpu, c->at, 0, size, c->g.stream, err))
		return -1;
	if (bench_comms_broadcast(c, what == BARE ? c->bare : c->pushed, size,
	                          count_of(j, size, what), until, err))
		return -1;
	return what == HASHED ? hash_memory(j, size, err) : 0;
}

static int take_round(struct joined *j, uint64_t size, enum round what, struct ws_err *err)
{
	const ws_deadline until = ws_deadline_in(j->what->timeout_ns);
	ws_hash_reset(j->hash);
	const int rc = j->config.nccl ? take_nccl(j, size, what, until, err)
	                              : take_gloo(j, size, what, until, err);
	if (rc || say_done(j, what == HASHED, until, err))
		return -1;
	j->round++;
	return 0;
}

/* Receives one sample, and over NCCL also its reference round. */
static int take_sample(struct joined *j, uint64_t size, unsigned i, struct ws_err *err)
{
	const bool turned = bench_is_turned(i);
	if (!j->config.nccl)
		return take_round(j, size, PUSHED, err);
	return take_round(j, size, turned ? BARE : PUSHED, err) ||
	       take_round(j, size, turned ? PUSHED : BARE, err) ? -1 : 0;
}

static int take_all(struct joined *j, struct ws_err *err)
{
	for (size_t i = 0; i < j->config.n_sizes; i++) {
		for (unsigned k = 0; k < j->config.rounds; k++)
			if (take_sample(j, j->config.sizes[i], k, err))
				return -1;
		if (j->config.check && take_round(j, j->config.sizes[i], HASHED, err))
			return -1;
	}
	return 0;
}

int ws_bench_receive(const struct ws_bench_receive *what, struct ws_err *err)
{
	char own[WS_HOST_MAX];
	struct ws_bench_receive r = *what;
	struct joined j = { .what = &r, .hash = ws_hash_new() };
	int rc = j.hash ? 0 : ws_oom(err);
	if (!rc && !r.host)
		rc = ws_host_local_toward(r.master, ws_deadline_in(r.timeout_ns), r.cancel, own,
		                          sizeof own, err);
	r.host = r.host ? r.host : own;
	if (!rc)
		rc = join_group(&j, err) || take_all(&j, err) ? -1 : 0;
	ws_gloo_close(j.gloo);
	bench_comms_close(&j.comms, ws_deadline_in(LEAVE_NS));
	ws_store_disconnect(j.client);
	ws_hash_free(j.hash);
	return rc;
}
