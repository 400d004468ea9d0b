/* SPDX-License-Identifier: Apache-2.0 */
/* registry.c - reads and changes the registry; registry_write.c prints it. */
#include "registry_file.h"

#include "file.h"
#include "wsync/tool/str.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { FILE_MAX = 16 << 20, WORLD_MAX = 65536 };

/* ---- reading ---- */

static int take_text(const struct ws_json *node, const char *key, char *dst, size_t n,
                     struct ws_err *err)
{
	const struct ws_json *value = ws_json_get(node, key);
	const char *text = ws_json_string(value);
	if (!value)
		return 0;
	if (!text)
		return ws_err_set(err, WS_EINPUT, "\"%s\" is no string", key);
	if (strlen(text) >= n)
		return ws_err_set(err, WS_EINPUT, "\"%s\" is longer than %zu bytes", key, n - 1);
	ws_printable(dst, n, text, strlen(text));
	return 0;
}

static int take_size(const struct ws_json *node, const char *key, unsigned *dst, struct ws_err *err)
{
	const struct ws_json *value = ws_json_get(node, key);
	int64_t number;
	if (!value)
		return 0;
	if (!ws_json_int(value, &number) || number < 0 || number > WORLD_MAX)
		return ws_err_set(err, WS_EINPUT, "\"%s\" is no integer from 0 to %d", key,
		                  WORLD_MAX);
	*dst = (unsigned)number;
	return 0;
}

/* host and port are there for other readers of the file; they must match the URL. */
static int check_address(const struct ws_json *node, const struct ws_registry_entry *e,
                         struct ws_err *err)
{
	const struct ws_json *host = ws_json_get(node, "host"), *port = ws_json_get(node, "port");
	int64_t number = 0;
	if (host && (!ws_json_string(host) || strcasecmp(ws_json_string(host), e->host)))
		return ws_err_set(err, WS_EINPUT, "\"host\" is not that of its url, '%s'", e->host);
	if (port && (!ws_json_int(port, &number) || number != e->port))
		return ws_err_set(err, WS_EINPUT, "\"port\" is not that of its url, %u", e->port);
	return 0;
}

static int read_entry(const struct ws_json *node, struct ws_registry_entry *e, struct ws_err *err)
{
	const char *url = ws_json_get_string(node, "url", NULL), *twice;
	if (ws_json_type(node) != WS_JSON_OBJECT)
		return ws_err_set(err, WS_EINPUT, "is no object");
	if ((twice = ws_json_duplicate(node)))
		return ws_err_set(err, WS_EINPUT, "has a key twice: \"%.60s\"", twice);
	if (!url)
		return ws_err_set(err, WS_EINPUT, "has no \"url\"");
	snprintf(e->pool, sizeof e->pool, WS_POOL_DEFAULT);
	e->more = node;
	if (ws_endpoint_normalize(url, e->url, sizeof e->url, err) ||
	    ws_endpoint_host_port(e->url, e->host, &e->port, err) || check_address(node, e, err) ||
	    take_text(node, "pool", e->pool, sizeof e->pool, err) ||
	    ws_registry_check_pool(e->pool, err) ||
	    take_size(node, "world_size", &e->world_size, err) ||
	    take_size(node, "tp_size", &e->tp_size, err) ||
	    take_text(node, "dtype", e->dtype, sizeof e->dtype, err) ||
	    take_text(node, "quantization", e->quantization, sizeof e->quantization, err) ||
	    take_text(node, "served_model", e->served_model, sizeof e->served_model, err) ||
	    take_text(node, "version", e->version, sizeof e->version, err) ||
	    take_text(node, "lineage", e->lineage, sizeof e->lineage, err))
		return -1;
	return take_text(node, "added_at", e->added_at, sizeof e->added_at, err);
}

/* ---- order ---- */

/* Of a normalized URL. */
static const char *path_of(const char *url)
{
	const char *scheme = strstr(url, "://");
	return strchrnul(scheme ? scheme + 3 : url, '/');
}

static int compare_address(const char *host, uint16_t port, const char *path,
                           const struct ws_registry_entry *e)
{
	const int by_host = strcmp(host, e->host);
	return port != e->port ? (port < e->port ? -1 : 1) :
	       by_host         ? by_host :
	                         strcmp(path, path_of(e->url));
}

