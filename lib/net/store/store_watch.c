/* SPDX-License-Identifier: Apache-2.0 */
/* store_watch.c - draws conclusions from the keys that peers use.
 *
 * A torch process that cannot work with us does not report that: it waits 30 minutes for a key
 * that is never set. The names of its keys show the reason. The first conclusion is stored as the
 * store's trouble, if a member caused it (see store_core.h). Rank 0's part in two exchanges is here
 * too: the sequence number of gloo groups up to torch 2.0, and the store-based barrier (see
 * store_exec.c). */
#include "store_core.h"

#include "wsync/tool/str.h"

#include <stdarg.h>
#include <stdio.h>
#include <string.h>

enum { ADDRESS_BYTES = 136, SEQUENCE_AT = 128 }; /* size of one address in a gloo value */

/* How long to wait for the second connection of torch <= 2.0. It is opened before the first key
 * is set, so this only covers network reordering. */
static const int64_t twin_grace_ns = 500 * WS_NS_PER_MS;

void ws_store_watch_trouble(struct ws_store_core *core, int rank, const char *hint, const char *fmt,
                            ...)
{
	if (core->trouble.code != WS_OK)
		return;
	char text[sizeof core->trouble.msg];
	va_list ap;
	va_start(ap, fmt);
	vsnprintf(text, sizeof text, fmt, ap);
	va_end(ap);
	ws_err_set(&core->trouble, WS_EDATA, "%s", text);
	if (rank > 0)
		ws_err_rank(&core->trouble, (unsigned)rank);
	if (hint)
		ws_err_hint(&core->trouble, "%s", hint);
	ws_log(core->log, 1, "store: %s", text);
	if (core->changed)
		core->changed(core->ctx);
}

const char *ws_store_watch_name(const struct ws_store_conn *c, char *dst, size_t n)
{
	if (c->sender)
		snprintf(dst, n, "sender %u (%s)", c->sender, c->address);
	else if (c->rank >= 0)
		snprintf(dst, n, "rank %d (%s)", c->rank, c->address);
	else
		snprintf(dst, n, "the peer at %s", c->address);
	return dst;
}

/* ---- members and strangers ---- */

void ws_store_watch_stranger(struct ws_store_core *core, const char *address, const char *why)
{
	const char *colon = strrchr(address, ':');
	const size_t n_ip = colon ? (size_t)(colon - address) : strlen(address);
	for (unsigned i = 0; i < core->n_strangers; i++)
		if (strcmp(core->strangers[i].why, why) == 0 &&
		    strncmp(core->strangers[i].address, address, n_ip + 1) == 0)
			return;
	if (core->n_strangers >= WS_STORE_STRANGERS)
		return;
	struct ws_store_stranger *s = &core->strangers[core->n_strangers++];
	snprintf(s->address, sizeof s->address, "%s", address);
	s->why = why;
}

/* Gives a member that has joined its place. -1: there is none, and it was doomed. */
static int take_place(struct ws_store_conn *c)
{
	struct ws_store_core *core = c->core;
	if (!core->complete) {
		core->members++;
		core->complete = core->world_size && core->members + 1 >= core->world_size;
		return 0;
	}
	core->refused++;
	ws_store_watch_trouble(core, c->rank,
	                       "count the tensor-parallel ranks of every endpoint, and check "
	                       "that no process of an earlier attempt still retries",
	                       "the peer at %s is one too many: the group has world size %u",
	                       c->address, core->world_size);
	ws_store_conn_doom(c, "the group is complete");
	return -1;
}

static void become_member(struct ws_store_conn *c)
{
	if (c->member || c->doomed)
		return;
	c->member = true;
	if (c->joined)
		take_place(c);
}

/* A key with the group's name is known to members only. */
static void note_use(struct ws_store_conn *c, struct ws_bytes key)
{
	const char *group = c->core->group;
	if (!group || ws_store_key_ours(key, group))
		become_member(c);
}

int ws_store_watch_join(struct ws_store_conn *c)
{
	struct ws_store_core *core = c->core;
	if (core->complete && core->group && !c->member) {
		core->refused++;
		ws_store_conn_doom(c, "it joined when all ranks had joined; if it is a rank, count "
		                      "the tensor-parallel ranks of every endpoint");
		return -1;
	}
	c->joined = true;
	core->joined++;
	ws_log(core->log, 1, "store: %s joined (%u of %u)", c->address, core->joined,
	       core->world_size ? core->world_size - 1 : core->joined);
	c->member = c->member || !core->group;
	return c->member ? take_place(c) : 0;
}

