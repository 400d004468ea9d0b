/* SPDX-License-Identifier: Apache-2.0 */
/* settings.c - settings from a file, from pairs, from a reply; and the
 * table of those that are known. */
#include "settings.h"

#include "file.h"
#include "wsync/tool/str.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { FILE_MAX = 1 << 20, SETTINGS_MAX = 4096, KEY_MAX = 256 };

const struct ws_setting_known ws_settings_known[] = {
	{ "rl_on_policy_target", NULL, WS_SETTING_WORD, false,
	  "whose arithmetic the server follows" },
	{ "enable_fp32_lm_head", "lm_head_fp32", WS_SETTING_SWITCH, false, "logits in float32" },
	{ "enable_fp32_router", "router_fp32", WS_SETTING_SWITCH, false,
	  "the router's gate in float32" },
	{ "enable_deterministic_inference", NULL, WS_SETTING_SWITCH, false,
	  "kernels whose sums do not depend on the batch" },
	{ "attention_backend", NULL, WS_SETTING_WORD, true, "the kernels of attention" },
	{ "prefill_attention_backend", NULL, WS_SETTING_WORD, true,
	  "the kernels of attention over prompts" },
	{ "decode_attention_backend", NULL, WS_SETTING_WORD, true,
	  "the kernels of attention, token by token" },
	{ "sampling_backend", NULL, WS_SETTING_WORD, true, "the kernels that draw a token" },
	{ "moe_runner_backend", NULL, WS_SETTING_WORD, true, "the kernels of the experts" },
	{ "dtype", NULL, WS_SETTING_DTYPE, true, "the type that is computed in" },
	{ "kv_cache_dtype", NULL, WS_SETTING_DTYPE, true,
	  "the type that keys and values are kept in" },
	{ "quantization", NULL, WS_SETTING_WORD, true, "how weights are kept" },
	{ "tp_size", NULL, WS_SETTING_NUMBER, false, "over how many ranks sums are divided" },
	{ "ep_size", NULL, WS_SETTING_NUMBER, false, "over how many ranks experts are divided" },
	{ "dp_size", NULL, WS_SETTING_NUMBER, false, "how many ranks have requests of their own" },
	{ "enable_dp_attention", NULL, WS_SETTING_SWITCH, false,
	  "attention is not divided over ranks" },
	{ "chunked_prefill_size", NULL, WS_SETTING_NUMBER, true,
	  "in which pieces a prompt is computed" },
	{ "disable_radix_cache", NULL, WS_SETTING_SWITCH, false,
	  "no prefix is answered for by an earlier pass" },
	{ "disable_cuda_graph", NULL, WS_SETTING_SWITCH, false,
	  "batches are not padded to a graph's size" },
	{ "disable_shared_experts_fusion", NULL, WS_SETTING_SWITCH, false,
	  "shared experts are computed by themselves" },
	{ "enable_return_routed_experts", NULL, WS_SETTING_SWITCH, false,
	  "answers can tell the experts chosen" },
	{ "enable_return_expert_logits", NULL, WS_SETTING_SWITCH, false,
	  "answers can tell the experts' weights" },
	{ "speculative_algorithm", NULL, WS_SETTING_WORD, false, "a draft proposes tokens" },
	{ NULL, "rmsnorm_mode", WS_SETTING_WORD, false,
	  "rl_on_policy_target decides it at a server" },
	{ NULL, "activation_native", WS_SETTING_SWITCH, false,
	  "rl_on_policy_target decides it at a server" },
	{ NULL, "rope_native", WS_SETTING_SWITCH, false,
	  "rl_on_policy_target decides it at a server" },
	{ NULL, "attention_cast_bf16", WS_SETTING_SWITCH, false,
	  "rl_on_policy_target decides it at a server" },
};
const size_t ws_settings_n_known = sizeof ws_settings_known / sizeof *ws_settings_known;

const struct ws_setting_known *ws_setting_know(const char *key)
{
	for (size_t i = 0; i < ws_settings_n_known; i++) {
		const struct ws_setting_known *k = &ws_settings_known[i];
		if ((k->key && !strcmp(k->key, key)) || (k->trainers && !strcmp(k->trainers, key)))
			return k;
	}
	return NULL;
}

const struct ws_setting *ws_setting_find(const struct ws_settings *s, const char *key)
{
	for (size_t i = 0; i < s->n; i++)
		if (!strcmp(s->items[i].key, key))
			return &s->items[i];
	return NULL;
}

static void free_setting(struct ws_setting *x)
{
	free(x->key);
	free(x->given);
	free(x->value);
}

void ws_settings_free(struct ws_settings *s)
{
	for (size_t i = 0; i < s->n; i++)
		free_setting(&s->items[i]);
	free(s->items);
	*s = (struct ws_settings){ 0 };
}

/* ---- one setting ---- */

