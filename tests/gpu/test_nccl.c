/* SPDX-License-Identifier: Apache-2.0 */
/* What lib/gpu asks of NCCL, and what it says when NCCL refuses: on the double of libnccl,
 * beside that of libcuda where there is one. */
#include "nccl_core.h"

#include "on_gpu.h"
#include "test.h"

#include <limits.h>
#include <sys/stat.h>
#include <unistd.h>

_Static_assert(sizeof(struct ws_nccl_config) == 24, "the smallest config that NCCL takes");

static const struct fake_nccl *fake;
static char library[ON_GPU_PATH];
static char dir[] = "/tmp/wsync-nccl-XXXXXX";
static struct ws_nccl *nccl;
static struct ws_cuda *cuda;
static struct ws_gpu *gpu;

static int begin(void **state)
{
	(void)state;
	const struct ws_nccl_opts opts = { .library = library };
	const struct ws_cuda_opts driver = { .library = on_gpu_library() };
	fake->reset();
	ON_GPU(ws_nccl_open(&opts, &nccl, &err));
	if (ws_cuda_built()) {
		ON_GPU(ws_cuda_open(&driver, &cuda, &err));
		ON_GPU(ws_gpu_open(cuda, 0, &gpu, &err));
	}
	return 0;
}

static int end(void **state)
{
	(void)state;
	const char *mistake = fake->mistake();
	if (*mistake)
		print_error("%s\n", mistake);
	if (fake->live())
		print_error("%zu communicators are left\n", fake->live());
	ws_nccl_close(nccl);
	ws_gpu_close(gpu);
	ws_cuda_close(cuda);
	nccl = NULL;
	gpu = NULL;
	cuda = NULL;
	return *mistake || fake->live() ? -1 : 0;
}

#define IN_ORDER(test) TEST_BETWEEN(test, begin, end)

static void assert_says(const struct ws_err *err, enum ws_code code, const char *text)
{
	if (!strstr(err->msg, text))
		fail_msg("\"%s\" does not say \"%s\"", err->msg, text);
	assert_int_equal(err->code, code);
}

/* ---- loading ---- */

IN_ORDER(a_library_that_is_not_there_is_named)
{
	const struct ws_nccl_opts opts = { .library = "/nowhere/libnccl.so.2" };
	struct ws_nccl *n = NULL;
	struct ws_err told = WS_ERR_INIT;
	assert_int_equal(ws_nccl_open(&opts, &n, &told), -1);
	assert_says(&told, WS_EDEVICE, "NCCL cannot be loaded: /nowhere/libnccl.so.2");
	assert_non_null(strstr(told.hint, "{nccl_from}"));
	assert_null(n);
	ws_nccl_close(NULL);
}

IN_ORDER(a_library_that_is_another_is_refused)
{
	const struct ws_nccl_opts opts = { .library = "libm.so.6" };
	struct ws_nccl *n = NULL;
	struct ws_err told = WS_ERR_INIT;
	assert_int_equal(ws_nccl_open(&opts, &n, &told), -1);
	assert_says(&told, WS_EDEVICE, "the library has no function ncclGetVersion");
}

IN_ORDER(the_version_is_read_and_an_old_one_refused)
{
	const struct ws_nccl_opts opts = { .library = library };
	struct ws_nccl *n = NULL;
	struct ws_err told = WS_ERR_INIT;
	assert_int_equal(ws_nccl_version(nccl), 22809);
	assert_string_equal(ws_nccl_version_text(nccl), "2.28.9");
	assert_string_equal(ws_nccl_path(nccl), library);
	fake->version(2804);
	assert_int_equal(ws_nccl_open(&opts, &n, &told), -1);
	assert_says(&told, WS_EDEVICE, "NCCL of number 2804 is too old");
	fake->version(21400);
	ON_GPU(ws_nccl_open(&opts, &n, &err));
	assert_string_equal(ws_nccl_version_text(n), "2.14.0");
	ws_nccl_close(n);
}

