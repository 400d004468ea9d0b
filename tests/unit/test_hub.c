/* SPDX-License-Identifier: Apache-2.0 */
/* Snapshots in the cache of the Hugging Face Hub: where it is, what names find, what is refused. */
#include "scratch.h"
#include "tensor_file.h"
#include "test.h"
#include "wsync/tool/config.h"
#include "wsync/tool/hub.h"
#include "wsync/tool/source.h"

#include <sys/stat.h>
#include <unistd.h>

#define COMMIT "0123456789abcdef0123456789abcdef01234567"
#define OTHER  "0123456fffffffffffffffffffffffffffffffff"

static void make_directories(const char *path)
{
	char part[512];
	for (const char *p = path; (p = strchr(p, '/')); p++) {
		snprintf(part, sizeof part, "%.*s", (int)(p - path), path);
		if (*part)
			mkdir(part, 0700);
	}
	mkdir(path, 0700);
}

static void clear_variables(void)
{
	unsetenv("HF_HUB_CACHE");
	unsetenv("HUGGINGFACE_HUB_CACHE");
	unsetenv("HF_HOME");
	unsetenv("XDG_CACHE_HOME");
	setenv("HOME", "/nowhere", 1);
}

static void use_cache(void)
{
	clear_variables();
	setenv("HF_HUB_CACHE", "hub", 1);
}

static void expect(const char *spec, const char *dir)
{
	char *found = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_ok(ws_hub_resolve(spec, &found, &err), &err);
	assert_string_equal(found, dir);
	free(found);
}

static void refuse(const char *spec, enum ws_code code, const char *sentence, const char *hint)
{
	char *found = NULL;
	struct ws_err err = WS_ERR_INIT;
	assert_int_equal(ws_hub_resolve(spec, &found, &err), -1);
	assert_int_equal(err.code, code);
	assert_string_equal(err.msg, sentence);
	assert_string_equal(err.hint, hint);
}

SCRATCH_TEST(variables_name_the_cache_in_their_order)
{
	static const struct {
		const char *variable, *value, *place;
	} ways[] = {
		{ "HOME", "home", "home/.cache/huggingface/hub" },
		{ "XDG_CACHE_HOME", "xdg", "xdg/huggingface/hub" },
		{ "HF_HOME", "hf", "hf/hub" },
		{ "HUGGINGFACE_HUB_CACHE", "old", "old" },
		{ "HF_HUB_CACHE", "new", "new" },
		{ "HF_HUB_CACHE", "~/tilde", "home/tilde" },
		{ "HF_HUB_CACHE", "", "old" },
	};
	clear_variables();
	for (size_t i = 0; i < sizeof ways / sizeof ways[0]; i++) {
		char path[256], expected[300];
		snprintf(expected, sizeof expected, "%s/models--Q--M/snapshots/" COMMIT,
		         ways[i].place);
		make_directories(expected);
		setenv(ways[i].variable, ways[i].value, 1);
		expect("hf:Q/M", expected);
		snprintf(path, sizeof path, "%s/models--Q--M/snapshots", ways[i].place);
		assert_int_equal(rmdir(expected) || rmdir(path), 0);
		make_directories(expected);
	}
	clear_variables();
	unsetenv("HOME");
	refuse("hf:Q/M", WS_EINPUT,
	       "hf:Q/M: the place of the Hugging Face cache is not known: neither HF_HOME nor HOME "
	       "is set",
	       "");
}

SCRATCH_TEST(a_revision_is_a_ref_or_a_commit)
{
	use_cache();
	make_directories("hub/models--Q--M/snapshots/" COMMIT);
	make_directories("hub/models--Q--M/snapshots/" OTHER);
	make_directories("hub/models--Q--M/refs/refs/pr");
	put_text("hub/models--Q--M/refs/main", COMMIT);
	put_text("hub/models--Q--M/refs/v1.0", OTHER "\n");
	put_text("hub/models--Q--M/refs/refs/pr/3", OTHER);
	expect("hf:Q/M", "hub/models--Q--M/snapshots/" COMMIT);
	expect("hf:Q/M@main", "hub/models--Q--M/snapshots/" COMMIT);
	expect("hf:Q/M@v1.0", "hub/models--Q--M/snapshots/" OTHER);
	expect("hf:Q/M@refs/pr/3", "hub/models--Q--M/snapshots/" OTHER);
	expect("hf:Q/M@" OTHER, "hub/models--Q--M/snapshots/" OTHER);
	expect("hf:Q/M@01234567", "hub/models--Q--M/snapshots/" COMMIT);
	refuse("hf:Q/M@0123456", WS_EINPUT,
	       "hf:Q/M@0123456: 2 snapshots are in the cache, and all begin with 0123456: " COMMIT
	       ", " OTHER,
	       "name one of them: hf:Q/M@" COMMIT);
	refuse("hf:Q/M@012345", WS_EINPUT,
	       "hf:Q/M@012345: the cache has no such revision of Q/M in hub/models--Q--M",
	       "fetch it first: hf download Q/M --revision 012345");
	refuse("hf:Q/M@v2", WS_EINPUT,
	       "hf:Q/M@v2: the cache has no such revision of Q/M in hub/models--Q--M",
	       "fetch it first: hf download Q/M --revision v2");
}

