/* SPDX-License-Identifier: Apache-2.0 */
/* test_lineage_probe.c - what lists of routes come to, and what is asked of servers that have none.
 *
 * tests/data/lineage has a list and a /server_info for each lineage, shortened to what tells. What
 * must come out stands here in full. */
#include "lineage_probe.h"

#include "endpoint_call.h"
#include "file.h"
#include "test.h"
#include "tiny_http.h"
#include "wsync/tool/capabilities.h"

static struct ws_json *load(const char *name, const char *what)
{
	char path[256];
	struct ws_buf text;
	struct ws_err err = WS_ERR_INIT;
	snprintf(path, sizeof path, "tests/data/lineage/%s.%s.json", name, what);
	ws_buf_init(&text, 1 << 20);
	assert_ok(ws_file_read(path, &text, &err), &err);
	struct ws_json *root = ws_json_parse(text.data, text.len, path, &err);
	if (!root)
		fail_msg("%s", err.msg);
	ws_buf_free(&text);
	return root;
}

/* The names of what it can, in the order of the fields. */
static const char *spell(const struct ws_capabilities *can)
{
	static char text[1024];
	size_t n = 0;
	text[0] = '\0';
	for (size_t i = 0; i < ws_capability_count(); i++)
		if (ws_capability_get(can, i))
			n += (size_t)snprintf(text + n, sizeof text - n, "%s%s", n ? " " : "",
			                      ws_capability_name(i));
	return text;
}

/* clang-format off */
static const struct { enum ws_lineage lineage; const char *route, *can; } lineages[] = {
	{ WS_LINEAGE_SGLANG_04, "/get_server_info", "update from_disk from_tensor flush memory "
	  "get_weights generate dies_of_flush dies_of_group dies_of_format dies_of_release" },
	{ WS_LINEAGE_SGLANG_05, "/get_server_info", "update destroy from_disk from_tensor from_ipc "
	  "weight_version abort_requests pause flush set_version memory get_weights generate "
	  "dies_of_flush dies_of_group dies_of_format dies_of_release" },
	{ WS_LINEAGE_SGLANG_2026, "/server_info", "update destroy from_disk from_tensor from_ipc "
	  "load_format mixed_bucket weight_version abort_requests empty_cache pause pause_modes "
	  "flush flush_waits set_version memory checker checksums get_weights generate "
	  "routed_experts dies_of_flush dies_of_group dies_of_format dies_of_release" },
	{ WS_LINEAGE_XORL_LEGACY, "/server_info",
	  "update destroy two_phase two_phase_whole receive ep_scatter from_disk from_tensor "
	  "load_format mixed_bucket weight_version abort_requests free_kv pause pause_modes flush "
	  "set_version memory health_open list_weights checker get_weights generate routed_experts "
	  "eager_comm late_refusal dies_of_format dies_of_release" },
	{ WS_LINEAGE_XORL, "/server_info", "update destroy two_phase two_phase_whole from_disk "
	  "from_tensor from_ipc sparse_delta load_format mixed_bucket weight_version "
	  "abort_requests empty_cache pause pause_modes flush flush_waits set_version memory "
	  "checker checksums get_weights generate routed_experts eager_comm dies_of_flush "
	  "dies_of_group dies_of_format dies_of_release stuck_prepare" },
	{ WS_LINEAGE_SESSION, "/server_info",
	  "update destroy session from_disk from_tensor from_ipc load_format mixed_bucket "
	  "weight_version abort_requests empty_cache selector pause pause_modes flush flush_waits "
	  "set_version memory checker checksums skip_tensors get_weights generate routed_experts "
	  "dies_of_flush dies_of_group dies_of_format dies_of_release" },
	{ WS_LINEAGE_SLIME, "/server_info", "update destroy post_process from_disk from_tensor "
	  "from_ipc load_format mixed_bucket weight_version abort_requests empty_cache pause "
	  "pause_modes flush flush_waits set_version memory checker checksums get_weights generate "
	  "routed_experts dies_of_flush dies_of_group dies_of_format dies_of_release" },
};
/* clang-format on */
enum { N_LINEAGES = sizeof lineages / sizeof *lineages };

