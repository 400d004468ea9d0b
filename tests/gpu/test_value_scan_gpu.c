/* SPDX-License-Identifier: Apache-2.0 */
/* What a push finds when a GPU scans its numbers is what it finds when the CPU reads
 * them: numbers that are none in every type and packing, by their names and places, and
 * where all are fine nothing is read. On the double of libcuda, or where WSYNC_TEST_CUDA
 * names the driver, on a GPU. */
#include "on_gpu.h"
#include "hard.h"

#include "gpu_value_scan.h"
#include "exported_memory.h"
#include "nf4_levels.h"
#include "scratch.h"
#include "test.h"
#include "wsync/tool/catalog.h"

#include <pthread.h>
#include <stdatomic.h>
#include <unistd.h>

enum { SPACE = 1 << 20, PARTS = 24 };

static struct on_gpu on;
static const struct fake_cuda *fake; /* NULL: it is a GPU */

/* ---- a trainer's memory, here and on the GPU ---- */

static uint8_t bytes[SPACE];
static ws_devptr space;
static _Atomic uint64_t bytes_read;
static bool gone, far;

static struct part {
	const char *name, *dtype, *shape;
	size_t at, n;
} parts[PARTS];
static size_t n_parts, used;

static int open_memory(const struct ws_manifest *m, const char *path,
                       const struct ws_cancel *cancel, struct ws_ipc_source **out,
                       struct ws_err *err)
{
	(void)m, (void)path, (void)cancel, (void)err;
	*out = (struct ws_ipc_source *)(void *)bytes;
	return 0;
}

static int read_memory(struct ws_ipc_source *l, size_t allocation, uint64_t at, void *dst, size_t n,
                       struct ws_err *err)
{
	(void)l, (void)allocation, (void)err;
	bytes_read += n;
	memcpy(dst, bytes + at, n);
	return 0;
}

static int place_memory(struct ws_ipc_source *l, size_t allocation, uint64_t at,
                        struct ws_gpu_address *out, struct ws_err *err)
{
	(void)l, (void)allocation;
	if (gone)
		return ws_err_set(err, WS_EINPUT, "it is gone");
	memcpy(out->gpu, ws_gpu_device(on.gpu)->uuid, sizeof out->gpu);
	out->gpu[7] ^= far;
	out->at = space + at;
	return 0;
}

static int check_memory(struct ws_ipc_source *l, struct ws_err *err)
{
	(void)l, (void)err;
	return 0;
}

static void close_memory(struct ws_ipc_source *l)
{
	(void)l;
}

static const struct ws_memory_ops memory = { .open = open_memory,
	                                     .read = read_memory,
	                                     .gpu_address = place_memory,
	                                     .check = check_memory,
	                                     .close = close_memory };

static void *add(const char *name, const char *dtype, const char *shape, size_t n)
{
	struct part *p = &parts[n_parts++];
	assert_true(n_parts <= PARTS && used + n + 512 <= SPACE);
	used = (used + 511) / 512 * 512;
	*p = (struct part){ name, dtype, shape, used, n };
	used += n;
	return bytes + p->at;
}

static void add_bf16(const char *name, const char *shape, size_t n)
{
	uint16_t *x = add(name, "bfloat16", shape, n * 2);
	for (size_t i = 0; i < n; i++)
		x[i] = (uint16_t)(0x3c00 + hard_next() % 0x200 + (hard_next() & 0x8000));
}

static void add_f32(const char *name, const char *shape, size_t n)
{
	float *x = add(name, "float32", shape, n * 4);
	for (size_t i = 0; i < n; i++)
		x[i] = hard_float_of((hard_next() & 0x807fffff) | (115 + hard_next() % 12) << 23);
}

static void add_bytes(const char *name, const char *dtype, const char *shape, size_t n,
                      uint32_t most)
{
	uint8_t *x = add(name, dtype, shape, n);
	for (size_t i = 0; i < n; i++)
		x[i] = (uint8_t)(hard_next() % (most + 1));
}

static void add_text(const char *name, const char *text)
{
	memcpy(memset(add(name, "uint8", "[160]", 160), ' ', 160), text, strlen(text));
}

static void add_levels(const char *name)
{
	memcpy(add(name, "float32", "[16]", sizeof nf4_levels), nf4_levels, sizeof nf4_levels);
}

