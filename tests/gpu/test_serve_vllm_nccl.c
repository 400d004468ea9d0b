/* SPDX-License-Identifier: Apache-2.0 */
/* The endpoint as a stock vLLM server over NCCL, with this program as the trainer: both ways to
 * meet, the sum of one number, and broadcasts. On the doubles of libcuda and libnccl, which prove
 * nothing about NCCL. */
#include "on_gpu.h"

#include "base64.h"
#include "nccl_library.h"
#include "serve_ask.h"
#include "serve_vllm.h"
#include "store.h"

#include <libgen.h>
#include <limits.h>
#include <unistd.h>

static char dir[] = "/tmp/wsync-vllm-XXXXXX";
static char library[64]; /* the double of libnccl, where the endpoint finds it too */

static struct ws_cuda *cuda;
static struct ws_gpu *gpu;
static struct ws_nccl *nccl;
static struct ws_stream *stream;
static struct ws_gpu_event *event;
static struct ws_comm *comm;
static struct ws_store *store;

static ws_deadline soon(void)
{
	return ws_deadline_in(20 * WS_NS_PER_S);
}

/* ---- one request beside the trainer ---- */

struct request {
	pthread_t thread;
	char path[64], body[2048];
	struct ws_serve_reply reply;
};

static void *run_request(void *arg)
{
	struct request *r = arg;
	const struct ws_serve_request rq = { .method = "POST", .path = r->path, .body = r->body,
		                             .body_len = strlen(r->body) };
	ws_serve_handle(serve, &rq, &r->reply);
	return NULL;
}

static void begin_request(struct request *r, const char *path, const char *body)
{
	*r = (struct request){ 0 };
	snprintf(r->path, sizeof r->path, "%s", path);
	snprintf(r->body, sizeof r->body, "%s", body);
	assert_int_equal(pthread_create(&r->thread, NULL, run_request, r), 0);
}

static void end_request(struct request *r, unsigned status, const char *part)
{
	pthread_join(r->thread, NULL);
	if (r->reply.status != status || !strstr(ws_buf_str(&r->reply.body), part))
		fail_msg("%u: %s", r->reply.status, ws_buf_str(&r->reply.body));
	ws_buf_free(&r->reply.body);
}

/* ---- the trainer ---- */

static int open_trainer(void **state)
{
	(void)state;
	const struct ws_nccl_opts opts = { .library = library };
	ON_GPU(ws_cuda_open(NULL, &cuda, &err));
	ON_GPU(ws_gpu_open(cuda, 0, &gpu, &err));
	ON_GPU(ws_nccl_open(&opts, &nccl, &err));
	ON_GPU(ws_stream_new(gpu, &stream, &err));
	ON_GPU(ws_gpu_event_new(gpu, &event, &err));
	return 0;
}

static void leave(void)
{
	ws_comm_close(comm, ws_deadline_in(0));
	comm = NULL;
}

static int close_trainer(void **state)
{
	ON_GPU(ws_gpu_use(gpu, &err));
	leave();
	tear_down(state);
	ON_GPU(ws_gpu_use(gpu, &err));
	ws_store_close(store);
	store = NULL;
	ws_gpu_event_free(gpu, event);
	ws_stream_free(gpu, stream);
	ws_nccl_close(nccl);
	ws_gpu_close(gpu);
	ws_cuda_close(cuda);
	return 0;
}

#define WITH_TRAINER(name) TEST_BETWEEN(name, open_trainer, close_trainer)

static void start_server(enum ws_serve_lineage lineage, int64_t init_ns)
{
	start((struct ws_serve_opts){ .lineage = lineage, .backend = WS_SERVE_NCCL, .gpu = 1,
	                              .nccl_library = library, .init_ns = init_ns,
	                              .receive_ns = 20 * WS_NS_PER_S });
	ON_GPU(ws_gpu_use(gpu, &err));
}

static void put_hex(struct ws_buf *out, const char *hex)
{
	for (; *hex; hex += 2) {
		const char pair[] = { hex[0], hex[1], 0 };
		const uint8_t byte = (uint8_t)strtoul(pair, NULL, 16);
		ws_buf_add(out, &byte, 1);
	}
}

