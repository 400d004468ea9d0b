/* SPDX-License-Identifier: Apache-2.0 */
/* The NCCL data plane on the doubles of libcuda and libnccl: what is broadcast, in which order,
 * how far ahead it is read, and that nothing is left wherever it stops. No proof of transport. */
#include "on_gpu.h"

#include "test.h"
#include "transport.h"

#include <limits.h>
#include <poll.h>
#include <stdatomic.h>
#include <unistd.h>

enum { BUCKETS = 4, MOST = 12, BIG = (40 << 20) + 5 }; /* many slots of the ring, ragged */

static const struct fake_cuda *cuda;
static const struct fake_nccl *nccl;
static char nccl_path[ON_GPU_PATH];
static struct ws_store *store;
static int file = -1;

/* ---- buckets ---- */

static struct bucket {
	struct ws_payload payloads[MOST];
	struct ws_span spans[MOST][2];
	size_t n;
} buckets[BUCKETS];

/* Who makes bytes: how many, and after how many it fails. */
static _Atomic uint64_t made;
static uint64_t made_most = UINT64_MAX;

static uint8_t byte_of(uint64_t seed, uint64_t at)
{
	return (uint8_t)((at * 0x9e3779b97f4a7c15u + seed * 0x12345671) >> 56);
}

static int make(void *ctx, uint64_t at, void *dst, size_t n, struct ws_err *err)
{
	if (atomic_fetch_add(&made, n) + n > made_most)
		return ws_err_set(err, WS_EINPUT, "tensor 'x' has NaN");
	for (size_t i = 0; i < n; i++)
		((uint8_t *)dst)[i] = byte_of((uintptr_t)ctx, at + i);
	return 0;
}

/* Of a file and of a maker, one or both; empty ones too. */
static void make_bucket(size_t b)
{
	static const uint64_t lengths[] = {
		1000, 1, 0, 4096, 70000, 255, 256, 257, 9, 3, 100000, 12
	};
	struct bucket *k = &buckets[b];
	k->n = b == 1 ? 1 : MOST;
	for (size_t i = 0; i < k->n; i++) {
		const uint64_t n = b == 1 ? BIG : lengths[i];
		struct ws_span *s = k->spans[i];
		size_t spans = 0;
		if (n > 8 && i % 3 != 1)
			s[spans++] = (struct ws_span){ .length = n / 2, .fd = file,
				                       .offset = b * 100 + i };
		if (n)
			s[spans] = (struct ws_span){ .length = spans ? n - n / 2 : n, .fd = -1,
				                     .fill = make,
				                     .ctx = (void *)(uintptr_t)(b * MOST + i) };
		k->payloads[i] = (struct ws_payload){ n, s, spans + (n > 0) };
	}
}

static bool is_bucket(const unsigned char **at, const struct bucket *k)
{
	for (size_t i = 0; i < k->n; i++)
		for (size_t s = 0; s < k->payloads[i].n_spans; s++) {
			const struct ws_span *span = &k->spans[i][s];
			for (uint64_t j = 0; j < span->length; j++) {
				const bool from_file = span->fd >= 0;
				const uint64_t seed = from_file ? 4711 : (uintptr_t)span->ctx;
				if (*(*at)++ != byte_of(seed, j + (from_file ? span->offset : 0)))
					return false;
			}
		}
	return true;
}

static uint64_t bytes_of(const struct bucket *k)
{
	uint64_t n = 0;
	for (size_t i = 0; i < k->n; i++)
		n += k->payloads[i].length;
	return n;
}

static void write_file(void)
{
	FILE *f = tmpfile();
	for (uint64_t i = 0; i < BIG; i++)
		putc(byte_of(4711, i), f);
	fflush(f);
	file = dup(fileno(f));
	fclose(f);
}

/* ---- a transport ---- */

static bool makes, must_make, vllm;

static int begin(void **state)
{
	(void)state;
	const struct ws_store_opts opts = { .host = "127.0.0.1", .world_size = 3, .group = "g" };
	cuda->reset();
	nccl->reset();
	made = 0;
	made_most = UINT64_MAX;
	makes = must_make = vllm = false;
	ON_GPU(ws_store_open(&opts, &store, &err));
	return 0;
}

