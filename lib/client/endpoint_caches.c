/* SPDX-License-Identifier: Apache-2.0 */
/* endpoint_caches.c - caches that may hold results of old weights: which a server has, and the
 * routes that clear them.
 *
 *   POST /reset_prefix_cache?reset_external=true   vLLM: prefix cache, and the connector's store
 *   POST /reset_encoder_cache, /reset_mm_cache     vLLM: an empty answer, also without such a cache
 *   GET /flush_cache                               SGLang: prefix, draft and prepared inputs
 *   POST /hicache/storage-backend/clear            SGLang: storage of HiCache, or LMCache; before
 *                                                  2026 /clear_hicache_storage_backend
 *
 * The answers of the last three routes and of a connector prove little. vLLM 0.32 counts a
 * connector without a reset as reset. SGLang 0.5.23 answers 200 also if its storage cannot be
 * cleared. So a cache counts as cleared only if it is of a kind whose code clears it. */
#include "endpoint_caches.h"

#include "endpoint_call.h"
#include "wsync/tool/str.h"

#include <stdlib.h>
#include <string.h>

static const char RESET[] = "/reset_prefix_cache?reset_external=true";

const char *ws_cache_name(enum ws_cache cache)
{
	static const char *const names[] = { "prefix", "external", "encoder", "multimodal",
		                             "draft" };
	return (unsigned)cache < WS_N_CACHES ? names[cache] : "unknown";
}

const char *ws_cache_fact_name(enum ws_cache_fact fact)
{
	static const char *const names[] = { "untold", "none", "cleared", "old" };
	return (unsigned)fact < sizeof names / sizeof *names ? names[fact] : "unknown";
}

/* ---- which a server has ---- */

static bool is_among(const char *word, const char *const *list)
{
	while (*list && strcmp(word, *list))
		list++;
	return *list != NULL;
}

static void name_external(struct ws_endpoint_info *info, const char *name)
{
	ws_printable(info->external, sizeof info->external, name, strlen(name));
}

/* A connector of several is cleared if each of them is. */
static enum ws_cache_fact of_connector(const struct ws_json *transfer, unsigned depth)
{
	/* Their reset_cache() empties the store (vLLM 0.32). */
	static const char *const cleared[] = { "OffloadingConnector", "SimpleCPUOffloadConnector",
		                               "MooncakeStoreConnector", NULL };
	/* They have none. */
	static const char *const kept[] = { "LMCacheConnectorV1", "LMCacheMPConnector",
		                            "LMCacheConnector", NULL };
	const char *name = ws_json_get_string(transfer, "kv_connector", "");
	enum ws_cache_fact all = WS_CACHE_CLEARED;
	if (is_among(name, kept))
		return WS_CACHE_OLD;
	if (is_among(name, cleared))
		return WS_CACHE_CLEARED;
	const struct ws_json *parts = ws_json_get(
		ws_json_get(transfer, "kv_connector_extra_config"), "connectors");
	if (strcmp(name, "MultiConnector") || depth || !ws_json_count(parts))
		return WS_CACHE_UNTOLD;
	for (const struct ws_json *x = ws_json_first(parts); x; x = ws_json_next(x)) {
		const enum ws_cache_fact one = of_connector(x, depth + 1);
		all = one == WS_CACHE_OLD || all == WS_CACHE_OLD ? WS_CACHE_OLD :
		      one == WS_CACHE_CLEARED                    ? all :
		                                                   one;
	}
	return all;
}

/* NULL: the key is missing, so nothing is known. */
static enum ws_cache_fact of_object(const struct ws_json *object)
{
	return !object                                  ? WS_CACHE_UNTOLD :
	       ws_json_type(object) == WS_JSON_OBJECT ? WS_CACHE_CLEARED :
	                                                WS_CACHE_NONE;
}

