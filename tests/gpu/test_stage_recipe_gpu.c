/* SPDX-License-Identifier: Apache-2.0 */
/* What staging computes on a GPU, or its double, is bit for bit what lib/transform makes: of every
 * recipe and packing, of ragged shapes, in buckets of any kind, and with so little scratch that
 * all is done in bands. Drivers that fail, and that are asked what they did, are doubles. */
#include "on_gpu.h"

#include "gpu_stage.h"
#include "gpu_stage_steps.h"
#include "hard.h"
#include "nf4_levels.h"
#include "packed_file.h"
#include "payloads.h"
#include "wsync/tool/plan.h"
#include "transform_make.h"

#include <sys/stat.h>

enum { PARTS = 64, MIB = 1 << 20 };

static struct on_gpu gpu;
static const struct fake_cuda *cuda;

/* ---- a checkpoint of everything ---- */

static struct part parts[PARTS];
static size_t n_parts;
static char shapes[PARTS][64];
static void *memory[PARTS];

static void *add_part(const char *name, const char *dtype, size_t bytes, const char *shape, ...)
	__attribute__((format(printf, 4, 5)));

static void *add_part(const char *name, const char *dtype, size_t bytes, const char *shape, ...)
{
	va_list ap;
	assert_true(n_parts < PARTS);
	va_start(ap, shape);
	vsnprintf(shapes[n_parts], sizeof shapes[0], shape, ap);
	va_end(ap);
	memory[n_parts] = malloc(bytes ? bytes : 1);
	parts[n_parts] = (struct part){ name, dtype, shapes[n_parts], memory[n_parts], bytes };
	return memory[n_parts++];
}

static void drop_parts(void)
{
	while (n_parts)
		free(memory[--n_parts]);
}

/* Like weights: of moderate size, never so large that a sum would be none. */
static void some_bf16(uint16_t *x, size_t n)
{
	hard_bf16(x, n);
	for (size_t i = 0; i < n; i++)
		if ((x[i] >> 7 & 255) > 150)
			x[i] &= 0xbfff;
}

static void add_bf16(const char *name, int64_t rows, int64_t cols)
{
	const size_t n = (size_t)(rows * cols);
	some_bf16(add_part(name, "BF16", n * 2, "[%lld,%lld]", (long long)rows, (long long)cols),
	          n);
}

/* No half of one is a NaN: what is read as BF16 by mistake is not left to the CPU. */
static void add_floats(const char *name, size_t n, const char *shape)
{
	float *x = add_part(name, "F32", n * 4, "%s", shape);
	for (size_t i = 0; i < n; i++)
		x[i] = hard_float_of((hard_next() & 0x807fbfff) | (115 + hard_next() % 12) << 23);
}

static void add_bytes(const char *name, const char *dtype, size_t n, unsigned most,
                      const char *shape)
{
	uint8_t *x = add_part(name, dtype, n, "%s", shape);
	for (size_t i = 0; i < n; i++)
		x[i] = (uint8_t)(hard_next() % (most + 1));
}

static void add_text(const char *name, const char *text)
{
	memcpy(add_part(name, "U8", strlen(text), "[%zu]", strlen(text)), text, strlen(text));
}

static void add_levels(const char *name)
{
	memcpy(add_part(name, "F32", sizeof nf4_levels, "[16]"), nf4_levels, sizeof nf4_levels);
}

static void add_dense(void)
{
	add_bf16("a_proj.weight", 300, 257);
	add_bf16("b_proj.weight", 129, 384);
	add_bf16("c_proj.weight", 128, 128);
	add_bf16("norm.weight", 1, 77);
	add_bf16("d_proj.weight", 1, 5);
	add_bf16("e_proj.weight", 700, 40);
	add_floats("f_proj.weight", 70 * 130, "[70,130]");
	memset(add_part("h_proj.weight", "F16", 40 * 40 * 2, "[40,40]"), 0x11, 40 * 40 * 2);
}

