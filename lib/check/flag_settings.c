/* SPDX-License-Identifier: Apache-2.0 */
/* flag_settings.c - the settings that wsync-verify flags knows: read from a file, from pairs or
 * from a reply, and compared with the wanted ones.
 *
 * Words are compared by meaning: None is null, True is true, bf16 is bfloat16. A switch that a
 * server does not know counts as off. */
#include "wsync/tool/flags.h"

#include "answer.h"
#include "wsync/tool/str.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

enum setting_kind { KIND_SWITCH, KIND_NUMBER, KIND_WORD, KIND_DTYPE };
enum { FILE_MAX = 1 << 20, SETTINGS_MAX = 4096, KEY_MAX = 256 };

static const struct setting_known {
	const char *key;       /* the server's; NULL: no server shows it */
	const char *trainers;  /* a trainer's word for it, or NULL */
	enum setting_kind kind;
	bool chosen;           /* null and "auto" mean that the server chooses */
	const char *meaning;
} known[] = {
	{ "rl_on_policy_target", NULL, KIND_WORD, false,
	  "whose arithmetic the server follows" },
	{ "enable_fp32_lm_head", "lm_head_fp32", KIND_SWITCH, false, "logits in float32" },
	{ "enable_fp32_router", "router_fp32", KIND_SWITCH, false,
	  "the router's gate in float32" },
	{ "enable_deterministic_inference", NULL, KIND_SWITCH, false,
	  "kernels whose sums do not depend on the batch" },
	{ "attention_backend", NULL, KIND_WORD, true, "the kernels of attention" },
	{ "prefill_attention_backend", NULL, KIND_WORD, true,
	  "the kernels of attention over prompts" },
	{ "decode_attention_backend", NULL, KIND_WORD, true,
	  "the kernels of attention, token by token" },
	{ "sampling_backend", NULL, KIND_WORD, true, "the kernels that draw a token" },
	{ "moe_runner_backend", NULL, KIND_WORD, true, "the kernels of the experts" },
	{ "dtype", NULL, KIND_DTYPE, true, "the type that is computed in" },
	{ "kv_cache_dtype", NULL, KIND_DTYPE, true,
	  "the type that keys and values are kept in" },
	{ "quantization", NULL, KIND_WORD, true, "how weights are kept" },
	{ "tp_size", NULL, KIND_NUMBER, false, "over how many ranks sums are divided" },
	{ "ep_size", NULL, KIND_NUMBER, false, "over how many ranks experts are divided" },
	{ "dp_size", NULL, KIND_NUMBER, false, "how many ranks have requests of their own" },
	{ "enable_dp_attention", NULL, KIND_SWITCH, false,
	  "attention is not divided over ranks" },
	{ "chunked_prefill_size", NULL, KIND_NUMBER, true,
	  "in which pieces a prompt is computed" },
	{ "disable_radix_cache", NULL, KIND_SWITCH, false,
	  "no prefix is answered for by an earlier pass" },
	{ "disable_cuda_graph", NULL, KIND_SWITCH, false,
	  "batches are not padded to a graph's size" },
	{ "disable_shared_experts_fusion", NULL, KIND_SWITCH, false,
	  "shared experts are computed by themselves" },
	{ "enable_return_routed_experts", NULL, KIND_SWITCH, false,
	  "answers can tell the experts chosen" },
	{ "enable_return_expert_logits", NULL, KIND_SWITCH, false,
	  "answers can tell the experts' weights" },
	{ "speculative_algorithm", NULL, KIND_WORD, false, "a draft proposes tokens" },
	{ NULL, "rmsnorm_mode", KIND_WORD, false,
	  "rl_on_policy_target decides it at a server" },
	{ NULL, "activation_native", KIND_SWITCH, false,
	  "rl_on_policy_target decides it at a server" },
	{ NULL, "rope_native", KIND_SWITCH, false,
	  "rl_on_policy_target decides it at a server" },
	{ NULL, "attention_cast_bf16", KIND_SWITCH, false,
	  "rl_on_policy_target decides it at a server" },
};
enum { N_KNOWN = sizeof known / sizeof *known };

