/* SPDX-License-Identifier: Apache-2.0 */
/* lora_config.c - adapter_config.json, as PEFT reads it.
 *
 *   peft_type "LORA"; r; lora_alpha; use_rslora; init_lora_weights; peft_version "0.18.0";
 *   target_modules ["q_proj"], exclude_modules, modules_to_save, layers_to_transform,
 *   layers_pattern; target_parameters ["experts.down_proj"]; ensure_weight_tying;
 *   rank_pattern, alpha_pattern {"regular expression": number}
 *
 * Every field is known: it is used, or changes nothing of the result, or must be off. Variants that
 * compute anything but W + scale * B @ A, or that changed W before training, are refused by name:
 * merged like plain LoRA they would give a wrong model without an error. fan_in_fan_out changes
 * nothing, because PEFT corrects it by the kind of each layer. */
#include "lora_priv.h"

#include "name_index.h"

#include <ctype.h>
#include <math.h>
#include <stdio.h>
#include <string.h>
#include <strings.h>

enum { MAX_PATTERNS = 1 << 20, MAX_RANK = 1 << 16 };

static const char merge_hint[] = "merge it with PEFT (merge_and_unload) and push what it saves";

/* ---- fields ---- */

/* The fields of PEFT 0.4 to 0.21, and of trainers that add their own. why: it must be off. */
static const struct field {
	const char *key, *why;
} fields[] = {
	{ "alpha_pattern", NULL },
	{ "auto_mapping", NULL },
	{ "base_model_name_or_path", NULL },
	{ "bias", NULL }, /* the file has the biases that were trained */
	{ "corda_config", NULL },
	{ "ensure_weight_tying", NULL },
	{ "eva_config", NULL },
	{ "exclude_modules", NULL },
	{ "fan_in_fan_out", NULL },
	{ "inference_mode", NULL },
	{ "init_lora_weights", NULL },
	{ "layers_pattern", NULL },
	{ "layers_to_transform", NULL },
	{ "loftq_config", NULL },
	{ "lora_alpha", NULL },
	{ "lora_dropout", NULL },
	{ "lora_ga_config", NULL },
	{ "megatron_core", NULL },
	{ "modules_to_save", NULL },
	{ "peft_type", NULL },
	{ "peft_version", NULL },
	{ "qalora_group_size", NULL },
	{ "r", NULL },
	{ "rank_pattern", NULL },
	{ "revision", NULL },
	{ "runtime_config", NULL },
	{ "target_modules", NULL },
	{ "target_parameters", NULL },
	{ "task_type", NULL },
	{ "use_rslora", NULL },
	{ "velora_config", NULL },         /* another backward pass */
	{ "lora_dtype", NULL },            /* ms-swift's, as the next two */
	{ "lorap_emb_lr", NULL },
	{ "lorap_lr_ratio", NULL },
	{ "moe_hybrid_shared_lora", NULL }, /* SGLang's: some factors are of all experts */
	{ "use_dora", "DoRA rescales every row of the weight, which is no low-rank change" },
	{ "use_qalora",
	  "QA-LoRA pools its inputs in groups, which is no low-rank change of the weight" },
	{ "use_bdlora", "BD-LoRA's factors are block-diagonal" },
	{ "kasa_config", "KaSA takes singular values off the weight before it adds its own" },
	{ "arrow_config",
	  "Arrow chooses among adapters token by token, so that nothing can be merged" },
	{ "monteclora_config", "MonteCLoRA draws its factors at random" },
	{ "alora_invocation_tokens",
	  "activated LoRA begins in mid-sequence, so that nothing can be merged" },
	{ "lora_bias", "it adds biases of its own, which servers' weights may have no place for" },
	{ "layer_replication", "it makes layers that the base does not have" },
	{ "megatron_config",
	  "the adapter is of Megatron-Core's parallel layers, not of a checkpoint's" },
	{ "trainable_token_indices",
	  "single rows of the embedding were trained, which is not supported" },
};

