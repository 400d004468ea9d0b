/* SPDX-License-Identifier: Apache-2.0 */
/* test_gloo_wire.c - bytes as real torch peers write them, bytes that nobody should
 * write, the tree, and the ring. */
#include "flow.h"
#include "gloo.h"
#include "gloo_wire.h"
#include "test.h"

#include <poll.h>
#include <pthread.h>

/* What torch 2.6 at 127.0.0.1:33687, host name "vm", published as a rank of two. */
static size_t real_card(uint8_t dst[256])
{
	static const uint8_t head[] = { 2, 0, 0, 0, 0, 0, 0, 0, 'v', 'm', 0x88, 0, 0, 0, 0, 0, 0, 0,
		                        2, 0, 0x83, 0x97, 127, 0, 0, 1 };
	memset(dst, 0, 256);
	memcpy(dst, head, sizeof head);
	memset(dst + sizeof head + 120, 0xff, 8);
	dst[sizeof head + 128 + 8] = 1;
	return sizeof head + 128 + 16;
}

TEST(a_card_is_what_torch_writes)
{
	uint8_t want[256];
	const size_t n = real_card(want);
	assert_int_equal(n, 170);
	struct ws_gloo_address a;
	struct ws_err err;
	assert_int_equal(ws_gloo_address_make("127.0.0.1", 33687, &a, &err), 0);
	struct ws_buf got;
	ws_buf_init(&got, 0);
	ws_gloo_card_pack(&got, "vm", &a, 2, true);
	assert_int_equal(got.len, n);
	assert_memory_equal(got.data, want, n);
	ws_buf_free(&got);
}

TEST(a_card_of_torch_is_read_garbage_in_the_address_included)
{
	uint8_t bytes[256];
	const size_t n = real_card(bytes);
	memset(bytes + 30, 0x5a, 50); /* the unused part of sockaddr_storage */
	struct ws_gloo_card card;
	struct ws_gloo_address same;
	struct ws_err err;
	assert_int_equal(ws_gloo_card_unpack(bytes, n, 2, 1, &card, &err), 0);
	assert_true(card.has_ids);
	assert_int_equal(card.id, 1);
	assert_int_equal(ws_gloo_address_make("127.0.0.1", 33687, &same, &err), 0);
	assert_memory_equal(&card.address.sa, &same.sa, sizeof same.sa);
}

TEST(without_identifiers_we_say_our_rank)
{
	uint8_t bytes[256];
	const size_t n = real_card(bytes);
	struct ws_gloo_card card;
	struct ws_err err;
	assert_int_equal(ws_gloo_card_unpack(bytes, n - 16, 9, 7, &card, &err), 0);
	assert_false(card.has_ids);
	assert_int_equal(card.id, 7);
}

TEST(a_card_cut_anywhere_is_refused)
{
	uint8_t bytes[256];
	const size_t n = real_card(bytes);
	for (size_t cut = 0; cut < n; cut++) {
		uint8_t *copy = malloc(cut + 1);
		memcpy(copy, bytes, cut);
		struct ws_gloo_card card;
		struct ws_err err = WS_ERR_INIT;
		const int rc = ws_gloo_card_unpack(copy, cut, 2, 1, &card, &err);
		free(copy);
		if (cut == n - 16) { /* a whole card without identifiers */
			assert_int_equal(rc, 0);
			continue;
		}
		assert_int_equal(rc, -1);
		assert_int_equal(err.code, WS_EDATA);
	}
}

TEST(a_card_that_lies_is_refused)
{
	static const struct { size_t at; uint8_t byte; const char *says; } lies[] = {
		{ 7, 0x80, "host name of" },     { 1, 0x10, "host name of" },
		{ 10, 0x70, "address of 112" },  { 17, 0xff, "not 136" },
		{ 18, 1, "address of family 1" },
	};
	for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
		uint8_t bytes[256];
		const size_t n = real_card(bytes);
		bytes[lies[i].at] = lies[i].byte;
		struct ws_gloo_card card;
		struct ws_err err = WS_ERR_INIT;
		assert_int_equal(ws_gloo_card_unpack(bytes, n, 2, 1, &card, &err), -1);
		assert_non_null(strstr(err.msg, lies[i].says));
	}
}

