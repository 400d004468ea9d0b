/* SPDX-License-Identifier: Apache-2.0 */
/* dtype.h - element types, by the names of torch and of safetensors.
 *
 * Sources: the dtype strings that servers resolve as attributes of the torch module, and the Dtype
 * enumeration of the safetensors format. Sub-byte types (F4, F6_*) count bits; a tensor of them
 * must come to whole bytes. */
#ifndef WSYNC_DTYPE_H
#define WSYNC_DTYPE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

enum ws_dtype {
	WS_DTYPE_BOOL,
	WS_DTYPE_U8,
	WS_DTYPE_I8,
	WS_DTYPE_F8_E4M3,
	WS_DTYPE_F8_E5M2,
	WS_DTYPE_F8_E8M0,
	WS_DTYPE_I16,
	WS_DTYPE_U16,
	WS_DTYPE_F16,
	WS_DTYPE_BF16,
	WS_DTYPE_I32,
	WS_DTYPE_U32,
	WS_DTYPE_F32,
	WS_DTYPE_I64,
	WS_DTYPE_U64,
	WS_DTYPE_F64,
	WS_DTYPE_C64,
	WS_DTYPE_F8_E4M3FNUZ,
	WS_DTYPE_F8_E5M2FNUZ,
	WS_DTYPE_F4,
	WS_DTYPE_F6_E2M3,
	WS_DTYPE_F6_E3M2,
	WS_DTYPE_COUNT
};

const char *ws_dtype_torch(enum ws_dtype dtype);       /* "bfloat16"; "" where torch has none */
const char *ws_dtype_safetensors(enum ws_dtype dtype); /* "BF16"; "" where the format has none */
unsigned ws_dtype_bits(enum ws_dtype dtype);           /* bits of one element: 8, 16, ... */
/* Accept the same names as torch (also half, float, long) and safetensors; false: unknown. */
bool ws_dtype_from_torch(const char *name, enum ws_dtype *out);
bool ws_dtype_from_safetensors(const char *name, enum ws_dtype *out);

enum { WS_MAX_DIMS = 8 };

/* Bytes of a dense row-major tensor; false on overflow of 2^62 or when sub-byte elements do not
 * fill whole bytes. A tensor of rank 0 has one element. */
bool ws_dtype_bytes(enum ws_dtype dtype, unsigned n_dims, const int64_t *dims, uint64_t *bytes);

#ifdef __cplusplus
}
#endif
#endif
