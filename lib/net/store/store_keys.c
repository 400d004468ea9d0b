/* SPDX-License-Identifier: Apache-2.0 */
/* store_keys.c - a chained hash table whose entries also have their waiters.
 *
 * A wake-up takes one step for each waiter, and a wait takes one step for each key: a wait is
 * linked into its entry, and the waiter only counts its missing keys. */
#include "store_keys.h"

#include <assert.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { FIRST_SLOTS = 256 };

static uint64_t rotl(uint64_t x, int by)
{
	return x << by | x >> (64 - by);
}

static void sip_round(uint64_t v[4])
{
	v[0] += v[1]; v[1] = rotl(v[1], 13); v[1] ^= v[0]; v[0] = rotl(v[0], 32);
	v[2] += v[3]; v[3] = rotl(v[3], 16); v[3] ^= v[2];
	v[0] += v[3]; v[3] = rotl(v[3], 21); v[3] ^= v[0];
	v[2] += v[1]; v[1] = rotl(v[1], 17); v[1] ^= v[2]; v[2] = rotl(v[2], 32);
}

/* SipHash-1-3. Keys are untrusted: without a secret they could be made to collide. */
static uint64_t hash_key(const uint64_t secret[2], struct ws_bytes key)
{
	uint64_t v[4] = {
		secret[0] ^ UINT64_C(0x736f6d6570736575), secret[1] ^ UINT64_C(0x646f72616e646f6d),
		secret[0] ^ UINT64_C(0x6c7967656e657261), secret[1] ^ UINT64_C(0x7465646279746573),
	};
	size_t i = 0;
	for (; i + 8 <= key.n; i += 8) {
		const uint64_t word = ws_store_load_u64(key.data + i);
		v[3] ^= word;
		sip_round(v);
		v[0] ^= word;
	}
	uint64_t last = (uint64_t)key.n << 56;
	for (unsigned shift = 0; i < key.n; i++, shift += 8)
		last |= (uint64_t)(unsigned char)key.data[i] << shift;
	v[3] ^= last;
	sip_round(v);
	v[0] ^= last;
	v[2] ^= 0xff;
	for (int round = 0; round < 3; round++)
		sip_round(v);
	return v[0] ^ v[1] ^ v[2] ^ v[3];
}

int ws_store_keys_init(struct ws_store_keys *k, size_t max_bytes, struct ws_err *err)
{
	*k = (struct ws_store_keys){ .max_bytes = max_bytes, .n_slots = FIRST_SLOTS };
	if (getrandom(k->secret, sizeof k->secret, 0) != (ssize_t)sizeof k->secret)
		return ws_err_errno(err, "store: getrandom");
	k->slots = calloc(k->n_slots, sizeof *k->slots);
	return k->slots ? 0 : ws_oom(err);
}

static int charge(struct ws_store_keys *k, size_t n)
{
	if (n > k->max_bytes - k->bytes)
		return -1;
	k->bytes += n;
	return 0;
}

void ws_store_keys_fini(struct ws_store_keys *k)
{
	for (size_t i = 0; k->slots && i < k->n_slots; i++) {
		for (struct ws_store_entry *e = k->slots[i], *next; e; e = next) {
			next = e->next;
			assert(!e->waits.first && !e->arrived.first);
			free(e->value);
			free(e);
		}
	}
	free(k->slots);
	*k = (struct ws_store_keys){ .slots = NULL };
}

static struct ws_store_entry **slot_of(const struct ws_store_keys *k, uint64_t hash)
{
	return &k->slots[hash & (k->n_slots - 1)];
}

static struct ws_store_entry *find_hashed(const struct ws_store_keys *k, struct ws_bytes key,
                                          uint64_t hash)
{
	struct ws_store_entry *e = *slot_of(k, hash);
	while (e && (e->hash != hash || e->n_key != key.n || memcmp(e->key, key.data, key.n) != 0))
		e = e->next;
	return e;
}

struct ws_store_entry *ws_store_keys_find(const struct ws_store_keys *k, struct ws_bytes key)
{
	return find_hashed(k, key, hash_key(k->secret, key));
}

