/* SPDX-License-Identifier: Apache-2.0 */
/* gloobench.c - our gloo against a plain socket, in turns: gloobench [MIB [ROUNDS [CASE]]]
 *
 * The plain copy sends a file of MIB mebibytes through one loopback connection by sendfile(2) to a
 * thread that reads it into one buffer or, for cases that keep what they get, into memory of the
 * file's size. Each case then broadcasts the same file, or bytes made on the
 * way, between threads. Prints the median rate of each and its median ratio to the plain copy of
 * the same round, then the processor time per gigabyte, which a busy machine changes less.
 * Groups are formed outside the timed window, whose end is the last rank's last byte. */
#include "gloo.h"
#include "gloo_kv.h"
#include "sock.h"

#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/sendfile.h>
#include <unistd.h>

enum { RANKS_MAX = 8, ROUNDS_MAX = 101, CHUNK = 1 << 20 };

enum sink { DISCARD, TAKE, PLACE };

static const struct bench {
	const char *name;
	unsigned ranks;
	enum sink sink;
	bool made;
	uint64_t item; /* bytes; 0: one item */
} benches[] = {
	{ "file to a rank that discards", 2, DISCARD, false, 0 },
	{ "file to a rank that is shown", 2, TAKE, false, 0 },
	{ "file to a rank's memory", 2, PLACE, false, 0 },
	{ "made bytes to a rank's memory", 2, PLACE, true, 0 },
	{ "file in items of 1 MiB", 2, PLACE, false, 1 << 20 },
	{ "file in items of 16 KiB", 2, PLACE, false, 16 << 10 },
	{ "file in items of 1 KiB", 2, PLACE, false, 1 << 10 },
	{ "file to 2 ranks", 3, PLACE, false, 0 },
	{ "file to 3 ranks, one by way of another", 4, PLACE, false, 0 },
	{ "the same, shown", 4, TAKE, false, 0 },
};
enum { N_BENCHES = sizeof benches / sizeof benches[0] };

static int file;
static uint64_t bytes;
static char *memory[RANKS_MAX]; /* touched before the first round: no page faults inside */

static _Noreturn void die(const char *what, const struct ws_err *err)
{
	fprintf(stderr, "gloobench: %s: %s\n", what, err ? err->msg : "failed");
	exit(1);
}

/* ---- the plain copy ---- */

struct reader {
	int listener;
	bool keep;
};

static void *read_all(void *arg)
{
	const struct reader *r = arg;
	static char buf[CHUNK];
	struct pollfd p = { .fd = r->listener, .events = POLLIN };
	poll(&p, 1, -1);
	const int fd = accept(r->listener, NULL, NULL);
	uint64_t at = 0;
	for (ssize_t n = 1; n > 0; at += (uint64_t)n)
		n = read(fd, r->keep ? memory[1] + at : buf,
		         r->keep && bytes - at < CHUNK ? bytes - at : CHUNK);
	close(fd);
	return NULL;
}

static double plain_copy(bool keep)
{
	struct ws_err err;
	uint16_t port;
	pthread_t thread;
	struct reader reader = { ws_sock_listen("127.0.0.1", 0, &port, &err), keep };
	if (reader.listener < 0 || pthread_create(&thread, NULL, read_all, &reader))
		die("listen", &err);
	const int fd = ws_sock_connect("127.0.0.1", port, WS_FOREVER, NULL, &err);
	if (fd < 0)
		die("connect", &err);
	const int64_t begun = ws_now_ns();
	for (off_t at = 0; (uint64_t)at < bytes;)
		if (sendfile(fd, file, &at, bytes - (uint64_t)at) < 0 &&
		    ws_sock_wait(fd, POLLOUT, WS_FOREVER, NULL, "send", &err))
			die("send", &err);
	close(fd);
	pthread_join(thread, NULL);
	close(reader.listener);
	return (double)(ws_now_ns() - begun) / 1e9;
}

/* ---- the broadcast ---- */

struct group {
	const struct bench *bench;
	size_t n;
	struct ws_gloo_kv store;
	pthread_barrier_t ready;
	int64_t begun, ended;
};

struct rank {
	struct group *group;
	unsigned rank;
	pthread_t thread;
};

static int make(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	(void)ctx, (void)at, (void)err;
	memset(dst, 7, n);
	return 0;
}

static int look(void *ctx, const void *piece, size_t n, struct ws_err *err)
{
	(void)ctx, (void)piece, (void)n, (void)err;
	return 0;
}

static void send_items(struct group *g, struct ws_gloo *gloo)
{
	struct ws_span *spans = calloc(g->n, sizeof *spans);
	struct ws_payload *items = calloc(g->n, sizeof *items);
	struct ws_err err;
	const uint64_t each = bytes / g->n;
	for (size_t i = 0; i < g->n; i++) {
		spans[i] = (struct ws_span){ .length = each, .fd = g->bench->made ? -1 : file,
		                             .offset = i * each, .fill = make };
		items[i] = (struct ws_payload){ each, &spans[i], 1 };
	}
	pthread_barrier_wait(&g->ready);
	g->begun = ws_now_ns();
	if (ws_gloo_send(gloo, items, g->n, WS_FOREVER, NULL, &err))
		die("send", &err);
	free(spans);
	free(items);
}

