/* SPDX-License-Identifier: Apache-2.0 */
/* reference.c - opens a reference: the headers of a checkpoint, or saved lines of them.
 *
 *   {"type":"checkpoint","source":"DIR","config":"{...}"}     the text of its config.json
 *   {"type":"tensor","name":..,"dtype":..,"shape":[..],..}    as wsync-list-weights --json
 */
#include "wsync/tool/reference.h"

#include "listing_read.h"
#include "name_index.h"
#include "synthetic.h"
#include "wsync/tool/buf.h"
#include "wsync/tool/json_read.h"
#include "wsync/tool/str.h"

#include "file.h"

#include <dirent.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { MOST_PREFIXES = 64, MOST_LAYERS = 4096, MOST_BYTES = 256 << 20 };

/* ---- the config of a source ------------------------------------------------------------------ */

static const char scheme[] = "synthetic:";

static bool is_synthetic(const struct ws_source *s)
{
	const char *name = ws_source_file_name(s, 0);
	return name && !strncmp(name, scheme, sizeof scheme - 1);
}

/* The source is synthetic:MODEL or synthetic:MODEL:SEED. */
static int make_synthetic(const struct ws_source *s, struct ws_buf *out, struct ws_err *err)
{
	char name[128];
	const char *model = ws_source_file_name(s, 0) + sizeof scheme - 1;
	snprintf(name, sizeof name, "%.*s", (int)strcspn(model, ":"), model);
	const struct ws_model *m = ws_model_find(name, err);
	return m ? ws_model_config(m, out, err) : -1;
}

int ws_source_config_text(const struct ws_source *s, struct ws_buf *out, struct ws_err *err)
{
	char path[4096];
	const char *dir = ws_source_config_dir(s);
	if (!dir)
		return is_synthetic(s) ? make_synthetic(s, out, err) : 0;
	/* a manifest may name the file itself */
	snprintf(path, sizeof path, "%s%s", dir, ws_ends_with(dir, ".json") ? "" : "/config.json");
	return ws_file_read(path, out, err);
}

int ws_source_config(const struct ws_source *s, struct ws_config **out, struct ws_err *err)
{
	struct ws_buf text;
	*out = NULL;
	if (ws_source_config_dir(s))
		return ws_config_open(ws_source_config_dir(s), out, err);
	if (!is_synthetic(s))
		return 0;
	ws_buf_init(&text, 0);
	int rc = make_synthetic(s, &text, err);
	if (!rc)
		rc = ws_config_parse(text.data, text.len, ws_source_file_name(s, 0), out, err);
	ws_buf_free(&text);
	return rc;
}

/* ---- saved lines ----------------------------------------------------------------------------- */

/* The line of a checkpoint has the text of its config.json as a string. */
static int read_config(struct ws_reference *r, const char *text, size_t n, struct ws_err *err)
{
	static const char begin[] = "{\"type\":\"checkpoint\"";
	const char *at = memmem(text, n, begin, sizeof begin - 1);
	if (!at || (at != text && at[-1] != '\n'))
		return 0;
	const char *end = memchr(at, '\n', n - (size_t)(at - text));
	const size_t line = end ? (size_t)(end - at) : n - (size_t)(at - text);
	struct ws_json *root = ws_json_parse_most(at, line, WS_JSON_LARGE, r->name, err);
	const char *config = ws_json_get_string(root, "config", NULL);
	const int rc = !root   ? -1 :
	               !config ? 0 :
	                         ws_config_parse(config, strlen(config), r->name, &r->config, err);
	ws_json_free(root);
	return rc;
}

static int make_tensor(const struct ws_reference *r, const struct ws_weight *w, struct ws_tensor *t,
                       struct ws_err *err)
{
	*t = (struct ws_tensor){ .name = w->name, .n_dims = w->n_dims };
	memcpy(t->dims, w->dims, sizeof t->dims);
	if (!w->shapeless && ws_dtype_from_torch(w->dtype, &t->dtype) &&
	    ws_dtype_bytes(t->dtype, t->n_dims, t->dims, &t->bytes))
		return 0;
	ws_err_set(err, WS_EINPUT,
	           "%s: '%s' has no dtype and shape: this is no list of a "
	           "checkpoint",
	           r->name, ws_quote(w->name).text);
	return ws_err_hint(err, "wsync-list-weights DIR {headers_only} saves one");
}

