/* SPDX-License-Identifier: Apache-2.0 */
/* unpack SOURCE DIR [LEVEL] - writes the numbers of every weight to DIR/N.f32, and rounded to the
 * weight's type to DIR/N.rounded; prints a line of JSON for each. */
#include "floats.h"
#include "simd.h"
#include "unpack.h"

#include "wsync/tool/json.h"

#include <stdio.h>
#include <stdlib.h>

struct job {
	struct ws_source *source;
	struct ws_catalog *catalog;
	struct ws_packed *weights;
	size_t n;
	struct ws_buf scratch;
};

static int find_all(struct job *j, struct ws_err *err)
{
	const size_t n = ws_catalog_count(j->catalog);
	j->weights = calloc(n + 1, sizeof *j->weights);
	if (!j->weights)
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	for (size_t i = 0; i < n; i++) {
		struct ws_packed *p = &j->weights[j->n];
		if (ws_packed_find(j->catalog, ws_catalog_item(j->catalog, i), NULL, p, err))
			return -1;
		if (p->weight)
			j->n++;
	}
	return 0;
}

static int open_job(struct job *j, const char *path, struct ws_err *err)
{
	const struct ws_catalog_opts opts = { .family = NULL };
	if (ws_source_open(&path, 1, &j->source, err))
		return -1;
	const struct ws_source *const source = j->source;
	return ws_catalog_make(&source, 1, &opts, &j->catalog, err) || find_all(j, err) ? -1 : 0;
}

static void close_job(struct job *j)
{
	for (size_t i = 0; i < j->n; i++)
		ws_packed_free(&j->weights[i]);
	free(j->weights);
	ws_catalog_free(j->catalog);
	ws_source_close(j->source);
	ws_buf_free(&j->scratch);
}

static int write_floats(const char *dir, size_t i, const char *ending, const float *x, size_t n,
                        struct ws_err *err)
{
	char path[4096];
	snprintf(path, sizeof path, "%s/%zu.%s", dir, i, ending);
	FILE *f = fopen(path, "wb");
	if (!f)
		return ws_err_errno(err, "open %s", path);
	const bool whole = fwrite(x, sizeof *x, n, f) == n;
	return fclose(f) == 0 && whole ? 0 : ws_err_errno(err, "write %s", path);
}

static int describe(const struct ws_packed *p, struct ws_err *err)
{
	struct ws_buf b;
	struct ws_jw w;
	ws_buf_init(&b, 1 << 16);
	ws_jw_init(&w, &b);
	ws_jw_object(&w, NULL);
	ws_jw_str(&w, "name", p->weight->name);
	ws_jw_str(&w, "packing", ws_packing_name(p->packing));
	ws_jw_str(&w, "dtype", ws_dtype_torch(p->dtype));
	ws_jw_array(&w, "shape");
	for (unsigned d = 0; d < p->n_dims; d++)
		ws_jw_int(&w, NULL, p->dims[d]);
	ws_jw_end_array(&w);
	ws_jw_end_object(&w);
	const int rc = ws_buf_check(&b, "a line", err);
	if (rc == 0)
		puts(ws_buf_str(&b));
	ws_buf_free(&b);
	return rc;
}

/* Reads rows in uneven steps, so that reads begin at different rows. */
static int dump(struct job *j, size_t i, const char *dir, struct ws_err *err)
{
	const struct ws_packed *p = &j->weights[i];
	const size_t n = (size_t)(p->rows * p->cols);
	float *x = malloc(n * sizeof *x + 1);
	int rc = x ? describe(p, err) : ws_err_set(err, WS_ESYSTEM, "out of memory");
	int64_t step = 1;
	for (int64_t row = 0; row < p->rows && rc == 0; row += step, step = step * 2 + 1) {
		if (step > p->rows - row)
			step = p->rows - row;
		rc = ws_packed_rows(p, row, step, x + row * p->cols, &j->scratch, err);
	}
	if (rc == 0)
		rc = write_floats(dir, i, "f32", x, n, err);
	void *sent = malloc(n * sizeof *x + 1);
	if (rc == 0 && !sent)
		rc = ws_oom(err);
	if (rc == 0) {
		ws_floats_write(p->dtype, x, n, sent);
		ws_floats_read(p->dtype, sent, n, x);
		rc = write_floats(dir, i, "rounded", x, n, err);
	}
	free(sent);
	free(x);
	return rc;
}

static int dump_all(struct job *j, const char *dir, struct ws_err *err)
{
	for (size_t i = 0; i < j->n; i++)
		if (dump(j, i, dir, err))
			return -1;
	return 0;
}

int main(int argc, char **argv)
{
	struct job j = { .n = 0 };
	struct ws_err err = WS_ERR_INIT;
	if (argc < 3 || argc > 4) {
		fprintf(stderr, "usage: unpack SOURCE DIR [LEVEL]\n");
		return WS_EUSAGE;
	}
	if (argc > 3 && !ws_simd_set_level(argv[3])) {
		fprintf(stderr, "unpack: this machine has no %s\n", argv[3]);
		return 77;
	}
	int rc = open_job(&j, argv[1], &err);
	if (rc == 0)
		rc = dump_all(&j, argv[2], &err);
	close_job(&j);
	if (rc == 0)
		return 0;
	fprintf(stderr, "unpack: %s\n", err.msg);
	return (int)err.code;
}
