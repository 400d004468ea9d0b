/* SPDX-License-Identifier: Apache-2.0 */
/* journal_file.c - the text of a push's file, a JSON object:
 *
 *   schema            1, or 2 with `staged`; a reader refuses any other value
 *   process           {pid, start_ticks, boot_id, pid_namespace, host}
 *   ended             the push is over
 *   refused           a server refused its weights; absent: false
 *   began, updated    seconds since 1970
 *   group             name of the process group, null none
 *   master            {host, port} address where endpoints join; absent: all have answered
 *   plan_digest       16 hex digits
 *   tensors, bytes    of that plan
 *   weight_version    that the push would set, null none
 *   staged            {stage, whole, checked, model_path, load_format, written, used, keep} of an
 *                     update that servers load later; absent: an ordinary push. stage: "sending",
 *                     "last", "done" or "loading"; the paths and the format are "" unless the
 *                     endpoints' middle is "disk"
 *   sources           [path, synthetic:... or cuda-ipc:...]
 *   files             [{path, id}] of sources, adapters and corrections; id: 16 hex digits, a hash
 *                     of inode, size, mtime and ctime; null: memory of a process
 *   again             {directory, args: [--option=value]}, null: cannot be repeated
 *   endpoints         [{url, phase, state, paused, grouped, middle, version, asleep, inherited,
 *                     instance}]; instance: 16 hex digits, absent: unknown, sure: it is unique;
 *                     paused, grouped and middle (the open update, "" none): possibly; asleep: the
 *                     memory that is still released, "kv_cache,cuda_graph", "" none; null: no
 *                     memory was released when the push began; unsure (absent: none): the
 *                     memory of a request that was not answered; inherited: partial, because an
 *                     earlier push is not completed, although this push is; unlabelled: it does
 *                     not have weight_version yet, absent: it has
 *
 * Every other key must be there and have its type, so that wsync does not act on files that
 * were written by hand. */
#include "journal_core.h"

#include "wsync/tool/str.h"
#include "wsync/tool/json_read.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

enum { STRINGS_MAX = 65536 };
static const char *const stage_names[] = { "", "sending", "last", "done", "loading" };

/* ---- printing -------------------------------------------------------------------------------- */

/* JSON has no other bytes than UTF-8, so a push with such a path cannot be repeated from its
 * record. */
static bool are_text(const char *const *items, size_t n)
{
	while (n && ws_utf8_is(items[n - 1]))
		n--;
	return n == 0;
}

static void print_process(struct ws_jw *w, const struct ws_process *p)
{
	ws_jw_object(w, "process");
	ws_jw_int(w, "pid", p->pid);
	ws_jw_uint(w, "start_ticks", p->start_ticks);
	ws_jw_str(w, "boot_id", p->boot_id);
	ws_jw_str(w, "pid_namespace", p->pid_namespace);
	ws_jw_str(w, "host", p->host);
	ws_jw_end_object(w);
}

static void print_endpoints(struct ws_jw *w, const struct ws_journal_record *r)
{
	ws_jw_array(w, "endpoints");
	for (size_t i = 0; i < r->n_endpoints; i++) {
		const struct ws_journal_endpoint *e = &r->endpoints[i];
		ws_jw_object(w, NULL);
		ws_jw_str(w, "url", e->url);
		ws_jw_str(w, "phase", ws_phase_name(e->phase));
		ws_jw_str(w, "state", ws_endpoint_state_name(e->state));
		ws_jw_bool(w, "paused", e->paused);
		ws_jw_bool(w, "grouped", e->grouped);
		ws_jw_str(w, "middle", ws_open_update_name(e->open_update));
		ws_jw_str(w, "version", e->version);
		ws_jw_str(w, "asleep", e->slept ? ws_memory_text(e->asleep) : NULL);
		if (e->unsure)
			ws_jw_str(w, "unsure", ws_memory_text(e->unsure));
		ws_jw_bool(w, "inherited", e->inherited);
		if (e->instance)
			ws_jw_hex64(w, "instance", e->instance);
		if (e->sure)
			ws_jw_bool(w, "sure", true);
		if (e->unlabelled)
			ws_jw_bool(w, "unlabelled", true);
		ws_jw_end_object(w);
	}
	ws_jw_end_array(w);
}