TEST(lists_of_routes_tell_lineages_apart)
{
	for (size_t i = 0; i < N_LINEAGES; i++) {
		const char *name = ws_lineage_name(lineages[i].lineage);
		struct ws_json *routes = load(name, "openapi"), *server = load(name, "server_info");
		struct ws_endpoint_info info = { .tp_size = 1 };
		struct ws_lineage_signs signs = { .version = info.version };
		struct ws_capabilities can;
		ws_endpoint_decode_server_info(server, &info);
		assert_int_equal(ws_lineage_read_openapi(routes, lineages[i].route, &signs), 0);
		assert_string_equal(ws_lineage_name(ws_lineage_detect(&signs, &can)), name);
		assert_string_equal(spell(&can), lineages[i].can);
		ws_json_free(routes);
		ws_json_free(server);
	}
}

/* A version may be wrong: of a build from source, of a fork that counts by itself. */
TEST(a_lying_version_changes_nothing)
{
	static const char *const lies[] = { "", "0.4.1", "0.5.15", "0.5.20", "0.0.0.dev1+g1234567",
		                            "9" };
	for (size_t i = 0; i < N_LINEAGES; i++)
		for (size_t k = 0; k < sizeof lies / sizeof *lies; k++) {
			const char *name = ws_lineage_name(lineages[i].lineage);
			struct ws_json *routes = load(name, "openapi");
			struct ws_lineage_signs signs = { .version = lies[k] };
			struct ws_capabilities can;
			ws_lineage_read_openapi(routes, lineages[i].route, &signs);
			assert_string_equal(ws_lineage_name(ws_lineage_detect(&signs, &can)), name);
			assert_string_equal(spell(&can), lineages[i].can);
			ws_json_free(routes);
		}
}

/* What no route shows. */
TEST(releases_differ_in_what_they_do)
{
	static const struct { const char *lineage, *version, *with, *without; } rows[] = {
		{ "sglang-2026", "0.5.9", "dies_of_group", "flush_waits empty_cache checksums" },
		{ "sglang-2026", "0.5.11", "flush_waits empty_cache", "checksums" },
		{ "sglang-2026", "0.5.12", "checksums", "late_refusal" },
		{ "session", "0.5.21", "dies_of_flush", "dies_of_group late_refusal" },
		{ "session", "0.5.22", "late_refusal", "dies_of_group dies_of_flush" },
	};
	for (size_t i = 0; i < sizeof rows / sizeof *rows; i++) {
		struct ws_lineage_signs signs = { .version = rows[i].version };
		struct ws_capabilities can;
		char word[32];
		assert_string_equal(ws_lineage_name(ws_lineage_detect(&signs, &can)),
		                    rows[i].lineage);
		for (const char *at = rows[i].with; sscanf(at, "%31s", word) == 1;
		     at += strlen(word) + (at[strlen(word)] == ' '))
			assert_non_null(strstr(spell(&can), word));
		for (const char *at = rows[i].without; sscanf(at, "%31s", word) == 1;
		     at += strlen(word) + (at[strlen(word)] == ' '))
			assert_null(strstr(spell(&can), word));
	}
}

static int read_text(const char *text, struct ws_lineage_signs *signs)
{
	struct ws_err err;
	struct ws_json *root = ws_json_parse(text, strlen(text), "test", &err);
	assert_non_null(root);
	*signs = (struct ws_lineage_signs){ .version = "" };
	const int rc = ws_lineage_read_openapi(root, "/server_info", signs);
	ws_json_free(root);
	return rc;
}

