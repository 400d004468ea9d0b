/* SPDX-License-Identifier: Apache-2.0 */
#include "hang_list.h"

#include <stdlib.h>
#include <string.h>

enum { RUNS = 8, ENDPOINTS = 6 };

/* Numbers that follow each other become "3 to 5". */
struct runs {
	struct ws_buf *out;
	size_t first, last; /* ranks; first 0: none yet */
	size_t n;           /* runs written of this endpoint */
	size_t left_out;
};

static void put_run(struct runs *r)
{
	if (!r->first)
		return;
	if (r->n++ >= RUNS)
		r->left_out += r->last - r->first + 1;
	else if (r->last > r->first + 1)
		ws_buf_printf(r->out, "%s%zu to %zu", r->n > 1 ? ", " : "", r->first, r->last);
	else if (r->last > r->first)
		ws_buf_printf(r->out, "%s%zu, %zu", r->n > 1 ? ", " : "", r->first, r->last);
	else
		ws_buf_printf(r->out, "%s%zu", r->n > 1 ? ", " : "", r->first);
	r->first = 0;
}

static size_t count_of(const struct ws_hang *h, hang_of_rank pass, size_t endpoint)
{
	size_t n = 0;
	for (size_t i = 0; i < h->n_ranks; i++)
		n += h->ranks[i].endpoint == endpoint && pass(h, i);
	return n;
}

static void put_ranks_of(const struct ws_hang *h, hang_of_rank pass, size_t e, size_t n,
                         struct ws_buf *out)
{
	struct runs r = { .out = out };
	ws_buf_puts(out, n == 1 ? "rank " : "ranks ");
	for (size_t i = 0; i < h->n_ranks; i++) {
		if (h->ranks[i].endpoint != e || !pass(h, i))
			continue;
		if (r.first && r.last != i)
			put_run(&r);
		r.first = r.first ? r.first : i + 1;
		r.last = i + 1;
	}
	put_run(&r);
	if (r.left_out)
		ws_buf_printf(out, " and %zu more", r.left_out);
	ws_buf_printf(out, " of %s", h->endpoints[e].url);
}

size_t hang_list_ranks(const struct ws_hang *h, hang_of_rank pass, struct ws_buf *out)
{
	size_t total = 0, named = 0;
	/* the last one stands for the other senders */
	for (size_t e = 0; e <= h->n_endpoints; e++) {
		const size_t n = count_of(h, pass, e);
		total += n;
		if (!n || ++named > ENDPOINTS)
			continue;
		ws_buf_puts(out, named > 1 ? "; " : "");
		put_ranks_of(h, pass, e, n, out);
	}
	if (named > ENDPOINTS)
		ws_buf_printf(out, "; and of %zu more endpoints", named - ENDPOINTS);
	return total;
}

size_t hang_list_endpoints(const struct ws_hang *h, hang_of_endpoint pass, struct ws_buf *out)
{
	size_t n = 0;
	for (size_t i = 0; i < h->n_endpoints; i++)
		if (pass(h, i) && n++ < ENDPOINTS && out)
			ws_buf_printf(out, "%s%s", n > 1 ? ", " : "", h->endpoints[i].url);
	if (n > ENDPOINTS && out)
		ws_buf_printf(out, " and %zu more", n - ENDPOINTS);
	return n;
}

bool hang_any_rank(const struct ws_hang *h, hang_of_rank pass)
{
	for (size_t i = 0; i < h->n_ranks; i++)
		if (pass(h, i))
			return true;
	return false;
}

/* ---- who is where ---- */

bool hang_is_nccl(const struct ws_hang *h)
{
	return strcmp(h->backend, "nccl") == 0;
}

bool hang_is_awaited(const struct ws_hang *h, size_t endpoint)
{
	const enum ws_hang_request r = h->endpoints[endpoint].request;
	return r != WS_HANG_NO_REQUEST && r != WS_HANG_ANSWERED;
}

unsigned hang_present(const struct ws_hang *h, size_t endpoint)
{
	unsigned n = h->endpoints[endpoint].unnamed;
	for (size_t i = 0; i < h->n_ranks; i++)
		n += h->ranks[i].endpoint == endpoint &&
		     (h->ranks[i].store == WS_HANG_JOINED || h->ranks[i].store == WS_HANG_ASKED);
	return n;
}

bool hang_nobody_came(const struct ws_hang *h)
{
	return h->joined == 0 && h->n_peers == 0;
}

void ws_hang_fini(struct ws_hang *h)
{
	if (!h)
		return;
	free(h->endpoints);
	free(h->ranks);
	free(h->peers);
	*h = (struct ws_hang){ .endpoints = NULL };
}
