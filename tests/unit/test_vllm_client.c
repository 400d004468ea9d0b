/* SPDX-License-Identifier: Apache-2.0 */
/* test_vllm_client.c - what a vLLM reports, and what it is sent, byte for byte. */
#include "endpoint_call.h"
#include "lineage_probe.h"
#include "pickle.h"
#include "vllm_probe.h"

#include "test.h"

#include <string.h>

/* ---- versions ---- */

TEST(a_version_decides_the_dialect)
{
	static const struct {
		const char *version;
		enum ws_lineage lineage;
		bool transfer, session, version_label, at_init, id, checksums;
		int ipc; /* 0: none; 1: tensors; 2: packed; 3: and says so at the init */
	} cases[] = {
		{ "0.15.1", WS_LINEAGE_VLLM_20, false, false, false, false, false, false, 0 },
		{ "0.16.0", WS_LINEAGE_VLLM_20, true, false, false, false, false, false, 0 },
		{ "0.18.0", WS_LINEAGE_VLLM_20, true, false, false, false, false, false, 1 },
		{ "0.20.2", WS_LINEAGE_VLLM_20, true, false, false, false, false, false, 1 },
		{ "0.21.0", WS_LINEAGE_VLLM_24, true, true, false, false, false, false, 0 },
		{ "0.22.0", WS_LINEAGE_VLLM_24, true, true, false, false, false, false, 2 },
		{ "0.25.0rc1", WS_LINEAGE_VLLM_27, true, true, false, false, false, false, 2 },
		{ "0.27.1", WS_LINEAGE_VLLM_27, true, true, true, false, false, false, 3 },
		{ "0.28.0", WS_LINEAGE_VLLM_33, true, true, true, true, false, false, 3 },
		{ "0.30.0", WS_LINEAGE_VLLM_33, true, true, true, true, true, false, 3 },
		{ "0.32.0+cpu", WS_LINEAGE_VLLM_33, true, true, true, true, true, true, 3 },
		{ "1.0.0", WS_LINEAGE_VLLM_33, true, true, true, true, true, true, 3 },
		{ "dev", WS_LINEAGE_VLLM_33, true, true, true, true, true, true, 3 },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		struct ws_capabilities can;
		assert_int_equal(ws_lineage_vllm(cases[i].version, &can), cases[i].lineage);
		assert_int_equal(ws_lineage_family(cases[i].lineage), WS_FAMILY_VLLM);
		assert_int_equal(can.transfer, cases[i].transfer);
		assert_int_equal(can.transfer_session, cases[i].session);
		assert_int_equal(can.set_version, cases[i].version_label);
		assert_int_equal(can.packed_at_init, cases[i].at_init);
		assert_int_equal(can.unique_id, cases[i].id);
		assert_int_equal(can.checksums, cases[i].checksums);
		assert_int_equal(can.ipc_tensors, cases[i].ipc == 1);
		assert_int_equal(can.ipc_packed, cases[i].ipc >= 2);
		assert_int_equal(can.ipc_at_init, cases[i].ipc == 3);
	}
	assert_int_equal(ws_lineage_family(WS_LINEAGE_SLIME), WS_FAMILY_SGLANG);
	assert_int_equal(ws_lineage_family(WS_LINEAGE_UNKNOWN), WS_FAMILY_SGLANG);
}

/* ---- replies ---- */

static struct ws_json *parse(const char *text)
{
	struct ws_json *root = ws_json_parse(text, strlen(text), "reply", NULL);
	assert_non_null(root);
	return root;
}

TEST(the_configuration_is_read)
{
	struct ws_endpoint_info info = { .dp_size = 1, .pp_size = 1, .ep_size = 1 };
	struct ws_json *root = parse(
		"{\"vllm_config\":{\"instance_id\":\"8f3a1\","
		"\"model_config\":{\"model\":\"/models/q\",\"dtype\":\"torch.bfloat16\","
		"\"quantization\":null},"
		"\"parallel_config\":{\"tensor_parallel_size\":4,\"pipeline_parallel_size\":2,"
		"\"data_parallel_size\":3,\"enable_expert_parallel\":true,"
		"\"worker_extension_cls\":\"wsync_vllm.WorkerExtension\"},"
		"\"cache_config\":{\"cache_dtype\":\"auto\",\"enable_prefix_caching\":false},"
		"\"device_config\":{\"device\":\"cpu:0\"},"
		"\"weight_transfer_config\":{\"backend\":\"nccl\"}}}");
	ws_vllm_decode_config(root, &info);
	assert_int_equal(info.tp_size, 4);
	assert_int_equal(info.pp_size, 2);
	assert_int_equal(info.dp_size, 3);
	assert_int_equal(info.ep_size, 12);
	assert_string_equal(info.dtype, "bfloat16");
	assert_string_equal(info.quantization, "");
	assert_string_equal(info.model_path, "/models/q");
	assert_string_equal(info.engine, "nccl");
	assert_string_equal(info.device, "cpu");
	assert_true(info.gloo_worker && info.disable_radix_cache);
	assert_true(info.instance != 0);
	ws_json_free(root);
}

