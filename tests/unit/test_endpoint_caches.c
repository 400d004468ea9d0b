/* SPDX-License-Identifier: Apache-2.0 */
/* Which caches a server has, as it reports them. */
#include "endpoint_caches.h"

#include "endpoint_call.h"
#include "test.h"
#include "vllm_probe.h"

#include <stdio.h>
#include <string.h>

static struct ws_json *parsed(const char *text)
{
	struct ws_json *root = ws_json_parse(text, strlen(text), "test", NULL);
	assert_non_null(root);
	return root;
}

/* A vLLM 0.32 with this vllm_config. */
static struct ws_endpoint_info vllm(const char *config)
{
	struct ws_endpoint_info info = { .lineage = WS_LINEAGE_VLLM_33, .can.shutdown = true };
	char text[1024];
	snprintf(text, sizeof text, "{\"vllm_config\":%s}", config);
	struct ws_json *root = parsed(text);
	ws_vllm_decode_config(root, &info);
	ws_json_free(root);
	return info;
}

static struct ws_endpoint_info sglang(const char *server, const char *model)
{
	struct ws_endpoint_info info = { .lineage = WS_LINEAGE_SESSION };
	struct ws_json *root = parsed(server), *more = parsed(model);
	ws_endpoint_decode_server_info(root, &info);
	ws_endpoint_decode_model_info(more, &info);
	ws_json_free(root);
	ws_json_free(more);
	return info;
}

static void expect(const struct ws_endpoint_info *info, const char *facts)
{
	char text[128] = "";
	for (unsigned k = 0; k < WS_N_CACHES; k++)
		snprintf(text + strlen(text), sizeof text - strlen(text), "%s%s", k ? " " : "",
		         ws_cache_fact_name(info->caches[k]));
	assert_string_equal(text, facts);
}

/* kinds: prefix external encoder multimodal draft */
TEST(vllm_reports_its_caches)
{
	struct ws_endpoint_info info = vllm("{\"kv_transfer_config\":null,"
	                                    "\"model_config\":{\"multimodal_config\":null}}");
	expect(&info, "cleared none none none none");
	info = vllm("{\"cache_config\":{\"enable_prefix_caching\":false},"
	            "\"speculative_config\":{},\"model_config\":{\"multimodal_config\":{}}}");
	expect(&info, "none untold cleared cleared none");
	info = vllm("{\"speculative_config\":{},\"kv_transfer_config\":{\"kv_connector\":null},"
	            "\"model_config\":{\"multimodal_config\":{}},"
	            "\"ec_transfer_config\":{\"ec_connector\":\"ECExampleConnector\"}}");
	expect(&info, "cleared none old cleared cleared");
	info = (struct ws_endpoint_info){ 0 };
	ws_vllm_decode_config(NULL, &info);
	expect(&info, "untold untold untold untold untold");
}

static void expect_connector(const char *transfer, bool new, enum ws_cache_fact fact)
{
	struct ws_endpoint_info info = { .can.shutdown = new };
	char text[1024];
	snprintf(text, sizeof text, "{\"vllm_config\":{\"kv_transfer_config\":%s}}", transfer);
	struct ws_json *root = parsed(text);
	ws_vllm_decode_config(root, &info);
	ws_json_free(root);
	assert_string_equal(ws_cache_fact_name(info.caches[WS_CACHE_EXTERNAL]),
	                    ws_cache_fact_name(fact));
}

/* A connector without a reset counts as reset in vLLM. */
TEST(only_known_connectors_are_cleared)
{
#define MULTI(a, b) \
	"{\"kv_connector\":\"MultiConnector\",\"kv_connector_extra_config\":{\"connectors\":[" \
	"{\"kv_connector\":\"" a "\"},{\"kv_connector\":\"" b "\"}]}}"
	expect_connector("{\"kv_connector\":\"OffloadingConnector\"}", true, WS_CACHE_CLEARED);
	expect_connector("{\"kv_connector\":\"OffloadingConnector\"}", false, WS_CACHE_UNTOLD);
	expect_connector("{\"kv_connector\":\"LMCacheConnectorV1\"}", true, WS_CACHE_OLD);
	expect_connector("{\"kv_connector\":\"NixlConnector\"}", true, WS_CACHE_UNTOLD);
	expect_connector(MULTI("OffloadingConnector", "MooncakeStoreConnector"), true,
	                 WS_CACHE_CLEARED);
	expect_connector(MULTI("NixlConnector", "OffloadingConnector"), true, WS_CACHE_UNTOLD);
	expect_connector(MULTI("LMCacheConnectorV1", "NixlConnector"), true, WS_CACHE_OLD);
	expect_connector(MULTI("OffloadingConnector", "MultiConnector"), true, WS_CACHE_UNTOLD);
	expect_connector("{\"kv_connector\":\"MultiConnector\"}", true, WS_CACHE_UNTOLD);
}

TEST(sglang_reports_its_caches)
{
	struct ws_endpoint_info info = sglang("{}", "{}");
	expect(&info, "cleared untold untold untold none");
	info = sglang("{\"hicache_storage_backend\":null,\"disable_radix_cache\":true}",
	              "{\"has_image_understanding\":false,\"has_audio_understanding\":false}");
	expect(&info, "none none none none none");
	info = sglang("{\"hicache_storage_backend\":\"mooncake\","
	              "\"speculative_algorithm\":\"EAGLE\"}",
	              "{\"has_image_understanding\":true}");
	expect(&info, "cleared cleared old cleared cleared");
	assert_string_equal(info.external, "mooncake");
	info = sglang("{\"hicache_storage_backend\":\"eic\"}", "{}");
	expect(&info, "cleared untold untold untold none");
	assert_string_equal(info.external, "eic");
	info = sglang("{\"hicache_storage_backend\":null,\"enable_lmcache\":true}", "{}");
	expect(&info, "cleared cleared untold untold none");
	assert_string_equal(info.external, "lmcache");
}

RUN_TESTS(NULL, NULL)
