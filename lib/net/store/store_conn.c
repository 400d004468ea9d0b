/* SPDX-License-Identifier: Apache-2.0 */
/* store_conn.c - the connections of a store: their limits, and when they are closed.
 *
 * A connection is never closed in the middle of an operation: it is marked as doomed, and the
 * caller closes it when it handles the due connections. */
#include "store_core.h"

#include "wsync/tool/str.h"

#include <stdlib.h>
#include <string.h>

enum {
	BUFFER_MAX = 64 << 20,   /* for one connection and direction; a request may use half */
	BUFFER_KEPT = 64 << 10,  /* larger buffers are freed once they are empty */
	DEFAULT_MAX_BYTES = 256 << 20,
	CONNECTIONS_PER_RANK = 8,
	SPARE_CONNECTIONS = 64,
};

static void reply_woken(void *ctx, struct ws_store_waiter *who)
{
	(void)ctx;
	struct ws_store_conn *c =
		(struct ws_store_conn *)((char *)who - offsetof(struct ws_store_conn, waiter));
	ws_store_put_u8(&c->tx, WS_STORE_WOKEN);
	ws_store_conn_due(c);
}

static void notify_change(void *ctx)
{
	const struct ws_store_core *core = ctx;
	if (core->changed)
		core->changed(core->ctx);
}

int ws_store_core_init(struct ws_store_core *core, const struct ws_store_opts *opts,
                       struct ws_err *err)
{
	*core = (struct ws_store_core){
		.world_size = opts->world_size,
		.senders = opts->senders ? opts->senders : 1,
		.max_connections = opts->max_connections,
		.request_ns = opts->request_ns > 0 ? opts->request_ns : 10 * WS_NS_PER_S,
		.log = opts->log,
		.trouble = WS_ERR_INIT,
	};
	if (!core->max_connections)
		core->max_connections = CONNECTIONS_PER_RANK * opts->world_size + SPARE_CONNECTIONS;
	if (opts->group && !(core->group = strdup(opts->group)))
		return ws_oom(err);
	if (ws_store_keys_init(&core->keys, opts->max_bytes ? opts->max_bytes : DEFAULT_MAX_BYTES,
	                       err)) {
		free(core->group);
		return -1;
	}
	core->keys.woken = reply_woken;
	core->keys.appeared = notify_change;
	core->keys.ctx = core;
	return 0;
}

void ws_store_core_fini(struct ws_store_core *core)
{
	while (core->first)
		ws_store_conn_close(core->first);
	ws_store_keys_fini(&core->keys);
	free(core->left);
	free(core->group);
}

static bool may_have_twins(const struct ws_store_conn *c)
{
	return c->scan.epoch != WS_EPOCH_NONE && c->scan.epoch != WS_EPOCH_C;
}

/* Closes the longest silent connection, so that scanners cannot block peers. Real peers send at
 * once; only torch 2.1 and older has silent connections. */
static bool make_room(struct ws_store_core *core)
{
	struct ws_store_conn *oldest = NULL;
	for (struct ws_store_conn *c = core->first; c; c = c->next) {
		if (may_have_twins(c))
			return false;
		if (!oldest && c->silent && !c->doomed)
			oldest = c;
	}
	if (oldest) {
		core->refused++;
		ws_store_conn_doom(oldest, "it is silent, and a new connection needs its place");
	}
	return oldest != NULL;
}

struct ws_store_conn *ws_store_conn_open(struct ws_store_core *core, const char *address)
{
	struct ws_store_conn *c = NULL;
	const bool full = core->n_conns >= core->max_connections;
	if ((full && !make_room(core)) || !(c = calloc(1, sizeof *c))) {
		core->refused++;
		ws_log(core->log, 1, "store: %s refused: %u connections are open", address,
		       core->n_conns);
		return NULL;
	}
	c->core = core;
	c->fd = -1;
	c->rank = -1;
	c->silent = true;
	strncpy(c->address, address, sizeof c->address - 1);
	const char *colon = strrchr(c->address, ':');
	c->n_ip = colon ? (size_t)(colon - c->address) : strlen(c->address);
	ws_buf_init(&c->rx, BUFFER_MAX);
	ws_buf_init(&c->tx, BUFFER_MAX);
	c->prev = core->last;
	*(core->last ? &core->last->next : &core->first) = c;
	core->last = c;
	core->n_conns++;
	return c;
}

static void forget_due(struct ws_store_core *core, struct ws_store_conn *c)
{
	struct ws_store_conn **at = &core->due;
	while (*at && *at != c)
		at = &(*at)->next_due;
	if (*at)
		*at = c->next_due;
	c->due = false;
}

static void set_partial(struct ws_store_conn *c, int64_t since)
{
	c->core->n_partial += (unsigned)(since != 0) - (unsigned)(c->partial_since != 0);
	c->partial_since = since;
}

/* Counts buffered bytes; closes the connection that exceeds the common limit. */
static void count_buffers(struct ws_store_conn *c)
{
	struct ws_store_core *core = c->core;
	const size_t now = c->rx.cap + c->tx.cap;
	core->n_buffered += now - c->n_buffered;
	const bool grew = now > c->n_buffered;
	c->n_buffered = now;
	if (grew && core->n_buffered > core->keys.max_bytes)
		ws_store_conn_doom(c, "too much is buffered for all peers together");
}

