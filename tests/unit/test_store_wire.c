/* SPDX-License-Identifier: Apache-2.0 */
/* test_store_wire.c - conversations as torch's clients hold them, cut into every kind of pieces. */
#include "store_feed.h"

#define ZEROS_8 "0000000000000000"
#define ADDRESS_136 /* of gloo: family, port, 127.0.0.1, padding, sequence -1 */ \
	"0200 8397 7f000001" ZEROS_8 ZEROS_8 ZEROS_8 ZEROS_8 ZEROS_8 ZEROS_8 ZEROS_8 ZEROS_8 \
	ZEROS_8 ZEROS_8 ZEROS_8 ZEROS_8 ZEROS_8 ZEROS_8 ZEROS_8 "ffffffffffffffff"
#define BLOB_170 "0200000000000000 \"vm\" 8800000000000000" ADDRESS_136 \
	"0000000000000000 0100000000000000"

struct turn {
	const char *request, *reply;
};

static const struct turn every_operation[] = {
	{ "00 cef7853c", "" },
	{ "0d 34120000", "34120000" },
	{ "04 0500000000000000 696e69742f 0100000000000000", "0100000000000000" },
	{ "02 0200000000000000 2f6b 0000000000000000 0100000000000000 76", "0100000000000000 76" },
	{ "01 0200000000000000 2f6b 0100000000000000 77", "" },
	{ "03 0200000000000000 2f6b", "0100000000000000 77" },
	{ "05 0200000000000000 0200000000000000 2f61 0200000000000000 2f62", "01" },
	{ "06 0100000000000000 0200000000000000 2f6b", "00" },
	{ "07", "0200000000000000" },
	{ "08 0200000000000000 2f6b", "0100000000000000" },
	{ "08 0200000000000000 2f6b", "0000000000000000" },
	{ "09 0200000000000000 2f6b 0100000000000000 76", "" },
	{ "09 0200000000000000 2f6b 0100000000000000 77", "" },
	{ "03 0200000000000000 2f6b", "0200000000000000 7677" },
	{ "0b 0200000000000000 0200000000000000 2f61 0100000000000000 78"
	  "0200000000000000 2f62 0000000000000000", "" },
	{ "0a 0200000000000000 0200000000000000 2f61 0200000000000000 2f62",
	  "0100000000000000 78 0000000000000000" },
	{ "05 0200000000000000 0200000000000000 2f61 0200000000000000 2f62", "00" },
	{ "0c", "01" },
	{ "05 0100000000000000 0200000000000000 2f71", "01" },
	{ "12 0200000000000000 2f78 0100000000000000", "00" },
	{ "03 0200000000000000 2f79", "0000000000000000" },
	{ "06 0000000000000000", "00" },
};

/* A peer of torch 1.13 in a gloo group of two; what rank 0 publishes is there before it asks. */
static const struct turn torch_1_13[] = {
	{ "03", "" },
	{ "0500000000000000 \"init/\" 0100000000000000", "0100000000000000" },
	{ "00", "" },
	{ "1100000000000000 \"/wug/wug/0/rank_1\" 0200000000000000 \"vm\"", "" },
	{ "00", "" },
	{ "0c00000000000000 \"/wug/wug/0/1\" 8800000000000000" ADDRESS_136, "" },
	{ "05", "" },
	{ "0100000000000000 0c00000000000000 \"/wug/wug/0/0\"", "00" },
	{ "05 0100000000000000 0c00000000000000 \"/wug/wug/0/0\"", "00" },
	{ "02", "" },
	{ "0c00000000000000 \"/wug/wug/0/0\"", "8800000000000000" ADDRESS_136 },
};

