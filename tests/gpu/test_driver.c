/* SPDX-License-Identifier: Apache-2.0 */
/* What lib/gpu asks of a driver, and what it says when the driver refuses:
 * on the double of libcuda. */
#include "on_gpu.h"
#include "test.h"

#include <pthread.h>
#include <sys/types.h>
#include <sys/wait.h>
#include <unistd.h>

enum { OUT_OF_MEMORY = 2, INVALID_IMAGE = 200, NO_BINARY = 209, UNSUPPORTED_PTX = 222,
	 ILLEGAL_ADDRESS = 700, NEVER_HEARD_OF = 4242 };

static const struct fake_cuda *fake;

static int begin(void **state)
{
	(void)state;
	fake->reset();
	return 0;
}

/* Whatever a test was about. */
static int end(void **state)
{
	(void)state;
	fake->reset();
	const char *mistake = fake->mistake();
	if (*mistake)
		print_error("%s\n", mistake);
	if (fake->live())
		print_error("%zu things were not given back\n", fake->live());
	return *mistake || fake->live() ? -1 : 0;
}

static struct ws_cuda *open_driver(void)
{
	const struct ws_cuda_opts opts = { .library = on_gpu_library() };
	struct ws_cuda *c = NULL;
	ON_GPU(ws_cuda_open(&opts, &c, &err));
	return c;
}

static struct ws_gpu *open_gpu(struct ws_cuda *c)
{
	struct ws_gpu *g = NULL;
	ON_GPU(ws_gpu_open(c, 1, &g, &err));
	return g;
}

static void assert_says(const struct ws_err *err, const char *text)
{
	if (!strstr(err->msg, text))
		fail_msg("\"%s\" does not say \"%s\"", err->msg, text);
	assert_int_equal(err->code, WS_EDEVICE);
}

/* ---- loading ---- */

TEST_BETWEEN(a_library_that_is_not_there_is_named, begin, end)
{
	const struct ws_cuda_opts opts = { .library = "/nowhere/libcuda.so.1" };
	struct ws_cuda *c = NULL;
	struct ws_err told = WS_ERR_INIT;
	assert_int_equal(ws_cuda_open(&opts, &c, &told), -1);
	assert_says(&told, "the CUDA driver cannot be loaded: /nowhere/libcuda.so.1");
	assert_null(c);
	ws_cuda_close(NULL);
}

TEST_BETWEEN(a_file_that_is_no_library_is_refused, begin, end)
{
	char path[] = "/tmp/wsync-driver-XXXXXX";
	const struct ws_cuda_opts opts = { .library = path };
	struct ws_cuda *c = NULL;
	struct ws_err told = WS_ERR_INIT;
	const int fd = mkstemp(path);
	assert_true(fd >= 0 && write(fd, "\x1b[31mnot a library", 18) == 18);
	close(fd);
	assert_int_equal(ws_cuda_open(&opts, &c, &told), -1);
	assert_says(&told, "cannot be loaded");
	assert_null(strchr(told.msg, '\x1b'));
	unlink(path);
}

TEST_BETWEEN(a_driver_that_lacks_a_function_is_refused, begin, end)
{
	char path[4096];
	const struct ws_cuda_opts opts = { .library = path };
	struct ws_cuda *c = NULL;
	struct ws_err told = WS_ERR_INIT;
	snprintf(path, sizeof path, "%.*s_old.so", (int)strlen(on_gpu_library()) - 3,
	         on_gpu_library());
	assert_int_equal(ws_cuda_open(&opts, &c, &told), -1);
	assert_says(&told, "has no function cuModuleLoadData");
	assert_non_null(strstr(told.hint, "11.4"));
}

TEST_BETWEEN(devices_are_described, begin, end)
{
	struct ws_cuda *c = open_driver();
	struct ws_cuda_device d;
	assert_int_equal(ws_cuda_version(c), 13000);
	assert_int_equal(ws_cuda_count(c), 2);
	ON_GPU(ws_cuda_device(c, 1, &d, &err));
	assert_string_equal(d.name, "Double 1?[31m"); /* foreign text is made fit for a terminal */
	assert_string_equal(d.bus, "0000:1c:00.0");
	assert_int_equal(d.major, 9);
	assert_int_equal(d.minor, 0);
	assert_int_equal(d.multiprocessors, 132);
	assert_true(d.memory == (uint64_t)80 << 30);
	assert_int_equal(d.uuid[15], 0x41);
	ws_cuda_close(c);
}

