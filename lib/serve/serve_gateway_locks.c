/* SPDX-License-Identifier: Apache-2.0 */
/* serve_gateway_locks.c - locks that end by themselves, for senders on several machines that take turns.
 *
 *   POST /wsync/lock/NAME          {"holder", "lease_s"} -> 200 {"token", "lease_s", "round"}, or 409 with
 *                                  who holds it
 *   POST /wsync/lock/NAME/renew    {"token", "lease_s"} -> 200, or 409 when it is not his any more
 *   POST /wsync/lock/NAME/release  {"token", "round"} -> 200, or 409; the round is kept for the next
 *   GET  /wsync/lock/NAME          who holds it, and the round
 *
 * A token is higher than any before it, also than those of a gateway that ran before. Who does not renew in
 * time has lost the lock, dead or not. The round is the holders' own: {"id": "7", "senders": 4, "had": [1, 3],
 * "parts": "..."}. parts is any text; only who takes the lock is told it. */
#include "serve_gateway.h"

#include "wsync/str.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { LOCKS = 256, NAME = 65, HOLDER = 160, SENDERS = 1024, ROUND_ID = 1025, LEASE_MAX_S = 3600,
       PARTS_MAX = 16 << 20, ALL_PARTS_MAX = 128 << 20 };

struct lock {
	char name[NAME], holder[HOLDER];
	int64_t token;       /* 0: nobody has it */
	int64_t since;       /* taken, by ws_now_ns */
	ws_deadline until;
	unsigned senders;    /* of the round; 0: none was begun */
	char round[ROUND_ID]; /* its ID; "": it has none */
	bool had[SENDERS];
	char *parts;         /* of it, owned; NULL: none */
};

struct gateway_locks {
	int64_t token;       /* the last */
	size_t n;
	struct lock *items[LOCKS];
};

static void free_lock(struct lock *k)
{
	free(k->parts);
	free(k);
}

void gateway_locks_free(struct gateway_locks *l)
{
	for (size_t i = 0; l && i < l->n; i++)
		free_lock(l->items[i]);
	free(l);
}

/* ---- the table ---- */

static bool is_held(const struct lock *k)
{
	return k->token && !ws_deadline_passed(k->until);
}

static struct lock *find(struct gateway_locks *l, const char *name)
{
	for (size_t i = 0; i < l->n; i++)
		if (strcmp(l->items[i]->name, name) == 0)
			return l->items[i];
	return NULL;
}

/* One that nobody holds and whose round is over says nothing that is not forgotten. Where all have rounds,
 * that goes which has not been touched for longest: of senders that died in it nobody ever ends it. */
static struct lock **spare(struct gateway_locks *l)
{
	struct lock **oldest = NULL;
	if (l->n < LOCKS)
		return &l->items[l->n];
	for (size_t i = 0; i < l->n; i++) {
		struct lock **k = &l->items[i];
		if (is_held(*k))
			continue;
		if (!(*k)->senders)
			return k;
		if (!oldest || (*k)->until < (*oldest)->until)
			oldest = k;
	}
	return oldest;
}

static struct lock *make(struct gateway_locks *l, const char *name)
{
	struct lock **place = spare(l), *k = place ? calloc(1, sizeof *k) : NULL;
	if (!k)
		return NULL;
	if (place == &l->items[l->n])
		l->n++;
	else
		free_lock(*place);
	*place = k;
	snprintf(k->name, sizeof k->name, "%s", name);
	return k;
}

/* In the clock's milliseconds, or one more than the last: it stays below 2^53. */
static int64_t next_token(struct gateway_locks *l)
{
	struct timespec now;
	clock_gettime(CLOCK_REALTIME, &now);
	const int64_t ms = (int64_t)now.tv_sec * 1000 + now.tv_nsec / WS_NS_PER_MS;
	l->token = ms > l->token ? ms : l->token + 1;
	return l->token;
}

/* ---- answers ---- */