/* Python's pickle of _ctypes._unpickle(ncclUniqueId, ({}, id)), protocol 4, or a shorter one. */
static void put_id(const struct ws_nccl_id *id, bool shorter)
{
	static const char module[] =
		"vllm.distributed.device_communicators.pynccl_wrapper\nncclUniqueId\n";
	const struct ws_store_opts so = { .host = "127.0.0.1", .world_size = 2 };
	struct ws_buf pickle;
	ws_buf_init(&pickle, 0);
	if (shorter) {
		ws_buf_puts(&pickle, "\x80\x02" "c_ctypes\n_unpickle\nc");
		ws_buf_puts(&pickle, module);
		put_hex(&pickle, "7d4380");
	} else {
		put_hex(&pickle, "800495ec000000000000008c075f637479706573948c095f756e7069636b6c65"
		                 "9493948c34766c6c6d2e64697374726962757465642e6465766963655f636f6d"
		                 "6d756e696361746f72732e70796e63636c5f77726170706572948c0c6e63636c"
		                 "556e6971756549649493947d944380");
	}
	ws_buf_add(&pickle, id->bytes, sizeof id->bytes);
	put_hex(&pickle, shorter ? "8686522e" : "948694869452942e");
	assert_int_equal(pickle.len, shorter ? 223 : 247);
	ON_GPU(ws_store_open(&so, &store, &err));
	ON_GPU(ws_store_set(store, "/broadcast_from/0/0", pickle.data, pickle.len, true, &err));
	ws_buf_free(&pickle);
}

static void begin_tcp(struct request *r)
{
	char body[200];
	snprintf(body, sizeof body,
	         "{\"init_info\":{\"master_address\":\"127.0.0.1\",\"master_port\":%u,"
	         "\"rank_offset\":1,\"world_size\":2}}", (unsigned)ws_store_port(store));
	begin_request(r, "/init_weight_transfer_engine", body);
}

static void join(const struct ws_nccl_id *id)
{
	const struct ws_comm_opts opts = { .nccl = nccl, .id = *id, .rank = 0, .size = 2 };
	ON_GPU(ws_comm_open(&opts, &comm, &err));
	ON_GPU(ws_comm_wait(comm, soon(), NULL, &err));
}

static void await(void)
{
	const struct ws_comm_event done = { .gpu = gpu, .event = event };
	ON_GPU(ws_gpu_event_record(gpu, event, stream, &err));
	ON_GPU(ws_comm_wait_event(comm, &done, soon(), NULL, &err));
}

static void warm_up(void)
{
	static const float zero;
	ws_devptr p;
	ON_GPU(ws_gpu_alloc(gpu, sizeof zero, &p, &err));
	ON_GPU(ws_gpu_copy_in(gpu, p, &zero, sizeof zero, stream, &err));
	ON_GPU(ws_comm_all_reduce_one(comm, p, stream, soon(), NULL, &err));
	await();
	ws_gpu_free(gpu, p);
}

/* Broadcasts these lengths, one after the other. */
static void broadcast(const uint8_t *bytes, const size_t *lengths, size_t n)
{
	ws_devptr p;
	ON_GPU(ws_gpu_alloc(gpu, 4096, &p, &err));
	for (size_t i = 0; i < n; bytes += lengths[i++]) {
		ON_GPU(ws_gpu_copy_in(gpu, p, bytes, lengths[i], stream, &err));
		ON_GPU(ws_comm_broadcast(comm, p, lengths[i], 0, stream, soon(), NULL, &err));
		await();
	}
	ws_gpu_free(gpu, p);
}

#define LISTS \
	"\"names\":[\"a\",\"b\",\"c\"],\"dtype_names\":[\"bfloat16\",\"float8_e4m3fn\",\"int8\"]," \
	"\"shapes\":[[10],[3],[4]]"
static const size_t each[] = { 20, 3, 4 }, all[] = { 27 };
static uint8_t bytes[27];

static void update(const char *more, bool packed)
{
	struct request r;
	char body[400];
	for (size_t i = 0; i < sizeof bytes; i++)
		bytes[i] = (uint8_t)(bytes[i] + i * 7 + 1);
	snprintf(body, sizeof body, "{\"update_info\":{%s%s}}", LISTS, more);
	begin_request(&r, "/update_weights", body);
	broadcast(bytes, packed ? all : each, packed ? 1 : 3);
	end_request(&r, 200, "{\"message\":\"Weights updated\"}");
	const uint8_t *at = bytes;
	for (size_t i = 0; i < 3; at += each[i++])
		assert_memory_equal(serve->weights.items[i].data, at, each[i]);
}

/* ---- the tests ---- */

