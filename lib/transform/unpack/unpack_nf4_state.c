/* SPDX-License-Identifier: Apache-2.0 */
/* unpack_nf4_state.c - bitsandbytes' quant_state: JSON that a tensor holds.
 *
 *   {"quant_type": "nf4", "blocksize": 64, "dtype": "bfloat16", "shape": [4096, 4096],
 *    "nested_blocksize": 256, "nested_dtype": "float32", "nested_offset": 0.0447}
 *
 * The last three are for double quantization. nested_offset is an fp32 printed as a double. */
#include "unpack_core.h"

#include "wsync/tool/str.h"
#include "wsync/tool/json_read.h"

#include <inttypes.h>
#include <math.h>
#include <string.h>

static int wrong(const char *what, const char *key, const char *should, struct ws_err *err)
{
	return ws_err_set(err, WS_EINPUT, "%s: %s is not %s", what, key, should);
}

static int parse_words(const struct ws_json *root, const char *what, struct ws_packed *p,
                       struct ws_err *err)
{
	const char *type = ws_json_get_string(root, "quant_type", "nf4");
	const char *dtype = ws_json_get_string(root, "dtype", "");
	char shown[64];
	if (strcmp(type, "nf4") != 0)
		return ws_err_set(err, WS_EINPUT, "%s: quant_type is '%s'", what,
		                  ws_printable(shown, sizeof shown, type, strlen(type)));
	if (!ws_dtype_from_torch(dtype, &p->dtype) ||
	    (p->dtype != WS_DTYPE_BF16 && p->dtype != WS_DTYPE_F16 && p->dtype != WS_DTYPE_F32))
		return ws_err_set(err, WS_EINPUT,
		                  "%s: dtype is '%s', not bfloat16, float16 or float32", what,
		                  ws_printable(shown, sizeof shown, dtype, strlen(dtype)));
	return 0;
}

static int parse_shape(const struct ws_json *root, const char *what, struct ws_packed *p,
                       struct ws_err *err)
{
	const struct ws_json *shape = ws_json_get(root, "shape");
	int64_t dims[WS_MAX_DIMS] = { 0 };
	const size_t n = ws_json_count(shape);
	unsigned d = 0;
	uint64_t bytes;
	if (ws_json_type(shape) != WS_JSON_ARRAY || n == 0 || n > WS_MAX_DIMS)
		return wrong(what, "shape", "a list of one to eight sizes", err);
	for (const struct ws_json *x = ws_json_first(shape); x; x = ws_json_next(x), d++)
		if (!ws_json_int(x, &dims[d]) || dims[d] <= 0)
			return wrong(what, "shape", "a list of sizes above 0", err);
	if (!ws_dtype_bytes(WS_DTYPE_F32, d, dims, &bytes))
		return wrong(what, "shape", "of a tensor that memory could hold", err);
	ws_unpack_shape(p, d, dims);
	return 0;
}

/* bitsandbytes accepts powers of two from 32 to 4096. */
static int parse_blocksize(const struct ws_json *root, const char *what, struct ws_nf4 *nf4,
                           const struct ws_packed *p, struct ws_err *err)
{
	int64_t b;
	if (!ws_json_int(ws_json_get(root, "blocksize"), &b) || b < 32 || b > 4096 ||
	    (b & (b - 1)) != 0)
		return wrong(what, "blocksize", "a power of two from 32 to 4096", err);
	const int64_t n = p->rows * p->cols;
	nf4->blocksize = b;
	nf4->n_blocks = n / b + (n % b != 0);
	return 0;
}

static int parse_nested(const struct ws_json *root, const char *what, struct ws_nf4 *nf4,
                        struct ws_err *err)
{
	const struct ws_json *size = ws_json_get(root, "nested_blocksize");
	const struct ws_json *offset = ws_json_get(root, "nested_offset");
	double x = 0;
	if (!size && !offset)
		return 0;
	if (!ws_json_int(size, &nf4->nested_blocksize) || nf4->nested_blocksize <= 0)
		return wrong(what, "nested_blocksize", "a number above 0", err);
	if (!ws_json_double(offset, &x) || !isfinite((float)x))
		return wrong(what, "nested_offset", "a finite number", err);
	if (strcmp(ws_json_get_string(root, "nested_dtype", "float32"), "float32") != 0)
		return wrong(what, "nested_dtype", "float32", err);
	nf4->nested_offset = (float)x;
	return 0;
}

int ws_nf4_parse(const char *json, size_t len, const char *what, struct ws_nf4 *nf4,
                 struct ws_packed *p, struct ws_err *err)
{
	struct ws_json *root = ws_json_parse(json, len, what, err);
	int rc = -1;
	if (!root)
		return -1;
	if (ws_json_type(root) != WS_JSON_OBJECT)
		wrong(what, "it", "an object", err);
	else if (ws_json_duplicate(root))
		ws_err_set(err, WS_EINPUT, "%s: a key is there twice", what);
	else if (parse_words(root, what, p, err) == 0 && parse_shape(root, what, p, err) == 0 &&
	         parse_blocksize(root, what, nf4, p, err) == 0)
		rc = parse_nested(root, what, nf4, err);
	ws_json_free(root);
	return rc;
}
