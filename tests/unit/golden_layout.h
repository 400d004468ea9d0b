/* SPDX-License-Identifier: Apache-2.0 */
/* golden_layout.h - layouts of the models of tests/data/names, by the built-in families. */
#ifndef WS_TESTS_GOLDEN_LAYOUT_H
#define WS_TESTS_GOLDEN_LAYOUT_H

#include "golden_names.h"
#include "test.h"
#include "wsync/tool/layout.h"

enum { GOLDEN_LAYERS = 6 }; /* of the lists of parameters */

static struct ws_namemap *map;

static inline int open_map(void **state)
{
	struct ws_err err = WS_ERR_INIT;
	(void)state;
	if (ws_namemap_open(NULL, &map, &err) == 0)
		return 0;
	print_error("%s\n", err.msg);
	return -1;
}

static inline int close_map(void **state)
{
	(void)state;
	ws_namemap_close(map);
	return 0;
}

/* The model's config, with so many layers; 0: as many as it has. */
static inline struct ws_config *read_config(const char *model, int layers)
{
	static const char key[] = "\"num_hidden_layers\": ";
	char path[256], text[16384], cut[16400];
	struct ws_err err = WS_ERR_INIT;
	struct ws_config *config = NULL;
	snprintf(path, sizeof path, GOLDEN_DIR "%s.json", model);
	FILE *f = fopen(path, "re");
	assert_non_null(f);
	const size_t n = fread(text, 1, sizeof text - 1, f);
	fclose(f);
	text[n] = '\0';
	char *at = strstr(text, key);
	assert_non_null(at);
	at += sizeof key - 1;
	snprintf(cut, sizeof cut, "%.*s%ld%s", (int)(at - text), text,
	         layers ? (long)layers : strtol(at, NULL, 10), at + strspn(at, "0123456789"));
	if (ws_config_parse(cut, strlen(cut), path, &config, &err) < 0)
		fail_msg("%s", err.msg);
	return config;
}

static inline struct ws_layout *make_layout(const char *model, int layers,
                                            const struct ws_layout_opts *opts)
{
	struct ws_err err = WS_ERR_INIT;
	struct ws_config *config = read_config(model, layers);
	struct ws_layout *l = NULL;
	const struct ws_family *family = ws_namemap_find(map, config);
	if (!family)
		fail_msg("%s is of no family", model);
	if (ws_layout_make(family, config, opts, &l, &err) < 0)
		fail_msg("%s: %s", model, err.msg);
	ws_config_free(config);
	return l;
}

#endif
