/* SPDX-License-Identifier: Apache-2.0 */
/* lora_config.c - adapter_config.json, as PEFT writes it.
 *
 *   peft_type "LORA"; r; lora_alpha; use_rslora; fan_in_fan_out;
 *   target_parameters ["experts.down_proj"];
 *   rank_pattern, alpha_pattern {"regular expression": number}; peft_version "0.18.0"
 *
 * target_modules, bias and modules_to_save repeat the tensors' names, so the names decide. Variants
 * that compute anything but W + scale * B @ A, or that changed W before training, are refused by
 * name: merged like plain LoRA they would give a wrong model without an error. */
#include "lora_priv.h"

#include "name_index.h"

#include <math.h>
#include <stdio.h>
#include <string.h>

enum { MAX_PATTERNS = 1 << 20, MAX_RANK = 1 << 16 };

static const struct variant {
	const char *key, *why;
} variants[] = {
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
	{ "trainable_token_indices",
	  "single rows of the embedding were trained, which is not supported" },
};

/* PEFT changes the base when it loads adapters whose init_lora_weights begins like this. */
static const char *const starts[] = { "pissa", "olora", "corda", "loftq", "lora_ga" };

static bool is_set(const struct ws_json *v)
{
	double x;
	switch (ws_json_type(v)) {
	case WS_JSON_NULL:
		return false;
	case WS_JSON_BOOL:
		return ws_json_bool(v, false);
	case WS_JSON_NUMBER:
		return ws_json_double(v, &x) && x != 0;
	case WS_JSON_STRING:
		return true;
	default:
		return ws_json_count(v) > 0;
	}
}

static int refuse_variants(const struct ws_json *root, const char *what, struct ws_err *err)
{
	const char *type = ws_json_get_string(root, "peft_type", "LORA");
	if (strcmp(type, "LORA") != 0)
		return ws_err_set(err, WS_EINPUT,
		                  "%s: peft_type is \"%s\": only LORA can be merged", what,
		                  ws_quote(type).text);
	for (size_t i = 0; i < sizeof variants / sizeof *variants; i++)
		if (is_set(ws_json_get(root, variants[i].key))) {
			ws_err_set(err, WS_EINPUT, "%s: %s: %s", what, variants[i].key,
			           variants[i].why);
			return ws_err_hint(
				err,
				"merge it with PEFT (merge_and_unload) and push what it saves");
		}
	const char *start = ws_json_get_string(root, "init_lora_weights", "");
	for (size_t i = 0; i < sizeof starts / sizeof *starts; i++)
		if (strncmp(start, starts[i], strlen(starts[i])) == 0) {
			ws_err_set(err, WS_EINPUT,
			           "%s: init_lora_weights is \"%s\": the base was changed before "
			           "training, so this adapter does not fit the original base",
			           what, ws_quote(start).text);
			return ws_err_hint(
				err, "save it with path_initial_model_for_weight_conversion, which "
				     "makes it plain LoRA");
		}
	return 0;
}

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

static int read_pattern(const struct ws_json *v, const char *what, const char *list, bool is_rank,
                        struct ws_lora_pattern *out, struct ws_err *err)
{
	const char *wrong;
	int64_t rank;
	ws_lora_matches(out->text, "", &wrong);
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
		if (read_pattern(v, what, key, is_rank, p, err))
			return -1;
	}
	return 0;
}

static int read_params(struct ws_lora_config *c, const struct ws_json *root, const char *what,
                       struct ws_err *err)
{
	const struct ws_json *list = ws_json_get(root, "target_parameters");
	if (ws_json_type(list) == WS_JSON_NULL)
		return 0;
	if (ws_json_type(list) != WS_JSON_ARRAY)
		return ws_err_set(err, WS_EINPUT, "%s: target_parameters is no list of names",
		                  what);
	c->params = ws_arena_alloc(&c->arena, (ws_json_count(list) + 1) * sizeof *c->params);
	if (!c->params)
		return ws_oom(err);
	for (const struct ws_json *v = ws_json_first(list); v; v = ws_json_next(v)) {
		const char *text = ws_json_string(v);
		if (!text)
			return ws_err_set(err, WS_EINPUT,
			                  "%s: target_parameters is no list of names", what);
		c->params[c->n_params] = ws_arena_text(&c->arena, text, strlen(text));
		if (!c->params[c->n_params++])
			return ws_oom(err);
	}
	return 0;
}

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
	if (refuse_variants(root, what, err) ||
	    get_rank(ws_json_get(root, "r"), what, "r", &c->rank, err) ||
	    get_alpha(ws_json_get(root, "lora_alpha"), what, "lora_alpha", &c->alpha, err) ||
	    read_patterns(c, root, what, "rank_pattern", true, err) ||
	    read_patterns(c, root, what, "alpha_pattern", false, err) ||
	    read_params(c, root, what, err))
		return -1;
	c->rslora = ws_json_get_bool(root, "use_rslora", false);
	c->fan_in_fan_out = ws_json_get_bool(root, "fan_in_fan_out", false);
	c->axes_in_order = is_before_0_19(root);
	return 0;
}

int ws_lora_config_parse(const char *text, size_t len, const char *what, struct ws_lora_config *out,
                         struct ws_err *err)
{
	*out = (struct ws_lora_config){ .rank = 0 };
	struct ws_json *root = ws_json_parse(text, len, what, err);
	if (!root)
		return -1;
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

static int find_pattern(const struct ws_lora_pattern *p, size_t n, const char *module,
                        double *value, struct ws_err *err)
{
	for (size_t i = 0; i < n; i++) {
		const char *wrong;
		const bool matches = ws_lora_matches(p[i].text, module, &wrong);
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
	if (find_pattern(c->ranks, c->n_ranks, module, &r, err) ||
	    find_pattern(c->alphas, c->n_alphas, module, &alpha, err))
		return -1;
	*rank = (int64_t)r;
	*scale = (float)(alpha / (c->rslora ? sqrt(r) : r));
	if (!isfinite(*scale))
		return ws_err_set(err, WS_EINPUT,
		                  "adapter module '%s': alpha %g is beyond the range of float32",
		                  ws_quote(module).text, alpha);
	return 0;
}