static void print_staged(struct ws_jw *w, const struct ws_journal_staged *s)
{
	if (!s->stage)
		return;
	ws_jw_object(w, "staged");
	ws_jw_str(w, "stage", stage_names[s->stage]);
	ws_jw_bool(w, "whole", s->whole);
	ws_jw_bool(w, "checked", s->checked);
	ws_jw_str(w, "model_path", s->model_path);
	ws_jw_str(w, "load_format", s->load_format);
	ws_jw_str(w, "written", s->written);
	if (s->written_id)
		ws_jw_hex64(w, "written_id", s->written_id);
	ws_jw_bool(w, "used", s->used);
	ws_jw_uint(w, "keep", s->keep);
	ws_jw_end_object(w);
}

static void print_files(struct ws_jw *w, const struct ws_journal_record *r)
{
	ws_jw_array(w, "files");
	for (size_t i = 0; i < r->n_files; i++) {
		ws_jw_object(w, NULL);
		ws_jw_str(w, "path", r->files[i].path);
		if (r->files[i].in_memory)
			ws_jw_null(w, "id");
		else
			ws_jw_hex64(w, "id", r->files[i].id);
		ws_jw_end_object(w);
	}
	ws_jw_end_array(w);
}

/* True if the push can be repeated from the text of its record. */
static bool is_repeatable(const struct ws_journal_record *r)
{
	size_t n = r->n_files;
	while (n && ws_utf8_is(r->files[n - 1].path))
		n--;
	return n == 0 && r->directory && ws_utf8_is(r->directory) &&
	       are_text(r->sources, r->n_sources) && are_text(r->args, r->n_args);
}

void ws_journal_print(const struct ws_journal_record *r, struct ws_buf *text)
{
	struct ws_jw w;
	ws_jw_init(&w, text);
	ws_jw_object(&w, NULL);
	ws_jw_int(&w, "schema", r->staged.stage ? JOURNAL_SCHEMA : 1);
	print_process(&w, &r->process);
	ws_jw_bool(&w, "ended", r->ended);
	if (r->refused)
		ws_jw_bool(&w, "refused", true);
	if (r->by_hand)
		ws_jw_bool(&w, "by_hand", true);
	ws_jw_int(&w, "began", r->began);
	ws_jw_int(&w, "updated", r->updated);
	ws_jw_str(&w, "group", *r->group ? r->group : NULL);
	if (r->master_port) {
		ws_jw_object(&w, "master");
		ws_jw_str(&w, "host", r->master_host);
		ws_jw_uint(&w, "port", r->master_port);
		ws_jw_end_object(&w);
	}
	ws_jw_hex64(&w, "plan_digest", r->digest);
	ws_jw_uint(&w, "tensors", r->tensors);
	ws_jw_uint(&w, "bytes", r->bytes);
	ws_jw_str(&w, "weight_version", *r->weight_version ? r->weight_version : NULL);
	print_staged(&w, &r->staged);
	ws_jw_strs(&w, "sources", r->sources, r->n_sources);
	print_files(&w, r);
	if (is_repeatable(r)) {
		ws_jw_object(&w, "again");
		ws_jw_str(&w, "directory", r->directory);
		ws_jw_strs(&w, "args", r->args, r->n_args);
		ws_jw_end_object(&w);
	} else {
		ws_jw_null(&w, "again");
	}
	print_endpoints(&w, r);
	ws_jw_end_object(&w);
	ws_buf_putc(text, '\n');
}

/* ---- parsing --------------------------------------------------------------------------------- */

/* Reads members of one object; records the key of the first that is missing or wrong. */
struct reader {
	const struct ws_json *object;
	const char *bad; /* the key of that member */
};

static const struct ws_json *member(struct reader *r, const char *key, enum ws_json_type type,
                                    bool or_null)
{
	const struct ws_json *node = ws_json_get(r->object, key);
	if (!node ||
	    (ws_json_type(node) != type && !(or_null && ws_json_type(node) == WS_JSON_NULL))) {
		if (!r->bad)
			r->bad = key;
		return NULL;
	}
	return ws_json_type(node) == type ? node : NULL;
}