/* Until all ranks are known, a stranger among them cannot be told from a rank. */
static void find_ranks(struct ws_store_core *core)
{
	unsigned n = 0;
	if (!core->agreed || core->complete || !core->group || !core->world_size)
		return;
	for (const struct ws_store_conn *c = core->first; c; c = c->next)
		n += c->joined && !c->doomed;
	if (n + 1 != core->world_size)
		return;
	for (struct ws_store_conn *c = core->first; c; c = c->next)
		c->member = c->member || (c->joined && !c->doomed);
	core->members = n;
	core->complete = true;
}

void ws_store_watch_agreed(struct ws_store_core *core)
{
	core->agreed = true;
	find_ranks(core);
}

static bool has_left(const struct ws_store_core *core, unsigned sender)
{
	for (size_t i = 0; i < core->n_left; i++)
		if (core->left[i].sender == sender)
			return true;
	return false;
}

/* True if the key is one of a sender, which this connection is, or is from now on. */
static bool claim_sender(struct ws_store_conn *c, struct ws_bytes key)
{
	static const char prefix[] = WS_STORE_SENDER;
	const struct ws_store_core *core = c->core;
	unsigned number = 0;
	size_t at = sizeof prefix - 1;
	if (key.n <= at || memcmp(key.data, prefix, at) != 0)
		return false;
	for (; at < key.n && key.data[at] >= '0' && key.data[at] <= '9' && number < 10000; at++)
		number = number * 10 + (unsigned)(key.data[at] - '0');
	if (number < 2 || number > core->senders || (c->sender && c->sender != number))
		return false;
	for (const struct ws_store_conn *o = core->first; o; o = o->next)
		if (o != c && o->sender == number)
			return false;
	if (!c->sender && has_left(core, number))
		return false;
	c->sender = number;
	become_member(c);
	return !c->doomed;
}

/* ---- conclusions ---- */

static const struct {
	enum ws_store_key kind;
	const char *what, *hint;
} hopeless[] = {
	{ WS_KEY_PG_WRAPPER,
	  "wraps its groups in the checks of TORCH_DISTRIBUTED_DEBUG=DETAIL, which only torch can "
	  "take part in",
	  "unset TORCH_DISTRIBUTED_DEBUG for that server (INFO is fine) and restart it" },
	{ WS_KEY_SCALABLE_ID,
	  "starts NCCL from several roots (TORCH_NCCL_RANKS_PER_ROOT), which is not supported",
	  "unset TORCH_NCCL_RANKS_PER_ROOT for that server, and keep the group at 128 ranks or "
	  "less" },
	{ WS_KEY_NCCL2,
	  "uses torch's opt-in nccl2 backend, which exchanges ids in a way that is not supported",
	  "unset TORCH_DIST_USE_NCCL2 for that server and restart it" },
};

/* Conclusions from the name alone, for reads and writes. */
static void check_key_name(struct ws_store_conn *c, struct ws_bytes key, enum ws_store_key kind)
{
	struct ws_store_core *core = c->core;
	char name[96];
	const bool is_default = core->group && key.n > 12 &&
	                        memcmp(key.data, "/default_pg/", 12) == 0;
	if (is_default && !c->member)
		ws_store_conn_doom(c, "it uses torch's default group (init_process_group)");
	if (!c->member)
		return;
	for (size_t i = 0; i < sizeof hopeless / sizeof hopeless[0]; i++)
		if (hopeless[i].kind == kind)
			ws_store_watch_trouble(core, c->rank, hopeless[i].hint, "%s %s",
			                       ws_store_watch_name(c, name, sizeof name),
			                       hopeless[i].what);
	if (is_default)
		ws_store_watch_trouble(core, c->rank,
		                       "join with the server's own weight-update call, not with "
		                       "init_process_group",
		                       "%s joined torch's default group and not '%s'",
		                       ws_store_watch_name(c, name, sizeof name), core->group);
	struct ws_store_gloo_key g;
	if (kind == WS_KEY_GLOO_ADDRESS && ws_store_gloo_key(key, core->group, &g) && g.ours &&
	    g.device > 0)
		ws_store_watch_trouble(
			core, c->rank, "name one interface in GLOO_SOCKET_IFNAME of that server",
			"%s spreads gloo over several interfaces, which is not supported",
			ws_store_watch_name(c, name, sizeof name));
}

