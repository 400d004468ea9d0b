/* SPDX-License-Identifier: Apache-2.0 */
/* registry_write.c - prints the registry: known keys in a fixed order, then unknown keys as they
 * were read. A newer wsync or a script may keep notes in unknown keys. */
#include "registry_file.h"

#include "wsync/tool/registry_json.h"

#include <string.h>

enum { NOTE_DEPTH = 16 }; /* of notes inside notes */

static const char *const root_keys[] = { "version", "endpoints", NULL };
static const char *const entry_keys[] = {
	"url", "host", "port", "pool", "world_size", "tp_size", "dtype", "quantization",
	"served_model", "version", "lineage", "added_at", NULL,
};

static bool is_one_of(const char *key, const char *const *keys)
{
	for (; *keys; keys++)
		if (!strcmp(key, *keys))
			return true;
	return false;
}

static int copy_note(struct ws_jw *w, const char *key, const struct ws_json *node, unsigned depth);

static int copy_members(struct ws_jw *w, const struct ws_json *node, bool keyed, unsigned depth)
{
	int rc = depth ? 0 : -1;
	for (const struct ws_json *m = ws_json_first(node); !rc && m; m = ws_json_next(m))
		rc = copy_note(w, keyed ? ws_json_key(m) : NULL, m, depth - 1);
	return rc;
}

static void copy_number(struct ws_jw *w, const char *key, const struct ws_json *node)
{
	int64_t integer;
	double number = 0;
	if (ws_json_int(node, &integer))
		ws_jw_int(w, key, integer);
	else if (ws_json_double(node, &number))
		ws_jw_double(w, key, number);
}

static int copy_note(struct ws_jw *w, const char *key, const struct ws_json *node, unsigned depth)
{
	int rc = 0;
	switch (ws_json_type(node)) {
	case WS_JSON_NULL:
		ws_jw_null(w, key);
		break;
	case WS_JSON_BOOL:
		ws_jw_bool(w, key, ws_json_bool(node, false));
		break;
	case WS_JSON_NUMBER:
		copy_number(w, key, node);
		break;
	case WS_JSON_STRING:
		ws_jw_str(w, key, ws_json_string(node));
		break;
	case WS_JSON_ARRAY:
		ws_jw_array(w, key);
		rc = copy_members(w, node, false, depth);
		ws_jw_end_array(w);
		break;
	case WS_JSON_OBJECT:
		ws_jw_object(w, key);
		rc = copy_members(w, node, true, depth);
		ws_jw_end_object(w);
		break;
	}
	return rc;
}

static int copy_notes(struct ws_jw *w, const struct ws_json *object, const char *const *known,
                      const char *path, struct ws_err *err)
{
	for (const struct ws_json *m = ws_json_first(object); m; m = ws_json_next(m))
		if (!is_one_of(ws_json_key(m), known) &&
		    copy_note(w, ws_json_key(m), m, NOTE_DEPTH))
			return ws_err_set(err, WS_EINPUT,
			                  "%s: \"%.60s\" is nested too deeply to be kept", path,
			                  ws_json_key(m));
	return 0;
}

void ws_registry_put(struct ws_jw *w, const struct ws_registry_entry *e)
{
	ws_jw_str(w, "url", e->url);
	ws_jw_str(w, "host", e->host);
	ws_jw_uint(w, "port", e->port);
	ws_jw_str(w, "pool", e->pool);
	ws_jw_uint(w, "world_size", e->world_size);
	ws_jw_uint(w, "tp_size", e->tp_size);
	ws_jw_str(w, "dtype", e->dtype);
	ws_jw_str(w, "quantization", e->quantization);
	ws_jw_str(w, "served_model", e->served_model);
	ws_jw_str(w, "version", e->version);
	ws_jw_str(w, "lineage", e->lineage);
	ws_jw_str(w, "added_at", e->added_at);
}

static int print_entry(struct ws_jw *w, const struct ws_registry_entry *e, const char *path,
                       struct ws_err *err)
{
	ws_jw_object(w, NULL);
	ws_registry_put(w, e);
	const int rc = copy_notes(w, e->more, entry_keys, path, err);
	ws_jw_end_object(w);
	return rc;
}

int registry_print(const char *path, const struct ws_registry *r, struct ws_buf *text,
                   struct ws_err *err)
{
	struct ws_jw w;
	ws_jw_init(&w, text);
	ws_jw_object(&w, NULL);
	ws_jw_int(&w, "version", REGISTRY_VERSION);
	ws_jw_array(&w, "endpoints");
	for (size_t i = 0; i < r->n; i++) {
		ws_buf_putc(text, '\n'); /* one endpoint per line, for people and for diff */
		if (print_entry(&w, &r->items[i], path, err))
			return -1;
	}
	ws_jw_end_array(&w);
	if (copy_notes(&w, r->priv ? ((const struct registry_own *)r->priv)->root : NULL, root_keys,
	               path, err))
		return -1;
	ws_jw_end_object(&w);
	ws_buf_putc(text, '\n');
	return ws_buf_check(text, path, err);
}
