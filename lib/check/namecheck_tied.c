/* SPDX-License-Identifier: Apache-2.0 */
/* namecheck_tied.c - heads that share the memory of the embedding on the server
 * (tie_word_embeddings).
 *
 * Such a server ignores a head that it is sent. That is right if the head equals the embedding,
 * and loses a trained head if it does not, so every byte of the two is compared: a few new rows of
 * a vocabulary may be the only difference. A push does this in the background (tied_later). */
#include "namecheck_core.h"

#include "number.h"
#include "tied.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

enum { CHUNK = 1 << 20 }; /* bytes of the head per chunk */

/* ---- comparing ---- */

struct pair {
	const struct ws_tied *tied;
	unsigned char *bytes[2];
	double *numbers[2];      /* if the dtypes differ */
	size_t elements;         /* in a chunk */
};

static const struct ws_item *item_of(const struct pair *p, int i)
{
	return i ? p->tied->body : p->tied->head;
}

static size_t size_of(const struct ws_item *item)
{
	return ws_dtype_bits(item->dtype) / 8;
}

/* Numbers that differ only by rounding to one of the dtypes are equal. */
static bool same_number(const struct pair *p, double a, double b)
{
	return a == b || (isnan(a) && isnan(b)) || ws_number_round(p->tied->head->dtype, b) == a ||
	       ws_number_round(p->tied->body->dtype, a) == b;
}

static bool same_numbers(const struct pair *p, size_t n)
{
	for (int i = 0; i < 2; i++)
		ws_number_read(item_of(p, i)->dtype, p->bytes[i], n, p->numbers[i]);
	for (size_t i = 0; i < n; i++)
		if (!same_number(p, p->numbers[0][i], p->numbers[1][i]))
			return false;
	return true;
}

static int compare_chunk(const struct pair *p, uint64_t at, size_t n, bool *same,
                         struct ws_err *err)
{
	for (int i = 0; i < 2; i++) {
		const struct ws_item *item = item_of(p, i);
		if (ws_item_read(item, at * size_of(item), p->bytes[i], n * size_of(item), err))
			return -1;
	}
	*same = p->numbers[0] ? same_numbers(p, n)
	                      : memcmp(p->bytes[0], p->bytes[1], n * size_of(p->tied->head)) == 0;
	return 0;
}

static int compare_all(const struct pair *p, const struct ws_cancel *cancel, bool *same,
                       struct ws_err *err)
{
	const uint64_t count = p->tied->head->bytes / size_of(p->tied->head);
	for (uint64_t at = 0; *same && at < count; at += p->elements) {
		const size_t n = count - at < p->elements ? (size_t)(count - at) : p->elements;
		if (ws_cancelled(cancel))
			return ws_err_set(err, WS_ECANCELLED, "interrupted");
		if (compare_chunk(p, at, n, same, err))
			return -1;
	}
	return 0;
}

/* Tensors of different shapes are not compared here: the check of shapes reports them. */
static int compare(const struct ws_tied *t, const struct ws_cancel *cancel, bool *same,
                   struct ws_err *err)
{
	const bool numbers = t->head->dtype != t->body->dtype;
	struct pair p = { .tied = t };
	int rc = 0;
	*same = true;
	if (!ws_dims_equal(t->head->n_dims, t->head->dims, t->body->n_dims, t->body->dims))
		return 0;
	if (!size_of(t->head) || !size_of(t->body) ||
	    (numbers &&
	     !(ws_number_readable(t->head->dtype) && ws_number_readable(t->body->dtype)))) {
		*same = t->head->bytes == 0;
		return 0;
	}
	p.elements = CHUNK / size_of(t->head);
	for (int i = 0; i < 2; i++) {
		p.bytes[i] = malloc(p.elements * size_of(item_of(&p, i)));
		p.numbers[i] = numbers ? malloc(p.elements * sizeof *p.numbers[i]) : NULL;
		if (!p.bytes[i] || (numbers && !p.numbers[i]))
			rc = ws_oom(err);
	}
	if (!rc)
		rc = compare_all(&p, cancel, same, err);
	for (int i = 0; i < 2; i++) {
		free(p.bytes[i]);
		free(p.numbers[i]);
	}
	return rc;
}

/* ---- reporting ---- */

static struct ws_text reason(const struct ws_tied *t)
{
	return ws_textf("differs from %.250s, and the server's head is tied to the embedding "
	                "(tie_word_embeddings): "
	                "the server would drop this tensor, and the trained head would be lost",
	                t->body->name);
}

static struct ws_text remedy(const struct ws_tied *t)
{
	return ws_textf("start the server with \"tie_word_embeddings\": false in its config.json "
	                "and with %.250s in its checkpoint; or, if such a server runs, name its "
	                "config.json by {config} DIR", t->head->name);
}

int ws_tied_check(const struct ws_tied *t, const struct ws_cancel *cancel, struct ws_err *err)
{
	bool same;
	if (compare(t, cancel, &same, err))
		return -1;
	if (same)
		return 0;
	ws_err_set(err, WS_EMISMATCH, "%.250s %s", t->head->name, reason(t).s);
	return ws_err_hint(err, "%s", remedy(t).s);
}