static int read_lines(struct ws_reference *r, const char *path, struct ws_err *err)
{
	struct ws_buf text;
	ws_buf_init(&text, MOST_BYTES);
	int rc = ws_file_read(path, &text, err);
	if (!rc)
		rc = read_config(r, ws_buf_str(&text), text.len, err);
	if (!rc)
		rc = ws_weight_list_parse(ws_buf_str(&text), text.len, path, &r->list, err);
	ws_buf_free(&text);
	if (rc)
		return -1;
	r->made = calloc(r->list.n + 1, sizeof *r->made);
	if (!r->made)
		return ws_oom(err);
	for (size_t i = 0; i < r->list.n; i++)
		if (make_tensor(r, &r->list.items[i], &r->made[i], err))
			return -1;
	r->tensors = r->made;
	r->n = r->list.n;
	return 0;
}

/* ---- is it whole? ---------------------------------------------------------------------------- */

struct numbered {
	const char *prefix;
	size_t n;
	bool seen[MOST_LAYERS];
};

/* Marks the first number of a name as there, under what stands before it. */
static void mark(struct numbered *list, size_t *n_list, const char *name)
{
	const char *p = name;
	while (*p && !(strspn(p, "0123456789") == strcspn(p, ".") && *p != '.'))
		p += strcspn(p, ".") + (p[strcspn(p, ".")] == '.');
	const size_t n = (size_t)(p - name);
	const long long layer = *p ? atoll(p) : -1;
	size_t i = 0;
	if (layer < 0 || layer >= MOST_LAYERS)
		return;
	while (i < *n_list && (list[i].n != n || memcmp(list[i].prefix, name, n)))
		i++;
	if (i == MOST_PREFIXES)
		return;
	if (i == *n_list)
		list[(*n_list)++] = (struct numbered){ .prefix = name, .n = n };
	list[i].seen[layer] = true;
}

/* How many of the layers are there, at most, under one prefix; *gap: the first that is not. */
static int64_t count_layers(const struct numbered *list, size_t n_list, int64_t layers,
                            int64_t *gap)
{
	int64_t most = 0;
	for (size_t i = 0; i < n_list; i++) {
		int64_t n = 0, first = -1;
		for (int64_t k = 0; k < layers && k < MOST_LAYERS; k++) {
			n += list[i].seen[k];
			first = first < 0 && !list[i].seen[k] ? k : first;
		}
		if (n > most) {
			most = n;
			*gap = first;
		}
	}
	return most;
}

/* Layers behind the last one are those of a draft model, or the config is another model's. */
static int refuse_more(const struct ws_reference *r, int64_t layers, struct ws_err *err)
{
	int64_t drafts = 0;
	ws_config_int(r->config, "num_nextn_predict_layers", &drafts);
	for (size_t i = 0; i < r->n; i++)
		if (ws_layer_is_behind(r->tensors[i].name, layers + drafts))
			return ws_err_set(err, WS_EINPUT,
			                  "%s is no reference: it has a %s, and its config.json "
			                  "has num_hidden_layers %" PRId64,
			                  r->name, ws_quote(r->tensors[i].name).text, layers);
	return 0;
}

/* Not whole by its own config.json: half a download, or a trainer's part. */
static int check_layers(const struct ws_reference *r, struct ws_err *err)
{
	int64_t layers, gap = -1;
	size_t n = 0;
	if (!r->config || !ws_config_int(r->config, "num_hidden_layers", &layers) || layers < 1)
		return 0;
	struct numbered *list = calloc(MOST_PREFIXES, sizeof *list);
	if (!list)
		return ws_oom(err);
	for (size_t i = 0; i < r->n; i++)
		mark(list, &n, r->tensors[i].name);
	const int64_t most = count_layers(list, n, layers, &gap);
	free(list);
	if (most && gap < 0)
		return refuse_more(r, layers, err);
	return ws_err_set(err, WS_EINPUT,
	                  "%s is no reference: it has no layer %" PRId64 ", and its "
	                  "config.json has num_hidden_layers %" PRId64,
	                  r->name, most ? gap : 0, layers);
}

static int refuse_adapter(const struct ws_reference *r, struct ws_err *err)
{
	for (size_t i = 0; i < r->n; i++)
		if (strstr(r->tensors[i].name, ".lora_"))
			return ws_err_set(err, WS_EINPUT,
			                  "%s is no reference: it is an adapter, or "
			                  "has one that is not merged (%s)",
			                  r->name, ws_quote(r->tensors[i].name).text);
	return 0;
}

/* ---- opening --------------------------------------------------------------------------------- */

/* Lines of wsync-list-weights begin with an object that has a "type"; nothing else does. Lists
 * that servers show, and tables, are told by their names. */