static void add_packed(void)
{
	add_bytes("p_proj.weight", "F8_E4M3", 300 * 260, 0x7e, "[300,260]");
	add_floats("p_proj.weight_scale_inv", 3 * 3, "[3,3]");
	add_bytes("q_proj.weight", "F8_E4M3", 130 * 96, 0x7e, "[130,96]");
	add_floats("q_proj.weight_scale", 1, "[1]");
	add_bytes("r_proj.weight", "F8_E4M3", 90 * 70, 0x7e, "[90,70]");
	add_floats("r_proj.weight_scale", 90, "[90,1]");
	add_bytes("experts_fp8", "F8_E4M3", 3 * 150 * 64, 0x7e, "[3,150,64]");
	some_bf16(add_part("experts_fp8_scale_inv", "BF16", 3 * 2 * 2, "[3,2,1]"), 6);
	add_bytes("s_proj.weight", "U8", 100 * 48, 255, "[100,48]");
	add_bytes("s_proj.weight_scale", "F8_E4M3", 100 * 6, 0x7e, "[100,6]");
	add_floats("s_proj.weight_scale_2", 1, "[]");
	add_bytes("t_proj.weight", "U8", 96 * 200 / 2, 255, "[9600,1]");
	add_floats("t_proj.weight.absmax", 300, "[300]");
	add_levels("t_proj.weight.quant_map");
	add_text("t_proj.weight.quant_state.bitsandbytes__nf4",
	         "{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"bfloat16\",\"shape\":[96,"
	         "200]}");
	add_bytes("u_proj.weight", "U8", (75 * 33 + 1) / 2, 255, "[1238,1]");
	add_bytes("u_proj.weight.absmax", "U8", 39, 255, "[39]");
	add_levels("u_proj.weight.quant_map");
	add_floats("u_proj.weight.nested_absmax", 3, "[3]");
	add_floats("u_proj.weight.nested_quant_map", 256, "[256]");
	add_text(
		"u_proj.weight.quant_state.bitsandbytes__nf4",
		"{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"bfloat16\",\"shape\":[75,33],"
		"\"nested_blocksize\":16,\"nested_offset\":0.0421,\"nested_dtype\":\"float32\"}");
	add_bytes("w_proj.weight", "U8", 50 * 66 / 2, 255, "[1650,1]");
	add_floats("w_proj.weight.absmax", 52, "[52]");
	add_levels("w_proj.weight.quant_map");
	add_text("w_proj.weight.quant_state.bitsandbytes__nf4",
	         "{\"quant_type\":\"nf4\",\"blocksize\":64,\"dtype\":\"float32\",\"shape\":[50,"
	         "66]}");
}

/* An adapter's directory. */
static void write_adapter(const char *dir, int rank)
{
	struct opened_file f;
	char names[3][2][80], path[80];
	static const struct {
		const char *module;
		int rows, cols;
	} of[3] = { { "a_proj", 300, 257 }, { "e_proj", 700, 40 }, { "t_proj", 96, 200 } };
	for (int i = 0; i < 3; i++) {
		char shape[40];
		snprintf(names[i][0], 80, "base_model.model.%s.lora_A.weight", of[i].module);
		snprintf(names[i][1], 80, "base_model.model.%s.lora_B.weight", of[i].module);
		snprintf(shape, sizeof shape, "[%d,%d]", of[i].rows, rank);
		add_bf16(names[i][0], rank, of[i].cols);
		add_floats(names[i][1], (size_t)(of[i].rows * rank), shape);
	}
	write_packed(&f, parts, n_parts);
	close_file(&f);
	drop_parts();
	assert_int_equal(mkdir(dir, 0700), 0);
	snprintf(path, sizeof path, "%s/adapter_model.safetensors", dir);
	assert_int_equal(rename("x.safetensors", path), 0);
	snprintf(path, sizeof path, "%s/adapter_config.json", dir);
	FILE *out = fopen(path, "w");
	fprintf(out, "{\"peft_type\":\"LORA\",\"r\":%d,\"lora_alpha\":%d,\"target_modules\":"
	        "[\"a_proj\",\"e_proj\",\"t_proj\"]}", rank, 2 * rank);
	assert_int_equal(fclose(out), 0);
}

