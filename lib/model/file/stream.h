/* SPDX-License-Identifier: Apache-2.0 */
/* stream.h - the bytes of a synthetic tensor: random access, and equal on every machine.
 *
 * Word i of a tensor, 8 bytes in little-endian order, is
 *
 *     z = key + (i + 1) * 0x9e3779b97f4a7c15
 *     z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9
 *     z = (z ^ z >> 27) * 0x94d049bb133111eb
 *     word = ((z ^ z >> 31) & keep) | set
 *
 * This is splitmix64 with a counter as state. mix() is the last three lines without the masks:
 *
 *     key = mix(mix(seed + 0x9e3779b97f4a7c15) + XXH3-64(name))
 *
 * keep and set limit every element to small finite values. BF16, F16, F32 and F64: 2^-7..2^-3 of
 * either sign. Scales (F32): 2^-15..2^-11, positive. E4M3: even exponents, which excludes the NaNs.
 * MXFP4's scales (U8 exponents): 2^-15..2^-8. The last word is cut off at the tensor's end. */
#ifndef WS_MODEL_STREAM_H
#define WS_MODEL_STREAM_H

#include "wsync/dtype.h"

struct ws_stream {
	uint64_t key, keep, set;
};

struct ws_stream ws_stream_make(uint64_t seed, const char *name, enum ws_dtype dtype);
void ws_stream_fill(const struct ws_stream *stream, uint64_t at, void *dst, size_t n);

#endif