static bool is_set(const struct ws_json *v)
{
	double x;
	switch (ws_json_type(v)) {
	case WS_JSON_NULL:
		return false;
	case WS_JSON_BOOL:
		return ws_json_bool(v, false);
	case WS_JSON_NUMBER:
		return !ws_json_double(v, &x) || x != 0;
	case WS_JSON_STRING:
		return *ws_json_string(v) != 0;
	default:
		return ws_json_count(v) > 0;
	}
}

static const struct field *find_field(const char *key)
{
	for (size_t i = 0; i < sizeof fields / sizeof *fields; i++)
		if (strcmp(fields[i].key, key) == 0)
			return &fields[i];
	return NULL;
}

static int check_fields(const struct ws_json *root, const char *what, struct ws_err *err)
{
	const char *type = ws_json_get_string(root, "peft_type", "LORA");
	if (strcmp(type, "LORA") != 0)
		return ws_err_set(err, WS_EINPUT,
		                  "%s: peft_type is \"%s\": only LORA can be merged", what,
		                  ws_quote(type).text);
	for (const struct ws_json *v = ws_json_first(root); v; v = ws_json_next(v)) {
		const char *key = ws_json_key(v);
		const struct field *f = find_field(key);
		/* PEFT makes a config with its defaults of an empty object. */
		if ((f && !f->why) || (!is_set(v) && !(f && ws_json_type(v) == WS_JSON_OBJECT)))
			continue;
		if (f)
			ws_err_set(err, WS_EINPUT, "%s: %s: %s", what, key, f->why);
		else
			ws_err_set(err, WS_EINPUT,
			           "%s: the field \"%s\" is not known, so that it may change what "
			           "the adapter does",
			           what, ws_quote(key).text);
		return ws_err_hint(err, merge_hint);
	}
	return 0;
}

/* ---- how training began ---- */

/* PEFT writes these in lower case, and reads some of them in any. */
static bool begins(const char *text, const char *word)
{
	return strncasecmp(text, word, strlen(word)) == 0;
}

/* PEFT changes the base when it loads adapters that began so. */
static bool changed_base(const char *start)
{
	static const char *const words[] = { "pissa", "olora", "corda", "loftq", "lora_ga" };
	for (size_t i = 0; i < sizeof words / sizeof *words; i++)
		if (begins(start, words[i]))
			return true;
	return false;
}

static int check_start(const struct ws_json *v, const char *what, struct ws_err *err)
{
	static const char *const harmless[] = { "eva", "orthogonal", "mica", "" };
	const char *start = ws_json_string(v);
	if (ws_json_type(v) == WS_JSON_NULL || ws_json_type(v) == WS_JSON_BOOL)
		return 0;
	if (start && changed_base(start)) {
		ws_err_set(err, WS_EINPUT,
		           "%s: init_lora_weights is \"%s\": the base was changed before "
		           "training, so this adapter does not fit the original base",
		           what, ws_quote(start).text);
		return ws_err_hint(
			err, "save it with path_initial_model_for_weight_conversion, which "
			     "makes it plain LoRA");
	}
	if (start && strcasecmp(start, "gaussian") == 0)
		return 0;
	for (size_t i = 0; start && i < sizeof harmless / sizeof *harmless; i++)
		if (strcmp(start, harmless[i]) == 0)
			return 0;
	ws_err_set(err, WS_EINPUT,
	           "%s: init_lora_weights is %s%s%s, which PEFT does not know: whether the base "
	           "was changed before training is unknown",
	           what, start ? "\"" : "", start ? ws_quote(start).text : "no word",
	           start ? "\"" : "");
	return ws_err_hint(err, merge_hint);
}

/* ---- numbers ---- */

static int get_rank(const struct ws_json *v, const char *what, const char *name, int64_t *out,
                    struct ws_err *err)
{
	if (!ws_json_int(v, out) || *out < 1 || *out > MAX_RANK)
		return ws_err_set(err, WS_EINPUT, "%s: the rank %s is no number between 1 and %d",
		                  what, ws_quote(name).text, MAX_RANK);
	return 0;
}