SCRATCH_TEST(without_main_a_single_snapshot_is_clear)
{
	use_cache();
	make_directories("hub/models--gpt2/snapshots/" COMMIT);
	expect("hf:gpt2", "hub/models--gpt2/snapshots/" COMMIT);
	char *found = ws_hub_find("gpt2", NULL);
	assert_string_equal(found, "hub/models--gpt2/snapshots/" COMMIT);
	free(found);
	make_directories("hub/models--gpt2/snapshots/" OTHER);
	assert_null(ws_hub_find("gpt2", NULL));
	refuse("hf:gpt2", WS_EINPUT,
	       "hf:gpt2: 2 snapshots are in the cache, and none is called main: " COMMIT ", " OTHER,
	       "name one of them: hf:gpt2@" COMMIT);
}

SCRATCH_TEST(what_is_not_in_the_cache_is_said)
{
	use_cache();
	refuse("hf:Q/M", WS_EINPUT,
	       "hf:Q/M: this machine's Hugging Face cache does not have it: looked in hub",
	       "fetch it first: hf download Q/M");
	assert_null(ws_hub_find("Q/M", NULL));
	make_directories("hub/models--Q--M/refs");
	refuse("hf:Q/M", WS_EINPUT, "hf:Q/M: the cache has no snapshot of it in hub/models--Q--M",
	       "fetch it first: hf download Q/M");
	put_text("hub/models--Q--M/refs/main", COMMIT);
	refuse("hf:Q/M", WS_EINPUT,
	       "hf:Q/M: main is the snapshot " COMMIT ", which is not in "
	       "hub/models--Q--M/snapshots",
	       "fetch it first: hf download Q/M");
	put_text("hub/models--Q--M/refs/main", "../../../etc");
	refuse("hf:Q/M", WS_EINPUT, "hub/models--Q--M/refs/main: does not name a commit", "");
	put_text("hub/models--Q--M/refs/main", COMMIT " " OTHER);
	refuse("hf:Q/M", WS_EINPUT, "hub/models--Q--M/refs/main: does not name a commit", "");
	char large[1000];
	memset(large, 'a', sizeof large);
	put_bytes("hub/models--Q--M/refs/main", large, sizeof large);
	refuse("hf:Q/M", WS_EINPUT,
	       "hub/models--Q--M/refs/main: larger than the 256 bytes it may have", "");
	assert_int_equal(unlink("hub/models--Q--M/refs/main"), 0);
	assert_int_equal(mkfifo("hub/models--Q--M/refs/main", 0600), 0);
	refuse("hf:Q/M", WS_EINPUT, "hub/models--Q--M/refs/main: not a regular file", "");
}

SCRATCH_TEST(names_that_lead_elsewhere_are_refused)
{
	static const char *const specs[] = {
		"hf:",           "hf:/",       "hf:Q/",     "hf:/M",
		"hf:..",         "hf:../M",    "hf:Q/..",   "hf:Q/M/f",
		"hf:Q//M",       "hf:.Q/M",    "hf:-Q/M",   "hf:Q--R/M",
		"hf:Q/a..b",     "hf:Q/M@",    "hf:Q/M@..", "hf:Q/M@../x",
		"hf:Q/M@a/../b", "hf:Q/M@/a",  "hf:Q/M@a/", "hf:Q/M@a//b",
		"hf:Q M/x",      "hf:Q/M@a b", "hf:Q/M\n",  "hf:Q/M@a\033[31m",
		"hf:Q/M@a\\b",   "hf:Q\\R",    "hf:@main",
	};
	char long_one[400] = "hf:Q/";
	use_cache();
	make_directories("hub/models--Q--M/snapshots/" COMMIT);
	make_directories("hub/models--Q--M/refs/a");
	for (size_t i = 0; i < sizeof specs / sizeof specs[0]; i++) {
		char *dir = NULL;
		struct ws_err err = WS_ERR_INIT;
		assert_int_equal(ws_hub_resolve(specs[i], &dir, &err), -1);
		assert_int_equal(err.code, WS_EUSAGE);
		assert_null(strpbrk(err.msg, "\n\033"));
		assert_null(ws_hub_find(specs[i] + 3, NULL));
	}
	memset(long_one + 5, 'x', 300);
	assert_int_equal(ws_hub_resolve(long_one, &(char *){ NULL }, NULL), -1);
	assert_null(ws_hub_find("Q/M", "../../x"));
	assert_true(ws_hub_is("hf:x"));
	assert_false(ws_hub_is("./hf:x"));
}

