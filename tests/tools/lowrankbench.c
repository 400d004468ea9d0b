/* SPDX-License-Identifier: Apache-2.0 */
/* lowrankbench - B @ A of small ranks: our kernels against OpenBLAS, if it is there, on one core.
 *
 * lowrankbench [SIDE [SECONDS]]: SIDE x SIDE matrices (4096), at least SECONDS (0.5) for each
 * figure. Ours goes band by band of 64 rows into a tile that stays in the cache, as a merge
 * does, and once into a whole matrix as sgemm does. Runs of ours and theirs alternate; the
 * median of each is printed. */
#include "lowrank.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>

typedef void sgemm_fn(int order, int ta, int tb, int m, int n, int k, float alpha, const float *a,
                      int lda, const float *b, int ldb, float beta, float *c, int ldc);

enum { BAND = 64, COLS = 512, MAX_RUNS = 200, ROW_MAJOR = 101, PLAIN = 111 };

static double now(void)
{
	struct timespec t;
	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int by_value(const void *x, const void *y)
{
	const double a = *(const double *)x, b = *(const double *)y;
	return a < b ? -1 : a > b;
}

static double run_tiles(const struct ws_lowrank *l, float *tile)
{
	const double began = now();
	for (int64_t i = 0; i < l->cols; i += BAND)
		for (int64_t j = 0; j < l->cols; j += COLS)
			ws_lowrank_tile(l, i, BAND, j, COLS, tile, COLS);
	return now() - began;
}

static double run_whole(const struct ws_lowrank *l, float *c)
{
	const double began = now();
	for (int64_t i = 0; i < l->cols; i += BAND)
		ws_lowrank_tile(l, i, BAND, 0, l->cols, c + i * l->cols, (size_t)l->cols);
	return now() - began;
}

static double run_blas(sgemm_fn *sgemm, const struct ws_lowrank *l, float *c)
{
	const int n = (int)l->cols, k = (int)l->rank;
	const double began = now();
	sgemm(ROW_MAJOR, PLAIN, PLAIN, n, n, k, l->scale, l->b, k, l->a, n, 0, c, n);
	return now() - began;
}

static void compare(const struct ws_lowrank *l, sgemm_fn *sgemm, float *c, double seconds)
{
	static double times[3][MAX_RUNS];
	int runs = 0;
	const double began = now();
	while (runs < MAX_RUNS && (runs < 5 || now() - began < seconds)) {
		times[0][runs] = run_tiles(l, c);
		times[1][runs] = run_whole(l, c);
		times[2][runs] = sgemm ? run_blas(sgemm, l, c) : 0;
		runs++;
	}
	for (int i = 0; i < 3; i++)
		qsort(times[i], (size_t)runs, sizeof **times, by_value);
	const double flops = 2.0 * (double)l->cols * (double)l->cols * (double)l->rank / 1e9;
	printf("%4d", (int)l->rank);
	for (int i = 0; i < (sgemm ? 3 : 2); i++)
		printf("  %7.2f ms %6.1f", times[i][runs / 2] * 1e3, flops / times[i][runs / 2]);
	if (sgemm)
		printf("  %5.2f %5.2f", times[2][runs / 2] / times[0][runs / 2],
		       times[2][runs / 2] / times[1][runs / 2]);
	printf("\n");
}

int main(int argc, char **argv)
{
	const int64_t side = argc > 1 ? atoll(argv[1]) / BAND * BAND : 4096;
	const double seconds = argc > 2 ? atof(argv[2]) : 0.5;
	const size_t all = (size_t)(side * side);
	float *c = calloc(all, sizeof *c), *a = malloc((size_t)side * 1024),
	      *b = malloc((size_t)side * 1024);
	if (side < COLS || side % COLS || !a || !b || !c)
		return 1;
	void *blas = dlopen("libopenblas.so.0", RTLD_NOW);
	sgemm_fn *sgemm = NULL;
	void (*set_threads)(int) = NULL;
	if (blas) {
		*(void **)&sgemm = dlsym(blas, "cblas_sgemm");
		*(void **)&set_threads = dlsym(blas, "openblas_set_num_threads");
	}
	if (set_threads)
		set_threads(1);
	for (int64_t i = 0; i < side * 256; i++)
		a[i] = b[i] = (float)(i * 2654435761 % 2001 - 1000) / 1000;
	printf("%s; GFLOP/s%s\nrank            tiles            whole%s\n", ws_lowrank_level(),
	       sgemm ? "" : "; no libopenblas.so.0 here",
	       sgemm ? "         OpenBLAS  OpenBLAS/ours" : "");
	for (int64_t rank = 8; rank <= 256; rank *= 2)
		compare(&(struct ws_lowrank){ a, b, rank, side, 0.5f }, sgemm, c, seconds);
	free(a);
	free(b);
	free(c);
	return 0;
}