void ws_store_watch_read(struct ws_store_conn *c, struct ws_bytes key)
{
	static const char zeros[8];
	struct ws_store_core *core = c->core;
	const enum ws_store_key kind = ws_store_classify(key.data, key.n, core->group);
	note_use(c, key);
	check_key_name(c, key, kind);
	c->asked = c->asked || kind == WS_KEY_NCCL_ID;
	if (ws_store_entry_there(ws_store_keys_find(&core->keys, key)))
		return;
	char text[160];
	if (kind == WS_KEY_SEQ_NUM && c->member)
		/* Out of memory leaves the peer waiting, which the report shows. */
		ws_store_keys_set(&core->keys, key, (struct ws_bytes){ zeros, sizeof zeros });
	else if (kind == WS_KEY_OTHER)
		ws_log(core->log, 1, "store: %s asks for \"%s\", an unknown key",
		       c->address, ws_printable(text, sizeof text, key.data, key.n));
}

void ws_store_watch_count(struct ws_store_conn *c, struct ws_bytes key, int64_t sum)
{
	struct ws_store_core *core = c->core;
	static const char suffix[] = ":last_worker";
	char last[WS_STORE_KEY_MAX];
	const enum ws_store_key kind = ws_store_classify(key.data, key.n, core->group);
	check_key_name(c, key, kind);
	if (kind != WS_KEY_BARRIER || !core->world_size || sum != (int64_t)core->world_size ||
	    key.n + sizeof suffix > sizeof last)
		return;
	memcpy(last, key.data, key.n);
	memcpy(last + key.n, suffix, sizeof suffix);
	ws_store_keys_set(&core->keys, (struct ws_bytes){ last, key.n + sizeof suffix - 1 },
	                  (struct ws_bytes){ "1", 1 });
}

static void set_undecided(struct ws_store_conn *c, int64_t since)
{
	c->core->n_undecided += (unsigned)(since != 0) - (unsigned)(c->gloo_since != 0);
	c->gloo_since = since;
}

/* Records the layout of this peer: 'A', 'B' or 'C'. */
static void settle(struct ws_store_conn *c, char epoch)
{
	struct ws_store_core *core = c->core;
	char name[96];
	set_undecided(c, 0);
	ws_store_watch_name(c, name, sizeof name);
	if (epoch == 'B')
		ws_store_watch_trouble(core, c->rank,
		                       "use torch 2.2 or later on that server, or the nccl backend",
		                       "%s runs torch 2.1, whose gloo is not supported", name);
	if (!core->gloo.epoch)
		core->gloo.epoch = epoch;
	if (core->gloo.epoch != epoch)
		ws_store_watch_trouble(core, c->rank,
		                       "run the same torch on every server of the group",
		                       "%s speaks another version of gloo than the first peer",
		                       name);
	else if (core->changed)
		core->changed(core->ctx);
}

void ws_store_watch_decide(struct ws_store_conn *c)
{
	const char epoch = ws_store_conn_epoch(c);
	if (epoch != 'B' || c->scan.epoch == WS_EPOCH_B ||
	    c->core->now - c->gloo_since > twin_grace_ns)
		settle(c, epoch);
}

static bool claim_rank(struct ws_store_conn *c, int rank)
{
	struct ws_store_core *core = c->core;
	if (c->rank == rank)
		return true;
	if (rank == 0 || (core->world_size && (unsigned)rank >= core->world_size)) {
		ws_store_watch_trouble(core, rank,
		                       "rank 0 is ours; the rank offset of the first endpoint is 1",
		                       "the peer at %s calls itself rank %d of %u", c->address,
		                       rank, core->world_size);
		return false;
	}
	for (const struct ws_store_conn *o = core->first; o; o = o->next) {
		if (o->rank != rank)
			continue;
		ws_store_watch_trouble(
			core, rank,
			"pipeline-parallel servers do this; every other server needs "
			"a rank offset of its own",
			"the peers at %s and %s both call themselves rank %d", o->address,
			c->address, rank);
		return false;
	}
	c->rank = rank;
	return true;
}

/* Up to torch 2.0 the sequence number in an address is -1; 2.1 numbers its pairs there. */
static bool numbers_its_pairs(struct ws_bytes value)
{
	return value.n >= ADDRESS_BYTES && value.n % ADDRESS_BYTES == 0 &&
	       ws_store_load_u64(value.data + SEQUENCE_AT) != UINT64_MAX;
}

