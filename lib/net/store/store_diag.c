/* SPDX-License-Identifier: Apache-2.0 */
/* store_diag.c - reports a rendezvous: which ranks joined, and which keys they wait for. */
#include "store_core.h"

#include "wsync/tool/str.h"

#include <stdlib.h>
#include <string.h>

enum { LEFT_AT_MOST = 4096, STRANGERS_AT_MOST = 64 };

/* True if the key belongs to no group of this name. */
static bool is_foreign(const char *key, const char *group)
{
	const size_t n = group ? strlen(group) : 0;
	const char *at = key;
	while (n && (at = strstr(at, group)) && !(at > key && at[-1] == '/' && at[n] == '/'))
		at++;
	return n && !at;
}

static void fill_peer(const struct ws_store_conn *c, struct ws_store_peer *p)
{
	*p = (struct ws_store_peer){ .connected = true, .joined = c->joined, .asked = c->asked,
	                             .rank = c->rank, .sender = c->sender,
	                             .epoch = ws_store_conn_epoch(c) };
	memcpy(p->address, c->address, sizeof p->address);
	const struct ws_store_entry *e = ws_store_keys_missing(&c->waiter);
	if (!e)
		return;
	ws_printable(p->waits_for, sizeof p->waits_for, e->key, e->n_key);
	p->foreign = is_foreign(p->waits_for, c->core->group);
}

void ws_store_remember_left(const struct ws_store_conn *c)
{
	struct ws_store_core *core = c->core;
	if (core->n_left >= (c->member ? LEFT_AT_MOST : STRANGERS_AT_MOST))
		return;
	struct ws_store_peer *left = realloc(core->left, (core->n_left + 1) * sizeof *left);
	if (!left)
		return; /* the report then lacks this peer */
	core->left = left;
	fill_peer(c, &left[core->n_left]);
	left[core->n_left++].connected = false;
}

int ws_store_core_report(const struct ws_store_core *core, struct ws_store_report *out,
                         struct ws_err *err)
{
	const size_t n = core->n_left + core->n_conns;
	*out = (struct ws_store_report){ .joined = core->joined, .refused = core->refused };
	out->peers = calloc(n + 1, sizeof *out->peers);
	if (!out->peers)
		return ws_oom(err);
	for (const struct ws_store_conn *c = core->first; c; c = c->next)
		fill_peer(c, &out->peers[out->n_peers++]);
	for (size_t i = 0; i < core->n_left; i++)
		out->peers[out->n_peers++] = core->left[i];
	return 0;
}

void ws_store_report_fini(struct ws_store_report *r)
{
	if (!r)
		return;
	free(r->peers);
	*r = (struct ws_store_report){ .peers = NULL };
}