TEST_BETWEEN(gpus_are_found_by_uuid, begin, end)
{
	static const struct {
		const char *uuid;
		int ordinal; /* -1: refused, with this text */
		const char *says;
	} cases[] = {
		{ "GPU-40404040-4040-4040-4040-404040404040", 0, "" },
		{ "GPU-41414141-4141-4141-4141-414141414141", 1, "" },
		{ "gpu-41", 1, "" },
		{ "GPU-4", -1, "2 GPUs have a UUID that begins with GPU-4" },
		{ "GPU-", -1, "0 GPUs have the UUID GPU-" },
		{ "GPU-42", -1, "0 GPUs have the UUID GPU-42" },
		{ "GPU-40404040-4040-4040-4040-4040404040400", -1, "0 GPUs have the UUID" },
	};
	struct ws_cuda *c = open_driver();
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct ws_err told = WS_ERR_INIT;
		int ordinal = -1;
		assert_int_equal(ws_cuda_find(c, cases[i].uuid, &ordinal, &told),
		                 cases[i].ordinal < 0 ? -1 : 0);
		assert_int_equal(ordinal, cases[i].ordinal);
		if (ordinal < 0)
			assert_says(&told, cases[i].says);
	}
	ws_cuda_close(c);
}

TEST_BETWEEN(a_driver_older_than_the_kernels_is_named, begin, end)
{
	static const struct {
		int rc;
		const char *version;
		bool hinted;
	} cases[] = {
		{ INVALID_IMAGE, "12080", true },
		{ NO_BINARY, "12080", true },
		{ UNSUPPORTED_PTX, "12080", true },
		{ INVALID_IMAGE, "99000", false },
		{ OUT_OF_MEMORY, "12080", false },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		setenv("FAKE_CUDA_VERSION", cases[i].version, 1);
		struct ws_cuda *c = open_driver();
		struct ws_gpu *g = open_gpu(c);
		struct ws_module *m = NULL;
		struct ws_err told = WS_ERR_INIT;
		size_t bytes;
		fake->refuse("cuModuleLoadData", 0, cases[i].rc);
		assert_int_equal(ws_module_load(g, ws_cuda_image("fp8", &bytes), "fp8", &m, &told),
		                 -1);
		assert_int_equal(told.native, cases[i].rc);
		assert_int_equal(strstr(told.hint, "supports CUDA 12.8") != NULL, cases[i].hinted);
		fake->refuse("", 0, 0);
		ws_gpu_close(g);
		ws_cuda_close(c);
	}
	unsetenv("FAKE_CUDA_VERSION");
}

TEST_BETWEEN(a_gpu_that_is_not_there_is_refused, begin, end)
{
	struct ws_cuda *c = open_driver();
	struct ws_gpu *g = NULL;
	struct ws_err told = WS_ERR_INIT;
	assert_int_equal(ws_gpu_open(c, 2, &g, &told), -1);
	assert_says(&told, "there is no GPU 2: they are numbered 0 to 1");
	assert_int_equal(ws_gpu_open(c, -1, &g, &told), -1);
	assert_says(&told, "there is no GPU -1");
	ws_cuda_close(c);
	fake->devices(0);
	c = open_driver();
	assert_int_equal(ws_cuda_count(c), 0);
	assert_int_equal(ws_gpu_open(c, 0, &g, &told), -1);
	assert_says(&told, "there is no GPU that CUDA could use");
	ws_cuda_close(c);
}

/* ---- refusals ---- */

TEST_BETWEEN(errors_have_the_drivers_words, begin, end)
{
	struct ws_cuda *c = open_driver();
	struct ws_gpu *g = open_gpu(c);
	struct ws_err told = WS_ERR_INIT;
	ws_devptr p = 0;
	fake->refuse("cuMemAlloc_v2", 0, OUT_OF_MEMORY);
	assert_fails_with(ws_gpu_alloc(g, (uint64_t)3 << 29, &p, &told), &told, WS_EDEVICE,
	                  "GPU 1 (Double 1?[31m): allocating 1.50 GiB: CUDA_ERROR_OUT_OF_MEMORY "
	                  "(2): out of memory");
	assert_int_equal(told.native, OUT_OF_MEMORY);
	assert_true(p == 0);
	fake->refuse("cuMemAlloc_v2", 0, NEVER_HEARD_OF);
	assert_int_equal(ws_gpu_alloc(g, 1, &p, &told), -1);
	assert_says(&told, "an error without a name (4242)");
	assert_int_equal(ws_gpu_alloc(g, 1, &p, NULL), -1);
	ws_gpu_close(g);
	ws_cuda_close(c);
	assert_int_equal(fake->live(), 0);
}