static void report_tied(struct ws_check *c, const struct ws_item *head, const char *of,
                enum ws_severity severity, const char *how, const char *why)
{
	const struct ws_new_finding finding = {
		.verdict = WS_NAME_TIED, .severity = severity, .name = head->name,
		.param = of, .shared = why, .remedy = how,
	};
	ws_report_add(c->report, &finding, "%s", why);
}

/* A config that says "not tied" is trusted: if the server does not list the head, another rank has
 * it. */
static bool is_untied(const struct ws_config *config)
{
	int64_t tied;
	return config && ws_config_int(config, "tie_word_embeddings", &tied) && !tied;
}

int ws_check_tied_pair(struct ws_check *c, const struct ws_item *head, const struct ws_item *body,
                       const char *of)
{
	const struct ws_tied t = { head, body };
	bool same;
	const bool untied = !c->layout && is_untied(c->opts->config);
	const bool later = !untied && c->opts->tied_later && c->n_tied < WS_TIED_MAX;
	if (later)
		c->tied[c->n_tied++] = t;
	if (later || untied) {
		report_tied(c, head, of, WS_NOTE, NULL,
		    "the head is tied to the embedding: servers leave it aside and use "
		    "the embedding");
		return 0;
	}
	if (compare(&t, c->opts->cancel, &same, c->err))
		return -1;
	if (same)
		report_tied(c, head, of, WS_NOTE, NULL,
		    "the head is tied to the embedding and equal to it: servers leave it aside");
	else
		report_tied(c, head, of, WS_ERROR, remedy(&t).s, reason(&t).s);
	return 0;
}

/* ---- heads by their names ---- */

/* A choice may leave out one of the two. If an adapter changes either, a server that gets the other
 * has another model than was trained, whatever is left out: they are compared as if both were
 * sent. */
static bool is_touched(const struct ws_check *c, const struct ws_item *head,
                       const struct ws_item *body)
{
	const int sent = ws_check_chosen(c, head->name) + ws_check_chosen(c, body->name);
	return sent == 2 || (sent && (head->trained || body->trained));
}

static const struct ws_item *find_body(const struct ws_check *c, const struct ws_item *head)
{
	char name[WS_CHECK_NAME];
	for (unsigned k = 0; ws_embedding_of(head->name, k, name, sizeof name); k++) {
		const struct ws_item *body = ws_catalog_find(c->items, name);
		if (body && is_touched(c, head, body))
			return body;
	}
	return NULL;
}

void ws_tied_find(const struct ws_namecheck_opts *o, struct ws_findings *out)
{
	const struct ws_check c = { .opts = o, .items = o->items };
	if (!o->config || !ws_config_tied(o->config))
		return;
	for (size_t i = 0; i < ws_catalog_count(o->items) && out->n_tied < WS_TIED_MAX; i++) {
		const struct ws_item *head = ws_catalog_item(o->items, i),
				     *body = find_body(&c, head);
		if (body)
			out->tied[out->n_tied++] = (struct ws_tied){ head, body };
	}
}

/* Servers do not list a tied head with a shape, so a listed one is not tied. */
static bool is_shown(const struct ws_check *c, const char *head)
{
	char name[WS_CHECK_NAME];
	const struct ws_weight *w = NULL;
	if (c->listing && snprintf(name, sizeof name, "%s%s", c->server ? c->server->prefix : "",
	                           head) < (int)sizeof name)
		w = ws_names_find(&c->shown, name);
	return w && !w->shapeless;
}

int ws_check_tied_choice(struct ws_check *c)
{
	if (c->layout ? !ws_layout_tied(c->layout) :
	                !c->listing || !c->opts->config || !ws_config_tied(c->opts->config))
		return 0;
	for (size_t i = 0; i < c->n_items; i++) {
		const struct ws_item *head = ws_catalog_item(c->items, i),
				     *body = find_body(c, head);
		if (body && !(ws_check_chosen(c, head->name) && ws_check_chosen(c, body->name)) &&
		    !is_shown(c, head->name) && ws_check_tied_pair(c, head, body, body->name))
			return -1;
	}
	return 0;
}

/* ---- heads of a layout ---- */

int ws_check_tied(struct ws_check *c, size_t part)
{
	const struct ws_param *head = ws_layout_param(c->layout, c->parts[part].param);
	const struct ws_param *of = ws_layout_find_param(c->layout, head->tied_to);
	c->part_reported[part] = true;
	if (c->part_item[part] == WS_NONE || !of || !of->n_parts ||
	    c->part_meant[of->first] != WS_NONE || is_shown(c, head->name))
		return 0;
	const struct ws_item *item = c->sent[c->part_item[part]];
	if (c->part_item[of->first] != WS_NONE)
		return ws_check_tied_pair(c, item, c->sent[c->part_item[of->first]], of->name);
	c->part_reported[of->first] = true;
	report_tied(c, item, of->name, WS_ERROR, "send the embedding too: it is the head",
	    "the head is tied to the "
	    "embedding, which is not sent: servers leave the head aside, so neither changes");
	return 0;
}
