/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_wire.c - packs and unpacks the bytes of gloo_wire.h. All unpacked data is untrusted. */
#include "gloo_wire.h"

#include "sock.h"

#include <inttypes.h>
#include <netdb.h>
#include <netinet/in.h>
#include <string.h>

static void put_u64(uint8_t *dst, uint64_t v)
{
	for (int i = 0; i < 8; i++)
		dst[i] = (uint8_t)(v >> (8 * i));
}

static uint64_t get_u64(const uint8_t *src)
{
	uint64_t v = 0;
	for (int i = 0; i < 8; i++)
		v |= (uint64_t)src[i] << (8 * i);
	return v;
}

static void buf_u64(struct ws_buf *out, uint64_t v)
{
	uint8_t bytes[8];
	put_u64(bytes, v);
	ws_buf_add(out, bytes, sizeof bytes);
}

int ws_gloo_address_make(const char *host, uint16_t port, struct ws_gloo_address *out,
                         struct ws_err *err)
{
	if (!host || ws_host_is_wildcard(host))
		return ws_err_set(err, WS_EUSAGE,
		                  "gloo: \"%s\" is no address that a peer could connect to",
		                  host ? host : "");
	const struct addrinfo hints = { .ai_flags = AI_NUMERICHOST, .ai_socktype = SOCK_STREAM };
	struct addrinfo *ai = NULL;
	const int rc = getaddrinfo(host, NULL, &hints, &ai);
	if (rc)
		return ws_err_set(err, WS_EUSAGE, "gloo: \"%s\" is no address literal: %s", host,
		                  gai_strerror(rc));
	*out = (struct ws_gloo_address){ .len = ai->ai_addrlen };
	memcpy(&out->sa, ai->ai_addr, ai->ai_addrlen);
	freeaddrinfo(ai);
	if (out->sa.ss_family == AF_INET6)
		((struct sockaddr_in6 *)&out->sa)->sin6_port = htons(port);
	else
		((struct sockaddr_in *)&out->sa)->sin_port = htons(port);
	return 0;
}

void ws_gloo_address_pack(const struct ws_gloo_address *a, uint8_t dst[WS_GLOO_ADDRESS])
{
	memset(dst, 0, WS_GLOO_ADDRESS - 8);
	memcpy(dst, &a->sa, a->len);
	memset(dst + WS_GLOO_ADDRESS - 8, 0xff, 8);
}

int ws_gloo_address_unpack(const uint8_t src[WS_GLOO_ADDRESS], struct ws_gloo_address *out,
                           struct ws_err *err)
{
	struct ws_gloo_address a = { .len = 0 };
	sa_family_t family;
	memcpy(&family, src, sizeof family);
	in_port_t port;
	memcpy(&port, src + 2, sizeof port);
	if (family == AF_INET) {
		struct sockaddr_in *in = (struct sockaddr_in *)&a.sa;
		memcpy(&in->sin_addr, src + 4, sizeof in->sin_addr);
		in->sin_port = port;
		a.len = sizeof *in;
	} else if (family == AF_INET6) {
		struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&a.sa;
		memcpy(&in6->sin6_addr, src + 8, sizeof in6->sin6_addr);
		memcpy(&in6->sin6_scope_id, src + 24, sizeof in6->sin6_scope_id);
		in6->sin6_port = port;
		a.len = sizeof *in6;
	} else {
		return ws_err_set(err, WS_EDATA, "address of family %u, neither IPv4 nor IPv6",
		                  family);
	}
	if (port == 0)
		return ws_err_set(err, WS_EDATA, "address with port 0");
	a.sa.ss_family = family;
	*out = a;
	return 0;
}

/* The address bytes and the raw port, in memory order. */
static const void *raw_address(const struct ws_gloo_address *a, size_t *n, uint8_t port[2])
{
	if (a->sa.ss_family == AF_INET6) {
		const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)&a->sa;
		memcpy(port, &in6->sin6_port, 2);
		*n = sizeof in6->sin6_addr;
		return &in6->sin6_addr;
	}
	const struct sockaddr_in *in = (const struct sockaddr_in *)&a->sa;
	memcpy(port, &in->sin_port, 2);
	*n = sizeof in->sin_addr;
	return &in->sin_addr;
}

int ws_gloo_address_cmp(const struct ws_gloo_address *a, const struct ws_gloo_address *b)
{
	uint8_t port_a[2], port_b[2];
	size_t n_a, n_b;
	const void *const ip_a = raw_address(a, &n_a, port_a);
	const void *const ip_b = raw_address(b, &n_b, port_b);
	if (n_a != n_b)
		return n_a < n_b ? -1 : 1;
	const int c = memcmp(ip_a, ip_b, n_a);
	return c ? c : (port_a[0] | port_a[1] << 8) - (port_b[0] | port_b[1] << 8);
}

void ws_gloo_card_pack(struct ws_buf *out, const char *host_name, const struct ws_gloo_address *a,
                       unsigned size, bool ids)
{
	uint8_t address[WS_GLOO_ADDRESS];
	ws_gloo_address_pack(a, address);
	buf_u64(out, strlen(host_name));
	ws_buf_puts(out, host_name);
	buf_u64(out, sizeof address);
	ws_buf_add(out, address, sizeof address);
	for (unsigned i = 0; ids && i < size; i++)
		buf_u64(out, i);
}

