/* SPDX-License-Identifier: Apache-2.0 */
/* gloo_mesh.c - forms a group: publishes our address, reads the others' addresses, connects.
 *
 * Peers build their mesh in a constructor, in rank order, blocking on each pair. Therefore we
 * listen before we publish, publish before we read, and connect to every peer that we should
 * connect to, needed or not. None of our steps waits for a step that a peer makes after its own
 * publishing. A peer that connects to us needs no accept: the kernel's backlog is enough. So no
 * mixture of eager, lazy and our own ranks can wait in a circle because of us. Lazy peers (no
 * identifiers published) connect when they first send to us: they are not waited for here, but
 * served whenever they come. */
#include "gloo_peer.h"

#include "sock.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { VALUE_MAX = 1024 * 1024 };

struct forming {
	struct ws_gloo *g;
	const struct ws_gloo_opts *opts;
	ws_deadline until;
	const struct ws_cancel *cancel;
};

static int check_opts(const struct ws_gloo_opts *o, struct ws_err *err)
{
	if (o->size < 2 || o->size > WS_GLOO_RANKS_MAX || o->rank >= o->size)
		return ws_err_set(err, WS_EUSAGE, "gloo: rank %u of %u: a group has 2 to %u ranks",
		                  o->rank, o->size, WS_GLOO_RANKS_MAX);
	return 0;
}

static int listen_here(const struct forming *f, int *fd, struct ws_gloo_address *a,
                       struct ws_err *err)
{
	uint16_t port;
	*fd = ws_sock_listen(f->opts->host, 0, f->until, f->cancel, &port, err);
	if (*fd < 0)
		return ws_err_wrap(err, "gloo");
	return ws_gloo_address_make(f->opts->host, port, a, err);
}

static int set_key(const struct forming *f, const char *name, unsigned rank,
                   const struct ws_buf *value, struct ws_err *err)
{
	char key[1024];
	snprintf(key, sizeof key, "%s%s%u", f->opts->prefix, name, rank);
	if (ws_buf_check(value, "gloo: our address", err))
		return -1;
	return f->opts->kv->set(f->opts->kv->ctx, key, ws_buf_str(value), value->len, f->until,
	                        err);
}

static const char *own_host_name(char *dst, size_t n)
{
	if (gethostname(dst, n))
		dst[0] = 0;
	dst[n - 1] = 0;
	return dst;
}

static int publish_card(const struct forming *f, struct ws_err *err)
{
	struct ws_gloo *g = f->g;
	char name[256];
	if (listen_here(f, &g->listener, &g->address, err) ||
	    ws_gloo_watch_listener(g, g->listener, g->rank, err))
		return -1;
	struct ws_buf value;
	ws_buf_init(&value, 0);
	ws_gloo_card_pack(&value, own_host_name(name, sizeof name), &g->address, g->size,
	                  !f->opts->rank_as_id);
	const int rc = set_key(f, "", g->rank, &value, err);
	ws_buf_free(&value);
	return rc;
}

/* G1: a port for every peer; which side connects is known only after the peer has published. */
static int publish_list(const struct forming *f, struct ws_gloo_address *ours, struct ws_err *err)
{
	struct ws_gloo *g = f->g;
	struct ws_buf list, host;
	char name[256];
	int rc = -1;
	ws_buf_init(&list, 0);
	ws_buf_init(&host, 0);
	for (unsigned r = 0; r < g->size; r++) {
		uint8_t address[WS_GLOO_ADDRESS];
		if (r == g->rank)
			continue;
		if (listen_here(f, &g->peers[r].listener, &ours[r], err))
			goto out;
		ws_gloo_address_pack(&ours[r], address);
		ws_buf_add(&list, address, sizeof address);
	}
	ws_buf_puts(&host, own_host_name(name, sizeof name));
	if (set_key(f, "rank_", g->rank, &host, err) || set_key(f, "", g->rank, &list, err))
		goto out;
	rc = 0;
out:
	ws_buf_free(&list);
	ws_buf_free(&host);
	return rc;
}

static const char *family_name(const struct ws_gloo_address *a)
{
	return a->sa.ss_family == AF_INET6 ? "IPv6" : "IPv4";
}

/* Decides which rank of the pair connects. */
static int decide_who_connects(const struct ws_gloo *g, struct ws_gloo_peer *p,
                               const struct ws_gloo_card *card, const struct ws_gloo_address *ours,
                               struct ws_err *err)
{
	char name[80];
	ws_sock_name((const struct sockaddr *)&card->address.sa, name, sizeof name);
	if (card->address.sa.ss_family != ours->sa.ss_family) {
		ws_err_set(err, WS_EDATA, "rank %u published the %s address %s, ours is %s",
		           p->rank, family_name(&card->address), name, family_name(ours));
		return ws_err_hint(
			err,
			"all ranks of a group must use one family: publish an %s address, "
			"or set GLOO_SOCKET_IFNAME on that rank",
			family_name(&card->address));
	}
	const int order = ws_gloo_address_cmp(ours, &card->address);
	if (order == 0)
		return ws_err_set(err, WS_EDATA, "rank %u published our own address, %s", p->rank,
		                  name);
	ws_gloo_show(g, p->rank, WS_GLOO_PUBLISHED);
	p->address = card->address;
	p->we_connect = order > 0;
	p->lazy = !card->has_ids;
	p->id = card->id;
	return 0;
}