SCRATCH_TEST(the_directory_of_a_repository_is_no_checkpoint)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_config *config = NULL;
	use_cache();
	make_directories("hub/models--Q--M/snapshots/" COMMIT);
	assert_ok(ws_hub_check_root("hub/models--Q--M/snapshots/" COMMIT, &err), &err);
	assert_ok(ws_hub_check_root("hub", &err), &err);
	assert_int_equal(ws_config_open("hub/models--Q--M", &config, &err), -1);
	assert_string_equal(err.msg, "hub/models--Q--M: the Hugging Face cache of a repository, "
	                             "whose files are in snapshots/COMMIT below");
	assert_string_equal(err.hint, "name its snapshot: hf:Q/M, or "
	                              "hub/models--Q--M/snapshots/" COMMIT);
	/* A copy elsewhere is not what hf:Q/M names. */
	make_directories("copy/models--Q--M/snapshots/" OTHER);
	assert_int_equal(ws_hub_check_root("copy/models--Q--M/", &err), -1);
	assert_string_equal(err.hint, "name its snapshot: copy/models--Q--M//snapshots/" OTHER);
	assert_int_equal(chdir("copy/models--Q--M"), 0);
	assert_int_equal(ws_hub_check_root(".", &err), -1);
}

SCRATCH_TEST(configs_and_sources_are_found_in_the_cache)
{
	const char *spec = "hf:Q/M";
	struct ws_err err = WS_ERR_INIT;
	struct ws_config *config = NULL;
	struct ws_source *s = NULL;
	use_cache();
	make_directories("hub/models--Q--M/blobs");
	make_directories("hub/models--Q--M/snapshots/" COMMIT);
	assert_int_equal(ws_config_open(spec, &config, &err), -1);
	assert_string_equal(err.hint, "the cache does not have all of it: hf download Q/M");
	put_text("hub/models--Q--M/snapshots/" COMMIT "/config.json", "{\"model_type\":\"t\"}");
	assert_ok(ws_config_open(spec, &config, &err), &err);
	assert_string_equal(ws_config_path(config),
	                    "hub/models--Q--M/snapshots/" COMMIT "/config.json");
	ws_config_free(config);
	/* Only the config was fetched. */
	assert_int_equal(ws_source_open(&spec, 1, &s, &err), -1);
	assert_string_equal(err.hint, "the cache does not have all of it: hf download Q/M");
	/* The download was interrupted. */
	assert_int_equal(symlink("../../blobs/1",
	                         "hub/models--Q--M/snapshots/" COMMIT "/model.safetensors"),
	                 0);
	assert_int_equal(ws_source_open(&spec, 1, &s, &err), -1);
	assert_string_equal(err.msg,
	                    "open hub/models--Q--M/snapshots/" COMMIT
	                    "/model.safetensors, a link whose file is missing: No such file or "
	                    "directory");
	assert_string_equal(err.hint, "the cache does not have all of it: hf download Q/M");
	struct tensor_file blob = tensor_file_begin("hub/models--Q--M/blobs/1");
	tensor_file_entry(&blob, "a", "U8", "[1]", 1);
	tensor_file_end(&blob);
	assert_ok(ws_source_open(&spec, 1, &s, &err), &err);
	assert_string_equal(ws_source_file_name(s, 0),
	                    "hub/models--Q--M/snapshots/" COMMIT "/model.safetensors");
	assert_string_equal(ws_source_config_dir(s), "hub/models--Q--M/snapshots/" COMMIT);
	ws_source_close(s);
	const char *bare = "Q/M";
	assert_int_equal(ws_source_open(&bare, 1, &s, &err), -1);
	assert_string_equal(err.hint, "it is in this machine's cache: hf:Q/M");
	assert_int_equal(ws_config_open(bare, &config, &err), -1);
	assert_string_equal(err.hint, "it is in this machine's cache: hf:Q/M");
}

/* A message hides the password of "user:password@host", and none of a revision. */
TEST(messages_show_revisions)
{
	static const struct {
		const char *text, *shown;
	} cases[] = {
		{ "hf:Q/M@v1.0: no", "hf:Q/M@v1.0: no" },
		{ "'hf:Q/M@v1.0' and hf:gpt2@main", "'hf:Q/M@v1.0' and hf:gpt2@main" },
		{ "hf:SECRET@gpu7:3128", "hf:***@gpu7:3128" },
		{ "hf:SECRET@proxy.net", "hf:***@proxy.net" },
		{ "hf://u:SECRET@gpu7", "hf://***@gpu7" },
	};
	for (size_t i = 0; i < sizeof cases / sizeof cases[0]; i++) {
		struct ws_err err = WS_ERR_INIT;
		ws_err_set(&err, WS_EINPUT, "%s", cases[i].text);
		assert_string_equal(err.msg, cases[i].shown);
	}
}

RUN_TESTS(NULL, NULL)