/* If memory is short the table stays small and its chains get longer. */
static void grow(struct ws_store_keys *k)
{
	const size_t n = k->n_slots * 2;
	struct ws_store_entry **slots = calloc(n, sizeof *slots), **old = k->slots;
	if (!slots)
		return;
	const size_t n_old = k->n_slots;
	k->slots = slots;
	k->n_slots = n;
	for (size_t i = 0; i < n_old; i++) {
		for (struct ws_store_entry *e = old[i], *next; e; e = next) {
			struct ws_store_entry **slot = slot_of(k, e->hash);
			next = e->next;
			e->next = *slot;
			*slot = e;
		}
	}
	free(old);
}

/* Finds or makes the entry of a key. */
static struct ws_store_entry *make_entry(struct ws_store_keys *k, struct ws_bytes key)
{
	const uint64_t hash = hash_key(k->secret, key);
	struct ws_store_entry *e = find_hashed(k, key, hash);
	if (e || charge(k, sizeof *e + key.n))
		return e;
	e = calloc(1, sizeof *e + key.n);
	if (!e) {
		k->bytes -= sizeof *e + key.n;
		return NULL;
	}
	e->hash = hash;
	e->n_key = key.n;
	memcpy(e->key, key.data, key.n);
	if (++k->n_entries > k->n_slots)
		grow(k);
	struct ws_store_entry **slot = slot_of(k, hash);
	e->next = *slot;
	*slot = e;
	return e;
}

/* Frees an entry without value and waiters. */
static void tidy(struct ws_store_keys *k, struct ws_store_entry *e)
{
	if (ws_store_entry_there(e) || e->waits.first || e->arrived.first)
		return;
	struct ws_store_entry **at = slot_of(k, e->hash);
	while (*at != e)
		at = &(*at)->next;
	*at = e->next;
	k->n_entries--;
	k->bytes -= sizeof *e + e->n_key;
	free(e);
}

static void unlink_wait(struct ws_store_waits *list, struct ws_store_wait *w)
{
	*(w->prev ? &w->prev->next : &list->first) = w->next;
	*(w->next ? &w->next->prev : &list->last) = w->prev;
	w->on = NULL;
}

static void end_waiting(struct ws_store_keys *k, struct ws_store_waiter *who)
{
	k->bytes -= who->n_waits * sizeof *who->waits;
	free(who->waits);
	*who = (struct ws_store_waiter){ .waits = NULL };
}

static void wake(struct ws_store_keys *k, struct ws_store_waits *list)
{
	while (list->first) {
		struct ws_store_wait *w = list->first;
		struct ws_store_waiter *who = w->who;
		unlink_wait(list, w);
		if (--who->n_missing)
			continue;
		end_waiting(k, who);
		if (k->woken)
			k->woken(k->ctx, who);
	}
}

static void appear(struct ws_store_keys *k, struct ws_store_entry *e)
{
	if (!e->has_value) {
		e->has_value = true;
		k->n_values++;
		if (k->appeared)
			k->appeared(k->ctx);
	}
	wake(k, &e->waits);
}

int ws_store_keys_set(struct ws_store_keys *k, struct ws_bytes key, struct ws_bytes value)
{
	struct ws_store_entry *e = make_entry(k, key);
	if (!e)
		return -1;
	/* The old value's size counts as free for the new one. */
	const size_t old = e->n_value;
	char *copy = NULL;
	k->bytes -= old;
	if (charge(k, value.n) == 0 && !(copy = malloc(value.n + 1)))
		k->bytes -= value.n;
	if (!copy) {
		k->bytes += old;
		tidy(k, e);
		return -1;
	}
	if (value.n)
		memcpy(copy, value.data, value.n);
	free(e->value);
	e->value = copy;
	e->n_value = value.n;
	appear(k, e);
	return 0;
}

