/* SPDX-License-Identifier: Apache-2.0 */
/* Manifests of GPU memory: what is accepted, what is refused with which words, and what a source
 * makes of one whose memory a test lends. */
#include "checkpoint.h"
#include "manifest.h"
#include "exported_memory.h"
#include "payloads.h"
#include "wsync/tool/catalog.h"
#include "wsync/tool/shards.h"

#include <sys/stat.h>
#include <unistd.h>

#include "scratch.h"
#include "test.h"

#define HEX16 "0123456789abcDEF"
#define HANDLE HEX16 HEX16 HEX16 HEX16 HEX16 HEX16 HEX16 /* 16 digits go before it */
#define ONE "0000000000000001" HANDLE
#define TWO "0000000000000002" HANDLE
#define UUID "GPU-00010203-0405-0607-0809-0a0b0c0d0eFF"

static const char good[] =
	"{\"version\": 1,\n"
	" \"process\": {\"pid\": 77, \"start\": 88, \"boot_id\": \"b\", \"pid_namespace\": "
        "\"pid:[1]\", \"host\": \"h\"},\n"
	" \"devices\": [{\"uuid\": \"" UUID "\", \"ordinal\": 3}],\n"
	" \"allocations\": [{\"device\": 0, \"handle\": \"" ONE "\", \"bytes\": 4096},\n"
	"                 {\"device\": 0, \"handle\": \"" TWO "\", \"bytes\": 100}],\n"
	" \"tensors\": {\"two\": {\"dtype\": \"float32\", \"shape\": [5, 5], \"allocation\": 1, "
        "\"offset\": 0},\n"
	"             \"one\": {\"dtype\": \"bfloat16\", \"shape\": [4, 8], \"allocation\": 0, "
        "\"offset\": 512},\n"
	"             \"tied\": {\"shape\": [8, 4], \"dtype\": \"bfloat16\", \"offset\": 512, "
        "\"allocation\": 0},\n"
	"             \"none\": {\"dtype\": \"uint8\", \"shape\": [0]}},\n"
	" \"config\": \"sub/config.json\", \"metadata\": {\"step\": \"7\"}}\n";

static int parse(const char *text, struct ws_manifest *m, struct ws_err *err)
{
	*err = (struct ws_err)WS_ERR_INIT;
	return ws_manifest_parse(text, strlen(text), "m.json", m, err);
}

TEST(a_manifest_is_read_as_it_stands_there)
{
	struct ws_manifest m;
	struct ws_err err;
	assert_int_equal(parse(good, &m, &err), 0);
	assert_int_equal(m.process.pid, 77);
	assert_int_equal(m.process.start_ticks, 88);
	assert_string_equal(m.process.pid_namespace, "pid:[1]");
	assert_int_equal(m.n_devices, 1);
	assert_string_equal(m.devices[0].name, UUID);
	assert_int_equal(m.devices[0].uuid[1], 1);
	assert_int_equal(m.devices[0].uuid[15], 0xff);
	assert_int_equal(m.devices[0].ordinal, 3);
	assert_int_equal(m.n_allocations, 2);
	assert_int_equal(m.allocations[1].handle[7], 2);
	assert_int_equal(m.allocations[1].handle[63], 0xef);
	assert_int_equal(m.allocations[1].base, 4096);
	static const struct { const char *name; uint64_t offset, bytes; } want[] = {
		{ "none", 0, 0 }, { "one", 512, 64 }, { "tied", 512, 64 }, { "two", 4096, 100 }
	};
	assert_int_equal(m.list.n_tensors, 4);
	for (size_t i = 0; i < 4; i++) {
		assert_string_equal(m.list.tensors[i].name, want[i].name);
		assert_true(m.list.tensors[i].offset == want[i].offset &&
		            m.list.tensors[i].bytes == want[i].bytes);
	}
	assert_int_equal(ws_manifest_find(&m, 0) + ws_manifest_find(&m, 4095), 0);
	assert_int_equal(ws_manifest_find(&m, 4096), 1);
	assert_string_equal(m.config, "sub/config.json");
	ws_manifest_free(&m);
	ws_manifest_free(&m);
	ws_manifest_free(NULL);
}