/* Opening a GPU with its kernels: at whichever call the driver stops, nothing stays behind. */
static int open_and_close(struct ws_err *err)
{
	const struct ws_cuda_opts opts = { .library = on_gpu_library() };
	struct ws_cuda *c = NULL;
	struct ws_gpu *g = NULL;
	struct ws_compute *compute = NULL;
	struct ws_stream *s = NULL;
	const int rc = ws_cuda_open(&opts, &c, err) || ws_gpu_open(c, 0, &g, err) ||
	               ws_compute_open(g, &compute, err) || ws_stream_new(g, &s, err);
	ws_stream_free(g, s);
	ws_compute_close(compute);
	ws_gpu_close(g);
	ws_cuda_close(c);
	return rc;
}

TEST_BETWEEN(every_call_of_an_opening_may_fail, begin, end)
{
	unsigned n = 0;
	struct ws_err told = WS_ERR_INIT;
	for (;; n++) {
		fake->reset();
		fake->refuse("", n, ILLEGAL_ADDRESS);
		if (open_and_close(&told) == 0)
			break;
		assert_says(&told, "CUDA_ERROR_ILLEGAL_ADDRESS (700): an illegal memory access was "
		                   "encountered");
		assert_int_equal(fake->live(), 0);
	}
	assert_true(n > 35); /* the kernels alone are 23 */
	assert_int_equal(fake->live(), 0);
}

TEST_BETWEEN(kernels_for_other_gpus_have_a_remedy, begin, end)
{
	struct ws_err told = WS_ERR_INIT;
	fake->refuse("cuModuleLoadData", 0, NO_BINARY);
	assert_int_equal(open_and_close(&told), 1);
	assert_says(&told, "loading the kernels of fp8: CUDA_ERROR_NO_BINARY_FOR_GPU");
	assert_non_null(strstr(told.hint, "CUDA_ARCHS"));
}

TEST_BETWEEN(every_call_of_the_interface_may_fail, begin, end)
{
	struct ws_cuda *c = open_driver();
	struct ws_gpu *g = open_gpu(c);
	struct ws_stream *s = NULL;
	struct ws_gpu_event *m = NULL, *none = NULL;
	struct ws_module *mod = NULL;
	struct ws_kernel *k = NULL;
	ws_devptr p = 0, theirs = 0;
	unsigned char handle[WS_IPC_HANDLE_BYTES] = "";
	void *pinned = NULL;
	uint64_t a, b;
	int64_t ns;
	bool reached = true;
	char host[16] = "";
	size_t bytes;
	ON_GPU(ws_gpu_event_new(g, &m, &err));
	ON_GPU(ws_gpu_event_record(g, m, NULL, &err));
	struct ws_err told = WS_ERR_INIT;
	if (ws_gpu_event_elapsed(g, m, m, &ns, &told) == 0)
		fail_msg("an event without a time has one");
	ON_GPU(ws_gpu_alloc(g, 16, &p, &err));
	fake->refuse("", 0, ILLEGAL_ADDRESS);
#define REFUSED(call) \
	do { \
		told = (struct ws_err)WS_ERR_INIT; \
		assert_int_equal((call), -1); \
		assert_says(&told, "an illegal memory access"); \
		assert_true(ws_err_gpu_broken(&told)); \
		assert_non_null(strstr(told.hint, "start the program again")); \
	} while (0)
	REFUSED(ws_gpu_use(g, &told));
	REFUSED(ws_gpu_memory(g, &a, &b, &told));
	REFUSED(ws_gpu_alloc_pinned(g, 4096, &pinned, &told));
	REFUSED(ws_gpu_ipc_export(g, p, handle, &told));
	REFUSED(ws_gpu_ipc_open(g, handle, &theirs, &told));
	REFUSED(ws_stream_new(g, &s, &told));
	REFUSED(ws_stream_wait(g, NULL, WS_FOREVER, NULL, &told));
	REFUSED(ws_gpu_event_new(g, &none, &told));
	REFUSED(ws_gpu_timer_new(g, &none, &told));
	REFUSED(ws_gpu_event_record(g, m, NULL, &told));
	REFUSED(ws_gpu_event_query(g, m, &reached, &told));
	REFUSED(ws_gpu_event_wait(g, m, WS_FOREVER, NULL, &told));
	REFUSED(ws_stream_wait_event(g, NULL, m, &told));
	REFUSED(ws_gpu_event_elapsed(g, m, m, &ns, &told));
	REFUSED(ws_gpu_copy_in(g, p, host, 16, NULL, &told));
	REFUSED(ws_gpu_copy_out(g, host, p, 16, NULL, &told));
	REFUSED(ws_gpu_copy(g, p, p, 16, NULL, &told));
	REFUSED(ws_gpu_fill(g, p, 0, 16, NULL, &told));
	REFUSED(ws_module_load(g, ws_cuda_image("fp8", &bytes), "fp8", &mod, &told));
	assert_true(!s && !none && !pinned && !mod && !theirs && reached);
	fake->reset();
	ON_GPU(ws_module_load(g, ws_cuda_image("fp8", &bytes), "fp8", &mod, &err));
	assert_int_equal(ws_module_kernel(g, mod, "no_such_kernel", &k, &told), -1);
	assert_says(&told,
	            "kernel no_such_kernel: CUDA_ERROR_NOT_FOUND (500): named symbol not found");
	ws_module_free(g, mod);
	ws_gpu_free(g, p);
	ws_gpu_event_free(g, m);
	ws_gpu_close(g);
	ws_cuda_close(c);
	assert_int_equal(fake->live(), 0);
}