/* ---- a communicator's life ---- */

static struct ws_comm *join(void)
{
	struct ws_comm_opts opts = { .nccl = nccl, .rank = 0, .size = 3 };
	struct ws_comm *c = NULL;
	ON_GPU(ws_nccl_id_new(nccl, &opts.id, &err));
	ON_GPU(ws_comm_open(&opts, &c, &err));
	return c;
}

static ws_devptr some_bytes(const char *text, size_t n)
{
	ws_devptr p = (uintptr_t)text; /* without CUDA nobody asks whose it is */
	if (!gpu)
		return p;
	ON_GPU(ws_gpu_alloc(gpu, n, &p, &err));
	ON_GPU(ws_gpu_copy_in(gpu, p, text, n, NULL, &err));
	return p;
}

static void free_bytes(ws_devptr p)
{
	if (gpu)
		ws_gpu_free(gpu, p);
}

IN_ORDER(a_whole_life_in_order)
{
	size_t n;
	fake->busy(3);
	struct ws_comm *c = join();
	bool ready = true;
	ON_GPU(ws_comm_ready(c, &ready, &err));
	assert_false(ready);
	ON_GPU(ws_comm_wait(c, ws_deadline_in(10 * WS_NS_PER_S), NULL, &err));
	ON_GPU(ws_comm_ready(c, &ready, &err));
	assert_true(ready);
	const ws_devptr p = some_bytes("hello", 5);
	ON_GPU(ws_comm_broadcast(c, p, 5, 0, NULL, WS_FOREVER, NULL, &err));
	ON_GPU(ws_comm_broadcast(c, p, 0, 0, NULL, WS_FOREVER, NULL, &err));
	ON_GPU(ws_comm_broadcast(c, p + 1, 3, 0, NULL, WS_FOREVER, NULL, &err));
	ws_comm_close(c, ws_deadline_in(10 * WS_NS_PER_S));
	assert_string_equal(fake->record(),
	                    "ncclGetVersion\n"
	                    "ncclGetUniqueId\n"
	                    "ncclCommInitRankConfig 0 of 3, size 24 version 21400 non-blocking\n"
	                    "ncclBroadcast 5 type 1 root 0\n"
	                    "ncclBroadcast 3 type 1 root 0\n"
	                    "ncclCommFinalize\n"
	                    "ncclCommDestroy\n");
	assert_memory_equal(fake->received(&n), "helloell", 8);
	assert_int_equal(n, 8);
	free_bytes(p);
}

IN_ORDER(one_number_is_summed_with_a_deadline)
{
	struct ws_err told = WS_ERR_INIT;
	size_t n;
	const ws_devptr p = some_bytes("\0\0\0\0", 4);
	struct ws_comm *c = join();
	ON_GPU(ws_comm_all_reduce_one(c, p, NULL, WS_FOREVER, NULL, &err));
	ws_comm_close(c, ws_deadline_in(10 * WS_NS_PER_S));
	assert_non_null(strstr(fake->record(), "ncclAllReduce 1 type 7 op 0\n"));
	fake->received(&n);
	assert_int_equal(n, 0);
	fake->busy(UINT_MAX);
	c = join();
	assert_int_equal(ws_comm_all_reduce_one(c, p, NULL, ws_deadline_in(30 * WS_NS_PER_MS),
	                                        NULL, &told),
	                 -1);
	assert_says(&told, WS_ETIMEOUT, "summing one number took too long");
	ws_comm_close(c, WS_FOREVER);
	free_bytes(p);
}

