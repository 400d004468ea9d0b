/* SPDX-License-Identifier: Apache-2.0 */
#include "targets.h"

#include "run.h"

#include "wsync/registry.h"
#include "wsync/tool/str.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

const char *const targets_lineages[] = {
	"auto",  "sglang-0.4", "sglang-0.5", "sglang-2026", "xorl-legacy", "xorl", "session",
	"slime", "vllm-0.20",  "vllm-0.24",  "vllm-0.27",   "vllm-0.33",   NULL,
};

static int add(struct targets *t, const char *text, struct ws_err *err)
{
	char url[WS_URL_MAX];
	if (ws_endpoint_normalize(text, url, sizeof url, err))
		return -1;
	if ((t->n & (t->n - 1)) == 0) {
		const char **urls = realloc(t->urls, (t->n ? 2 * t->n : 1) * sizeof *urls);
		if (!urls)
			return ws_oom(err);
		t->urls = urls;
	}
	t->urls[t->n] = strdup(url);
	if (!t->urls[t->n])
		return ws_oom(err);
	t->n++;
	return 0;
}

int targets_read_file(const char *path, char **key, struct ui *ui, struct ws_err *err)
{
	bool loose = false;
	if (ws_client_read_key(path, key, &loose, err))
		return -1;
	if (loose)
		ui_warn(ui, NULL, "%s: others can read this key file", ui_text(path));
	return 0;
}

static void free_key(char *key)
{
	if (key)
		explicit_bzero(key, strlen(key));
	free(key);
}

/* Makes both keys one text, as ws_client_opts wants them. Frees `admin`. */
static int add_admin(struct targets *t, char *admin, struct ws_err *err)
{
	char *both = NULL;
	const int n = asprintf(&both, "%s\n%s", t->api_key ? t->api_key : "", admin);
	free_key(admin);
	if (n < 0)
		return ws_oom(err);
	free_key(t->api_key);
	t->api_key = both;
	return 0;
}

int targets_read_key(struct targets *t, const struct opt_common *common, struct ui *ui,
                     struct ws_err *err)
{
	const char *path = run_api_key_file(common->api_key_file);
	const char *admin_path = run_admin_api_key_file(common->admin_api_key_file);
	char *admin = NULL;
	t->ca_file = run_ca_file(common->ca_file);
	if ((path && targets_read_file(path, &t->api_key, ui, err)) ||
	    (admin_path && targets_read_file(admin_path, &admin, ui, err)))
		return -1;
	return admin ? add_admin(t, admin, err) : 0;
}

/* path: of the registry that lists them; NULL: they were typed. */
static int check_twice(const struct targets *t, const char *path, struct ws_err *err)
{
	size_t first, again;
	const int rc = ws_endpoint_find_twice(t->urls, t->n, &first, &again, err);
	if (rc && path && again < t->n) {
		ws_err_set(err, WS_EUSAGE, "%s: %s and %s are one endpoint", path, t->urls[first],
		           t->urls[again]);
		ws_err_hint(err, "wsync-register remove %s --registry %s",
		            ws_shell_word(t->urls[again]).text, ws_shell_word(path).text);
	}
	return rc;
}

static int add_registered(struct targets *t, const char *path, const char *pool, bool optional,
                          struct ws_err *err)
{
	struct ws_registry r;
	int rc = pool ? ws_registry_check_pool(pool, err) : 0;
	if (rc || ws_registry_load(path, &r, err))
		return -1;
	for (size_t i = 0; !rc && i < r.n; i++)
		if (!pool || !strcmp(pool, r.items[i].pool))
			rc = add(t, r.items[i].url, err);
	if (!rc)
		rc = check_twice(t, path, err);
	if (!rc && t->n == 0 && !optional) {
		rc = r.n ? ws_err_set(err, WS_EUSAGE, "no endpoint in pool '%s' of %s", pool,
		                      path) :
		     access(path, F_OK) ?
		           ws_err_set(err, WS_EUSAGE,
		                      "no endpoint is registered: %s does not exist", path) :
		           ws_err_set(err, WS_EUSAGE, "no endpoint is registered in %s", path);
		ws_err_hint(err, "give --endpoint URL, or register one: wsync-register add URL");
	}
	ws_registry_free(&r);
	return rc;
}

static int ask_registry(struct targets *t, const struct opt_common *common, bool optional,
                        struct ws_err *err)
{
	struct ws_buf path;
	ws_buf_init(&path, 0);
	int rc = run_registry_path(common->registry, &path, err);
	if (!rc)
		rc = add_registered(t, path.data, common->pool, optional, err);
	else if (optional && !common->pool)
		rc = 0; /* without a place for a registry, none is registered */
	ws_buf_free(&path);
	return rc;
}

int targets_find_urls(struct targets *t, const struct opt_common *common, bool optional,
                      struct ws_err *err)
{
	const struct opt_list *given = &common->endpoints;
	*t = (struct targets){ 0 };
	for (size_t i = 0; i < given->n; i++)
		if (add(t, given->items[i], err))
			return -1;
	if (given->n && common->pool)
		return ws_err_set(err, WS_EUSAGE, "--pool: chooses among the registered endpoints, "
		                  "but --endpoint names some already");
	return given->n ? check_twice(t, NULL, err) : ask_registry(t, common, optional, err);
}

int targets_find(struct targets *t, const struct opt_common *common, bool optional, struct ui *ui,
                 struct ws_err *err)
{
	return targets_find_urls(t, common, optional, err) || targets_read_key(t, common, ui, err) ?
	               -1 :
	               0;
}

int targets_connect(struct targets *t, const struct opt_common *common, const struct ui *ui,
                    struct ws_err *err)
{
	const struct ws_client_opts opts = {
		.api_key = t->api_key,
		.ca_file = t->ca_file,
		.connect_ns = common->connect_ns,
		.log = &ui->log,
	};
	return ws_client_open(&opts, &t->http, err);
}

struct ws_call targets_call(const struct targets *t, int64_t ns)
{
	return (struct ws_call){ t->http, t->urls, t->n, ws_deadline_in(ns), &run_cancel, NULL };
}

int targets_probe(struct targets *t, ws_deadline until, struct ws_err *err)
{
	const struct ws_call to = { t->http, t->urls, t->n, until, &run_cancel, NULL };
	t->infos = calloc(t->n + 1, sizeof *t->infos);
	t->errs = calloc(t->n + 1, sizeof *t->errs);
	return t->infos && t->errs ? ws_endpoint_probe_all(&to, t->infos, t->errs, err) :
	                             ws_oom(err);
}

void targets_swap_urls(struct targets *a, struct targets *b)
{
	const char **urls = a->urls;
	const size_t n = a->n;
	a->urls = b->urls;
	a->n = b->n;
	b->urls = urls;
	b->n = n;
}

void targets_free(struct targets *t)
{
	ws_client_close(t->http);
	for (size_t i = 0; i < t->n; i++)
		free((void *)(uintptr_t)t->urls[i]);
	free(t->urls);
	free_key(t->api_key);
	free(t->infos);
	free(t->errs);
	*t = (struct targets){ 0 };
}