int ws_store_keys_append(struct ws_store_keys *k, struct ws_bytes key, struct ws_bytes value)
{
	struct ws_store_entry *e = make_entry(k, key);
	if (!e)
		return -1;
	if (value.n) {
		char *grown = NULL;
		if (value.n <= WS_STORE_VALUE_MAX - e->n_value && charge(k, value.n) == 0 &&
		    !(grown = realloc(e->value, e->n_value + value.n)))
			k->bytes -= value.n;
		if (!grown) {
			tidy(k, e);
			return -1;
		}
		memcpy(grown + e->n_value, value.data, value.n);
		e->value = grown;
		e->n_value += value.n;
	}
	appear(k, e);
	return 0;
}

bool ws_store_keys_delete(struct ws_store_keys *k, struct ws_bytes key)
{
	struct ws_store_entry *e = ws_store_keys_find(k, key);
	if (!e || !e->has_value)
		return false;
	k->n_values--;
	k->bytes -= e->n_value;
	free(e->value);
	e->value = NULL;
	e->n_value = 0;
	e->has_value = e->once = false;
	e->owner = 0;
	tidy(k, e);
	return true;
}

static void link_wait(struct ws_store_waits *list, struct ws_store_wait *w,
                      struct ws_store_waiter *who, struct ws_store_entry *e)
{
	*w = (struct ws_store_wait){ .prev = list->last, .who = who, .on = e };
	*(list->last ? &list->last->next : &list->first) = w;
	list->last = w;
	who->n_missing++;
}

static int make_waits(struct ws_store_keys *k, struct ws_store_waiter *who, size_t n)
{
	if (charge(k, n * sizeof *who->waits))
		return -1;
	who->waits = calloc(n, sizeof *who->waits);
	if (!who->waits) {
		k->bytes -= n * sizeof *who->waits;
		return -1;
	}
	who->n_waits = n;
	return 0;
}

int ws_store_keys_wait(struct ws_store_keys *k, struct ws_store_waiter *who,
                       struct ws_store_fields f, size_t n)
{
	size_t used = 0;
	for (size_t i = 0; i < n; i++) {
		const struct ws_bytes key = ws_store_take_bytes(&f);
		if (ws_store_entry_there(ws_store_keys_find(k, key)))
			continue;
		struct ws_store_entry *e = NULL;
		if ((who->waits || make_waits(k, who, n - i) == 0))
			e = make_entry(k, key);
		if (!e) {
			ws_store_keys_forget(k, who);
			return -1;
		}
		/* A duplicate in the list: this waiter is already the last in the queue. */
		if (!e->waits.last || e->waits.last->who != who)
			link_wait(&e->waits, &who->waits[used++], who, e);
	}
	return 0;
}

int ws_store_keys_arrive(struct ws_store_keys *k, struct ws_store_waiter *who, struct ws_bytes key)
{
	struct ws_store_entry *e = ws_store_keys_find(k, key);
	assert(e);
	if (make_waits(k, who, 1))
		return -1;
	who->at_barrier = true;
	link_wait(&e->arrived, who->waits, who, e);
	return 0;
}

void ws_store_keys_release(struct ws_store_keys *k, struct ws_bytes key)
{
	struct ws_store_entry *e = ws_store_keys_find(k, key);
	if (!e)
		return;
	wake(k, &e->arrived);
	tidy(k, e);
}

void ws_store_keys_forget(struct ws_store_keys *k, struct ws_store_waiter *who)
{
	for (size_t i = 0; i < who->n_waits; i++) {
		struct ws_store_entry *e = who->waits[i].on;
		if (!e)
			continue;
		unlink_wait(who->at_barrier ? &e->arrived : &e->waits, &who->waits[i]);
		tidy(k, e);
	}
	end_waiting(k, who);
}

const struct ws_store_entry *ws_store_keys_missing(const struct ws_store_waiter *who)
{
	for (size_t i = 0; i < who->n_waits; i++)
		if (who->waits[i].on)
			return who->waits[i].on;
	return NULL;
}

void ws_store_keys_each(const struct ws_store_keys *k,
                        void (*fn)(void *ctx, const struct ws_store_entry *e), void *ctx)
{
	for (size_t i = 0; i < k->n_slots; i++)
		for (const struct ws_store_entry *e = k->slots[i]; e; e = e->next)
			if (e->has_value)
				fn(ctx, e);
}
