/* SPDX-License-Identifier: Apache-2.0 */
#include "parts.h"

#include "wsync/endpoint.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

/* SERVERS is small, because each server is compared with all before it. */
enum { NAME = 4096, URL = 4096, HEX = 16, SERVERS = 4096, EXPANDED_MAX = 256 << 20 };

/* ---- lists ----------------------------------------------------------------------------------- */

/* Makes room for one more item: the size doubles at powers of two. */
static void *grow(void *items, size_t n, size_t size)
{
	return n & (n - 1) ? items : reallocarray(items, n ? 2 * n : 1, size);
}

int ws_parts_add(struct ws_parts *p, const char *name, bool sent, struct ws_err *err)
{
	struct ws_part_tensor *more = grow(p->tensors, p->n_tensors, sizeof *more);
	if (!more)
		return ws_oom(err);
	p->tensors = more;
	char *copy = strdup(name);
	if (!copy)
		return ws_oom(err);
	p->tensors[p->n_tensors++] = (struct ws_part_tensor){ copy, sent };
	return 0;
}

/* Orders by name; tensors of one name: the sent one first. */
static int by_name(const void *a, const void *b)
{
	const struct ws_part_tensor *x = a, *y = b;
	const int order = strcmp(x->name, y->name);
	return order ? order : (int)y->sent - (int)x->sent;
}

void ws_parts_merge(struct ws_parts *p)
{
	size_t n = 0;
	if (p->n_tensors)
		qsort(p->tensors, p->n_tensors, sizeof *p->tensors, by_name);
	for (size_t i = 0; i < p->n_tensors; i++) {
		if (n && strcmp(p->tensors[n - 1].name, p->tensors[i].name) == 0)
			free(p->tensors[i].name);
		else
			p->tensors[n++] = p->tensors[i];
	}
	p->n_tensors = n;
}

size_t ws_parts_left(const struct ws_parts *p, const char **first)
{
	size_t n = 0;
	*first = NULL;
	for (size_t i = 0; i < p->n_tensors; i++)
		if (!p->tensors[i].sent && n++ == 0)
			*first = p->tensors[i].name;
	return n;
}

static struct ws_part_server *find_server(const struct ws_parts *p, const char *url)
{
	for (size_t i = 0; i < p->n_servers; i++)
		if (ws_endpoint_same(p->servers[i].url, url))
			return &p->servers[i];
	return NULL;
}

const struct ws_part_server *ws_parts_server(const struct ws_parts *p, const char *url)
{
	return find_server(p, url);
}

int ws_parts_set_server(struct ws_parts *p, const char *url, uint64_t instance, struct ws_err *err)
{
	struct ws_part_server *s = find_server(p, url);
	if (s) {
		s->instance = instance;
		return 0;
	}
	struct ws_part_server *more = grow(p->servers, p->n_servers, sizeof *more);
	if (!more)
		return ws_oom(err);
	p->servers = more;
	char *copy = strdup(url);
	if (!copy)
		return ws_oom(err);
	p->servers[p->n_servers++] = (struct ws_part_server){ copy, instance };
	return 0;
}

void ws_parts_free(struct ws_parts *p)
{
	for (size_t i = 0; i < p->n_tensors; i++)
		free(p->tensors[i].name);
	for (size_t i = 0; i < p->n_servers; i++)
		free(p->servers[i].url);
	free(p->tensors);
	free(p->servers);
	*p = (struct ws_parts){ 0 };
}

/* ---- text ------------------------------------------------------------------------------------ */

void ws_parts_write(const struct ws_parts *p, struct ws_buf *out)
{
	const char *before = "";
	for (size_t i = 0; i < p->n_servers; i++)
		ws_buf_printf(out, "@%016" PRIx64 " %s\n", p->servers[i].instance,
		              p->servers[i].url);
	for (size_t i = 0; i < p->n_tensors; i++) {
		const char *name = p->tensors[i].name;
		size_t k = 0;
		while (name[k] && name[k] == before[k])
			k++;
		while (k && (name[k] & 0xc0) == 0x80) /* cut only between UTF-8 characters */
			k--;
		ws_buf_printf(out, "%c%zu ", p->tensors[i].sent ? '+' : '-', k);
		ws_buf_puts(out, name + k);
		ws_buf_putc(out, '\n');
		before = name;
	}
}

static bool is_plain(const char *s, size_t n)
{
	for (size_t i = 0; i < n; i++)
		if ((unsigned char)s[i] < 0x20 || s[i] == 0x7f)
			return false;
	return true;
}

static int read_server(const char *line, size_t n, struct ws_parts *p, struct ws_err *err)
{
	char digits[HEX + 1], url[URL + 1], *end;
	if (p->n_tensors || p->n_servers == SERVERS || n < HEX + 3 || n - HEX - 2 > URL ||
	    line[1 + HEX] != ' ' || !is_plain(line, n))
		return -1;
	memcpy(digits, line + 1, HEX);
	digits[HEX] = 0;
	const uint64_t instance = strtoull(digits, &end, 16);
	if (strspn(digits, "0123456789abcdef") != HEX)
		return -1;
	memcpy(url, line + HEX + 2, n - HEX - 2);
	url[n - HEX - 2] = 0;
	return find_server(p, url) ? -1 : ws_parts_set_server(p, url, instance, err);
}

/* name: the name in the line before; becomes the name in this line. */
static int read_tensor(const char *line, size_t n, struct ws_parts *p, char name[NAME + 1],
                       struct ws_err *err)
{
	size_t k = 0, at = 1;
	char before[NAME + 1];
	while (at < n && line[at] >= '0' && line[at] <= '9' && k <= NAME)
		k = 10 * k + (size_t)(line[at++] - '0');
	if (at == 1 || at >= n || line[at] != ' ' || k > strlen(name) ||
	    n - at - 1 > NAME - k || !is_plain(line, n))
		return -1;
	memcpy(before, name, strlen(name) + 1);
	memcpy(name + k, line + at + 1, n - at - 1);
	name[k + n - at - 1] = 0;
	return *name && strcmp(before, name) < 0 ? ws_parts_add(p, name, line[0] == '+', err) : -1;
}

int ws_parts_read(const char *text, size_t n, struct ws_parts *out, struct ws_err *err)
{
	char name[NAME + 1] = "";
	size_t expanded = 0;
	int rc = 0;
	*out = (struct ws_parts){ 0 };
	for (const char *end = text + n, *next; rc == 0 && text < end; text = next + 1) {
		next = memchr(text, '\n', (size_t)(end - text));
		if (!next)
			rc = -1;
		else if (*text == '@')
			rc = read_server(text, (size_t)(next - text), out, err);
		else
			rc = *text == '+' || *text == '-' ?
			             read_tensor(text, (size_t)(next - text), out, name, err) :
			             -1;
		expanded += strlen(name) + 1;
		rc = expanded > EXPANDED_MAX ? -1 : rc;
		if (!next)
			break;
	}
	if (rc == 0)
		return 0;
	ws_parts_free(out);
	return ws_err_set(err, WS_EINPUT, "cannot read the list of tensors that a round has sent");
}