static void fill_memory(void)
{
	n_parts = used = 0;
	add_bf16("a_proj.weight", "[300,257]", 300 * 257);
	uint16_t *half = add("b_proj.weight", "float16", "[40,41]", 40 * 41 * 2);
	for (int i = 0; i < 40 * 41; i++)
		half[i] = (uint16_t)(0x2c00 + hard_next() % 0x400);
	add_f32("c_proj.weight", "[33,65]", 33 * 65);
	add_bytes("d_proj.weight", "float8_e4m3fn", "[130,96]", 130 * 96, 0x7e);
	add_f32("d_proj.weight_scale_inv", "[2,1]", 2);
	add_bytes("e_proj.weight", "float8_e4m3fn", "[128,128]", 128 * 128, 0x7e);
	add_bytes("e_proj.weight_scale_inv", "float8_e8m0fnu", "[1,1]", 1, 130);
	add_bytes("f_proj.weight", "uint8", "[100,48]", 4800, 255);
	add_bytes("f_proj.weight_scale", "float8_e4m3fn", "[100,6]", 600, 0x7e);
	add_f32("f_proj.weight_scale_2", "[]", 1);
	add_bytes("g_proj.weight", "uint8", "[9600,1]", 9600, 255);
	add_f32("g_proj.weight.absmax", "[300]", 300);
	add_levels("g_proj.weight.quant_map");
	add_text("g_proj.weight.quant_state.bitsandbytes__nf4",
	         "{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"bfloat16\",\"shape\":[96,"
	         "200]}");
	add_bytes("h_proj.weight", "uint8", "[1238,1]", 1238, 255);
	add_bytes("h_proj.weight.absmax", "uint8", "[39]", 39, 255);
	add_levels("h_proj.weight.quant_map");
	add_f32("h_proj.weight.nested_absmax", "[3]", 3);
	add_f32("h_proj.weight.nested_quant_map", "[256]", 256);
	add_text(
		"h_proj.weight.quant_state.bitsandbytes__nf4",
		"{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"bfloat16\",\"shape\":[75,33],"
		"\"nested_blocksize\":16,\"nested_offset\":0.0421,\"nested_dtype\":\"float32\"}");
}

static void write_manifest(void)
{
	char digits[2 * WS_IPC_HANDLE_BYTES + 1], uuid[WS_CUDA_UUID_TEXT];
	memset(digits, '7', sizeof digits - 1);
	digits[sizeof digits - 1] = '\0';
	FILE *f = fopen("m.json", "w");
	assert_non_null(f);
	fprintf(f,
	        "{\"version\":1,\"process\":{\"pid\":1,\"start\":1,\"boot_id\":\"b\","
	        "\"pid_namespace\":\"p\",\"host\":\"h\"},\"devices\":[{\"uuid\":\"%s\","
	        "\"ordinal\":0}],\"allocations\":[{\"device\":0,\"handle\":\"%s\",\"bytes\":%d}],"
	        "\"tensors\":{",
	        ws_cuda_uuid_text(ws_gpu_device(on.gpu), uuid), digits, SPACE);
	for (size_t i = 0; i < n_parts; i++)
		fprintf(f,
		        "%s\"%s\":{\"dtype\":\"%s\",\"shape\":%s,\"allocation\":0,\"offset\":%zu}",
		        i ? "," : "", parts[i].name, parts[i].dtype, parts[i].shape, parts[i].at);
	fputs("}}", f);
	assert_int_equal(fclose(f), 0);
}

/* ---- looking ---- */

static struct ws_source *source;
static struct ws_catalog *catalog;

static int begin(void **state)
{
	static const char *const path = "cuda-ipc:m.json";
	const struct ws_source_opts opts = { .memory = &memory };
	scratch_enter(state);
	gone = far = false;
	fill_memory();
	write_manifest();
	space = on_gpu_put(&on, bytes, SPACE);
	ON_GPU(ws_source_open_with(&opts, &path, 1, &source, &err));
	const struct ws_source *const all = source;
	ON_GPU(ws_catalog_make(&all, 1, &(struct ws_catalog_opts){ .family = NULL }, &catalog,
	                       &err));
	return 0;
}

static int end(void **state)
{
	ws_catalog_free(catalog);
	ws_source_close(source);
	if (fake)
		fake->reset();
	on_gpu_release(&on);
	return scratch_leave(state);
}

#define ON_MEMORY(test) TEST_BETWEEN(test, begin, end)

/* One that has not looked before: scales that were found are kept. g NULL: by the CPU. */
static int check(struct ws_gpu_value_scan *g, const struct ws_cancel *cancel, struct ws_err *told)
{
	const struct ws_transform_opts how = {
		.quantize = WS_QUANTIZE_FP8, .block = { 64, 64 }, .threads = 1, .scratch = 16 << 20
	};
	struct ws_transform *t;
	ON_GPU(ws_transform_make(catalog, &how, &t, &err));
	bytes_read = 0;
	const int rc =
		g ? ws_transform_check_with(t, NULL, ws_gpu_value_scan_run, g, cancel, told) :
		    ws_transform_check(t, NULL, cancel, told);
	ws_transform_free(t);
	return rc;
}