void ws_caches_of_vllm(const struct ws_json *config, struct ws_endpoint_info *info)
{
	const struct ws_json *transfer = ws_json_get(config, "kv_transfer_config"),
			     *images = ws_json_get(ws_json_get(config, "model_config"),
	                                           "multimodal_config"),
			     *encoder = ws_json_get(config, "ec_transfer_config");
	enum ws_cache_fact *has = info->caches;
	has[WS_CACHE_PREFIX] = info->disable_radix_cache ? WS_CACHE_NONE : WS_CACHE_CLEARED;
	has[WS_CACHE_DRAFT] = info->has_draft ? has[WS_CACHE_PREFIX] : WS_CACHE_NONE;
	has[WS_CACHE_EXTERNAL] = of_object(transfer);
	has[WS_CACHE_ENCODER] = has[WS_CACHE_MULTIMODAL] = of_object(images);
	const char *connector = ws_json_get_string(transfer, "kv_connector", NULL);
	if (has[WS_CACHE_EXTERNAL] == WS_CACHE_CLEARED && connector) {
		name_external(info, connector);
		has[WS_CACHE_EXTERNAL] = of_connector(transfer, 0);
		/* The lists are of 0.32, as is this route. */
		if (has[WS_CACHE_EXTERNAL] == WS_CACHE_CLEARED && !info->can.shutdown)
			has[WS_CACHE_EXTERNAL] = WS_CACHE_UNTOLD;
	} else if (has[WS_CACHE_EXTERNAL] == WS_CACHE_CLEARED) {
		has[WS_CACHE_EXTERNAL] = WS_CACHE_NONE;
	}
	/* A store of the encoder's outputs, which no route clears. */
	if (ws_json_get_string(encoder, "ec_connector", NULL) &&
	    has[WS_CACHE_ENCODER] != WS_CACHE_NONE)
		has[WS_CACHE_ENCODER] = WS_CACHE_OLD;
}

void ws_caches_of_sglang(const struct ws_json *root, struct ws_endpoint_info *info)
{
	/* Their clear() empties the storage (SGLang 0.5.23). */
	static const char *const cleared[] = { "file", "mooncake", "hf3fs", "nixl", NULL };
	const struct ws_json *key = ws_json_get(root, "hicache_storage_backend");
	const char *storage = ws_json_string(key);
	enum ws_cache_fact *has = info->caches;
	has[WS_CACHE_PREFIX] = info->disable_radix_cache ? WS_CACHE_NONE : WS_CACHE_CLEARED;
	has[WS_CACHE_DRAFT] = info->has_draft ? has[WS_CACHE_PREFIX] : WS_CACHE_NONE;
	if (ws_json_get_bool(root, "enable_lmcache", false)) {
		name_external(info, "lmcache");
		has[WS_CACHE_EXTERNAL] = WS_CACHE_CLEARED;
	} else if (storage) {
		name_external(info, storage);
		has[WS_CACHE_EXTERNAL] = is_among(storage, cleared) ? WS_CACHE_CLEARED :
		                                                      WS_CACHE_UNTOLD;
	} else {
		has[WS_CACHE_EXTERNAL] = key ? WS_CACHE_NONE : WS_CACHE_UNTOLD;
	}
}

/* No route empties the cache of a model's image embeddings (SGLang 0.5.23). */
void ws_caches_of_sglang_model(const struct ws_json *root, struct ws_endpoint_info *info)
{
	if (!ws_json_get(root, "has_image_understanding"))
		return;
	const bool any = ws_json_get_bool(root, "has_image_understanding", false) ||
	                 ws_json_get_bool(root, "has_audio_understanding", false);
	info->caches[WS_CACHE_ENCODER] = any ? WS_CACHE_OLD : WS_CACHE_NONE;
	info->caches[WS_CACHE_MULTIMODAL] = any ? WS_CACHE_CLEARED : WS_CACHE_NONE;
}

/* ---- clearing ---- */

/* The route that clears caches of this kind at servers of this family, apart from the flush. */
static const char *route_of(const struct ws_endpoint_info *info, enum ws_cache kind)
{
	static const char *const routes[2][WS_N_CACHES] = {
		[WS_FAMILY_SGLANG] = { [WS_CACHE_EXTERNAL] = "/hicache/storage-backend/clear" },
		[WS_FAMILY_VLLM] = { [WS_CACHE_EXTERNAL] = RESET,
		                     [WS_CACHE_ENCODER] = "/reset_encoder_cache",
		                     [WS_CACHE_MULTIMODAL] = "/reset_mm_cache" },
	};
	return routes[ws_lineage_family(info->lineage)][kind];
}

/* What is known before anything but the prefix cache was cleared. */
static void begin(const struct ws_endpoint_info *info, struct ws_caches *c)
{
	for (unsigned k = WS_CACHE_PREFIX + 1; k < WS_N_CACHES; k++) {
		c->of[k] = (struct ws_cache_state){ .fact = info->caches[k] };
		if (info->caches[k] != WS_CACHE_CLEARED)
			continue;
		c->of[k].fact = WS_CACHE_OLD;
		if (!route_of(info, (enum ws_cache)k)) /* the flush clears it too */
			c->of[k] = c->of[WS_CACHE_PREFIX];
	}
}