/* ---- waiting ---- */

TEST_BETWEEN(waits_end_with_the_work_the_deadline_or_a_signal, begin, end)
{
	struct ws_cuda *c = open_driver();
	struct ws_gpu *g = open_gpu(c);
	struct ws_err told = WS_ERR_INIT;
	struct ws_cancel cancel = WS_CANCEL_INIT;
	struct ws_gpu_event *m = NULL;
	bool reached = true;
	ON_GPU(ws_gpu_event_new(g, &m, &err));
	fake->busy(150);
	ON_GPU(ws_stream_wait(g, NULL, ws_deadline_in(10 * WS_NS_PER_S), &cancel, &err));
	fake->busy(1);
	ON_GPU(ws_gpu_event_query(g, m, &reached, &err));
	assert_false(reached);
	ON_GPU(ws_gpu_event_query(g, m, &reached, &err));
	assert_true(reached);
	fake->busy(UINT32_MAX);
	assert_fails_with(ws_gpu_event_wait(g, m, ws_deadline_in(20 * WS_NS_PER_MS), NULL, &told),
	                  &told, WS_ETIMEOUT, "GPU 1 (Double 1?[31m) is not done in time");
	ws_cancel_set(&cancel);
	assert_fails(ws_stream_wait(g, NULL, WS_FOREVER, &cancel, &told), &told, WS_ECANCELLED, "");
	ws_gpu_event_free(g, m);
	ws_gpu_close(g);
	ws_cuda_close(c);
}

/* ---- the double itself: what it would not let pass ---- */

TEST_BETWEEN(work_may_be_done_as_late_as_can_be, begin, end)
{
	struct on_gpu gpu;
	struct ws_gpu_event *m = NULL;
	char *pinned, host[4] = "new";
	void *p = NULL;
	assert_true(on_gpu_open(&gpu));
	const ws_devptr d = on_gpu_put(&gpu, "old", 4);
	ON_GPU(ws_gpu_alloc_pinned(gpu.gpu, 4, &p, &err));
	ON_GPU(ws_gpu_event_new(gpu.gpu, &m, &err));
	pinned = p;
	memcpy(pinned, host, 4);
	fake->defer(true);
	ON_GPU(ws_gpu_copy_in(gpu.gpu, d, pinned, 4, gpu.stream, &err));
	ON_GPU(ws_gpu_event_record(gpu.gpu, m, gpu.stream, &err));
	ON_GPU(ws_stream_wait_event(gpu.gpu, NULL, m, &err));
	pinned[0] = 'd'; /* too early, and so it shows */
	ON_GPU(ws_gpu_copy_out(gpu.gpu, host, d, 4, NULL, &err));
	assert_string_equal(host, "new");
	ON_GPU(ws_stream_wait(gpu.gpu, NULL, WS_FOREVER, NULL, &err));
	assert_string_equal(host, "dew");
	ON_GPU(ws_gpu_copy_in(gpu.gpu, d, pinned, 4, gpu.stream, &err));
	ws_gpu_free_pinned(gpu.gpu, pinned);
	assert_string_equal(fake->mistake(), "pinned memory is freed while a copy waits for it");
	ws_gpu_event_free(gpu.gpu, m);
	on_gpu_close(&gpu);
}

