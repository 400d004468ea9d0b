/* SPDX-License-Identifier: Apache-2.0 */
/* store_wire.h - the bytes of torch.distributed's TCPStore.
 *
 * A request is one opcode byte and its fields, little-endian and unpadded; a reply has no header.
 *
 *   k, v  bytes: u64 length, then so many bytes (key; value)
 *   q     i64
 *   u     u32
 *   K     u64 n, then n keys
 *   M     i64 n, then n times key and value
 *
 *   operation     A    B    C   fields  reply
 *   VALIDATE      -    -    0   u       none (magic 0x3C85F7CE)
 *   SET           0    0    1   kv      none
 *   COMPARE_SET   1    1    2   kvv     v
 *   GET           2    2    3   k       v
 *   ADD           3    3    4   kq      i64 sum
 *   CHECK         4    4    5   K       u8: 0 all present, 1 not
 *   WAIT          5    5    6   K       u8 0, when all are present
 *   GETNUMKEYS    6    6    7           i64
 *   WATCH_KEY     7    -    -   k       u8 3
 *   DELETE_KEY    8    7    8   k       i64 0 or 1
 *   APPEND        9    8    9   kv      none
 *   MULTI_GET    10    9   10   K       n times v
 *   MULTI_SET    11   10   11   M       none
 *   CANCEL_WAIT  12   11   12           u8 1
 *   PING          -    -   13   u       the same u32
 *   LIST_KEYS     -    -   17           i64 n, then n keys
 *   BARRIER       -    -   18   kq      u8 0, when q have arrived
 *
 * 14 to 16 are queues, which process groups do not use: refused.
 *
 * Epoch A is torch up to 2.0 (its 9 to 12 only in snapshots before 2.1), B is 2.1, C is 2.2 and
 * later. A C client opens with VALIDATE; A and B look alike up to opcode 6. An A client opens a
 * second connection on which it sends nothing (or WATCH_KEY): its "twin". */
#ifndef WS_NET_STORE_WIRE_H
#define WS_NET_STORE_WIRE_H

#include "wsync/tool/buf.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum {
	WS_STORE_MAGIC = 0x3C85F7CE,
	WS_STORE_SHARED_OPCODES = 6, /* A and B are equal up to here */
	/* The limits of torch's libuv server, and ours for a whole request. */
	WS_STORE_KEY_MAX = 8 << 10,
	WS_STORE_VALUE_MAX = 8 << 20,
	WS_STORE_LIST_MAX = 128 << 10,
	WS_STORE_REQUEST_MAX = 32 << 20
};

enum ws_store_op {
	WS_OP_VALIDATE, WS_OP_SET, WS_OP_COMPARE_SET, WS_OP_GET, WS_OP_ADD, WS_OP_CHECK, WS_OP_WAIT,
	WS_OP_GETNUMKEYS, WS_OP_WATCH_KEY, WS_OP_DELETE_KEY, WS_OP_APPEND, WS_OP_MULTI_GET,
	WS_OP_MULTI_SET, WS_OP_CANCEL_WAIT, WS_OP_PING, WS_OP_LIST_KEYS, WS_OP_BARRIER,
	WS_OP_COUNT
};

enum ws_store_epoch {
	WS_EPOCH_NONE, /* nothing received yet */
	WS_EPOCH_OLD,  /* A or B */
	WS_EPOCH_A, WS_EPOCH_B, WS_EPOCH_C
};

enum { WS_STORE_READY = 0, WS_STORE_NOT_READY = 1 };            /* replies to CHECK */
enum { WS_STORE_WOKEN = 0, WS_STORE_WAIT_CANCELLED = 1 };       /* to WAIT, CANCEL_WAIT */
enum { WS_STORE_CALLBACK_REGISTERED = 3 };                      /* to WATCH_KEY */

/* "SET"; for logs. */
const char *ws_store_op_name(enum ws_store_op op);
/* Its fields, as in the table above. */
const char *ws_store_op_fields(enum ws_store_op op);
/* The opcode byte; -1: the epoch lacks the operation. */
int ws_store_opcode(enum ws_store_epoch epoch, enum ws_store_op op);

/* State of the scan over the requests of a connection. Nothing is consumed: the scan continues
 * where it stopped, so a request in a thousand pieces costs no more than one in one piece. */
struct ws_store_scan {
	enum ws_store_epoch epoch;
	bool twin;           /* set by the caller: the client has a silent second connection */
	enum ws_store_op op; /* of the current request, once begun */
	const char *fields;  /* remaining fields; NULL: not begun */
	size_t at;           /* scanned bytes; after WS_SCAN_DONE the request's length */
	uint64_t strings;    /* remaining members of the current list */
	bool in_list;
};

enum ws_scan { WS_SCAN_MORE, WS_SCAN_DONE, WS_SCAN_BAD };

/* data: from the first byte of the request. BAD: a limit exceeded or an unknown opcode; close
 * the connection. */
enum ws_scan ws_store_scan(struct ws_store_scan *s, const void *data, size_t n);
/* After DONE: prepares for the next request. */
void ws_store_scan_next(struct ws_store_scan *s);

struct ws_bytes {
	const char *data;
	size_t n;
};

/* Extracts the fields of a complete request, given from behind the opcode. */
struct ws_store_fields {
	const char *at;
};

uint32_t ws_store_take_u32(struct ws_store_fields *f);
int64_t ws_store_take_i64(struct ws_store_fields *f);
struct ws_bytes ws_store_take_bytes(struct ws_store_fields *f);

void ws_store_put_u8(struct ws_buf *b, unsigned value);
void ws_store_put_u32(struct ws_buf *b, uint32_t value);
void ws_store_put_i64(struct ws_buf *b, int64_t value);
void ws_store_put_bytes(struct ws_buf *b, const void *data, size_t n);

uint64_t ws_store_load_u64(const void *at);

#endif
