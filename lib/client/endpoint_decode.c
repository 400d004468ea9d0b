/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_decode.c - parses the replies that carry data.
 *
 *   GET  /server_info      flat: every server argument and "version"
 *   GET  /model_info       {"model_path","weight_version","model_type","architectures":[str],...}
 *   GET  /list_weights     {"success","message","received"?,
 *                           "weights":[{"name","shape":[int],"dtype"?}]}
 *   POST /weights_checker  {"success","message","algorithm"?,
 *                           "ranks":[{"checksums":{NAME: 16 hex digits or a longer digest},
 *                                     "parallelism_info":{"rank","dp_rank"}}]}
 *
 * Other fields are ignored. Only wsync-endpoint sends "received", "dtype" and "algorithm" and the
 * fields that are marked "ours" below. */
#include "endpoint_caches.h"
#include "endpoint_call.h"

#include "hash.h"
#include "identity.h"
#include "listing_read.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MAX_RANKS = 65536, MAX_DIGEST = 128 };
const char ws_overridden[] = "the server's arguments override its config.json";

/* ---- info ---- */

static void take_text(const struct ws_json *root, const char *key, char *dst, size_t n)
{
	const char *text = ws_json_get_string(root, key, NULL);
	if (text)
		ws_printable(dst, n, text, strlen(text));
}

static void take_size(const struct ws_json *root, const char *key, unsigned *dst)
{
	const int64_t value = ws_json_get_int(root, key, 0);
	if (value >= 1 && value <= MAX_RANKS)
		*dst = (unsigned)value;
}

/* "torch.bfloat16" is how some servers spell bfloat16. */
static void take_dtype(const struct ws_json *root, const char *key, char *dst, size_t n)
{
	take_text(root, key, dst, n);
	if (!strncmp(dst, "torch.", 6))
		memmove(dst, dst + 6, strlen(dst + 6) + 1);
}

static bool is_positive(const struct ws_json *root, const char *key)
{
	double number;
	return ws_json_double(ws_json_get(root, key), &number) && number > 0;
}

/* What SGLang's engine.py (0.5.23) and moe_hook.py put into their environment, unless it is set. On
 * machines with a multi-node NVLink domain it sets NCCL_CUMEM_ENABLE=1 too, which it does not
 * report. */
static void take_nccl(const struct ws_json *root, struct ws_endpoint_info *info)
{
	const bool symmetric = ws_json_get_bool(root, "enable_symm_mem", false);
	info->nccl_cumem = symmetric ||
	                   (ws_json_get_bool(root, "enable_kv_cache_sharding", false) &&
	                    ws_json_get_int(root, "nnodes", 1) == 1) ||
	                   !strcmp(ws_json_get_string(root, "moe_a2a_backend", ""), "deepep_v2");
	info->nccl_nvls = symmetric || ws_json_get_bool(root, "enable_nccl_nvls", false);
}

/* The value of the last such option of a command whose words are not quoted; NULL: none. */
static const char *find_option(const char *command, const char *option)
{
	const size_t n = strlen(option);
	const char *value = NULL;
	for (const char *at = command; (at = strstr(at, option)); at += n)
		if (at >= command + 3 && memcmp(at - 3, " --", 3) == 0 &&
		    (at[n] == ' ' || at[n] == '='))
			value = at + n + 1;
	return value;
}

/* The path that a server was started with. */
static bool read_argument(const char *command, char *dst, size_t n)
{
	const char *value = find_option(command, "model-path");
	value = value ? value : find_option(command, "model");
	if (!value)
		return false;
	value += strspn(value, "'\"");
	ws_printable(dst, n, value, strcspn(value, " '\""));
	return *dst != 0;
}

/* An update from disk replaces model_path, and leaves the command (SGLang 0.5.23) and the path of
 * the tokenizer, which is the same unless it was given. */
static void take_path(const struct ws_json *root, struct ws_endpoint_info *info)
{
	take_text(root, "model_path", info->model_path, sizeof info->model_path);
	take_text(root, "revision", info->revision, sizeof info->revision);
	memcpy(info->start_path, info->model_path, sizeof info->start_path);
	if (!read_argument(ws_json_get_string(root, "launch_command", ""), info->start_path,
	                   sizeof info->start_path))
		take_text(root, "tokenizer_path", info->start_path, sizeof info->start_path);
}