/* ---- made here and there ---- */

struct made {
	struct ws_gpu_stage stage;
	size_t here, elsewhere; /* tensors */
};

static bool takes(void *ctx, const struct ws_recipe_output *f)
{
	struct made *m = ctx;
	const bool here = ws_gpu_stage_computes(&m->stage, f);
	m->here += here;
	m->elsewhere += !here;
	return here;
}

static void assert_payload(struct made *m, const struct ws_plan *p, size_t first, size_t n,
                           ws_devptr at)
{
	ON_GPU(ws_stream_wait(gpu.gpu, m->stage.stream, WS_FOREVER, NULL, &err));
	for (size_t i = first; i < first + n; i++) {
		const struct ws_plan_tensor *t = &p->tensors[i];
		uint8_t *want = malloc((size_t)t->bytes), *got = malloc((size_t)t->bytes);
		ON_GPU(ws_item_read(t->item, 0, want, (size_t)t->bytes, &err));
		on_gpu_get(&gpu, got, at, (size_t)t->bytes);
		for (uint64_t k = 0; k < t->bytes; k++)
			if (got[k] != want[k])
				fail_msg("%s (%s): byte %llu is %02x, not %02x", t->name,
				         t->item->derivation ? t->item->derivation : "as it is",
				         (unsigned long long)k, got[k], want[k]);
		free(want);
		free(got);
		at += t->bytes;
	}
}

static void compare_bucket(struct made *m, const struct ws_plan *p, size_t b)
{
	const struct ws_plan_bucket *k = &p->buckets[b];
	struct ws_payload *payloads;
	size_t n;
	ON_GPU(ws_plan_payloads_for_gpu(p, b, takes, m, &payloads, &n, &err));
	struct ws_staging_buffer *box = ws_gpu_stage_buffer(&m->stage, payloads, n);
	uint64_t place = 0;
	for (size_t i = 0; i < n; i++) {
		ON_GPU(ws_gpu_stage_load(&m->stage, box, ws_deadline_in(60 * WS_NS_PER_S), NULL,
		                         &err));
		assert_payload(m, p, n == 1 ? k->first : k->first + i, n == 1 ? k->n : 1,
		               box->at + place);
		place = ws_gpu_stage_next_offset(place, &payloads[i]);
	}
	ws_gpu_stage_release(box);
	ws_plan_payloads_free(payloads, n);
}

struct how {
	uint64_t scratch, bucket;
	enum ws_load_format format;
	bool late;
};

static void compare_plan(const struct ws_catalog *c, const struct how *how, struct made *m)
{
	const struct ws_plan_opts opts = { .bucket_size = how->bucket, .format = how->format };
	struct ws_plan *p;
	cuda->reset();
	cuda->defer(how->late);
	ON_GPU(ws_plan_make(c, &opts, &p, &err));
	*m = (struct made){ .here = 0 };
	ON_GPU(ws_gpu_stage_open(&m->stage, gpu.gpu, &err));
	ON_GPU(ws_gpu_stage_use_kernels(&m->stage, how->scratch, &err));
	for (size_t b = 0; b < p->n_buckets; b++)
		compare_bucket(m, p, b);
	ws_gpu_stage_close(&m->stage);
	ws_plan_free(p);
}

static const struct how ways[] = {
	{ 16 * MIB, 1 << 30, WS_FORMAT_TENSORS, false },
	{ 16 * MIB, 1 << 30, WS_FORMAT_FLATTENED, true },
	{ 256 << 10, 200000, WS_FORMAT_FLATTENED, false },
	{ 128 << 10, 1, WS_FORMAT_TENSORS, true },
};

static struct opened_file file;