static int learn(const struct forming *f, struct ws_gloo_peer *p,
                 const struct ws_gloo_address *ours, struct ws_err *err)
{
	const struct ws_gloo_kv *kv = f->opts->kv;
	struct ws_gloo_card card;
	struct ws_buf value;
	char key[1024];
	snprintf(key, sizeof key, "%s%u", f->opts->prefix, p->rank);
	ws_buf_init(&value, VALUE_MAX);
	int rc = kv->get(kv->ctx, key, f->until, f->cancel, &value, err);
	if (rc) {
		ws_err_wrap(err, "rank %u has not published its address", p->rank);
		goto out;
	}
	rc = f->g->layout == WS_GLOO_G1 ?
	             ws_gloo_list_unpack(value.data, value.len, f->g->size, p->rank, f->g->rank,
	                                 &card, err) :
	             ws_gloo_card_unpack(value.data, value.len, f->g->size, f->g->rank, &card, err);
	if (rc)
		ws_err_wrap(err, "what rank %u published", p->rank);
	else
		rc = decide_who_connects(f->g, p, &card, ours, err);
out:
	ws_buf_free(&value);
	return rc;
}

static void hint_at_loopback(const struct ws_gloo_peer *p, const struct ws_gloo_address *ours,
                             struct ws_err *err)
{
	char there[80], here[80];
	ws_sock_name((const struct sockaddr *)&p->address.sa, there, sizeof there);
	ws_sock_name((const struct sockaddr *)&ours->sa, here, sizeof here);
	const bool lo_there = !strncmp(there, "127.", 4) || !strncmp(there, "[::1]", 5);
	const bool lo_here = !strncmp(here, "127.", 4) || !strncmp(here, "[::1]", 5);
	if (lo_there && !lo_here)
		ws_err_hint(err,
		            "rank %u published a loopback address, which only its own machine can "
		            "reach: set GLOO_SOCKET_IFNAME there",
		            p->rank);
}

static int connect_to(const struct forming *f, struct ws_gloo_peer *p,
                      const struct ws_gloo_address *ours, struct ws_err *err)
{
	char what[64];
	snprintf(what, sizeof what, "rank %u", p->rank);
	struct ws_err reason = WS_ERR_INIT;
	const int fd = ws_sock_connect_addr((const struct sockaddr *)&p->address.sa, p->address.len,
	                                    f->until, f->cancel, &reason);
	/* Lazy peers do not wait for us: a peer that needs nothing from us may have finished
	 * and left. The collectives decide whether we need it. */
	if (fd < 0 && p->lazy && reason.code == WS_EREACH) {
		ws_gloo_lose(f->g, p, "is not there (%s)", reason.msg);
		return 0;
	}
	if (fd < 0) {
		if (err)
			*err = reason;
		hint_at_loopback(p, ours, err);
		return ws_err_wrap(err, "%s", what);
	}
	if (f->g->layout == WS_GLOO_G2B) {
		uint8_t id[8];
		for (int i = 0; i < 8; i++)
			id[i] = (uint8_t)((uint64_t)p->id >> (8 * i));
		if (ws_sock_write(fd, id, sizeof id, f->until, f->cancel, what, err)) {
			close(fd);
			return -1;
		}
	}
	ws_gloo_adopt(f->g, p, fd);
	return 0;
}

static int meet(const struct forming *f, struct ws_gloo_peer *p,
                const struct ws_gloo_address *ours, struct ws_err *err)
{
	if (learn(f, p, ours, err))
		return -1;
	if (p->we_connect) {
		ws_gloo_unlisten(f->g, &p->listener);
		return connect_to(f, p, ours, err);
	}
	return p->listener < 0 ? 0 : ws_gloo_watch_listener(f->g, p->listener, p->rank, err);
}

static void name_the_absent(const struct ws_gloo *g, struct ws_err *err)
{
	char ranks[256] = "", address[80];
	size_t used = 0;
	unsigned first = 0;
	for (unsigned r = 0; r < g->size; r++) {
		const struct ws_gloo_peer *p = &g->peers[r];
		if (r == g->rank || p->fd >= 0 || p->lazy || used > sizeof ranks - 16)
			continue;
		first = first ? first : r;
		used += (size_t)snprintf(ranks + used, sizeof ranks - used, "%s%u",
		                         used ? ", " : "", r);
	}
	ws_sock_name((const struct sockaddr *)&g->address.sa, address, sizeof address);
	ws_err_set(err, WS_ETIMEOUT, "gloo: the deadline passed: no connection from rank %s",
	           ranks);
	ws_err_rank(err, first);
	ws_err_hint(err, "they must be able to connect to %s%s (firewall? wrong interface?)",
	            address, g->layout == WS_GLOO_G1 ? " and other ports" : "");
}

