/* SPDX-License-Identifier: Apache-2.0 */
/* store_keys.h - the keys of a store: values and waiters.
 *
 * An entry exists while its key has a value or a waiter. All of it, waiters included,
 * counts against one limit of bytes, because untrusted peers determine the amount. */
#ifndef WS_NET_STORE_KEYS_H
#define WS_NET_STORE_KEYS_H

#include "store_wire.h"

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

struct ws_store_entry;

/* One missing key of a waiter. */
struct ws_store_wait {
	struct ws_store_wait *prev, *next; /* waiters for the same key, oldest first */
	struct ws_store_waiter *who;
	struct ws_store_entry *on;         /* NULL: no longer missing */
};

struct ws_store_waiter {
	struct ws_store_wait *waits; /* NULL: not waiting */
	size_t n_waits, n_missing;
	bool at_barrier;             /* waits at a barrier, not for a key */
};

struct ws_store_waits {
	struct ws_store_wait *first, *last;
};

struct ws_store_entry {
	struct ws_store_entry *next; /* next in its slot */
	uint64_t hash;
	bool has_value, once;
	uint64_t owner;              /* connection that set it; 0: a counter, or none */
	char *value;                 /* may be NULL while n_value is 0 */
	size_t n_value;
	struct ws_store_waits waits;   /* waiters for the key */
	struct ws_store_waits arrived; /* waiters at the barrier of this name */
	size_t n_key;
	char key[];
};

struct ws_store_keys {
	struct ws_store_entry **slots;
	size_t n_slots, n_entries;
	size_t n_values;             /* keys with a value */
	size_t bytes, max_bytes;
	uint64_t secret[2];          /* for the hash, so that peers cannot make keys collide */
	/* Either may be NULL: a waiter's last missing key appeared; a key got its first value. */
	void (*woken)(void *ctx, struct ws_store_waiter *who);
	void (*appeared)(void *ctx);
	void *ctx;
};

int ws_store_keys_init(struct ws_store_keys *k, size_t max_bytes, struct ws_err *err);
void ws_store_keys_fini(struct ws_store_keys *k);

/* NULL: none. */
struct ws_store_entry *ws_store_keys_find(const struct ws_store_keys *k, struct ws_bytes key);
static inline bool ws_store_entry_there(const struct ws_store_entry *e)
{
	return e && e->has_value;
}
static inline struct ws_bytes ws_store_entry_value(const struct ws_store_entry *e)
{
	return e ? (struct ws_bytes){ e->value, e->n_value } : (struct ws_bytes){ NULL, 0 };
}

/* These return -1, without a change, if the limit or memory is exhausted. A new key wakes all
 * its waiters. */
int ws_store_keys_set(struct ws_store_keys *k, struct ws_bytes key, struct ws_bytes value);
int ws_store_keys_append(struct ws_store_keys *k, struct ws_bytes key, struct ws_bytes value);
/* true: there was a value */
bool ws_store_keys_delete(struct ws_store_keys *k, struct ws_bytes key);

/* Registers a wait for the missing ones of n keys (in wire form at f); who->n_missing is their
 * number. */
int ws_store_keys_wait(struct ws_store_keys *k, struct ws_store_waiter *who,
                       struct ws_store_fields f, size_t n);
int ws_store_keys_arrive(struct ws_store_keys *k, struct ws_store_waiter *who,
                         struct ws_bytes key); /* waits at a barrier whose counter was set before */
/* wakes the waiters of the barrier */
void ws_store_keys_release(struct ws_store_keys *k, struct ws_bytes key);
void ws_store_keys_forget(struct ws_store_keys *k, struct ws_store_waiter *who);
/* The first missing key of `who`; NULL: none. */
const struct ws_store_entry *ws_store_keys_missing(const struct ws_store_waiter *who);

/* Calls fn for every key that has a value. */
void ws_store_keys_each(const struct ws_store_keys *k,
                        void (*fn)(void *ctx, const struct ws_store_entry *e), void *ctx);

#endif