WITH_TRAINER(the_id_comes_from_the_store_as_a_pickle)
{
	for (int shorter = 0; shorter < 2; shorter++) {
		struct ws_nccl_id id;
		struct request r;
		start_server(WS_SERVE_VLLM_0_20, 20 * WS_NS_PER_S);
		answers("GET", "/server_info?config_format=json", NULL, 200,
		        "\"worker_extension_cls\":\"\"");
		ON_GPU(ws_nccl_id_new(nccl, &id, &err));
		put_id(&id, shorter);
		begin_tcp(&r);
		join(&id);
		warm_up();
		end_request(&r, 200, "{\"message\":\"Weight transfer initialized\"}");
		update("", false);
		update(",\"packed\":true", true);
		answers("POST", "/collective_rpc", "{\"method\":\"wsync_leave\"}", 500,
		        "not implemented");
		answers("POST", "/update_weights",
		        "{\"update_info\":{\"names\":[\"a\"],\"dtype_names\":[\"int16\"],"
		        "\"shapes\":[[1]]}}", 500, "Unsupported dtype torch.int16");
		leave();
		ws_store_close(store);
		store = NULL;
	}
}

WITH_TRAINER(the_id_comes_in_the_request)
{
	struct ws_nccl_id id;
	struct ws_buf text, body;
	struct request r;
	start_server(WS_SERVE_VLLM_0_33, 20 * WS_NS_PER_S);
	ON_GPU(ws_nccl_id_new(nccl, &id, &err));
	ws_buf_init(&text, 0);
	ws_buf_init(&body, 0);
	ws_base64_encode(&text, id.bytes, sizeof id.bytes);
	ws_buf_printf(&body, "{\"init_info\":{\"nccl_unique_id_b64\":\"%s\",\"rank_offset\":1,"
	              "\"world_size\":2,\"packed\":true}}", ws_buf_str(&text));
	begin_request(&r, "/init_weight_transfer_engine", ws_buf_str(&body));
	join(&id);
	warm_up();
	end_request(&r, 200, "initialized");
	answers("POST", "/start_weight_update", NULL, 200, "started");
	update("", true);
	answers("POST", "/finish_weight_update", NULL, 200, "finished");
	leave();
	answers("POST", "/shutdown_weight_transfer_engine", NULL, 200, "shut down");
	ws_buf_free(&text);
	ws_buf_free(&body);
}

WITH_TRAINER(without_the_sum_an_init_does_not_end)
{
	struct ws_nccl_id id;
	struct request r;
	start_server(WS_SERVE_VLLM_0_27, WS_NS_PER_S);
	ON_GPU(ws_nccl_id_new(nccl, &id, &err));
	put_id(&id, false);
	begin_tcp(&r);
	join(&id);
	end_request(&r, 500, "took too long");
}

WITH_TRAINER(another_value_is_no_id)
{
	const struct ws_store_opts so = { .host = "127.0.0.1", .world_size = 2 };
	struct request r;
	start_server(WS_SERVE_VLLM_0_24, 20 * WS_NS_PER_S);
	ON_GPU(ws_store_open(&so, &store, &err));
	ON_GPU(ws_store_set(store, "/broadcast_from/0/0", "C\x80", 2, true, &err));
	begin_tcp(&r);
	end_request(&r, 500, "invalid load key");
}

/* ---- the doubles under the names that a loader looks for ---- */

static void link_double(const char *from, const char *name)
{
	char self[PATH_MAX], target[PATH_MAX + 32], path[64];
	const ssize_t n = readlink("/proc/self/exe", self, sizeof self - 1);
	self[n > 0 ? n : 0] = 0;
	snprintf(target, sizeof target, "%s/%s", dirname(self), from);
	snprintf(path, sizeof path, "%s/%s", dir, name);
	if (symlink(target, path))
		perror(path);
}

static void run_again(char **argv)
{
	if (!mkdtemp(dir))
		return;
	link_double("fake_cuda.so", "libcuda.so.1");
	link_double("fake_cuda.so", "fake_cuda.so");
	link_double("fake_nccl.so", "libnccl.so.2");
	setenv("LD_LIBRARY_PATH", dir, 1);
	setenv("FAKE_NCCL_TOGETHER", dir, 1);
	execv("/proc/self/exe", argv);
}

static void clean_up(const char *at)
{
	static const char *const names[] = { "libcuda.so.1", "fake_cuda.so", "libnccl.so.2" };
	char path[128];
	for (size_t i = 0; i < 3; i++) {
		snprintf(path, sizeof path, "%s/%s", at, names[i]);
		unlink(path);
	}
	rmdir(at);
}

int main(int argc, char **argv)
{
	const char *at = getenv("FAKE_NCCL_TOGETHER");
	(void)argc;
	if (getenv("WSYNC_TEST_CUDA") || !ws_cuda_built()) {
		puts("1..0 # SKIP only with the doubles");
		return 0;
	}
	if (!at) {
		run_again(argv);
		return 1;
	}
	snprintf(library, sizeof library, "%s/libnccl.so.2", at);
	const int rc = run_listed(NULL, NULL);
	clean_up(at);
	return rc;
}
