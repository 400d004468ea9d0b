/* SPDX-License-Identifier: Apache-2.0 */
/* unpack_core.h - shared by the packings: finding parts, reading numbers, decoding nibbles. */
#ifndef WS_TRANSFORM_UNPACK_CORE_H
#define WS_TRANSFORM_UNPACK_CORE_H

#include "unpack.h"

/* ---- parts ---- */

/* The item of that name and suffix; NULL: there is none. */
const struct ws_item *ws_unpack_part(const struct ws_catalog *c, const char *name,
                                     const char *suffix);
/* The same for the name with its last `cut` bytes left out. */
const struct ws_item *ws_unpack_beside(const struct ws_catalog *c, const char *name, size_t cut,
                                       const char *suffix);
/* The codes that an item, such as scales, belongs to by its name; NULL: none. */
const struct ws_item *ws_unpack_codes(const struct ws_catalog *c, const struct ws_item *item);
bool ws_unpack_ends(const char *name, const char *suffix);
/* "bfloat16 [6, 128]" */
const char *ws_unpack_describe(const struct ws_item *item, char *dst, size_t n);
uint64_t ws_unpack_count(const struct ws_item *item); /* elements */
/* Sets n_dims, dims, rows and cols of p. */
void ws_unpack_shape(struct ws_packed *p, unsigned n_dims, const int64_t *dims);

/* WS_EINPUT: the packing is known and cannot be unpacked. */
int ws_unpack_refuse(const struct ws_catalog *c, const struct ws_item *item, struct ws_err *err);

/* p->weight is set. These fill the rest. */
int ws_unpack_find_fp8(const struct ws_catalog *c, const struct ws_quant *config,
                       struct ws_packed *p, struct ws_err *err);
int ws_unpack_find_nvfp4(const struct ws_catalog *c, struct ws_packed *p, struct ws_err *err);
int ws_unpack_find_nf4(const struct ws_catalog *c, struct ws_packed *p, struct ws_err *err);

/* ---- nf4's state ---- */

struct ws_nf4 {
	float levels[16];
	int64_t blocksize;
	int64_t n_blocks;
	int64_t nested_blocksize; /* 0: absmax is F32 */
	float nested_offset;
	float nested_map[256];
};

/* Parses the JSON: fills *nf4 but its tables, and dims and dtype of p. what: for messages. */
int ws_nf4_parse(const char *json, size_t len, const char *what, struct ws_nf4 *nf4,
                 struct ws_packed *p, struct ws_err *err);

/* absmax of blocks [first, first+n) as fp32. Does not check them. */
int ws_nf4_scales(const struct ws_packed *p, int64_t first, size_t n, float *out,
                  struct ws_err *err);

/* ---- fp8's scales ---- */

/* One matrix: rows of numbers; rows (down) and columns (across) of blocks. */
struct ws_fp8_grid {
	int64_t rows, down, across;
	bool shared; /* one scale for all matrices */
};
struct ws_fp8_grid ws_fp8_grid_of(const struct ws_packed *p);
/* Scales of rows of blocks [first, first+n) of a matrix. */
int ws_fp8_grid_scales(const struct ws_packed *p, const struct ws_fp8_grid *g, int64_t matrix,
                       int64_t first, int64_t n, float *out, struct ws_err *err);

/* ---- rows ---- */

int ws_unpack_rows_fp8(const struct ws_packed *p, int64_t row, int64_t n, float *out,
                       struct ws_buf *scratch, struct ws_err *err);
int ws_unpack_rows_nvfp4(const struct ws_packed *p, int64_t row, int64_t n, float *out,
                         struct ws_buf *scratch, struct ws_err *err);
int ws_unpack_rows_nf4(const struct ws_packed *p, int64_t row, int64_t n, float *out,
                       struct ws_buf *scratch, struct ws_err *err);

/* bytes of codes that are read at once, unless a row has more */
enum { WS_UNPACK_CHUNK = 256 << 10 };

/* n bytes of scratch; NULL: out of memory. The old contents may be lost. */
void *ws_unpack_scratch(struct ws_buf *scratch, uint64_t n, struct ws_err *err);
/* Reads elements [first, first+n) of an item of F32, BF16, F16, F8_E4M3 or F8_E8M0 as fp32. The
 * upper end of out is the read buffer. */
int ws_unpack_floats(const struct ws_item *item, uint64_t first, size_t n, float *out,
                     struct ws_err *err);
bool ws_unpack_is_float(enum ws_dtype dtype); /* the types of ws_unpack_floats */
/* WS_EINPUT if one of n numbers is not finite, with its position [row + i / cols, i % cols]. */
int ws_unpack_check(const struct ws_item *item, const char *what, const float *x, size_t n,
                    int64_t row, int64_t cols, struct ws_err *err);

/* ---- kernels: unpack_codes.c and, with AVX2, unpack_codes_avx2.c give the same bits ---- */

struct ws_nibbles {
	const uint8_t *codes;  /* element 0 lies in codes[0] and is the first of its block */
	bool high_first;
	const float *levels;   /* 16 */
	const float *scales;
	int64_t block;         /* elements under one scale; a multiple of 16 */
};

struct ws_unpack_kernels {
	/* out[i] = levels[code] * scale of element first + i */
	void (*nibbles)(const struct ws_nibbles *s, int64_t first, int64_t n, float *out);
	/* For the next three, codes or src may be the upper end of the memory of out. */
	/* E4M3: out[i] = codes[i] * scales[i / block] */
	void (*e4m3)(const uint8_t *codes, int64_t n, int64_t block, const float *scales,
	             float *out);
	void (*widen_bf16)(const uint8_t *src, size_t n, float *out);
	void (*widen_f16)(const uint8_t *src, size_t n, float *out);
	bool (*finite)(const float *x, size_t n);
};

extern const struct ws_unpack_kernels ws_unpack_scalar;
extern const struct ws_unpack_kernels ws_unpack_avx2; /* x86-64 only */
const struct ws_unpack_kernels *ws_unpack_kernels(void);

#endif