static const char *text_of(struct reader *r, const char *key, bool or_null)
{
	const struct ws_json *node = member(r, key, WS_JSON_STRING, or_null);
	return node ? ws_json_string(node) : "";
}

static int64_t number_of(struct reader *r, const char *key)
{
	const struct ws_json *node = member(r, key, WS_JSON_NUMBER, false);
	int64_t value = 0;
	if (node && (!ws_json_int(node, &value) || value < 0) && !r->bad)
		r->bad = key;
	return value < 0 ? 0 : value;
}

static bool truth_of(struct reader *r, const char *key)
{
	return ws_json_bool(member(r, key, WS_JSON_BOOL, false), false);
}

static void copy_text(struct reader *r, const char *key, char *dst, size_t n)
{
	const char *text = text_of(r, key, false);
	const size_t len = strlen(text);
	if (len < n)
		ws_printable(dst, n, text, len);
	if ((len >= n || strcmp(dst, text) != 0) && !r->bad)
		r->bad = key;
}

static uint64_t digest_of(struct reader *r, const char *key)
{
	const char *text = text_of(r, key, false);
	if (strlen(text) == 16 && strspn(text, "0123456789abcdef") == 16)
		return strtoull(text, NULL, 16);
	if (!r->bad)
		r->bad = key;
	return 0;
}

/* Returns the index of the matching name. If no name matches: marks the key as bad, returns 0. */
static int choice_of(struct reader *r, const char *key, int n, const char *(*name)(int))
{
	const char *text = text_of(r, key, false);
	for (int i = 0; i < n; i++)
		if (strcmp(name(i), text) == 0)
			return i;
	if (!r->bad)
		r->bad = key;
	return 0;
}

static const char *phase_name(int i)
{
	return ws_phase_name((enum ws_phase)i);
}

static const char *state_name(int i)
{
	return ws_endpoint_state_name((enum ws_endpoint_state)i);
}

static const char *middle_name(int i)
{
	return ws_open_update_name((enum ws_open_update)i);
}

static const char *stage_name(int i)
{
	return stage_names[i];
}

static const char *memory_name(int i)
{
	return ws_memory_text((unsigned)i);
}

static const char *const *strings_of(struct reader *r, const char *key, size_t *n)
{
	const struct ws_json *array = member(r, key, WS_JSON_ARRAY, false);
	const size_t count = array ? ws_json_count(array) : 0;
	const char **items = count <= STRINGS_MAX ? calloc(count + 1, sizeof *items) : NULL;
	*n = 0;
	for (const struct ws_json *i = items ? ws_json_first(array) : NULL; i;
	     i = ws_json_next(i)) {
		if (!(items[(*n)++] = ws_json_string(i)) && !r->bad)
			r->bad = key;
	}
	if (!items && !r->bad)
		r->bad = key;
	return items;
}

static void parse_process(struct reader *r, struct ws_process *p)
{
	struct reader in = { .object = member(r, "process", WS_JSON_OBJECT, false) };
	p->pid = number_of(&in, "pid");
	p->start_ticks = (uint64_t)number_of(&in, "start_ticks");
	copy_text(&in, "boot_id", p->boot_id, sizeof p->boot_id);
	copy_text(&in, "pid_namespace", p->pid_namespace, sizeof p->pid_namespace);
	copy_text(&in, "host", p->host, sizeof p->host);
	if (!r->bad)
		r->bad = in.bad;
}