/* By the GPU and by the CPU; returns how many bytes were read with the GPU's help. */
static uint64_t compare(bool fails, size_t *seen)
{
	struct ws_gpu_value_scan g = { .library = on_gpu_library() };
	struct ws_err want = WS_ERR_INIT, got = WS_ERR_INIT;
	const int rc = check(NULL, NULL, &want);
	assert_int_equal(rc, fails ? -1 : 0);
	assert_true(bytes_read > 0);
	assert_int_equal(check(&g, NULL, &got), rc);
	assert_int_equal(got.code, want.code);
	assert_string_equal(got.msg, want.msg);
	*seen = g.seen;
	return bytes_read;
}

enum { LOOKS = 11 }; /* c_proj and its like one; those with scales of floats two; nf4 one */

ON_MEMORY(what_is_fine_is_not_read)
{
	size_t seen;
	for (int late = 0; late < 2; late++) {
		if (fake)
			fake->defer(late);
		assert_int_equal(compare(false, &seen), 0);
		assert_int_equal(seen, LOOKS);
	}
}

static void poison(const struct part *p, size_t at, uint32_t bits, size_t size, bool told)
{
	uint8_t kept[4];
	size_t seen;
	uint8_t *x = bytes + p->at + at * size;
	memcpy(kept, x, size);
	memcpy(x, &bits, size);
	ON_GPU(ws_gpu_copy_in(on.gpu, space + (uint64_t)(x - bytes), x, size, on.stream, &err));
	ON_GPU(ws_stream_wait(on.gpu, on.stream, WS_FOREVER, NULL, &err));
	compare(told, &seen);
	assert_int_equal(seen, LOOKS);
	memcpy(x, kept, size);
	ON_GPU(ws_gpu_copy_in(on.gpu, space + (uint64_t)(x - bytes), x, size, on.stream, &err));
	ON_GPU(ws_stream_wait(on.gpu, on.stream, WS_FOREVER, NULL, &err));
}

static const struct part *part_of(const char *name)
{
	size_t i = 0;
	while (strcmp(parts[i].name, name) != 0)
		i++;
	return &parts[i];
}

ON_MEMORY(each_number_that_is_none_is_told_as_the_cpu_does)
{
	static const struct { const char *name; size_t size; uint32_t bits[3]; } cases[] = {
		{ "a_proj.weight", 2, { 0x7f80, 0xff80, 0xffc1 } },
		{ "b_proj.weight", 2, { 0x7c00, 0xfc00, 0x7e01 } },
		{ "c_proj.weight", 4, { 0x7f800000, 0xff800000, 0x7f800001 } },
		{ "d_proj.weight", 1, { 0x7f, 0xff, 0x7f } },
		{ "d_proj.weight_scale_inv", 4, { 0x7f800000, 0xffc00000, 0x7f7fffff } },
		{ "e_proj.weight_scale_inv", 1, { 0xff, 0xff, 0xff } },
		{ "f_proj.weight_scale", 1, { 0x7f, 0xff, 0x7f } },
		{ "f_proj.weight_scale_2", 4, { 0x7f800000, 0xffc00000, 0x7f7fffff } },
		{ "g_proj.weight.absmax", 4, { 0x7f800000, 0xffc00000, 0xff800000 } },
		{ "h_proj.weight.nested_absmax", 4, { 0x7f800000, 0xffc00000, 0x7fc00000 } },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		const struct part *p = part_of(cases[i].name);
		const size_t n = p->n / cases[i].size;
		for (int k = 0; k < 3; k++)
			poison(p,
			       k == 0 ? 0 :
			       k == 1 ? n - 1 :
			                hard_next() % n,
			       cases[i].bits[k], cases[i].size, true);
	}
}

/* The largest that are numbers: in doubt, and read. */
ON_MEMORY(what_is_large_is_judged_by_the_cpu)
{
	poison(part_of("a_proj.weight"), 5, 0xff7f, 2, false);
	poison(part_of("b_proj.weight"), 5, 0x7bff, 2, false);
	poison(part_of("c_proj.weight"), 5, 0x7f7fffff, 4, false);
	poison(part_of("d_proj.weight_scale_inv"), 1, 0x7a000000, 4, false);
	poison(part_of("e_proj.weight_scale_inv"), 0, 0xf5, 1, false);
}