IN_ORDER(the_first_broadcast_waits_for_who_is_missing)
{
	struct ws_err told = WS_ERR_INIT;
	struct ws_cancel cancel = WS_CANCEL_INIT;
	const ws_devptr p = some_bytes("x", 1);
	fake->busy(20);
	struct ws_comm *c = join();
	ON_GPU(ws_comm_broadcast(c, p, 1, 0, NULL, ws_deadline_in(10 * WS_NS_PER_S), NULL, &err));
	ws_comm_close(c, ws_deadline_in(10 * WS_NS_PER_S));
	fake->busy(UINT_MAX);
	c = join();
	const int64_t since = ws_now_ns();
	assert_int_equal(ws_comm_broadcast(c, p, 1, 0, NULL, ws_deadline_in(30 * WS_NS_PER_MS),
	                                   NULL, &told),
	                 -1);
	assert_true(ws_now_ns() - since < 20 * WS_NS_PER_S);
	assert_says(&told, WS_ETIMEOUT, "broadcasting took too long");
	assert_int_equal(fake->live(), 0);
	assert_int_equal(ws_comm_wait(c, WS_FOREVER, NULL, &told), -1);
	assert_says(&told, WS_EDATA, "the communicator was aborted");
	ws_comm_close(c, WS_FOREVER);
	c = join();
	ws_cancel_set(&cancel);
	assert_int_equal(ws_comm_wait(c, WS_FOREVER, &cancel, &told), -1);
	assert_says(&told, WS_ECANCELLED, "joining the communicator was cancelled");
	ws_comm_close(c, WS_FOREVER);
	free_bytes(p);
}

IN_ORDER(leaving_is_aborting_where_it_cannot_end)
{
	const int64_t since = ws_now_ns();
	fake->busy(UINT_MAX);
	ws_comm_close(join(), WS_FOREVER); /* in progress: nothing but aborting is allowed */
	fake->busy(0);
	struct ws_comm *c = join();
	fake->busy(UINT_MAX); /* a peer that does not leave */
	ws_comm_close(c, ws_deadline_in(30 * WS_NS_PER_MS));
	assert_true(ws_now_ns() - since < 20 * WS_NS_PER_S);
	assert_null(strstr(fake->record(), "ncclCommDestroy"));
	ws_comm_close(NULL, WS_FOREVER);
}

/* ---- refusals ---- */

static enum ws_code code_of(int rc)
{
	return rc == NCCL_CUDA_ERROR ? WS_EDEVICE : WS_EDATA;
}

/* Everything once; where it stops, what is there is given back. */
static int live_once(struct ws_err *err)
{
	const struct ws_nccl_opts opts = { .library = library };
	struct ws_nccl *n = NULL;
	struct ws_comm_opts o = { .rank = 0, .size = 2 };
	struct ws_comm *c = NULL;
	const ws_devptr p = some_bytes("\0\0\0", 4);
	int rc = ws_nccl_open(&opts, &n, err);
	o.nccl = n;
	if (rc == 0)
		rc = ws_nccl_id_new(n, &o.id, err) || ws_comm_open(&o, &c, err) ||
		     ws_comm_wait(c, WS_FOREVER, NULL, err) ||
		     ws_comm_all_reduce_one(c, p, NULL, WS_FOREVER, NULL, err) ||
		     ws_comm_broadcast(c, p, 1, 0, NULL, WS_FOREVER, NULL, err);
	ws_comm_close(c, ws_deadline_in(WS_NS_PER_S));
	ws_nccl_close(n);
	free_bytes(p);
	return rc;
}

