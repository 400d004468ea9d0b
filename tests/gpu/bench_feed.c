/* SPDX-License-Identifier: Apache-2.0 */
/* bench_feed.c - how fast a file reaches the GPU, beside a bare copy of pinned memory; and how
 * fast with work on the way.
 *
 * The file is of random bf16 weights, read once before, so that it lies in the page cache. GB/s
 * counts the file's bytes (decimal), from before the first read until the stream has everything;
 * opening, allocating and planning are outside. The bare copy is of one pinned buffer as large
 * as the feed's ring, again and again, as many bytes in all. Five rounds of each in turn;
 * median, least and most. WSYNC_BENCH_FEED_MIB sizes the file (1024), TMPDIR says where it is
 * made. The double has no speed, but one round of a file of 1 MiB shows that all of this runs. */
#include "on_gpu.h"

#include "feed.h"
#include "feed_ring.h"
#include "payloads.h"
#include "wsync/tool/plan.h"
#include "wsync/transform.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

enum { MOST_ROUNDS = 5, COLS = 4096, RANK = 16 };

static struct on_gpu gpu;
static char dir[4096];
static int64_t rows = 128 * 1024; /* of all matrices together */
static double pinned_rate;
static int rounds = MOST_ROUNDS;

/* ---- a checkpoint and an adapter ---- */

static void write_header(FILE *f, const char *json)
{
	const uint64_t n = strlen(json);
	assert_int_equal(fwrite(&n, 1, 8, f), 8);
	assert_int_equal(fwrite(json, 1, n, f), n);
}

static void write_numbers(FILE *f, int64_t n)
{
	static uint16_t x[1 << 16];
	static uint64_t state = 88172645463325252u;
	while (n > 0) {
		const size_t some = n < 1 << 16 ? (size_t)n : 1 << 16;
		for (size_t i = 0; i < some; i++) {
			state ^= state << 13;
			state ^= state >> 7;
			state ^= state << 17;
			x[i] = (uint16_t)((state & 0x807f) | (118 + (state >> 20) % 8) << 7);
		}
		assert_int_equal(fwrite(x, 2, some, f), some);
		n -= (int64_t)some;
	}
}

static const char *path_of(const char *name)
{
	static char path[4200];
	snprintf(path, sizeof path, "%s/%s", dir, name);
	return path;
}

enum { MATRICES = 8 };

static void write_base(void)
{
	char json[4096] = "{";
	const int64_t each = rows / MATRICES, bytes = each * COLS * 2;
	for (int i = 0; i < MATRICES; i++)
		sprintf(json + strlen(json),
		        "%s\"m%d_proj.weight\":{\"dtype\":\"BF16\",\"shape\":[%lld,%d],"
		        "\"data_offsets\":[%lld,%lld]}",
		        i ? "," : "", i, (long long)each, COLS, (long long)(i * bytes),
		        (long long)((i + 1) * bytes));
	strcat(json, "}");
	FILE *f = fopen(path_of("base.safetensors"), "wb");
	assert_non_null(f);
	write_header(f, json);
	write_numbers(f, rows * COLS);
	assert_int_equal(fclose(f), 0);
}