TEST(what_is_no_list_of_this_server_is_not_believed)
{
	struct ws_lineage_signs s;
	assert_int_equal(read_text("[]", &s), -1);
	assert_int_equal(read_text("{\"paths\": [\"/server_info\"]}", &s), -1);
	assert_int_equal(read_text("{\"paths\": {\"/v1/chat\": {}}}", &s), -1); /* a proxy's */
	assert_false(s.asked.update || s.asked.pause);
	assert_int_equal(read_text("{\"paths\": {\"/server_info\": 1, \"/receive_weights\": []}}",
	                           &s),
	                 0);
	assert_true(s.asked.update && !s.seen.update && s.seen.receive);
}

#define UPDATE(schema) \
	"{\"paths\": {\"/server_info\": {}, \"/init_weights_update_group\": {}, " \
	"\"/update_weights_from_distributed\": {\"post\": {\"requestBody\": {\"content\": " \
	"{\"application/json\": {\"schema\": " schema "}}}}}}, " \
	"\"components\": {\"schemas\": {\"U\": {\"properties\": {\"load_format\": {}}}, " \
	"\"Loop\": {\"$ref\": \"#/components/schemas/Loop\"}, " \
	"\"Wide\": {\"anyOf\": [{\"$ref\": \"#/components/schemas/Wide\"}, " \
	"{\"$ref\": \"#/components/schemas/Wide\"}, {\"$ref\": \"#/components/schemas/Wide\"}]}, " \
	"\"Empty\": {\"properties\": {}}}}}"

TEST(an_update_of_one_tensor_is_none_that_is_spoken)
{
	struct ws_capabilities can;
	struct ws_lineage_signs s;
	assert_int_equal(read_text(UPDATE("{\"properties\": {\"name\": {}, \"dtype\": {}}}"), &s),
	                 0);
	s.version = "0.4.6.post5";
	assert_true(s.one_by_one);
	assert_int_equal(ws_lineage_detect(&s, &can), WS_LINEAGE_SGLANG_04);
	assert_false(can.update);
	assert_int_equal(read_text(UPDATE("{\"properties\": {\"names\": {}}}"), &s), 0);
	assert_false(s.one_by_one);
	ws_lineage_detect(&s, &can);
	assert_true(can.update);
}

TEST(schemas_are_found_in_every_form_and_end)
{
	struct ws_lineage_signs s;
	static const struct { const char *text; bool asked, seen;
	} cases[] = {
		{ UPDATE("{\"$ref\": \"#/components/schemas/U\"}"), true, true },
		{ UPDATE("{\"anyOf\": [{\"$ref\": \"#/components/schemas/U\"}, {\"type\": "
		         "\"null\"}]}"),
		  true, true },
		{ UPDATE("{\"properties\": {\"load_format\": {}}}"), true, true },
		{ UPDATE("{\"properties\": {\"names\": {}}}"), true, false },
		{ UPDATE("{\"anyOf\": [{\"properties\": {\"names\": 1}}, {\"type\": \"null\"}]}"),
		  true, false },
		{ UPDATE("{}"), false, false },
		{ UPDATE("7"), false, false },
		{ UPDATE("{\"$ref\": \"#/components/schemas/Loop\"}"), false, false },
		{ UPDATE("{\"$ref\": \"#/components/schemas/Wide\"}"), false, false },
		{ UPDATE("{\"$ref\": \"#/components/schemas/Empty\"}"), false, false },
		{ UPDATE("{\"$ref\": \"#/components/schemas/Nowhere\"}"), false, false },
		{ UPDATE("{\"$ref\": \"http://elsewhere/U\"}"), false, false },
	};
	for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
		assert_int_equal(read_text(cases[i].text, &s), 0);
		assert_true(s.seen.update);
		assert_int_equal(s.asked.load_format, cases[i].asked);
		assert_int_equal(s.seen.load_format, cases[i].seen);
	}
}

/* ---- servers without a list ---- */

static struct tiny engine;
static char base[WS_URL_MAX];
static struct ws_http *http;
static const char *const *has; /* the routes of the engine, up to NULL */
static enum { HONEST, YES_TO_ALL } manner;
static atomic_int options, effects;