static const struct turn torch_2_6[] = {
	{ "00cef7853c", "" },
	{ "0d53050000", "53050000" },
	{ "04 0500000000000000 \"init/\" 0100000000000000", "0100000000000000" },
	{ "01 1200000000000000 \"/wug/wug//cpu//0/1\" aa00000000000000" BLOB_170, "" },
	{ "06 0100000000000000 1200000000000000 \"/wug/wug//cpu//0/0\"", "00" },
	{ "06 0100000000000000 1200000000000000 \"/wug/wug//cpu//0/0\"", "00" },
	{ "03 1200000000000000 \"/wug/wug//cpu//0/0\"", "aa00000000000000" BLOB_170 },
};

static void set_own(struct ws_store_core *core, const char *key, const char *hex)
{
	struct ws_buf b;
	bytes_of(&b, hex);
	assert_int_equal(ws_store_keys_set(&core->keys, (struct ws_bytes){ key, strlen(key) },
	                                   (struct ws_bytes){ b.data, b.len }), 0);
	ws_buf_free(&b);
}

static void gather(const struct turn *turns, size_t n, struct ws_buf *in, struct ws_buf *out)
{
	ws_buf_init(in, 0);
	ws_buf_init(out, 0);
	for (size_t i = 0; i < n; i++) {
		struct ws_buf b;
		bytes_of(&b, turns[i].request);
		ws_buf_add(in, b.data, b.len);
		ws_buf_free(&b);
		bytes_of(&b, turns[i].reply);
		ws_buf_add(out, b.data, b.len);
		ws_buf_free(&b);
	}
}

/* most: of one piece; 0: all at once. */
static void converse(const struct turn *turns, size_t n, size_t most)
{
	struct ws_store_core core;
	struct ws_buf in, out;
	core_open(&core, 2, turns == every_operation ? NULL : "wug");
	struct ws_store_conn *c = ws_store_conn_open(&core, "10.0.0.2:1234");
	gather(turns, n, &in, &out);
	/* The address of rank 0 counts as a key of the conversation with every operation too. */
	if (turns != every_operation) {
		set_own(&core, "/wug/wug/0/0", ADDRESS_136);
		set_own(&core, "/wug/wug//cpu//0/0", BLOB_170);
	}
	for (size_t at = 0, now; at < in.len; at += now) {
		now = most == 0 ? in.len : 1 + (size_t)rand() % most;
		now = now > in.len - at ? in.len - at : now;
		feed(c, in.data + at, now);
		assert_false(c->doomed);
	}
	assert_int_equal(c->rx.len, 0);
	assert_int_equal(core.n_partial, 0);
	assert_int_equal(c->tx.len, out.len);
	assert_memory_equal(c->tx.data, out.data, out.len);
	ws_buf_free(&in);
	ws_buf_free(&out);
	ws_store_core_fini(&core);
}

#define COUNT(array) (sizeof(array) / sizeof((array)[0]))

TEST(conversations_survive_every_splitting)
{
	srand(1);
	for (int round = 0; round < 200; round++) {
		const size_t most = round == 0 ? 0 : round == 1 ? 1 : 1 + (size_t)rand() % 40;
		converse(every_operation, COUNT(every_operation), most);
		converse(torch_1_13, COUNT(torch_1_13), most);
		converse(torch_2_6, COUNT(torch_2_6), most);
	}
}

TEST(each_request_is_answered_by_itself)
{
	struct ws_store_core core;
	core_open(&core, 2, NULL);
	struct ws_store_conn *c = ws_store_conn_open(&core, "10.0.0.2:1234");
	for (size_t i = 0; i < COUNT(every_operation); i++)
		talk(c, every_operation[i].request, every_operation[i].reply);
	ws_store_core_fini(&core);
}

TEST(every_prefix_of_a_request_wants_more)
{
	for (size_t i = 1; i < COUNT(every_operation); i++) {
		struct ws_buf b;
		bytes_of(&b, every_operation[i].request);
		for (size_t n = 0; n <= b.len; n++) {
			struct ws_store_scan s = { .epoch = WS_EPOCH_C };
			/* The exact allocation lets a sanitizer see a read beyond the end. */
			char *exact = malloc(n + !n);
			memcpy(exact, b.data, n);
			assert_int_equal(ws_store_scan(&s, exact, n),
			                 n < b.len ? WS_SCAN_MORE : WS_SCAN_DONE);
			free(exact);
		}
		ws_buf_free(&b);
	}
}

