/* SPDX-License-Identifier: Apache-2.0 */
/* listing.c - reads saved listings of weights:
 *
 *   {"weights":[{"name":..,"shape":[..],"dtype"?},..],..}    GET /list_weights
 *   {"ranks":[{"checksums":{NAME:..}},..],..}                POST /weights_checker: only names
 *   {"type":"tensor","name":..,"dtype":..,"shape":[..],..}   wsync-list-weights --json
 *   NAME  DTYPE  [4096, 2048]  16.0 MiB                      wsync-list-weights
 *   NAME<TAB>DTYPE<TAB>4096,2048<TAB>16777216                wsync-list-weights --format tsv
 *   NAME                                                     ... --format names: no shapes
 *
 * Names and dtypes are stored in one block behind the entries. */
#include "listing_read.h"

#include "file.h"
#include "name_index.h"
#include "wsync/tool/buf.h"
#include "wsync/tool/str.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { MAX_BYTES = 256 << 20, MAX_LISTED = 4 << 20 };

static const int64_t max_dim = INT64_C(1) << 53;

bool ws_weight_name_ok(const char *name)
{
	if (!name || !*name || strlen(name) > WS_MAX_SHOWN_NAME)
		return false;
	for (const unsigned char *p = (const unsigned char *)name; *p; p++)
		if (*p < 0x20 || *p == 0x7f)
			return false;
	return true;
}

static const char *plain_dtype(const char *dtype)
{
	return strncmp(dtype, "torch.", 6) ? dtype : dtype + 6;
}

int ws_weight_from_json(const struct ws_json *node, struct ws_weight *w)
{
	const struct ws_json *shape = ws_json_get(node, "shape");
	*w = (struct ws_weight){ .name = ws_json_get_string(node, "name", NULL) };
	w->dtype = plain_dtype(ws_json_get_string(node, "dtype", ""));
	if (!ws_weight_name_ok(w->name) || ws_json_type(shape) != WS_JSON_ARRAY)
		return -1;
	for (const struct ws_json *d = ws_json_first(shape); d; d = ws_json_next(d), w->n_dims++)
		if (w->n_dims == WS_MAX_DIMS || !ws_json_int(d, &w->dims[w->n_dims]) ||
		    w->dims[w->n_dims] < 0)
			return -1;
	return *w->dtype && !ws_weight_name_ok(w->dtype) ? -1 : 0;
}

/* ---- collecting ---- */

struct entry {
	size_t name, dtype; /* offset in text */
	struct ws_weight weight;
};

struct reading {
	const char *what;
	struct entry *entries;
	size_t n, cap;
	struct ws_buf text;
	bool received;
};

static size_t keep(struct reading *r, const char *s, size_t n)
{
	const size_t at = r->text.len;
	ws_buf_add(&r->text, s, n);
	ws_buf_putc(&r->text, 0);
	return at;
}

static int add(struct reading *r, const struct ws_weight *w, struct ws_err *err)
{
	if (r->n == MAX_LISTED)
		return ws_err_set(err, WS_EINPUT, "%s: more than %d parameters", r->what,
		                  MAX_LISTED);
	if (r->n == r->cap) {
		const size_t cap = r->cap ? 2 * r->cap : 256;
		struct entry *more = realloc(r->entries, cap * sizeof *more);
		if (!more)
			return ws_oom(err);
		r->entries = more;
		r->cap = cap;
	}
	r->entries[r->n++] = (struct entry){ keep(r, w->name, strlen(w->name)),
		                             keep(r, w->dtype, strlen(w->dtype)), *w };
	return ws_buf_check(&r->text, r->what, err);
}

static int by_name(const void *a, const void *b)
{
	const struct ws_weight *const *x = a, *const *y = b;
	return strcmp((*x)->name, (*y)->name);
}

static int check_unique(const struct reading *r, const struct ws_weight *items, struct ws_err *err)
{
	const struct ws_weight **sorted = malloc((r->n + 1) * sizeof(const struct ws_weight *));
	int rc = 0;
	if (!sorted)
		return ws_oom(err);
	for (size_t i = 0; i < r->n; i++)
		sorted[i] = &items[i];
	qsort(sorted, r->n, sizeof(const struct ws_weight *), by_name);
	for (size_t i = 1; !rc && i < r->n; i++)
		if (!by_name(&sorted[i - 1], &sorted[i])) {
			rc = ws_err_set(err, WS_EINPUT, "%s: '%s' is listed twice", r->what,
			                ws_quote(sorted[i]->name).text);
			ws_err_hint(err, "save the listing of one endpoint and one rank");
		}
	free(sorted);
	return rc;
}

static int finish(struct reading *r, struct ws_weight_list *out, struct ws_err *err)
{
	if (r->n == 0)
		return ws_err_set(err, WS_EINPUT, "%s: lists no parameters", r->what);
	struct ws_weight *items = malloc(r->n * sizeof *items + r->text.len);
	if (!items)
		return ws_oom(err);
	char *text = (char *)(items + r->n);
	memcpy(text, r->text.data, r->text.len);
	for (size_t i = 0; i < r->n; i++) {
		items[i] = r->entries[i].weight;
		items[i].name = text + r->entries[i].name;
		items[i].dtype = text + r->entries[i].dtype;
	}
	if (check_unique(r, items, err)) {
		free(items);
		return -1;
	}
	*out = (struct ws_weight_list){ .items = items, .n = r->n, .received = r->received };
	return 0;
}