static const char *route(struct tiny *t, const char *method, const char *path, const char *body,
                         int *status)
{
	(void)t;
	(void)body;
	if (!strcmp(method, "GET") && !strcmp(path, "/server_info"))
		return "{\"tp_size\": 2, \"version\": \"0.0.0.dev0\"}";
	if (!strcmp(method, "GET") && !strcmp(path, "/model_info"))
		return "{\"weight_version\": \"default\"}";
	if (strcmp(method, "OPTIONS"))
		effects += strcmp(path, "/openapi.json") != 0;
	else
		options++;
	*status = manner == YES_TO_ALL && !strcmp(method, "OPTIONS") ? 200 : 404;
	for (size_t i = 0; has && has[i]; i++)
		if (!strcmp(has[i], path))
			*status = 405;
	return "{\"detail\":\"no\"}";
}

static int set_up(void **state)
{
	(void)state;
	struct ws_err err;
	tiny_start(&engine);
	engine.route = route;
	tiny_url(&engine, "", base, sizeof base);
	has = NULL;
	manner = HONEST;
	options = effects = 0;
	return ws_client_open(&(struct ws_client_opts){ .api_key = NULL }, &http, &err);
}

static int tear_down(void **state)
{
	(void)state;
	ws_client_close(http);
	tiny_stop(&engine);
	return 0;
}

static void probe(struct ws_endpoint_info *info)
{
	const char *const urls[] = { base };
	struct ws_err why, err;
	const ws_deadline until = ws_deadline_in(10 * WS_NS_PER_S);
	assert_int_equal(ws_endpoint_probe_all(&(const struct ws_call){ http, urls, 1, until,
	                                                                NULL, NULL },
	                                       info, &why, &err),
	                 0);
	assert_int_equal(effects, 0);
}

TEST_BETWEEN(a_server_without_a_list_is_asked_route_by_route, set_up, tear_down)
{
	static const char *const xorl[] = {
		"/init_weights_update_group", "/update_weights_from_distributed",
		"/prepare_weights_update", "/complete_weights_update", "/pause_generation",
		"/continue_generation", "/weights_checker", "/flush_cache",
		"/release_memory_occupation", NULL,
	};
	struct ws_endpoint_info info;
	has = xorl;
	probe(&info);
	assert_int_equal(info.lineage, WS_LINEAGE_XORL);
	assert_true(info.can.two_phase && info.can.pause_modes && info.can.flush &&
	            info.can.checksums);
	assert_false(info.can.memory || info.can.set_version || info.can.destroy ||
	             info.can.from_disk);
	assert_true((size_t)options == ws_lineage_path_count() + 1);
}

TEST_BETWEEN(who_says_yes_to_everything_is_not_believed, set_up, tear_down)
{
	struct ws_endpoint_info info;
	manner = YES_TO_ALL;
	probe(&info);
	assert_int_equal(info.lineage, WS_LINEAGE_UNKNOWN);
	assert_false(info.can.two_phase || info.can.receive || info.can.load_format);
	assert_true((size_t)options == ws_lineage_path_count() + 1); /* in one round */
}

TEST_BETWEEN(somebody_may_know_better, set_up, tear_down)
{
	struct ws_endpoint_info info;
	struct ws_capabilities can;
	probe(&info);
	assert_false(info.can.update);
	ws_endpoint_assume(&info, WS_LINEAGE_UNKNOWN);
	assert_false(info.can.update);
	ws_endpoint_assume(&info, WS_LINEAGE_XORL_LEGACY);
	ws_lineage_capabilities(WS_LINEAGE_XORL_LEGACY, &can);
	assert_int_equal(info.lineage, WS_LINEAGE_XORL_LEGACY);
	assert_memory_equal(&info.can, &can, sizeof can);
}

RUN_TESTS(NULL, NULL)