TEST(a_stopped_scan_goes_on_where_it_was)
{
	struct ws_buf b;
	bytes_of(&b, "06 0300000000000000 0200000000000000 2f61 0200000000000000 2f62"
	             "0200000000000000 2f63");
	struct ws_store_scan s = { .epoch = WS_EPOCH_C };
	for (size_t n = 1; n < b.len; n++)
		assert_int_equal(ws_store_scan(&s, b.data, n), WS_SCAN_MORE);
	assert_int_equal(s.at, 1 + 8 + 2 * 10);
	assert_int_equal(ws_store_scan(&s, b.data, b.len), WS_SCAN_DONE);
	assert_int_equal(s.at, b.len);
	ws_buf_free(&b);
}

static enum ws_scan first_look(const char *hex, enum ws_store_epoch *epoch)
{
	struct ws_buf b;
	struct ws_store_scan s = { .epoch = WS_EPOCH_NONE };
	bytes_of(&b, hex);
	const enum ws_scan r = ws_store_scan(&s, b.data, b.len);
	*epoch = s.epoch;
	ws_buf_free(&b);
	return r;
}

TEST(the_first_bytes_tell_the_epoch)
{
	enum ws_store_epoch e;
	assert_int_equal(first_look("00", &e), WS_SCAN_MORE);
	assert_int_equal(e, WS_EPOCH_NONE);
	assert_int_equal(first_look("00 cef785", &e), WS_SCAN_MORE);
	assert_int_equal(e, WS_EPOCH_NONE);
	assert_int_equal(first_look("00 cef7853c", &e), WS_SCAN_DONE);
	assert_int_equal(e, WS_EPOCH_C);
	assert_int_equal(first_look("03", &e), WS_SCAN_MORE);
	assert_int_equal(e, WS_EPOCH_OLD);
	assert_int_equal(first_look("00 0200000000000000 2f6b 0000000000000000", &e), WS_SCAN_DONE);
	assert_int_equal(e, WS_EPOCH_OLD);
	assert_int_equal(first_look("07 0200000000000000 2f6b", &e), WS_SCAN_DONE);
	assert_int_equal(e, WS_EPOCH_A);
	/* A magic number that is nearly right is read as a length, and too long. */
	assert_int_equal(first_look("00 cef7853d 00000000", &e), WS_SCAN_BAD);
}

static void scan_is_bad(enum ws_store_epoch epoch, const char *hex)
{
	struct ws_buf b;
	struct ws_store_scan s = { .epoch = epoch };
	bytes_of(&b, hex);
	assert_int_equal(ws_store_scan(&s, b.data, b.len), WS_SCAN_BAD);
	ws_buf_free(&b);
}

