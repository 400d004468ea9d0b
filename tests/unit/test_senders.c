/* SPDX-License-Identifier: Apache-2.0 */
/* What senders tell each other comes back as it was said, and what is cut,
 * turned or grown is refused. */
#include "senders.h"
#include "test.h"

static struct ws_plan_tensor tensors[] = {
	{ .name = "b", .dtype = WS_DTYPE_BF16, .n_dims = 2, .dims = { 4, 6 }, .bytes = 48 },
	{ .name = "a", .dtype = WS_DTYPE_F32, .n_dims = 1, .dims = { 8 }, .bytes = 32 },
};
static const struct ws_plan plan = { .tensors = tensors, .n_tensors = 2 };

static void make_list(struct ws_sender_list *l, unsigned sender)
{
	assert_int_equal(ws_senders_list(&plan, l, NULL), 0);
	l->sender = sender;
	l->senders = 3;
	snprintf(l->round, sizeof l->round, "job1-7");
}

static void write_list(struct ws_buf *out)
{
	struct ws_sender_list l;
	make_list(&l, 2);
	ws_buf_init(out, 0);
	ws_senders_write_list(&l, out);
	ws_senders_list_free(&l);
}

TEST(a_list_comes_back_by_name)
{
	struct ws_sender_list l;
	struct ws_err err = WS_ERR_INIT;
	struct ws_buf text;
	write_list(&text);
	assert_ok(ws_senders_read_list(text.data, text.len, &l, &err), &err);
	assert_int_equal(l.sender, 2);
	assert_int_equal(l.senders, 3);
	assert_string_equal(l.round, "job1-7");
	assert_int_equal(l.n, 2);
	assert_string_equal(l.tensors[0].name, "a");
	assert_int_equal(l.tensors[0].dtype, WS_DTYPE_F32);
	assert_int_equal(l.tensors[1].bytes, 48);
	assert_int_equal(l.tensors[1].dims[1], 6);
	ws_senders_list_free(&l);
	ws_buf_free(&text);
}

TEST(a_list_that_was_cut_or_turned_is_refused)
{
	struct ws_sender_list l;
	struct ws_err err = WS_ERR_INIT;
	struct ws_buf text;
	write_list(&text);
	for (size_t n = 0; n < text.len; n++) {
		assert_fails(ws_senders_read_list(text.data, n, &l, &err), &err, WS_EDATA, "");
	}
	/* Names that do not rise, or with a control character. */
	char *a = memmem(text.data, text.len, "\1\0\0\0\0\0\0\0a", 9);
	assert_non_null(a);
	a[8] = 'c';
	assert_int_equal(ws_senders_read_list(text.data, text.len, &l, &err), -1);
	a[8] = '\n';
	assert_int_equal(ws_senders_read_list(text.data, text.len, &l, &err), -1);
	a[8] = 'a';
	text.data[0] = 1;
	assert_int_equal(ws_senders_read_list(text.data, text.len, &l, &err), -1);
	assert_string_equal(err.msg, "a sender is of another release of wsync");
	ws_buf_free(&text);
}

TEST(lists_unite_by_name)
{
	struct ws_sender_list l[2];
	struct ws_sender_union u;
	struct ws_err err = WS_ERR_INIT;
	make_list(&l[0], 1);
	make_list(&l[1], 2);
	l[0].n = 1; /* without b */
	assert_int_equal(ws_senders_unite(l, 2, &u, &err), 0);
	assert_int_equal(u.plan.n_tensors, 2);
	assert_int_equal(u.plan.bytes, 80);
	assert_true(ws_senders_has(&u.have[0], 0) && ws_senders_has(&u.have[0], 1));
	assert_true(!ws_senders_has(&u.have[1], 0) && ws_senders_has(&u.have[1], 1));
	ws_senders_union_free(&u);
	l[1].tensors[0].dims[0] = 9;
	assert_fails_with(ws_senders_unite(l, 2, &u, &err), &err, WS_EREFUSED,
	                  "tensor a is float32 at sender 1 and float32 at sender 2, of another "
	                  "shape");
	ws_senders_list_free(&l[0]);
	ws_senders_list_free(&l[1]);
}

static void write_share(const struct ws_sender_list *mine, struct ws_buf *out)
{
	struct ws_stripe stripes[2] = { { .tensor = &tensors[0], .at = { 1, 2 }, .size = { 2, 3 } },
		                        { .length = 10 } };
	ws_buf_init(out, 0);
	ws_share_write_head(out, 5, false, "g", 2);
	ws_share_write_batch(out, 1);
	assert_int_equal(ws_share_write_send(out, 4, stripes, 2, mine, NULL), 0);
	ws_share_write_batch(out, 0);
}