/* The good one with the first `from` as `to`. */
static char *edited(const char *from, const char *to)
{
	const char *at = strstr(good, from);
	char *text = NULL;
	assert_non_null(at);
	assert_true(asprintf(&text, "%.*s%s%s", (int)(at - good), good, to, at + strlen(from)) > 0);
	return text;
}

TEST(what_is_wrong_is_refused_by_its_name)
{
	static const struct { const char *from, *to, *says; } cases[] = {
		{ "\"version\": 1", "\"version\": 2, \"news\": 1",
		  "has version 2, but only version 1 is supported" },
		{ "\"version\": 1,", "", "does not begin with its version" },
		{ "{\"version\": 1", "[{\"version\": 1", "a manifest at byte 0 is no object" },
		{ "\"pid\": 77", "\"pid\": 0", "pid at byte " },
		{ "\"pid\": 77", "\"pid\": 2147483648", "pid at byte " },
		{ "\"start\": 88", "\"start\": 0", "start at byte " },
		{ "\"start\": 88, ", "", "field 'start' is missing" },
		{ "\"start\": 88", "\"start\": 88, \"start\": 9", "field 'start' twice" },
		{ "\"start\": 88", "\"start\": 88, \"more\": 9", "unknown field 'more'" },
		{ "\"host\": \"h\"", "\"host\": \"h\\u001b[31m\"", "host at byte " },
		{ "\"boot_id\": \"b\"", "\"boot_id\": \"0123456789012345678901234567890123456789\"",
		  "is longer than 39 bytes" },
		{ UUID, "GPU-00010203", "is not like GPU-" },
		{ "GPU-0001", "CPU-0001", "is not like GPU-" },
		{ "0eFF", "0eFFF", "is not like GPU-" },
		{ "0eFF", "0eFg", "is not like GPU-" },
		{ ONE, HANDLE, "is not 128 hexadecimal digits" },
		{ ONE, "x" HANDLE, "is not 128 hexadecimal digits" },
		{ TWO, ONE, "allocations 0 and 1 have the same handle" },
		{ "\"bytes\": 4096", "\"bytes\": 0", "an allocation at byte " },
		{ "\"bytes\": 4096", "\"bytes\": 17592186044417", "an allocation at byte " },
		{ "\"bytes\": 4096", "\"bytes\": -1", "is no non-negative integer" },
		{ "\"bytes\": 4096", "\"bytes\": 1e9", "is no non-negative integer" },
		{ "{\"device\": 0", "{\"device\": 1",
		  "allocation 0 is on device 1 of 1 (from 0)" },
		{ "\"allocation\": 1,", "\"allocation\": 2,",
		  "tensor 'two': is in allocation 2 of 2 (from 0)" },
		{ "\"offset\": 0}", "\"offset\": 1}",
		  "tensor 'two': has 100 bytes at 1 of allocation 1, which has 100" },
		{ "\"offset\": 0}", "\"offset\": 9223372036854775807}",
		  "tensor 'two': has 100 bytes at 9223372036854775807" },
		{ ", \"offset\": 0}", "}", "tensor 'two': its allocation or offset is missing" },
		{ "\"dtype\": \"float32\", ", "", "tensor 'two': field 'dtype' is missing" },
		{ "float32", "F32", "tensor 'two': unknown dtype 'F32'" },
		{ "[5, 5]", "[5, -5]", "tensor 'two': shape at byte " },
		{ "[5, 5]", "[4611686018427387904, 4]", "tensor 'two': its shape is too large" },
		{ "[5, 5]", "[1,1,1,1,1,1,1,1,1]", "tensor 'two': more than 8 dimensions" },
		{ "\"one\"", "\"two\"", "tensor 'two' is listed twice" },
		{ "\"one\"", "\"\"", "is empty" },
		{ "\"one\"", "\"o\\nne\"", "has a control or hidden character" },
		{ "\"offset\": 512, \"alloc", "\"offset\": 513, \"alloc",
		  "tensor 'tied': shares a part of its bytes with tensor 'one'" },
		{ "[8, 4]", "[8, 3]",
		  "tensor 'one': shares a part of its bytes with tensor 'tied'" },
		{ "\"7\"}}", "7}}", "value in metadata at byte " },
		{ "\"7\"}}", "\"7\"}} x", "text after the value" },
		{ "\"7\"}}", "\"7\"}", "the text ends early" },
		{ " \"config\"", " \"cfg\"", "unknown field 'cfg'" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct ws_manifest m;
		struct ws_err err;
		char *text = edited(cases[i].from, cases[i].to);
		assert_fails(parse(text, &m, &err), &err, WS_EINPUT, "");
		assert_int_equal(strncmp(err.msg, "m.json: ", 8), 0);
		if (!strstr(err.msg, cases[i].says))
			fail_msg("'%s' for '%s': %s", cases[i].to, cases[i].from, err.msg);
		free(text);
	}
}

TEST(a_text_that_is_cut_anywhere_is_refused)
{
	for (size_t n = 0; n + 2 < sizeof good; n++) {
		struct ws_manifest m;
		struct ws_err err = WS_ERR_INIT;
		assert_fails(ws_manifest_parse(good, n, "m.json", &m, &err), &err, WS_EINPUT, "");
	}
}

/* ---- a source, with memory that the test lends ---- */

static uint8_t lent[2][4096];
static unsigned opened, closed, looked;
static bool gone;

static int lend(const struct ws_manifest *m, const char *path, const struct ws_cancel *cancel,
                struct ws_ipc_source **out, struct ws_err *err)
{
	(void)cancel;
	assert_int_equal(m->n_allocations, 2);
	if (gone)
		return ws_err_set(err, WS_EINPUT, "who wrote %s is gone", path);
	opened++;
	*out = (struct ws_ipc_source *)lent;
	return 0;
}

static int read_lent(struct ws_ipc_source *mem, size_t allocation, uint64_t at, void *dst, size_t n,
                     struct ws_err *err)
{
	(void)err;
	assert_ptr_equal(mem, lent);
	assert_true(at + n <= (allocation ? 100 : 4096));
	memcpy(dst, &lent[allocation][at], n);
	return 0;
}

static int place_lent(struct ws_ipc_source *mem, size_t allocation, uint64_t at,
                      struct ws_gpu_address *out, struct ws_err *err)
{
	(void)mem, (void)err;
	*out = (struct ws_gpu_address){ .gpu = { 7 }, .at = 1000 * allocation + at };
	return 0;
}

static int look(struct ws_ipc_source *mem, struct ws_err *err)
{
	(void)mem;
	looked++;
	return gone ? ws_err_set(err, WS_EINPUT, "it is gone") : 0;
}

static void take_back(struct ws_ipc_source *mem)
{
	closed += mem != NULL;
}

static const struct ws_memory_ops ops = { lend, read_lent, place_lent, look, take_back, 4096 };
static const struct ws_source_opts with_memory = { .memory = &ops };
static const char path[] = "cuda-ipc:./m.json";

static int begin(void **state)
{
	if (scratch_enter(state))
		return -1;
	gone = false;
	opened = closed = looked = 0;
	for (size_t i = 0; i < sizeof lent; i++)
		((uint8_t *)lent)[i] = (uint8_t)(i * 7 + i / 256);
	put_text("m.json", good);
	return 0;
}

#define LENT(test) TEST_BETWEEN(test, begin, scratch_leave)

static struct ws_source *open_it(void)
{
	const char *const paths[] = { path };
	struct ws_source *s = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_source_open_with(&with_memory, paths, 1, &s, &err), &err);
	return s;
}