TEST(lengths_beyond_the_limits_are_refused_before_they_arrive)
{
	scan_is_bad(WS_EPOCH_C, "01 ffffffffffffffff");
	scan_is_bad(WS_EPOCH_C, "01 f8ffffffffffffff");
	scan_is_bad(WS_EPOCH_C, "01 0000000000000080");
	/* key: 8 KiB + 1 */
	scan_is_bad(WS_EPOCH_C, "01 0120000000000000");
	/* value: 8 MiB + 1 */
	scan_is_bad(WS_EPOCH_C, "01 0200000000000000 2f6b 0100800000000000");
	scan_is_bad(WS_EPOCH_C, "01 0200000000000000 2f6b ffffffffffffffff");
	/* list: 128 Ki + 1 */
	scan_is_bad(WS_EPOCH_C, "06 0100020000000000");
	scan_is_bad(WS_EPOCH_C, "06 ffffffffffffffff");
	/* i64 -1 pairs */
	scan_is_bad(WS_EPOCH_C, "0b ffffffffffffffff");
	scan_is_bad(WS_EPOCH_C, "0b 0000000000000080");
	/* queues */
	scan_is_bad(WS_EPOCH_C, "0e");
	scan_is_bad(WS_EPOCH_C, "0f");
	scan_is_bad(WS_EPOCH_C, "10");
	scan_is_bad(WS_EPOCH_C, "13");
	scan_is_bad(WS_EPOCH_C, "ff");
	scan_is_bad(WS_EPOCH_OLD, "0d");
	scan_is_bad(WS_EPOCH_OLD, "0c");
	struct ws_store_scan s = { .epoch = WS_EPOCH_C };
	const char just_legal[] = "\x01\x00\x20\0\0\0\0\0";
	assert_int_equal(ws_store_scan(&s, just_legal, 9), WS_SCAN_MORE);
}

TEST(a_request_has_a_limit_as_a_whole)
{
	struct ws_buf b;
	ws_buf_init(&b, 0);
	ws_store_put_u8(&b, 11);
	ws_store_put_i64(&b, 5);
	char *value = calloc(1, WS_STORE_VALUE_MAX);
	for (int i = 0; i < 5; i++) {
		put_str(&b, "/k");
		ws_store_put_bytes(&b, value, WS_STORE_VALUE_MAX);
	}
	struct ws_store_scan s = { .epoch = WS_EPOCH_C };
	assert_int_equal(ws_store_scan(&s, b.data, b.len), WS_SCAN_BAD);
	assert_true(s.at <= WS_STORE_REQUEST_MAX);
	free(value);
	ws_buf_free(&b);
}

TEST(opcodes_above_six_tell_a_from_b)
{
	const struct {
		bool twin;
		const char *hex;
		enum ws_store_op op;
		enum ws_store_epoch epoch;
	} cases[] = {
		{ false, "07 0200000000000000 2f6b", WS_OP_DELETE_KEY, WS_EPOCH_B },
		{ true, "08 0200000000000000 2f6b", WS_OP_DELETE_KEY, WS_EPOCH_A },
		{ false, "08 0200000000000000 2f6b 0000000000000000", WS_OP_APPEND, WS_EPOCH_B },
		{ false, "0b", WS_OP_CANCEL_WAIT, WS_EPOCH_B },
		{ true, "0c", WS_OP_CANCEL_WAIT, WS_EPOCH_A },
		{ false, "06", WS_OP_GETNUMKEYS, WS_EPOCH_OLD },
	};
	for (size_t i = 0; i < COUNT(cases); i++) {
		struct ws_store_scan s = { .epoch = WS_EPOCH_OLD, .twin = cases[i].twin };
		struct ws_buf b;
		bytes_of(&b, cases[i].hex);
		assert_int_equal(ws_store_scan(&s, b.data, b.len), WS_SCAN_DONE);
		assert_int_equal(s.op, cases[i].op);
		assert_int_equal(s.epoch, cases[i].epoch);
		ws_buf_free(&b);
	}
}

TEST(every_operation_has_a_name_and_an_opcode_somewhere)
{
	for (int op = 0; op < WS_OP_COUNT; op++) {
		assert_string_not_equal(ws_store_op_name((enum ws_store_op)op), "?");
		assert_true(ws_store_opcode(WS_EPOCH_A, (enum ws_store_op)op) >= 0 ||
		            ws_store_opcode(WS_EPOCH_C, (enum ws_store_op)op) >= 0);
		assert_int_equal(ws_store_opcode(WS_EPOCH_NONE, (enum ws_store_op)op), -1);
	}
	assert_string_equal(ws_store_op_name(WS_OP_COUNT), "?");
}

RUN_TESTS(NULL, NULL)