static void write_adapter(void)
{
	char json[8192] = "{";
	const int64_t each = rows / MATRICES, a = RANK * COLS * 2, b = each * RANK * 2;
	for (int i = 0; i < MATRICES; i++)
		sprintf(json + strlen(json),
		        "%s\"base_model.model.m%d_proj.lora_A.weight\":{\"dtype\":\"BF16\","
		        "\"shape\":"
		        "[%d,%d],\"data_offsets\":[%lld,%lld]},\"base_model.model.m%d_proj.lora_B."
		        "weight\":{\"dtype\":"
		        "\"BF16\",\"shape\":[%lld,%d],\"data_offsets\":[%lld,%lld]}",
		        i ? "," : "", i, RANK, COLS, (long long)(i * (a + b)),
		        (long long)(i * (a + b) + a), i, (long long)each, RANK,
		        (long long)(i * (a + b) + a), (long long)((i + 1) * (a + b)));
	strcat(json, "}");
	FILE *f = fopen(path_of("adapter_model.safetensors"), "wb");
	assert_non_null(f);
	write_header(f, json);
	write_numbers(f, MATRICES * (a + b) / 2);
	assert_int_equal(fclose(f), 0);
	f = fopen(path_of("adapter_config.json"), "w");
	assert_non_null(f);
	fprintf(f,
	        "{\"peft_type\":\"LORA\",\"r\":%d,\"lora_alpha\":%d,\"target_modules\":[\"m0_"
	        "proj\"]}",
	        RANK, RANK);
	assert_int_equal(fclose(f), 0);
}

/* ---- rates ---- */

static int by_value(const void *x, const void *y)
{
	const double a = *(const double *)x, b = *(const double *)y;
	return (a > b) - (a < b);
}

static void print_rates(const char *what, double *rates)
{
	qsort(rates, (size_t)rounds, sizeof *rates, by_value);
	const double median = rates[rounds / 2];
	pinned_rate = pinned_rate > 0 ? pinned_rate : median;
	printf("# %-36s %8.2f GB/s  %5.2f of a pinned copy   (%.2f to %.2f)\n", what, median,
	       median / pinned_rate, rates[0], rates[rounds - 1]);
}

static double bare_copy(void)
{
	const uint64_t ring = (uint64_t)WS_RING_SLOTS * WS_RING_SLOT,
		       bytes = (uint64_t)rows * COLS * 2;
	void *from;
	const ws_devptr to = on_gpu_new(&gpu, ring);
	ON_GPU(ws_gpu_alloc_pinned(gpu.gpu, ring, &from, &err));
	memset(from, 1, ring);
	const int64_t since = ws_now_ns();
	for (uint64_t done = 0; done < bytes; done += WS_RING_SLOT)
		ON_GPU(ws_gpu_copy_in(gpu.gpu, to + done % ring, (char *)from + done % ring,
		                      WS_RING_SLOT, gpu.stream, &err));
	ON_GPU(ws_stream_wait(gpu.gpu, gpu.stream, WS_FOREVER, NULL, &err));
	const int64_t ns = ws_now_ns() - since;
	ws_gpu_free_pinned(gpu.gpu, from);
	on_gpu_release(&gpu);
	return (double)bytes / (double)(ns > 0 ? ns : 1);
}

static bool takes(void *feed, const struct ws_formula_out *f)
{
	return ws_feed_makes(feed, f);
}

static double feed_once(struct ws_feed *feed, const struct ws_plan *p)
{
	int64_t ns = 0;
	for (size_t b = 0; b < p->n_buckets; b++) {
		struct ws_payload *payloads;
		size_t n;
		ON_GPU(ws_plan_payloads_but(p, b, takes, feed, &payloads, &n, &err));
		struct ws_feed_box *box = ws_feed_box(feed, payloads, n);
		const int64_t since = ws_now_ns();
		while (box->loaded < n)
			ON_GPU(ws_feed_load(feed, box, WS_FOREVER, NULL, &err));
		ON_GPU(ws_stream_wait(gpu.gpu, feed->stream, WS_FOREVER, NULL, &err));
		ns += ws_now_ns() - since;
		ws_feed_drop(box);
		ws_plan_payloads_free(payloads, n);
	}
	return (double)rows * COLS * 2 / (double)(ns > 0 ? ns : 1);
}