bool ws_weight_list_same(const struct ws_weight_list *a, const struct ws_weight_list *b)
{
	if (a->n != b->n || a->received != b->received)
		return false;
	for (size_t i = 0; a->items != b->items && i < a->n; i++) {
		const struct ws_weight *x = &a->items[i], *y = &b->items[i];
		if (strcmp(x->name, y->name) || strcmp(x->dtype, y->dtype) ||
		    x->n_dims != y->n_dims || x->shapeless != y->shapeless ||
		    memcmp(x->dims, y->dims, x->n_dims * sizeof x->dims[0]))
			return false;
	}
	return true;
}

int ws_weight_list_share(struct ws_weight_list *from, struct ws_weight_list *to)
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

void ws_weight_list_free(struct ws_weight_list *list)
{
	if (!list)
		return;
	if (!list->users || --*list->users == 0) {
		free(list->users);
		free(list->items);
		ws_json_free(list->priv); /* a parsed reply; entries borrow its strings */
	}
	*list = (struct ws_weight_list){ 0 };
}

/* ---- replies ---- */

static int read_weights(struct reading *r, const struct ws_json *weights, struct ws_err *err)
{
	struct ws_weight w;
	size_t i = 0;
	for (const struct ws_json *n = ws_json_first(weights); n; n = ws_json_next(n), i++) {
		if (ws_weight_from_json(n, &w))
			return ws_err_set(err, WS_EINPUT, "%s: weights[%zu] has no proper name and "
			                  "shape", r->what, i);
		if (add(r, &w, err))
			return -1;
	}
	return 0;
}

/* Reads only the first rank: all ranks have the same parameters. */
static int read_checksums(struct reading *r, const struct ws_json *ranks, struct ws_err *err)
{
	const struct ws_json *sums = ws_json_get(ws_json_first(ranks), "checksums");
	struct ws_weight w = { .dtype = "", .shapeless = true };
	for (const struct ws_json *n = ws_json_first(sums); n; n = ws_json_next(n)) {
		w.name = ws_json_key(n);
		if (!ws_weight_name_ok(w.name))
			return ws_err_set(err, WS_EINPUT, "%s: ranks[0] has a checksum without a "
			                  "proper name", r->what);
		if (add(r, &w, err))
			return -1;
	}
	return 0;
}

/* ---- lines ---- */

static int bad_line(const struct reading *r, size_t line, const char *why, struct ws_err *err)
{
	return ws_err_set(err, WS_EINPUT, "%s:%zu: %s", r->what, line, why);
}

static int read_json_line(struct reading *r, const char *s, size_t n, size_t line,
                          struct ws_err *err)
{
	struct ws_weight w;
	struct ws_err why;
	struct ws_json *root = ws_json_parse(s, n, "line", &why);
	if (!root)
		return bad_line(r, line, "neither JSON nor the name of a parameter", err);
	const char *type = ws_json_get_string(root, "type", "");
	int rc = 0;
	if (!strcmp(type, "tensor"))
		rc = ws_weight_from_json(root, &w)
		             ? bad_line(r, line, "no proper name and shape", err)
		             : add(r, &w, err);
	else if (!*type)
		rc = bad_line(r, line, "an object without \"type\" is no line of "
		              "wsync-list-weights --json", err);
	ws_json_free(root);
	return rc;
}

static const char *skip_blanks(const char *p)
{
	return p + strspn(p, " \t");
}

/* Parses "[4096, 2048]", "4096,2048" or "-"; NULL: none of these. */
static const char *read_shape(const char *p, struct ws_weight *w)
{
	const bool brackets = *p == '[';
	if (*p == '-' && (p[1] == 0 || strchr(" \t", p[1])))
		return p + 1;
	p += brackets;
	while (strchr("0123456789", *p) && *p) {
		char *end;
		if (w->n_dims == WS_MAX_DIMS)
			return NULL;
		errno = 0;
		const long long v = strtoll(p, &end, 10);
		if (errno || v > max_dim)
			return NULL;
		w->dims[w->n_dims++] = v;
		p = brackets ? skip_blanks(end) : end;
		if (*p != ',')
			break;
		p = brackets ? skip_blanks(p + 1) : p + 1;
	}
	if (brackets)
		return *p == ']' ? p + 1 : NULL;
	return w->n_dims ? p : NULL;
}

/* True for lines of tables without a parameter: blank, "==> URL <==", "310 tensors, 1.11 GiB". */
static bool is_decoration(const char *s)
{
	const size_t digits = strspn(s, "0123456789");
	return !*s || *s == '#' || !strncmp(s, "==> ", 4) ||
	       (digits && !strncmp(s + digits, " tensor", 7));
}