static void recv_items(struct group *g, unsigned rank, struct ws_gloo *gloo)
{
	struct ws_gloo_sink *sinks = calloc(g->n, sizeof *sinks);
	struct ws_err err;
	const uint64_t each = bytes / g->n;
	for (size_t i = 0; i < g->n; i++)
		sinks[i] = (struct ws_gloo_sink){
			each, g->bench->sink == PLACE ? memory[rank] + i * each : NULL,
			g->bench->sink == TAKE ? look : NULL, NULL };
	pthread_barrier_wait(&g->ready);
	if (ws_gloo_recv(gloo, 0, sinks, g->n, WS_FOREVER, NULL, &err))
		die("receive", &err);
	free(sinks);
}

static void *be_rank(void *arg)
{
	struct rank *r = arg;
	struct group *g = r->group;
	const struct ws_gloo_opts opts = { .rank = r->rank, .size = g->bench->ranks, .prefix = "/",
		                           .kv = &g->store, .host = "127.0.0.1" };
	struct ws_gloo *gloo;
	struct ws_err err;
	if (ws_gloo_open(&opts, ws_deadline_in(20 * WS_NS_PER_S), NULL, &gloo, &err))
		die("open", &err);
	if (r->rank == 0)
		send_items(g, gloo);
	else
		recv_items(g, r->rank, gloo);
	pthread_barrier_wait(&g->ready);
	if (r->rank == 0)
		g->ended = ws_now_ns();
	ws_gloo_close(gloo);
	return NULL;
}

static double broadcast(const struct bench *b)
{
	struct kv kv;
	struct rank ranks[RANKS_MAX];
	kv_init(&kv);
	struct group g = { .bench = b, .n = b->item ? bytes / b->item : 1,
		           .store = { &kv, kv_set, kv_get } };
	pthread_barrier_init(&g.ready, NULL, b->ranks);
	for (unsigned r = 0; r < b->ranks; r++) {
		ranks[r] = (struct rank){ .group = &g, .rank = r };
		if (pthread_create(&ranks[r].thread, NULL, be_rank, &ranks[r]))
			die("thread", NULL);
	}
	for (unsigned r = 0; r < b->ranks; r++)
		pthread_join(ranks[r].thread, NULL);
	pthread_barrier_destroy(&g.ready);
	kv_fini(&kv);
	return (double)(g.ended - g.begun) / 1e9;
}

/* ---- the report ---- */

struct cost {
	double wall[ROUNDS_MAX], cpu[ROUNDS_MAX];
};

static double cpu_now(void)
{
	struct rusage u;
	getrusage(RUSAGE_SELF, &u);
	return (double)(u.ru_utime.tv_sec + u.ru_stime.tv_sec) +
	       (double)(u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static int by_value(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

/* Sorts v. */
static double median(double *v, unsigned n)
{
	qsort(v, n, sizeof *v, by_value);
	return v[n / 2];
}

static void report(const struct bench *b, struct cost *plain, struct cost *ours, unsigned rounds)
{
	double ratio[ROUNDS_MAX];
	const double gb = (double)bytes / 1e9;
	for (unsigned k = 0; k < rounds; k++)
		ratio[k] = plain->wall[k] / ours->wall[k];
	const double middle = median(ratio, rounds);
	printf("%-40s %5.2f GB/s, plain %5.2f, ratio %4.2f (%.2f to %.2f); cpu s/GB %.2f, plain "
	       "%.2f\n",
	       b->name, gb / median(ours->wall, rounds), gb / median(plain->wall, rounds), middle,
	       ratio[0], ratio[rounds - 1], median(ours->cpu, rounds) / gb,
	       median(plain->cpu, rounds) / gb);
}

static void make_file(void)
{
	char path[] = "/tmp/gloobench-XXXXXX", chunk[CHUNK];
	file = mkstemp(path);
	if (file < 0 || unlink(path))
		die(path, NULL);
	memset(chunk, 3, sizeof chunk);
	for (uint64_t at = 0; at < bytes; at += CHUNK)
		if (pwrite(file, chunk, CHUNK, (off_t)at) != CHUNK)
			die(path, NULL);
}

int main(int argc, char **argv)
{
	const unsigned mib = argc > 1 ? (unsigned)atoi(argv[1]) : 512;
	const unsigned rounds = argc > 2 ? (unsigned)atoi(argv[2]) : 5;
	if (argc > 4 || mib == 0 || mib > 65536 || rounds == 0 || rounds > ROUNDS_MAX) {
		fprintf(stderr, "usage: gloobench [MIB [ROUNDS [CASE]]]\n");
		return 2;
	}
	const char *wanted = argc > 3 ? argv[3] : ""; /* part of a case's name */
	bytes = (uint64_t)mib * CHUNK;
	make_file();
	for (unsigned r = 1; r < 4; r++) {
		memory[r] = malloc(bytes);
		if (!memory[r])
			die("memory", NULL);
		memset(memory[r], 0, bytes);
	}
	static struct cost plain[N_BENCHES], ours[N_BENCHES];
	for (unsigned k = 0; k < rounds; k++) {
		for (unsigned b = 0; b < N_BENCHES; b++) {
			if (!strstr(benches[b].name, wanted))
				continue;
			const double before = cpu_now();
			plain[b].wall[k] = plain_copy(benches[b].sink == PLACE);
			const double between = cpu_now();
			ours[b].wall[k] = broadcast(&benches[b]);
			plain[b].cpu[k] = between - before;
			ours[b].cpu[k] = cpu_now() - between;
		}
	}
	for (unsigned b = 0; b < N_BENCHES; b++)
		if (strstr(benches[b].name, wanted))
			report(&benches[b], &plain[b], &ours[b], rounds);
	return 0;
}