TEST(a_share_comes_back)
{
	struct ws_sender_list mine;
	struct ws_share s;
	struct ws_err err = WS_ERR_INIT;
	struct ws_buf text;
	make_list(&mine, 2);
	write_share(&mine, &text);
	assert_ok(ws_share_read(text.data, text.len, &mine, &s, &err), &err);
	assert_int_equal(s.world_size, 5);
	assert_string_equal(s.group, "g");
	assert_int_equal(s.n_batches, 2);
	assert_int_equal(s.ends[0], 1);
	assert_int_equal(s.ends[1], 1);
	assert_int_equal(s.sends[0].rank, 4);
	assert_int_equal(s.sends[0].length, 2 * 3 * 2 + 10);
	assert_ptr_equal(s.stripes[0].tensor, &mine.tensors[1]);
	assert_int_equal(s.stripes[0].run, 6);
	ws_share_free(&s);
	for (size_t n = 0; n < text.len; n++)
		assert_int_equal(ws_share_read(text.data, n, &mine, &s, &err), -1);
	ws_buf_free(&text);
	ws_senders_list_free(&mine);
}

/* Each word in turn becomes huge: what would reach beyond a tensor, a rank or the text is
 * refused. */
TEST(a_share_beyond_what_is_there_is_refused)
{
	struct ws_sender_list mine;
	struct ws_share s;
	struct ws_buf text;
	make_list(&mine, 2);
	write_share(&mine, &text);
	for (size_t at = 0; at + 8 <= text.len; at++) {
		char was[8];
		memcpy(was, text.data + at, 8);
		memset(text.data + at, 0x7f, 8);
		if (ws_share_read(text.data, text.len, &mine, &s, NULL) == 0)
			ws_share_free(&s);
		memcpy(text.data + at, was, 8);
	}
	/* One row further than b has. */
	struct ws_stripe beyond = { .tensor = &tensors[0], .at = { 3, 0 }, .size = { 2, 6 } };
	ws_buf_reset(&text);
	ws_share_write_head(&text, 5, false, "g", 1);
	ws_share_write_batch(&text, 1);
	assert_int_equal(ws_share_write_send(&text, 4, &beyond, 1, &mine, NULL), 0);
	assert_int_equal(ws_share_read(text.data, text.len, &mine, &s, NULL), -1);
	ws_buf_free(&text);
	ws_senders_list_free(&mine);
}

TEST(an_end_is_told_with_its_reason)
{
	struct ws_err why = WS_ERR_INIT, said = WS_ERR_INIT;
	struct ws_buf text;
	ws_buf_init(&text, 0);
	ws_senders_write_end(&text, &why);
	assert_int_equal(ws_senders_read_end(text.data, text.len, &said), 0);
	ws_err_set(&why, WS_EREFUSED, "it said\nno");
	ws_err_hint(&why, "ask again");
	ws_buf_reset(&text);
	ws_senders_write_end(&text, &why);
	assert_fails_with(ws_senders_read_end(text.data, text.len, &said), &said, WS_EREFUSED,
	                  "it said?no");
	assert_string_equal(said.hint, "ask again");
	assert_fails(ws_senders_read_end(text.data, text.len - 1, &said), &said, WS_EDATA, "");
	ws_buf_free(&text);
}

TEST(long_values_go_in_pieces)
{
	const struct ws_store_opts opts = { .host = "127.0.0.1" };
	struct ws_store *store = NULL;
	struct ws_err err = WS_ERR_INIT;
	struct ws_buf value, got;
	assert_int_equal(ws_store_open(&opts, &store, &err), 0);
	const struct ws_gloo_kv kv = ws_gloo_kv_store(store);
	ws_buf_init(&value, 0);
	ws_buf_init(&got, 0);
	for (size_t n = 0; n <= 9u << 20; n += (9u << 20) / 3) {
		ws_buf_reset(&value);
		assert_int_equal(ws_buf_reserve(&value, n + 1), 0);
		for (size_t i = 0; i < n; i += 4)
			ws_buf_add(&value, &i, n - i < 4 ? n - i : 4);
		assert_int_equal(ws_senders_put(&kv, "k", &value, WS_FOREVER, &err), 0);
		assert_int_equal(ws_senders_get(&kv, "k", ws_deadline_in(0), NULL, &got, &err), 0);
		assert_int_equal(got.len, value.len);
		assert_true(n == 0 || memcmp(got.data, value.data, n) == 0);
	}
	assert_int_equal(ws_store_set(store, "k", "400", 3, false, &err), 0);
	assert_int_equal(ws_senders_get(&kv, "k", ws_deadline_in(0), NULL, &got, &err), -1);
	assert_int_equal(err.code, WS_EDATA);
	ws_buf_free(&value);
	ws_buf_free(&got);
	ws_store_close(store);
}

RUN_TESTS(NULL, NULL)