/* Waits until every eager peer has connected. */
static int wait_for_peers(const struct forming *f, struct ws_err *err)
{
	struct ws_gloo *g = f->g;
	struct ws_gloo_call call = { .until = f->until, .cancel = f->cancel };
	if (ws_gloo_call_begin(g, &call, err))
		return -1;
	int rc = 0;
	for (unsigned r = 0; r < g->size && rc == 0; r++)
		while (rc == 0 && r != g->rank && g->peers[r].fd < 0 && !g->peers[r].lazy)
			rc = ws_gloo_turn(g, &call, err);
	if (rc && err && err->code == WS_ETIMEOUT)
		name_the_absent(g, err);
	return ws_gloo_call_end(g, &call, rc, err);
}

static int form(const struct forming *f, struct ws_err *err)
{
	struct ws_gloo *g = f->g;
	const bool g1 = g->layout == WS_GLOO_G1;
	struct ws_gloo_address *ours = calloc(g->size, sizeof *ours); /* G1: by peer */
	if (!ours)
		return ws_oom(err);
	int rc = g1 ? publish_list(f, ours, err) : publish_card(f, err);
	if (g1)
		g->address = ours[g->rank == 0 ? 1 : 0];
	for (unsigned r = 0; r < g->size && rc == 0; r++)
		if (r != g->rank && meet(f, &g->peers[r], g1 ? &ours[r] : &g->address, err))
			rc = ws_err_rank(err, r);
	free(ours);
	return rc ? rc : wait_for_peers(f, err);
}

struct ws_gloo *ws_gloo_new(const struct ws_gloo_opts *o, struct ws_err *err)
{
	struct ws_gloo *g = calloc(1, sizeof *g);
	struct ws_gloo_peer *peers = calloc(o->size, sizeof *peers);
	if (!g || !peers) {
		free(g);
		free(peers);
		ws_oom(err);
		return NULL;
	}
	*g = (struct ws_gloo){ .rank = o->rank, .size = o->size, .layout = o->layout,
	                       .watch = o->watch, .trace = o->trace,
	                       .ring_bytes = o->ring_bytes ? o->ring_bytes : (size_t)32 << 20,
	                       .log = o->log, .peers = peers, .listener = -1, .epoll = -1,
	                       .wake = -1 };
	pthread_mutex_init(&g->lock, NULL);
	for (unsigned r = 0; r < o->size; r++) {
		peers[r].rank = r;
		peers[r].fd = peers[r].listener = -1;
		ws_buf_init(&peers[r].out, 0);
		ws_buf_init(&peers[r].asked, 0);
	}
	for (size_t i = 0; i < WS_GLOO_ENTRANTS; i++)
		g->entrants[i].fd = -1;
	if (ws_gloo_loop_open(g, err)) {
		ws_gloo_close(g);
		return NULL;
	}
	return g;
}

int ws_gloo_open(const struct ws_gloo_opts *opts, ws_deadline until, const struct ws_cancel *cancel,
                 struct ws_gloo **out, struct ws_err *err)
{
	if (check_opts(opts, err))
		return -1;
	struct ws_gloo *g = ws_gloo_new(opts, err);
	if (!g)
		return -1;
	const struct forming f = { g, opts, until, cancel };
	if (form(&f, err)) {
		ws_gloo_close(g);
		return -1;
	}
	*out = g;
	return 0;
}

void ws_gloo_abort(struct ws_gloo *g)
{
	const uint64_t one = 1;
	pthread_mutex_lock(&g->lock);
	atomic_store(&g->aborted, true);
	for (unsigned r = 0; r < g->size; r++)
		if (g->peers[r].fd >= 0)
			shutdown(g->peers[r].fd, SHUT_RDWR);
	pthread_mutex_unlock(&g->lock);
	/* The only possible failure is that the eventfd is readable already. */
	if (write(g->wake, &one, sizeof one) < 0)
		return;
}

static void close_fd(int fd)
{
	if (fd >= 0)
		close(fd);
}

void ws_gloo_close(struct ws_gloo *g)
{
	if (!g)
		return;
	for (unsigned r = 0; r < g->size; r++) {
		struct ws_gloo_peer *p = &g->peers[r];
		close_fd(p->fd);
		close_fd(p->listener);
		free(p->in);
		free(p->notes);
		ws_buf_free(&p->out);
		ws_buf_free(&p->asked);
	}
	for (size_t i = 0; i < WS_GLOO_ENTRANTS; i++)
		close_fd(g->entrants[i].fd);
	ws_flow_close(g->flow);
	close_fd(g->listener);
	close_fd(g->epoll);
	close_fd(g->wake);
	pthread_mutex_destroy(&g->lock);
	free(g->peers);
	free(g);
}

uint64_t ws_gloo_progress(const struct ws_gloo *g)
{
	return atomic_load_explicit(&g->progress, memory_order_relaxed);
}

uint64_t ws_gloo_sent(const struct ws_gloo *g)
{
	return atomic_load_explicit(&g->sent, memory_order_relaxed);
}

int64_t ws_gloo_first_byte(const struct ws_gloo *g)
{
	return atomic_load_explicit(&g->first_byte, memory_order_relaxed);
}