static int by_address(const void *a, const void *b)
{
	const struct ws_registry_entry *x = *(const struct ws_registry_entry *const *)a,
				       *y = *(const struct ws_registry_entry *const *)b;
	const int order = compare_address(x->host, x->port, path_of(x->url), y);
	return order ? order : x < y ? -1 : x > y;
}

/* Lists the entries by address, and refuses the first that repeats an earlier one. */
static int sort_entries(const char *path, struct ws_registry *r, struct registry_own *own,
                        struct ws_err *err)
{
	const struct ws_registry_entry *twice = NULL;
	own->sorted = calloc(r->n + 1, sizeof *own->sorted);
	if (!own->sorted)
		return ws_oom(err);
	for (size_t i = 0; i < r->n; i++)
		own->sorted[i] = &r->items[i];
	qsort(own->sorted, r->n, sizeof *own->sorted, by_address);
	own->n = r->n;
	for (size_t i = 1; i < r->n; i++) {
		const struct ws_registry_entry *e = own->sorted[i];
		if (compare_address(e->host, e->port, path_of(e->url), own->sorted[i - 1]) == 0 &&
		    (!twice || e < twice))
			twice = e;
	}
	return !twice ? 0 :
	       ws_err_set(err, WS_EINPUT, "%s: endpoints[%zu]: %s is there twice", path,
	                  (size_t)(twice - r->items), twice->url);
}

/* ---- all of it ---- */

static int read_entries(const char *path, const struct ws_json *array, struct ws_registry *out,
                        struct ws_err *err)
{
	const size_t n = ws_json_count(array);
	out->items = calloc(n ? n : 1, sizeof *out->items);
	if (!out->items)
		return ws_oom(err);
	for (const struct ws_json *node = ws_json_first(array); node; node = ws_json_next(node)) {
		struct ws_registry_entry *e = &out->items[out->n];
		if (read_entry(node, e, err)) {
			ws_err_wrap(err, "%s: endpoints[%zu]", path, out->n);
			if (err)
				err->code = WS_EINPUT;
			return -1;
		}
		out->n++;
	}
	return sort_entries(path, out, out->priv, err);
}

static int check_version(const char *path, const struct ws_json *root, struct ws_err *err)
{
	const int64_t version = ws_json_get_int(root, "version", -1);
	const char *twice = ws_json_duplicate(root);
	if (ws_json_type(root) != WS_JSON_OBJECT)
		return ws_err_set(err, WS_EINPUT, "%s: is no registry: no JSON object", path);
	if (twice)
		return ws_err_set(err, WS_EINPUT, "%s: has a key twice: \"%.60s\"", path, twice);
	if (version > REGISTRY_VERSION) {
		ws_err_set(err, WS_EINPUT, "%s: version %lld is newer than %d, the newest known",
		           path, (long long)version, REGISTRY_VERSION);
		return ws_err_hint(err,
		                   "a newer wsync wrote it: use that one, or another {registry}");
	}
	if (version != REGISTRY_VERSION)
		return ws_err_set(err, WS_EINPUT, "%s: is no registry: \"version\" is not %d", path,
		                  REGISTRY_VERSION);
	if (ws_json_type(ws_json_get(root, "endpoints")) != WS_JSON_ARRAY)
		return ws_err_set(err, WS_EINPUT, "%s: has no \"endpoints\"", path);
	return 0;
}

static int suggest_remedy(struct ws_err *err)
{
	if (err && !err->hint[0] && err->code == WS_EINPUT)
		ws_err_hint(err, "fix the file, or move it away and register the endpoints again");
	return -1;
}

int registry_parse(const char *path, const char *text, size_t len, struct ws_registry *out,
                   struct ws_err *err)
{
	*out = (struct ws_registry){ 0 };
	struct registry_own *own = calloc(1, sizeof *own);
	if (!own)
		return ws_oom(err);
	struct ws_json *root = own->root =
		ws_json_parse_most(text, len, WS_JSON_LARGE, path, err);
	out->priv = own;
	if (!root || check_version(path, root, err) ||
	    read_entries(path, ws_json_get(root, "endpoints"), out, err)) {
		ws_registry_free(out);
		return suggest_remedy(err);
	}
	return 0;
}