/* how many are made here with all the scratch one could want */
static void compare(const struct ws_transform_opts *opts, size_t here, size_t elsewhere)
{
	struct ws_transform *t;
	struct ws_transform_opts o = *opts;
	o.threads = 1;
	o.scratch = 16 * MIB;
	ON_GPU(ws_transform_make(file.catalog, &o, &t, &err));
	for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
		struct made m;
		compare_plan(ws_transform_catalog(t), &ways[i], &m);
		if (i < 2 && (m.here != here || m.elsewhere != elsewhere))
			fail_msg("%zu made here and %zu elsewhere, not %zu and %zu", m.here,
			         m.elsewhere, here, elsewhere);
		assert_true(m.here + m.elsewhere == here + elsewhere && m.here > 0);
	}
	ws_transform_free(t);
}

/* ---- tests ---- */

static void open_all(bool dense, bool packed)
{
	if (dense)
		add_dense();
	if (packed)
		add_packed();
	write_packed(&file, parts, n_parts);
	drop_parts();
}

SCRATCH_TEST(fp8_of_any_blocks)
{
	open_all(true, false);
	/* seven matrices and their scales; that of F16 is made elsewhere */
	compare(&(struct ws_transform_opts){ .quantize = WS_QUANTIZE_FP8 }, 12, 2);
	compare(&(struct ws_transform_opts){ .quantize = WS_QUANTIZE_FP8, .rule = WS_SCALE_SLIME },
	        12, 2);
	compare(&(struct ws_transform_opts){ .quantize = WS_QUANTIZE_FP8, .ue8m0 = true,
	                                     .block = { 7, 12 } },
	        12, 2);
	compare(&(struct ws_transform_opts){ .quantize = WS_QUANTIZE_FP8, .block = { 1000, 64 } },
	        12, 2);
	close_file(&file);
}

SCRATCH_TEST(unpacked_bases)
{
	open_all(false, true);
	compare(&(struct ws_transform_opts){ .unpack = true }, 8, 0);
	compare(&(struct ws_transform_opts){ .quantize = WS_QUANTIZE_FP8, .block = { 64, 64 } }, 14,
	        0);
	close_file(&file);
}

/* Whose product with anything overflows. */
SCRATCH_TEST(a_nested_block_of_any_size)
{
	add_bytes("v_proj.weight", "U8", 30 * 70 / 2, 255, "[1050,1]");
	add_bytes("v_proj.weight.absmax", "U8", 1, 255, "[1]");
	add_levels("v_proj.weight.quant_map");
	add_floats("v_proj.weight.nested_absmax", 1, "[1]");
	add_floats("v_proj.weight.nested_quant_map", 256, "[256]");
	add_text("v_proj.weight.quant_state.bitsandbytes__nf4",
	         "{\"quant_type\":\"nf4\",\"blocksize\":4096,\"dtype\":\"bfloat16\",\"shape\":[30,"
	         "70],\"nested_blocksize\":2251799813685248,\"nested_offset\":0.0421,"
	         "\"nested_dtype\":\"float32\"}");
	write_packed(&file, parts, n_parts);
	drop_parts();
	compare(&(struct ws_transform_opts){ .unpack = true }, 1, 0);
	compare(&(struct ws_transform_opts){ .quantize = WS_QUANTIZE_FP8, .block = { 16, 16 } }, 2,
	        0);
	close_file(&file);
}

SCRATCH_TEST(merged_changes)
{
	static const char *const dirs[] = { "one", "two", "three", "four", "five" };
	for (int i = 0; i < 5; i++)
		write_adapter(dirs[i], 3 + 5 * i);
	open_all(true, true);
	for (int two_step = 0; two_step < 2; two_step++) {
		struct ws_transform_opts o = { .adapters = dirs,
			                       .n_adapters = 1 + !two_step,
			                       .rounding =
			                               two_step ? WS_LORA_TWO_STEP : WS_LORA_FOLD };
		/* more than four are added up elsewhere */
		const size_t elsewhere = two_step ? 0 : 3;
		compare(&o, 10, 0);
		o.quantize = WS_QUANTIZE_FP8;
		compare(&o, 24, 2);
		o.n_adapters = 5;
		compare(&o, 24 - 2 * elsewhere, 2 + 2 * elsewhere);
	}
	close_file(&file);
}

/* ---- what is no number ---- */