static int get_alpha(const struct ws_json *v, const char *what, const char *name, double *out,
                     struct ws_err *err)
{
	if (ws_json_type(v) == WS_JSON_NULL)
		return ws_err_set(err, WS_EINPUT,
		                  "%s: %s is missing, so the scale is unknown",
		                  what, ws_quote(name).text);
	if (!ws_json_double(v, out) || !isfinite(*out))
		return ws_err_set(err, WS_EINPUT, "%s: %s is no number", what, ws_quote(name).text);
	return 0;
}

static int get_flag(const struct ws_json *root, const char *what, const char *key, bool *out,
                    struct ws_err *err)
{
	const struct ws_json *v = ws_json_get(root, key);
	*out = ws_json_bool(v, false);
	if (ws_json_type(v) == WS_JSON_NULL || ws_json_type(v) == WS_JSON_BOOL)
		return 0;
	return ws_err_set(err, WS_EINPUT, "%s: %s is neither true nor false", what, key);
}

static int read_pattern(const struct ws_json *v, const char *what, const char *list, bool is_rank,
                        uint64_t *left, struct ws_lora_pattern *out, struct ws_err *err)
{
	const char *wrong;
	int64_t rank;
	ws_lora_matches(out->text, "", left, &wrong);
	if (wrong)
		return ws_err_set(err, WS_EINPUT, "%s: %s: pattern '%s': %s", what, list,
		                  ws_quote(out->text).text, wrong);
	if (!is_rank)
		return get_alpha(v, what, out->text, &out->value, err);
	if (get_rank(v, what, out->text, &rank, err))
		return -1;
	out->value = (double)rank;
	return 0;
}

static int read_patterns(struct ws_lora_config *c, const struct ws_json *root, const char *what,
                         const char *key, bool is_rank, struct ws_err *err)
{
	const struct ws_json *list = ws_json_get(root, key);
	const size_t n = ws_json_count(list);
	if (ws_json_type(list) == WS_JSON_NULL || n == 0)
		return 0;
	if (ws_json_type(list) != WS_JSON_OBJECT || n > MAX_PATTERNS)
		return ws_err_set(err, WS_EINPUT, "%s: %s is no object", what, key);
	struct ws_lora_pattern *p = ws_arena_alloc(&c->arena, n * sizeof *p);
	if (!p)
		return ws_oom(err);
	*(is_rank ? &c->ranks : &c->alphas) = p;
	*(is_rank ? &c->n_ranks : &c->n_alphas) = n;
	for (const struct ws_json *v = ws_json_first(list); v; v = ws_json_next(v), p++) {
		const char *text = ws_json_key(v);
		p->text = ws_arena_text(&c->arena, text, strlen(text));
		if (!p->text)
			return ws_oom(err);
		if (read_pattern(v, what, key, is_rank, c->left, p, err))
			return -1;
	}
	return 0;
}

/* ---- names of modules ---- */

static int no_names(const char *what, const char *key, struct ws_err *err)
{
	return ws_err_set(err, WS_EINPUT, "%s: %s is no list of names", what, key);
}

static int read_names(struct ws_lora_config *c, const struct ws_json *root, const char *what,
                      const char *key, struct ws_lora_names *out, struct ws_err *err)
{
	const struct ws_json *v = ws_json_get(root, key);
	const char *text = ws_json_string(v);
	out->given = ws_json_type(v) != WS_JSON_NULL;
	if (text)
		return (out->pattern = ws_arena_text(&c->arena, text, strlen(text))) ? 0
		                                                                     : ws_oom(err);
	if (!out->given)
		return 0;
	if (ws_json_type(v) != WS_JSON_ARRAY)
		return no_names(what, key, err);
	out->list = ws_arena_alloc(&c->arena, (ws_json_count(v) + 1) * sizeof *out->list);
	if (!out->list)
		return ws_oom(err);
	for (const struct ws_json *e = ws_json_first(v); e; e = ws_json_next(e)) {
		if (!(text = ws_json_string(e)))
			return no_names(what, key, err);
		if (!(out->list[out->n++] = ws_arena_text(&c->arena, text, strlen(text))))
			return ws_oom(err);
	}
	return 0;
}

