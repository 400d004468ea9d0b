/* SPDX-License-Identifier: Apache-2.0 */
#include "stream.h"

#include "hash.h"

#include <endian.h>
#include <string.h>

static const uint64_t step = UINT64_C(0x9e3779b97f4a7c15);

static inline uint64_t mix(uint64_t z)
{
	z = (z ^ z >> 30) * UINT64_C(0xbf58476d1ce4e5b9);
	z = (z ^ z >> 27) * UINT64_C(0x94d049bb133111eb);
	return z ^ z >> 31;
}

/* The sign, the two low exponent bits and the mantissa are random; the rest of the exponent is set
 * so that values begin at 2^-7 (scales: 2^-15). */
struct ws_stream ws_stream_make(uint64_t seed, const char *name, enum ws_dtype dtype)
{
	const size_t len = strlen(name);
	struct ws_stream s = {
		.key = mix(mix(seed + step) + ws_hash64(name, len)),
		.keep = UINT64_MAX,
	};
	switch (dtype) {
	case WS_DTYPE_BF16:
		s.keep = UINT64_C(0x81ff81ff81ff81ff);
		s.set = UINT64_C(0x3c003c003c003c00);
		break;
	case WS_DTYPE_F16:
		s.keep = UINT64_C(0x8fff8fff8fff8fff);
		s.set = UINT64_C(0x2000200020002000);
		break;
	case WS_DTYPE_F32:
		s.keep = UINT64_C(0x81ffffff81ffffff);
		s.set = UINT64_C(0x3c0000003c000000);
		if (len > 10 && strcmp(name + len - 10, "_scale_inv") == 0) {
			s.keep = UINT64_C(0x01ffffff01ffffff);
			s.set = UINT64_C(0x3800000038000000);
		}
		break;
	case WS_DTYPE_F64:
		s.keep = UINT64_C(0x803fffffffffffff);
		s.set = UINT64_C(0x3f80000000000000);
		break;
	case WS_DTYPE_U8: /* MXFP4 scales are exponents; other U8 tensors may have any bits */
		if (len > 7 && strcmp(name + len - 7, "_scales") == 0) {
			s.keep = UINT64_C(0x0707070707070707);
			s.set = UINT64_C(0x7070707070707070);
		}
		break;
	case WS_DTYPE_F8_E4M3:
		s.keep = UINT64_C(0xf7f7f7f7f7f7f7f7);
		break;
	default: /* no synthetic model has other types */
		break;
	}
	return s;
}

static inline uint64_t word(const struct ws_stream *s, uint64_t i)
{
	return htole64((mix(s->key + (i + 1) * step) & s->keep) | s->set);
}

void ws_stream_fill(const struct ws_stream *stream, uint64_t at, void *dst, size_t n)
{
	const struct ws_stream s = *stream; /* a copy: dst may alias *stream */
	unsigned char *p = dst;
	uint64_t i = at / 8, w;
	const size_t skip = (size_t)(at % 8);
	if (skip && n) {
		const size_t k = n < 8 - skip ? n : 8 - skip;
		w = word(&s, i++);
		memcpy(p, (const unsigned char *)&w + skip, k);
		p += k;
		n -= k;
	}
	for (; n >= 8; n -= 8, p += 8) {
		w = word(&s, i++);
		memcpy(p, &w, 8);
	}
	w = word(&s, i);
	memcpy(p, &w, n);
}