static int end(void **state)
{
	(void)state;
	ws_store_close(store);
	const char *one = cuda->mistake(), *other = nccl->mistake();
	if (*one || *other || cuda->live() || nccl->live()) {
		print_error("%s %s, %zu and %zu things left\n", one, other, cuda->live(),
		            nccl->live());
		return -1;
	}
	return 0;
}

#define IN_ORDER(test) TEST_BETWEEN(test, begin, end)

static int open_it(struct ws_transport **t, struct ws_err *err)
{
	const struct ws_transport_opts opts = {
		.world_size = 3,
		.host = "127.0.0.1",
		.store = store,
		.group = "g",
		.vllm = vllm,
		.gpu = { .driver = on_gpu_library(),
		         .nccl = nccl_path,
		         .device = 1,
		         .compute = makes,
		         .must_compute = must_make },
	};
	return ws_transport_nccl.open(&opts, ws_deadline_in(20 * WS_NS_PER_S), t, err);
}

static struct ws_transport *join(void)
{
	struct ws_transport *t = NULL;
	ON_GPU(open_it(&t, &err));
	ON_GPU(t->ops->wait(t, &err));
	return t;
}

static int send_one(struct ws_transport *t, size_t b, struct ws_err *err)
{
	if (t->ops->send_bucket(t, buckets[b].payloads, buckets[b].n,
	                        ws_deadline_in(20 * WS_NS_PER_S), err))
		return -1;
	struct pollfd p = { .fd = t->ops->fd(t), .events = POLLIN };
	assert_int_equal(poll(&p, 1, 30000), 1);
	return t->ops->wait(t, err);
}

static int send_all(struct ws_transport *t, struct ws_err *err)
{
	for (size_t b = 0; b < BUCKETS; b++) {
		if (b + 1 < BUCKETS)
			t->ops->stage(t, buckets[b + 1].payloads, buckets[b + 1].n);
		if (send_one(t, b, err)) {
			t->ops->stage(t, NULL, 0);
			return -1;
		}
	}
	return 0;
}

static void assert_received_all(void)
{
	size_t n;
	const unsigned char *at = nccl->received(&n), *last = at + n;
	for (size_t b = 0; b < BUCKETS; b++)
		assert_true(is_bucket(&at, &buckets[b]));
	assert_ptr_equal(at, last);
}

/* ---- tests ---- */

IN_ORDER(the_id_is_where_old_and_new_torch_look_for_it)
{
	static const char *const keys[] = { "/g/g//cuda//0", "/g/g/0" };
	struct ws_transport *t = join();
	for (size_t i = 0; i < 2; i++) {
		struct ws_buf value;
		ws_buf_init(&value, 1024);
		ON_GPU(ws_store_get(store, keys[i], ws_deadline_in(WS_NS_PER_S), NULL, &value,
		                    &err));
		assert_int_equal(value.len, 128);
		assert_int_equal(value.data[2], 15);
		ws_buf_free(&value);
	}
	t->ops->close(t);
}

IN_ORDER(all_bytes_arrive_in_order_however_late_the_work_is_done)
{
	for (int late = 0; late < 2; late++) {
		begin(NULL);
		cuda->defer(late);
		nccl->busy(late ? 3 : 0);
		struct ws_transport *t = join();
		int64_t first_ns = 1;
		assert_int_equal(t->ops->sent(t, &first_ns), 0);
		assert_int_equal(first_ns, 0);
		ON_GPU(send_all(t, &err));
		uint64_t all = 0;
		for (size_t b = 0; b < BUCKETS; b++)
			all += bytes_of(&buckets[b]);
		assert_true(t->ops->progress(t) == all && t->ops->sent(t, &first_ns) == all &&
		            first_ns > 0);
		t->ops->close(t);
		assert_received_all();
		assert_non_null(strstr(nccl->record(), "ncclCommFinalize\nncclCommDestroy\n"));
		if (late == 0)
			ws_store_close(store);
	}
}

IN_ORDER(the_next_bucket_is_read_while_this_one_is_on_the_wire)
{
	struct ws_transport *t = join();
	t->ops->stage(t, buckets[1].payloads, buckets[1].n);
	ON_GPU(send_one(t, 0, &err));
	const ws_deadline until = ws_deadline_in(10 * WS_NS_PER_S);
	while (atomic_load(&made) < BIG / 2 && !ws_deadline_passed(until))
		usleep(1000);
	assert_true(atomic_load(&made) >= BIG / 2);
	const uint64_t before = atomic_load(&made);
	ON_GPU(send_one(t, 1, &err));
	assert_true(atomic_load(&made) - before <= BIG / 2 + 1); /* and not read again */
	t->ops->close(t);
}

