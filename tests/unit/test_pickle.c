/* SPDX-License-Identifier: Apache-2.0 */
/* Buckets as pickles, base64, and the endpoint that takes them; torch's word is in tests/peers. */
#include "base64.h"
#include "hash.h"
#include "pickle_bucket.h"
#include "serve_core.h"
#include "serve_call.h"
#include "test.h"

static const struct ws_pickle_tensor two[] = {
	{ .name = "w.a", .dtype = WS_DTYPE_F32, .n_dims = 2, .dims = { 2, 3 }, .bytes = 24 },
	{ .name = "w.b", .dtype = WS_DTYPE_BF16, .n_dims = 1, .dims = { 5 }, .bytes = 10 },
};
enum { BYTES = 34 };

static void make(struct ws_buf *out, uint8_t first)
{
	ws_buf_init(out, 0);
	ws_pickle_begin(out, BYTES);
	for (unsigned i = 0; i < BYTES; i++)
		ws_buf_putc(out, (char)(first + i));
	ws_pickle_end(out, two, 2, BYTES);
	assert_false(out->failed);
}

TEST(what_is_written_is_read)
{
	struct ws_buf b;
	struct ws_err err = WS_ERR_INIT;
	struct ws_pickle_bucket got;
	make(&b, 1);
	assert_ok(ws_pickle_read(b.data, b.len, &got, &err), &err);
	assert_int_equal(got.n, 2);
	assert_int_equal(got.length, BYTES);
	for (size_t i = 0; i < 2; i++) {
		assert_string_equal(got.tensors[i].name, two[i].name);
		assert_int_equal(got.tensors[i].dtype, two[i].dtype);
		assert_int_equal(got.tensors[i].n_dims, two[i].n_dims);
		assert_memory_equal(got.tensors[i].dims, two[i].dims, sizeof two[i].dims);
	}
	for (unsigned i = 0; i < BYTES; i++)
		assert_int_equal(got.bytes[i], 1 + i);
	ws_pickle_free(&got);
	ws_buf_free(&b);
}

static void make_on_gpu(struct ws_buf *out, const char *uuid)
{
	static unsigned char handle[64];
	for (size_t i = 0; i < sizeof handle; i++)
		handle[i] = (unsigned char)(i + 100);
	const struct ws_pickle_cuda where = { .handle = handle, .at = UINT64_C(1) << 40,
		                              .uuid = uuid, .ordinal = 3,
		                              .room = uuid ? 0 : 10 * BYTES };
	ws_buf_init(out, 0);
	ws_pickle_cuda(out, &where, two, 2, BYTES);
	assert_false(out->failed);
}

TEST(bytes_on_a_gpu_are_found_by_name_or_number)
{
	static const char *const uuids[] = { "40404040-1111-2222-3333-444444444444", NULL };
	for (size_t i = 0; i < 2; i++) {
		struct ws_buf b;
		struct ws_err err = WS_ERR_INIT;
		struct ws_pickle_bucket got;
		make_on_gpu(&b, uuids[i]);
		assert_ok(ws_pickle_read(b.data, b.len, &got, &err), &err);
		assert_int_equal(got.n, 2);
		assert_int_equal(got.length, BYTES);
		assert_null(got.bytes);
		assert_int_equal(got.memory.handle[0], 100);
		assert_int_equal(got.memory.handle[63], 163);
		assert_int_equal(got.memory.at, UINT64_C(1) << 40);
		assert_string_equal(got.memory.uuid, uuids[i] ? uuids[i] : "");
		assert_int_equal(got.memory.ordinal, uuids[i] ? -1 : 3);
		ws_pickle_free(&got);
		ws_buf_free(&b);
	}
}

static void survive(struct ws_buf *b)
{
	struct ws_pickle_bucket got;
	for (size_t n = 0; n < b->len; n++) {
		struct ws_err err = WS_ERR_INIT;
		assert_fails(ws_pickle_read(b->data, n, &got, &err), &err, WS_EINPUT, "");
		assert_true(err.msg[0]);
	}
	for (size_t i = 0; i < b->len; i++)
		for (unsigned v = 0; v < 256; v += 5) {
			struct ws_err err = WS_ERR_INIT;
			const char was = b->data[i];
			b->data[i] = (char)v;
			if (ws_pickle_read(b->data, b->len, &got, &err) == 0)
				ws_pickle_free(&got);
			else
				assert_true(err.msg[0]);
			b->data[i] = was;
		}
	ws_buf_free(b);
}

TEST(every_cut_and_every_changed_byte_is_survived)
{
	struct ws_buf b;
	make(&b, 0);
	survive(&b);
	make_on_gpu(&b, "40404040-1111-2222-3333-444444444444");
	survive(&b);
	make_on_gpu(&b, NULL);
	survive(&b);
}

TEST(other_names_than_ours_are_blocked)
{
	static const char *const evil[] = {
		"cos\nsystem\n(X\x04\0\0\0truetR.", "cbuiltins\neval\n.", "ctorch.storage\nload\n.",
		"cposix\nsystem\n.", "ccollections\nCounter\n.",
	};
	for (size_t i = 0; i < sizeof evil / sizeof evil[0]; i++) {
		struct ws_err err = WS_ERR_INIT;
		struct ws_pickle_bucket got;
		assert_int_equal(ws_pickle_read(evil[i], strlen(evil[i]), &got, &err), -1);
		assert_non_null(strstr(err.msg, "Blocked unsafe class loading ("));
	}
}

