/* SPDX-License-Identifier: Apache-2.0 */
/* verify_caches.c - does what runs between two equal prompts clear the prefix cache?
 *
 * The first prompt fills the cache. The second must report cached tokens, else nothing is
 * established. The third comes after the caller's work: tokens that are cached then are of older
 * weights. A server may leave the number out if it is 0 (vLLM before 0.32), so a number that is
 * missing in the third answer is 0 if the second answer had it. The server must be the same one
 * before and after, as far as it tells. */
#include "ask.h"

#include "wsync/endpoint.h"

#include <stdlib.h>
#include <sys/random.h>

enum { TOKENS = 200, LEAST = 2 };
/* Every vocabulary has these. The first ones are often special, such as the end of the text. */
enum { FIRST_ID = 3, N_IDS = 61 };
_Static_assert(FIRST_ID + N_IDS <= 64, "the smallest models for tests have 64 tokens");

struct caches {
	const struct ws_verify_caches_opts *opts;
	struct ws_http *http;
	struct ws_prompts prompts;
	int64_t *prompt, *cached, *before; /* of each endpoint; -1: not reported */
	struct ws_endpoint_info *infos;    /* before the caller's work */
	bool *replaced;                    /* another server, or another start, has answered */
};

static int take(void *ctx, size_t url, size_t prompt, const struct ws_json *answer,
                const struct ws_buf *text, struct ws_err *err)
{
	struct caches *v = ctx;
	const struct ws_json *meta = ws_json_get(answer, "meta_info");
	(void)prompt, (void)text, (void)err;
	v->prompt[url] = ws_json_get_int(meta, "prompt_tokens", -1);
	v->cached[url] = ws_json_get_int(meta, "cached_tokens", -1);
	return 0;
}

/* Nobody has sent this prompt before. */
static int make_prompt(struct caches *v, struct ws_err *err)
{
	const size_t n = v->opts->tokens ? v->opts->tokens : TOKENS;
	if (n < LEAST || n > WS_PROMPT_TOKENS)
		return ws_err_set(err, WS_EUSAGE, "a prompt has %d to %d tokens, not %zu",
		                  LEAST, WS_PROMPT_TOKENS, n);
	unsigned char *bytes = malloc(n);
	int64_t *ids = calloc(n, sizeof *ids);
	int rc = bytes && ids ? 0 : ws_oom(err);
	for (size_t at = 0; !rc && at < n;) {
		const ssize_t got = getrandom(bytes + at, n - at, 0);
		if (got < 0)
			rc = ws_err_errno(err, "getrandom");
		at += got > 0 ? (size_t)got : 0;
	}
	for (size_t i = 0; !rc && i < n; i++)
		ids[i] = FIRST_ID + bytes[i] % N_IDS;
	if (!rc)
		rc = ws_prompts_add(&v->prompts, NULL, ids, n, 1, err);
	free(bytes);
	free(ids);
	return rc;
}

static int ask(struct caches *v, struct ws_err *err)
{
	const struct ws_ask_opts *o = &v->opts->ask;
	const struct ws_ask a = { .opts = o, .urls = o->endpoints, .n_urls = o->n_endpoints,
		                  .prompts = &v->prompts, .as = WS_ASKED_CACHED, .take = take,
		                  .ctx = v };
	return ws_ask(v->http, &a, err);
}

/* Who answers at each endpoint. One that does not tell, as a router may, is left out. */
static int look(struct caches *v, struct ws_endpoint_info *infos, struct ws_err *err)
{
	const struct ws_ask_opts *o = &v->opts->ask;
	const int64_t most = o->connect_ns > 0 ? o->connect_ns : WS_ENDPOINT_CONNECT_NS;
	const struct ws_call to = { v->http, o->endpoints, o->n_endpoints, ws_deadline_in(most),
		                    o->cancel, NULL };
	struct ws_err *errs = calloc(o->n_endpoints + 1, sizeof *errs), why = WS_ERR_INIT;
	int rc = errs ? 0 : ws_oom(err);
	if (!rc && ws_endpoint_probe_all(&to, infos, errs, &why) && ws_cancelled(o->cancel))
		rc = ws_err_set(err, WS_ECANCELLED, "cancelled");
	free(errs);
	return rc;
}

/* The empty cache of another server says nothing about that of the first one. */
static int look_again(struct caches *v, struct ws_err *err)
{
	const size_t n = v->opts->ask.n_endpoints;
	struct ws_endpoint_info *now = calloc(n + 1, sizeof *now);
	const int rc = now ? look(v, now, err) : ws_oom(err);
	for (size_t i = 0; !rc && i < n; i++)
		v->replaced[i] = ws_identity_compare(&v->infos[i].identity, &now[i].identity) ==
		                 WS_IDENTITY_OTHER;
	free(now);
	return rc;
}