int ws_registry_load(const char *path, struct ws_registry *out, struct ws_err *err)
{
	struct ws_buf text;
	struct ws_err why = WS_ERR_INIT;
	*out = (struct ws_registry){ 0 };
	ws_buf_init(&text, FILE_MAX);
	int rc = ws_file_read_owned(path, WS_FILE_OWN_OR_ROOTS, &text, &why);
	if (!rc)
		rc = registry_parse(path, ws_buf_str(&text), text.len, out, err);
	else if (why.native == ENOENT)
		rc = 0;
	else if (err)
		*err = why;
	ws_buf_free(&text);
	return rc;
}

void ws_registry_free(struct ws_registry *r)
{
	if (!r)
		return;
	struct registry_own *own = r->priv;
	free(r->items);
	if (own) {
		ws_json_free(own->root);
		free(own->sorted);
	}
	free(own);
	*r = (struct ws_registry){ 0 };
}

const struct ws_registry_entry *ws_registry_find(const struct ws_registry *r, const char *url)
{
	const struct registry_own *own = r->priv;
	size_t lo = 0, hi = own ? own->n : 0;
	char host[256];
	uint16_t port;
	if (ws_endpoint_host_port(url, host, &port, NULL))
		return NULL;
	while (lo < hi) {
		const size_t mid = lo + (hi - lo) / 2;
		const int order = compare_address(host, port, path_of(url), own->sorted[mid]);
		if (order == 0)
			return own->sorted[mid];
		if (order < 0)
			hi = mid;
		else
			lo = mid + 1;
	}
	return NULL;
}

/* The names of this machine are few, so that only they are compared with all entries. */
static const struct ws_registry_entry *find_twin(const struct ws_registry *r, const char *url)
{
	const char *pair[2] = { url };
	char host[256];
	uint16_t port;
	size_t first, again;
	if (ws_endpoint_host_port(url, host, &port, NULL))
		return NULL;
	for (size_t i = 0; i < r->n; i++) {
		pair[1] = r->items[i].url;
		if (r->items[i].port == port && strcmp(r->items[i].host, host) != 0 &&
		    ws_endpoint_find_twice(pair, 2, &first, &again, NULL) && again == 1)
			return &r->items[i];
	}
	return NULL;
}

int ws_registry_check_twin(const struct ws_registry *r, const char *path, const char *url,
                           struct ws_err *err)
{
	const struct ws_registry_entry *twin = find_twin(r, url);
	if (!twin)
		return 0;
	ws_err_set(err, WS_EUSAGE, "endpoint %s: it is registered already, as %s", url, twin->url);
	ws_err_hint(err, "to register it by this name: wsync-register remove %s --registry %s",
	            ws_shell_word(twin->url).text, ws_shell_word(path).text);
	return ws_err_where(err, NULL, url);
}

int ws_registry_check_pool(const char *pool, struct ws_err *err)
{
	static const char *const allowed =
		"abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
	char shown[80];
	const size_t n = strlen(pool);
	if (n >= 1 && n <= 63 && strspn(pool, allowed) == n)
		return 0;
	ws_printable(shown, sizeof shown, pool, n);
	return ws_err_set(err, WS_EUSAGE,
	                  "pool '%s': is not 1 to 63 letters, digits, '.', '_' and '-'", shown);
}

/* ---- changing ---- */

void ws_registry_describe(struct ws_registry_entry *e, const struct ws_endpoint_info *info)
{
	e->tp_size = info->tp_size;
	snprintf(e->dtype, sizeof e->dtype, "%s", info->dtype);
	snprintf(e->quantization, sizeof e->quantization, "%s", info->quantization);
	snprintf(e->served_model, sizeof e->served_model, "%s", info->served_model);
	snprintf(e->version, sizeof e->version, "%s", info->version);
	snprintf(e->lineage, sizeof e->lineage, "%s", ws_lineage_name(info->lineage));
}

static int make_directory_of(const char *path, struct ws_err *err)
{
	const char *slash = strrchr(path, '/');
	if (!slash || slash == path)
		return 0;
	char *dir = strndup(path, (size_t)(slash - path));
	const int rc = dir ? ws_file_mkdirs(dir, err) : ws_oom(err);
	free(dir);
	return rc;
}