static void put_round(struct ws_jw *w, const struct lock *k, bool parts)
{
	if (!k || !k->senders) {
		ws_jw_null(w, "round");
		return;
	}
	ws_jw_object(w, "round");
	if (*k->round)
		ws_jw_str(w, "id", k->round);
	ws_jw_uint(w, "senders", k->senders);
	ws_jw_array(w, "had");
	for (unsigned i = 0; i < k->senders; i++)
		if (k->had[i])
			ws_jw_uint(w, NULL, i + 1);
	ws_jw_end_array(w);
	if (parts && k->parts)
		ws_jw_str(w, "parts", k->parts);
	ws_jw_end_object(w);
}

static void put_holder(struct ws_jw *w, const struct lock *k)
{
	const bool held = k && is_held(k);
	ws_jw_str(w, "holder", held ? k->holder : NULL);
	ws_jw_double(w, "held_s", held ? (double)(ws_now_ns() - k->since) / WS_NS_PER_S : 0);
	ws_jw_double(w, "left_s", held ? (double)ws_deadline_left(k->until) / WS_NS_PER_S : 0);
}

static struct ws_jw begin(struct gateway_call *c, unsigned status)
{
	struct ws_jw w;
	ws_buf_reset(&c->rp->body);
	c->rp->status = status;
	ws_jw_init(&w, &c->rp->body);
	ws_jw_object(&w, NULL);
	return w;
}

static void answer_token(struct gateway_call *c, const struct lock *k, int64_t lease_s, bool parts)
{
	struct ws_jw w = begin(c, 200);
	ws_jw_int(&w, "token", k->token);
	ws_jw_int(&w, "lease_s", lease_s);
	put_round(&w, k, parts);
	ws_jw_end_object(&w);
}

static void refuse(struct gateway_call *c, const struct lock *k, const char *what)
{
	struct ws_jw w = begin(c, 409);
	ws_jw_str(&w, "detail", what);
	put_holder(&w, k);
	ws_jw_end_object(&w);
}

/* ---- requests ---- */

/* Replaces the parts of k. */
static int keep_parts(const struct gateway_locks *l, struct lock *k, const char *parts, struct ws_err *err)
{
	const size_t n = strlen(parts);
	size_t all = n;
	char *copy = NULL;
	for (size_t i = 0; i < l->n; i++)
		all += l->items[i] != k && l->items[i]->parts ? strlen(l->items[i]->parts) : 0;
	if (n > PARTS_MAX || all > ALL_PARTS_MAX)
		return ws_serve_field_invalid(err, "round", "parts should have at most 16 MiB, and those of all locks 128 MiB");
	if (n && !(copy = strdup(parts)))
		return ws_err_set(err, WS_ESYSTEM, "out of memory");
	free(k->parts);
	k->parts = copy;
	return 0;
}

static int read_round(const struct gateway_locks *l, const struct ws_json *body, struct lock *k, struct ws_err *err)
{
	const struct ws_json *round = ws_json_get(body, "round"), *had = ws_json_get(round, "had");
	bool seen[SENDERS] = { false };
	int64_t senders = 0, i;
	if (!round)
		return 0; /* it stays as it was */
	if (ws_json_type(round) != WS_JSON_NULL &&
	    (ws_json_type(round) != WS_JSON_OBJECT || !ws_json_int(ws_json_get(round, "senders"), &senders) || senders < 1 || senders > SENDERS ||
	     ws_json_type(had) != WS_JSON_ARRAY))
		return ws_serve_field_invalid(err, "round", "Input should have senders, at most 1024, and had");
	for (had = ws_json_first(had); senders && had; had = ws_json_next(had)) {
		if (!ws_json_int(had, &i) || i < 1 || i > senders)
			return ws_serve_field_invalid(err, "round", "had should be numbers of senders");
		seen[i - 1] = true;
	}
	const char *id = ws_json_get_string(round, "id", "");
	if (strlen(id) >= ROUND_ID)
		return ws_serve_field_invalid(err, "round", "id should have at most 1024 bytes");
	if (keep_parts(l, k, ws_json_get_string(round, "parts", ""), err))
		return -1;
	snprintf(k->round, sizeof k->round, "%s", id);
	k->senders = (unsigned)senders;
	memcpy(k->had, seen, sizeof seen);
	return 0;
}

