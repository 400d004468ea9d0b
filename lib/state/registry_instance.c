/* SPDX-License-Identifier: Apache-2.0 */
/* registry_instance.c - does a URL lead to a server that is registered by another URL?
 *
 * Names and addresses do not show it: a machine has several. Instances do, where both servers
 * report a sure one (ws_identity). */
#include "wsync/registry.h"

#include "wsync/tool/str.h"

#include <stdlib.h>
#include <string.h>

static const int64_t ASK_NS = 5 * WS_NS_PER_S;

static bool is_same(const struct ws_endpoint_info *a, const struct ws_endpoint_info *b)
{
	struct ws_identity known = a->identity;
	return a->identity.strength == WS_IDENTITY_SURE &&
	       b->identity.strength == WS_IDENTITY_SURE && a->tp_size == b->tp_size &&
	       strcmp(a->version, b->version) == 0 && strcmp(a->model_path, b->model_path) == 0 &&
	       ws_identity_compare(&known, &b->identity) == WS_IDENTITY_SAME;
}

/* Could this entry be one of the n servers? What was never detected could be any. */
static bool may_be(const struct ws_registry_entry *e, const struct ws_call *to,
                   const struct ws_endpoint_info *infos)
{
	bool any = false;
	for (size_t i = 0; i < to->n; i++) {
		if (strcmp(e->url, to->urls[i]) == 0)
			return false;
		any |= infos[i].identity.strength == WS_IDENTITY_SURE &&
		       (!e->tp_size || e->tp_size == infos[i].tp_size);
	}
	return any;
}

static int refuse(const char *path, const char *url, const char *other, bool registered,
                  struct ws_err *err)
{
	ws_err_set(err, WS_EUSAGE, "endpoint %s: it is the server that %s %s", url,
	           registered ? "is registered already as" : "is also named", other);
	if (registered)
		ws_err_hint(err, "to register it by this name: wsync-register remove %s "
		                 "--registry %s", ws_shell_word(other).text,
		            ws_shell_word(path).text);
	else
		ws_err_hint(err, "name it once");
	return ws_err_where(err, NULL, url);
}

/* Asks the n_urls registered servers and compares each with each of the new ones. */
static int compare_all(const char *path, const struct ws_call *to,
                       const struct ws_endpoint_info *infos, const char *const *urls,
                       size_t n_urls, struct ws_err *err)
{
	struct ws_endpoint_info *theirs = calloc(n_urls + 1, sizeof *theirs);
	struct ws_err *errs = calloc(n_urls + 1, sizeof *errs), why = WS_ERR_INIT;
	struct ws_call ask = *to;
	int rc = theirs && errs ? 0 : ws_oom(err);
	ask.urls = urls;
	ask.n = n_urls;
	ask.until = ws_deadline_min(to->until, ws_deadline_in(ASK_NS));
	ask.infos = NULL;
	if (rc == 0 && n_urls && ws_endpoint_probe_all(&ask, theirs, errs, &why) &&
	    why.code == WS_ECANCELLED) {
		*err = why;
		rc = -1;
	}
	for (size_t k = 0; rc == 0 && k < n_urls; k++)
		for (size_t i = 0; rc == 0 && !errs[k].code && i < to->n; i++)
			if (is_same(&theirs[k], &infos[i]))
				rc = refuse(path, to->urls[i], urls[k], true, err);
	free(theirs);
	free(errs);
	return rc;
}

int ws_registry_check_instances(const char *path, const struct ws_call *to,
                                const struct ws_endpoint_info *infos,
                                bool (*may_ask)(const void *ctx, const struct ws_registry_entry *e),
                                const void *ctx, struct ws_err *err)
{
	struct ws_registry r;
	size_t n = 0;
	for (size_t i = 0; i < to->n; i++)
		for (size_t k = 0; k < i; k++)
			if (is_same(&infos[k], &infos[i]))
				return refuse(path, to->urls[i], to->urls[k], false, err);
	if (ws_registry_load(path, &r, err))
		return -1;
	const char **urls = calloc(r.n + 1, sizeof *urls);
	for (size_t i = 0; urls && i < r.n; i++)
		if (may_be(&r.items[i], to, infos) && may_ask(ctx, &r.items[i]))
			urls[n++] = r.items[i].url;
	const int rc = urls ? compare_all(path, to, infos, urls, n, err) : ws_oom(err);
	free(urls);
	ws_registry_free(&r);
	return rc;
}