/* The lock is a file of its own: the registry itself is replaced, and a lock on a file that is no
 * longer the registry would protect nothing. */
static int lock(const char *path, ws_deadline until, const struct ws_cancel *cancel,
                struct ws_err *err)
{
	char *name = NULL;
	if (make_directory_of(path, err) || ws_file_check_place(path, err))
		return -1;
	if (asprintf(&name, "%s.lock", path) < 0)
		return ws_oom(err);
	const int fd = ws_file_lock(name, WS_FILE_LOCK, until, cancel, err);
	free(name);
	return fd;
}

static int replace(const char *path, const struct ws_registry *r, struct ws_err *err)
{
	struct ws_buf text;
	struct ws_registry again = { 0 };
	ws_buf_init(&text, FILE_MAX);
	int rc = registry_print(path, r, &text, err);
	if (!rc) /* a file that cannot be read again would stop every program */
		rc = registry_parse(path, text.data, text.len, &again, err);
	ws_registry_free(&again);
	if (!rc)
		rc = ws_file_replace(path, text.data, text.len, 0600, err);
	ws_buf_free(&text);
	return rc;
}

static void stamp(char *dst, size_t n)
{
	const time_t now = time(NULL);
	struct tm tm;
	gmtime_r(&now, &tm);
	strftime(dst, n, "%Y-%m-%dT%H:%M:%SZ", &tm);
}

static int put(struct ws_registry *r, const char *path, struct ws_registry_entry *entry,
               bool *updated, struct ws_err *err)
{
	struct ws_registry_entry e = *entry;
	e.more = NULL;
	if (ws_endpoint_host_port(e.url, e.host, &e.port, err))
		return -1;
	const struct ws_registry_entry *old = ws_registry_find(r, e.url);
	*updated = old != NULL;
	if (!e.pool[0])
		snprintf(e.pool, sizeof e.pool, "%s", old ? old->pool : WS_POOL_DEFAULT);
	if (ws_registry_check_pool(e.pool, err) || ws_registry_check_twin(r, path, e.url, err))
		return -1;
	if (old) {
		memcpy(e.added_at, old->added_at, sizeof e.added_at);
		e.more = old->more;
		r->items[old - r->items] = *entry = e;
		return 0;
	}
	struct ws_registry_entry *items = realloc(r->items, (r->n + 1) * sizeof *items);
	if (!items)
		return ws_oom(err);
	stamp(e.added_at, sizeof e.added_at);
	r->items = items;
	r->items[r->n++] = *entry = e;
	if (r->priv)
		((struct registry_own *)r->priv)->n = 0; /* it points to the old place */
	return 0;
}

int ws_registry_add(const char *path, struct ws_registry_entry *entry, ws_deadline until,
                    const struct ws_cancel *cancel, bool *updated, struct ws_err *err)
{
	struct ws_registry r = { 0 };
	int rc = -1;
	const int fd = lock(path, until, cancel, err);
	if (fd < 0)
		return -1;
	if (!ws_registry_load(path, &r, err) && !put(&r, path, entry, updated, err))
		rc = replace(path, &r, err);
	entry->more = NULL; /* points into r, which is freed now */
	ws_registry_free(&r);
	ws_file_unlock(fd);
	return rc;
}

static int drop(struct ws_registry *r, const char *path, const char *url, struct ws_err *err)
{
	const struct ws_registry_entry *e = ws_registry_find(r, url);
	if (!e)
		return ws_err_set(err, WS_EINPUT, "%s: not registered in %s", url, path);
	const size_t i = (size_t)(e - r->items);
	memmove(r->items + i, r->items + i + 1, (r->n - i - 1) * sizeof *r->items);
	r->n--;
	((struct registry_own *)r->priv)->n = 0; /* the entries have moved */
	return 0;
}

int ws_registry_remove(const char *path, const char *url, ws_deadline until,
                       const struct ws_cancel *cancel, struct ws_err *err)
{
	struct ws_registry r = { 0 };
	int rc = -1;
	const int fd = lock(path, until, cancel, err);
	if (fd < 0)
		return -1;
	if (!ws_registry_load(path, &r, err) && !drop(&r, path, url, err))
		rc = replace(path, &r, err);
	ws_registry_free(&r);
	ws_file_unlock(fd);
	return rc;
}
