/* SPDX-License-Identifier: Apache-2.0 */
/* store_wire.c - opcodes, fields, and the scan for the end of a request.
 *
 * Lengths are checked against limits before they are added, and memory is not allocated for
 * announced lengths: a request that announces 2^63 bytes costs nothing. */
#include "store_wire.h"

#include <endian.h>
#include <string.h>

static const struct {
	const char *name;
	const char *fields;
	signed char a, b, c;
} ops[WS_OP_COUNT] = {
	[WS_OP_VALIDATE]    = { "VALIDATE",    "u",   -1, -1,  0 },
	[WS_OP_SET]         = { "SET",         "kv",   0,  0,  1 },
	[WS_OP_COMPARE_SET] = { "COMPARE_SET", "kvv",  1,  1,  2 },
	[WS_OP_GET]         = { "GET",         "k",    2,  2,  3 },
	[WS_OP_ADD]         = { "ADD",         "kq",   3,  3,  4 },
	[WS_OP_CHECK]       = { "CHECK",       "K",    4,  4,  5 },
	[WS_OP_WAIT]        = { "WAIT",        "K",    5,  5,  6 },
	[WS_OP_GETNUMKEYS]  = { "GETNUMKEYS",  "",     6,  6,  7 },
	[WS_OP_WATCH_KEY]   = { "WATCH_KEY",   "k",    7, -1, -1 },
	[WS_OP_DELETE_KEY]  = { "DELETE_KEY",  "k",    8,  7,  8 },
	[WS_OP_APPEND]      = { "APPEND",      "kv",   9,  8,  9 },
	[WS_OP_MULTI_GET]   = { "MULTI_GET",   "K",   10,  9, 10 },
	[WS_OP_MULTI_SET]   = { "MULTI_SET",   "M",   11, 10, 11 },
	[WS_OP_CANCEL_WAIT] = { "CANCEL_WAIT", "",    12, 11, 12 },
	[WS_OP_PING]        = { "PING",        "u",   -1, -1, 13 },
	[WS_OP_LIST_KEYS]   = { "LIST_KEYS",   "",    -1, -1, 17 },
	[WS_OP_BARRIER]     = { "BARRIER",     "kq",  -1, -1, 18 },
};

enum { WATCH_KEY_OR_DELETE = WS_STORE_SHARED_OPCODES + 1 };

const char *ws_store_op_name(enum ws_store_op op)
{
	return op < WS_OP_COUNT ? ops[op].name : "?";
}

const char *ws_store_op_fields(enum ws_store_op op)
{
	return op < WS_OP_COUNT ? ops[op].fields : "";
}

int ws_store_opcode(enum ws_store_epoch epoch, enum ws_store_op op)
{
	switch (epoch) {
	case WS_EPOCH_OLD:
	case WS_EPOCH_A:
		return ops[op].a;
	case WS_EPOCH_B:
		return ops[op].b;
	case WS_EPOCH_C:
		return ops[op].c;
	case WS_EPOCH_NONE:
		break;
	}
	return -1;
}

uint64_t ws_store_load_u64(const void *at)
{
	uint64_t value;
	memcpy(&value, at, sizeof value);
	return le64toh(value);
}

static uint32_t load_u32(const void *at)
{
	uint32_t value;
	memcpy(&value, at, sizeof value);
	return le32toh(value);
}

/* One byte decides, unless it is 0: both a C client's VALIDATE and an older client's SET begin
 * with 0. Other first bytes must not wait for four more, because 1.13 sends an opcode in a
 * segment of its own. */
static enum ws_scan find_epoch(struct ws_store_scan *s, const unsigned char *data, size_t n)
{
	if (data[0] == 0 && n < 5)
		return WS_SCAN_MORE;
	if (data[0] == 0 && load_u32(data + 1) == WS_STORE_MAGIC)
		s->epoch = WS_EPOCH_C;
	else if (data[0] == WATCH_KEY_OR_DELETE)
		s->epoch = WS_EPOCH_A; /* no client deletes before it joins */
	else
		s->epoch = WS_EPOCH_OLD;
	return WS_SCAN_DONE;
}

/* A connection with earlier operations never sends WATCH_KEY, so 7 deletes. */
static void distinguish_a_from_b(struct ws_store_scan *s, unsigned opcode)
{
	if (s->epoch == WS_EPOCH_OLD && opcode > WS_STORE_SHARED_OPCODES)
		s->epoch = opcode > WATCH_KEY_OR_DELETE && s->twin ? WS_EPOCH_A : WS_EPOCH_B;
}