IN_ORDER(every_error_at_every_call_is_said_and_leaves_nothing)
{
	static const int codes[] = { 1, 2, 3, 4, 5, 6, 8, 42 };
	static const char *const functions[] = { "ncclGetVersion", "ncclGetUniqueId",
		                                 "ncclCommInitRankConfig", "ncclCommGetAsyncError",
		                                 "ncclAllReduce", "ncclBroadcast" };
	for (size_t f = 0; f < sizeof functions / sizeof functions[0]; f++)
		for (size_t i = 0; i < sizeof codes / sizeof codes[0]; i++) {
			struct ws_err told = WS_ERR_INIT;
			fake->reset();
			fake->refuse(functions[f], 0, codes[i]);
			assert_int_not_equal(live_once(&told), 0);
			assert_says(&told, code_of(codes[i]), ": what went wrong?[31m");
			assert_null(strstr(told.msg, "more of it"));
			assert_int_equal(told.native, codes[i]);
			assert_int_equal(fake->live(), 0);
		}
	static const char *const at_the_end[] = { "ncclCommFinalize", "ncclCommDestroy" };
	for (size_t f = 0; f < 2; f++) {
		struct ws_err told = WS_ERR_INIT;
		fake->reset();
		fake->refuse(at_the_end[f], 0, 3);
		assert_int_equal(live_once(&told), 0);
		assert_int_equal(fake->live(), 0);
	}
}

IN_ORDER(what_breaks_while_ranks_join_or_later_is_said)
{
	struct ws_err told = WS_ERR_INIT;
	fake->busy(5);
	struct ws_comm *c = join();
	fake->breaks(NCCL_INVALID_USAGE); /* as when versions differ */
	assert_int_equal(ws_comm_wait(c, WS_FOREVER, NULL, &told), -1);
	assert_says(&told, WS_EDATA, "joining the communicator: NCCL: invalid usage (5)");
	assert_non_null(strstr(told.hint, "this one has 2.28.9"));
	ws_comm_close(c, WS_FOREVER);
	fake->reset();
	c = join();
	ON_GPU(ws_comm_wait(c, WS_FOREVER, NULL, &err));
	fake->breaks(NCCL_REMOTE_ERROR);
	assert_int_equal(ws_comm_broadcast(c, 1, 1, 0, NULL, WS_FOREVER, NULL, &told), -1);
	assert_says(&told, WS_EDATA, "broadcasting: NCCL: remote process exited");
	assert_null(strstr(fake->record(), "ncclBroadcast"));
	assert_int_equal(ws_comm_broadcast(c, 1, 1, 0, NULL, WS_FOREVER, NULL, &told), -1);
	ws_comm_close(c, WS_FOREVER);
}

/* ---- a Python's own ---- */

static const char *write_script(const char *name, const char *text)
{
	static char path[256];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	FILE *f = fopen(path, "w");
	assert_non_null(f);
	fprintf(f, "#!/bin/sh\n%s\n", text);
	fclose(f);
	chmod(path, 0755);
	return path;
}

static int find(const char *python, char *path, struct ws_err *err)
{
	return ws_nccl_find(python, ws_deadline_in(20 * WS_NS_PER_S), NULL, path, err);
}

TEST(a_python_says_where_its_nccl_is)
{
	char path[WS_NCCL_PATH_MAX], text[4200], file[300];
	snprintf(text, sizeof text, "echo %s; echo more", library);
	ON_GPU(find(write_script("python", text), path, &err));
	assert_string_equal(path, library);
	/* a virtual environment by its directory */
	snprintf(file, sizeof file, "%s/bin", dir);
	mkdir(file, 0755);
	write_script("bin/python", text);
	ON_GPU(find(dir, path, &err));
	assert_string_equal(path, library);
}

/* The real interpreter on the real program, with packages that are like torch's. */
TEST(the_program_finds_both_kinds_of_wheels)
{
	static const char *const packages[] = { "torch", "nvidia", "nvidia/nccl" };
	char path[WS_NCCL_PATH_MAX], file[400];
	if (system("python3 -c 'import importlib.util' 2>/dev/null")) /* 2 of 2 skip without it */
		return;
	for (size_t i = 0; i < 3; i++) {
		snprintf(file, sizeof file, "%s/%s", dir, packages[i]);
		mkdir(file, 0755);
		if (i == 1)
			continue;
		snprintf(file, sizeof file, "%s/%s/lib", dir, packages[i]);
		mkdir(file, 0755);
		snprintf(file, sizeof file, "%s/%s/__init__.py", dir, packages[i]);
		fclose(fopen(file, "w"));
		snprintf(file, sizeof file, "%s/%s/lib/libnccl.so.2", dir, packages[i]);
		fclose(fopen(file, "w"));
		setenv("PYTHONPATH", dir, 1);
		ON_GPU(find("python3", path, &err));
		unsetenv("PYTHONPATH");
		/* nvidia's package, where there is one, before torch's own */
		assert_string_equal(path, file);
	}
}

