/* SPDX-License-Identifier: Apache-2.0 */
#include "round.h"

#include "wsync/tool/json.h"
#include "wsync/tool/str.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { NAMED = 8 };

/* ---- reading and writing --------------------------------------------------------------------- */

static void read_json(const struct ws_json *node, struct ws_round *out, struct ws_parts *parts)
{
	*out = (struct ws_round){ 0 };
	if (parts)
		*parts = (struct ws_parts){ 0 };
	const int64_t senders = ws_json_get_int(node, "senders", 0);
	const char *id = ws_json_get_string(node, "id", ""),
		   *host = ws_json_get_string(node, "host", "");
	int64_t i;
	if (senders < 1 || senders > WS_ROUND_SENDERS)
		return;
	out->senders = (unsigned)senders;
	for (const struct ws_json *k = ws_json_first(ws_json_get(node, "had")); k;
	     k = ws_json_next(k))
		if (ws_json_int(k, &i) && i >= 1 && i <= senders)
			out->had[i] = true;
	if (strlen(id) < sizeof out->id) /* a longer ID is not ours */
		ws_printable(out->id, sizeof out->id, id, strlen(id));
	ws_printable(out->host, sizeof out->host, host, strlen(host));
	out->begun = ws_json_get_int(node, "begun", 0);
	out->pid = ws_json_get_int(node, "pid", 0);
	const char *text = ws_json_get_string(node, "parts", "");
	if (parts)
		(void)ws_parts_read(text, strlen(text), parts, NULL);
}

void ws_round_read(const char *text, size_t n, struct ws_round *out, struct ws_parts *parts)
{
	struct ws_json *root = ws_json_parse(text, n, "round", NULL);
	read_json(root, out, parts);
	ws_json_free(root);
}

static void write_parts(struct ws_jw *w, const struct ws_parts *parts)
{
	struct ws_buf text;
	ws_buf_init(&text, WS_PARTS_TEXT);
	ws_parts_write(parts, &text);
	if (text.failed)
		w->out->failed = 1;
	else
		ws_jw_strn(w, "parts", ws_buf_str(&text), text.len);
	ws_buf_free(&text);
}

void ws_round_write(struct ws_jw *w, const struct ws_round *r, const struct ws_parts *parts)
{
	ws_jw_object(w, NULL);
	ws_jw_str(w, "id", r->id);
	ws_jw_uint(w, "senders", r->senders);
	ws_jw_array(w, "had");
	for (unsigned i = 1; i <= r->senders; i++)
		if (r->had[i])
			ws_jw_uint(w, NULL, i);
	ws_jw_end_array(w);
	ws_jw_int(w, "begun", r->begun);
	ws_jw_int(w, "pid", r->pid);
	ws_jw_str(w, "host", r->host);
	if (parts)
		write_parts(w, parts);
	ws_jw_end_object(w);
}

/* ---- turns ----------------------------------------------------------------------------------- */

unsigned ws_round_count(const struct ws_round *r)
{
	unsigned n = 0;
	for (unsigned i = 1; i <= r->senders; i++)
		n += r->had[i];
	return n;
}

bool ws_round_is_half(const struct ws_round *r)
{
	const unsigned n = ws_round_count(r);
	return n > 0 && n < r->senders;
}

bool ws_round_has_others(const struct ws_round *r, unsigned sender)
{
	return ws_round_count(r) > (sender <= r->senders && r->had[sender]);
}

bool ws_round_is(const struct ws_round *r, const char *id, unsigned senders)
{
	return *r->id && r->senders == senders && strcmp(r->id, id) == 0;
}

void ws_round_begin(struct ws_round *r, const char *id, unsigned senders)
{
	*r = (struct ws_round){ .senders = senders, .begun = time(NULL), .pid = getpid() };
	char host[sizeof r->host] = "";
	gethostname(host, sizeof host - 1);
	ws_printable(r->host, sizeof r->host, host, strlen(host));
	snprintf(r->id, sizeof r->id, "%s", id);
}

/* ---- sentences ------------------------------------------------------------------------------- */

struct text {
	char *dst;
	size_t n, used;
};

__attribute__((format(printf, 2, 3))) static void add(struct text *t, const char *fmt, ...)
{
	va_list ap;
	va_start(ap, fmt);
	const int n = t->used < t->n ? vsnprintf(t->dst + t->used, t->n - t->used, fmt, ap) : 0;
	va_end(ap);
	t->used += n > 0 ? (size_t)n : 0;
}

static void add_age(struct text *t, int64_t since)
{
	const int64_t age = time(NULL) - since, s = age > 0 ? age : 0;
	if (s < 120)
		add(t, "%" PRId64 " s ago", s);
	else if (s < 7200)
		add(t, "%" PRId64 " min ago", s / 60);
	else
		add(t, "%" PRId64 " h ago", s / 3600);
}

void ws_round_describe(const struct ws_round *r, char *dst, size_t n)
{
	struct text t = { dst, n, 0 };
	dst[0] = 0;
	if (*r->id)
		add(&t, "round %.200s of %u senders", r->id, r->senders);
	else
		add(&t, "a round of %u senders without an ID", r->senders);
	if (r->begun <= 0)
		return;
	add(&t, " (begun ");
	add_age(&t, r->begun);
	if (r->pid > 0)
		add(&t, " by process %" PRId64 "%s%s", r->pid, *r->host ? " on " : "", r->host);
	add(&t, ")");
}

/* Adds "senders 1, 3, 4": those that had a turn, or had none. */
static void add_senders(struct text *t, const struct ws_round *r, bool had)
{
	const unsigned n = had ? ws_round_count(r) : r->senders - ws_round_count(r);
	unsigned k = 0;
	add(t, "sender%s", n == 1 ? "" : "s");
	for (unsigned i = 1; i <= r->senders; i++)
		if (r->had[i] == had && k++ < NAMED)
			add(t, "%s %u", k > 1 ? "," : "", i);
	if (k > NAMED)
		add(t, " and %u more", k - NAMED);
}

void ws_round_list(const struct ws_round *r, char *dst, size_t n)
{
	struct text t = { dst, n, 0 };
	dst[0] = 0;
	add_senders(&t, r, true);
	add(&t, " had a turn, ");
	add_senders(&t, r, false);
	add(&t, " had none");
}