/* By the server's or a trainer's word. NULL: an unknown setting. */
static const struct setting_known *find_known(const char *key)
{
	for (size_t i = 0; i < N_KNOWN; i++) {
		const struct setting_known *k = &known[i];
		if ((k->key && !strcmp(k->key, key)) || (k->trainers && !strcmp(k->trainers, key)))
			return k;
	}
	return NULL;
}

static struct ws_setting *find_setting(const struct ws_settings *s, const char *key)
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

/* Translates a trainer's key to the server's. */
static void name_key(char key[KEY_MAX], const char *given)
{
	snprintf(key, KEY_MAX, "%s", given);
	for (char *p = key; *p; p++)
		if (*p == '-')
			*p = '_';
	const struct setting_known *k = find_known(key);
	if (k && k->key)
		snprintf(key, KEY_MAX, "%s", k->key);
}

static struct ws_setting *place_for(struct ws_settings *s, const char *key)
{
	struct ws_setting *x = find_setting(s, key);
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
		return ws_err_set(err, WS_EINPUT, "%s: '%s' is given twice", what,
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
	struct ws_json *root = ws_answer_file(path, FILE_MAX, err);
	int rc = root ? 0 : -1;
	if (!rc && ws_json_type(root) != WS_JSON_OBJECT)
		rc = ws_err_set(err, WS_EINPUT, "%s: settings are one JSON object", path);
	if (!rc)
		rc = ws_settings_take(s, root, true, path, err);
	ws_json_free(root);
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
	/* 8 and 8.0 are the same number; a value that is not JSON is a word. */
	struct ws_json *node = ws_json_parse(value, strlen(value), "value", &ignored);
	const int rc = put(s, given, node ? spell(node, number) : value, true, err);
	ws_json_free(node);
	return rc;
}

const char *ws_flag_verdict_name(enum ws_flag_verdict verdict)
{
	static const char *const names[] = { "equal", "different", "absent", "chosen", "unshown" };
	return (unsigned)verdict < WS_FLAG_VERDICTS ? names[verdict] : "unknown";
}

/* ---- values ---- */

static bool is_null(const char *v)
{
	return !*v || !strcasecmp(v, "null") || !strcasecmp(v, "none");
}

static bool is_off(const char *v)
{
	return is_null(v) || !strcasecmp(v, "false");
}

static const char *full_dtype(const char *v)
{
	static const char *const short_for[][2] = {
		{ "bf16", "bfloat16" }, { "fp16", "float16" },  { "half", "float16" },
		{ "fp32", "float32" },  { "float", "float32" },
	};
	if (!strncmp(v, "torch.", 6))
		v += 6;
	for (size_t i = 0; i < sizeof short_for / sizeof *short_for; i++)
		if (!strcmp(v, short_for[i][0]))
			return short_for[i][1];
	return v;
}

static bool is_same(enum setting_kind kind, const char *a, const char *b)
{
	if (kind == KIND_SWITCH && is_off(a) && is_off(b))
		return true;
	if (is_null(a) || is_null(b))
		return is_null(a) && is_null(b);
	if (kind == KIND_DTYPE)
		return !strcmp(full_dtype(a), full_dtype(b));
	if (!strcasecmp(a, "true") || !strcasecmp(a, "false"))
		return !strcasecmp(a, b);
	return !strcmp(a, b);
}

/* ---- comparing one setting ---- */

static enum ws_flag_verdict flag_verdict(const struct setting_known *k, const char *want,
                                  const char *have)
{
	if (k && !k->key)
		return WS_FLAG_UNSHOWN;
	if (!have)
		return WS_FLAG_ABSENT;
	if (is_same(k ? k->kind : KIND_WORD, want, have))
		return WS_FLAG_EQUAL;
	return k && k->chosen && (is_null(have) || !strcmp(have, "auto")) ? WS_FLAG_CHOSEN :
	                                                                    WS_FLAG_DIFFERENT;
}

/* An unknown key in a file is ignored; an unknown key on the command line is an error. */
static enum ws_severity weigh(const struct ws_flag *f, const struct setting_known *k, bool asked)
{
	switch (f->verdict) {
	case WS_FLAG_DIFFERENT:
		return WS_ERROR;
	case WS_FLAG_ABSENT:
		return (k && is_off(f->expected)) || (!k && !asked) ? WS_NOTE : WS_ERROR;
	case WS_FLAG_CHOSEN:
		return WS_WARN;
	default:
		return WS_NOTE;
	}
}

static void explain(struct ws_flag *f, const struct setting_known *k)
{
	char want[96], have[96] = "";
	const char *meaning = k ? k->meaning : NULL;
	ws_printable(want, sizeof want, f->expected, strlen(f->expected));
	if (f->found)
		ws_printable(have, sizeof have, f->found, strlen(f->found));
	if (f->verdict == WS_FLAG_DIFFERENT)
		snprintf(f->reason, sizeof f->reason, "wanted %s, has %s", want, have);
	else if (f->verdict == WS_FLAG_ABSENT)
		snprintf(f->reason, sizeof f->reason,
		         "wanted %s, and the server shows no such setting%s", want,
		         f->severity != WS_NOTE ? "" :
		         k                      ? ": it is off" :
		                                  ": it is left out");
	else if (f->verdict == WS_FLAG_CHOSEN)
		snprintf(f->reason, sizeof f->reason,
		         "wanted %s, has %s: the server chose, and does not say what", want, have);
	else if (f->verdict == WS_FLAG_UNSHOWN)
		snprintf(f->reason, sizeof f->reason, "the trainer has %s, and no server shows it",
		         want);
	if (*f->reason && meaning)
		snprintf(f->reason + strlen(f->reason), sizeof f->reason - strlen(f->reason),
		         " (%s)", meaning);
}

static void compare_one(const struct ws_setting *want, const struct ws_setting *have,
                        struct ws_flags_report *r)
{
	static const char nothing[] = "null";
	const struct ws_setting *named = want ? want : have;
	const struct setting_known *k = find_known(named->key);
	struct ws_flag *f = &r->items[r->n++];
	*f = (struct ws_flag){ .key = named->key,
		               .given = named->given,
		               .expected = want ? want->value : nothing,
		               .found = have ? have->value : NULL };
	f->verdict = flag_verdict(k, f->expected, f->found);
	f->severity = weigh(f, k, want && want->asked);
	explain(f, k);
	r->compared += f->verdict != WS_FLAG_UNSHOWN && (f->verdict != WS_FLAG_ABSENT || k);
	r->count[f->verdict]++;
	r->errors += f->severity == WS_ERROR;
}

/* ---- all settings ---- */

static int make_room(struct ws_flags_report *r, size_t n, struct ws_err *err)
{
	*r = (struct ws_flags_report){ .items = calloc(n ? n : 1, sizeof *r->items) };
	return r->items ? 0 : ws_oom(err);
}

int ws_flags_compare(const struct ws_settings *want, const struct ws_settings *have,
                     struct ws_flags_report *out, struct ws_err *err)
{
	if (make_room(out, want->n, err))
		return -1;
	for (size_t i = 0; i < want->n; i++)
		compare_one(&want->items[i], find_setting(have, want->items[i].key), out);
	return 0;
}

int ws_flags_between(const struct ws_settings *one, const struct ws_settings *other,
                     struct ws_flags_report *out, struct ws_err *err)
{
	if (make_room(out, N_KNOWN, err))
		return -1;
	for (size_t i = 0; i < N_KNOWN; i++) {
		const char *key = known[i].key;
		const struct ws_setting *a = key ? find_setting(one, key) : NULL;
		const struct ws_setting *b = key ? find_setting(other, key) : NULL;
		if (a || b)
			compare_one(a, b, out);
	}
	return 0;
}

void ws_flags_report_free(struct ws_flags_report *r)
{
	free(r->items);
	*r = (struct ws_flags_report){ 0 };
}