static void note_gloo(struct ws_store_conn *c, struct ws_bytes key,
                      const struct ws_store_gloo_key *g, struct ws_bytes value)
{
	struct ws_store_core *core = c->core;
	char *prefix = core->gloo.prefix;
	if (g->n_prefix >= sizeof core->gloo.prefix || !claim_rank(c, g->rank))
		return;
	c->asked = true;
	if (!prefix[0]) {
		memcpy(prefix, key.data, g->n_prefix);
		prefix[g->n_prefix] = 0;
	} else if (strlen(prefix) != g->n_prefix || memcmp(prefix, key.data, g->n_prefix) != 0) {
		ws_store_watch_trouble(
			core, c->rank, "run the same torch on every server of the group",
			"rank %d (%s) publishes under other keys than the first peer", c->rank,
			c->address);
	}
	if (c->scan.epoch == WS_EPOCH_OLD && numbers_its_pairs(value))
		c->scan.epoch = WS_EPOCH_B;
	if (!c->gloo_since)
		set_undecided(c, core->now);
	ws_store_watch_decide(c);
}

/* Two ranks of one number publish under one key: says so before the second is doomed. */
static void note_clash(struct ws_store_conn *c, struct ws_bytes key)
{
	struct ws_store_gloo_key g;
	if (ws_store_gloo_key(key, c->core->group, &g) && g.ours && g.device == 0)
		claim_rank(c, g.rank);
}

/* Why the connection may not write the key; NULL: it may. */
static const char *why_not(struct ws_store_conn *c, struct ws_bytes key, bool counts)
{
	const struct ws_store_core *core = c->core;
	const struct ws_store_entry *e = ws_store_keys_find(&core->keys, key);
	if (e && e->once)
		return "it tried to change a key that only we may set";
	if (core->group && ws_store_classify(key.data, key.n, NULL) == WS_KEY_INIT)
		return counts && c->joined ? NULL : "it tried to change the number of ranks";
	note_use(c, key);
	if (core->group && e && e->owner && e->owner != c->id) {
		note_clash(c, key);
		return "it tried to change a key of another rank";
	}
	if (c->member || claim_sender(c, key))
		return NULL;
	return ws_store_classify(key.data, key.n, core->group) == WS_KEY_OTHER ?
	               "it tried to set a key that no rank of this group sets" :
	               "it joins a group of another name: a server that was told another name, "
	               "or a process of an earlier attempt";
}

bool ws_store_watch_may_write(struct ws_store_conn *c, struct ws_bytes key, bool counts)
{
	const char *why = why_not(c, key, counts);
	if (why)
		ws_store_conn_doom(c, why);
	return !c->doomed;
}

void ws_store_watch_write(struct ws_store_conn *c, struct ws_bytes key, struct ws_bytes value)
{
	struct ws_store_core *core = c->core;
	const enum ws_store_key kind = ws_store_classify(key.data, key.n, core->group);
	struct ws_store_gloo_key g;
	char name[96];
	check_key_name(c, key, kind);
	claim_sender(c, key);
	if ((kind == WS_KEY_GLOO_ADDRESS || kind == WS_KEY_GLOO_RANK) &&
	    ws_store_gloo_key(key, core->group, &g) && g.ours && g.device == 0)
		note_gloo(c, key, &g, value);
	if ((key.n == 15 && memcmp(key.data, "/exception_dump", 15) == 0) ||
	    ws_store_key_has(key, "NCCLABORTEDCOMM:"))
		ws_store_watch_trouble(core, c->rank,
		                       "its log says which collective was not answered in time",
		                       "%s gave the group up: its NCCL watchdog fired",
		                       ws_store_watch_name(c, name, sizeof name));
}

void ws_store_watch_left(struct ws_store_conn *c)
{
	struct ws_store_core *core = c->core;
	char name[96];
	if (c->gloo_since)
		settle(c, ws_store_conn_epoch(c));
	if (!c->joined || core->closing)
		return;
	ws_store_remember_left(c);
	c->joined = false;
	if (!c->member) {
		ws_store_watch_stranger(core, c->address,
		                        "it joined, and left before it took part in the group");
		find_ranks(core);
		return;
	}
	ws_store_watch_trouble(
		core, c->rank,
		c->sender ? "see the output of that sender: it failed or was killed" :
			    "see that server's log: it crashed, timed out or destroyed the group",
		"%s left the rendezvous", ws_store_watch_name(c, name, sizeof name));
}