static uint16_t *tensor_at(const char *name)
{
	for (size_t i = 0; i < n_parts; i++)
		if (strcmp(parts[i].name, name) == 0)
			return memory[i];
	return NULL;
}

/* Loads all of it into one box; the error of what cannot be. */
static int make_all(struct made *m, const struct ws_plan *p, struct ws_err *told)
{
	struct ws_payload *payloads;
	size_t n;
	int rc = 0;
	*m = (struct made){ .here = 0 };
	if (ws_gpu_stage_open(&m->stage, gpu.gpu, told) ||
	    ws_gpu_stage_use_kernels(&m->stage, 256 << 10, told)) {
		ws_gpu_stage_close(&m->stage);
		return -1;
	}
	ON_GPU(ws_plan_payloads_for_gpu(p, 0, takes, m, &payloads, &n, &err));
	struct ws_staging_buffer *box = ws_gpu_stage_buffer(&m->stage, payloads, n);
	while (rc == 0 && box->loaded < n)
		rc = ws_gpu_stage_load(&m->stage, box, ws_deadline_in(60 * WS_NS_PER_S), NULL,
		                       told);
	cuda->refuse("", 0, 0); /* nothing any more */
	if (rc == 0)
		assert_payload(m, p, 0, p->n_tensors, box->at);
	ws_gpu_stage_close(&m->stage);
	ws_plan_payloads_free(payloads, n);
	return rc;
}

static struct ws_plan *plan_of(const struct ws_transform_opts *o, struct ws_transform **t)
{
	const struct ws_plan_opts opts = { .bucket_size = 1 << 30, .format = WS_FORMAT_FLATTENED };
	struct ws_plan *p;
	cuda->reset();
	ON_GPU(ws_transform_make(file.catalog, o, t, &err));
	ON_GPU(ws_plan_make(ws_transform_catalog(*t), &opts, &p, &err));
	return p;
}

/* Of the parts that were added. */
static void assert_refused(const struct ws_transform_opts *o, const char *name, const char *says)
{
	struct ws_err here = WS_ERR_INIT, there = WS_ERR_INIT;
	struct ws_transform *t;
	struct made m;
	uint8_t byte;
	write_packed(&file, parts, n_parts);
	drop_parts();
	struct ws_plan *p = plan_of(o, &t);
	assert_fails(make_all(&m, p, &here), &here, WS_EINPUT, says);
	const struct ws_item *item = ws_catalog_find(ws_transform_catalog(t), name);
	while (!there.code)
		for (uint64_t at = 0; at < item->bytes && !there.code; at++)
			ws_item_read(item, at, &byte, 1, &there);
	assert_string_equal(here.msg, there.msg);
	ws_plan_free(p);
	ws_transform_free(t);
	close_file(&file);
}

SCRATCH_TEST(a_number_that_is_none_has_the_sentence_of_the_cpu)
{
	add_dense();
	tensor_at("a_proj.weight")[200 * 257 + 13] = 0x7fc0;
	tensor_at("a_proj.weight")[290 * 257 + 3] = 0xff80;
	assert_refused(&(struct ws_transform_opts){ .quantize = WS_QUANTIZE_FP8,
	                                            .scratch = 16 * MIB },
	               "a_proj.weight",
	               "tensor 'a_proj.weight' has NaN at row 200, column 13 (x.safetensors)");
}

SCRATCH_TEST(a_code_that_is_none_has_the_sentence_of_the_cpu)
{
	add_packed();
	((uint8_t *)tensor_at("p_proj.weight"))[200 * 260 + 13] = 0x7f;
	assert_refused(&(struct ws_transform_opts){ .unpack = true, .scratch = 16 * MIB },
	               "p_proj.weight", "p_proj.weight: element [200, 13] is NaN");
}