TEST(in_the_old_layout_every_peer_has_its_port)
{
	/* rank 2 of 4 listens for 0, 1 and 3. */
	uint8_t list[3 * WS_GLOO_ADDRESS];
	struct ws_gloo_address a;
	struct ws_gloo_card card;
	struct ws_err err;
	for (uint16_t i = 0; i < 3; i++) {
		assert_int_equal(ws_gloo_address_make("::1", (uint16_t)(1000 + i), &a, &err), 0);
		ws_gloo_address_pack(&a, list + (size_t)i * WS_GLOO_ADDRESS);
	}
	static const unsigned ours[] = { 0, 1, 3 };
	for (uint16_t i = 0; i < 3; i++) {
		assert_ok(ws_gloo_list_unpack(list, sizeof list, 4, 2, ours[i], &card, &err), &err);
		assert_int_equal(ws_gloo_address_make("::1", (uint16_t)(1000 + i), &a, &err), 0);
		assert_int_equal(ws_gloo_address_cmp(&a, &card.address), 0);
	}
	assert_int_equal(ws_gloo_list_unpack(list, sizeof list - 1, 4, 2, 0, &card, &err), -1);
	assert_int_equal(ws_gloo_list_unpack(list, sizeof list, 5, 2, 0, &card, &err), -1);
}

static int order(const char *host_a, uint16_t port_a, const char *host_b, uint16_t port_b)
{
	struct ws_gloo_address a, b;
	assert_int_equal(ws_gloo_address_make(host_a, port_a, &a, NULL), 0);
	assert_int_equal(ws_gloo_address_make(host_b, port_b, &b, NULL), 0);
	const int c = ws_gloo_address_cmp(&a, &b);
	assert_true((ws_gloo_address_cmp(&b, &a) < 0) == (c > 0));
	return c;
}

TEST(the_larger_address_connects_ports_compared_byte_swapped)
{
	assert_true(order("10.0.0.2", 1, "10.0.0.1", 60000) > 0);
	assert_true(order("10.0.1.0", 1, "9.255.255.255", 1) > 0);
	assert_true(order("127.0.0.1", 0x1235, "127.0.0.1", 0x1334) > 0); /* 0x3512 > 0x3413 */
	assert_true(order("127.0.0.1", 0x1234, "127.0.0.1", 0x3412) > 0);
	assert_true(order("fd00::2", 1, "fd00::1", 2) > 0);
	assert_int_equal(order("fd00::1", 5, "fd00::1", 5), 0);
}

TEST(an_address_that_nobody_can_reach_is_refused)
{
	static const char *const hosts[] = {
		"", "0.0.0.0", "::", "localhost", "10.0.0.1:80", NULL
	};
	for (size_t i = 0; i < sizeof hosts / sizeof hosts[0]; i++) {
		struct ws_gloo_address a;
		struct ws_err err = WS_ERR_INIT;
		assert_fails(ws_gloo_address_make(hosts[i], 1, &a, &err), &err, WS_EUSAGE, "");
	}
}