int ws_gloo_card_unpack(const void *value, size_t n, unsigned size, unsigned our_rank,
                        struct ws_gloo_card *out, struct ws_err *err)
{
	const uint8_t *p = value;
	if (n < 8)
		return ws_err_set(err, WS_EDATA, "value of %zu bytes is cut short", n);
	const uint64_t host = get_u64(p);
	p += 8, n -= 8;
	if (host > WS_GLOO_HOST_NAME_MAX)
		return ws_err_set(err, WS_EDATA, "host name of %" PRIu64 " bytes (another layout?)",
		                  host);
	if (n < host + 8 + WS_GLOO_ADDRESS)
		return ws_err_set(err, WS_EDATA, "value of %zu bytes is cut short", n + 8);
	p += host, n -= host;
	const uint64_t address = get_u64(p);
	p += 8, n -= 8;
	if (address != WS_GLOO_ADDRESS)
		return ws_err_set(err, WS_EDATA,
		                  "address of %" PRIu64
		                  " bytes, not 136 (a transport other than TCP?)",
		                  address);
	struct ws_gloo_card card = { .id = our_rank };
	if (ws_gloo_address_unpack(p, &card.address, err))
		return -1;
	p += WS_GLOO_ADDRESS, n -= WS_GLOO_ADDRESS;
	if (n != 0 && n != (size_t)size * 8)
		return ws_err_set(err, WS_EDATA, "%zu identifiers in a group of %u", n / 8, size);
	if (n) {
		card.has_ids = true;
		card.id = (int64_t)get_u64(p + (size_t)our_rank * 8);
	}
	*out = card;
	return 0;
}

int ws_gloo_list_unpack(const void *value, size_t n, unsigned size, unsigned rank,
                        unsigned our_rank, struct ws_gloo_card *out, struct ws_err *err)
{
	if (n != (size_t)(size - 1) * WS_GLOO_ADDRESS)
		return ws_err_set(err, WS_EDATA, "value of %zu bytes, not %u addresses", n,
		                  size - 1);
	const unsigned slot = our_rank < rank ? our_rank : our_rank - 1;
	struct ws_gloo_card card = { .has_ids = true };
	if (ws_gloo_address_unpack((const uint8_t *)value + (size_t)slot * WS_GLOO_ADDRESS,
	                           &card.address, err))
		return -1;
	*out = card;
	return 0;
}

void ws_gloo_message_pack(const struct ws_gloo_message *m, uint8_t dst[WS_GLOO_PREAMBLE])
{
	const uint64_t payload = m->opcode == WS_GLOO_SEND_UNBOUND ? m->length : 0;
	put_u64(dst, WS_GLOO_PREAMBLE + payload);
	put_u64(dst + 8, m->opcode);
	put_u64(dst + 16, m->slot);
	put_u64(dst + 24, 0);
	put_u64(dst + 32, m->length);
	put_u64(dst + 40, 0);
}

int ws_gloo_message_unpack(const uint8_t src[WS_GLOO_PREAMBLE], struct ws_gloo_message *out,
                           struct ws_err *err)
{
	const uint64_t n = get_u64(src), opcode = get_u64(src + 8), slot = get_u64(src + 16),
	               offset = get_u64(src + 24), length = get_u64(src + 32);
	if (opcode > WS_GLOO_RECV_READY)
		return ws_err_set(err, WS_EDATA, "message with opcode %" PRIu64, opcode);
	if (opcode == WS_GLOO_SEND_BUFFER)
		return ws_err_set(err, WS_EDATA,
		                  "message into a registered buffer, which no broadcast uses");
	const uint64_t payload = opcode == WS_GLOO_SEND_UNBOUND ? length : 0;
	if (length > (uint64_t)1 << 62 || n != WS_GLOO_PREAMBLE + payload || offset != 0)
		return ws_err_set(err, WS_EDATA,
		                  "malformed message: opcode %" PRIu64 ", %" PRIu64
		                  " bytes, offset %" PRIu64 ", length %" PRIu64,
		                  opcode, n, offset, length);
	*out = (struct ws_gloo_message){ (enum ws_gloo_opcode)opcode, slot, length };
	return 0;
}

enum { BROADCAST = 6 };

uint64_t ws_gloo_slot(uint32_t tag)
{
	return (uint64_t)BROADCAST << 56 | (uint64_t)tag << 24;
}

int ws_gloo_slot_tag(uint64_t slot, uint32_t *tag, struct ws_err *err)
{
	static const char *const collectives[] = { "a plain send or receive", "a gather",
		"an allgather", "a reduce", "an allreduce", "a scatter", "a broadcast", "a barrier",
		"an alltoall" };
	const uint64_t which = slot >> 56;
	*tag = (uint32_t)(slot >> 24);
	if (which == BROADCAST && (slot & 0xffffff) == 0)
		return 0;
	if (which < sizeof collectives / sizeof collectives[0] && which != BROADCAST)
		return ws_err_set(err, WS_EDATA, "runs %s where a broadcast was expected",
		                  collectives[which]);
	return ws_err_set(err, WS_EDATA, "runs an unknown collective (slot %016" PRIx64 ")", slot);
}
