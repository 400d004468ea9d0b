/* SPDX-License-Identifier: Apache-2.0 */
/* senders.h - messages of several senders of one push, in the store of the first sender. Each
 * sender lists its tensors. The first sender assigns the shares and reports how the push ended.
 *
 * Every process that reaches the store's port can write to it, so all values are checked. */
#ifndef WS_PUSH_SENDERS_H
#define WS_PUSH_SENDERS_H

#include "gloo.h"
#include "round.h"
#include "scatter.h"
#include "store.h"

/* ---- keys ---- */

#define WS_SENDERS_END "wsync/end" /* by the first sender, with ws_senders_write_end */
enum { WS_SENDERS_KEY = 64 };
/* Key of a value from sender i, 2 for the second: "list", "sent", "failed" or "bye". */
void ws_senders_key(char key[WS_SENDERS_KEY], unsigned i, const char *what);
/* Key of the share of sender i, which the first sender writes. */
void ws_senders_share_key(char key[WS_SENDERS_KEY], unsigned i);

/* Values of any length, in pieces that fit into a store. get waits for the value. */
int ws_senders_put(const struct ws_gloo_kv *kv, const char *key, const struct ws_buf *value,
                   ws_deadline until, struct ws_err *err);
int ws_senders_get(const struct ws_gloo_kv *kv, const char *key, ws_deadline until,
                   const struct ws_cancel *cancel, struct ws_buf *value, struct ws_err *err);

/* ---- which tensors a sender has ---- */

struct ws_sender_list {
	unsigned sender, senders; /* its number, from 1, and how many there are */
	bool dry_run;
	char round[WS_ROUND_ID]; /* ID of its step, printable; "": not known */
	struct ws_plan_tensor *tensors; /* by name, each once; without items if it was read */
	size_t n;
	char *names;              /* memory of the names that were read; NULL */
};

/* Lists the tensors of a plan, with their items. The plan still owns the names. */
int ws_senders_list(const struct ws_plan *plan, struct ws_sender_list *out, struct ws_err *err);
void ws_senders_write_list(const struct ws_sender_list *l, struct ws_buf *out);
int ws_senders_read_list(const void *bytes, size_t n, struct ws_sender_list *out,
                         struct ws_err *err);
void ws_senders_list_free(struct ws_sender_list *l); /* all zero is fine */

/* The tensors of all senders. The lists must outlive it. */
struct ws_sender_union {
	struct ws_plan plan;      /* only tensors, by name; items are those of lists[0] */
	struct ws_senders *have;  /* the senders that have each tensor */
};
/* WS_EREFUSED: two senders have different tensors of one name. */
int ws_senders_unite(const struct ws_sender_list *lists, unsigned n, struct ws_sender_union *out,
                     struct ws_err *err);
void ws_senders_union_free(struct ws_sender_union *u);

/* ---- shares ---- */

struct ws_share_send {
	unsigned rank;            /* in the group */
	size_t first, n;          /* stripes */
	uint64_t length;
};

struct ws_share {
	unsigned world_size;
	bool dry_run;
	char group[128];
	struct ws_stripe *stripes;
	size_t n_stripes;
	struct ws_share_send *sends;
	size_t n_sends;
	size_t *ends;             /* the end of each batch among the sends */
	size_t n_batches;
};

/* Write the head, then for each batch its sends, then for each send its stripes. */
void ws_share_write_head(struct ws_buf *out, unsigned world_size, bool dry_run, const char *group,
                         size_t n_batches);
void ws_share_write_batch(struct ws_buf *out, size_t n_sends);
int ws_share_write_send(struct ws_buf *out, unsigned rank, const struct ws_stripe *stripes,
                        size_t n, const struct ws_sender_list *whose, struct ws_err *err);
/* Tensors point into the list, which must outlive *out. */
int ws_share_read(const void *bytes, size_t n, const struct ws_sender_list *mine,
                  struct ws_share *out, struct ws_err *err);
void ws_share_free(struct ws_share *s); /* all zero is fine */

/* ---- how it ended, or why a sender gave up ---- */

void ws_senders_write_end(struct ws_buf *out, const struct ws_err *why); /* WS_OK: success */
/* 0: success. -1: *err is the sender's error, or that it cannot be read. */
int ws_senders_read_end(const void *bytes, size_t n, struct ws_err *err);

#endif