/* Arguments that replace members of a config.json: of sizes, say. */
bool ws_endpoint_overrides(const struct ws_json *overrides)
{
	static const char *const harmless[] = { "rope_scaling", "rope_parameters", "rope_theta",
		                                "max_position_embeddings", "quantization_config" };
	bool all = true;
	for (const struct ws_json *m = ws_json_first(overrides); m && all; m = ws_json_next(m)) {
		all = false;
		for (size_t i = 0; i < sizeof harmless / sizeof harmless[0]; i++)
			all |= strcmp(ws_json_key(m), harmless[i]) == 0;
	}
	return !all || ws_json_type(overrides) == WS_JSON_STRING;
}

static void take_overrides(const struct ws_json *root, struct ws_endpoint_info *info)
{
	const char *text = ws_json_get_string(root, "json_model_override_args", "");
	struct ws_json *overrides = ws_json_parse(text, strlen(text), "overrides", NULL);
	if (overrides && ws_endpoint_overrides(overrides))
		info->path_unused = ws_overridden;
	ws_json_free(overrides);
	info->quant_override = strstr(text, "\"quantization_config\"") ||
	                       ws_json_get_string(root, "torchao_config", "")[0];
}

void ws_endpoint_decode_server_info(const struct ws_json *root, struct ws_endpoint_info *info)
{
	take_size(root, "tp_size", &info->tp_size);
	take_size(root, "dp_size", &info->dp_size);
	take_size(root, "pp_size", &info->pp_size);
	take_size(root, "ep_size", &info->ep_size);
	info->dp_attention = ws_json_get_bool(root, "enable_dp_attention", info->dp_attention);
	/* SGLang 0.5.23 counts attention groups apart; it has them or replicas, never both. */
	unsigned groups = 0;
	take_size(root, "attn_dp_size", &groups);
	if (groups > 1) {
		info->dp_size = groups;
		info->dp_attention = true;
	}
	info->disable_radix_cache =
		ws_json_get_bool(root, "disable_radix_cache", info->disable_radix_cache);
	info->many_tokenizers = ws_json_get_int(root, "tokenizer_worker_num", 1) > 1;
	info->on_policy = ws_json_get_string(root, "rl_on_policy_target", NULL) != NULL;
	info->shares_weights =
		strcmp(ws_json_get_string(root, "weight_cache_mode", "off"), "off") != 0;
	const struct ws_json *lora = ws_json_get(root, "enable_lora");
	if (lora || ws_json_get(root, "lora_paths"))
		info->adapters = ws_json_bool(lora, false) ||
		                                 ws_json_count(ws_json_get(root, "lora_paths")) ?
		                         "kept" :
		                         "none";
	const char *drafts = ws_json_get_string(root, "speculative_algorithm", "NGRAM");
	/* these two need no model */
	info->has_draft = strcasecmp(drafts, "NGRAM") != 0 && strcasecmp(drafts, "UNO") != 0;
	ws_caches_of_sglang(root, info);
	info->offloads = is_positive(root, "cpu_offload_gb") ||
	                 is_positive(root, "offload_group_size");
	info->moves_experts = ws_json_get_bool(root, "enable_eplb", false) ||
	                      is_positive(root, "ep_num_redundant_experts") ||
	                      strcmp(ws_json_get_string(root, "init_expert_location", "trivial"),
	                             "trivial") != 0;
	take_nccl(root, info);
	take_size(root, "attn_cp_size", &info->attention_cp);
	take_text(root, "version", info->version, sizeof info->version);
	take_dtype(root, "dtype", info->dtype, sizeof info->dtype);
	take_text(root, "device", info->device, sizeof info->device);
	take_text(root, "quantization", info->quantization, sizeof info->quantization);
	take_text(root, "load_format", info->load_format, sizeof info->load_format);
	info->weights_copy = ws_json_get_bool(root, "enable_weights_cpu_backup", false);
	info->keeps_anything = ws_json_get_bool(root, "keeps_anything", false); /* ours */
	take_text(root, "nccl_version", info->nccl_version, sizeof info->nccl_version); /* ours */
	take_overrides(root, info);
	take_dtype(root, "kv_cache_dtype", info->kv_cache_dtype, sizeof info->kv_cache_dtype);
	take_text(root, "weight_version", info->weight_version, sizeof info->weight_version);
	take_path(root, info);
	take_text(root, "served_model_name", info->served_model, sizeof info->served_model);
	ws_identity_read(root, 0, &info->identity);
	info->instance = ws_identity_number(&info->identity);
}