/* A 16-byte broadcast, tag 0, as captured between torch processes. */
TEST(messages_are_what_torch_sends)
{
	static const struct { enum ws_gloo_opcode opcode; uint8_t n, code; } seen[] = {
		{ WS_GLOO_SEND_READY, 0x30, 2 },
		{ WS_GLOO_RECV_READY, 0x30, 3 },
		{ WS_GLOO_SEND_UNBOUND, 0x40, 1 },
	};
	for (size_t i = 0; i < 3; i++) {
		uint8_t want[WS_GLOO_PREAMBLE] = { 0 }, got[WS_GLOO_PREAMBLE];
		want[0] = seen[i].n;
		want[8] = seen[i].code;
		want[23] = 6;
		want[32] = 16;
		const struct ws_gloo_message m = { seen[i].opcode, ws_gloo_slot(0), 16 };
		ws_gloo_message_pack(&m, got);
		assert_memory_equal(got, want, sizeof want);
		struct ws_gloo_message back;
		assert_int_equal(ws_gloo_message_unpack(want, &back, NULL), 0);
		assert_int_equal(back.opcode, m.opcode);
		assert_int_equal(back.slot, m.slot);
		assert_int_equal(back.length, 16);
	}
	assert_int_equal(ws_gloo_slot(1), UINT64_C(0x0600000001000000));
}

TEST(malformed_messages_are_refused)
{
	static const struct { size_t at; uint8_t byte; } lies[] = {
		{ 0, 0x31 }, { 7, 1 }, { 8, 4 }, { 8, 0 }, { 15, 1 }, { 24, 1 }, { 39, 0x80 },
	};
	for (size_t i = 0; i < sizeof lies / sizeof lies[0]; i++) {
		uint8_t bytes[WS_GLOO_PREAMBLE];
		const struct ws_gloo_message m = { WS_GLOO_SEND_UNBOUND, ws_gloo_slot(3), 100 };
		ws_gloo_message_pack(&m, bytes);
		bytes[lies[i].at] = lies[i].byte;
		struct ws_gloo_message back;
		assert_int_equal(ws_gloo_message_unpack(bytes, &back, NULL), -1);
	}
}

TEST(other_collectives_are_called_by_name)
{
	uint32_t tag;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_gloo_slot_tag(ws_gloo_slot(0xffffffff), &tag, &err), 0);
	assert_int_equal(tag, 0xffffffff);
	assert_int_equal(ws_gloo_slot_tag(UINT64_C(7) << 56, &tag, &err), -1);
	assert_non_null(strstr(err.msg, "a barrier"));
	assert_int_equal(ws_gloo_slot_tag(UINT64_C(4) << 56 | 9, &tag, &err), -1);
	assert_non_null(strstr(err.msg, "an allreduce"));
	assert_fails(ws_gloo_slot_tag(12, &tag, &err), &err, WS_EDATA, "a plain send");
	assert_int_equal(ws_gloo_slot_tag(ws_gloo_slot(1) | 1, &tag, &err), -1);
	assert_int_equal(ws_gloo_slot_tag(UINT64_C(200) << 56, &tag, &err), -1);
}

TEST(the_tree_is_gloos)
{
	static const struct { unsigned size, root, rank, n, children[4]; } known[] = {
		{ 2, 0, 0, 1, { 1 } },          { 6, 0, 0, 3, { 1, 2, 4 } },
		{ 9, 0, 0, 4, { 1, 2, 4, 8 } }, { 16, 0, 1, 3, { 3, 5, 9 } },
		{ 16, 0, 2, 2, { 6, 10 } },     { 8, 0, 3, 1, { 7 } },
		{ 5, 3, 3, 3, { 4, 0, 2 } },    { 5, 3, 4, 1, { 1 } },
		{ 4, 0, 3, 0, { 0 } },
	};
	for (size_t i = 0; i < sizeof known / sizeof known[0]; i++) {
		unsigned children[32];
		assert_int_equal(ws_gloo_children(known[i].size, known[i].root, known[i].rank,
		                                  children),
		                 known[i].n);
		assert_memory_equal(children, known[i].children, known[i].n * sizeof children[0]);
	}
}

TEST(everybody_but_the_root_is_somebodys_child_once)
{
	for (unsigned size = 2; size < 40; size++) {
		for (unsigned root = 0; root < size; root++) {
			unsigned seen[40] = { 0 }, children[32];
			for (unsigned rank = 0; rank < size; rank++) {
				const unsigned n = ws_gloo_children(size, root, rank, children);
				for (unsigned i = 0; i < n; i++) {
					seen[children[i]]++;
					assert_int_equal(ws_gloo_parent(size, root, children[i]),
					                 rank);
				}
			}
			for (unsigned rank = 0; rank < size; rank++)
				assert_int_equal(seen[rank], rank != root);
		}
	}
}