/* s: the line, NUL-terminated and writable. */
static int read_text_line(struct reading *r, char *s, size_t line, struct ws_err *err)
{
	struct ws_weight w = { .dtype = "" };
	enum ws_dtype dtype;
	s[strcspn(s, "\r")] = 0;
	if (is_decoration(s))
		return 0;
	char *rest = s + strcspn(s, " \t");
	const char *p = skip_blanks(rest);
	char *type = rest + (p - rest);
	w.name = s;
	w.shapeless = !*p;
	if (*rest)
		*rest = 0;
	if (!ws_weight_name_ok(w.name))
		return bad_line(r, line, "this is not the name of a parameter", err);
	if (*p && !strchr("[0123456789", *p)) {
		char *end = type + strcspn(type, " \t");
		p = skip_blanks(end);
		if (*p)
			*end = 0;
		if (*p && strcmp(type, "-"))
			w.dtype = plain_dtype(type);
		if (!*p)
			p = type; /* end of line: this word is the shape, or invalid */
	}
	if (*w.dtype && !ws_dtype_from_torch(w.dtype, &dtype))
		return bad_line(r, line, "NAME [DTYPE] SHAPE: there is no such type", err);
	if (!w.shapeless && !(p = read_shape(p, &w)))
		return bad_line(r, line, "NAME [DTYPE] SHAPE: the shape is not like [4096, 2048] "
		                "or 4096,2048", err);
	if (!w.shapeless && *p && !strchr(" \t", *p))
		return bad_line(r, line, "NAME [DTYPE] SHAPE: text behind the shape", err);
	return add(r, &w, err);
}

static int read_lines(struct reading *r, const char *text, size_t n, struct ws_err *err)
{
	struct ws_buf line;
	size_t number = 0;
	int rc = 0;
	ws_buf_init(&line, 1 << 20);
	for (size_t at = 0; !rc && at < n;) {
		const char *end = memchr(text + at, '\n', n - at);
		const size_t len = (end ? (size_t)(end - text) : n) - at;
		ws_buf_reset(&line);
		ws_buf_add(&line, text + at, len);
		number++;
		if (ws_buf_check(&line, "line", err))
			rc = bad_line(r, number, "a line of more than 1 MiB", err);
		else if (memchr(text + at, 0, len))
			rc = bad_line(r, number, "NUL character", err);
		else if (len && text[at] == '{')
			rc = read_json_line(r, text + at, len, number, err);
		else if (len)
			rc = read_text_line(r, line.data, number, err);
		at += len + 1;
	}
	ws_buf_free(&line);
	return rc;
}

static int read_any(struct reading *r, const char *text, size_t n, struct ws_err *err)
{
	struct ws_err why;
	size_t blank = 0;
	while (blank < n && memchr(" \t\r\n", text[blank], 4))
		blank++;
	const bool object = blank < n && text[blank] == '{';
	struct ws_json *root =
		object ? ws_json_parse_most(text, n, WS_JSON_LARGE, r->what, &why) : NULL;
	const struct ws_json *weights = ws_json_get(root, "weights");
	const struct ws_json *ranks = ws_json_get(root, "ranks");
	int rc;
	r->received = ws_json_get_bool(root, "received", false);
	if (ws_json_type(weights) == WS_JSON_ARRAY)
		rc = read_weights(r, weights, err);
	else if (ws_json_type(ranks) == WS_JSON_ARRAY)
		rc = read_checksums(r, ranks, err);
	else
		rc = read_lines(r, text, n, err);
	ws_json_free(root);
	return rc;
}

int ws_weight_list_parse(const char *text, size_t n, const char *what, struct ws_weight_list *out,
                         struct ws_err *err)
{
	struct reading r = { .what = what };
	ws_buf_init(&r.text, MAX_BYTES);
	int rc = read_any(&r, text, n, err);
	if (!rc)
		rc = finish(&r, out, err);
	free(r.entries);
	ws_buf_free(&r.text);
	return rc;
}

static int read_stdin(struct ws_buf *out, struct ws_err *err)
{
	for (;;) {
		char chunk[65536];
		const ssize_t n = read(STDIN_FILENO, chunk, sizeof chunk);
		if (n < 0 && errno == EINTR)
			continue;
		if (n < 0)
			return ws_err_errno(err, "read standard input");
		if (n == 0)
			return 0;
		if (ws_buf_add(out, chunk, (size_t)n))
			return ws_buf_check(out, "standard input", err);
	}
}

int ws_weight_list_read(const char *path, struct ws_weight_list *out, struct ws_err *err)
{
	const bool piped = !strcmp(path, "-");
	struct ws_buf text;
	*out = (struct ws_weight_list){ 0 };
	ws_buf_init(&text, MAX_BYTES);
	int rc = piped ? read_stdin(&text, err) : ws_file_read(path, &text, err);
	if (!rc)
		rc = ws_weight_list_parse(ws_buf_str(&text), text.len,
		                          piped ? "standard input" : path, out, err);
	ws_buf_free(&text);
	return rc;
}