void ws_endpoint_decode_model_info(const struct ws_json *root, struct ws_endpoint_info *info)
{
	/* The live weight version. /server_info reports the version at the start. */
	take_text(root, "weight_version", info->weight_version, sizeof info->weight_version);
	take_text(root, "model_type", info->model_type, sizeof info->model_type);
	ws_caches_of_sglang_model(root, info);
	const char *first = ws_json_string(ws_json_first(ws_json_get(root, "architectures")));
	if (first)
		ws_printable(info->architecture, sizeof info->architecture, first, strlen(first));
	if (!info->model_path[0])
		take_path(root, info);
}

/* ---- names ---- */

int ws_endpoint_decode_weights(const struct ws_json *root, struct ws_weight_list *out,
                               struct ws_err *err)
{
	const struct ws_json *array = ws_json_get(root, "weights");
	*out = (struct ws_weight_list){ 0 };
	if (ws_json_type(array) != WS_JSON_ARRAY)
		return ws_err_set(err, WS_EREFUSED, "/list_weights: the answer has no \"weights\"");
	const size_t n = ws_json_count(array);
	out->received = ws_json_get_bool(root, "received", false);
	out->items = calloc(n ? n : 1, sizeof *out->items);
	if (!out->items)
		return ws_oom(err);
	for (const struct ws_json *node = ws_json_first(array); node; node = ws_json_next(node))
		if (ws_weight_from_json(node, &out->items[out->n++])) {
			ws_err_set(err, WS_EREFUSED,
			           "/list_weights: weights[%zu] has no proper name and shape",
			           out->n - 1);
			ws_weight_list_free(out);
			return -1;
		}
	return 0;
}

/* ---- checksums ---- */

/* 16 hex digits are the value itself. A longer digest is hashed: the hash still shows whether two
 * digests are equal. */
static bool parse_digest(const char *text, uint64_t *value, bool *longer)
{
	const size_t n = text ? strlen(text) : 0;
	if (n < 16 || n > MAX_DIGEST || strspn(text, "0123456789abcdefABCDEF") != n)
		return false;
	*longer |= n > 16;
	*value = n > 16 ? ws_hash64(text, n) : strtoull(text, NULL, 16);
	return true;
}

static int decode_sums(const struct ws_json *node, size_t i, struct ws_checksum_rank *rank,
                       bool *longer, struct ws_err *err)
{
	const struct ws_json *sums = ws_json_get(node, "checksums");
	const size_t n = ws_json_count(sums);
	const char *twice;
	if (ws_json_type(sums) != WS_JSON_OBJECT)
		return ws_err_set(err, WS_EREFUSED,
		                  "/weights_checker: ranks[%zu] has no \"checksums\"", i);
	if ((twice = ws_json_duplicate(sums)))
		return ws_err_set(err, WS_EREFUSED,
		                  "/weights_checker: ranks[%zu] has '%.200s' twice", i,
		                  ws_weight_name_ok(twice) ? twice : "a name");
	rank->items = calloc(n ? n : 1, sizeof *rank->items);
	if (!rank->items)
		return ws_oom(err);
	for (const struct ws_json *s = ws_json_first(sums); s; s = ws_json_next(s)) {
		struct ws_checksum *item = &rank->items[rank->n++];
		item->name = ws_json_key(s);
		item->text = ws_json_string(s);
		if (!ws_weight_name_ok(item->name) ||
		    !parse_digest(item->text, &item->value, longer))
			return ws_err_set(err, WS_EREFUSED, "/weights_checker: ranks[%zu] has an "
			                  "entry that is no checksum", i);
	}
	return 0;
}

static int by_kind_name(const void *a, const void *b)
{
	return strcmp(((const struct ws_checksum_kind *)a)->name,
	              ((const struct ws_checksum_kind *)b)->name);
}