/* Other types than expected, as a proxy or another version may send them. */
TEST(a_strange_configuration_tells_nothing)
{
	static const char *const texts[] = {
		"[]", "{}", "{\"vllm_config\":\"VllmConfig(model='x')\"}",
		"{\"vllm_config\":{\"model_config\":[],\"parallel_config\":7}}",
		"{\"vllm_config\":{\"parallel_config\":{\"tensor_parallel_size\":-1,"
		"\"data_parallel_size\":1e30,\"worker_extension_cls\":[]},"
		"\"weight_transfer_config\":null,\"instance_id\":5}}",
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		struct ws_endpoint_info info = { .dp_size = 1 };
		struct ws_json *root = parse(texts[i]);
		ws_vllm_decode_config(root, &info);
		assert_int_equal(info.tp_size, 0);
		assert_int_equal(info.dp_size, 1);
		assert_string_equal(info.engine, "");
		assert_false(info.gloo_worker);
		assert_true(info.instance == 0);
		ws_json_free(root);
	}
}

#define SUM "0b0242953c225016efb54e8fc7ee43bbe228545901b30a32be2382c9ab62045a"

TEST(checksums_are_sorted_by_rank)
{
	struct ws_checksums c;
	struct ws_err err = WS_ERR_INIT;
	struct ws_json *root = parse("{\"checksums\":{"
	                             "\"dp0:pp1:pcp0:tp1:b\":\"" SUM "\","
	                             "\"dp0:pp0:pcp0:tp1:a\":\"" SUM "\","
	                             "\"dp1:pp0:pcp0:tp0:a\":\"" SUM "\","
	                             "\"dp0:pp0:pcp0:tp0:a\":\"" SUM "\"}}");
	assert_int_equal(ws_vllm_decode_checksums(root, &c, &err), 0);
	assert_true(c.numbered);
	assert_int_equal(c.n_ranks, 4);
	static const struct { int rank, replica; const char *name; } wanted[] = {
		{ 0, 0, "a" }, { 0, 1, "a" }, { 1, 0, "a" }, { 3, 0, "b" },
	};
	for (size_t i = 0; i < 4; i++) {
		assert_int_equal(c.ranks[i].rank, wanted[i].rank);
		assert_int_equal(c.ranks[i].replica, wanted[i].replica);
		assert_int_equal(c.ranks[i].n, 1);
		assert_string_equal(c.ranks[i].items[0].name, wanted[i].name);
		assert_string_equal(c.ranks[i].items[0].text, SUM);
	}
	ws_checksums_free(&c);
	ws_json_free(root);
}

TEST(malformed_checksums_are_refused)
{
	static const char *const texts[] = {
		"{}", "{\"checksums\":{}}", "{\"checksums\":[]}",
		"{\"checksums\":{\"model.norm.weight\":\"" SUM "\"}}",
		"{\"checksums\":{\"dp0:pp0:pcp0:tp0:\":\"" SUM "\"}}",
		"{\"checksums\":{\"dp0:pp0:pcp1:tp0:a\":\"" SUM "\"}}",
		"{\"checksums\":{\"dp0:pp0:pcp0:tp9999:a\":\"" SUM "\"}}",
		"{\"checksums\":{\"dp-1:pp0:pcp0:tp0:a\":\"" SUM "\"}}",
		"{\"checksums\":{\"dp0:pp0:pcp0:tp0:a\":\"0b02\"}}",
		"{\"checksums\":{\"dp0:pp0:pcp0:tp0:a\":null}}",
		"{\"checksums\":{\"dp0:pp0:pcp0:tp0:a\":\"" SUM "\","
		"\"dp0:pp0:pcp0:tp0:a\":\"" SUM "\"}}",
	};
	for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
		struct ws_checksums c;
		struct ws_err err = WS_ERR_INIT;
		struct ws_json *root = parse(texts[i]);
		assert_int_equal(ws_vllm_decode_checksums(root, &c, &err), -1);
		assert_int_equal(err.code, WS_EREFUSED);
		ws_json_free(root);
	}
}

/* ---- the id of NCCL ---- */

/* Recorded from a trainer in Python: the bytes around the id. */
TEST(the_pickle_of_an_id_is_pythons)
{
	static const char before[] =
		"\x80\x04\x95\xec\0\0\0\0\0\0\0\x8c\x07_ctypes\x94\x8c\x09_unpickle\x94\x93\x94"
		"\x8c\x34" "vllm.distributed.device_communicators.pynccl_wrapper\x94"
		"\x8c\x0c" "ncclUniqueId\x94\x93\x94}\x94" "C\x80";
	static const char after[] = "\x94\x86\x94\x86\x94R\x94.";
	unsigned char id[128];
	struct ws_buf out;
	for (size_t i = 0; i < sizeof id; i++)
		id[i] = (unsigned char)(i * 7 + 1);
	ws_buf_init(&out, 1024);
	ws_pickle_nccl_id(&out, id);
	assert_int_equal(out.len, 247);
	assert_int_equal(sizeof before - 1, 111);
	assert_memory_equal(out.data, before, 111);
	assert_memory_equal(out.data + 111, id, 128);
	assert_memory_equal(out.data + 239, after, 8);
	ws_buf_free(&out);
}

RUN_TESTS(NULL, NULL)
