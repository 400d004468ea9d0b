/* SPDX-License-Identifier: Apache-2.0 */
/* fp8bench.c - bf16 to FP8 against memcpy of the same bytes, one core, in turns:
 * fp8bench [-r xorl|slime] [-l LEVEL] [-n ROUNDS] [-p PANEL] ROWS COLS
 *
 * ROWS x COLS numbers of normal distribution in blocks of 128 x 128, a band at a time, or PANEL
 * columns of it. Prints one line of JSON with medians: seconds of both, the processor's seconds
 * of both, and the ratio of memcpy's time to ours within a round (first by wall clock, then by
 * processor). Memory is touched before the first round, which is dropped. */
#include "fp8.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { BLOCK = 128, ROUNDS_MAX = 101 };

static struct ws_fp8_rule rule = { .bn = BLOCK, .bk = BLOCK };
static int64_t rows, cols, panel;

struct sample {
	double wall, cpu;
};

static double clock_seconds(clockid_t id)
{
	struct timespec t;
	clock_gettime(id, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static struct sample now(void)
{
	return (struct sample){ clock_seconds(CLOCK_MONOTONIC),
		                clock_seconds(CLOCK_THREAD_CPUTIME_ID) };
}

static struct sample since(struct sample t)
{
	const struct sample n = now();
	return (struct sample){ n.wall - t.wall, n.cpu - t.cpu };
}

static void *touched(size_t bytes)
{
	void *p = malloc(bytes);
	if (!p) {
		perror("fp8bench");
		exit(8);
	}
	memset(p, 1, bytes);
	return p;
}

/* A table of normal numbers, drawn from at random. */
static void fill(uint16_t *x, size_t n)
{
	uint16_t normal[4096];
	uint64_t state = 1;
	for (size_t i = 0; i < 4096; i += 2) {
		const double u = ((double)i + 1) / 4098,
			     v = (double)(i * 2654435761u % 4096) / 4096;
		const float two[] = { (float)(0.02 * sqrt(-2 * log(u)) * cos(6.283185307 * v)),
			              (float)(0.02 * sqrt(-2 * log(u)) * sin(6.283185307 * v)) };
		for (size_t k = 0; k < 2; k++)
			memcpy(&normal[i + k], (const char *)&two[k] + 2, 2);
	}
	for (size_t i = 0; i < n; i++) {
		state = state * 6364136223846793005u + 1442695040888963407u;
		x[i] = normal[state >> 52];
	}
}

static void quantize(const uint16_t *x, float *scales, uint8_t *codes)
{
	struct ws_fp8_bad bad;
	for (int64_t row = 0; row < rows; row += BLOCK)
		for (int64_t col = 0; col < cols; col += panel) {
			const int64_t r = rows - row < BLOCK ? rows - row : BLOCK;
			const int64_t c = cols - col < panel ? cols - col : panel;
			const size_t at = (size_t)(row * cols + col);
			float *const s = scales + col / BLOCK;
			if (!ws_fp8_scales_bf16(&rule, x + at, (size_t)cols, r, c, s, &bad))
				abort();
			ws_fp8_codes_bf16(&rule, x + at, (size_t)cols, r, c, s, codes + at,
			                  (size_t)cols);
		}
}

static int by_size(const void *a, const void *b)
{
	const double x = *(const double *)a, y = *(const double *)b;
	return (x > y) - (x < y);
}

static double median(const double *values, int n)
{
	double sorted[ROUNDS_MAX];
	memcpy(sorted, values, (size_t)n * sizeof *values);
	qsort(sorted, (size_t)n, sizeof *sorted, by_size);
	return sorted[n / 2];
}

static void measure(int rounds)
{
	const size_t n = (size_t)(rows * cols);
	uint16_t *const x = touched(2 * n), *const copy = touched(2 * n);
	uint8_t *const codes = touched(n);
	float *const scales = touched((size_t)(cols / BLOCK + 1) * sizeof(float));
	double wall[2][ROUNDS_MAX], cpu[2][ROUNDS_MAX], ratio[2][ROUNDS_MAX];
	fill(x, n);
	for (int i = -1; i < rounds; i++) {
		struct sample t = now();
		memcpy(copy, x, 2 * n);
		/* or a compiler sees that nobody reads it */
		__asm__ volatile("" : : "r"(copy) : "memory");
		const struct sample theirs = since(t);
		t = now();
		quantize(x, scales, codes);
		const struct sample ours = since(t);
		const int at = i < 0 ? 0 : i;
		wall[0][at] = ours.wall;
		wall[1][at] = theirs.wall;
		cpu[0][at] = ours.cpu;
		cpu[1][at] = theirs.cpu;
		ratio[0][at] = theirs.wall / ours.wall;
		ratio[1][at] = theirs.cpu / ours.cpu;
	}
	printf("{\"level\":\"%s\",\"rule\":\"%s\",\"bytes\":%zu,\"seconds\":%.6f,\"memcpy_"
	       "seconds\":%.6f,"
	       "\"cpu_seconds\":%.6f,\"memcpy_cpu_seconds\":%.6f,\"ratio\":%.3f,\"cpu_ratio\":%.3f}"
	       "\n",
	       ws_fp8_level(), rule.rule == WS_SCALE_SLIME ? "slime" : "xorl", 2 * n,
	       median(wall[0], rounds), median(wall[1], rounds), median(cpu[0], rounds),
	       median(cpu[1], rounds), median(ratio[0], rounds), median(ratio[1], rounds));
	free(x);
	free(copy);
	free(codes);
	free(scales);
}

int main(int argc, char **argv)
{
	int rounds = 9;
	for (int opt; (opt = getopt(argc, argv, "r:l:n:p:")) != -1;) {
		if (opt == 'r')
			rule.rule = strcmp(optarg, "slime") == 0 ? WS_SCALE_SLIME : WS_SCALE_XORL;
		else if (opt == 'n')
			rounds = atoi(optarg);
		else if (opt == 'p')
			panel = atoll(optarg);
		else if (opt != 'l' || !ws_fp8_set_level(optarg))
			return 2;
	}
	if (argc - optind != 2 || rounds < 1 || rounds > ROUNDS_MAX)
		return 2;
	rows = atoll(argv[optind]);
	cols = atoll(argv[optind + 1]);
	if (panel <= 0)
		panel = cols;
	if (rows < 1 || cols < 1 || panel % BLOCK != 0)
		return 2;
	measure(rounds);
	return 0;
}