static bool is_lines(const char *path)
{
	static const char *const endings[] = { ".jsonl", ".txt", ".tsv", ".list" };
	char head[65] = "";
	FILE *f = fopen(path, "re");
	if (f)
		head[fread(head, 1, sizeof head - 1, f)] = '\0';
	if (f)
		fclose(f);
	if (head[0] == '{' && strstr(head, "\"type\":"))
		return true;
	for (size_t i = 0; i < sizeof endings / sizeof *endings; i++)
		if (ws_ends_with(path, endings[i]))
			return true;
	return false;
}

/* The directory of a config.json, else the path itself. */
static const char *without_config(const char *path, char *dst, size_t n)
{
	const char *slash = strrchr(path, '/');
	if (strcmp(slash ? slash + 1 : path, "config.json"))
		return path;
	snprintf(dst, n, "%.*s", slash ? (int)(slash - path) + 1 : 1, slash ? path : ".");
	return dst;
}

bool ws_reference_at(const char *path)
{
	char dir[4096];
	DIR *d = opendir(without_config(path, dir, sizeof dir));
	const struct dirent *e;
	bool found = false;
	while (d && !found && (e = readdir(d)))
		found = e->d_name[0] != '.' && ws_ends_with(e->d_name, ".safetensors");
	if (d)
		closedir(d);
	return found;
}

static int open_source(struct ws_reference *r, const char *path, struct ws_err *err)
{
	char dir[4096];
	path = without_config(path, dir, sizeof dir);
	if (ws_source_open(&path, 1, &r->source, err))
		return -1;
	r->n = ws_source_count(r->source);
	r->tensors = ws_source_tensor(r->source, 0);
	return ws_source_config(r->source, &r->config, err);
}

int ws_reference_open(const char *path, const struct ws_family *generic, struct ws_reference *out,
                      struct ws_err *err)
{
	struct ws_reference r = { .generic = generic };
	snprintf(r.name, sizeof r.name, "%s", path);
	int rc = is_lines(path) ? read_lines(&r, path, err) : open_source(&r, path, err);
	if (!rc && !r.n)
		rc = ws_err_set(err, WS_EINPUT, "%s is no reference: it has no tensors", path);
	if (!rc)
		rc = refuse_adapter(&r, err) || check_layers(&r, err) ? -1 : 0;
	if (rc)
		ws_reference_close(&r);
	else
		*out = r;
	return rc;
}

void ws_reference_close(struct ws_reference *r)
{
	if (!r)
		return;
	ws_layout_free(r->layout);
	ws_config_free(r->config);
	ws_source_close(r->source);
	ws_weight_list_free(&r->list);
	free(r->made);
	*r = (struct ws_reference){ .n = 0 };
}

const struct ws_layout *ws_reference_layout(struct ws_reference *r, struct ws_err *err)
{
	const struct ws_layout_like like = { .name = r->name,
		                             .tensors = r->tensors,
		                             .n = r->n,
		                             .config = r->config,
		                             .generic = r->generic };
	if (!r->layout && ws_layout_like(&like, &r->layout, err))
		r->layout = NULL;
	return r->layout;
}

bool ws_reference_same(const struct ws_reference *r, const struct ws_source *s)
{
	bool same = r->n == ws_source_count(s);
	for (size_t i = 0; same && i < r->n; i++) {
		const struct ws_tensor *a = &r->tensors[i], *b = ws_source_find(s, a->name);
		same = b && a->dtype == b->dtype && a->n_dims == b->n_dims &&
		       !memcmp(a->dims, b->dims, a->n_dims * sizeof *a->dims);
	}
	return same;
}

bool ws_reference_has(const struct ws_reference *r, const char *name)
{
	if (r->source)
		return ws_source_find(r->source, name);
	for (size_t i = 0; i < r->n; i++)
		if (!strcmp(r->tensors[i].name, name))
			return true;
	return false;
}

bool ws_reference_is(const struct ws_reference *r, const struct ws_source *s)
{
	uint64_t ours, theirs;
	for (size_t i = 0; r->source && i < ws_source_file_count(r->source); i++)
		for (size_t k = 0; k < ws_source_file_count(s); k++)
			if (ws_source_file_id(r->source, i, &ours) &&
			    ws_source_file_id(s, k, &theirs) && ours == theirs)
				return true;
	return false;
}

uint64_t ws_reference_changed(const struct ws_reference *r)
{
	return r->source ? ws_source_changed(r->source) : 0;
}
