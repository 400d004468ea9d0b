/* SPDX-License-Identifier: Apache-2.0 */
/* What wsync asks of NCCL that needs no second rank, so that it shows on one GPU: a communicator of
 * one rank, from its config of 2.14 to its end, and one whose other rank never comes, which must be
 * left in time. The times are printed. They are NCCL's, so only bounds that a hang exceeds are
 * asserted.
 *
 * WSYNC_TEST_CUDA names libcuda and WSYNC_NCCL_LIB libnccl; without the former both are doubles. */
#include "on_gpu.h"
#include "test.h"

#include "nccl_library.h"

#include <limits.h>

enum { BYTES = 4096, BROADCASTS = 200 };

/* Seconds: deadlines, and what no working NCCL needs for a broadcast, to leave or to abort. */
static const int64_t LIMIT = 30 * WS_NS_PER_S;

static struct on_gpu g;
static struct ws_nccl *nccl;
static const struct fake_nccl *fake; /* NULL: the real one */

static double since(int64_t began)
{
	return (double)(ws_now_ns() - began) / 1e9;
}

static struct ws_comm *join(unsigned size)
{
	struct ws_comm_opts opts = { .nccl = nccl, .rank = 0, .size = size };
	struct ws_comm *c = NULL;
	ON_GPU(ws_nccl_id_new(nccl, &opts.id, &err));
	ON_GPU(ws_comm_open(&opts, &c, &err));
	return c;
}

static struct ws_comm *join_alone(void)
{
	const int64_t began = ws_now_ns();
	struct ws_comm *c = join(1);
	ON_GPU(ws_comm_wait(c, ws_deadline_in(LIMIT), NULL, &err));
	printf("# NCCL %s: a rank alone joins in %.2f s\n", ws_nccl_version_text(nccl),
	       since(began));
	return c;
}

/* Waits for all that was queued, as a push does. */
static void drain(struct ws_comm *c)
{
	struct ws_comm_event m = { .gpu = g.gpu };
	ON_GPU(ws_gpu_event_new(g.gpu, &m.event, &err));
	ON_GPU(ws_gpu_event_record(g.gpu, m.event, g.stream, &err));
	ON_GPU(ws_comm_wait_event(c, &m, ws_deadline_in(LIMIT), NULL, &err));
	ws_gpu_event_free(g.gpu, m.event);
}

/* Of the double it is known whether the communicator was left in order, or aborted: of NCCL, that
 * it did not take until the deadline after which it is aborted. */
static void leave(struct ws_comm *c)
{
	const int64_t began = ws_now_ns();
	ws_comm_close(c, ws_deadline_in(LIMIT));
	printf("# it leaves in %.2f s\n", since(began));
	assert_true(ws_now_ns() - began < LIMIT);
	if (fake)
		assert_non_null(strstr(fake->record(), "ncclCommFinalize\nncclCommDestroy\n"));
}

static void broadcast_all(struct ws_comm *c, ws_devptr at)
{
	const int64_t began = ws_now_ns();
	for (int i = 0; i < BROADCASTS; i++)
		ON_GPU(ws_comm_broadcast(c, at, BYTES, 0, g.stream, ws_deadline_in(LIMIT), NULL,
		                         &err));
	const double each = since(began) / BROADCASTS;
	drain(c);
	printf("# a broadcast of 4 KiB takes its caller %.0f us, and %.0f us in all\n", each * 1e6,
	       since(began) / BROADCASTS * 1e6);
}

TEST(a_rank_alone_joins_broadcasts_and_leaves)
{
	unsigned char sent[BYTES], got[BYTES];
	for (size_t i = 0; i < BYTES; i++)
		sent[i] = (unsigned char)(i * 7 >> 3);
	const ws_devptr at = on_gpu_put(&g, sent, BYTES), one = on_gpu_put(&g, &(float){ 3 }, 4);
	struct ws_comm *c = join_alone();
	float sum = 0;
	ON_GPU(ws_comm_all_reduce_one(c, one, g.stream, ws_deadline_in(LIMIT), NULL, &err));
	drain(c);
	on_gpu_get(&g, &sum, one, sizeof sum);
	assert_true(sum == 3);
	broadcast_all(c, at);
	on_gpu_get(&g, got, at, BYTES);
	assert_memory_equal(got, sent, BYTES);
	leave(c);
	on_gpu_release(&g);
}

