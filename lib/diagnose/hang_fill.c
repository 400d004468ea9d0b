/* SPDX-License-Identifier: Apache-2.0 */
/* hang_fill.c - the sentences of a judgement: facts take the places of their names.
 *
 * {who} {peer} {key} of those concerned, {address} {port} {group} of ours, {waited}
 * {still} {starved}, {ifname} (the variable that chooses an interface), {longer} (";
 * --option gives it longer", or nothing). */
#include "hang_list.h"

#include "wsync/tool/str.h"

#include <stdio.h>
#include <string.h>

/* Whom the row is about. */
struct who {
	hang_of_endpoint endpoint;
	hang_of_rank rank;
};

static const struct ws_hang_peer *foreigner(const struct ws_hang *h)
{
	for (size_t i = 0; i < h->n_peers; i++)
		if (h->peers[i].foreign)
			return &h->peers[i];
	return NULL;
}

static bool is_named(const char *at, const char *name, size_t n)
{
	return strlen(name) == n && memcmp(at, name, n) == 0;
}

static void put_who(const struct ws_hang *h, const struct who *w, struct ws_buf *out)
{
	if (w->rank && hang_any_rank(h, w->rank)) {
		hang_list_ranks(h, w->rank, out);
		return;
	}
	ws_buf_puts(out, w->rank ? "some ranks of " : "");
	hang_list_endpoints(h, w->endpoint, out);
}

static void put_fact(const struct ws_hang *h, const struct who *w, const char *at, size_t n,
                     struct ws_buf *out)
{
	const struct ws_hang_peer *peer = foreigner(h);
	char time[32];
	if (is_named(at, "who", n))
		put_who(h, w, out);
	else if (is_named(at, "address", n))
		ws_buf_puts(out, h->address);
	else if (is_named(at, "port", n))
		ws_buf_printf(out, "%u", (unsigned)h->port);
	else if (is_named(at, "group", n))
		ws_buf_puts(out, h->group);
	else if (is_named(at, "peer", n))
		ws_buf_puts(out, peer ? peer->address : "a peer");
	else if (is_named(at, "key", n))
		ws_buf_puts(out, peer ? peer->waits_for : "");
	else if (is_named(at, "still", n))
		ws_buf_puts(out, ws_format_duration(time, sizeof time, h->still_ns));
	else if (is_named(at, "starved", n))
		ws_buf_puts(out, ws_format_duration(time, sizeof time, h->starved_ns));
	else if (is_named(at, "waited", n))
		ws_buf_puts(out, ws_format_duration(time, sizeof time, h->waited_ns));
	else if (is_named(at, "ifname", n))
		ws_buf_puts(out, hang_is_nccl(h) ? "NCCL_SOCKET_IFNAME" : "GLOO_SOCKET_IFNAME");
	else if (is_named(at, "longer", n) && h->option)
		ws_buf_printf(out, "; --%s gives it longer", h->option);
}

void hang_fill(char *dst, size_t n, const struct ws_hang *h, hang_of_endpoint endpoint,
               hang_of_rank rank, const char *text)
{
	const struct who w = { endpoint, rank };
	struct ws_buf out;
	ws_buf_init(&out, 8192);
	while (*text) {
		const size_t plain = strcspn(text, "{"), name = strcspn(text + plain, "}");
		ws_buf_add(&out, text, plain);
		text += plain;
		if (!*text)
			break;
		put_fact(h, &w, text + 1, name - 1, &out);
		text += name + 1;
	}
	snprintf(dst, n, "%s", ws_buf_str(&out));
	ws_buf_free(&out);
}