static int read_layers(struct ws_lora_config *c, const struct ws_json *root, const char *what,
                       struct ws_err *err)
{
	const struct ws_json *v = ws_json_get(root, "layers_to_transform");
	const bool list = ws_json_type(v) == WS_JSON_ARRAY;
	if (ws_json_type(v) == WS_JSON_NULL)
		return 0;
	c->layers = ws_arena_alloc(&c->arena, (ws_json_count(v) + 1) * sizeof *c->layers);
	if (!c->layers)
		return ws_oom(err);
	for (v = list ? ws_json_first(v) : v; v; v = list ? ws_json_next(v) : NULL)
		if (!ws_json_int(v, &c->layers[c->n_layers++]))
			return ws_err_set(err, WS_EINPUT,
			                  "%s: layers_to_transform is no number and no list of "
			                  "numbers", what);
	return 0;
}

static int read_modules(struct ws_lora_config *c, const struct ws_json *root, const char *what,
                        struct ws_err *err)
{
	if (read_names(c, root, what, "target_parameters", &c->params, err) ||
	    read_names(c, root, what, "target_modules", &c->targets, err) ||
	    read_names(c, root, what, "exclude_modules", &c->excluded, err) ||
	    read_names(c, root, what, "modules_to_save", &c->saved, err) ||
	    read_names(c, root, what, "layers_pattern", &c->layers_pattern, err) ||
	    read_layers(c, root, what, err))
		return -1;
	return c->params.pattern ? no_names(what, "target_parameters", err) : 0;
}

/* ---- the whole config ---- */

static bool is_before_0_19(const struct ws_json *root)
{
	int major = 0, minor = 0;
	sscanf(ws_json_get_string(root, "peft_version", ""), "%3d.%3d", &major, &minor);
	return major == 0 && minor < 19;
}

static int read_config(struct ws_lora_config *c, const struct ws_json *root, const char *what,
                       struct ws_err *err)
{
	if (ws_json_type(root) != WS_JSON_OBJECT)
		return ws_err_set(err, WS_EINPUT, "%s: no JSON object", what);
	const char *twice = ws_json_duplicate(root);
	if (twice)
		return ws_err_set(err, WS_EINPUT, "%s: \"%s\" occurs twice", what,
		                  ws_quote(twice).text);
	double dropout = 0;
	bool turned = false;
	if (check_fields(root, what, err) ||
	    check_start(ws_json_get(root, "init_lora_weights"), what, err) ||
	    get_rank(ws_json_get(root, "r"), what, "r", &c->rank, err) ||
	    get_alpha(ws_json_get(root, "lora_alpha"), what, "lora_alpha", &c->alpha, err) ||
	    read_patterns(c, root, what, "rank_pattern", true, err) ||
	    read_patterns(c, root, what, "alpha_pattern", false, err) ||
	    read_modules(c, root, what, err) ||
	    get_flag(root, what, "use_rslora", &c->rslora, err) ||
	    get_flag(root, what, "ensure_weight_tying", &c->tying, err) ||
	    get_flag(root, what, "fan_in_fan_out", &turned, err))
		return -1;
	ws_json_double(ws_json_get(root, "lora_dropout"), &dropout);
	if (c->params.n && (turned || dropout > 0))
		return ws_err_set(err, WS_EINPUT,
		                  "%s: PEFT has no target_parameters together with %s", what,
		                  turned ? "fan_in_fan_out" : "lora_dropout");
	c->axes_in_order = is_before_0_19(root);
	return 0;
}