static void shrink(struct ws_buf *b)
{
	if (b->len == 0 && b->cap > BUFFER_KEPT)
		ws_buf_free(b);
}

void ws_store_conn_close(struct ws_store_conn *c)
{
	struct ws_store_core *core = c->core;
	ws_store_watch_left(c);
	ws_store_keys_forget(&core->keys, &c->waiter);
	set_partial(c, 0);
	if (c->due)
		forget_due(core, c);
	*(c->prev ? &c->prev->next : &core->first) = c->next;
	*(c->next ? &c->next->prev : &core->last) = c->prev;
	core->n_conns--;
	core->n_buffered -= c->n_buffered;
	ws_buf_free(&c->rx);
	ws_buf_free(&c->tx);
	free(c);
}

void ws_store_conn_due(struct ws_store_conn *c)
{
	if (c->tx.failed && !c->doomed)
		ws_store_conn_doom(c, "it does not read its replies");
	if (c->due)
		return;
	c->due = true;
	c->next_due = c->core->due;
	c->core->due = c;
}

void ws_store_conn_doom(struct ws_store_conn *c, const char *why)
{
	if (c->doomed)
		return;
	c->doomed = true;
	ws_log(c->core->log, 1, "store: %s dropped: %s", c->address, why);
	if (c->joined) {
		char name[96];
		ws_store_watch_trouble(c->core, c->rank, NULL,
		                       "%s was dropped from the rendezvous: %s",
		                       ws_store_watch_name(c, name, sizeof name), why);
	}
	ws_store_conn_due(c);
}

static void log_request(const struct ws_store_conn *c, struct ws_store_fields f)
{
	const struct ws_log *log = c->core->log;
	if (!log || log->level < 2)
		return;
	const char kind = *ws_store_op_fields(c->scan.op);
	struct ws_bytes key = { "", 0 };
	if (kind == 'K' || kind == 'M')
		key = ws_store_take_i64(&f) > 0 ? ws_store_take_bytes(&f) : key;
	else if (kind == 'k')
		key = ws_store_take_bytes(&f);
	char text[160];
	ws_log(log, 2, "store: %s %s %s", c->address, ws_store_op_name(c->scan.op),
	       ws_printable(text, sizeof text, key.data, key.n));
}

/* Executes the request at rx.data + at if it is complete; true: there may be another. */
static bool execute_one(struct ws_store_conn *c, size_t *at)
{
	const char *data = c->rx.data + *at;
	if (c->scan.epoch == WS_EPOCH_OLD && !c->scan.fields && data[0] > WS_STORE_SHARED_OPCODES)
		c->scan.twin = ws_store_conn_has_twin(c);
	switch (ws_store_scan(&c->scan, data, c->rx.len - *at)) {
	case WS_SCAN_MORE:
		return false;
	case WS_SCAN_BAD:
		ws_store_conn_doom(c, "it sent an invalid request, or exceeded the limits");
		return false;
	case WS_SCAN_DONE:
		break;
	}
	c->silent = c->silent && c->scan.op == WS_OP_WATCH_KEY;
	log_request(c, (struct ws_store_fields){ data + 1 });
	ws_store_exec(c, c->scan.op, (struct ws_store_fields){ data + 1 });
	*at += c->scan.at;
	ws_store_scan_next(&c->scan);
	return !c->doomed && *at < c->rx.len;
}

void ws_store_conn_run(struct ws_store_conn *c, int64_t now)
{
	size_t at = 0;
	c->core->now = now;
	if (c->rx.failed)
		ws_store_conn_doom(c, "out of memory");
	if (c->rx.len && !c->doomed)
		while (execute_one(c, &at))
			;
	ws_buf_consume(&c->rx, at);
	if (c->rx.len == 0)
		set_partial(c, 0);
	else if (at || !c->partial_since)
		set_partial(c, now);
	shrink(&c->rx);
	count_buffers(c);
	if (c->tx.len)
		ws_store_conn_due(c);
}

void ws_store_conn_sent(struct ws_store_conn *c, size_t n)
{
	if (n)
		ws_buf_consume(&c->tx, n);
	shrink(&c->tx);
	count_buffers(c);
}

void ws_store_core_tick(struct ws_store_core *core, int64_t now)
{
	core->now = now;
	for (struct ws_store_conn *c = core->first; c; c = c->next) {
		if (c->partial_since && now - c->partial_since > core->request_ns)
			ws_store_conn_doom(c, "a request that it began was not completed in time");
		if (c->gloo_since)
			ws_store_watch_decide(c);
	}
}

/* The second connection comes after the first, from the same host. */
bool ws_store_conn_has_twin(const struct ws_store_conn *c)
{
	for (const struct ws_store_conn *o = c->next; o; o = o->next)
		if (o->silent && o->n_ip == c->n_ip && memcmp(o->address, c->address, c->n_ip) == 0)
			return true;
	return false;
}

char ws_store_conn_epoch(const struct ws_store_conn *c)
{
	switch (c->scan.epoch) {
	case WS_EPOCH_A:
		return 'A';
	case WS_EPOCH_B:
		return 'B';
	case WS_EPOCH_C:
		return 'C';
	case WS_EPOCH_OLD:
		return ws_store_conn_has_twin(c) ? 'A' : 'B';
	case WS_EPOCH_NONE:
		break;
	}
	return '?';
}