/* A checkpoint's directory may have such files too. */
TEST(no_code_of_the_current_directory_is_run)
{
	static const char *const modules[] = { "importlib.py", "os.py", "nvidia/__init__.py",
		                               "torch.py" };
	char path[WS_NCCL_PATH_MAX] = "", before[4096], file[400];
	struct ws_err told = WS_ERR_INIT;
	assert_non_null(getcwd(before, sizeof before));
	snprintf(file, sizeof file, "%s/here", dir);
	assert_int_equal(mkdir(file, 0755) || chdir(file) || mkdir("nvidia", 0755) ||
	                         mkdir("nvidia/nccl", 0755) || mkdir("nvidia/nccl/lib", 0755),
	                 0);
	fclose(fopen("nvidia/nccl/lib/libnccl.so.2", "w"));
	for (size_t i = 0; i < sizeof modules / sizeof *modules; i++) {
		FILE *f = fopen(modules[i], "w");
		assert_non_null(f);
		fputs("open('ran', 'w')\n", f);
		fclose(f);
	}
	(void)find("python3", path, &told);
	assert_int_equal(access("ran", F_OK), -1);
	assert_int_equal(chdir(before), 0);
	assert_null(strstr(path, "/here/"));
}

TEST(a_python_that_has_none_or_is_none_is_refused)
{
	static const char *const scripts[] = { "true",
		                               "false",
		                               "echo",
		                               "echo libnccl.so.2",
		                               "echo /nowhere/x",
		                               "head -c 9000 /dev/zero | tr '\\0' /" };
	char path[WS_NCCL_PATH_MAX] = "kept";
	struct ws_err told = WS_ERR_INIT;
	for (size_t i = 0; i < sizeof scripts / sizeof scripts[0]; i++) {
		assert_int_equal(find(write_script("none\x1b", scripts[i]), path, &told), -1);
		assert_says(&told, WS_EDEVICE, "none? has no libnccl.so.2");
	}
	assert_int_equal(find("/nowhere/python", path, &told), -1);
	assert_says(&told, WS_EUSAGE,
	            "asking /nowhere/python for its NCCL: starting it: No such file");
	assert_int_equal(find("", path, &told), -1);
	assert_string_equal(path, "kept");
}

TEST(a_python_that_does_not_answer_is_ended)
{
	char path[WS_NCCL_PATH_MAX];
	struct ws_err told = WS_ERR_INIT;
	struct ws_cancel cancel = WS_CANCEL_INIT;
	const int64_t since = ws_now_ns();
	const char *slow = write_script("slow", "sleep 60; sleep 60");
	assert_int_equal(ws_nccl_find(slow, ws_deadline_in(100 * WS_NS_PER_MS), NULL, path, &told),
	                 -1);
	assert_says(&told, WS_ETIMEOUT, "it took too long");
	ws_cancel_set(&cancel);
	assert_int_equal(ws_nccl_find(slow, WS_FOREVER, &cancel, path, &told), -1);
	assert_says(&told, WS_ECANCELLED, "it was cancelled");
	assert_true(ws_now_ns() - since < 20 * WS_NS_PER_S);
}

int main(void)
{
	unsetenv("WSYNC_TEST_CUDA");
	fake = on_gpu_double_of_nccl(library);
	if (!fake)
		return 0;
	if (!mkdtemp(dir))
		return 1;
	const int rc = run_listed(NULL, NULL);
	char command[64];
	snprintf(command, sizeof command, "rm -rf %s", dir);
	return system(command) || rc;
}