int ws_lora_config_parse(const char *text, size_t len, const char *what, struct ws_lora_config *out,
                         struct ws_err *err)
{
	*out = (struct ws_lora_config){ .rank = 0 };
	out->left = ws_arena_alloc(&out->arena, sizeof *out->left);
	if (!out->left)
		return ws_oom(err);
	*out->left = WS_LORA_MAX_WORK;
	struct ws_json *root = ws_json_parse(text, len, what, err);
	if (!root) {
		ws_lora_config_free(out);
		return -1;
	}
	const int rc = read_config(out, root, what, err);
	ws_json_free(root);
	if (rc)
		ws_lora_config_free(out);
	return rc;
}

void ws_lora_config_free(struct ws_lora_config *c)
{
	ws_arena_free(&c->arena);
	*c = (struct ws_lora_config){ .rank = 0 };
}

int ws_lora_config_check_work(const struct ws_lora_config *c, struct ws_err *err)
{
	return *c->left ? 0 :
	                  ws_err_set(err, WS_EINPUT, "adapter_config.json: its names and patterns "
	                             "are too many or too complicated for this number of "
	                             "modules");
}

/* ---- ranks and scales of modules ---- */

static int find_pattern(const struct ws_lora_pattern *p, size_t n, const char *module,
                        uint64_t *left, double *value, struct ws_err *err)
{
	for (size_t i = 0; i < n; i++) {
		const char *wrong;
		const bool matches = ws_lora_matches(p[i].text, module, left, &wrong);
		if (wrong)
			return ws_err_set(err, WS_EINPUT, "adapter module '%s': pattern '%s': %s",
			                  ws_quote(module).text, ws_quote(p[i].text).text, wrong);
		if (!matches)
			continue;
		*value = p[i].value;
		return 0;
	}
	return 0;
}

int ws_lora_config_find(const struct ws_lora_config *c, const char *module, int64_t *rank,
                        float *scale, struct ws_err *err)
{
	double r = (double)c->rank, alpha = c->alpha;
	if (find_pattern(c->ranks, c->n_ranks, module, c->left, &r, err) ||
	    find_pattern(c->alphas, c->n_alphas, module, c->left, &alpha, err))
		return -1;
	*rank = (int64_t)r;
	*scale = (float)(alpha / (c->rslora ? sqrt(r) : r));
	if (!isfinite(*scale))
		return ws_err_set(err, WS_EINPUT,
		                  "adapter module '%s': alpha %g is beyond the range of float32",
		                  ws_quote(module).text, alpha);
	return 0;
}

/* ---- which modules have factors ---- */

/* Is the name, or what follows one of its dots, equal to the end? */
static bool ends_in(const char *name, const char *end)
{
	const size_t n = strlen(name), m = strlen(end);
	return m <= n && strcmp(name + n - m, end) == 0 && (m == n || name[n - m - 1] == '.');
}

/* otherwise: for a pattern that is not understood. */
static bool names_match(const struct ws_lora_config *c, const struct ws_lora_names *names,
                        const char *module, bool otherwise)
{
	const char *wrong;
	if (names->pattern) {
		const bool matches = ws_lora_matches_all(names->pattern, module, c->left, &wrong);
		return wrong ? otherwise : matches;
	}
	for (size_t i = 0; ws_lora_spend(c->left, 1) && i < names->n; i++)
		if (ends_in(module, names->list[i]))
			return true;
	return false;
}

bool ws_lora_is_saved_as(const struct ws_lora_config *c, const char *entry, const char *name)
{
	char pattern[WS_LORA_MAX_NAME + 32];
	const char *wrong;
	const int n = snprintf(pattern, sizeof pattern, "(?:.*\\.)?(?:%s)(?:\\..*)?", entry);
	return n < (int)sizeof pattern && ws_lora_matches_all(pattern, name, c->left, &wrong);
}

static bool is_saved(const struct ws_lora_config *c, const char *module)
{
	for (size_t i = 0; i < c->saved.n; i++)
		if (ws_lora_is_saved_as(c, c->saved.list[i], module))
			return true;
	return false;
}