LENT(a_source_reads_and_places_what_is_lent)
{
	struct ws_source *s = open_it();
	struct ws_err err = WS_ERR_INIT;
	char bytes[64];
	struct ws_span span;
	struct ws_gpu_address place;
	assert_string_equal(ws_source_config_dir(s), "./sub/config.json");
	assert_string_equal(ws_source_file_name(s, 0), path);
	assert_int_equal(ws_source_count(s), 4);
	assert_int_equal(ws_source_pinned(s), 4096);
	const struct ws_tensor *two = ws_source_find(s, "two"), *tied = ws_source_find(s, "tied");
	assert_int_equal(ws_source_read(s, tied, 5, bytes, 20, &err), 0);
	assert_memory_equal(bytes, &lent[0][517], 20);
	assert_int_equal(ws_source_read(s, two, 90, bytes, 10, &err), 0);
	assert_memory_equal(bytes, &lent[1][90], 10);
	ws_source_span(s, two, &span);
	assert_true(span.fd < 0 && span.length == 100);
	assert_int_equal(span.gpu_address(span.ctx, &place, &err), 0);
	assert_true(place.at == 1000 && place.gpu[0] == 7);
	assert_int_equal(span.fill(span.ctx, 3, bytes, 9, &err), 0);
	assert_memory_equal(bytes, &lent[1][3], 9);
	assert_int_equal(ws_source_check(s, &err), 0);
	gone = true;
	assert_int_equal(ws_source_check(s, &err), -1);
	ws_source_close(s);
	assert_true(opened == 1 && closed == 1 && looked == 2);
}