TEST(a_rank_that_nobody_joins_waits_until_its_deadline_and_is_aborted)
{
	const int64_t patience = fake ? WS_NS_PER_S / 5 : 2 * WS_NS_PER_S;
	if (fake)
		fake->busy(UINT_MAX);
	struct ws_comm *c = join(2);
	const int64_t joins = ws_now_ns();
	bool ready = false;
	while (!ready && ws_now_ns() - joins < patience)
		ON_GPU(ws_comm_ready(c, &ready, &err));
	assert_false(ready);
	const int64_t aborts = ws_now_ns();
	ws_comm_abort(c);
	printf("# an abort while nobody comes takes %.2f s\n", since(aborts));
	assert_true(ws_now_ns() - aborts < LIMIT);
	ws_comm_close(c, ws_deadline_in(LIMIT));
	if (fake)
		fake->reset();
}

TEST(a_deadline_ends_the_wait_for_who_does_not_come)
{
	struct ws_err told = WS_ERR_INIT;
	if (fake)
		fake->busy(UINT_MAX);
	struct ws_comm *c = join(2);
	const int64_t began = ws_now_ns();
	assert_fails(ws_comm_wait(c, ws_deadline_in(WS_NS_PER_S / 5), NULL, &told), &told,
	             WS_ETIMEOUT, "joining the communicator took too long");
	printf("# a deadline of 0.2 s ends the wait after %.2f s\n", since(began));
	assert_true(ws_now_ns() - began < LIMIT);
	ws_comm_close(c, ws_deadline_in(LIMIT));
	if (fake)
		fake->reset();
}

TEST(after_that_a_rank_alone_joins_again)
{
	leave(join_alone());
}

/* ---- what is here ---- */

/* Without kernels: NCCL works where those cannot be loaded. */
static bool open_gpu(struct ws_err *err)
{
	const struct ws_cuda_opts opts = { .library = on_gpu_library() };
	if (ws_cuda_open(&opts, &g.cuda, err))
		return false;
	if (ws_cuda_count(g.cuda) == 0) {
		ws_err_set(err, WS_EDEVICE, "there is no GPU that CUDA could use");
		return false;
	}
	return true;
}

static int open_all(void **state)
{
	(void)state;
	static char path[ON_GPU_PATH];
	struct ws_nccl_opts opts = { .library = getenv("WSYNC_NCCL_LIB") };
	if (strstr(on_gpu_library(), "fake_cuda")) {
		fake = on_gpu_double_of_nccl(path);
		opts.library = path;
		assert_non_null(fake);
	}
	/* As programs do: the user's value would make calls block. */
	setenv("NCCL_COMM_BLOCKING", "0", 1);
	ON_GPU(ws_gpu_open(g.cuda, 0, &g.gpu, &err));
	ON_GPU(ws_stream_new(g.gpu, &g.stream, &err));
	ON_GPU(ws_nccl_open(&opts, &nccl, &err));
	return 0;
}

static int close_all(void **state)
{
	(void)state;
	if (fake) {
		assert_string_equal(fake->mistake(), "");
		assert_int_equal(fake->live(), 0);
	}
	ws_nccl_close(nccl);
	on_gpu_close(&g);
	return 0;
}

int main(void)
{
	struct ws_err err = WS_ERR_INIT;
	if (!open_gpu(&err)) {
		printf("1..0 # SKIP %s\n", err.msg);
	} else if (!strstr(on_gpu_library(), "fake_cuda") && !getenv("WSYNC_NCCL_LIB")) {
		printf("1..0 # SKIP there is no libnccl.so.2: WSYNC_NCCL_LIB names one\n");
	} else {
		return run_listed(open_all, close_all);
	}
	ws_cuda_close(g.cuda);
	return 0;
}
