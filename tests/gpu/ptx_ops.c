/* SPDX-License-Identifier: Apache-2.0 */
/* ptx_ops.c - what each PTX instruction computes, for all lanes at once,
 * whether they take part or not.
 *
 * fp32 is what C computes, rounded to nearest and with subnormals, but that a NaN which comes
 * out of arithmetic is the one NaN of the GPU. Instructions that a compiler of PTX may contract
 * (add.f32 without .rn) are missing on purpose: bit for bit cannot rest on what it chooses. */
#include "ptx.h"

#include <math.h>
#include <string.h>

enum { NAN_OF_GPU = 0x7fffffff };

static uint32_t bits_of(float x)
{
	uint32_t bits;
	memcpy(&bits, &x, sizeof bits);
	return bits;
}

static uint32_t result(float x)
{
	return x == x ? bits_of(x) : (uint32_t)NAN_OF_GPU;
}

/* ---- what is more than an expression ---- */

static int32_t s4(uint32_t x)
{
	return (int32_t)x;
}

static int64_t s8(uint64_t x)
{
	return (int64_t)x;
}

static int16_t s2(uint32_t x)
{
	return (int16_t)x;
}

/* By zero: all bits. The quotient that does not fit wraps. */
static uint64_t divide_signed(uint64_t x, uint64_t y)
{
	return y == 0 ? UINT64_MAX : y == UINT64_MAX ? 0 - x : (uint64_t)(s8(x) / s8(y));
}

static uint64_t remainder_signed(uint64_t x, uint64_t y)
{
	return y == 0 ? x : y == UINT64_MAX ? 0 : (uint64_t)(s8(x) % s8(y));
}

static uint64_t wide(uint32_t x)
{
	return (uint64_t)(int64_t)s4(x);
}

static uint64_t shift_right_signed(uint64_t x, uint32_t n)
{
	return (uint64_t)(s8(x) >> (n > 63 ? 63 : n));
}

static uint64_t high_product(uint64_t x, uint64_t y)
{
	__extension__ typedef unsigned __int128 u128;
	return (uint64_t)((u128)x * y >> 64);
}

static uint32_t permute(uint32_t x, uint32_t y, uint32_t selector)
{
	const uint64_t both = (uint64_t)y << 32 | x;
	uint32_t out = 0;
	for (uint32_t i = 0; i < 4; i++) {
		const uint32_t nibble = selector >> 4 * i & 15;
		uint32_t byte = (uint32_t)(both >> (nibble & 7) * 8) & 0xff;
		if (nibble & 8) /* its sign, eight times */
			byte = byte & 0x80 ? 0xff : 0;
		out |= byte << 8 * i;
	}
	return out;
}

static uint32_t look_up(uint32_t x, uint32_t y, uint32_t z, uint32_t table)
{
	uint32_t out = 0;
	for (uint32_t i = 0; i < 8; i++)
		if (table >> i & 1)
			out |= (i & 4 ? x : ~x) & (i & 2 ? y : ~y) & (i & 1 ? z : ~z);
	return out;
}

static uint32_t funnel(uint32_t low, uint32_t high, uint32_t left)
{
	return (uint32_t)(((uint64_t)high << 32 | low) << left >> 32);
}

static uint32_t extract(uint32_t x, uint32_t at, uint32_t n)
{
	at &= 0xff, n &= 0xff;
	return at > 31 ? 0 : x >> at & (n > 31 ? UINT32_MAX : (1u << n) - 1);
}

static uint32_t insert(uint32_t x, uint32_t into, uint32_t at, uint32_t n)
{
	at &= 0xff, n &= 0xff;
	const uint32_t mask = at > 31 ? 0 : (n > 31 ? UINT32_MAX : (1u << n) - 1) << at;
	return at > 31 ? into : (into & ~mask) | (x << at & mask);
}

/* A number beats a NaN, and +0 is more than -0. */
static uint32_t larger(float x, float y)
{
	if (x != x || y != y)
		return result(x == x ? x : y);
	return x == y ? bits_of(x) & bits_of(y) : bits_of(x > y ? x : y);
}

static uint32_t smaller(float x, float y)
{
	if (x != x || y != y)
		return result(x == x ? x : y);
	return x == y ? bits_of(x) | bits_of(y) : bits_of(x < y ? x : y);
}

/* Rounded to even by the processor; what is too large, and infinity, becomes 448. */
static uint32_t e4m3(float x)
{
	const uint32_t sign = bits_of(x) >> 24 & 0x80;
	const double m = fabs((double)x);
	int exponent;
	if (x != x)
		return 0x7f;
	if (m >= 448)
		return sign | 0x7e;
	if (m < 0x1p-6)
		return sign | (uint32_t)nearbyint(m * 0x1p9);
	const double fraction = frexp(m, &exponent) * 16; /* 8 up to 16 */
	return sign | (uint32_t)((exponent + 6) * 8 + (int)nearbyint(fraction) - 8);
}