/* on_gpu: formulas are followed there; otherwise lib/transform makes what is made. */
static void measure(const char *what, const struct ws_catalog *c, bool on_gpu)
{
	const struct ws_plan_opts opts = { .format = WS_FORMAT_FLATTENED };
	struct ws_plan *p;
	struct ws_feed feed;
	double rates[MOST_ROUNDS];
	ON_GPU(ws_plan_make(c, &opts, &p, &err));
	ON_GPU(ws_feed_open(&feed, gpu.gpu, &err));
	if (on_gpu)
		ON_GPU(ws_feed_make_here(&feed, 0, &err));
	feed_once(&feed, p); /* the box is allocated, the file in the page cache */
	for (int i = 0; i < rounds; i++)
		rates[i] = feed_once(&feed, p);
	print_rates(what, rates);
	ws_feed_close(&feed);
	ws_plan_free(p);
}

static void measure_made(const char *what, const struct ws_catalog *c,
                         const struct ws_transform_opts *o)
{
	char name[80];
	for (int on_gpu = 1; on_gpu >= 0; on_gpu--) {
		struct ws_transform *t;
		ON_GPU(ws_transform_make(c, o, &t, &err));
		snprintf(name, sizeof name, "%s, by the %s", what, on_gpu ? "GPU" : "CPU");
		measure(name, ws_transform_catalog(t), on_gpu);
		ws_transform_free(t);
	}
}

static void all_feeds(void **state)
{
	(void)state;
	const char *adapter = dir, *path = path_of("base.safetensors");
	struct ws_source *s;
	struct ws_catalog *c;
	double rates[MOST_ROUNDS];
	write_base();
	write_adapter();
	for (int i = 0; i < rounds; i++)
		rates[i] = bare_copy();
	print_rates("pinned copy", rates);
	path = path_of("base.safetensors");
	ON_GPU(ws_source_open(&path, 1, &s, &err));
	ON_GPU(ws_catalog_make((const struct ws_source *const *)&s, 1,
	                       &(struct ws_catalog_opts){ 0 }, &c, &err));
	measure("file to GPU", c, false);
	measure_made("fp8", c, &(struct ws_transform_opts){ .quantize = WS_QUANTIZE_FP8 });
	measure_made("fp8, one scale", c,
	             &(struct ws_transform_opts){ .quantize = WS_QUANTIZE_FP8_TENSOR });
	measure_made("merge of rank 16", c,
	             &(struct ws_transform_opts){ .adapters = &adapter, .n_adapters = 1 });
	measure_made("merge of rank 16 and fp8", c, &(struct ws_transform_opts){
		.adapters = &adapter, .n_adapters = 1, .quantize = WS_QUANTIZE_FP8 });
	ws_catalog_free(c);
	ws_source_close(s);
}

static void say_size(void)
{
	const char *told = getenv("WSYNC_BENCH_FEED_MIB");
	const long long mib = told ? atoll(told) : gpu.is_double ? 1 : 1024;
	rounds = gpu.is_double ? 1 : MOST_ROUNDS;
	rows = (mib > 0 ? mib : 1) * (1 << 20) / (COLS * 2);
	printf("# %s, %lld MiB in %s, %ld processors\n", ws_gpu_device(gpu.gpu)->name, mib, dir,
	       sysconf(_SC_NPROCESSORS_ONLN));
}

static bool make_dir(void)
{
	const char *tmp = getenv("TMPDIR");
	snprintf(dir, sizeof dir, "%s/wsync-bench-XXXXXX", tmp && *tmp ? tmp : "/tmp");
	return mkdtemp(dir) != NULL;
}

static void remove_dir(void)
{
	static const char *const names[] = { "base.safetensors", "adapter_model.safetensors",
		                             "adapter_config.json" };
	for (size_t i = 0; i < sizeof names / sizeof *names; i++)
		unlink(path_of(names[i]));
	rmdir(dir);
}

int main(void)
{
	const struct CMUnitTest tests[] = { cmocka_unit_test(all_feeds) };
	if (!on_gpu_open(&gpu))
		return 0;
	if (!make_dir())
		return 1;
	say_size();
	const int rc = cmocka_run_group_tests(tests, NULL, NULL);
	remove_dir();
	on_gpu_close(&gpu);
	return rc;
}