ON_MEMORY(where_a_gpu_cannot_look_the_cpu_does)
{
	size_t seen;
	far = true;
	assert_true(compare(false, &seen) > 0 && seen == 0);
	far = false;
	gone = true;
	assert_true(compare(false, &seen) > 0 && seen == 0);
	gone = false;
	space++; /* what is of two bytes or more lies at odd places */
	assert_true(compare(false, &seen) > 0 && seen == 0);
	space--;
	struct ws_cancel cancel = WS_CANCEL_INIT;
	struct ws_gpu_value_scan g = { .library = "libnone.so.7" };
	ON_GPU(check(&g, NULL, &err));
	ws_cancel_set(&cancel);
	struct ws_err told = WS_ERR_INIT;
	g.library = on_gpu_library();
	assert_fails(check(&g, &cancel, &told), &told, WS_ECANCELLED, "");
}

ON_MEMORY(every_call_of_the_driver_may_fail)
{
	uint16_t *bad = (uint16_t *)(void *)(bytes + part_of("a_proj.weight")->at) + 1000;
	for (int i = 0; fake && i < 2; i++) {
		size_t seen = 0;
		unsigned n = 0;
		for (; seen < LOOKS; n++) {
			fake->reset();
			fake->refuse("", n, 700);
			compare(i, &seen);
		}
		assert_true(n > 20);
		fake->reset();
		*bad = 0x7fc0;
		ON_GPU(ws_gpu_copy_in(on.gpu, space, bytes, SPACE, on.stream, &err));
		ON_GPU(ws_stream_wait(on.gpu, on.stream, WS_FOREVER, NULL, &err));
	}
}

/* ---- many, and late ones ---- */

enum { MANY = 2500 };
static uint32_t numbers[MANY]; /* every other one of another GPU */
static ws_devptr numbers_at;

static int place_number(void *ctx, struct ws_gpu_address *out, struct ws_err *err)
{
	const size_t i = (size_t)((const uint32_t *)ctx - numbers);
	struct ws_cuda_device d = *ws_gpu_device(on.gpu);
	if (fake && i % 2 && ws_cuda_device(on.cuda, 1, &d, err))
		return -1;
	memcpy(out->gpu, d.uuid, sizeof out->gpu);
	out->at = numbers_at + i * sizeof numbers[0];
	return 0;
}

static void scan_numbers(struct ws_value_scan *scans, size_t n, struct ws_gpu_value_scan *g,
                            const struct ws_cancel *cancel)
{
	static struct ws_span spans[MANY];
	for (size_t i = 0; i < n; i++) {
		spans[i] = (struct ws_span){
			.length = 4, .fd = -1, .ctx = &numbers[i], .gpu_address = place_number
		};
		scans[i] = (struct ws_value_scan){
			.of = { .length = 4, .spans = &spans[i], .n_spans = 1 },
			.dtype = WS_DTYPE_F32
		};
	}
	ws_gpu_value_scan_run(g, scans, n, cancel);
}

ON_MEMORY(what_one_look_finds_is_not_the_next_ones)
{
	static struct ws_value_scan scans[MANY];
	struct ws_gpu_value_scan g = { .library = on_gpu_library() };
	for (size_t i = 0; i < MANY; i++)
		numbers[i] =
			(uint32_t)(MANY - i) << 8 | (i % 3 ? 0 : 0x80000000); /* less each time */
	numbers_at = on_gpu_put(&on, numbers, sizeof numbers);
	if (fake)
		fake->defer(true);
	scan_numbers(scans, MANY, &g, NULL);
	assert_int_equal(g.seen, MANY);
	for (size_t i = 0; i < MANY; i++)
		assert_true(scans[i].seen && scans[i].largest == (MANY - i) << 8);
}

static void *cancel_soon(void *arg)
{
	usleep(100 * 1000);
	ws_cancel_set(arg);
	usleep(900 * 1000);
	if (fake)
		fake->busy(0);
	return arg;
}

ON_MEMORY(a_look_at_a_gpu_that_is_stuck_is_cancelled)
{
	struct ws_value_scan scans[2];
	struct ws_cancel cancel = WS_CANCEL_INIT;
	struct ws_gpu_value_scan g = { .library = on_gpu_library() };
	pthread_t canceller;
	if (!fake)
		skip();
	const int64_t begun = ws_now_ns();
	numbers_at = on_gpu_put(&on, numbers, sizeof numbers);
	assert_int_equal(pthread_create(&canceller, NULL, cancel_soon, &cancel), 0);
	fake->busy(~0u);
	scan_numbers(scans, 2, &g, &cancel);
	pthread_join(canceller, NULL);
	assert_int_equal(g.seen, 0);
	assert_true(ws_now_ns() - begun < 3 * WS_NS_PER_S);
}

RUN_ON_GPU(on, fake = on.is_double ? on_gpu_double() : NULL)