static enum ws_scan begin(struct ws_store_scan *s, const unsigned char *data, size_t n)
{
	if (n == 0 || (s->epoch == WS_EPOCH_NONE && find_epoch(s, data, n) == WS_SCAN_MORE))
		return WS_SCAN_MORE;
	distinguish_a_from_b(s, data[0]);
	for (unsigned op = 0; op < WS_OP_COUNT; op++) {
		if (ws_store_opcode(s->epoch, (enum ws_store_op)op) == data[0]) {
			s->op = (enum ws_store_op)op;
			s->fields = ops[op].fields;
			s->at = 1;
			return WS_SCAN_DONE;
		}
	}
	return WS_SCAN_BAD;
}

static enum ws_scan walk_number(struct ws_store_scan *s, size_t n, size_t size)
{
	if (n - s->at < size)
		return WS_SCAN_MORE;
	s->at += size;
	return WS_SCAN_DONE;
}

static enum ws_scan walk_string(struct ws_store_scan *s, const char *data, size_t n, size_t max)
{
	if (n - s->at < 8)
		return WS_SCAN_MORE;
	const uint64_t len = ws_store_load_u64(data + s->at);
	if (len > max || len > WS_STORE_REQUEST_MAX - 8 || s->at > WS_STORE_REQUEST_MAX - 8 - len)
		return WS_SCAN_BAD;
	if (n - s->at - 8 < len)
		return WS_SCAN_MORE;
	s->at += 8 + (size_t)len;
	return WS_SCAN_DONE;
}

/* Keys only ('K'), or keys and values in turn ('M'). */
static enum ws_scan walk_list(struct ws_store_scan *s, const char *data, size_t n, bool pairs)
{
	if (!s->in_list) {
		if (n - s->at < 8)
			return WS_SCAN_MORE;
		const uint64_t count = ws_store_load_u64(data + s->at);
		if (count > WS_STORE_LIST_MAX)
			return WS_SCAN_BAD;
		s->at += 8;
		s->strings = pairs ? 2 * count : count;
		s->in_list = true;
	}
	while (s->strings) {
		const bool value = pairs && s->strings % 2;
		const enum ws_scan r =
			walk_string(s, data, n, value ? WS_STORE_VALUE_MAX : WS_STORE_KEY_MAX);
		if (r != WS_SCAN_DONE)
			return r;
		s->strings--;
	}
	s->in_list = false;
	return WS_SCAN_DONE;
}

static enum ws_scan walk_field(struct ws_store_scan *s, const char *data, size_t n)
{
	switch (*s->fields) {
	case 'u':
		return walk_number(s, n, 4);
	case 'q':
		return walk_number(s, n, 8);
	case 'k':
		return walk_string(s, data, n, WS_STORE_KEY_MAX);
	case 'v':
		return walk_string(s, data, n, WS_STORE_VALUE_MAX);
	default:
		return walk_list(s, data, n, *s->fields == 'M');
	}
}

enum ws_scan ws_store_scan(struct ws_store_scan *s, const void *data, size_t n)
{
	if (!s->fields) {
		const enum ws_scan r = begin(s, data, n);
		if (r != WS_SCAN_DONE)
			return r;
	}
	for (; *s->fields; s->fields++) {
		const enum ws_scan r = walk_field(s, data, n);
		if (r != WS_SCAN_DONE)
			return r;
	}
	return WS_SCAN_DONE;
}

void ws_store_scan_next(struct ws_store_scan *s)
{
	s->fields = NULL;
	s->at = 0;
}

uint32_t ws_store_take_u32(struct ws_store_fields *f)
{
	const uint32_t value = load_u32(f->at);
	f->at += 4;
	return value;
}

int64_t ws_store_take_i64(struct ws_store_fields *f)
{
	const int64_t value = (int64_t)ws_store_load_u64(f->at);
	f->at += 8;
	return value;
}

struct ws_bytes ws_store_take_bytes(struct ws_store_fields *f)
{
	const struct ws_bytes b = { f->at + 8, (size_t)ws_store_load_u64(f->at) };
	f->at += 8 + b.n;
	return b;
}

void ws_store_put_u8(struct ws_buf *b, unsigned value)
{
	ws_buf_putc(b, (char)value);
}

void ws_store_put_u32(struct ws_buf *b, uint32_t value)
{
	const uint32_t le = htole32(value);
	ws_buf_add(b, &le, sizeof le);
}

void ws_store_put_i64(struct ws_buf *b, int64_t value)
{
	const uint64_t le = htole64((uint64_t)value);
	ws_buf_add(b, &le, sizeof le);
}

void ws_store_put_bytes(struct ws_buf *b, const void *data, size_t n)
{
	ws_store_put_i64(b, (int64_t)n);
	ws_buf_add(b, data, n);
}