static void *stream_elsewhere(void *g)
{
	struct ws_err told = WS_ERR_INIT;
	struct ws_stream *s = NULL;
	assert_int_equal(ws_stream_new(g, &s, &told), -1);
	assert_says(&told, "(201)");
	ON_GPU(ws_gpu_use(g, &err));
	ON_GPU(ws_stream_new(g, &s, &err));
	return s;
}

TEST_BETWEEN(each_thread_has_a_context_of_its_own, begin, end)
{
	struct ws_cuda *c = open_driver();
	struct ws_gpu *g = open_gpu(c), *again = open_gpu(c);
	struct ws_stream *s = NULL;
	pthread_t thread;
	void *made = NULL;
	ws_gpu_close(again); /* this thread is back at g's */
	ON_GPU(ws_stream_new(g, &s, &err));
	assert_int_equal(pthread_create(&thread, NULL, stream_elsewhere, g), 0);
	pthread_join(thread, &made);
	ws_stream_free(g, made);
	ws_stream_free(g, s);
	ws_gpu_close(g);
	ws_cuda_close(c);
}

TEST_BETWEEN(of_nothing_nothing_is_asked, begin, end)
{
	struct on_gpu gpu;
	char host[1];
	assert_true(on_gpu_open(&gpu));
	const ws_devptr p = on_gpu_new(&gpu, 16);
	fake->reset();
	ON_GPU(ws_gpu_copy_in(gpu.gpu, p, host, 0, NULL, &err));
	ON_GPU(ws_gpu_copy_out(gpu.gpu, host, p, 0, NULL, &err));
	ON_GPU(ws_gpu_copy(gpu.gpu, p, p, 0, NULL, &err));
	ON_GPU(ws_gpu_fill(gpu.gpu, p, 0, 0, NULL, &err));
	assert_string_equal(fake->record(), "");
	on_gpu_close(&gpu);
}

TEST_BETWEEN(memory_that_cannot_be_pinned_is_not_the_gpus, begin, end)
{
	struct ws_cuda *c = open_driver();
	struct ws_gpu *g = open_gpu(c);
	struct ws_err told = WS_ERR_INIT;
	void *p = NULL;
	fake->refuse("cuMemHostAlloc", 0, OUT_OF_MEMORY);
	assert_int_equal(ws_gpu_alloc_pinned(g, 1 << 20, &p, &told), -1);
	assert_says(&told, "pinning 1.00 MiB: CUDA_ERROR_OUT_OF_MEMORY");
	assert_non_null(strstr(told.hint, "the host's"));
	assert_null(p);
	ws_gpu_close(g);
	ws_cuda_close(c);
}

/* ---- memory of other processes ---- */

