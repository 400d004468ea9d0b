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
	SPARE_CONNECTIONS = 256,
};

static const int64_t fresh_ns = WS_NS_PER_S;

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

static bool same_host(const struct ws_store_conn *a, const struct ws_store_conn *b)
{
	return a->n_ip == b->n_ip && memcmp(a->address, b->address, a->n_ip) == 0;
}

/* True if a silent connection is the second one of a client of torch 2.0 or older: each client that
 * came before it, from the same host, has one. */
static bool is_twin(const struct ws_store_conn *c)
{
	unsigned without = 0;
	for (const struct ws_store_conn *o = c->core->first; o != c; o = o->next) {
		if (!same_host(o, c) || o->doomed)
			continue;
		if (o->silent)
			without -= without > 0;
		else if (o->joined && o->scan.epoch != WS_EPOCH_C)
			without++;
	}
	return without > 0;
}

/* What a connection has done, least first. FRESH: it was opened a moment ago, and may be a rank's
 * whose first bytes are not read yet. */
enum { SILENT, ONLY_ASKS, FRESH, JOINED, TWIN, MEMBER, WORTHS };

/* old: there are clients of torch 2.0 or older. */
static int worth(const struct ws_store_conn *c, bool old)
{
	if (c->member || c->doomed)
		return MEMBER;
	if (c->joined)
		return JOINED;
	if (old && c->silent && is_twin(c))
		return TWIN;
	if (c->core->now - c->since < fresh_ns)
		return FRESH;
	return c->silent ? SILENT : ONLY_ASKS;
}

/* Closes the oldest of the connections that are worth least, so that strangers cannot keep ranks
 * out: a rank joins at once, and becomes a member soon after. New connections take the place of
 * those that joined until they are half of all. */
static bool make_room(struct ws_store_core *core)
{
	struct ws_store_conn *oldest[WORTHS] = { NULL }, *victim = NULL;
	unsigned n_fresh = 0;
	bool old = false;
	for (const struct ws_store_conn *c = core->first; c && !old; c = c->next)
		old = c->joined && c->scan.epoch != WS_EPOCH_C;
	for (struct ws_store_conn *c = core->first; c && !oldest[SILENT]; c = c->next) {
		const int w = worth(c, old);
		oldest[w] = oldest[w] ? oldest[w] : c;
		n_fresh += w == FRESH;
	}
	const bool many = n_fresh > core->max_connections / 2;
	const int order[] = { SILENT, ONLY_ASKS, many ? FRESH : JOINED, many ? JOINED : FRESH,
		              TWIN };
	for (size_t i = 0; i < sizeof order / sizeof order[0] && !victim; i++)
		victim = oldest[order[i]];
	if (victim) {
		core->refused++;
		ws_store_conn_doom(victim, "too many connections, of which it did least");
	}
	return victim != NULL;
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
	c->id = ++core->last_id;
	c->since = core->now;
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

/* Returns true if it grew. */
static bool count_one(struct ws_store_conn *c)
{
	const size_t before = c->n_buffered;
	c->n_buffered = c->rx.cap + c->tx.cap;
	c->core->n_buffered += c->n_buffered - before;
	return c->n_buffered > before;
}

/* Counts buffered bytes. Beyond the common limit the largest connection is closed, of a member only
 * if no other has any. */
static void count_buffers(struct ws_store_conn *c)
{
	struct ws_store_core *core = c->core;
	struct ws_store_conn *largest = c;
	if (!count_one(c) || core->n_buffered <= core->keys.max_bytes)
		return;
	for (struct ws_store_conn *o = core->first; o; o = o->next)
		if (!o->doomed && (o->member != largest->member ?
		                           largest->member && o->n_buffered :
		                           o->n_buffered > largest->n_buffered))
			largest = o;
	ws_store_conn_doom(largest, "too much is buffered for all peers together");
	ws_buf_free(&largest->rx);
	ws_buf_free(&largest->tx);
	count_one(largest);
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
	if (!c->joined || !c->member) {
		ws_store_watch_stranger(c->core, c->address, why);
		c->joined = false;
	} else {
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
		if (o->silent && same_host(o, c))
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