/* The number in the segment at p, which must not be the last one; -1: no number. */
static int64_t number_at(const char *p)
{
	int64_t n = 0;
	const char *d = p;
	for (; isdigit((unsigned char)*d) && d - p < 9; d++)
		n = n * 10 + (*d - '0');
	return d > p && *d == '.' ? n : -1;
}

/* The module's layer: the number behind a name of layers_pattern, or the first that is the third
 * segment or a later one; -1: it has none. */
static int64_t layer_of(const struct ws_lora_config *c, const char *module)
{
	const struct ws_lora_names *words = &c->layers_pattern;
	const char *const *list = words->pattern ? &words->pattern : words->list;
	const size_t n_list = words->pattern ? *words->pattern != 0 : words->n; /* "": none */
	unsigned segment = 0;
	for (const char *p = module; p; p = strchr(p, '.'), p = p ? p + 1 : NULL, segment++) {
		int64_t n = n_list == 0 && segment >= 2 ? number_at(p) : -1;
		for (size_t i = 0; i < n_list && n < 0; i++) {
			const size_t len = strlen(list[i]);
			if (strncmp(p, list[i], len) == 0 && p[len] == '.')
				n = number_at(p + len + 1);
		}
		if (n >= 0)
			return n;
	}
	return -1;
}

static bool is_of_layers(const struct ws_lora_config *c, const char *module)
{
	if (!ws_lora_spend(c->left, c->n_layers + c->layers_pattern.n + 1))
		return false;
	const int64_t layer = layer_of(c, module);
	for (size_t i = 0; i < c->n_layers; i++)
		if (layer >= 0 && c->layers[i] == layer)
			return true;
	return c->n_layers == 0;
}

/* "all-linear" leaves the head out, and an embedding is not linear. */
static bool is_linear(const char *module)
{
	static const char *const others[] = { "lm_head", "embed_out", "embed_tokens", "wte" };
	for (size_t i = 0; i < sizeof others / sizeof *others; i++)
		if (ends_in(module, others[i]))
			return false;
	return true;
}

/* With ensure_weight_tying PEFT gives a tied head the factors of the embedding, if target_modules
 * names one of the two as most models do. The head itself is not in what it writes. */
static bool ties_factors(const struct ws_lora_config *c)
{
	static const char *const ends[] = { "embed_tokens", "lm_head" };
	const char *wrong;
	for (size_t i = 0; c->tying && i < sizeof ends / sizeof *ends; i++) {
		if (c->targets.pattern &&
		    ws_lora_matches_all(c->targets.pattern, ends[i], c->left, &wrong))
			return true;
		for (size_t k = 0; ws_lora_spend(c->left, 1) && k < c->targets.n; k++)
			if (ends_in(c->targets.list[k], ends[i]))
				return true;
	}
	return false;
}

const char *ws_lora_config_omits(const struct ws_lora_config *c, const char *module, bool tied)
{
	static const char targets[] = "target_modules";
	if (tied && ends_in(module, "lm_head") && ties_factors(c))
		return NULL;
	if (names_match(c, &c->excluded, module, false))
		return "exclude_modules";
	if (is_saved(c, module))
		return "modules_to_save";
	if (!c->targets.given) /* the names of the tensors decide */
		return c->params.given ? targets : NULL;
	if (c->targets.pattern && strcasecmp(c->targets.pattern, "all-linear") == 0)
		return is_linear(module) ? NULL : targets;
	if (!names_match(c, &c->targets, module, true))
		return targets;
	return c->targets.pattern || is_of_layers(c, module) ? NULL : "layers_to_transform";
}

static bool is_understood(const struct ws_lora_config *c, const char *pattern)
{
	const char *wrong = NULL;
	if (pattern)
		ws_lora_matches_all(pattern, "", c->left, &wrong);
	return !wrong;
}

bool ws_lora_config_is_understood(const struct ws_lora_config *c)
{
	return is_understood(c, c->targets.pattern) && is_understood(c, c->excluded.pattern);
}

bool ws_lora_config_has_param(const struct ws_lora_config *c, const char *parameter)
{
	return names_match(c, &c->params, parameter, false);
}