static struct ws_cache_checked judge(const struct caches *v, size_t i)
{
	struct ws_cache_checked c = { .url = v->opts->ask.endpoints[i], .prompt = v->prompt[i],
		                      .before = v->before[i], .after = v->cached[i], .why = "" };
	if (c.after < 0 && c.before > 0)
		c.after = 0;
	c.verdict = c.after > 0 ? WS_CACHED_SOME : WS_CACHED_NONE;
	if (c.after > 0 || (c.before > 0 && !v->replaced[i]))
		return c;
	c.verdict = WS_CACHED_UNKNOWN;
	c.why = v->replaced[i] ? "another server answers there since the command, or the server "
	                         "was restarted" :
	        c.before < 0 ? "it does not report cached tokens" :
	                       "the same prompt used no cached tokens before the command either";
	return c;
}

static int say_unknown(const struct ws_cache_checked *c, struct ws_err *err)
{
	ws_err_set(err, WS_EUNKNOWN, "it is not known whether the prefix cache is clear: %s",
	           c->why);
	ws_err_hint(err, "%s", c->before < 0 ?
	            "start vLLM with --enable-prompt-tokens-details" :
	            c->before > 0 ?
	            "name the server itself, not an address that several servers share" :
	            "caches keep whole blocks only: try a longer prompt with {tokens}; or the "
	            "server has no prefix cache");
	return ws_err_where(err, NULL, c->url);
}

static int say_cached(const struct ws_cache_checked *c, struct ws_err *err)
{
	ws_err_set(err, WS_EMISMATCH,
	           "the prefix cache is not clear: %lld of %lld tokens of the prompt came from it",
	           (long long)c->after, (long long)c->prompt);
	ws_err_hint(err, "wsync-ctl flush empties it");
	return ws_err_where(err, NULL, c->url);
}

/* A cache that is not clear decides before one that is not known. */
static int judge_all(const struct caches *v, struct ws_err *err)
{
	struct ws_cache_checked unknown = { 0 }, cached = { 0 };
	for (size_t i = 0; i < v->opts->ask.n_endpoints; i++) {
		const struct ws_cache_checked c = judge(v, i);
		if (v->opts->checked)
			v->opts->checked(v->opts->ask.ctx, &c);
		if (c.verdict == WS_CACHED_SOME && !cached.url)
			cached = c;
		if (c.verdict == WS_CACHED_UNKNOWN && !unknown.url)
			unknown = c;
	}
	return cached.url ? say_cached(&cached, err) : unknown.url ? say_unknown(&unknown, err) : 0;
}

/* Is there an endpoint whose cache was seen? Without one nothing could be established. */
static bool any_seen(const struct caches *v)
{
	for (size_t i = 0; i < v->opts->ask.n_endpoints; i++)
		if (v->cached[i] > 0)
			return true;
	return false;
}

static int check(struct caches *v, struct ws_err *err)
{
	const size_t n = v->opts->ask.n_endpoints;
	if (make_prompt(v, err) || look(v, v->infos, err) || ask(v, err) || ask(v, err))
		return -1;
	for (size_t i = 0; i < n; i++)
		v->before[i] = v->cached[i];
	if (any_seen(v) && (v->opts->between(v->opts->ask.ctx, err) || ask(v, err) ||
	                    look_again(v, err)))
		return -1;
	return judge_all(v, err);
}

int ws_verify_caches(const struct ws_verify_caches_opts *opts, struct ws_err *err)
{
	const size_t n = opts->ask.n_endpoints;
	struct caches v = { .opts = opts,
		            .prompt = calloc(n + 1, sizeof *v.prompt),
		            .cached = calloc(n + 1, sizeof *v.cached),
		            .before = calloc(n + 1, sizeof *v.before),
		            .infos = calloc(n + 1, sizeof *v.infos),
		            .replaced = calloc(n + 1, sizeof *v.replaced) };
	int rc = v.prompt && v.cached && v.before && v.infos && v.replaced ? 0 : ws_oom(err);
	if (!rc)
		rc = ws_ask_open(&opts->ask, &v.http, err) || check(&v, err) ? -1 : 0;
	free(v.prompt);
	free(v.cached);
	free(v.before);
	free(v.infos);
	free(v.replaced);
	ws_prompts_free(&v.prompts);
	ws_client_close(v.http);
	return rc;
}
