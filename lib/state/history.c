/* SPDX-License-Identifier: Apache-2.0 */
#include "wsync/tool/history.h"

#include "file.h"
#include "wsync/endpoint.h"
#include "wsync/tool/buf.h"
#include "wsync/tool/json.h"
#include "wsync/tool/json_read.h"
#include "wsync/tool/str.h"

#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

enum { LINE_MOST = 16 << 20, FILE_MOST = 1 << 20 };
static const int64_t LOCK_NS = 5 * WS_NS_PER_S;

/* ---- writing --------------------------------------------------------------------------------- */

/* Texts of servers and names of sources may hold URLs with passwords. The file stays. */
static void put_shown(struct ws_jw *w, const char *key, const char *text)
{
	char *shown = text && *text ? strdup(text) : NULL;
	if (shown)
		ws_hide_passwords(shown, false);
	ws_jw_str(w, key, shown);
	free(shown);
}

/* Ids are text, because readers of JSON may keep numbers as doubles. */
static void print_identity(struct ws_jw *w, const struct ws_identity *id)
{
	if (!id->n)
		return;
	ws_jw_object(w, "identity");
	ws_jw_int(w, "strength", id->strength);
	ws_jw_uint(w, "processes", id->processes);
	ws_jw_int(w, "since", id->since / WS_NS_PER_S);
	ws_jw_array(w, "seen");
	for (unsigned k = 0; k < id->n; k++) {
		ws_jw_object(w, NULL);
		ws_jw_uint(w, "rank", id->seen[k].rank);
		ws_jw_hex64(w, "id", id->seen[k].id);
		ws_jw_end_object(w);
	}
	ws_jw_end_array(w);
	ws_jw_end_object(w);
}

static void print_endpoints(struct ws_jw *w, const struct ws_history_push *p)
{
	ws_jw_array(w, "endpoints");
	for (size_t i = 0; i < p->n_endpoints; i++) {
		const struct ws_history_endpoint *e = &p->endpoints[i];
		ws_jw_object(w, NULL);
		ws_jw_str(w, "url", e->url);
		ws_jw_bool(w, "ok", e->ok);
		ws_jw_str(w, "state", ws_endpoint_state_name(e->state));
		if (e->coverage >= 0)
			ws_jw_double(w, "coverage", e->coverage);
		else
			ws_jw_null(w, "coverage");
		put_shown(w, "message", e->message);
		if (e->instance)
			ws_jw_hex64(w, "instance", e->instance);
		print_identity(w, &e->identity);
		put_shown(w, "label", e->label);
		ws_jw_uint(w, "established", e->established);
		ws_jw_end_object(w);
	}
	ws_jw_end_array(w);
}

static void print(const struct ws_history_push *p, struct ws_buf *out)
{
	char host[65] = "";
	struct ws_jw w;
	gethostname(host, sizeof host - 1);
	ws_jw_init(&w, out);
	ws_jw_object(&w, NULL);
	ws_jw_hex64(&w, "id", p->id);
	ws_jw_int(&w, "began", p->began);
	ws_jw_int(&w, "ended", p->ended);
	ws_jw_int(&w, "pid", getpid());
	ws_jw_str(&w, "host", host);
	ws_jw_int(&w, "uid", (int64_t)geteuid());
	put_shown(&w, "source", p->source);
	put_shown(&w, "weight_version", p->weight_version);
	ws_jw_str(&w, "verify", p->verify);
	ws_jw_str(&w, "code", p->code);
	put_shown(&w, "message", p->message);
	ws_jw_hex64(&w, "digest", p->digest);
	ws_jw_bool(&w, "whole", p->whole);
	ws_jw_bool(&w, "same", p->same);
	if (p->round)
		ws_jw_hex64(&w, "round", p->round);
	print_endpoints(&w, p);
	ws_jw_end_object(&w);
	ws_buf_putc(out, '\n');
}

/* The lock keeps two processes from moving the file at the same time, which would lose it. */
static bool append(const char *path, const char *older, const struct ws_buf *line)
{
	struct stat st;
	bool ok;
	if (lstat(path, &st) == 0 && st.st_size > FILE_MOST)
		(void)!rename(path, older);
	const int fd = ws_file_open_owned(path, O_WRONLY | O_CREAT | O_APPEND, WS_FILE_OWN, NULL);
	if (fd < 0)
		return false;
	ok = write(fd, line->data, line->len) == (ssize_t)line->len;
	return close(fd) == 0 && ok;
}

