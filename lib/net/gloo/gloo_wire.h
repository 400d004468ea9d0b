/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_wire.h - the bytes of torch's gloo, as facebookincubator/gloo of 2019 to 2026 writes them.
 *
 * Integers are little-endian unless noted otherwise; nothing is aligned.
 *
 * Address, 136 bytes, also what a struct sockaddr_storage and an i64 look like on Linux:
 *	0   u16  family: 2 IPv4, 10 IPv6
 *	2   u16  port, big-endian
 *	4   4    IPv4 address (IPv6: flow information)
 *	8   16   IPv6 address; then u32 scope id at 24
 *	..128    whatever was on the peer's stack: ignored, written as zeros
 *	128 i64  sequence number: -1, unused in both supported layouts
 *
 * Value of the key "<rank>" in the store:
 *	G1   N-1 addresses: the port that waits for peer 0, 1, ..., self skipped.
 *	     The host name is a value of its own, "rank_<rank>".
 *	G2b  u64 length, host name; u64 136, address; N x i64 identifiers: entry p is what rank p
 *	     sends first when it connects to us. Without identifiers, p sends its own rank.
 *
 * In each pair of ranks, the rank with the larger address bytes (memcmp) connects. If these are
 * equal, the rank with the larger port bytes does, read as a little-endian number.
 *
 * Message, six u64: 48 + payload bytes; opcode; slot; offset 0; length; offset at the receiver 0.
 * Slot: collective << 56 | tag << 24 | step. */
#ifndef WS_NET_GLOO_WIRE_H
#define WS_NET_GLOO_WIRE_H

#include "wsync/tool/buf.h"
#include "wsync/err.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/socket.h>

enum {
	WS_GLOO_ADDRESS = 136,
	WS_GLOO_HOST_NAME_MAX = 1024,
	WS_GLOO_RANKS_MAX = 4096, /* a limit before allocating, far beyond any full mesh */
	WS_GLOO_PREAMBLE = 48,
};

struct ws_gloo_address {
	struct sockaddr_storage sa; /* family, port, address and scope; the rest is zero */
	socklen_t len;
};

/* host: an address literal. */
int ws_gloo_address_make(const char *host, uint16_t port, struct ws_gloo_address *out,
                         struct ws_err *err);
void ws_gloo_address_pack(const struct ws_gloo_address *a, uint8_t dst[WS_GLOO_ADDRESS]);
int ws_gloo_address_unpack(const uint8_t src[WS_GLOO_ADDRESS], struct ws_gloo_address *out,
                           struct ws_err *err);
/* The order that decides which rank of a pair connects: > 0 if the owner of a does. */
int ws_gloo_address_cmp(const struct ws_gloo_address *a, const struct ws_gloo_address *b);

/* The part of a rank's value that one other rank needs. */
struct ws_gloo_card {
	struct ws_gloo_address address;
	/* G2b: the value has identifiers; if not, the peer may connect late */
	bool has_ids;
	int64_t id;   /* G2b: the identifier that we send first when we connect to it */
};

/* G2b. ids: whether to publish identifiers 0..size-1. */
void ws_gloo_card_pack(struct ws_buf *out, const char *host_name, const struct ws_gloo_address *a,
                       unsigned size, bool ids);
int ws_gloo_card_unpack(const void *value, size_t n, unsigned size, unsigned our_rank,
                        struct ws_gloo_card *out, struct ws_err *err);
/* G1: our entry in the value of `rank`. */
int ws_gloo_list_unpack(const void *value, size_t n, unsigned size, unsigned rank,
                        unsigned our_rank, struct ws_gloo_card *out, struct ws_err *err);

enum ws_gloo_opcode {
	WS_GLOO_SEND_BUFFER,
	WS_GLOO_SEND_UNBOUND, /* has the payload */
	WS_GLOO_SEND_READY,
	WS_GLOO_RECV_READY,
};

struct ws_gloo_message {
	enum ws_gloo_opcode opcode;
	uint64_t slot;
	uint64_t length; /* of the buffer; SEND_UNBOUND: bytes that follow */
};

void ws_gloo_message_pack(const struct ws_gloo_message *m, uint8_t dst[WS_GLOO_PREAMBLE]);
int ws_gloo_message_unpack(const uint8_t src[WS_GLOO_PREAMBLE], struct ws_gloo_message *out,
                           struct ws_err *err);

enum { WS_GLOO_PLAIN_SLOT = 0 };     /* slot of a send or receive: torch's tag, 0 by default */
uint64_t ws_gloo_slot(uint32_t tag); /* slot of a broadcast */
/* Returns the tag of a broadcast's slot. Another collective: -1 and its name. */
int ws_gloo_slot_tag(uint64_t slot, uint32_t *tag, struct ws_err *err);

#endif