TEST(base64_is_strict)
{
	static const struct {
		const char *plain, *text;
	} good[] = { { "", "" },        { "f", "Zg==" },        { "no", "bm8=" },
		     { "foo", "Zm9v" }, { "foob", "Zm9vYg==" }, { "\xff\xfe\xfd", "//79" },
		     { ">>>", "Pj4+" } };
	static const char *const bad[] = { "Z",      "Zg",           "Zg=",  "Zg=a", "Z===", "====",
		                           "Zm9v\n", "Zm9vZg==Zm9v", "Pj4-", "Zm9 ", "=m9v" };
	for (size_t i = 0; i < sizeof good / sizeof good[0]; i++) {
		struct ws_buf b;
		ws_buf_init(&b, 0);
		ws_base64_encode(&b, good[i].plain, strlen(good[i].plain));
		assert_string_equal(ws_buf_str(&b), good[i].text);
		ws_buf_reset(&b);
		assert_int_equal(ws_base64_decode(&b, good[i].text, strlen(good[i].text), NULL), 0);
		assert_string_equal(ws_buf_str(&b), good[i].plain);
		ws_buf_free(&b);
	}
	for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
		struct ws_buf b;
		struct ws_err err = WS_ERR_INIT;
		ws_buf_init(&b, 0);
		assert_int_equal(ws_base64_decode(&b, bad[i], strlen(bad[i]), &err), -1);
		assert_int_equal(err.code, WS_EINPUT);
		ws_buf_free(&b);
	}
}

/* ---- the endpoint ---- */

static struct ws_serve *serve;

static void start(unsigned tp, enum ws_serve_keep keep)
{
	struct ws_err err = WS_ERR_INIT;
	const struct ws_serve_opts o = { .listen = "127.0.0.1:0", .tp = tp, .keep = keep };
	assert_ok(ws_serve_start(&o, &serve, &err), &err);
}

static int stop(void **state)
{
	(void)state;
	ws_serve_stop(serve);
	serve = NULL;
	return 0;
}

static void post(const char *body, unsigned status, const char *says)
{
	const struct ws_serve_request rq = { .method = "POST",
		                             .path = "/update_weights_from_tensor", .body = body,
		                             .body_len = strlen(body) };
	struct ws_serve_reply rp;
	ws_serve_handle(serve, &rq, &rp);
	if (rp.status != status || !strstr(ws_buf_str(&rp.body), says))
		fail_msg("%u, '%s'; expected %u, '%s'", rp.status, ws_buf_str(&rp.body), status,
		         says);
	ws_buf_free(&rp.body);
}

/* An element per value of first. */
static void send(const uint8_t *first, size_t n, const char *more, unsigned status,
                 const char *says)
{
	struct ws_buf body, pickle;
	ws_buf_init(&body, 0);
	ws_buf_puts(&body, "{\"serialized_named_tensors\":[");
	for (size_t i = 0; i < n; i++) {
		ws_buf_puts(&body, i ? ",\"" : "\"");
		make(&pickle, first[i]);
		ws_base64_encode(&body, pickle.data, pickle.len);
		ws_buf_free(&pickle);
		ws_buf_puts(&body, "\"");
	}
	ws_buf_printf(&body, "]%s}", more);
	post(ws_buf_str(&body), status, says);
	ws_buf_free(&body);
}

static const char flat[] = ",\"load_format\":\"flattened_bucket\"";

TEST_BETWEEN(the_endpoint_keeps_what_a_request_holds, NULL, stop)
{
	static const uint8_t same[] = { 7, 7 };
	start(2, WS_KEEP_MEMORY);
	send(same, 2, ",\"load_format\":\"flattened_bucket\",\"weight_version\":\"5\"", 200,
	     "version updated to 5");
	const struct ws_serve_weight *w = ws_serve_weights_find(&serve->weights, "w.b");
	assert_non_null(w);
	assert_int_equal(w->bytes, 10);
	for (unsigned i = 0; i < 10; i++)
		assert_int_equal(w->data[i], 7 + 24 + i);
	assert_int_equal(serve->journal.flushes, 1);
}

TEST_BETWEEN(or_their_hashes, NULL, stop)
{
	static const uint8_t one[] = { 9 };
	uint8_t bytes[24];
	start(1, WS_KEEP_HASH);
	send(one, 1, flat, 200, "Success");
	for (unsigned i = 0; i < 24; i++)
		bytes[i] = (uint8_t)(9 + i);
	assert_true(ws_serve_weights_find(&serve->weights, "w.a")->hash == ws_hash64(bytes, 24));
}

TEST_BETWEEN(what_does_not_fit_is_refused, NULL, stop)
{
	static const uint8_t differ[] = { 1, 2, 3 };
	start(2, WS_KEEP_MEMORY);
	send(differ, 2, flat, 400, "rank 1 is sent other tensors than rank 0");
	send(differ, 1, flat, 400, "1 elements for 2 tensor-parallel ranks");
	send(differ, 3, flat, 400, "3 elements for 2");
	send(differ, 2, "", 400, "only load_format");
	post("{}", 400, "Field required");
	post("{\"serialized_named_tensors\":3}", 400, "valid list");
	post("{\"serialized_named_tensors\":[3,4]}", 400, "valid string");
	post("{\"serialized_named_tensors\":[\"Zg\",\"\"],\"load_format\":\"flattened_bucket\"}",
	     400, "base64");
	post("{\"serialized_named_tensors\":[\"Zm9v\",\"\"],\"load_format\":\"flattened_bucket\"}",
	     400, "pickle: ");
	assert_int_equal(serve->journal.updates, 0);
}

RUN_TESTS(NULL, NULL)