static int decode_kind(const struct ws_json *node, struct ws_checksum_kind *kind,
                       struct ws_err *err)
{
	const struct ws_json *shape = ws_json_get(node, "shape");
	kind->name = ws_json_key(node);
	kind->dtype = ws_json_get_string(node, "dtype", NULL);
	bool ok = ws_weight_name_ok(kind->name) && kind->dtype && strlen(kind->dtype) < 32 &&
	          ws_json_type(shape) == WS_JSON_ARRAY && ws_json_count(shape) <= WS_MAX_DIMS;
	for (const struct ws_json *d = ok ? ws_json_first(shape) : NULL; d && ok;
	     d = ws_json_next(d))
		ok = ws_json_int(d, &kind->dims[kind->n_dims++]);
	return ok ? 0 :
	            ws_err_set(err, WS_EREFUSED,
	                       "/weights_checker: \"tensors\" has an entry that is no "
	                       "type and shape");
}

/* "tensors" is optional: without it dtypes and shapes are not compared. */
static int decode_kinds(const struct ws_json *root, struct ws_checksums *out, struct ws_err *err)
{
	const struct ws_json *tensors = ws_json_get(root, "tensors");
	const size_t n = ws_json_count(tensors);
	if (ws_json_type(tensors) != WS_JSON_OBJECT || !n)
		return 0;
	out->kinds = calloc(n, sizeof *out->kinds);
	if (!out->kinds)
		return ws_oom(err);
	for (const struct ws_json *t = ws_json_first(tensors); t; t = ws_json_next(t))
		if (decode_kind(t, &out->kinds[out->n_kinds++], err))
			return -1;
	qsort(out->kinds, out->n_kinds, sizeof *out->kinds, by_kind_name);
	return 0;
}

int ws_endpoint_decode_checksums(const struct ws_json *root, struct ws_checksums *out,
                                 struct ws_err *err)
{
	const struct ws_json *ranks = ws_json_get(root, "ranks");
	const size_t n = ws_json_count(ranks);
	*out = (struct ws_checksums){ 0 };
	if (ws_json_type(ranks) != WS_JSON_ARRAY || n == 0 || n > MAX_RANKS) {
		ws_err_set(err, WS_EREFUSED, "/weights_checker: the answer has no checksums");
		return ws_err_hint(err, "older servers can compare but not report");
	}
	take_text(root, "algorithm", out->algorithm, sizeof out->algorithm);
	out->ranks = calloc(n, sizeof *out->ranks);
	if (!out->ranks)
		return ws_oom(err);
	int rc = 0;
	bool longer = false;
	for (const struct ws_json *r = ws_json_first(ranks); !rc && r; r = ws_json_next(r)) {
		const size_t i = out->n_ranks++;
		rc = decode_sums(r, i, &out->ranks[i], &longer, err) ||
		     ws_endpoint_decode_rank(r, out, i, err) ? -1 : 0;
	}
	if (!rc)
		rc = ws_endpoint_check_ranks(out, err) || decode_kinds(root, out, err) ? -1 : 0;
	if (longer && !strcmp(out->algorithm, "xxh3-64"))
		out->algorithm[0] = '\0'; /* xxh3-64 has 16 digits */
	const bool contradicts = out->contradicts;
	if (rc)
		ws_checksums_free(out);
	out->contradicts = contradicts;
	return rc;
}

int ws_checksums_share(struct ws_checksums *from, struct ws_checksums *to)
{
	if (!from->users) {
		from->users = malloc(sizeof *from->users);
		if (!from->users)
			return -1;
		*from->users = 1;
	}
	++*from->users;
	*to = *from;
	return 0;
}

static void free_checksums(struct ws_checksums *c)
{
	for (size_t i = 0; i < c->n_ranks; i++)
		free(c->ranks[i].items);
	free(c->users);
	free(c->ranks);
	free(c->kinds);
	ws_json_free(c->priv);
}

void ws_checksums_free(struct ws_checksums *c)
{
	if (!c)
		return;
	if (!c->users || --*c->users == 0)
		free_checksums(c);
	*c = (struct ws_checksums){ 0 };
}