/* So large that a sum might be none: the CPU looks, and makes the same bytes. */
SCRATCH_TEST(what_only_might_be_none_is_made_by_the_cpu)
{
	static const char *const dir = "one";
	const struct ws_transform_opts o = { .adapters = &dir, .n_adapters = 1,
		                             .scratch = 16 * MIB };
	struct ws_err told = WS_ERR_INIT;
	struct ws_transform *t;
	struct made m;
	write_adapter(dir, 4);
	add_dense();
	add_packed();
	tensor_at("e_proj.weight")[77] = 0x7e96; /* 1e38 */
	write_packed(&file, parts, n_parts);
	drop_parts();
	struct ws_plan *p = plan_of(&o, &t);
	on_gpu_check(make_all(&m, p, &told), &told);
	assert_int_equal(m.here, 10);
	ws_plan_free(p);
	ws_transform_free(t);
	close_file(&file);
}

SCRATCH_TEST(every_call_of_the_driver_may_fail)
{
	static const char *const dir = "one";
	const struct ws_transform_opts o = { .quantize = WS_QUANTIZE_FP8, .adapters = &dir,
		                             .n_adapters = 1, .scratch = 16 * MIB, .threads = 1 };
	struct ws_transform *t;
	struct made m;
	write_adapter(dir, 2);
	add_bf16("a_proj.weight", 300, 257);
	add_bf16("e_proj.weight", 700, 40);
	add_bf16("t_proj.weight", 96, 200);
	write_packed(&file, parts, n_parts);
	drop_parts();
	struct ws_plan *p = plan_of(&o, &t);
	unsigned n = 0;
	for (int rc = -1; rc; n++) {
		struct ws_err told = WS_ERR_INIT;
		cuda->reset();
		cuda->refuse("", n, 700);
		rc = make_all(&m, p, &told);
		if (rc == 0)
			break;
		assert_int_equal(told.code, WS_EDEVICE);
	}
	assert_true(n > 100);
	ws_plan_free(p);
	ws_transform_free(t);
	close_file(&file);
}

/* No more than was said: the ring, the box, the scratch and its records. */
SCRATCH_TEST(no_more_memory_is_taken_than_was_said)
{
	struct ws_err told = WS_ERR_INIT;
	uint64_t said[2], taken[2] = { 0, 0 };
	const struct ws_transform_opts o = { .quantize = WS_QUANTIZE_FP8, .scratch = 16 * MIB };
	struct ws_transform *t;
	struct made m;
	open_all(true, false);
	struct ws_plan *p = plan_of(&o, &t);
	on_gpu_check(make_all(&m, p, &told), &told);
	unsigned long long n;
	for (const char *at = cuda->record(); (at = strstr(at, "cuMemAlloc_v2 ")); at++)
		taken[0] += sscanf(at, "cuMemAlloc_v2 %llu", &n) == 1 ? n : 0;
	for (const char *at = cuda->record(); (at = strstr(at, "cuMemHostAlloc ")); at++)
		taken[1] += sscanf(at, "cuMemHostAlloc %llu", &n) == 1 ? n : 0;
	ws_gpu_stage_memory(1, p->bytes, 1, &said[0], &said[1]);
	ws_gpu_stage_kernel_memory(&said[0], &said[1]);
	assert_true(taken[0] + WS_GPU_SCRATCH_BYTES - (256 << 10) <= said[0] &&
	            taken[0] > p->bytes);
	assert_true(taken[1] == said[1]);
	ws_plan_free(p);
	ws_transform_free(t);
	close_file(&file);
}

/* A real driver is not told how to behave. */
static void as_it_is(void)
{
}

static void as_it_likes(bool on)
{
	(void)on;
}

static void nothing(const char *function, unsigned n, int rc)
{
	(void)function, (void)n, (void)rc;
}

static const struct fake_cuda none = { .reset = as_it_is, .refuse = nothing, .defer = as_it_likes };

int main(void)
{
	if (!on_gpu_open(&gpu))
		return 0;
	cuda = gpu.is_double ? on_gpu_double() : &none;
	if (!cuda)
		return 0;
	if (!gpu.is_double)
		tests_listed = 6; /* the rest needs the double */
	const int rc = run_listed(NULL, NULL);
	on_gpu_close(&gpu);
	return rc;
}