IN_ORDER(what_is_staged_and_never_sent_is_let_go)
{
	struct ws_transport *t = join();
	size_t n;
	t->ops->stage(t, buckets[1].payloads, buckets[1].n);
	ON_GPU(send_one(t, 0, &err));
	t->ops->stage(t, NULL, 0);
	const uint64_t then = atomic_load(&made);
	usleep(20000);
	assert_true(atomic_load(&made) == then);
	ON_GPU(send_one(t, 2, &err));
	t->ops->close(t);
	const unsigned char *at = nccl->received(&n);
	assert_true(is_bucket(&at, &buckets[0]) && is_bucket(&at, &buckets[2]));
	/* and closing ends what is being read */
	t = join();
	t->ops->stage(t, buckets[1].payloads, buckets[1].n);
	ON_GPU(send_one(t, 0, &err));
	t->ops->close(t);
}

IN_ORDER(a_lazy_server_joins_with_the_first_bucket)
{
	struct ws_transport *t = NULL;
	nccl->busy(UINT_MAX);
	ON_GPU(open_it(&t, &err));
	struct pollfd p = { .fd = t->ops->fd(t), .events = POLLIN };
	assert_int_equal(poll(&p, 1, 50), 0); /* nobody has agreed yet */
	t->ops->agreed(t);
	assert_int_equal(poll(&p, 1, 10000), 1);
	ON_GPU(t->ops->wait(t, &err));
	/* It refuses: nothing was sent, and we end at once. */
	struct ws_err told = WS_ERR_INIT;
	ON_GPU(t->ops->send_bucket(t, buckets[0].payloads, buckets[0].n, WS_FOREVER, &err));
	t->ops->abort(t);
	assert_fails(t->ops->wait(t, &told), &told, WS_ECANCELLED, "");
	assert_int_equal(t->ops->sent(t, NULL), 0);
	assert_int_equal(nccl->live(), 0);
	t->ops->close(t);
}

IN_ORDER(who_never_joins_leaves_us_apart)
{
	struct ws_transport *t = NULL;
	struct ws_err told = WS_ERR_INIT;
	nccl->busy(UINT_MAX);
	ON_GPU(open_it(&t, &err));
	t->ops->agreed(t);
	ON_GPU(t->ops->wait(t, &err));
	ON_GPU(t->ops->send_bucket(t, buckets[0].payloads, 1, ws_deadline_in(WS_NS_PER_S / 20),
	                           &err));
	assert_fails_with(t->ops->wait(t, &told), &told, WS_ETIMEOUT,
	                  "joining the communicator took too long");
	/* Who is missing, the store knows; of us it is asked whether the communicator stands. */
	struct ws_rank_status status;
	int64_t starved;
	t->ops->look(t, 1, &status, &starved);
	assert_int_equal(status.link, WS_HANG_APART);
	t->ops->close(t);
}

IN_ORDER(who_does_not_come_or_does_not_take_ends_at_the_deadline)
{
	struct ws_transport *t = join();
	struct ws_err told = WS_ERR_INIT;
	nccl->hangs(true);
	ON_GPU(t->ops->send_bucket(t, buckets[0].payloads, buckets[0].n,
	                           ws_deadline_in(WS_NS_PER_S / 10), &err));
	const int64_t since = ws_now_ns();
	assert_fails(t->ops->wait(t, &told), &told, WS_ETIMEOUT, "");
	assert_true(ws_now_ns() - since < 5 * WS_NS_PER_S);
	assert_int_equal(nccl->live(), 0);
	assert_int_equal(t->ops->progress(t), 0);
	t->ops->close(t);
}

/* Some of its bytes may have left: endpoints count as untouched only while `sent` is 0. */
IN_ORDER(a_broadcast_that_fails_in_progress_counts_as_sent)
{
	struct ws_transport *t = join();
	struct ws_err told = WS_ERR_INIT;
	nccl->busy(UINT_MAX);
	ON_GPU(t->ops->send_bucket(t, buckets[0].payloads, 1, WS_FOREVER, &err));
	const ws_deadline until = ws_deadline_in(20 * WS_NS_PER_S);
	while (t->ops->sent(t, NULL) == 0 && !ws_deadline_passed(until))
		usleep(1000);
	t->ops->abort(t);
	assert_fails(t->ops->wait(t, &told), &told, WS_ECANCELLED, "");
	assert_int_equal(t->ops->sent(t, NULL), buckets[0].payloads[0].length);
	assert_int_equal(t->ops->progress(t), 0);
	t->ops->close(t);
}