/* What the function says in a process of its own. */
static int elsewhere(int (*f)(struct on_gpu *gpu, const unsigned char *handle), struct on_gpu *gpu,
                     const unsigned char *handle)
{
	const pid_t pid = fork();
	if (pid == 0)
		_exit(f(gpu, handle));
	int status = -1;
	assert_int_equal(waitpid(pid, &status, 0), pid);
	return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

static int read_and_write(struct on_gpu *gpu, const unsigned char *handle)
{
	struct ws_err told = WS_ERR_INIT;
	ws_devptr p = 0, again = 0;
	char host[6] = "";
	if (ws_gpu_ipc_open(gpu->gpu, handle, &p, &told) ||
	    ws_gpu_ipc_open(gpu->gpu, handle, &again, &told))
		return 1;
	if (p != again || ws_gpu_copy_out(gpu->gpu, host, p, 6, NULL, &told) ||
	    strcmp(host, "bytes") != 0)
		return 2;
	if (ws_gpu_copy_out(gpu->gpu, host, p, 4097, NULL, &told) == 0)
		return 3; /* beyond its end */
	ws_gpu_ipc_close(gpu->gpu, p);
	if (ws_gpu_copy_in(gpu->gpu, p, "BYTES", 6, NULL, &told))
		return 4; /* still open once */
	ws_gpu_ipc_close(gpu->gpu, p);
	if (ws_gpu_copy_out(gpu->gpu, host, p, 6, NULL, &told) == 0 || *fake->mistake())
		return 5;
	ws_gpu_ipc_close(gpu->gpu, p);
	if (strcmp(fake->mistake(), "memory is closed that was not opened") != 0)
		return 6;
	return 0;
}

TEST_BETWEEN(memory_is_read_and_written_by_another_process, begin, end)
{
	struct on_gpu gpu;
	unsigned char handle[WS_IPC_HANDLE_BYTES];
	char host[6] = "";
	assert_true(on_gpu_open(&gpu));
	const ws_devptr p = on_gpu_new(&gpu, 4096);
	ON_GPU(ws_gpu_copy_in(gpu.gpu, p, "bytes", 6, NULL, &err));
	ON_GPU(ws_gpu_ipc_export(gpu.gpu, p, handle, &err));
	assert_int_equal(elsewhere(read_and_write, &gpu, handle), 0);
	on_gpu_get(&gpu, host, p, 6);
	assert_string_equal(host, "BYTES");
	on_gpu_close(&gpu);
}

static int is_refused(struct on_gpu *gpu, const unsigned char *handle)
{
	struct ws_err told = WS_ERR_INIT;
	ws_devptr p = 0;
	if (ws_gpu_ipc_open(gpu->gpu, handle, &p, &told) != -1 || p || told.code != WS_EDEVICE)
		return 1;
	return strstr(told.msg, "opening another process's memory: CUDA_ERROR_INVALID_VALUE") &&
	       strstr(told.hint, "--pid=host") ? 0 : 2;
}

TEST_BETWEEN(handles_of_no_memory_are_refused, begin, end)
{
	struct on_gpu gpu;
	unsigned char handle[WS_IPC_HANDLE_BYTES], bad[WS_IPC_HANDLE_BYTES] = "";
	struct ws_err told = WS_ERR_INIT;
	assert_true(on_gpu_open(&gpu));
	assert_int_equal(ws_gpu_ipc_export(gpu.gpu, 4096, handle, &told), -1);
	assert_says(&told, "sharing its memory with other processes: CUDA_ERROR_INVALID_VALUE");
	ws_devptr p = 0;
	ON_GPU(ws_gpu_alloc(gpu.gpu, 100, &p, &err));
	ON_GPU(ws_gpu_ipc_export(gpu.gpu, p, handle, &err));
	assert_int_equal(elsewhere(is_refused, &gpu, bad), 0);
	for (size_t i = 0; i < sizeof bad; i += 4) {
		memcpy(bad, handle, sizeof bad);
		bad[i] ^= 0x40;
		assert_int_equal(elsewhere(is_refused, &gpu, bad), 0);
	}
	ws_gpu_free(gpu.gpu, p);
	assert_int_equal(elsewhere(is_refused, &gpu, handle), 0);
	ON_GPU(ws_gpu_alloc(gpu.gpu, 100, &p, &err)); /* another, with the same descriptor */
	assert_int_equal(elsewhere(is_refused, &gpu, handle), 0);
	ws_gpu_free(gpu.gpu, p);
	on_gpu_close(&gpu);
}

TEST_BETWEEN(our_own_memory_is_not_opened, begin, end)
{
	struct on_gpu gpu;
	unsigned char handle[WS_IPC_HANDLE_BYTES];
	struct ws_err told = WS_ERR_INIT;
	ws_devptr p = 0;
	assert_true(on_gpu_open(&gpu));
	ON_GPU(ws_gpu_ipc_export(gpu.gpu, on_gpu_new(&gpu, 16), handle, &err));
	assert_int_equal(ws_gpu_ipc_open(gpu.gpu, handle, &p, &told), -1);
	assert_says(&told, "CUDA_ERROR_INVALID_CONTEXT (201): invalid device context");
	assert_non_null(strstr(told.hint, "shares itself"));
	ws_gpu_ipc_close(gpu.gpu, 0);
	on_gpu_close(&gpu);
}

TEST_BETWEEN(a_gpu_has_a_name_for_all_processes, begin, end)
{
	struct ws_cuda *c = open_driver();
	struct ws_cuda_device d;
	char text[WS_CUDA_UUID_TEXT];
	ON_GPU(ws_cuda_device(c, 1, &d, &err));
	d.uuid[0] = 0x0f;
	assert_string_equal(ws_cuda_uuid_text(&d, text),
	                    "GPU-0f414141-4141-4141-4141-414141414141");
	strcpy(d.name, "NVIDIA A100-SXM4-40GB MIG 1g.5gb");
	assert_string_equal(ws_cuda_uuid_text(&d, text),
	                    "MIG-0f414141-4141-4141-4141-414141414141");
	ws_cuda_close(c);
}

/* ---- what is asked ---- */

TEST_BETWEEN(a_job_is_one_launch_of_the_right_size, begin, end)
{
	struct on_gpu gpu;
	assert_true(on_gpu_open(&gpu));
	static uint16_t x[200 * 300];
	struct ws_fp8_args a = {
		.x = on_gpu_put(&gpu, x, sizeof x),
		.codes = on_gpu_new(&gpu, 60000),
		.scales = on_gpu_new(&gpu, 24),
		.found = on_gpu_record(&gpu),
		.rows = 200,
		.cols = 300,
		.stride = 300,
		.codes_stride = 300,
		.bn = 128,
		.bk = 128,
	};
	fake->reset();
	ON_GPU(ws_compute_fp8(gpu.compute, false, &a, NULL, &err));
	assert_string_equal(fake->record(), "cuLaunchKernel fp8_block_bf16 6 256\n");
	a.rows = 0;
	fake->reset();
	ON_GPU(ws_compute_fp8(gpu.compute, false, &a, NULL, &err));
	assert_string_equal(fake->record(), "");
	struct ws_err told = WS_ERR_INIT;
	a.rows = INT64_C(1) << 40;
	assert_fails(ws_compute_fp8(gpu.compute, false, &a, NULL, &told), &told, WS_EINPUT, "");
	fake->refuse("cuLaunchKernel", 0, ILLEGAL_ADDRESS);
	a.rows = 200;
	assert_int_equal(ws_compute_fp8(gpu.compute, false, &a, NULL, &told), -1);
	assert_says(&told, "starting kernel fp8_block_bf16: CUDA_ERROR_ILLEGAL_ADDRESS");
	on_gpu_close(&gpu);
	assert_int_equal(fake->live(), 0);
}

TEST_BETWEEN(a_slice_moves_sixteen_bytes_a_thread_and_a_transpose_goes_by_tiles, begin, end)
{
	struct on_gpu gpu;
	assert_true(on_gpu_open(&gpu));
	const ws_devptr from = on_gpu_new(&gpu, 1 << 16), to = on_gpu_new(&gpu, 1 << 16);
	/* 64 rows of 64 out of rows of 256: 512 times 16 bytes */
	const struct ws_gather_job rows = { from, to, 2, 2, { 64, 64 }, { 256, 1 }, { 64, 1 } };
	const struct ws_gather_job whole = { from,          to, 4, 3, { 4, 8, 16 }, { 128, 16, 1 },
		                             { 128, 16, 1 } };
	const struct ws_gather_job turned = { from, to, 2, 2, { 100, 80 }, { 1, 100 }, { 80, 1 } };
	fake->reset();
	ON_GPU(ws_compute_gather(gpu.compute, &rows, NULL, &err));
	ON_GPU(ws_compute_gather(gpu.compute, &whole, NULL, &err));
	ON_GPU(ws_compute_gather(gpu.compute, &turned, NULL, &err));
	assert_string_equal(fake->record(), "cuLaunchKernel gather_16 2 256\n"
	                                    "cuLaunchKernel gather_16 1 256\n"
	                                    "cuLaunchKernel transpose_2 4 256\n");
	on_gpu_close(&gpu);
}

TEST_BETWEEN(the_library_carries_its_kernels, begin, end)
{
	static const char *const names[] = { "fp8", "lowrank", "unpack", "gather" };
	for (size_t i = 0; i < 4; i++) {
		size_t bytes = 0;
		const void *image = ws_cuda_image(names[i], &bytes);
		uint32_t magic = 0;
		assert_non_null(image);
		assert_true(bytes > 4096 && (uintptr_t)image % 16 == 0);
		memcpy(&magic, image, sizeof magic);
		assert_int_equal(magic, 0xba55ed50); /* of a fat binary */
	}
	size_t bytes;
	assert_null(ws_cuda_image("nothing", &bytes));
}

int main(void)
{
	fake = on_gpu_double();
	return fake ? run_listed(NULL, NULL) : 0;
}