static void parse_endpoint(struct reader *in, struct ws_journal_endpoint *e)
{
	char url[WS_URL_MAX];
	*e = (struct ws_journal_endpoint){
		.url = text_of(in, "url", false),
		.phase = (enum ws_phase)choice_of(in, "phase", WS_PHASE_COUNT, phase_name),
		.state = (enum ws_endpoint_state)choice_of(in, "state", WS_COMMITTED + 1,
		                                           state_name),
		.paused = truth_of(in, "paused"),
		.grouped = truth_of(in, "grouped"),
		.open_update = (enum ws_open_update)choice_of(in, "middle", WS_N_OPEN_UPDATES,
		                                              middle_name),
		.version = text_of(in, "version", false),
		.inherited = truth_of(in, "inherited"),
	};
	e->slept = member(in, "asleep", WS_JSON_STRING, true) != NULL;
	if (e->slept)
		e->asleep = (unsigned)choice_of(in, "asleep", WS_MEMORY_ALL + 1, memory_name);
	if (e->slept && ws_json_get(in->object, "unsure"))
		e->unsure = (unsigned)choice_of(in, "unsure", WS_MEMORY_ALL + 1, memory_name);
	if (ws_json_get(in->object, "instance"))
		e->instance = digest_of(in, "instance");
	e->sure = ws_json_get(in->object, "sure") && truth_of(in, "sure") && e->instance;
	e->unlabelled = ws_json_get(in->object, "unlabelled") && truth_of(in, "unlabelled");
	/* Requests are sent to this URL: like one from the command line, it must be normalized. */
	if (!in->bad &&
	    (ws_endpoint_normalize(e->url, url, sizeof url, NULL) || strcmp(url, e->url) != 0))
		in->bad = "url";
}

static void parse_endpoints(struct reader *r, struct ws_journal_record *out)
{
	const struct ws_json *array = member(r, "endpoints", WS_JSON_ARRAY, false);
	const size_t n = array ? ws_json_count(array) : 0;
	if (n > JOURNAL_ENDPOINTS_MAX ||
	    !(out->endpoints = calloc(n + 1, sizeof *out->endpoints))) {
		r->bad = r->bad ? r->bad : "endpoints";
		return;
	}
	for (const struct ws_json *i = array ? ws_json_first(array) : NULL; i;
	     i = ws_json_next(i)) {
		struct reader in = { .object = i };
		if (ws_json_type(i) != WS_JSON_OBJECT)
			in.bad = "endpoints";
		else
			parse_endpoint(&in, &out->endpoints[out->n_endpoints++]);
		if (!r->bad)
			r->bad = in.bad;
	}
}

static void parse_again(struct reader *r, struct ws_journal_record *out)
{
	const struct ws_json *again = member(r, "again", WS_JSON_OBJECT, true);
	struct reader in = { .object = again };
	if (!again)
		return;
	out->directory = text_of(&in, "directory", false);
	out->args = strings_of(&in, "args", &out->n_args);
	if (*out->directory != '/' && !in.bad)
		in.bad = "directory";
	for (size_t i = 0; !in.bad && i < out->n_args; i++)
		if (strncmp(out->args[i], "--", 2) != 0 || !out->args[i][2])
			in.bad = "args";
	if (!r->bad)
		r->bad = in.bad;
}

static void parse_file(struct reader *in, struct ws_journal_file *f)
{
	*f = (struct ws_journal_file){ .path = text_of(in, "path", false) };
	const struct ws_json *id = member(in, "id", WS_JSON_STRING, true);
	f->in_memory = !id;
	f->id = id ? digest_of(in, "id") : 0;
	if (!*f->path && !in->bad)
		in->bad = "path";
}

static void parse_files(struct reader *r, struct ws_journal_record *out)
{
	const struct ws_json *array = member(r, "files", WS_JSON_ARRAY, false);
	const size_t n = array ? ws_json_count(array) : 0;
	struct ws_journal_file *files = n <= STRINGS_MAX ? calloc(n + 1, sizeof *files) : NULL;
	out->files = files;
	if (!files && !r->bad)
		r->bad = "files";
	for (const struct ws_json *i = files ? ws_json_first(array) : NULL; i;
	     i = ws_json_next(i)) {
		struct reader in = { .object = i };
		if (ws_json_type(i) != WS_JSON_OBJECT)
			in.bad = "files";
		else
			parse_file(&in, &files[out->n_files++]);
		if (!r->bad)
			r->bad = in.bad;
	}
}