/* Is there a cache of this kind that a request may clear? An external one has a name. A vLLM that
 * does not say whether its model reads images is asked. */
static bool is_asked(const struct ws_endpoint_info *info, enum ws_cache kind)
{
	const enum ws_cache_fact has = info->caches[kind];
	return route_of(info, kind) && has != WS_CACHE_NONE && has != WS_CACHE_OLD &&
	       !info->control_off && (kind != WS_CACHE_EXTERNAL || *info->external);
}

struct clearing {
	const struct ws_call *to;
	struct ws_caches *caches;
	const char **urls, **paths;
	size_t *index;
	struct ws_endpoint_answer *answers;
};

static int ask(struct clearing *x, size_t n, struct ws_err *err)
{
	struct ws_call to = *x->to;
	const struct ws_lifecycle what = { .name = "flush", .method = "POST", .paths = x->paths };
	struct ws_err why = WS_ERR_INIT;
	to.urls = x->urls;
	to.n = n;
	if (!n || ws_endpoint_tell(&to, &what, x->answers, &why) == 0 ||
	    (why.code != WS_ECANCELLED && why.code != WS_ESYSTEM))
		return 0;
	if (err)
		*err = why;
	return -1;
}

static void note(const struct clearing *x, size_t n, enum ws_cache kind)
{
	for (size_t k = 0; k < n; k++) {
		const size_t i = x->index[k];
		const enum ws_cache_fact has = x->to->infos[i]->caches[kind];
		struct ws_cache_state *state = &x->caches[i].of[kind];
		const bool done = x->answers[k].err.code == WS_OK;
		const bool external = kind == WS_CACHE_EXTERNAL;
		/* Its answer says nothing of an external cache of an unknown kind. */
		if (done && !(external && has == WS_CACHE_UNTOLD))
			*state = (struct ws_cache_state){ WS_CACHE_CLEARED, x->paths[k] };
		else if (!done && (external || has == WS_CACHE_CLEARED))
			state->fact = WS_CACHE_OLD;
	}
}

/* SGLang renamed its route: those that do not know the new one get the old one. */
static size_t keep_old_routes(struct clearing *x, size_t n)
{
	size_t m = 0;
	for (size_t k = 0; k < n; k++) {
		const size_t i = x->index[k];
		const bool sglang =
			ws_lineage_family(x->to->infos[i]->lineage) == WS_FAMILY_SGLANG;
		if (!sglang || x->answers[k].err.native != 404)
			continue;
		x->index[m] = i;
		x->urls[m] = x->to->urls[i];
		x->paths[m++] = "/clear_hicache_storage_backend";
	}
	return m;
}

static int clear_kind(struct clearing *x, enum ws_cache kind, struct ws_err *err)
{
	size_t n = 0;
	for (size_t i = 0; i < x->to->n; i++) {
		if (!is_asked(x->to->infos[i], kind))
			continue;
		x->index[n] = i;
		x->urls[n] = x->to->urls[i];
		x->paths[n++] = route_of(x->to->infos[i], kind);
	}
	for (; n; n = kind == WS_CACHE_EXTERNAL ? keep_old_routes(x, n) : 0) {
		if (ask(x, n, err))
			return -1;
		note(x, n, kind);
		if (!strcmp(x->paths[0], "/clear_hicache_storage_backend"))
			break;
	}
	return 0;
}

int ws_endpoint_clear_caches(const struct ws_call *to, bool clear, struct ws_caches *caches,
                             struct ws_err *err)
{
	struct clearing x = {
		.to = to,
		.caches = caches,
		.urls = calloc(to->n + 1, sizeof *x.urls),
		.paths = calloc(to->n + 1, sizeof *x.paths),
		.index = calloc(to->n + 1, sizeof *x.index),
		.answers = calloc(to->n + 1, sizeof *x.answers),
	};
	int rc = x.urls && x.paths && x.index && x.answers ? 0 : ws_oom(err);
	for (size_t i = 0; i < to->n; i++)
		begin(to->infos[i], &caches[i]);
	for (unsigned k = WS_CACHE_PREFIX + 1; !rc && clear && k < WS_N_CACHES; k++)
		rc = clear_kind(&x, (enum ws_cache)k, err);
	free(x.urls);
	free(x.paths);
	free(x.index);
	free(x.answers);
	return rc;
}