/* A driver gives memory back when all is done: so a larger box is had when the wire is still. */
IN_ORDER(a_box_that_must_grow_waits_for_its_turn)
{
	struct ws_transport *t = join();
	struct ws_err told = WS_ERR_INIT;
	t->ops->stage(t, buckets[2].payloads, buckets[2].n);
	ON_GPU(send_one(t, 0, &err));
	t->ops->stage(t, buckets[1].payloads, buckets[1].n);
	nccl->hangs(true);
	const ws_deadline until = ws_deadline_in(WS_NS_PER_S / 5);
	ON_GPU(t->ops->send_bucket(t, buckets[2].payloads, buckets[2].n, until, &err));
	assert_fails(t->ops->wait(t, &told), &told, WS_ETIMEOUT, "");
	assert_string_equal(cuda->mistake(), "");
	t->ops->stage(t, NULL, 0);
	t->ops->close(t);
	/* And then it is had. */
	nccl->reset();
	t = join();
	const size_t order[] = { 0, 2, 1 };
	for (size_t i = 0; i < 3; i++) {
		if (i + 1 < 3)
			t->ops->stage(t, buckets[order[i + 1]].payloads, buckets[order[i + 1]].n);
		ON_GPU(send_one(t, order[i], &err));
	}
	t->ops->close(t);
	size_t n;
	const unsigned char *at = nccl->received(&n);
	assert_true(is_bucket(&at, &buckets[0]) && is_bucket(&at, &buckets[2]) &&
	            is_bucket(&at, &buckets[1]));
}

IN_ORDER(a_peer_that_dies_is_noticed)
{
	struct ws_transport *t = join();
	struct ws_err told = WS_ERR_INIT;
	nccl->hangs(true); /* the kernel waits for it for ever */
	ON_GPU(t->ops->send_bucket(t, buckets[0].payloads, buckets[0].n, WS_FOREVER, &err));
	usleep(20000);
	nccl->breaks(6);
	assert_fails(t->ops->wait(t, &told), &told, WS_EDATA, "remote process exited");
	t->ops->close(t);
}

IN_ORDER(bytes_that_cannot_be_had_end_the_bucket)
{
	/* in the first bucket, and in one that is read ahead, where the
	 * error waits until it is sent */
	for (int ahead = 0; ahead < 2; ahead++) {
		struct ws_err told = WS_ERR_INIT;
		made = 0;
		made_most = ahead ? UINT64_C(4) << 20 : 600;
		struct ws_transport *t = join();
		assert_fails_with(send_all(t, &told), &told, WS_EINPUT, "tensor 'x' has NaN");
		assert_true(t->ops->progress(t) == (ahead ? bytes_of(&buckets[0]) : 0));
		assert_int_equal(nccl->live(), 0); /* aborted, so that the others notice */
		t->ops->close(t);
	}
}

IN_ORDER(memory_that_runs_out_is_the_gpus_or_the_hosts)
{
	struct ws_err told = WS_ERR_INIT;
	/* the second box, which is wanted while the first is sent: said when its bucket is to go */
	struct ws_transport *t = join();
	cuda->refuse("cuMemAlloc_v2", 1, 2);
	assert_fails(send_all(t, &told), &told, WS_EDEVICE,
	             "allocating 40.0 MiB: CUDA_ERROR_OUT_OF_MEMORY");
	assert_non_null(strstr(told.hint, "{bucket_size}"));
	assert_true(t->ops->progress(t) == bytes_of(&buckets[0]));
	t->ops->close(t);
	cuda->refuse("cuMemHostAlloc", 0, 2);
	assert_fails(open_it(&t, &told), &told, WS_EDEVICE, "");
	assert_non_null(strstr(told.hint, "the host's"));
}

