/* SPDX-License-Identifier: Apache-2.0 */
/* senders.h - what several senders of one push tell each other in its store: each which tensors
 * it has, the first of them what each is to send, and how it ended.
 *
 * The first hosts the store. Whoever reaches its port can write there, so
 * all that is read is checked. */
#ifndef WS_PUSH_SENDERS_H
#define WS_PUSH_SENDERS_H

#include "gloo.h"
#include "round.h"
#include "scatter.h"
#include "store.h"

/* ---- keys ---- */

#define WS_SENDERS_END "wsync/end" /* by the first: text of ws_senders_write_end */
enum { WS_SENDERS_KEY = 64 };
/* By sender i, 2 for the second: "list", "sent", "failed" and "bye". */
void ws_senders_key(char key[WS_SENDERS_KEY], unsigned i, const char *what);
/* By the first, for sender i. */
void ws_senders_share_key(char key[WS_SENDERS_KEY], unsigned i);

/* Values of any length, in pieces that a store takes. get waits. */
int ws_senders_put(const struct ws_gloo_kv *kv, const char *key, const struct ws_buf *value,
                   ws_deadline until, struct ws_err *err);
int ws_senders_get(const struct ws_gloo_kv *kv, const char *key, ws_deadline until,
                   const struct ws_cancel *cancel, struct ws_buf *value, struct ws_err *err);

/* ---- which tensors a sender has ---- */

struct ws_sender_list {
	unsigned sender, senders; /* its number, 1 for the first, of so many */
	bool dry_run;
	char round[WS_ROUND_ID]; /* ID of the step that it sends, printable; "": not known */
	struct ws_plan_tensor *tensors; /* by name, each once; no item where it was read */
	size_t n;
	char *names;              /* owned memory of what was read; NULL */
};

/* Those of a plan, with their items; the names stay the plan's. */
int ws_senders_list(const struct ws_plan *plan, struct ws_sender_list *out, struct ws_err *err);
void ws_senders_write_list(const struct ws_sender_list *l, struct ws_buf *out);
int ws_senders_read_list(const void *bytes, size_t n, struct ws_sender_list *out,
                         struct ws_err *err);
void ws_senders_list_free(struct ws_sender_list *l); /* all zero is fine */

/* All of them together. The lists must outlive it. */
struct ws_sender_union {
	struct ws_plan plan;      /* of tensors alone, by name; items are those of lists[0] */
	struct ws_senders *have;  /* of each */
};
/* WS_EREFUSED where two of them do not mean the same tensor by a name. */
int ws_senders_unite(const struct ws_sender_list *lists, unsigned n, struct ws_sender_union *out,
                     struct ws_err *err);
void ws_senders_union_free(struct ws_sender_union *u);

/* ---- what a sender sends ---- */

struct ws_share_send {
	unsigned rank;            /* of the group */
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
	size_t *ends;             /* of batches, among the sends */
	size_t n_batches;
};

/* The head, then for each batch its sends, then for each of these its stripes. */
void ws_share_write_head(struct ws_buf *out, unsigned world_size, bool dry_run, const char *group,
                         size_t n_batches);
void ws_share_write_batch(struct ws_buf *out, size_t n_sends);
int ws_share_write_send(struct ws_buf *out, unsigned rank, const struct ws_stripe *stripes,
                        size_t n, const struct ws_sender_list *whose, struct ws_err *err);
/* Tensors are those of the list, which must outlive it. */
int ws_share_read(const void *bytes, size_t n, const struct ws_sender_list *mine,
                  struct ws_share *out, struct ws_err *err);
void ws_share_free(struct ws_share *s); /* all zero is fine */

/* ---- how it ended, or why a sender gave up ---- */

void ws_senders_write_end(struct ws_buf *out, const struct ws_err *why); /* WS_OK: well */
/* 0: well. -1: *err is what it says, or that it says nothing. */
int ws_senders_read_end(const void *bytes, size_t n, struct ws_err *err);

#endif