/* The server's word for what somebody calls `given`. */
static void name_key(char key[KEY_MAX], const char *given)
{
	snprintf(key, KEY_MAX, "%s", given);
	for (char *p = key; *p; p++)
		if (*p == '-')
			*p = '_';
	const struct ws_setting_known *k = ws_setting_know(key);
	if (k && k->key)
		snprintf(key, KEY_MAX, "%s", k->key);
}

static struct ws_setting *place_for(struct ws_settings *s, const char *key)
{
	struct ws_setting *x = (struct ws_setting *)ws_setting_find(s, key);
	if (x) {
		free_setting(x);
		return x;
	}
	x = realloc(s->items, (s->n + 1) * sizeof *x);
	if (!x)
		return NULL;
	s->items = x;
	return &x[s->n++];
}

static int put(struct ws_settings *s, const char *given, const char *value, bool asked,
               struct ws_err *err)
{
	char key[KEY_MAX];
	if (s->n >= SETTINGS_MAX)
		return ws_err_set(err, WS_EINPUT, "settings: more than %d of them", SETTINGS_MAX);
	name_key(key, given);
	struct ws_setting *x = place_for(s, key);
	if (!x)
		return ws_oom(err);
	*x = (struct ws_setting){ strdup(key), strdup(given), strdup(value), asked };
	return x->key && x->given && x->value ? 0 : ws_oom(err);
}

/* ---- JSON ---- */

static const char *spell(const struct ws_json *node, char number[32])
{
	int64_t whole;
	double real;
	switch (ws_json_type(node)) {
	case WS_JSON_STRING:
		return ws_json_string(node);
	case WS_JSON_BOOL:
		return ws_json_bool(node, false) ? "true" : "false";
	case WS_JSON_NUMBER:
		if (ws_json_int(node, &whole))
			snprintf(number, 32, "%" PRId64, whole);
		else if (ws_json_double(node, &real))
			snprintf(number, 32, "%.17g", real);
		return number;
	case WS_JSON_ARRAY:
		return "[...]";
	case WS_JSON_OBJECT:
		return "{...}";
	case WS_JSON_NULL:
		break;
	}
	return "null";
}

int ws_settings_take(struct ws_settings *s, const struct ws_json *object, bool strict,
                     const char *what, struct ws_err *err)
{
	const char *twice = strict ? ws_json_duplicate(object) : NULL;
	char number[32] = "", name[80];
	if (twice)
		return ws_err_set(err, WS_EINPUT, "%s: '%s' stands there twice", what,
		                  ws_printable(name, sizeof name, twice, strlen(twice)));
	for (const struct ws_json *m = ws_json_first(object); m; m = ws_json_next(m)) {
		const char *key = ws_json_key(m);
		const enum ws_json_type type = ws_json_type(m);
		const bool composite = type == WS_JSON_ARRAY || type == WS_JSON_OBJECT;
		ws_printable(name, sizeof name, key, strlen(key));
		if (strict && (composite || strlen(key) >= KEY_MAX))
			return ws_err_set(
				err, WS_EINPUT,
				"%s: '%s': a setting is a text, a number, true, false or null",
				what, name);
		if (strlen(key) < KEY_MAX && put(s, key, spell(m, number), false, err))
			return -1;
	}
	return 0;
}

int ws_settings_read(struct ws_settings *s, const char *path, struct ws_err *err)
{
	struct ws_json *root = NULL;
	struct ws_buf text;
	ws_buf_init(&text, FILE_MAX);
	int rc = ws_file_read(path, &text, err);
	if (!rc && !(root = ws_json_parse(ws_buf_str(&text), text.len, path, err)))
		rc = -1;
	if (!rc && ws_json_type(root) != WS_JSON_OBJECT)
		rc = ws_err_set(err, WS_EINPUT, "%s: settings are one JSON object", path);
	if (!rc)
		rc = ws_settings_take(s, root, true, path, err);
	ws_json_free(root);
	ws_buf_free(&text);
	return rc;
}

/* ---- pairs ---- */

int ws_settings_add(struct ws_settings *s, const char *pair, struct ws_err *err)
{
	const char *equals = strchr(pair, '=');
	char given[KEY_MAX], number[32] = "";
	struct ws_err ignored = WS_ERR_INIT;
	if (!equals || equals == pair || equals - pair >= KEY_MAX)
		return ws_err_set(err, WS_EUSAGE, "'%.80s' is no KEY=VALUE", pair);
	snprintf(given, sizeof given, "%.*s", (int)(equals - pair), pair);
	const char *value = equals + 1;
	/* 8 and 8.0 are one number; what is no JSON is a word. */
	struct ws_json *node = ws_json_parse(value, strlen(value), "value", &ignored);
	const int rc = put(s, given, node ? spell(node, number) : value, true, err);
	ws_json_free(node);
	return rc;
}
