/* SPDX-License-Identifier: Apache-2.0 */
#include "wsync/dtype.h"

#include <string.h>

/* float4_e2m1fn_x2 is torch's name for a pair of F4 elements: its shapes count pairs, so it is not
 * the name of F4. torch has no F6. */
static const struct {
	const char *torch, *safetensors;
	unsigned bits;
} types[WS_DTYPE_COUNT] = {
	[WS_DTYPE_BOOL]        = { "bool", "BOOL", 8 },
	[WS_DTYPE_U8]          = { "uint8", "U8", 8 },
	[WS_DTYPE_I8]          = { "int8", "I8", 8 },
	[WS_DTYPE_F8_E4M3]     = { "float8_e4m3fn", "F8_E4M3", 8 },
	[WS_DTYPE_F8_E5M2]     = { "float8_e5m2", "F8_E5M2", 8 },
	[WS_DTYPE_F8_E8M0]     = { "float8_e8m0fnu", "F8_E8M0", 8 },
	[WS_DTYPE_I16]         = { "int16", "I16", 16 },
	[WS_DTYPE_U16]         = { "uint16", "U16", 16 },
	[WS_DTYPE_F16]         = { "float16", "F16", 16 },
	[WS_DTYPE_BF16]        = { "bfloat16", "BF16", 16 },
	[WS_DTYPE_I32]         = { "int32", "I32", 32 },
	[WS_DTYPE_U32]         = { "uint32", "U32", 32 },
	[WS_DTYPE_F32]         = { "float32", "F32", 32 },
	[WS_DTYPE_I64]         = { "int64", "I64", 64 },
	[WS_DTYPE_U64]         = { "uint64", "U64", 64 },
	[WS_DTYPE_F64]         = { "float64", "F64", 64 },
	[WS_DTYPE_C64]         = { "complex64", "C64", 64 },
	[WS_DTYPE_F8_E4M3FNUZ] = { "float8_e4m3fnuz", "F8_E4M3FNUZ", 8 },
	[WS_DTYPE_F8_E5M2FNUZ] = { "float8_e5m2fnuz", "F8_E5M2FNUZ", 8 },
	[WS_DTYPE_F4]          = { "", "F4", 4 },
	[WS_DTYPE_F6_E2M3]     = { "", "F6_E2M3", 6 },
	[WS_DTYPE_F6_E3M2]     = { "", "F6_E3M2", 6 },
};

static const struct {
	const char *name;
	enum ws_dtype dtype;
} aliases[] = {
	{ "half", WS_DTYPE_F16 },  { "float", WS_DTYPE_F32 }, { "double", WS_DTYPE_F64 },
	{ "short", WS_DTYPE_I16 }, { "int", WS_DTYPE_I32 },   { "long", WS_DTYPE_I64 },
	{ "cfloat", WS_DTYPE_C64 },
};

static bool known(enum ws_dtype dtype)
{
	return (unsigned)dtype < WS_DTYPE_COUNT;
}

const char *ws_dtype_torch(enum ws_dtype dtype)
{
	return known(dtype) ? types[dtype].torch : "";
}

const char *ws_dtype_safetensors(enum ws_dtype dtype)
{
	return known(dtype) ? types[dtype].safetensors : "";
}

unsigned ws_dtype_bits(enum ws_dtype dtype)
{
	return known(dtype) ? types[dtype].bits : 0;
}

bool ws_dtype_from_torch(const char *name, enum ws_dtype *out)
{
	for (size_t i = 0; i < sizeof aliases / sizeof aliases[0]; i++) {
		if (strcmp(name, aliases[i].name) == 0) {
			*out = aliases[i].dtype;
			return true;
		}
	}
	for (int i = 0; i < WS_DTYPE_COUNT; i++) {
		if (*name && strcmp(name, types[i].torch) == 0) {
			*out = (enum ws_dtype)i;
			return true;
		}
	}
	return false;
}

bool ws_dtype_from_safetensors(const char *name, enum ws_dtype *out)
{
	for (int i = 0; i < WS_DTYPE_COUNT; i++) {
		if (strcmp(name, types[i].safetensors) == 0) {
			*out = (enum ws_dtype)i;
			return true;
		}
	}
	return false;
}

bool ws_dtype_bytes(enum ws_dtype dtype, unsigned n_dims, const int64_t *dims, uint64_t *bytes)
{
	const uint64_t most_bits = UINT64_C(1) << 62;
	uint64_t bits = ws_dtype_bits(dtype);
	bool empty = false;
	if (bits == 0 || n_dims > WS_MAX_DIMS)
		return false;
	/* A zero anywhere makes the tensor empty, however large the other dimensions are. */
	for (unsigned i = 0; i < n_dims; i++) {
		if (dims[i] < 0)
			return false;
		empty |= dims[i] == 0;
	}
	for (unsigned i = 0; i < n_dims && !empty; i++) {
		if ((uint64_t)dims[i] > most_bits / bits)
			return false;
		bits *= (uint64_t)dims[i];
	}
	if (!empty && bits % 8)
		return false;
	*bytes = empty ? 0 : bits / 8;
	return true;
}