/* Kernels, scratch, records: what of them cannot be had. */
IN_ORDER(where_nothing_can_be_made_the_cpu_does_unless_it_must_not)
{
	static const struct {
		const char *call;
		unsigned n;
	} failing[] = { { "cuModuleLoadData", 2 }, { "cuMemAlloc_v2", 0 }, { "cuMemAlloc_v2", 1 },
		        { "cuMemHostAlloc", 1 } };
	for (size_t i = 0; i < sizeof failing / sizeof failing[0]; i++)
		for (int must = 0; must < 2; must++) {
			struct ws_err told = WS_ERR_INIT;
			struct ws_transport *t = NULL;
			end(NULL);
			begin(NULL);
			makes = true;
			must_make = must;
			cuda->refuse(failing[i].call, failing[i].n, 2);
			assert_int_equal(open_it(&t, &told), must ? -1 : 0);
			assert_int_equal(told.code, must ? WS_EDEVICE : WS_OK);
			if (must)
				continue;
			ON_GPU(t->ops->wait(t, &err));
			assert_false(t->ops->makes(t, NULL));
			t->ops->close(t);
		}
}

/* The whole life, stopped at each call of the driver and of NCCL in turn. */
static int live_once(struct ws_err *err)
{
	struct ws_transport *t = NULL;
	if (open_it(&t, err))
		return -1;
	int rc = t->ops->wait(t, err);
	for (size_t b = 0; rc == 0 && b < 1; b++)
		rc = send_one(t, b, err);
	t->ops->close(t);
	return rc;
}

static void begin_for(bool a_vllm)
{
	end(NULL);
	begin(NULL);
	vllm = a_vllm;
}

static void stop_at_each_call(bool a_vllm)
{
	static const char *const calls[] = { "ncclGetVersion", "ncclGetUniqueId",
		                             "ncclCommInitRankConfig", "ncclCommGetAsyncError",
		                             "ncclBroadcast", "ncclAllReduce" };
	for (size_t i = 0; i < sizeof calls / sizeof calls[0] - !a_vllm; i++) {
		struct ws_err told = WS_ERR_INIT;
		begin_for(a_vllm);
		nccl->refuse(calls[i], 0, 2);
		assert_fails(live_once(&told), &told, WS_EDATA, "");
		assert_int_equal(nccl->live() + cuda->live(), 0);
	}
	unsigned n = 0;
	for (int rc = -1; rc; n++) {
		struct ws_err told = WS_ERR_INIT;
		begin_for(a_vllm);
		cuda->refuse("", n, 700);
		rc = live_once(&told);
		assert_int_equal(told.code, rc ? WS_EDEVICE : WS_OK);
		assert_int_equal(nccl->live() + cuda->live(), 0);
	}
	assert_true(n > 60);
}

IN_ORDER(every_call_may_fail_and_nothing_is_left)
{
	stop_at_each_call(false);
}

/* They sum one number first. */
IN_ORDER(every_call_may_fail_with_vllms_workers_too)
{
	stop_at_each_call(true);
}

IN_ORDER(a_machine_without_is_told_so_first)
{
	const struct ws_transport_gpu none = { .driver = "/nowhere/libcuda.so.1", .nccl = nccl_path,
		                               .device = 0 };
	const struct ws_transport_gpu no_nccl = { .driver = on_gpu_library(),
		                                  .nccl = "/nowhere/libnccl.so.2", .device = 0 };
	const struct ws_transport_gpu no_gpu = { .driver = on_gpu_library(), .nccl = nccl_path,
		                                 .device = 7 };
	const struct ws_transport_gpu good = { .driver = on_gpu_library(), .nccl = nccl_path,
		                               .device = 0 };
	struct ws_err told = WS_ERR_INIT;
	assert_fails(ws_transport_nccl.check(&none, &told), &told, WS_EDEVICE, "");
	assert_fails(ws_transport_nccl.check(&no_nccl, &told), &told, WS_EDEVICE, "");
	assert_int_equal(ws_transport_nccl.check(&no_gpu, &told), -1);
	assert_string_equal(told.msg, "there is no GPU 7: they are numbered 0 to 1");
	ON_GPU(ws_transport_nccl.check(&good, &err));
}

int main(void)
{
	cuda = on_gpu_double();
	nccl = cuda ? on_gpu_double_of_nccl(nccl_path) : NULL;
	if (!nccl)
		return 0;
	write_file();
	for (size_t b = 0; b < BUCKETS; b++)
		make_bucket(b);
	return run_listed(NULL, NULL);
}