/* ---- the ring ---- */

enum { MADE = 1000 * 1000 };

static uint8_t byte_at(size_t i)
{
	return (uint8_t)(i * 7 + (i >> 8) * 13 + (i >> 16));
}

static void *make_bytes(void *arg)
{
	struct ws_flow *f = arg;
	for (size_t at = 0; at < MADE;) {
		const size_t n = MADE - at < 3001 ? MADE - at : 3001;
		void *dst;
		if (ws_flow_wait_room(f, n, &dst))
			return NULL;
		for (size_t i = 0; i < n; i++)
			((uint8_t *)dst)[i] = byte_at(at + i);
		ws_flow_commit(f, n);
		at += n;
	}
	return NULL;
}

static void read_all(struct ws_flow *f)
{
	pthread_t producer;
	assert_int_equal(pthread_create(&producer, NULL, make_bytes, f), 0);
	size_t seen[2] = { 0, 0 };
	for (unsigned turn = 0; seen[0] < MADE || seen[1] < MADE; turn++) {
		for (unsigned c = 0; c < 2; c++) {
			const void *at;
			size_t n = ws_flow_peek(f, c, &at);
			if (c == 1 && n > 100) /* the slow one */
				n = 100 + turn % 600 < n ? 100 + turn % 600 : n;
			for (size_t i = 0; i < n; i++)
				if (((const uint8_t *)at)[i] != byte_at(seen[c] + i))
					fail_msg("consumer %u: byte %zu is wrong", c, seen[c] + i);
			ws_flow_consume(f, c, n);
			seen[c] += n;
		}
	}
	pthread_join(producer, NULL);
}

TEST(consumers_of_the_ring_see_all_bytes_at_their_own_pace)
{
	struct ws_flow *f = NULL;
	assert_int_equal(ws_flow_open(&f, 5000, 2, NULL), 0);
	read_all(f);
	ws_flow_close(f);
}

TEST(a_ring_is_empty_and_works_when_it_is_used_again)
{
	const struct ws_err why = { .code = WS_EINPUT };
	struct ws_flow *f = NULL;
	void *room, *again;
	const void *at;
	assert_int_equal(ws_flow_open(&f, 5000, 2, NULL), 0);
	const size_t fresh = ws_flow_room(f, &room);
	ws_flow_commit(f, 100);
	ws_flow_fail(f, &why);
	ws_flow_stop(f);
	assert_int_equal(ws_flow_open(&f, 5000, 2, NULL), 0);
	assert_int_equal(ws_flow_failed(f, NULL), 0);
	assert_int_equal(ws_flow_peek(f, 0, &at), 0);
	assert_int_equal(poll(&(struct pollfd){ .fd = ws_flow_fd(f), .events = POLLIN }, 1, 0), 0);
	assert_int_equal(ws_flow_room(f, &again), fresh);
	assert_ptr_equal(room, again);
	read_all(f);
	assert_int_equal(ws_flow_open(&f, 5000, 1, NULL), 0);
	assert_int_equal(ws_flow_open(&f, fresh + 1, 1, NULL), 0);
	assert_true(ws_flow_room(f, &again) > fresh);
	ws_flow_close(f);
}

TEST(a_stopped_producer_gives_up)
{
	struct ws_flow *f = NULL;
	assert_int_equal(ws_flow_open(&f, 4096, 1, NULL), 0);
	pthread_t producer;
	assert_int_equal(pthread_create(&producer, NULL, make_bytes, f), 0);
	ws_flow_stop(f);
	pthread_join(producer, NULL);
	ws_flow_close(f);
}

RUN_TESTS(NULL, NULL)