static uint32_t e4m3_pair(float x, float y)
{
	return e4m3(x) << 8 | e4m3(y);
}

/* ---- each instruction ---- */

#define A4 in[0]->u4[i]
#define B4 in[1]->u4[i]
#define C4 in[2]->u4[i]
#define D4 in[3]->u4[i]
#define A8 in[0]->u8[i]
#define B8 in[1]->u8[i]
#define C8 in[2]->u8[i]
#define AF in[0]->f4[i]
#define BF in[1]->f4[i]
#define CF in[2]->f4[i]

#define INTEGER(K, op, e4, e8) \
	K(op##_s32, #op ".s32", "444", u4, e4) K(op##_u32, #op ".u32", "444", u4, e4) \
	K(op##_s64, #op ".s64", "888", u8, e8) K(op##_u64, #op ".u64", "888", u8, e8)
#define BITWISE(K, op, sign) \
	K(op##_b16, #op ".b16", "222", u4, A4 sign B4) \
	K(op##_b32, #op ".b32", "444", u4, A4 sign B4) \
	K(op##_b64, #op ".b64", "888", u8, A8 sign B8) \
	K(op##_pred, #op ".pred", "ppp", u4, A4 sign B4)
#define COMPARE(K, op, sign) \
	K(setp_##op##_s16, "setp." #op ".s16", "p22", u4, s2(A4) sign s2(B4)) \
	K(setp_##op##_u16, "setp." #op ".u16", "p22", u4, A4 sign B4) \
	K(setp_##op##_s32, "setp." #op ".s32", "p44", u4, s4(A4) sign s4(B4)) \
	K(setp_##op##_u32, "setp." #op ".u32", "p44", u4, A4 sign B4) \
	K(setp_##op##_s64, "setp." #op ".s64", "p88", u4, s8(A8) sign s8(B8)) \
	K(setp_##op##_u64, "setp." #op ".u64", "p88", u4, A8 sign B8) \
	K(setp_##op##_f32, "setp." #op ".f32", "p44", u4, AF sign BF)
#define EQUAL(K, op, sign) \
	COMPARE(K, op, sign) \
	K(setp_##op##_b16, "setp." #op ".b16", "p22", u4, A4 sign B4) \
	K(setp_##op##_b32, "setp." #op ".b32", "p44", u4, A4 sign B4) \
	K(setp_##op##_b64, "setp." #op ".b64", "p88", u4, A8 sign B8)
#define MOVE(K, type, classes, member, from) \
	K(mov_##type, "mov." #type, classes, member, from)
#define CHOOSE(K, type, classes, member, x, y) \
	K(selp_##type, "selp." #type, classes, member, C4 ? x : y)

#define OPS(K) \
	INTEGER(K, add, A4 + B4, A8 + B8) INTEGER(K, sub, A4 - B4, A8 - B8) \
	K(mul_lo_s32, "mul.lo.s32", "444", u4, A4 *B4) \
	K(mul_lo_u32, "mul.lo.u32", "444", u4, A4 *B4) \
	K(mul_lo_s64, "mul.lo.s64", "888", u8, A8 *B8) \
	K(mul_lo_u64, "mul.lo.u64", "888", u8, A8 *B8) \
	K(mul_hi_u32, "mul.hi.u32", "444", u4, (uint32_t)((uint64_t)A4 * B4 >> 32)) \
	K(mul_hi_u64, "mul.hi.u64", "888", u8, high_product(A8, B8)) \
	K(mul_wide_u32, "mul.wide.u32", "844", u8, (uint64_t)A4 *B4) \
	K(mul_wide_s32, "mul.wide.s32", "844", u8, wide(A4) * wide(B4)) \
	K(mul_wide_u16, "mul.wide.u16", "422", u4, A4 *B4) \
	K(mad_lo_s32, "mad.lo.s32", "4444", u4, A4 *B4 + C4) \
	K(mad_lo_u32, "mad.lo.u32", "4444", u4, A4 *B4 + C4) \
	K(mad_lo_s64, "mad.lo.s64", "8888", u8, A8 *B8 + C8) \
	K(mad_lo_u64, "mad.lo.u64", "8888", u8, A8 *B8 + C8) \
	K(mad_wide_u32, "mad.wide.u32", "8448", u8, (uint64_t)A4 *B4 + C8) \
	K(mad_wide_s32, "mad.wide.s32", "8448", u8, wide(A4) * wide(B4) + C8) \
	K(div_u32, "div.u32", "444", u4, B4 ? A4 / B4 : UINT32_MAX) \
	K(div_u64, "div.u64", "888", u8, B8 ? A8 / B8 : UINT64_MAX) \
	K(div_s32, "div.s32", "444", u4, (uint32_t)divide_signed(wide(A4), wide(B4))) \
	K(div_s64, "div.s64", "888", u8, divide_signed(A8, B8)) \
	K(rem_u32, "rem.u32", "444", u4, B4 ? A4 % B4 : A4) \
	K(rem_u64, "rem.u64", "888", u8, B8 ? A8 % B8 : A8) \
	K(rem_s32, "rem.s32", "444", u4, (uint32_t)remainder_signed(wide(A4), wide(B4))) \
	K(rem_s64, "rem.s64", "888", u8, remainder_signed(A8, B8)) \
	K(min_u32, "min.u32", "444", u4, A4 < B4 ? A4 : B4) \
	K(max_u32, "max.u32", "444", u4, A4 > B4 ? A4 : B4) \
	K(min_u64, "min.u64", "888", u8, A8 < B8 ? A8 : B8) \
	K(max_u64, "max.u64", "888", u8, A8 > B8 ? A8 : B8) \
	K(min_s32, "min.s32", "444", u4, s4(A4) < s4(B4) ? A4 : B4) \
	K(max_s32, "max.s32", "444", u4, s4(A4) > s4(B4) ? A4 : B4) \
	K(min_s64, "min.s64", "888", u8, s8(A8) < s8(B8) ? A8 : B8) \
	K(max_s64, "max.s64", "888", u8, s8(A8) > s8(B8) ? A8 : B8) \
	K(neg_s32, "neg.s32", "44", u4, 0 - A4) K(neg_s64, "neg.s64", "88", u8, 0 - A8) \
	BITWISE(K, and, &) BITWISE(K, or, |) BITWISE(K, xor, ^) \
	K(not_b16, "not.b16", "22", u4, ~A4 & 0xffff) K(not_b32, "not.b32", "44", u4, ~A4) \
	K(not_b64, "not.b64", "88", u8, ~A8) K(not_pred, "not.pred", "pp", u4, !A4) \
	K(shl_b32, "shl.b32", "444", u4, B4 > 31 ? 0 : A4 << (B4 & 31)) \
	K(shl_b64, "shl.b64", "884", u8, B4 > 63 ? 0 : A8 << (B4 & 63)) \
	K(shr_u32, "shr.u32", "444", u4, B4 > 31 ? 0 : A4 >> (B4 & 31)) \
	K(shr_b32, "shr.b32", "444", u4, B4 > 31 ? 0 : A4 >> (B4 & 31)) \
	K(shr_u64, "shr.u64", "884", u8, B4 > 63 ? 0 : A8 >> (B4 & 63)) \
	K(shr_b64, "shr.b64", "884", u8, B4 > 63 ? 0 : A8 >> (B4 & 63)) \
	K(shr_s32, "shr.s32", "444", u4, (uint32_t)shift_right_signed(wide(A4), B4)) \
	K(shr_s64, "shr.s64", "884", u8, shift_right_signed(A8, B4)) \
	K(shf_l_wrap, "shf.l.wrap.b32", "4444", u4, funnel(A4, B4, C4 & 31)) \
	K(shf_l_clamp, "shf.l.clamp.b32", "4444", u4, funnel(A4, B4, C4 > 32 ? 32 : C4)) \
	K(shf_r_wrap, "shf.r.wrap.b32", "4444", u4, funnel(A4, B4, 32 - (C4 & 31))) \
	K(shf_r_clamp, "shf.r.clamp.b32", "4444", u4, funnel(A4, B4, 32 - (C4 > 32 ? 32 : C4))) \
	K(bfe_u32, "bfe.u32", "4444", u4, extract(A4, B4, C4)) \
	K(bfi_b32, "bfi.b32", "44444", u4, insert(A4, B4, C4, D4)) \
	K(lop3, "lop3.b32", "44444", u4, look_up(A4, B4, C4, D4)) \
	K(prmt, "prmt.b32", "4444", u4, permute(A4, B4, C4)) \
	EQUAL(K, eq, ==) \
	EQUAL(K, ne, !=) COMPARE(K, lt, <) COMPARE(K, le, <=) COMPARE(K, gt, >) COMPARE(K, ge, >=) \
	MOVE(K, pred, "pp", u4, A4) MOVE(K, b16, "22", u4, A4) MOVE(K, u16, "22", u4, A4) \
	MOVE(K, s16, "22", u4, A4) MOVE(K, b32, "44", u4, A4) MOVE(K, u32, "44", u4, A4) \
	MOVE(K, s32, "44", u4, A4) MOVE(K, f32, "44", u4, A4) MOVE(K, b64, "88", u8, A8) \
	MOVE(K, u64, "88", u8, A8) MOVE(K, s64, "88", u8, A8) \
	K(pack_16, "mov.b32", "422", u4, A4 | B4 << 16) \
	K(pack_32, "mov.b64", "844", u8, A4 | (uint64_t)B4 << 32) \
	CHOOSE(K, b16, "222p", u4, A4, B4) \
	CHOOSE(K, u16, "222p", u4, A4, B4) CHOOSE(K, b32, "444p", u4, A4, B4) \
	CHOOSE(K, u32, "444p", u4, A4, B4) \
	CHOOSE(K, s32, "444p", u4, A4, B4) CHOOSE(K, f32, "444p", u4, A4, B4) \
	CHOOSE(K, b64, "888p", u8, A8, B8) \
	CHOOSE(K, u64, "888p", u8, A8, B8) CHOOSE(K, s64, "888p", u8, A8, B8) \
	K(cvta_to_global, "cvta.to.global.u64", "88", u8, A8) \
	K(cvt_u64_u32, "cvt.u64.u32", "84", u8, A4) \
	K(cvt_s64_s32, "cvt.s64.s32", "84", u8, wide(A4)) \
	K(cvt_u64_u16, "cvt.u64.u16", "82", u8, A4) \
	K(cvt_u32_u64, "cvt.u32.u64", "48", u4, (uint32_t)A8) \
	K(cvt_u32_u16, "cvt.u32.u16", "42", u4, A4) \
	K(cvt_s32_s16, "cvt.s32.s16", "42", u4, (uint32_t)s2(A4)) \
	K(cvt_u16_u32, "cvt.u16.u32", "24", u4, A4 & 0xffff) \
	K(cvt_u16_u64, "cvt.u16.u64", "28", u4, A8 & 0xffff) \
	K(add_rn, "add.rn.f32", "444", u4, result(AF + BF)) \
	K(sub_rn, "sub.rn.f32", "444", u4, result(AF - BF)) \
	K(mul_rn, "mul.rn.f32", "444", u4, result(AF *BF)) \
	K(div_rn, "div.rn.f32", "444", u4, result(AF / BF)) \
	K(fma_rn, "fma.rn.f32", "4444", u4, result(fmaf(AF, BF, CF))) \
	K(rcp_rn, "rcp.rn.f32", "44", u4, result(1 / AF)) \
	K(sqrt_rn, "sqrt.rn.f32", "44", u4, result(sqrtf(AF))) \
	K(neg_f32, "neg.f32", "44", u4, A4 ^ 0x80000000u) \
	K(abs_f32, "abs.f32", "44", u4, A4 & 0x7fffffff) \
	K(min_f32, "min.f32", "444", u4, smaller(AF, BF)) \
	K(max_f32, "max.f32", "444", u4, larger(AF, BF)) \
	K(cvt_e4m3, "cvt.rn.satfinite.e4m3x2.f32", "244", u4, e4m3_pair(AF, BF))

#define RUN(id, name, classes, member, expression) \
	static void id(union ptx_lanes *restrict out, const union ptx_lanes *const *in) \
	{ \
		for (int i = 0; i < PTX_LANES; i++) \
			out->member[i] = expression; \
	}
OPS(RUN)

#define ENTRY(id, name, classes, member, expression) { name, classes, id },
static const struct ptx_op ops[] = { OPS(ENTRY) };

const struct ptx_op *ptx_op_find(const char *name, size_t n_operands)
{
	for (size_t i = 0; i < sizeof ops / sizeof ops[0]; i++)
		if (strcmp(ops[i].name, name) == 0 && strlen(ops[i].classes) == n_operands)
			return &ops[i];
	return NULL;
}

/* ---- of two to one ---- */

static uint64_t fold_max(uint64_t x, uint64_t y)
{
	return x > y ? x : y;
}

static uint64_t fold_min(uint64_t x, uint64_t y)
{
	return x < y ? x : y;
}

static uint64_t fold_add(uint64_t x, uint64_t y)
{
	return x + y;
}

static uint64_t fold_and(uint64_t x, uint64_t y)
{
	return x & y;
}

static uint64_t fold_or(uint64_t x, uint64_t y)
{
	return x | y;
}

ptx_fold *ptx_fold_find(const char *name, const char *type)
{
	static const struct {
		const char *name;
		char type;
		ptx_fold *fold;
	} folds[] = { { "max", 'u', fold_max }, { "min", 'u', fold_min }, { "add", 'u', fold_add },
		      { "and", 'b', fold_and }, { "or", 'b', fold_or } };
	for (size_t i = 0; i < sizeof folds / sizeof folds[0]; i++)
		if (strcmp(folds[i].name, name) == 0 && folds[i].type == type[0])
			return folds[i].fold;
	return NULL;
}