static void take(struct gateway_call *c, struct gateway_locks *l, const char *name)
{
	const char *holder = "somebody";
	int64_t lease_s = 30;
	struct ws_err err = WS_ERR_INIT;
	if (gateway_text(c->body, "holder", &holder, &err) ||
	    gateway_int(c->body, "lease_s", 1, LEASE_MAX_S, &lease_s, &err)) {
		gateway_fail(c, &err);
		return;
	}
	struct lock *k = find(l, name);
	if (k && is_held(k)) {
		refuse(c, k, "the lock is held");
		return;
	}
	if (!k && !(k = make(l, name))) {
		gateway_refuse(c, 507, "this gateway keeps %d locks, and all of them are held", LOCKS);
		return;
	}
	ws_printable(k->holder, sizeof k->holder, holder, strlen(holder));
	k->token = next_token(l);
	k->since = ws_now_ns();
	k->until = ws_deadline_in(lease_s * WS_NS_PER_S);
	answer_token(c, k, lease_s, true);
}

static void go_on(struct gateway_call *c, struct gateway_locks *l, const char *name, bool release)
{
	int64_t token = 0, lease_s = 30;
	struct lock *k = find(l, name);
	struct ws_err err = WS_ERR_INIT;
	if (ws_serve_field_int(c->body, "token", &token, &err) ||
	    gateway_int(c->body, "lease_s", 1, LEASE_MAX_S, &lease_s, &err)) {
		gateway_fail(c, &err);
		return;
	}
	/* Late, but nobody has come since: then nothing was lost by it. */
	if (!k || !k->token || k->token != token) {
		refuse(c, k, "the lock is not held by this token any more");
		return;
	}
	if (release && read_round(l, c->body, k, &err)) {
		gateway_fail(c, &err);
		return;
	}
	k->until = ws_deadline_in(lease_s * WS_NS_PER_S);
	answer_token(c, k, release ? 0 : lease_s, false);
	if (release)
		k->token = 0;
}

/* "NAME", "NAME/renew", "NAME/release"; the verb, or NULL where it is none of these. */
static const char *split_path(const char *path, char name[NAME])
{
	static const char prefix[] = "/wsync/lock/";
	path += sizeof prefix - 1;
	const size_t n = strcspn(path, "/");
	if (n == 0 || n >= NAME || strspn(path, "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
	                                        "0123456789._-") < n)
		return NULL;
	memcpy(name, path, n);
	name[n] = 0;
	path += n;
	return *path == 0 || strcmp(path, "/renew") == 0 || strcmp(path, "/release") == 0 ? path : NULL;
}

static struct gateway_locks *locks_of(struct gateway_call *c)
{
	struct ws_gateway *g = c->gateway;
	if (!g->locks && !(g->locks = calloc(1, sizeof *g->locks)))
		gateway_refuse(c, 507, "out of memory");
	return g->locks;
}

void gateway_lock_post(struct gateway_call *c)
{
	char name[NAME];
	const char *verb = split_path(c->rq->path, name);
	if (!verb) {
		gateway_refuse(c, 404, "a lock has a name of 1 to 64 letters, digits, '.', '_' and '-'");
		return;
	}
	pthread_mutex_lock(&c->gateway->lock);
	struct gateway_locks *l = locks_of(c);
	if (l && !*verb)
		take(c, l, name);
	else if (l)
		go_on(c, l, name, strcmp(verb, "/release") == 0);
	pthread_mutex_unlock(&c->gateway->lock);
}

void gateway_lock_get(struct gateway_call *c)
{
	char name[NAME];
	const char *verb = split_path(c->rq->path, name);
	if (!verb || *verb) {
		gateway_refuse(c, 404, "Not Found");
		return;
	}
	pthread_mutex_lock(&c->gateway->lock);
	const struct lock *k = c->gateway->locks ? find(c->gateway->locks, name) : NULL;
	struct ws_jw w = begin(c, 200);
	put_holder(&w, k);
	put_round(&w, k, false);
	ws_jw_end_object(&w);
	pthread_mutex_unlock(&c->gateway->lock);
}