bool ws_history_add(const char *state_dir, const struct ws_history_push *push)
{
	char path[PATH_MAX], older[PATH_MAX], lock[PATH_MAX];
	struct ws_buf line;
	bool ok = false;
	if (snprintf(path, sizeof path, "%s/history.jsonl", state_dir) >= PATH_MAX ||
	    snprintf(older, sizeof older, "%s/history.jsonl.1", state_dir) >= PATH_MAX ||
	    snprintf(lock, sizeof lock, "%s/history.lock", state_dir) >= PATH_MAX ||
	    ws_file_mkdirs(state_dir, NULL))
		return false;
	ws_buf_init(&line, LINE_MOST);
	print(push, &line);
	const int held = ws_file_lock(lock, WS_FILE_OWN, ws_deadline_in(LOCK_NS), NULL, NULL);
	if (held >= 0 && ws_buf_check(&line, path, NULL) == 0)
		ok = append(path, older, &line);
	ws_file_unlock(held);
	ws_buf_free(&line);
	return ok;
}

uint64_t ws_history_id(void)
{
	uint64_t id = 0;
	while (!id && getrandom(&id, sizeof id, 0) == sizeof id)
		;
	return id;
}

void ws_history_spoil(const char *state_dir, const char *url, const struct ws_endpoint_info *info,
                      const char *what)
{
	struct ws_history_endpoint e = { .url = url, .state = WS_PARTIAL, .coverage = -1,
		                         .message = what };
	const struct ws_history_push p = { .id = ws_history_id(), .began = time(NULL),
		                           .verify = "none", .code = "", .endpoints = &e,
		                           .n_endpoints = 1 };
	if (info) {
		e.identity = info->identity;
		e.label = info->weight_version;
	}
	ws_history_add(state_dir, &p);
}

/* ---- reading --------------------------------------------------------------------------------- */

struct parsed { /* what the strings of one line point into */
	struct parsed *next;
	struct ws_json *root;
	struct ws_history_endpoint *endpoints;
};

static enum ws_endpoint_state state_of(const char *name)
{
	for (int s = WS_COMMITTED; s > WS_UNTOUCHED; s--)
		if (strcmp(name, ws_endpoint_state_name((enum ws_endpoint_state)s)) == 0)
			return (enum ws_endpoint_state)s;
	return WS_UNTOUCHED;
}

static uint64_t hex_of(const struct ws_json *node, const char *key)
{
	return strtoull(ws_json_get_string(node, key, "0"), NULL, 16);
}

static void take_identity(const struct ws_json *node, struct ws_identity *id)
{
	*id = (struct ws_identity){
		.strength = ws_json_get_int(node, "strength", 0) == WS_IDENTITY_SURE ?
		                    WS_IDENTITY_SURE :
		                    WS_IDENTITY_WEAK,
		.processes = (unsigned)ws_json_get_int(node, "processes", 0),
		.since = ws_json_get_int(node, "since", 0) * WS_NS_PER_S,
	};
	for (const struct ws_json *s = ws_json_first(ws_json_get(node, "seen"));
	     s && id->n < WS_IDENTITY_PROCESSES; s = ws_json_next(s)) {
		id->seen[id->n].rank = (unsigned)ws_json_get_int(s, "rank", 0);
		id->seen[id->n++].id = hex_of(s, "id");
	}
}

static void take_endpoint(const struct ws_json *node, struct ws_history_endpoint *e)
{
	*e = (struct ws_history_endpoint){
		.url = ws_json_get_string(node, "url", ""),
		.ok = ws_json_get_bool(node, "ok", false),
		.state = state_of(ws_json_get_string(node, "state", "")),
		.message = ws_json_get_string(node, "message", ""),
		.label = ws_json_get_string(node, "label", ""),
		.established = (unsigned)ws_json_get_int(node, "established", 0),
	};
	if (!ws_json_double(ws_json_get(node, "coverage"), &e->coverage))
		e->coverage = -1;
	e->instance = hex_of(node, "instance");
	if (ws_json_get(node, "identity"))
		take_identity(ws_json_get(node, "identity"), &e->identity);
}