/* The master is absent if all endpoints have answered. */
static void parse_master(struct reader *r, struct ws_journal_record *out)
{
	out->master_host = "";
	if (!ws_json_get(r->object, "master"))
		return;
	struct reader in = { .object = member(r, "master", WS_JSON_OBJECT, false) };
	out->master_host = text_of(&in, "host", false);
	const int64_t port = number_of(&in, "port");
	if ((port < 1 || port > UINT16_MAX) && !in.bad)
		in.bad = "port";
	out->master_port = (uint16_t)port;
	if (!r->bad)
		r->bad = in.bad;
}

static void parse_staged(struct reader *r, struct ws_journal_staged *out)
{
	*out = (struct ws_journal_staged){ .model_path = "", .load_format = "", .written = "" };
	if (!ws_json_get(r->object, "staged"))
		return;
	struct reader in = { .object = member(r, "staged", WS_JSON_OBJECT, false) };
	out->stage = (enum ws_stage)choice_of(&in, "stage", WS_STAGE_LOADING + 1, stage_name);
	out->whole = truth_of(&in, "whole");
	out->checked = truth_of(&in, "checked");
	out->model_path = text_of(&in, "model_path", false);
	out->load_format = text_of(&in, "load_format", false);
	out->written = text_of(&in, "written", false);
	if (ws_json_get(in.object, "written_id"))
		out->written_id = digest_of(&in, "written_id");
	out->used = truth_of(&in, "used");
	out->keep = (unsigned)number_of(&in, "keep");
	const char *slash = strrchr(out->written, '/');
	const bool is_path = *out->written == '/' && slash[1] && slash[1] != '.';
	if ((!out->stage || (*out->written && !is_path)) && !in.bad)
		in.bad = "staged";
	if (!r->bad)
		r->bad = in.bad;
}

static void parse_record(struct reader *r, struct ws_journal_record *out)
{
	parse_process(r, &out->process);
	out->ended = truth_of(r, "ended");
	out->refused = ws_json_get(r->object, "refused") && truth_of(r, "refused");
	out->by_hand = ws_json_get(r->object, "by_hand") && truth_of(r, "by_hand");
	out->began = number_of(r, "began");
	out->updated = number_of(r, "updated");
	out->group = text_of(r, "group", true);
	parse_master(r, out);
	out->digest = digest_of(r, "plan_digest");
	out->tensors = (uint64_t)number_of(r, "tensors");
	out->bytes = (uint64_t)number_of(r, "bytes");
	out->weight_version = text_of(r, "weight_version", true);
	parse_staged(r, &out->staged);
	out->sources = strings_of(r, "sources", &out->n_sources);
	parse_files(r, out);
	parse_again(r, out);
	parse_endpoints(r, out);
}

int ws_journal_parse(const char *path, const char *text, size_t len, struct ws_journal_record *out,
                     void **priv, struct ws_err *err)
{
	struct ws_json *root = ws_json_parse(text, len, path, err);
	*out = (struct ws_journal_record){ 0 };
	*priv = root;
	if (!root)
		return -1;
	struct reader r = { .object = root };
	const int64_t schema = ws_json_get_int(root, "schema", 0);
	if (schema > JOURNAL_SCHEMA)
		ws_err_set(err, WS_EINPUT, "%s: schema %" PRId64 " was written by a newer wsync",
		           path, schema);
	else if (schema < 1 || ws_json_duplicate(root))
		ws_err_set(err, WS_EINPUT, "%s: no record of a push", path);
	else
		parse_record(&r, out);
	if (r.bad)
		ws_err_set(err, WS_EINPUT, "%s: no record of a push: '%s' is missing or wrong",
		           path, r.bad);
	if (schema >= 1 && schema <= JOURNAL_SCHEMA && !r.bad && out->sources)
		return 0;
	ws_journal_drop(out, root);
	*priv = NULL;
	return -1;
}

void ws_journal_drop(struct ws_journal_record *r, void *priv)
{
	free((void *)(uintptr_t)r->sources);
	free((void *)(uintptr_t)r->files);
	free((void *)(uintptr_t)r->args);
	free(r->endpoints);
	ws_json_free(priv);
	*r = (struct ws_journal_record){ 0 };
}