LENT(a_source_that_nobody_lends_is_refused)
{
	const char *const paths[] = { path };
	struct ws_source *s = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_fails(ws_source_open(paths, 1, &s, &err), &err, WS_EUSAGE,
	             "memory of another process is not supported here");
	assert_fails_with(ws_source_open_with(&with_memory, (const char *const[]){ "cuda-ipc:" }, 1,
	                                      &s, &err), &err, WS_EUSAGE,
	                  "cuda-ipc: names no manifest");
	gone = true;
	assert_int_equal(ws_source_open_with(&with_memory, paths, 1, &s, &err), -1);
	assert_non_null(strstr(err.msg, "is gone"));
	assert_int_equal(closed, 0);
}

/* Rows that are worth it are spans with a place of their own; a smaller run is gathered. */
LENT(rows_of_a_tensor_know_their_place)
{
	struct ws_source *s = open_it();
	const struct ws_tensor *one = ws_source_find(s, "one");
	struct ws_piece piece = {
		.source = s, .from = one, .at = 8, .dims = { 2, 8 }, .strides = { 8, 1 }
	};
	const struct ws_view view = {
		.n_dims = 2, .dims = { 2, 8 }, .axis = 0, .pieces = &piece, .n_pieces = 1
	};
	const struct ws_item rows = { .name = "rows", .dtype = WS_DTYPE_BF16, .n_dims = 2,
		                      .dims = { 2, 8 }, .bytes = 32, .source = s, .from = one,
		                      .view = &view };
	struct ws_plan_tensor tensor = {
		.name = "rows", .item = &rows, .n_dims = 2, .dims = { 2, 8 }, .bytes = 32
	};
	struct ws_plan_bucket bucket = { .n = 1, .bytes = 32 };
	const struct ws_plan plan = { .format = WS_FORMAT_FLATTENED, .tensors = &tensor,
		                      .n_tensors = 1, .buckets = &bucket, .n_buckets = 1 };
	struct ws_payload *payloads;
	struct ws_err err = WS_ERR_INIT;
	struct ws_gpu_address place;
	size_t n;
	char bytes[32];
	assert_int_equal(ws_plan_payloads(&plan, 0, &payloads, &n, &err), 0);
	assert_int_equal(n, 1);
	assert_int_equal(payloads[0].n_spans, 1);
	const struct ws_span *span = &payloads[0].spans[0];
	assert_int_equal(span->length, 32);
	assert_int_equal(span->fill(span->ctx, 4, bytes, 28, &err), 0);
	assert_memory_equal(bytes, &lent[0][512 + 16 + 4], 28);
	assert_int_equal(span->gpu_address(span->ctx, &place, &err), 0);
	assert_int_equal(place.at, 512 + 16);
	ws_plan_payloads_free(payloads, n);
	ws_source_close(s);
}

LENT(ranks_may_lend_their_shards)
{
	const char *const paths[] = { path, path };
	struct ws_shards shards;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_shards_open_with(&with_memory, paths, 2, 2, 0, &shards, &err), 0);
	assert_int_equal(shards.n, 2);
	ws_shards_close(&shards);
	assert_int_equal(ws_shards_open_with(&with_memory, paths, 1, 1, 0, &shards, &err), 0);
	ws_shards_close(&shards);
	assert_fails(ws_shards_open(paths, 2, 2, 0, &shards, &err), &err, WS_EUSAGE, "");
	assert_int_equal(opened, closed);
}

RUN_TESTS(NULL, NULL)