/* -1: out of memory. A line that is no push is skipped. */
static int take_line(struct ws_history *h, const char *text, size_t n, struct ws_err *err)
{
	struct ws_json *root = ws_json_parse(text, n, "history", NULL);
	const struct ws_json *list = ws_json_get(root, "endpoints");
	if (ws_json_type(list) != WS_JSON_ARRAY) {
		ws_json_free(root);
		return 0;
	}
	struct parsed *kept = calloc(1, sizeof *kept);
	struct ws_history_push *items = realloc(h->items, (h->n + 1) * sizeof *items);
	h->items = items ? items : h->items;
	if (kept)
		kept->endpoints = calloc(ws_json_count(list) + 1, sizeof *kept->endpoints);
	if (!kept || !items || !kept->endpoints) {
		ws_json_free(root);
		free(kept ? kept->endpoints : NULL);
		free(kept);
		return ws_oom(err);
	}
	*kept = (struct parsed){ h->priv, root, kept->endpoints };
	h->priv = kept;
	struct ws_history_push *p = &h->items[h->n++];
	*p = (struct ws_history_push){
		.id = hex_of(root, "id"),
		.digest = hex_of(root, "digest"),
		.whole = ws_json_get_bool(root, "whole", false),
		.same = ws_json_get_bool(root, "same", false),
		.round = hex_of(root, "round"),
		.began = ws_json_get_int(root, "began", 0),
		.ended = ws_json_get_int(root, "ended", 0),
		.pid = ws_json_get_int(root, "pid", 0),
		.host = ws_json_get_string(root, "host", ""),
		.uid = ws_json_get_int(root, "uid", -1),
		.source = ws_json_get_string(root, "source", ""),
		.weight_version = ws_json_get_string(root, "weight_version", ""),
		.verify = ws_json_get_string(root, "verify", ""),
		.code = ws_json_get_string(root, "code", ""),
		.message = ws_json_get_string(root, "message", ""),
		.endpoints = kept->endpoints,
	};
	for (const struct ws_json *e = ws_json_first(list); e; e = ws_json_next(e))
		take_endpoint(e, &kept->endpoints[p->n_endpoints++]);
	return 0;
}

static int read_file(const char *state_dir, const char *name, struct ws_history *out,
                     struct ws_err *err)
{
	char path[PATH_MAX];
	struct ws_buf text;
	int rc = 0;
	ws_buf_init(&text, FILE_MOST + LINE_MOST);
	if (snprintf(path, sizeof path, "%s/%s", state_dir, name) < PATH_MAX &&
	    ws_file_read_owned(path, WS_FILE_OWN, &text, NULL) == 0) {
		const char *at = text.data, *const past = text.data + text.len, *end;
		for (; rc == 0 && at < past && (end = memchr(at, '\n', (size_t)(past - at)));
		     at = end + 1)
			rc = take_line(out, at, (size_t)(end - at), err);
	}
	ws_buf_free(&text);
	return rc;
}

int ws_history_read(const char *state_dir, struct ws_history *out, struct ws_err *err)
{
	*out = (struct ws_history){ 0 };
	if (read_file(state_dir, "history.jsonl.1", out, err) == 0 &&
	    read_file(state_dir, "history.jsonl", out, err) == 0)
		return 0;
	ws_history_free(out);
	return -1;
}

void ws_history_free(struct ws_history *h)
{
	for (struct parsed *p = h ? h->priv : NULL, *next; p; p = next) {
		next = p->next;
		ws_json_free(p->root);
		free(p->endpoints);
		free(p);
	}
	if (h)
		free(h->items);
	if (h)
		*h = (struct ws_history){ 0 };
}

const struct ws_history_push *ws_history_last(const struct ws_history *h, const char *url,
                                              const struct ws_history_endpoint **part)
{
	for (size_t i = h->n; i-- > 0;)
		for (size_t k = 0; h->items[i].ended && k < h->items[i].n_endpoints; k++)
			if (ws_endpoint_same(h->items[i].endpoints[k].url, url)) {
				*part = &h->items[i].endpoints[k];
				return &h->items[i];
			}
	return NULL;
}

static bool is_about(const struct ws_history_endpoint *e, const char *url,
                     const struct ws_endpoint_info *info, bool *sure)
{
	struct ws_identity known = e->identity;
	const enum ws_identity_match match = ws_identity_compare(&known, &info->identity);
	*sure = match == WS_IDENTITY_SAME && known.strength == WS_IDENTITY_SURE;
	if (match == WS_IDENTITY_OTHER)
		return false;
	return *sure || strcmp(e->url, url) == 0 || ws_endpoint_same(e->url, url);
}

const struct ws_history_push *ws_history_last_change(const struct ws_history *h, const char *url,
                                                     const struct ws_endpoint_info *info,
                                                     const struct ws_history_endpoint **part,
                                                     bool *sure)
{
	uint64_t untouched = 0;
	*part = NULL;
	*sure = false;
	for (size_t i = h->n; i-- > 0;) {
		const struct ws_history_push *p = &h->items[i];
		for (size_t k = 0; k < p->n_endpoints; k++) {
			const struct ws_history_endpoint *e = &p->endpoints[k];
			if (!is_about(e, url, info, sure))
				continue;
			if (p->ended && (e->state == WS_UNTOUCHED || (p->same && e->ok))) {
				untouched = p->id;
			} else if (p->ended || !untouched || p->id != untouched) {
				*part = e;
				return p;
			}
			break;
		}
	}
	*sure = false;
	return NULL;
}
